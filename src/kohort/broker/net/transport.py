"""Transports: the bytes of one connection, whatever they travel in."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from kohort.broker.net.parts import LogSlice
from kohort.wire.schema import Buffer

MAPPED = "::ffff:"
MORE_FOLLOWS = getattr(socket, "MSG_MORE", 0)
"""Where the system knows it, a head waits for the log bytes that follow and leaves in the same packet."""


class Transport(Protocol):
    """What a connection needs of the bytes below it.

    Receiving and sending never wait. They raise `BlockingIOError` where the loop's next event has to be waited for, and
    another `OSError` where the connection has failed.

    Attributes:
        fd: what the loop watches.
        peer: the client's address.
        local: the address that the client reached.
    """

    @property
    def fd(self) -> int: ...
    @property
    def peer(self) -> tuple[str, int]: ...
    @property
    def local(self) -> tuple[str, int]: ...

    def receive_into(self, buffer: memoryview, /) -> int:
        """Take what has come, as far as it fits; 0: the client has ended the connection."""

    def send(self, buffers: Sequence[Buffer], /, *, more: bool) -> int:
        """Send a beginning of these bytes; returns how many. `more`: others follow at once."""

    def send_slice(self, part: LogSlice, count: int, /) -> int:
        """Send a beginning of the first `count` bytes of a log's; returns how many."""

    def close(self) -> None:
        """Let go of the socket."""


def unmapped(host: str) -> str:
    """The IPv4 address that a socket of both families writes as `::ffff:127.0.0.1`; any other address as it is.

    A client on IPv4 is told this broker's address, and may be unable to connect to one of IPv6.
    """
    return host.removeprefix(MAPPED) if host.startswith(MAPPED) and "." in host else host


class PlainTransport:
    """Bytes as they are, on a TCP socket that does not block."""

    __slots__ = ("_sock", "fd", "local", "peer", "receive_into")

    def __init__(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        self._sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        host, port = sock.getsockname()[:2]
        self.local = (unmapped(host), port)
        self.receive_into: Callable[[memoryview], int] = sock.recv_into

    def send(self, buffers: Sequence[Buffer], /, *, more: bool) -> int:
        """Send a beginning of these bytes; returns how many. `more`: others follow at once."""
        flags = MORE_FOLLOWS if more else 0
        if len(buffers) == 1:
            return self._sock.send(buffers[0], flags)
        return self._sock.sendmsg(buffers, [], flags)

    def send_slice(self, part: LogSlice, count: int, /) -> int:
        """Have the kernel send log bytes: they never enter this process."""
        return part.send_to(self.fd, count)

    def close(self) -> None:
        """Let go of the socket."""
        self._sock.close()
