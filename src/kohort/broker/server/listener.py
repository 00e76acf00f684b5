"""The listening socket and the accepted connections."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from kohort.broker.config.settings import BrokerConfig
from kohort.broker.server.connection import READ_BUFFER_BYTES, ClientSession, Connection, PlainTransport, unmapped
from kohort.broker.server.flow_control import ByteBudget
from kohort.broker.server.framing import Frame
from kohort.errors import ErrorCode, InvalidInputError, KafkaError

# -- Shares of the process's file descriptors: exhausting one share leaves the others usable

OTHERS = 48
"""Descriptors for the event loop, pipes, locks, metrics scrapes, and files open for one write (checkpoints, catalog).
"""
FILES_MAX = 512
"""The most open log files. With more, a lookup costs more than opening a file again."""
LENT_MAX = 256
"""The most log files that the store has closed but responses in progress still read."""
DESCRIPTORS_MIN = 128


class Descriptors(NamedTuple):
    """Shares of the process's file descriptors."""

    files: int
    lent: int
    connections: int


def open_file_limit() -> int:
    """Raise the process's limit of open files to the allowed maximum, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return int(soft)


def shares(limit: int) -> Descriptors:
    """Divide a limit: a quarter and an eighth at most for log files, the rest for connections.

    Raises:
        InvalidInputError: the limit is too low.

    """
    if limit < DESCRIPTORS_MIN:
        raise InvalidInputError(
            f"a broker needs {DESCRIPTORS_MIN} file descriptors at least, the limit is {limit}: raise it (ulimit -n)"
        )
    left = limit - OTHERS
    files, lent = min(FILES_MAX, left // 4), min(LENT_MAX, left // 8)
    return Descriptors(files, lent, left - files - lent)


log = logging.getLogger("kohort.broker")

ACCEPTS_PER_WAKE = 256
"""Connections accepted in a row: thousands of reconnecting clients get in quickly, and open connections are still
served.
"""
DRAIN_CHECK_S = 0.01
OTHER_ADDRESSES = 10
"""One address gets no more than all but a tenth of the connections, so that others still get in. Loopback is exempt: a
listener there has no other addresses.
"""
UNSENT_QUEUES = 16
"""Responses in memory of all connections together, in multiples of `queued.max.response.bytes` (1 GiB by default)."""
THROTTLED_MAX = 32
"""The most refused connections that stay open for their throttle time."""
FIRST_REQUEST_S = 30.0
"""A new connection has this long for its first request. Kafka's clients send one at once, and give up connecting after
30 s (`socket.connection.setup.timeout.max.ms`).
"""
UNFINISHED_S = 60.0
"""A connection that stopped within a request is closed after this long, and not only when it counts as idle."""
FULL_PAUSE_S = 0.2
"""Pause of accepting when no descriptor is left, not even to refuse a connection."""


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host == "::1"


def listening_socket(host: str, port: int) -> socket.socket:
    """Create a bound socket that does not listen yet.

    Raises:
        KafkaError: the address is in use or not local.

    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise KafkaError(f"can't listen on {host}:{port}: {error.strerror or error}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise KafkaError(_bind_text(host, port, error), ErrorCode.UNKNOWN_SERVER_ERROR) from None
    sock.setblocking(False)
    return sock


def _bind_text(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"can't listen on {host}:{port}: the port is in use by another process"
    if error.errno == errno.EACCES:
        return f"can't listen on {host}:{port}: ports below 1024 need more rights"
    return f"can't listen on {host}:{port}: {error.strerror or error}"


class Server:
    """A server that accepts connections, passes their frames on, and limits their number.

    Attributes:
        unfinished, unsent: the bytes that all connections hold together.
        throttle_ms_of: counts a connection from an address, and returns for how long to throttle it (0: not at all);
            None: there are no quotas.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        room: int,
        on_frame: Callable[[Connection, Frame], None],
        on_closed: Callable[[ClientSession], None],
    ) -> None:
        """Create a server. `room` is the number of descriptors for connections."""
        self._loop = loop
        self._room = room
        self._spare: socket.socket | None = None
        self.on_frame = on_frame
        self._on_closed = on_closed
        self._sock: socket.socket | None = None
        self._scratch = memoryview(bytearray(READ_BUFFER_BYTES))
        self._connections: dict[int, Connection] = {}
        self._by_host: dict[str, int] = {}
        self._dirty: list[Connection] = []
        self._refused = 0
        self._next_number = 0
        self._throttled: dict[socket.socket, asyncio.TimerHandle] = {}
        self.throttle_ms_of: Callable[[str], float] | None = None
        self.unfinished = ByteBudget("unfinished requests", config.unfinished_bytes_max)
        self.unsent = ByteBudget("responses that are not taken", UNSENT_QUEUES * config.queued_bytes_max)
        self.reconfigure(config)

    def __len__(self) -> int:
        return len(self._connections)

    def find(self, number: int) -> Connection | None:
        """Return the open connection of this number."""
        return self._connections.get(number)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed settings. Open connections keep theirs, and stay open if fewer are allowed."""
        self._config = config
        self._limit = min(config.connections_max, self._room)
        self._address_limit = min(config.connections_max_per_ip, self._limit - self._limit // OTHER_ADDRESSES)

    def listen(self, sock: socket.socket) -> tuple[str, int]:
        """Start accepting connections; return the address.

        Raises:
            KafkaError: another process took the port after it was bound.

        """
        host, port = sock.getsockname()[:2]
        try:
            if (
                self._config.receive_buffer_bytes >= 0
            ):  # connections inherit it, and the window that is agreed on follows
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._config.receive_buffer_bytes)
            if self._config.send_buffer_bytes >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._config.send_buffer_bytes)
            sock.listen(self._config.listen_backlog)
        except OSError as error:
            raise KafkaError(_bind_text(host, port, error)) from None
        self._sock = sock
        self._spare = socket.socket()
        self._loop.add_reader(sock.fileno(), self._on_acceptable)
        return host, port

    def _on_acceptable(self) -> None:
        listening = self._sock
        for _ in range(ACCEPTS_PER_WAKE):
            if listening is None:
                return
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("can't accept a connection: %s", error)
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._refuse_with_spare(listening):
                    continue
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(FULL_PAUSE_S, self._accept_again)
                return
            self._admit(sock, (unmapped(address[0]), address[1]))

    def _refuse_with_spare(self, listening: socket.socket) -> bool:
        """Refuse the next connection with the spare descriptor, because none is left; return whether that succeeded.

        A client that is not refused waits in the system's queue until its own timeout.

        """
        if self._spare is None:
            return False
        self._spare.close()
        self._spare = None
        refused = True
        try:
            listening.accept()[0].close()
        except OSError:
            refused = False
        with contextlib.suppress(OSError):
            self._spare = socket.socket()
        return refused

    def _accept_again(self) -> None:
        if self._sock is None:
            return
        if self._spare is None:
            with contextlib.suppress(OSError):
                self._spare = socket.socket()
        self._loop.add_reader(self._sock.fileno(), self._on_acceptable)

    def _admit(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        of_host = self._by_host.get(peer[0], 0)
        most = self._config.connections_max_per_ip if _is_loopback(peer[0]) else self._address_limit
        if len(self._connections) + len(self._throttled) >= self._limit or of_host >= most:
            self._refused += 1
            if self._refused & (self._refused - 1) == 0:  # the 1st, 2nd, 4th … : a storm must not fill the log
                log.warning(
                    "refused the connection from %s:%d: %d are open, %d from this host (%d refused so far)",
                    *peer,
                    len(self._connections),
                    of_host,
                    self._refused,
                )
            sock.close()
            return
        if self.throttle_ms_of is not None and (throttle_ms := self.throttle_ms_of(peer[0])) > 0:
            self._close_later(sock, throttle_ms / 1000)
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport = PlainTransport(sock, peer)
        except OSError:  # the peer was gone before we looked
            sock.close()
            return
        self._next_number += 1
        client = ClientSession(self._next_number, peer[0])
        self._connections[client.number] = Connection(self._loop, transport, client, self, self._config, self._scratch)
        self._by_host[peer[0]] = of_host + 1

    def _close_later(self, sock: socket.socket, seconds: float) -> None:
        """Close a connection after its throttle time, as Kafka does: a client gains nothing by reconnecting at once.

        Beyond `THROTTLED_MAX` of them, close the oldest at once.
        """
        self._throttled[sock] = self._loop.call_later(seconds, self._close_throttled, sock)
        if len(self._throttled) > THROTTLED_MAX:
            self._close_throttled(next(iter(self._throttled)))

    def _close_throttled(self, sock: socket.socket) -> None:
        self._throttled.pop(sock).cancel()
        sock.close()

    def on_closed(self, connection: Connection) -> None:
        """Remove a connection that has closed."""
        self._connections.pop(connection.client.number, None)
        left = self._by_host.get(connection.peer[0], 1) - 1
        if left > 0:
            self._by_host[connection.peer[0]] = left
        else:
            self._by_host.pop(connection.peer[0], None)
        self._on_closed(connection.client)

    def wake(self, connection: Connection) -> None:
        """Flush this connection in the loop's next iteration, together with the others that are ready."""
        if not self._dirty:
            self._loop.call_soon(self._flush)
        self._dirty.append(connection)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            if connection.dirty and not connection.closed:
                connection.flush()

    def close_idle(self) -> None:
        """Close connections that were silent for longer than `connections.max.idle.ms`, or stopped within a request."""
        now = time.monotonic()
        before, began = now - self._config.connection_idle_ms / 1000, now - FIRST_REQUEST_S
        for connection in list(self._connections.values()):
            if connection.last_active < before and connection.idle and not connection.muted:
                log.info("closing the idle connection from %s", connection.name)
                connection.close()
            elif not connection.has_asked and connection.opened < began:
                log.info("closing the connection from %s: no request within %.0f s", connection.name, FIRST_REQUEST_S)
                connection.close()
        stopped = now - UNFINISHED_S
        for holder, since in list(self.unfinished.since()):
            if since < stopped and holder.last_active < stopped and holder.is_reading:
                log.info("closing the connection from %s: stopped within a request", holder.name)
                holder.close()

    def stop_listening(self) -> None:
        """Stop accepting connections."""
        if self._sock is not None:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def drained(self, seconds: float) -> asyncio.Future[None]:
        """Return a future that completes when no response is in progress any more, or after a timeout."""
        future: asyncio.Future[None] = self._loop.create_future()
        until = self._loop.time() + seconds

        def look() -> None:
            if future.cancelled():
                return
            if self._loop.time() >= until or all(connection.idle for connection in self._connections.values()):
                future.set_result(None)
            else:
                self._loop.call_later(DRAIN_CHECK_S, look)

        look()
        return future

    def close(self) -> None:
        """Stop listening, and close all connections."""
        self.stop_listening()
        for sock in list(self._throttled):
            self._close_throttled(sock)
        for connection in list(self._connections.values()):
            connection.close()
