"""Framing: what was read is cut into frames, each behind its size in four bytes.

Frames that have wholly arrived are views into the memory that was read into. Only one that has not takes memory of its
own, and no more than has come of it: a size is only a claim.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
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
        size_min: bytes that a frame has at least. Frames behind a change of it, in the same read too, go by the new one.
        size_max: bytes that a frame has at most.
        kept: what was read and not cut, since whoever takes the frames could take no more.
    """

    __slots__ = ("_begun", "_wanted", "kept", "size_max", "size_min")

    def __init__(self, size_min: int, size_max: int) -> None:
        self.size_min = size_min
        self.size_max = size_max
        self.kept = b""
        self._begun: bytearray | None = None  # what has come of a frame (or of its size) that has not wholly arrived
        self._wanted = 0  # that frame's size, 0: not known yet

    def cut(self, data: memoryview) -> Generator[Frame, None, None]:
        """The frames that `data` completes, in order; what is left at its end begins the next one.

        Closed before the end, it keeps the bytes from the frame that it gave last: that one was not taken.

        Raises:
            BadFrame: a size is out of bounds.
        """
        start, end = 0, len(data)
        if self._begun is not None:
            begun, missing = self._begun, self._wanted - len(self._begun)
            if not self._wanted:
                self._begun = None
                data = memoryview(begun + data)
                end = len(data)
            else:
                begun += data[:missing]
                if end < missing:
                    return
                self._begun = None
                start = missing
                try:
                    yield begun
                except GeneratorExit:
                    self.kept = b"".join((_SIZE.pack(len(begun)), begun, data[start:]))
                    return
        unpack, size_max = _unpack_size, self.size_max
        while end - start >= SIZE_BYTES:
            (size,) = unpack(data, start)
            if not self.size_min <= size <= size_max:
                self._refuse(size)
            first = start + SIZE_BYTES
            if first + size > end:
                break
            try:
                yield data[first : first + size]
            except GeneratorExit:
                self.kept = bytes(data[start:end])
                return
            start = first + size
        if start < end:
            self._begin(data[start:end])

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
