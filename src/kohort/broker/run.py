"""Lifecycle of a broker, from its options to a clean shutdown, for `kohort broker` and the embedded broker."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from kohort.broker.api import push
from kohort.broker.config.live_settings import LiveSettings
from kohort.broker.config.settings import broker_configs, ignored_settings_warning
from kohort.broker.dispatch import Dispatcher, api_keys
from kohort.broker.metrics import Snapshot
from kohort.broker.node import Node
from kohort.broker.routes import ROUTES, unknown_api_versions
from kohort.broker.security.addresses import bracketed_host
from kohort.broker.security.listener_socket import ListenerSocket
from kohort.broker.security.listeners import listener_list_text, open_listeners, planned_listeners, sasl_servers
from kohort.broker.security.settings import is_security_setting
from kohort.broker.server.listener import divide_descriptors, raise_open_file_limit
from kohort.broker.serving import Serving, print_ready_line, serve_until_ended
from kohort.errors import InvalidInputError, KafkaError
from kohort.io.log_throttle import log_to_stderr
from kohort.log import LogStore, StoreLimits
from kohort.log.filesystem import restrict_umask

log = logging.getLogger("kohort.broker")

LISTEN_DEFAULT = "127.0.0.1:9092"
_REMEDIES = {
    errno.ENOSPC: "make room on its file system",
    errno.EDQUOT: "make room in its user's quota",
    errno.EFBIG: "allow larger files (ulimit -f)",
    errno.EROFS: "mount its file system for writing",
    errno.EIO: "check the disk",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENFILE: "allow more open files on this machine (fs.file-max)",
}
"""The remedies for errors of a data folder."""


class BrokerRegistrar(Protocol):
    """The interface of a service that registers the broker where clients look for it: in ZooKeeper.

    The service knows the broker, not the reverse. `cluster.zookeeper.shown.BrokerInZooKeeper` implements it.
    """

    async def open_before_clients(self, broker: BrokerServer) -> None:
        """Register the broker, and return when it may accept clients.

        Raises:
            KafkaError: the broker can't serve.
        """

    async def close(self) -> None:
        """Unregister the broker, before it closes.

        May be called again, and before `open_before_clients` has returned.
        """


class BrokerServer:
    """A broker on the caller's event loop: its log store, node and listeners. `begin` opens it to clients."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        data_dir: Path,
        listen: str,
        properties: Mapping[str, Any],
        registrar: BrokerRegistrar | None = None,
    ) -> None:
        if data_dir.is_file():
            raise InvalidInputError(f"the data folder {data_dir} is a file: choose a folder, which may be missing")
        security = {name: value for name, value in properties.items() if is_security_setting(name)}
        live = LiveSettings(data_dir, broker_configs(properties), security)
        config, descriptors = live.broker, divide_descriptors(raise_open_file_limit())
        limits = StoreLimits(
            open_files=descriptors.files,
            lent_files=descriptors.lent,
            partitions=config.max_partitions,
            decompressed_ratio=config.decompressed_ratio,
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            retention_check_ms=config.retention_check_ms,
            producer_check_ms=config.producer_check_ms,
        )
        with ExitStack() as failed_start:
            listeners = open_listeners(listen, properties, live.altered_stores)
            for listener in listeners:
                failed_start.callback(listener.sock.close)
            store = LogStore(
                data_dir, defaults=live.log, limits=limits, node_id=config.node_id, cluster_id=config.cluster_id
            )
            failed_start.callback(store.close)
            self.node = Node(loop, data_dir, store, live, api_keys(ROUTES), (listeners[0].host, listeners[0].port))
            failed_start.callback(self.node.close)
            dispatcher = Dispatcher(self.node, ROUTES, unknown_api_versions, pushing=push.handle_frame)
            self.serving = Serving(self.node, listeners, config, descriptors.connections, dispatcher.dispatch)
            self._let_log_in(listen, properties, listeners)
            failed_start.pop_all()
        self.node.listeners = listeners
        self.serving.server.throttle_ms_of = self.node.throttling.connection_throttle_ms
        live.listeners.append(lambda: self.serving.server.reconfigure(live.broker))
        self._registrar = registrar
        self.node.start()

    def _let_log_in(self, listen: str, properties: Mapping[str, Any], listeners: Sequence[ListenerSocket]) -> None:
        """Set up SASL logins of the listeners, add configured users, and open the audit log if clients log in.

        Raises:
            InvalidInputError: a setting is invalid or missing.
        """
        users = properties.get("sasl.users.location")
        if users:
            self.node.users.add_users_from_file(str(users))
        logins = sasl_servers(listen, properties, self.node.users, self.serving.server.logins)
        if self.node.config.audit == "auto" and any(
            plan.authenticates for plan in planned_listeners(listen, properties)
        ):
            self.node.open_audit_log()
        if self.node.audit is not None:
            self.serving.server.logins.on_login = self.node.audit.record_login
        for listener in listeners:
            listener.sasl = logins.get(listener.name)

    def metrics(self) -> Snapshot:
        """Return a snapshot of all metrics."""
        return self.serving.metrics()

    @property
    def address(self) -> str:
        """The address of the first listener, as HOST:PORT."""
        return self.serving.address

    @property
    def advertised_address(self) -> str:
        """The address of the first listener that clients learn from Metadata, HOST:PORT."""
        first, config = self.serving.listeners[0], self.node.config
        host = first.advertised_host or config.advertised_host or first.host
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"{bracketed_host(host)}:{first.advertised_port or config.advertised_port or first.port}"

    @property
    def listeners(self) -> str:
        """All listeners with their real ports (not 0), in the form of the property `listeners`."""
        return listener_list_text(self.serving.listeners)

    async def start_accepting(self) -> None:
        """Register the broker, if it has a registrar, then accept clients."""
        if self._registrar is not None:
            await self._registrar.open_before_clients(self)
        self.listen()

    def listen(self) -> None:
        """Start listening: accept clients on all listeners."""
        self.serving.listen()

    async def close(self) -> None:
        """Stop accepting clients, answer waiting requests, and write all state to disk.

        Raises:
            KafkaError: the state could not be written; the text says what to do.
        """
        if self._registrar is not None:
            await self._registrar.close()
        try:
            await self.serving.close()
        except OSError as error:
            raise KafkaError(
                f"the data folder {self.node.data_dir} was not closed in order: {_cause_and_remedy(error)}. The next "
                "start recovers it: what was acknowledged is kept"
            ) from error


def serve(
    data_dir: str | Path,
    listen: str = LISTEN_DEFAULT,
    properties: Mapping[str, Any] | None = None,
    on_ready: Callable[[BrokerServer, asyncio.Event], None] | None = None,
    registrar: BrokerRegistrar | None = None,
) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Args:
        data_dir: the folder of topics and groups; created if missing.
        listen: the listening address, HOST:PORT.
        properties: broker, group and topic properties.
        on_ready: called once clients can connect, with an event that ends the broker when it is set.
        registrar: registers the broker in ZooKeeper; None: clients find it by its address only.

    Raises:
        KafkaError: an option is invalid, or the port or the folder is in use.
    """

    def start_broker(loop: asyncio.AbstractEventLoop) -> BrokerServer:
        try:
            return BrokerServer(loop, Path(data_dir), listen, properties or {}, registrar)
        except OSError as error:
            raise KafkaError(
                f"the data folder {data_dir} can't be opened: {_cause_and_remedy(error)}, and start the broker again: "
                "what was acknowledged is kept"
            ) from error

    restrict_umask()
    serve_until_ended(start_broker, BrokerServer.start_accepting, on_ready)


def _cause_and_remedy(error: OSError) -> str:
    cause = error.strerror or str(error)
    where = "" if error.filename is None else f" ({os.fspath(error.filename)})"
    return f"{cause}{where}; {_REMEDIES.get(error.errno or 0, 'repair that')}"


def run_broker(
    listen: str,
    data_dir: str | Path,
    properties: Mapping[str, Any],
    registrar: BrokerRegistrar | None = None,
    on_listening: Callable[[str], None] | None = None,
) -> int:
    """Run the command `kohort broker`, and return its exit code.

    Once clients can connect, `on_listening` is called with the address; then the address is printed.

    Raises:
        KafkaError: it can't start, or can't go on.
    """
    log_to_stderr()

    def report_ready(broker: BrokerServer, ended: asyncio.Event) -> None:
        if on_listening is not None:
            on_listening(broker.advertised_address)
        print_ready_line(broker, ended)

    if text := ignored_settings_warning(properties):
        log.warning(text)
    serve(data_dir, listen, properties, report_ready, registrar)
    return 0
