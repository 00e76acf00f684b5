"""Running a broker: from options to a clean end. The command `kohort broker` and the embedded broker end up here."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from kohort.broker.api import push
from kohort.broker.config.live_settings import LiveSettings
from kohort.broker.config.settings import broker_configs
from kohort.broker.config.single_broker import idle_text
from kohort.broker.metrics import Snapshot
from kohort.broker.node import Node
from kohort.broker.routes import ROUTES, unknown_api_versions
from kohort.broker.server.dispatch import Dispatcher, api_keys
from kohort.broker.server.listener import listening_socket, open_file_limit, shares
from kohort.broker.serving import Serving, log_to_stderr, serve_until_ended
from kohort.errors import KafkaError
from kohort.log import LogStore, StoreLimits
from kohort.settings.config import parse_listen

log = logging.getLogger("kohort.broker")

LISTEN_DEFAULT = "127.0.0.1:9092"


class Beside(Protocol):
    """What a broker has beside it: its place among others, which knows of brokers what they do not know of it."""

    async def open(self, broker: RunningBroker) -> None:
        """Before clients are let in. Raises KafkaError: the broker can't serve."""

    async def close(self) -> None:
        """While its groups still answer. May be called again, and before `open` has returned."""


class RunningBroker:
    """A broker on a running loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        data_dir: Path,
        listen: str,
        properties: Mapping[str, Any],
        beside: Beside | None = None,
    ) -> None:
        live = LiveSettings(data_dir, broker_configs(properties))
        config, descriptors = live.broker, shares(open_file_limit())
        limits = StoreLimits(
            open_files=descriptors.files,
            lent_files=descriptors.lent,
            partitions=config.max_partitions,
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            retention_check_ms=config.retention_check_ms,
            producer_check_ms=config.producer_check_ms,
        )
        sock = listening_socket(*parse_listen(listen))
        try:
            store = LogStore(
                data_dir, defaults=live.log, limits=limits, node_id=config.node_id, cluster_id=config.cluster_id
            )
        except BaseException:
            sock.close()
            raise
        self.node = Node(loop, data_dir, store, live, api_keys(ROUTES), sock.getsockname()[:2])
        dispatcher = Dispatcher(self.node, ROUTES, unknown_api_versions, pushing=push.take)
        self.serving = Serving(self.node, sock, config, descriptors.connections, dispatcher.dispatch)
        live.listeners.append(lambda: self.serving.server.reconfigure(live.broker))
        self._beside = beside
        self.node.start()

    def metrics(self) -> Snapshot:
        """See `Serving`."""
        return self.serving.metrics()

    @property
    def address(self) -> str:
        """HOST:PORT as clients write it."""
        return self.serving.address

    async def begin(self) -> None:
        """Let clients in, once what is beside it stands."""
        if self._beside is not None:
            await self._beside.open(self)
        self.listen()

    def listen(self) -> None:
        """Let clients in."""
        self.serving.listen()

    async def close(self) -> None:
        """Let nobody in, answer who waits, write everything down."""
        if self._beside is not None:
            await self._beside.close()
        await self.serving.close()


def serve(
    data_dir: str | Path,
    listen: str = LISTEN_DEFAULT,
    properties: Mapping[str, Any] | None = None,
    on_ready: Callable[[RunningBroker, asyncio.Event], None] | None = None,
    beside: Beside | None = None,
) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Args:
        data_dir: the folder of topics and groups; made if missing.
        listen: HOST:PORT.
        properties: broker, group and topic properties.
        on_ready: called once clients can connect, with the event that ends the broker when set.
        beside: see there.

    Raises:
        KafkaError: bad options, the port or the folder is in use.
    """

    def start(loop: asyncio.AbstractEventLoop) -> RunningBroker:
        return RunningBroker(loop, Path(data_dir), listen, properties or {}, beside)

    serve_until_ended(start, RunningBroker.begin, on_ready)


def run_broker(listen: str, data_dir: str | Path, properties: Mapping[str, Any], beside: Beside | None = None) -> int:
    """What `kohort broker` does; returns the exit code."""
    log_to_stderr()
    if text := idle_text(properties):
        log.warning(text)
    try:
        serve(data_dir, listen, properties, beside=beside)
    except KafkaError as error:
        sys.stderr.write(f"kohort broker: {error.message}\n")
        return 1
    return 0
