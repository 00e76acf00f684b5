"""Frames over a connection whose ends have proved a shared secret, each frame authenticated.

The channel connects an application with the sources of its Spark queries, and a region's control plane with its
members. Neither end sends the secret. Another process that listens on the port, or connects to it, learns nothing.

    listener  nonce (32 bytes)
    caller    nonce, proof (HMAC-SHA256 of the secret over "caller" and both nonces)
    listener  proof (over "listener" and both nonces)
    both      frames: length of the body (4 bytes), body, HMAC-SHA256 over the frame's number, the length and the body

Each direction has a key of its own, derived from the secret and the nonces, and numbers its frames from 0. So a frame
that is changed, repeated, left out, reordered or sent back ends the connection. `multiprocessing.connection` proves a
secret in the same way, but leaves its frames unauthenticated and unpickles them.

The handshake and the frames do no I/O. `Link` drives them on threads, `AsyncLink` on an event loop.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from kohort.io.pinned_tls import ListenerPipe, TlsPipe, caller_tls_pipe
from kohort.io.processes import identity_for_peer

if TYPE_CHECKING:
    import asyncio

TOKEN_BYTES = NONCE_BYTES = PROOF_BYTES = 32
FRAME_BYTES_MAX = 16 * 1024 * 1024
"""The maximum body: more than a quarter of a million partitions at about 60 bytes each."""
UNREAD_BYTES_MAX = 32 * 1024 * 1024
"""Limit on an event loop's unsent bytes of one connection, above which it is closed: twice the longest frame."""
GREETING_S = 10.0
"""The time for the whole handshake; a busy machine starts a thread late."""
SEND_S = 5.0
"""The time after which an end that leaves its frames unread is considered gone."""
_LENGTH_BYTES = 4
_READ_BYTES = 65_536


def token_proof(token: bytes, who: str, nonces: bytes) -> bytes:
    """Return the HMAC that proves knowledge of the secret `token`.

    `who` (caller or listener) is part of it, so that no end can send the other's proof back.
    """
    return hmac.digest(token, who.encode() + nonces, "sha256")


class FrameSealer:
    """The sender's half of one direction: seals frames with a keyed hash and a counter."""

    def __init__(self, key: bytes) -> None:
        self._key, self._number = key, 0

    def seal_frame(self, body: bytes) -> bytes:
        """Seal a body as the next frame of this direction: length, body and keyed hash.

        Raises:
            ValueError: the body is longer than a frame may be.
        """
        if len(body) > FRAME_BYTES_MAX:
            raise ValueError(f"a message of {len(body)} bytes is longer than {FRAME_BYTES_MAX}")
        framed = len(body).to_bytes(_LENGTH_BYTES, "big") + body
        number, self._number = self._number, self._number + 1
        return framed + _mac(self._key, number, framed)


class FrameParser:
    """The receiver's half of one direction: parses bodies from a stream of bytes that arrives in any pieces."""

    def __init__(self, key: bytes) -> None:
        self._key, self._number = key, 0
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes, and return the bodies of the frames that they complete.

        Raises:
            ValueError: a frame is longer than allowed, or not the other end's next one.
        """
        self._bytes += data
        found: list[bytes] = []
        while len(self._bytes) >= _LENGTH_BYTES:
            size = int.from_bytes(self._bytes[:_LENGTH_BYTES], "big")
            if size > FRAME_BYTES_MAX:
                raise ValueError(f"a message of {size} bytes is longer than {FRAME_BYTES_MAX}")
            end = _LENGTH_BYTES + size
            if len(self._bytes) < end + PROOF_BYTES:
                break
            framed, mac = bytes(self._bytes[:end]), bytes(self._bytes[end : end + PROOF_BYTES])
            if not hmac.compare_digest(mac, _mac(self._key, self._number, framed)):
                raise ValueError(f"frame {self._number} of this connection is not what the other end sent")
            self._number += 1
            found.append(framed[_LENGTH_BYTES:])
            del self._bytes[: end + PROOF_BYTES]
        return found


def _mac(key: bytes, number: int, framed: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + framed, "sha256")


class LinkFrames:
    """The sealer of outgoing frames and the parser of incoming ones, with the keys of one connection."""

    def __init__(self, token: bytes, nonces: bytes, *, is_caller: bool) -> None:
        keys = [token_proof(token, f"frames of the {who}", nonces) for who in ("caller", "listener")]
        own, other = keys if is_caller else reversed(keys)
        self.sealer, self.parser = FrameSealer(own), FrameParser(other)


class ListenerHandshake:
    """The listener's side of the mutual authentication by a shared secret, without I/O.

    Attributes:
        nonce: what it sends first.
    """

    SAID_BYTES = NONCE_BYTES + PROOF_BYTES

    def __init__(self, token: bytes) -> None:
        self._token, self.nonce = token, secrets.token_bytes(NONCE_BYTES)

    def check_and_answer(self, said: bytes) -> tuple[bytes, LinkFrames]:
        """Check what the caller has sent, and return the response and the connection's frames.

        Raises:
            PermissionError: the caller does not know the token.
        """
        nonces = self.nonce + said[:NONCE_BYTES]
        if not hmac.compare_digest(said[NONCE_BYTES:], token_proof(self._token, "caller", nonces)):
            raise PermissionError("a caller that does not know the token")
        return token_proof(self._token, "listener", nonces), LinkFrames(self._token, nonces, is_caller=False)


class CallerHandshake:
    """The caller's side of the mutual authentication by a shared secret, without I/O."""

    def __init__(self, token: bytes, theirs: bytes) -> None:
        """Begin the handshake with the listener's nonce."""
        mine = secrets.token_bytes(NONCE_BYTES)
        self._token, self._nonces = token, theirs + mine
        self.says = mine + token_proof(token, "caller", self._nonces)

    def check_answer(self, answer: bytes) -> LinkFrames:
        """Check the listener's response, and return the connection's frames.

        Raises:
            PermissionError: the listener does not know the token.
        """
        if not hmac.compare_digest(answer, token_proof(self._token, "listener", self._nonces)):
            raise PermissionError("a listener that does not know the token")
        return LinkFrames(self._token, self._nonces, is_caller=True)


# -- On threads


class Link:
    """An authenticated connection for threads: any thread may send, one reads."""

    def __init__(self, sock: socket.socket, frames: LinkFrames, tls: TlsPipe | None = None, early: bytes = b"") -> None:
        """Take a socket after its handshake; `early` are bytes of frames that came with its last message."""
        sock.settimeout(SEND_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._frames, self._tls, self._early = sock, frames, tls, early
        self._sending = threading.Lock()

    def identity_for_peer(self) -> str:
        """Return this process's identity (`io.processes`) for the peer, which can then check whether it has ended."""
        return identity_for_peer(self._socket)

    def send(self, body: bytes) -> bool:
        """Send a body; return False if the other end is gone or reads nothing, and the connection is over.

        Raises:
            ValueError: the body is longer than a frame may be.
        """
        try:
            with self._sending:  # frames are numbered as they are sent
                data = self._frames.sealer.seal_frame(body)
                self._socket.sendall(data if self._tls is None else self._tls.encrypt(data))
        except OSError:  # a timeout leaves half a frame behind
            self.close()
            return False
        return True

    def receive_bodies(self, idle_s: float | None = None) -> Iterator[bytes]:
        """Yield the bodies of received frames.

        End when the other end is gone, this end is closed, or nothing came for `idle_s` seconds.

        Raises:
            ValueError: the bytes are not the other end's.
        """
        waited_s = 0.0
        early, self._early = self._early, b""
        yield from self._frames.parser.feed(early)
        if idle_s is not None:
            try:
                self._socket.settimeout(min(SEND_S, idle_s))
            except OSError:  # it was closed before it was read
                return
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
                plain = data if self._tls is None or not data else self._tls.decrypt(data)
            except TimeoutError:
                waited_s += self._socket.gettimeout() or 0.0
                if idle_s is not None and waited_s >= idle_s:
                    return
                continue
            except OSError:
                return
            if not data:
                return
            waited_s = 0.0
            yield from self._frames.parser.feed(plain)

    def close(self) -> None:
        """Close the connection for both ends; a thread that reads it wakes up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def close_forked_copy(self) -> None:
        """Close the copy of the connection in a forked child; the parent's stays open."""
        self._socket.close()


class _Greeting:
    """The bytes of a handshake on a socket, under one deadline for all of them."""

    def __init__(self, sock: socket.socket, within_s: float, pin: bytes = b"") -> None:
        self._socket, self._until_s = sock, time.monotonic() + within_s
        self._plain = b""
        self.tls: TlsPipe | None = None
        if pin:
            self.tls = caller_tls_pipe(pin)
            while True:
                self._send_raw(self.tls.continue_handshake())
                if self.tls.is_done:
                    break
                self.tls.feed(self._receive_raw(_READ_BYTES))

    def send(self, data: bytes) -> None:
        self._send_raw(data if self.tls is None else self.tls.encrypt(data))

    def receive(self, size: int) -> bytes:
        """Read exactly this many bytes of the handshake."""
        if self.tls is not None:
            self._plain += self.tls.decrypt(b"")
        while len(self._plain) < size:
            if self.tls is None:
                self._plain += self._receive_raw(size - len(self._plain))
            else:
                self._plain += self.tls.decrypt(self._receive_raw(_READ_BYTES))
        found, self._plain = self._plain[:size], self._plain[size:]
        return found

    def _send_raw(self, data: bytes) -> None:
        self._limit()
        self._socket.sendall(data)

    def _receive_raw(self, most: int) -> bytes:
        self._limit()
        data = self._socket.recv(most)
        if not data:
            raise ConnectionError("the other end hung up")
        return data

    def _limit(self) -> None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the handshake takes too long")
        self._socket.settimeout(left_s)

    def rest(self) -> bytes:
        """Return the bytes that arrived together with the last handshake message: they begin the first frames."""
        return self._plain


def authenticate_caller(sock: socket.socket, token: bytes) -> Link:
    """Authenticate a new connection on the listener's side.

    Raises:
        OSError: the other end does not know the token, is silent, or gone.
    """
    greeting, handshake = _Greeting(sock, GREETING_S), ListenerHandshake(token)
    greeting.send(handshake.nonce)
    answer, frames = handshake.check_and_answer(greeting.receive(handshake.SAID_BYTES))
    greeting.send(answer)
    return Link(sock, frames)


def authenticate_listener(sock: socket.socket, token: bytes, within_s: float = GREETING_S, pin: bytes = b"") -> Link:
    """Authenticate a new connection on the caller's side.

    Args:
        sock: The connection.
        token: The shared secret.
        within_s: The time for the whole handshake.
        pin: The SHA-256 of the certificate that the listener must show; empty: it speaks no TLS.

    Raises:
        OSError: the listener does not know the token, shows another certificate, is silent, or gone.
    """
    greeting = _Greeting(sock, within_s, pin)
    handshake = CallerHandshake(token, greeting.receive(NONCE_BYTES))
    greeting.send(handshake.says)
    frames = handshake.check_answer(greeting.receive(PROOF_BYTES))
    return Link(sock, frames, greeting.tls, greeting.rest())


# -- On an event loop. asyncio is imported where it is used: a Spark source's process has only the other ends


class _AsyncStream:
    """The bytes of a listener's connection on an event loop, decrypted a hundred TLS records at a time."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext | None
    ) -> None:
        self._reader, self.writer = reader, writer
        self._tls = None if context is None else ListenerPipe(context)
        self._pieces: Iterator[bytes] = iter(())
        self._plain = b""

    async def complete_handshake(self) -> None:
        """Complete the handshake of TLS, if the listener speaks it.

        Raises:
            OSError: it has failed, or the other end is gone.
        """
        if self._tls is None:
            return
        while True:
            self.writer.write(self._tls.continue_handshake())
            if self._tls.is_done:
                break
            data = await self._reader.read(_READ_BYTES)
            if not data:
                raise ConnectionError("the other end hung up")
            self._tls.feed(data)
        self._plain = self._tls.decrypt(b"")  # what came behind it

    def send(self, data: bytes) -> None:
        self.writer.write(data if self._tls is None else self._tls.encrypt(data))

    async def receive(self) -> bytes:
        """Return the next bytes; empty: the other end is gone.

        Raises:
            OSError: they are not of this connection, or too many TLS records are without data.
        """
        if self._plain:
            plain, self._plain = self._plain, b""
            return plain
        if self._tls is None:
            return await self._reader.read(_READ_BYTES)
        from asyncio import sleep

        while True:
            for plain in self._pieces:
                await sleep(0)  # others have their turn before the next hundred records
                if plain:
                    return plain
            data = await self._reader.read(_READ_BYTES)
            if not data:
                return b""
            self._pieces = self._tls.decrypt_in_pieces(data)

    async def receive_exactly(self, size: int) -> bytes:
        """Receive exactly `size` bytes.

        Raises:
            OSError: as `receive`, or the other end is gone.
        """
        found = b""
        while len(found) < size:
            data = await self.receive()
            if not data:
                raise ConnectionError("the other end hung up")
            found += data
        self._plain = found[size:]
        return found[:size]


class AsyncLink:
    """An authenticated connection on an event loop; `Link` is its twin for threads."""

    def __init__(self, stream: _AsyncStream, frames: LinkFrames) -> None:
        self._stream, self._frames = stream, frames

    def send(self, body: bytes) -> bool:
        """Queue a body; return False if too much is unread by the other end, and the connection is over."""
        self._stream.send(self._frames.sealer.seal_frame(body))
        if self._stream.writer.transport.get_write_buffer_size() <= UNREAD_BYTES_MAX:
            return True
        self.abort()
        return False

    async def receive_bodies(self, idle_s: float) -> AsyncIterator[bytes]:
        """Yield the bodies of received frames until the peer is gone.

        Raises:
            TimeoutError: nothing came for `idle_s`.
            OSError: the connection has failed.
            ValueError: the bytes are not the other end's.
        """
        from asyncio import wait_for

        while data := await wait_for(self._stream.receive(), idle_s):
            for body in self._frames.parser.feed(data):
                yield body

    def close(self) -> None:
        """Close the connection after the queued bodies are sent."""
        self._stream.writer.close()

    def abort(self) -> None:
        """Close the connection now."""
        self._stream.writer.transport.abort()


async def authenticate_caller_async(sock: socket.socket, token: bytes, tls: ssl.SSLContext | None = None) -> AsyncLink:
    """Authenticate a new connection on the listener's side, on an event loop; a connection that fails is closed.

    Raises:
        OSError: the other end does not know the token, is silent, or gone.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport: asyncio.BaseTransport | None = None
    try:
        async with asyncio.timeout(GREETING_S):
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock)
            stream = _AsyncStream(reader, asyncio.StreamWriter(transport, protocol, reader, loop), tls)
            await stream.complete_handshake()
            handshake = ListenerHandshake(token)
            stream.send(handshake.nonce)
            answer, frames = handshake.check_and_answer(await stream.receive_exactly(handshake.SAID_BYTES))
            stream.send(answer)
            return AsyncLink(stream, frames)
    except BaseException:
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()
        sock.close()
        raise
