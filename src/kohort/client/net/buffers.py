"""Receive buffers that are reused once nobody refers to them, and the splitting of a byte stream into frames."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from kohort.client.net.security import TlsError
from kohort.errors import CorruptDataError

SCRATCH_BYTES = 64 * 1024
_POOLED_MIN = 64 * 1024
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
"""First bytes of an alert and a handshake, which a TLS listener sends to a client without TLS. Source: RFC 8446,
5.1."""
_TLS_LENGTH_MIN = 0x15030000
"""The least length of a frame that begins with the same bytes."""
_POOL_SIZE = 4  # receiving, queued, decoding, records in use
_CLAIMED_MAX = 1 << 20
"""Memory allocated for a frame before any of its bytes arrived: its size is only the other side's claim."""
_UNUSED = 3  # the pool's list, the loop variable and getrefcount's own argument


class BufferPool:
    """Pool of buffers for large frames. A buffer is reused when the last memoryview of it is gone.

    Page faults on fresh memory cost about as much as the copy from the socket, so reuse pays off.
    """

    def __init__(self, size: int = _POOL_SIZE) -> None:
        self._size = size
        self._buffers: list[bytearray] = []
        self._arrived = 0

    def record_frame_size(self, length: int) -> None:
        """Record the length of a received frame: later frames of up to that length get a whole buffer at once."""
        self._arrived = max(self._arrived, length)

    def acquire(self, length: int, come: int = 0) -> memoryview:
        """Return a writable buffer for a frame, with undefined content: a pooled one if one is large enough.

        A new buffer may be shorter than the frame, since a frame's length may be a lie: it grows with what arrives.

        Args:
            length: The frame's length in bytes.
            come: The bytes of it that have arrived. A new buffer has twice as many, and at least a megabyte or the
                length of the largest frame so far.
        """
        due = min(length, max(2 * come, _CLAIMED_MAX, self._arrived))
        if due < _POOLED_MIN:
            return memoryview(bytearray(due))
        best: bytearray | None = None
        for buffer in self._buffers:
            if (
                len(buffer) >= length
                and sys.getrefcount(buffer) == _UNUSED
                and (best is None or len(buffer) < len(best))
            ):
                best = buffer
        if best is None:
            best = bytearray(due + due // 8)
            self._keep(best)
        return memoryview(best)[:length]

    def _keep(self, buffer: bytearray) -> None:
        if len(self._buffers) >= self._size:
            self._buffers.remove(min(self._buffers, key=len))
        self._buffers.append(buffer)


class FrameReader:
    """Splitter of a socket's bytes into frames; large frames are received straight into their own buffer.

    Receive into `receive_buffer()`, then report the count with `complete_frames(n)`, which yields the frames that are
    complete.
    """

    def __init__(self, pool: BufferPool, limit: int) -> None:
        self._pool = pool
        self._limit = limit
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._held = 0
        self._body: memoryview | None = None
        self._length = 0
        self._have = 0

    @property
    def is_large_frame(self) -> bool:
        """Return whether a large frame is being received into its own buffer."""
        return self._body is not None

    def receive_buffer(self) -> memoryview:
        return self._scratch[self._held :] if self._body is None else self._body[self._have :]

    def complete_frames(self, count: int) -> Iterator[memoryview]:
        """Process `count` bytes that were received into `receive_buffer()`; yield the frames that are complete now.

        Raises:
            CorruptDataError: A frame is longer than the limit or has a negative length.
            TlsError: The other side speaks TLS.
        """
        if self._body is not None:
            self._have += count
            if self._have == self._length:
                frame, self._body = self._body, None
                self._pool.record_frame_size(self._length)
                yield frame
            elif self._have == len(self._body):
                larger = self._pool.acquire(self._length, self._have)
                larger[: self._have] = self._body
                self._body = larger
            return
        self._held += count
        start = 0
        while self._held - start >= 4:
            length = int.from_bytes(self._scratch[start : start + 4], "big", signed=True)
            if not 0 <= length <= self._limit:
                self._refuse_tls(start)
                raise CorruptDataError(f"the broker announced an answer of {length} bytes; the limit is {self._limit}")
            there = self._held - start - 4
            if there < length and 4 + length > SCRATCH_BYTES:
                self._body = self._pool.acquire(length)
                self._body[:there] = self._scratch[start + 4 : self._held]
                self._length, self._have = length, there
                self._held = 0
                return
            if there < length:
                break
            yield memoryview(bytes(self._scratch[start + 4 : start + 4 + length]))
            start += 4 + length
        rest = self._held - start
        if rest >= 2 and self._limit < _TLS_LENGTH_MIN:  # kohort's broker sends less than the four bytes of a length
            self._refuse_tls(start)
        if start and rest:
            self._scratch[:rest] = bytes(self._scratch[start : self._held])
        self._held = rest

    def _refuse_tls(self, start: int) -> None:
        if self._scratch[start : start + 2] in _TLS_RECORDS:
            raise TlsError("the broker answers in TLS: set security.protocol to SSL or SASL_SSL")
