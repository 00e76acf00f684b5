"""Framing: what was read is cut into frames, each behind its size in four bytes.

Frames that have wholly arrived are views into the memory that was read into. Only one that has not takes memory of its
own, and no more than has come of it: a size is only a claim.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TypeAlias

Frame: TypeAlias = bytearray | memoryview
"""A frame without its size. It may be written to, and is gone when the next read begins."""

SIZE_BYTES = 4
_SIZE = struct.Struct(">i")
_unpack_size = _SIZE.unpack_from


class BadFrame(Exception):
    """Bytes no client of ours sends: the connection ends, the text says why."""


class Frames:
    """Cuts the bytes of one connection into frames.

    Attributes:
        size_min: bytes that a frame has at least. Frames behind a change of it, in the same read too, go by the new
            one.
        size_max: bytes that a frame has at most.
        kept: what was read and is still to be cut.
    """

    __slots__ = ("_begun", "_wanted", "kept", "size_max", "size_min")

    def __init__(self, size_min: int, size_max: int) -> None:
        self.size_min = size_min
        self.size_max = size_max
        self.kept = b""
        self._begun: bytearray | None = None  # what has come of a frame (or of its size) that has not wholly arrived
        self._wanted = 0  # that frame's size, 0: not known yet

    def cut(self, data: memoryview) -> list[Frame]:
        """The frames that `data` completes, in order; what is left at its end begins the next one, or is kept.

        Raises:
            BadFrame: the first of them has a size out of bounds. Those before one are given first.
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
                    return found
                start = missing
                found.append(begun)
            self._begun = None
        size_min, size_max, unpack = self.size_min, self.size_max, _unpack_size
        last = end - SIZE_BYTES
        while start <= last:
            (size,) = unpack(data, start)
            if not size_min <= size <= size_max:
                if not found:
                    self._refuse(size)
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
        """Keep frames that were cut last, and what followed them: no more can be taken now."""
        pieces = [piece for frame in frames for piece in (_SIZE.pack(len(frame)), frame)]
        if self._begun is not None:
            pieces += [_SIZE.pack(self._wanted), self._begun] if self._wanted else [self._begun]
            self._begun = None
        self.kept = b"".join([*pieces, self.kept])

    def take_kept(self) -> memoryview:
        """What was kept, to be cut now."""
        kept, self.kept = self.kept, b""
        return memoryview(kept)

    def clear(self) -> None:
        """Let go of what has come of frames."""
        self._begun, self.kept = None, b""

    def _begin(self, rest: memoryview) -> None:
        if len(rest) < SIZE_BYTES:
            self._begun, self._wanted = bytearray(rest), 0
            return
        (size,) = _unpack_size(rest)
        self._begun, self._wanted = bytearray(rest[SIZE_BYTES:]), size

    def _refuse(self, size: int) -> None:
        if size > self.size_max:
            raise BadFrame(f"a request of {size} bytes; socket.request.max.bytes is {self.size_max}")
        raise BadFrame(f"{size} is no size of a request; does the client speak Kafka's protocol, without TLS?")
