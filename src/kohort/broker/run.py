"""Running a broker: from options to a clean end. The command `kohort broker` and the embedded broker end up here."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kohort.broker.api import push
from kohort.broker.config.live_settings import LiveSettings
from kohort.broker.config.settings import broker_configs
from kohort.broker.config.single_broker import is_idle
from kohort.broker.descriptors import open_file_limit, shares
from kohort.broker.metrics import Snapshot
from kohort.broker.net.dispatch import Dispatcher, api_keys
from kohort.broker.net.log_lines import LogLines
from kohort.broker.net.server import Server, listening_socket
from kohort.broker.node import Node
from kohort.broker.routes import ROUTES, unknown_api_versions
from kohort.config import parse_listen
from kohort.errors import KafkaError
from kohort.log import LogStore, StoreLimits

if TYPE_CHECKING:
    from kohort.scrapes import MetricsServer

log = logging.getLogger("kohort.broker")

IDLE_CHECK_S = 5.0
LEFT_OUT_S = 60.0
"""How often it is said what was left out of the log."""
METRICS_WAIT_S = 10.0
"""A scrape that the loop does not get to within this fails."""
YOUNG_OBJECTS = 100_000
"""Made and not yet freed before the garbage collector looks: requests under way are tens of thousands of objects, which
go by themselves. Python's own 700 cost a third of the time of large commits."""
LISTEN_DEFAULT = "127.0.0.1:9092"


class RunningBroker:
    """A broker on a running loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, data_dir: Path, listen: str, properties: Mapping[str, Any]):
        live = LiveSettings(data_dir, broker_configs(properties))
        idle = sorted(key for key in properties if is_idle(key))
        if idle:
            log.info("taken, though nothing here goes by them: %s", ", ".join(idle))
        config, descriptors = live.broker, shares(open_file_limit())
        limits = StoreLimits(
            open_files=descriptors.files,
            lent_files=descriptors.lent,
            partitions=config.max_partitions,
            producer_id_expiration_ms=config.producer_id_expiration_ms,
        )
        sock = listening_socket(*parse_listen(listen))
        try:
            store = LogStore(
                data_dir, defaults=live.log, limits=limits, node_id=config.node_id, cluster_id=config.cluster_id
            )
        except BaseException:
            sock.close()
            raise
        self._loop = loop
        self._grace_s = config.shutdown_ms / 1000
        self.host, port = sock.getsockname()[:2]
        self.node = Node(loop, data_dir, store, live, api_keys(ROUTES), (self.host, port))
        dispatcher = Dispatcher(self.node, ROUTES, unknown_api_versions, pushing=push.take)
        self._server = Server(loop, config, descriptors.connections, dispatcher.dispatch, self.node.client_lost)
        live.listeners.append(lambda: self._server.reconfigure(live.broker))
        self._lines = LogLines()
        self._sock = sock
        self.node.start()
        self._metrics: MetricsServer | None = None
        if config.metrics_listen is not None:
            self._serve_metrics(*parse_listen(config.metrics_listen))

    def _serve_metrics(self, host: str, port: int) -> None:
        from kohort.broker.prometheus import Exporter  # an HTTP server that few brokers need
        from kohort.scrapes import MetricsServer

        self._metrics = MetricsServer(host, port, Exporter(self._metrics_from_outside))

    def metrics(self) -> Snapshot:
        """All figures as plain values; to be called on the loop. `listen` is where Prometheus reads them, or None."""
        states = (state for shard in self.node.groups for state in shard.group_states())
        listen = None if self._metrics is None else self._metrics.address
        return self.node.metrics.snapshot(states, len(self._server), listen)

    def _metrics_from_outside(self) -> Snapshot:
        async def look() -> Snapshot:
            return self.metrics()

        return asyncio.run_coroutine_threadsafe(look(), self._loop).result(METRICS_WAIT_S)

    @property
    def address(self) -> str:
        """HOST:PORT as clients write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.node.port}"

    def listen(self) -> None:
        """Let clients in."""
        self._lines.begin()
        self._server.listen(self._sock)
        self._check_idle()
        self._say_what_is_missing()

    def _check_idle(self) -> None:
        self._server.close_idle()
        self._loop.call_later(IDLE_CHECK_S, self._check_idle)

    def _say_what_is_missing(self) -> None:
        self._lines.say_what_is_missing()
        self._loop.call_later(LEFT_OUT_S, self._say_what_is_missing)

    async def close(self) -> None:
        """Let nobody in, answer who waits, write everything down."""
        if self._metrics is not None:
            await self._loop.run_in_executor(None, self._metrics.close)
        self._server.stop_listening()
        self.node.stop_waiting()
        await self._server.drained(self._grace_s)
        self._server.close()
        self.node.close()
        self._lines.end()


def new_loop() -> asyncio.AbstractEventLoop:
    """The loop of uvloop where that is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def serve(
    data_dir: str | Path,
    listen: str = LISTEN_DEFAULT,
    properties: Mapping[str, Any] | None = None,
    on_ready: Callable[[RunningBroker, asyncio.Event], None] | None = None,
) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Args:
        data_dir: the folder of topics and groups; made if missing.
        listen: HOST:PORT.
        properties: broker, group and topic properties.
        on_ready: called once clients can connect, with the event that ends the broker when set.

    Raises:
        KafkaError: bad options, the port or the folder is in use.
    """
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(Path(data_dir), listen, properties or {}, on_ready))


async def _serve(
    data_dir: Path,
    listen: str,
    properties: Mapping[str, Any],
    on_ready: Callable[[RunningBroker, asyncio.Event], None] | None,
) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    gc.set_threshold(YOUNG_OBJECTS)
    broker = RunningBroker(loop, data_dir, listen, properties)
    gc.collect()
    gc.freeze()  # topics and groups are here to stay
    try:
        broker.listen()
        (on_ready or announce)(broker, ended)
        await ended.wait()
        log.info("ending")
    finally:
        await broker.close()


def announce(broker: RunningBroker, _ended: asyncio.Event) -> None:
    """Print the line that says clients can connect."""
    sys.stdout.write(f"ready {broker.address}\n")
    sys.stdout.flush()


def run_broker(listen: str, data_dir: str | Path, properties: Mapping[str, Any]) -> int:
    """What `kohort broker` does; returns the exit code."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        serve(data_dir, listen, properties)
    except KafkaError as error:
        sys.stderr.write(f"kohort broker: {error.message}\n")
        return 1
    return 0
