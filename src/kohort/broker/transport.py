"""The bytes of a connection: parts of a response, and the transports that send them.

`security/tls.py` has the transport of TLS.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from kohort.log import FileRange
from kohort.wire.schema import Buffer

# -- Parts of a response: buffers, and bytes of log files that never enter this process

SMALL_BYTES = 4096
"""Smaller buffers are copied together, which costs less than passing each to the kernel."""


class LogSlice:
    """A range of a log file inside a response, read when the socket accepts it."""

    __slots__ = ("_file", "_length", "_position")

    def __init__(self, part: FileRange) -> None:
        self._file, self._position, self._length = part

    def __len__(self) -> int:
        return self._length

    def send_to(self, fd: int, count: int) -> int:
        """Send the first `count` bytes to a socket; return how many it accepted."""
        return os.sendfile(fd, self._file.fd, self._position, count)

    def read_at(self, skip: int, count: int) -> bytes:
        """Read `count` bytes after the first `skip`, for a transport that encrypts them."""
        return os.pread(self._file.fd, count, self._position + skip)

    def skip_sent(self, count: int) -> None:
        """Skip this many bytes of the range, which were sent."""
        self._position += count
        self._length -= count


Part: TypeAlias = Buffer | LogSlice
Parts: TypeAlias = Sequence[Part]


def join_small_buffers(parts: Sequence[Part]) -> list[Part]:
    """Join adjacent small buffers of a response."""
    joined: list[Part] = []
    run: list[Buffer] = []
    for part in parts:
        if not isinstance(part, LogSlice) and len(part) < SMALL_BYTES:
            run.append(part)
            continue
        if run:
            joined.append(b"".join(run))
            run = []
        joined.append(part)
    if run:
        joined.append(b"".join(run))
    return joined


# -- Transports: the bytes of a connection, whatever protocol carries them

MAPPED = "::ffff:"
MORE_FOLLOWS = getattr(socket, "MSG_MORE", 0)
"""If the system supports it, a header waits for the log bytes after it and leaves in the same packet."""


class Transport(Protocol):
    """The byte stream of a connection.

    Receiving and sending never block. They raise `BlockingIOError` if the connection has to wait for the loop's next
    event, and another `OSError` if the connection has failed.

    Attributes:
        fd: the descriptor that the loop watches.
        peer: the client's address.
        local: the local address of the connection.
    """

    @property
    def fd(self) -> int: ...
    @property
    def peer(self) -> tuple[str, int]: ...
    @property
    def local(self) -> tuple[str, int]: ...

    def receive_into(self, buffer: memoryview, /) -> int:
        """Receive available bytes into a buffer; return how many. 0: the client has closed the connection."""

    def send(self, buffers: Sequence[Buffer], /, *, more: bool) -> int:
        """Send as many of these bytes as the socket accepts; return how many. `more`: others follow at once."""

    def send_log_slice(self, part: LogSlice, count: int, /) -> int:
        """Send up to `count` bytes of a log file; return how many the socket accepted."""

    def close(self) -> None:
        """Close the socket."""


def ipv4_of_mapped(host: str) -> str:
    """Return the IPv4 address that a dual-stack socket writes as `::ffff:127.0.0.1`; any other address unchanged.

    The broker sends its own address to a client. An IPv4 client may be unable to connect to an IPv6 address.
    """
    return host.removeprefix(MAPPED) if host.startswith(MAPPED) and "." in host else host


class PlainTransport:
    """An unencrypted transport on a non-blocking TCP socket."""

    __slots__ = ("_sock", "fd", "local", "peer", "receive_into")

    def __init__(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        self._sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        host, port = sock.getsockname()[:2]
        self.local = (ipv4_of_mapped(host), port)
        self.receive_into: Callable[[memoryview], int] = sock.recv_into

    def send(self, buffers: Sequence[Buffer], /, *, more: bool) -> int:
        """Send as many of these bytes as the socket accepts; return how many. `more`: others follow at once."""
        flags = MORE_FOLLOWS if more else 0
        if len(buffers) == 1:
            return self._sock.send(buffers[0], flags)
        return self._sock.sendmsg(buffers, [], flags)

    def send_log_slice(self, part: LogSlice, count: int, /) -> int:
        """Let the kernel send log bytes, which never enter this process."""
        return part.send_to(self.fd, count)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()
