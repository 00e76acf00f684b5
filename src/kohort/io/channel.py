"""Frames over a connection whose two ends have proved knowledge of a token without sending it.

The channel connects an application with the sources of its Spark queries, and a region's control plane with its
members. Another process that listens on that port, or connects to it, learns nothing. A frame is four bytes of length
and a body.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket
import threading
from collections.abc import Iterator

from kohort.io.processes import name_for_peer

TOKEN_BYTES = NONCE_BYTES = PROOF_BYTES = 32
FRAME_BYTES_MAX = 16 * 1024 * 1024
"""The maximum frame: more than a quarter of a million partitions at about 60 bytes each."""
GREETING_S = 10.0
"""The time for the other end to prove itself; a busy machine starts a thread late."""
SEND_S = 5.0
"""The time after which an end that leaves its frames unread is considered gone."""


def frame(body: bytes) -> bytes:
    """Return a body as a frame.

    Raises:
        ValueError: the body is longer than a frame may be.
    """
    if len(body) > FRAME_BYTES_MAX:
        raise ValueError(f"a message of {len(body)} bytes is longer than {FRAME_BYTES_MAX}")
    return len(body).to_bytes(4, "big") + body


class FrameParser:
    """A parser of bodies from a stream of bytes that arrives in any pieces."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies that are complete now.

        Raises:
            ValueError: a frame is longer than allowed.
        """
        self._bytes += data
        found: list[bytes] = []
        while len(self._bytes) >= 4:
            size = int.from_bytes(self._bytes[:4], "big")
            if size > FRAME_BYTES_MAX:
                raise ValueError(f"a message of {size} bytes is longer than {FRAME_BYTES_MAX}")
            if len(self._bytes) < 4 + size:
                break
            found.append(bytes(self._bytes[4 : 4 + size]))
            del self._bytes[: 4 + size]
        return found


def proof(token: bytes, who: str, nonces: bytes) -> bytes:
    """Return the proof that an end knows the token; `who` prevents replay of a proof to its sender."""
    return hmac.digest(token, who.encode() + nonces, "sha256")


class Link:
    """One connection whose ends have proved themselves. Any thread may send, one reads."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(SEND_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._sending = threading.Lock()

    def name_for_peer(self) -> str:
        """Return this process's name for the other end, which can then check whether it has ended (`io.processes`)."""
        return name_for_peer(self._socket)

    def send(self, body: bytes) -> bool:
        """Send a body; return False if the other end is gone or reads nothing, and the connection is over.

        Raises:
            ValueError: the body is longer than a frame may be.
        """
        data = frame(body)
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError:  # a timeout leaves half a frame behind
            self.close()
            return False
        return True

    def bodies(self, silence_s: float | None = None) -> Iterator[bytes]:
        """Yield bodies until the other end is gone, this end is closed, or nothing came for `silence_s`.

        Raises:
            ValueError: the bytes are not of this channel.
        """
        frames, waited_s = FrameParser(), 0.0
        if silence_s is not None:
            try:
                self._socket.settimeout(min(SEND_S, silence_s))
            except OSError:  # it was closed before it was read
                return
        while True:
            try:
                data = self._socket.recv(65_536)
            except TimeoutError:
                waited_s += self._socket.gettimeout() or 0.0
                if silence_s is not None and waited_s >= silence_s:
                    return
                continue
            except OSError:
                return
            if not data:
                return
            waited_s = 0.0
            yield from frames.feed(data)

    def close(self) -> None:
        """Close the connection for both ends; a thread that reads it wakes up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def forget(self) -> None:
        """Close a forked child's copy without informing the other end."""
        self._socket.close()


def _receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionError("the other end hung up")
        data += piece
    return data


def _check_caller(token: bytes, mine: bytes, said: bytes) -> bytes:
    """Check a caller's proof and return the response to it."""
    nonces = mine + said[:NONCE_BYTES]
    if not hmac.compare_digest(said[NONCE_BYTES:], proof(token, "caller", nonces)):
        raise PermissionError("one that does not know the token")
    return proof(token, "listener", nonces)


def greet_caller(sock: socket.socket, token: bytes) -> Link:
    """Authenticate a new connection on the listener's side.

    Raises:
        OSError: the other end does not know the token, is silent, or gone.
    """
    sock.settimeout(GREETING_S)
    mine = secrets.token_bytes(NONCE_BYTES)
    sock.sendall(mine)
    sock.sendall(_check_caller(token, mine, _receive(sock, NONCE_BYTES + PROOF_BYTES)))
    return Link(sock)


async def await_caller(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes) -> None:
    """Authenticate a new connection on the listener's side, on an event loop.

    Raises:
        OSError: the other end does not know the token, is silent, or gone.
    """
    mine = secrets.token_bytes(NONCE_BYTES)
    writer.write(mine)
    try:
        said = await asyncio.wait_for(reader.readexactly(NONCE_BYTES + PROOF_BYTES), GREETING_S)
    except asyncio.IncompleteReadError as error:
        raise ConnectionError("the other end hung up") from error
    writer.write(_check_caller(token, mine, said))


def greet_listener(sock: socket.socket, token: bytes, within_s: float = GREETING_S) -> Link:
    """Authenticate a new connection on the caller's side.

    Raises:
        OSError: the listener does not know the token, is silent, or gone.
    """
    sock.settimeout(within_s)
    theirs = _receive(sock, NONCE_BYTES)
    mine = secrets.token_bytes(NONCE_BYTES)
    sock.sendall(mine + proof(token, "caller", theirs + mine))
    if not hmac.compare_digest(_receive(sock, PROOF_BYTES), proof(token, "listener", theirs + mine)):
        raise PermissionError("one that does not know the token")
    return Link(sock)
