"""Connected sockets: a name's addresses are tried beside each other, and the first that answers is taken.

A name may stand for several machines, or for one machine with IPv6 and IPv4. The system may accept no connection at one
of these addresses, and refuse none either. Such an address must not take the time of the others.

Source: RFC 8305, sections 4 and 5.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from kohort.client.settings import ConnectionConfig

if TYPE_CHECKING:
    import asyncio

Found: TypeAlias = "tuple[int, int, int, str, tuple[object, ...]]"
"""A result of `socket.getaddrinfo`: family, kind, protocol, canonical name, address."""
HEAD_START_S = 0.25
"""Wait this long for an address before the next one is tried beside it. Source: RFC 8305, section 8."""
_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""When a connection is probed on which nothing comes, as far as the system has these options: after 30 s of silence,
three times in 30 s. A machine that lost its power closes no connection, and a JoinGroup waits for minutes."""
_UNDER_WAY = (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN)


def connected_socket(host: str, port: int, config: ConnectionConfig) -> socket.socket:
    """Return a blocking socket that is connected to the first address of `host` that answers.

    Raises:
        OSError: No address accepted the connection in `socket_connection_setup_timeout_ms`.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    with _Race(found, config) as race:
        sock = race.first_connected_socket(time.monotonic() + config.socket_connection_setup_timeout_ms / 1000)
    sock.setblocking(True)
    return sock


class _Race:
    """Parallel attempts to connect to several addresses of one name. Leaving the `with` block closes unused sockets."""

    def __init__(self, found: Sequence[Found], config: ConnectionConfig) -> None:
        self._found = list(found)
        self._config = config
        self._selector = selectors.DefaultSelector()
        self._error: OSError | None = None

    def __enter__(self) -> _Race:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def first_connected_socket(self, until_s: float) -> socket.socket:
        """Return the first socket that is connected.

        Raises:
            OSError: The last refusal, or that the time is over.
        """
        next_s = 0.0
        while True:
            now_s = time.monotonic()
            if now_s >= until_s:
                raise TimeoutError
            if self._found and (now_s >= next_s or not self._selector.get_map()):
                next_s = now_s + HEAD_START_S
                if (sock := self._begin(self._found.pop(0))) is not None:
                    return sock
                continue
            if not self._selector.get_map():
                raise self._error or OSError("the name has no address")
            ready = self._selector.select(max(0.0, (min(until_s, next_s) if self._found else until_s) - now_s))
            for key, _ in ready:
                tried = key.fileobj
                assert isinstance(tried, socket.socket)
                self._selector.unregister(tried)
                if (code := tried.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) == 0:
                    return tried
                self._refused(tried, code)
                next_s = now_s

    def _begin(self, found: Found) -> socket.socket | None:
        """Begin to connect; return the socket if it is connected at once."""
        family, kind, protocol, _, address = found
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # the system lacks the family
            self._error = error
            return None
        try:
            prepare_socket(sock, self._config)
            code = sock.connect_ex(address)
        except BaseException:
            sock.close()
            raise
        if code in _UNDER_WAY:
            self._selector.register(sock, selectors.EVENT_WRITE)
        elif code == 0:
            return sock
        else:
            self._refused(sock, code)
        return None

    def _refused(self, sock: socket.socket, code: int) -> None:
        sock.close()
        self._error = OSError(code, errno.errorcode.get(code, str(code)))


async def connected_loop_socket(host: str, port: int, config: ConnectionConfig) -> socket.socket:
    """Return a socket that the event loop has connected to the first address of `host` that answers.

    Raises:
        OSError: No address accepted the connection.
    """
    import asyncio  # Spark's executors connect blocking sockets only

    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    attempts: set[asyncio.Task[socket.socket]] = set()
    try:
        while True:
            if found:
                attempts.add(loop.create_task(_connect_address(loop, found.pop(0), config)))
            done, attempts = await asyncio.wait(
                attempts, timeout=HEAD_START_S if found else None, return_when=asyncio.FIRST_COMPLETED
            )
            connected = [attempt.result() for attempt in done if attempt.exception() is None]
            for sock in connected[1:]:
                sock.close()
            if connected:
                return connected[0]
            if not found and not attempts:
                return done.pop().result()
    finally:
        for attempt in attempts:
            attempt.add_done_callback(_close_connected)
            attempt.cancel()


async def _connect_address(loop: asyncio.AbstractEventLoop, found: Found, config: ConnectionConfig) -> socket.socket:
    family, kind, protocol, _, address = found
    sock = socket.socket(family, kind, protocol)
    try:
        prepare_socket(sock, config)
        await loop.sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _close_connected(attempt: asyncio.Task[socket.socket]) -> None:
    """Close the socket of an attempt that was connected just when it was cancelled."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


def prepare_socket(sock: socket.socket, config: ConnectionConfig) -> None:
    """Configure a socket before it connects: non-blocking, no send delay, keepalive probes, the configured buffers."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    if config.receive_buffer_bytes > 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer_bytes)
    if config.send_buffer_bytes > 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer_bytes)
