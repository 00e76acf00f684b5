"""The server of a group host: connections, metrics over HTTP, bounded logging, and shutdown on a signal.

A broker uses it, and so does a process that coordinates groups without storing topics.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from kohort.broker.config.settings import BrokerConfig
from kohort.broker.framing import Frame
from kohort.broker.host import GroupHost
from kohort.broker.metrics import Snapshot
from kohort.broker.security.listener_socket import ListenerSocket
from kohort.broker.server.connection import Connection
from kohort.broker.server.listener import Server
from kohort.io.log_throttle import LogThrottle
from kohort.settings.config import parse_listen_address

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from kohort.io.metrics_http import MetricsServer

T = TypeVar("T")
log = logging.getLogger("kohort.broker")

IDLE_CHECK_S = 5.0
CERTIFICATES_CHECK_S = 1.0
LEFT_OUT_S = 60.0
"""Interval of the log lines that count suppressed lines."""
METRICS_WAIT_S = 10.0
"""A scrape fails if the loop does not answer within this time."""
YOUNG_OBJECTS = 100_000
"""Objects allocated before the garbage collector runs.

Requests in progress are tens of thousands of objects, which are freed by reference counting. Python's default of 700
cost a third of the time of large commits.
"""


class Serving:
    """The server of a group host: its listeners, connections, metrics endpoint and log throttle.

    Attributes:
        host, port: the address of the first listener.
        server: the connections.
    """

    def __init__(
        self,
        groups: GroupHost,
        listeners: Sequence[ListenerSocket] | socket.socket,
        config: BrokerConfig,
        room: int,
        dispatch: Callable[[Connection, Frame], None],
    ) -> None:
        """Create a server. Sockets are bound but not listening; `room` is the number of descriptors for connections."""
        self._groups = groups
        self._loop = groups.loop
        if isinstance(listeners, socket.socket):
            listeners = [ListenerSocket("PLAINTEXT", listeners)]
        self.listeners = listeners
        self._config = config
        self.host, self.port = listeners[0].host, listeners[0].port
        self.server = Server(self._loop, config, room, dispatch, groups.on_client_disconnected)
        self._lines = LogThrottle()
        self._idle_check_due = self._loop.time()
        self._metrics: MetricsServer | None = None
        if config.metrics_listen is not None:
            self._serve_metrics(*parse_listen_address(config.metrics_listen))

    def _serve_metrics(self, host: str, port: int) -> None:
        from kohort.io.metrics_http import MetricsServer  # an HTTP server that few need
        from kohort.io.server_certificates import load_certificates

        tls = load_certificates("metrics", self._config.metrics_tls, self._config.metrics_client_ca)
        open_to_all = self._config.metrics_insecure
        self._metrics = MetricsServer(host, port, self._exporter(), tls, is_insecure=open_to_all)

    def _exporter(self) -> Collector:
        from kohort.broker.metrics_exporter import Exporter

        return Exporter(lambda: self.call_on_loop(self.metrics))

    def metrics(self) -> Snapshot:
        """Return all metrics as plain values; call this on the loop.

        `listen` is the address that Prometheus scrapes, or None.
        """
        states = (state for shard in self._groups.groups for state in shard.group_states())
        listen = None if self._metrics is None else self._metrics.address
        return self._groups.metrics.snapshot(states, len(self.server), listen)

    def call_on_loop(self, look: Callable[[], T]) -> T:
        """Run a function on the event loop from another thread, such as a metrics scrape's; return its result."""

        async def on_loop() -> T:
            return look()

        return asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(METRICS_WAIT_S)

    @property
    def address(self) -> str:
        """The address of the first listener, as HOST:PORT."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def listen(self) -> None:
        """Accept clients on every listener, and begin the periodic checks of connections and certificates."""
        self._lines.install()
        self._idle_check_due = self._loop.time()
        for listener in self.listeners:
            self.server.listen(listener)
        if any(listener.tls is not None for listener in self.listeners):
            self._check_certificates()
        self._check_idle()
        self._report_suppressed()

    def _check_idle(self) -> None:
        if self._loop.time() < self._idle_check_due + IDLE_CHECK_S:  # otherwise requests may wait that nobody read yet
            self.server.close_idle()
        self._idle_check_due = self._loop.time() + IDLE_CHECK_S
        self._loop.call_at(self._idle_check_due, self._check_idle)

    def _check_certificates(self) -> None:
        """Reload certificates whose files have changed, off the loop."""
        for listener in self.listeners:
            if listener.tls is not None and listener.tls.has_changed_files:
                self._loop.run_in_executor(None, listener.tls.reload)
        self._loop.call_later(CERTIFICATES_CHECK_S, self._check_certificates)

    def _report_suppressed(self) -> None:
        self._lines.report_suppressed()
        self._loop.call_later(LEFT_OUT_S, self._report_suppressed)

    async def close(self) -> None:
        """Stop accepting clients, answer waiting requests, and close the host."""
        if self._metrics is not None:
            await self._loop.run_in_executor(None, self._metrics.close)
        self.server.stop_listening()
        for listener in self.listeners:
            listener.sock.close()
        self._groups.answer_waiting_requests()
        await self.server.wait_responses_sent(self._config.shutdown_ms / 1000)
        self.server.close()
        self._groups.close()
        self._lines.uninstall()


class RunningServer(Protocol):
    """The interface of a server that runs on an event loop."""

    @property
    def address(self) -> str:
        """The listening address, as HOST:PORT."""

    async def close(self) -> None:
        """Shut down cleanly."""


S = TypeVar("S", bound=RunningServer)


def new_loop() -> asyncio.AbstractEventLoop:
    """Create a uvloop event loop if uvloop is installed, else an asyncio loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def serve_until_ended(
    start: Callable[[asyncio.AbstractEventLoop], S],
    begin: Callable[[S], Awaitable[None]],
    on_ready: Callable[[S, asyncio.Event], None] | None = None,
) -> None:
    """Run a server until SIGTERM or SIGINT, on a loop of its own.

    Args:
        start: creates the server, on the loop.
        begin: starts accepting clients; returns once they can connect. A signal cancels it.
        on_ready: called after `begin`, with an event that ends the server when it is set; None: the line `ready
            HOST:PORT` is printed.

    Raises:
        KafkaError: the server can't start.
    """
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(start, begin, on_ready or print_ready_line))


async def _serve(
    start: Callable[[asyncio.AbstractEventLoop], S],
    begin: Callable[[S], Awaitable[None]],
    on_ready: Callable[[S, asyncio.Event], None],
) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    gc.set_threshold(YOUNG_OBJECTS)
    running = start(loop)
    gc.collect()
    gc.freeze()  # topics and groups are long-lived
    try:
        if await _begin_or_end(begin(running), ended):
            on_ready(running, ended)
            await ended.wait()
        log.info("shutting down: SIGTERM, SIGINT or a request to end was received")
    finally:
        await running.close()


async def _begin_or_end(begin: Awaitable[None], ended: asyncio.Event) -> bool:
    """Wait until the server accepts clients, or is asked to end before that; return whether it accepts clients."""
    beginning, end = asyncio.ensure_future(begin), asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait({beginning, end}, return_when=asyncio.FIRST_COMPLETED)
        if beginning.done():
            await beginning
            return True
        return False
    finally:
        for task in (beginning, end):
            task.cancel()
        await asyncio.gather(beginning, end, return_exceptions=True)


def print_ready_line(running: RunningServer, _ended: asyncio.Event) -> None:
    """Print the line that tells scripts that clients can connect."""
    sys.stdout.write(f"ready {running.address}\n")
    sys.stdout.flush()
