"""Framing: splits received bytes into frames, each preceded by its size in four bytes.

Complete frames are views of the read buffer. Only an incomplete frame is copied, and never more than has arrived,
because its size is only a claim of the client.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TypeAlias

Frame: TypeAlias = bytearray | memoryview
"""A frame without its size. It may be modified, and the next read overwrites its memory."""

SIZE_BYTES = 4
TLS_HANDSHAKE = 0x1603
"""The first two bytes of a TLS client: a handshake record of version 3."""
_SIZE = struct.Struct(">i")
_unpack_size = _SIZE.unpack_from


class BadFrame(Exception):
    """Bytes that no valid client sends. The text says why the connection is closed."""


class WrongSecurityProtocol(BadFrame):
    """Bytes of another security protocol than the listener's. A client repeats them with every connection."""


class Frames:
    """A splitter of one connection's bytes into frames.

    Attributes:
        size_min: the smallest valid frame size. A change applies to all later frames, also of the same read.
        size_max: the largest valid frame size.
        kept: received bytes that are still to be split.
        begun: the number of received bytes of an incomplete frame.
    """

    __slots__ = ("_begun", "_wanted", "begun", "kept", "size_max", "size_min")

    def __init__(self, size_min: int, size_max: int) -> None:
        self.size_min = size_min
        self.size_max = size_max
        self.kept = b""
        self.begun = 0
        self._begun: bytearray | None = None  # the received part of an incomplete frame (or of its size)
        self._wanted = 0  # the size of the incomplete frame, 0: not known yet

    def split_frames(self, data: memoryview) -> list[Frame]:
        """Return the frames that `data` completes, in order. The rest begins the next frame, or is kept.

        Raises:
            BadFrame: the first frame has an invalid size. Valid frames before an invalid one are returned first.
        """
        found: list[Frame] = []
        start, end = 0, len(data)
        if self._begun is not None:
            begun, missing = self._begun, self._wanted - len(self._begun)
            if not self._wanted:
                data = memoryview(begun + data)
                end = len(data)
            else:
                begun += data[:missing]
                if end < missing:
                    self.begun = len(begun)
                    return found
                start = missing
                found.append(begun)
            self._begun, self.begun = None, 0
        size_min, size_max, unpack = self.size_min, self.size_max, _unpack_size
        last = end - SIZE_BYTES
        while start <= last:
            (size,) = unpack(data, start)
            if not size_min <= size <= size_max:
                if not found:
                    self._refuse_size(size)
                self.kept = bytes(data[start:end])
                return found
            first = start + SIZE_BYTES
            start = first + size
            if start > end:
                start = first - SIZE_BYTES
                break
            found.append(data[first:start])
        if start < end:
            self._begin(data[start:end])
        return found

    def put_back(self, frames: Iterable[Frame]) -> None:
        """Keep the frames that were split last, and the bytes after them, because no more can be handled now."""
        pieces = [piece for frame in frames for piece in (_SIZE.pack(len(frame)), frame)]
        if self._begun is not None:
            pieces += [_SIZE.pack(self._wanted), self._begun] if self._wanted else [self._begun]
            self._begun, self.begun = None, 0
        self.kept = b"".join([*pieces, self.kept])

    def take_unsplit_bytes(self) -> memoryview:
        """Return the bytes that were kept because no more frames could be handled, for another `split_frames`."""
        kept, self.kept = self.kept, b""
        return memoryview(kept)

    def discard_incomplete(self) -> None:
        """Discard the bytes that have not been split into frames yet: the connection closes."""
        self._begun, self.begun, self.kept = None, 0, b""

    def _begin(self, rest: memoryview) -> None:
        if len(rest) < SIZE_BYTES:
            self._begun, self._wanted, self.begun = bytearray(rest), 0, len(rest)
            return
        (size,) = _unpack_size(rest)
        self._begun, self._wanted = bytearray(rest[SIZE_BYTES:]), size
        self.begun = len(rest)

    def _refuse_size(self, size: int) -> None:
        if size >> 16 == TLS_HANDSHAKE and self.size_max < size:
            raise WrongSecurityProtocol("it speaks TLS and this listener does not: set security.protocol without SSL")
        if size > self.size_max:
            raise BadFrame(f"a request of {size} bytes; socket.request.max.bytes is {self.size_max}")
        raise BadFrame(f"{size} is no size of a request; does the client speak Kafka's protocol, without TLS?")
