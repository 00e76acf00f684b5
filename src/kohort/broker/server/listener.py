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
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kohort.broker.config.settings import BrokerConfig
from kohort.broker.framing import Frame
from kohort.broker.security.listener_socket import ListenerSocket, bind_error_text
from kohort.broker.security.pending import PendingLogin, PendingLogins, TlsHandshake
from kohort.broker.security.principals import Principal
from kohort.broker.security.tls import TlsTransport
from kohort.broker.server.connection import READ_BUFFER_BYTES, ClientSession, Connection
from kohort.broker.server.flow_control import ByteBudget
from kohort.broker.transport import PlainTransport, Transport, ipv4_of_mapped
from kohort.errors import InvalidInputError, KafkaError

if TYPE_CHECKING:
    from kohort.broker.security.login import SaslServer

# -- Shares of the process's file descriptors: exhausting one share leaves the others usable

OTHERS = 48
"""Descriptors for the event loop, pipes, locks, metrics scrapes, and files open for one write (checkpoints, catalog).
"""
FILES_MAX = 512
"""The most open log files. With more, a lookup costs more than opening a file again."""
LENT_MAX = 256
"""The most log files that the store has closed but responses in progress still read."""
DESCRIPTORS_MIN = 128
MACOS_FILES_MAX = 10_240
"""The most open files that macOS gives to a process whose hard limit is "unlimited": OPEN_MAX in sys/syslimits.h."""


class DescriptorShares(NamedTuple):
    """The process's limit of open files, divided: log files, log files that unsent responses hold, and connections."""

    files: int
    lent: int
    connections: int


def raise_open_file_limit() -> int:
    """Raise the process's limit of open files to the allowed maximum, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, MACOS_FILES_MAX):
        if soft < wanted <= hard:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return int(wanted)
    return int(soft)


def divide_descriptors(limit: int) -> DescriptorShares:
    """Divide the limit of open files: at most 1/4 for log files, 1/8 for files in responses, the rest for connections.

    Raises:
        InvalidInputError: the limit is too low.
    """
    if limit < DESCRIPTORS_MIN:
        raise InvalidInputError(
            f"a broker needs {DESCRIPTORS_MIN} file descriptors at least, the limit is {limit}: raise it (ulimit -n)"
        )
    left = limit - OTHERS
    files, lent = min(FILES_MAX, left // 4), min(LENT_MAX, left // 8)
    return DescriptorShares(files, lent, left - files - lent)


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
        self._listeners: dict[ListenerSocket, None] = {}
        self.logins = PendingLogins(loop)
        self._handshaking = 0
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

    def find_connection(self, number: int) -> Connection | None:
        """Return the open connection with this number; None if it has closed."""
        return self._connections.get(number)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed settings. Open connections keep theirs, and stay open if fewer are allowed."""
        self._config = config
        self._limit = min(config.connections_max, self._room)
        self._address_limit = min(config.connections_max_per_ip, self._limit - self._limit // OTHER_ADDRESSES)

    def listen(self, listener: ListenerSocket | socket.socket) -> tuple[str, int]:
        """Start accepting connections of one more listener; return its address.

        Raises:
            KafkaError: another process took the port after it was bound.
        """
        if isinstance(listener, socket.socket):
            listener = ListenerSocket("PLAINTEXT", listener)
        host, port, sock = listener.host, listener.port, listener.sock
        try:
            if (
                self._config.receive_buffer_bytes >= 0
            ):  # connections inherit it, and the window that is agreed on follows
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._config.receive_buffer_bytes)
            if self._config.send_buffer_bytes >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._config.send_buffer_bytes)
            sock.listen(self._config.listen_backlog)
        except OSError as error:
            raise KafkaError(bind_error_text(host, port, error)) from None
        self._listeners[listener] = None
        if self._spare is None:
            self._spare = socket.socket()
        self._loop.add_reader(sock.fileno(), self._on_acceptable, listener)
        return host, port

    def _on_acceptable(self, listener: ListenerSocket) -> None:
        for _ in range(ACCEPTS_PER_WAKE):
            if listener not in self._listeners:
                return
            try:
                sock, address = listener.sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error(
                    "[listener %s] can't accept a connection, new clients wait or are refused: %s", listener.name, error
                )
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._refuse_with_spare(listener.sock):
                    continue
                self._loop.remove_reader(listener.sock.fileno())
                self._loop.call_later(FULL_PAUSE_S, self._accept_again, listener)
                return
            self._admit(sock, (ipv4_of_mapped(address[0]), address[1]), listener)

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

    def _accept_again(self, listener: ListenerSocket) -> None:
        if listener not in self._listeners:
            return
        if self._spare is None:
            with contextlib.suppress(OSError):
                self._spare = socket.socket()
        self._loop.add_reader(listener.sock.fileno(), self._on_acceptable, listener)

    def _admit(self, sock: socket.socket, peer: tuple[str, int], listener: ListenerSocket) -> None:
        of_host = self._by_host.get(peer[0], 0)
        most = self._config.connections_max_per_ip if _is_loopback(peer[0]) else self._address_limit
        open_or_pending = len(self._connections) + self._handshaking + len(self._throttled)
        if open_or_pending >= self._limit or of_host >= most:
            self._refused += 1
            if self._refused & (self._refused - 1) == 0:  # the 1st, 2nd, 4th … : a storm must not fill the log
                log.warning(
                    "refused the connection from %s:%d: %d connections are open, %d of them from this host (%d "
                    "refused so far)",
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
            transport = PlainTransport(sock, peer) if listener.tls is None else None
            shaking = TlsTransport(sock, peer, listener.tls.context) if listener.tls is not None else None
        except OSError:  # the peer was gone before we looked
            sock.close()
            return
        self._by_host[peer[0]] = of_host + 1
        if transport is not None:
            self._open(transport, listener)
        elif shaking is not None and listener.tls is not None:
            self._handshaking += 1
            TlsHandshake(self._loop, self.logins, shaking, listener.tls, listener.name).begin(
                listener.login_timeout_ms,
                partial(self._on_handshake_done, shaking, listener),
                partial(self._on_handshake_failed, peer[0]),
            )

    def _on_handshake_done(
        self, transport: TlsTransport, listener: ListenerSocket, user: str | None, pending: PendingLogin
    ) -> None:
        """Open a connection whose TLS handshake is complete."""
        self._handshaking -= 1
        connection = self._open(transport, listener, user, pending)
        self._loop.call_soon(connection.handle_received_bytes)

    def _on_handshake_failed(self, host: str) -> None:
        """Remove a connection whose TLS handshake has failed from the counts of open connections."""
        self._handshaking -= 1
        self._left(host)

    def _open(
        self,
        transport: Transport,
        listener: ListenerSocket,
        user: str | None = None,
        pending: PendingLogin | None = None,
    ) -> Connection:
        """Create the connection. Without SASL, the client is served from now on."""
        self._next_number += 1
        client = ClientSession(self._next_number, transport.peer[0])
        client.listener = listener
        if user is not None:
            client.principal = Principal("User", user)
        connection = Connection(self._loop, transport, client, self, self._config, self._scratch)
        self._connections[client.number] = connection
        if listener.sasl is not None:
            self._let_log_in(connection, listener.sasl, listener, pending)
        elif pending is not None:
            pending.cancel_login_deadline()
        return connection

    def _let_log_in(
        self, connection: Connection, sasl: SaslServer, listener: ListenerSocket, pending: PendingLogin | None
    ) -> None:
        def close_unauthenticated(why: str) -> None:
            if self.should_log_problem(connection, why):
                log.warning(
                    "[listener %s] closing the connection from %s: login failed: %s",
                    listener.name,
                    connection.name,
                    why,
                )
            connection.close()

        if pending is None:
            pending = self.logins.begin_login(listener.login_timeout_ms, close_unauthenticated)
        if pending is None:
            close_unauthenticated("too many clients log in at once")
            return
        pending.close = close_unauthenticated
        connection.client.login = sasl.begin_login(connection, self.on_frame, pending)

    def should_log_problem(self, connection: Connection, why: str) -> bool:
        """Return whether a client's mistake, which it repeats with each connection, is to be logged now."""
        return self.logins.notices.should_log(connection.client.host, why)

    def _close_later(self, sock: socket.socket, seconds: float) -> None:
        """Close a refused connection only after its throttle time, so that reconnecting at once gains nothing.

        Beyond `THROTTLED_MAX` of them, close the oldest at once.
        """
        self._throttled[sock] = self._loop.call_later(seconds, self._close_throttled, sock)
        if len(self._throttled) > THROTTLED_MAX:
            self._close_throttled(next(iter(self._throttled)))

    def _close_throttled(self, sock: socket.socket) -> None:
        self._throttled.pop(sock).cancel()
        sock.close()

    def on_closed(self, connection: Connection) -> None:
        """Stop counting a connection that has closed."""
        self._connections.pop(connection.client.number, None)
        if connection.client.login is not None:
            connection.client.login.on_connection_closed()
        self._left(connection.peer[0])
        self._on_closed(connection.client)

    def _left(self, host: str) -> None:
        left = self._by_host.get(host, 1) - 1
        if left > 0:
            self._by_host[host] = left
        else:
            self._by_host.pop(host, None)

    def schedule_flush(self, connection: Connection) -> None:
        """Send a connection's completed responses in the loop's next iteration, with those of other connections."""
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
            if connection.last_active < before and connection.is_idle and not connection.muted:
                log.info(
                    "closing the connection from %s: idle for longer than connections.max.idle.ms", connection.name
                )
                connection.close()
            elif not connection.has_asked and connection.opened < began:
                log.info(
                    "closing the connection from %s: no first request within %.0f s", connection.name, FIRST_REQUEST_S
                )
                connection.close()
        stopped = now - UNFINISHED_S
        for holder, since in list(self.unfinished.holders_by_age()):
            if since < stopped and holder.last_active < stopped and holder.is_reading:
                log.info(
                    "closing the connection from %s: its request is incomplete, and no more bytes of it came for %.0f "
                    "s",
                    holder.name,
                    UNFINISHED_S,
                )
                holder.close()

    def stop_listening(self) -> None:
        """Stop accepting connections."""
        for listener in self._listeners:
            self._loop.remove_reader(listener.sock.fileno())
            listener.sock.close()
        self._listeners = {}
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def wait_responses_sent(self, seconds: float) -> asyncio.Future[None]:
        """Return a future that completes when no response is in progress any more, or after a timeout."""
        future: asyncio.Future[None] = self._loop.create_future()
        until = self._loop.time() + seconds

        def check_whether_drained() -> None:
            if future.cancelled():
                return
            if self._loop.time() >= until or all(connection.is_idle for connection in self._connections.values()):
                future.set_result(None)
            else:
                self._loop.call_later(DRAIN_CHECK_S, check_whether_drained)

        check_whether_drained()
        return future

    def close(self) -> None:
        """Stop listening, and close all connections."""
        self.stop_listening()
        self.logins.close()
        for sock in list(self._throttled):
            self._close_throttled(sock)
        for connection in list(self._connections.values()):
            connection.close()
