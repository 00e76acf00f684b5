"""Writes that take all they are given.

A descriptor may take less: when a signal arrives, or when the pipe does not block. Python's buffered files write the
rest; its raw files, which standard output is under PYTHONUNBUFFERED, return the count, and nobody looks at it.
"""

from __future__ import annotations

import io
import os
import select
import stat
from typing import Any, TextIO


class WholeWrites(io.RawIOBase):
    """A file descriptor that takes all of what it is given, or raises.

    Args:
        descriptor: where to write. Stays open when this is closed.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._abandoned = False
        self._regular = stat.S_ISREG(os.fstat(descriptor).st_mode)

    def writable(self) -> bool:
        """Say so to those that ask a file."""
        return True

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether a person looks at it."""
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        """Write all of it, however often that takes.

        Raises:
            OSError: it can't be written; part of it may be there.
        """
        left = memoryview(data).cast("B")
        size = len(left)
        while left and not self._abandoned:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # another process made the pipe that we share non-blocking
                select.select([], [self._descriptor], [])
        return size

    def sync(self) -> None:
        """Wait until a file's bytes are on the disk; a pipe and a terminal keep nothing."""
        if self._regular and not self._abandoned:
            os.fsync(self._descriptor)

    def abandon(self) -> None:
        """Write nothing more: what is there already breaks off, and must not look complete."""
        self._abandoned = True


def whole_stream(stream: TextIO) -> TextIO:
    """Return the stream with whole writes; the stream itself where no descriptor is behind it."""
    try:
        out = WholeWrites(stream.fileno())
    except (AttributeError, OSError):  # None where the caller closed it, or a stand-in without a descriptor
        return stream
    stream.flush()
    unbuffered = isinstance(stream.buffer, io.RawIOBase)
    binary: Any = out if unbuffered else io.BufferedWriter(out)
    return io.TextIOWrapper(
        binary,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=bool(stream.line_buffering),
        write_through=unbuffered,
    )
