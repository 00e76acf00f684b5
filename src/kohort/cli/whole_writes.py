"""Complete writes to a file descriptor.

A descriptor may take fewer bytes than given, when a signal arrives or when the pipe does not block. Python's buffered
files write the rest. Its raw files, such as standard output under PYTHONUNBUFFERED, return the count, which print()
ignores.
"""

from __future__ import annotations

import io
import os
import select
import stat
from typing import Any, TextIO


class CompleteWrites(io.RawIOBase):
    """A raw file for an output stream, whose `write` writes all bytes or raises an error.

    Args:
        descriptor: the file descriptor, which stays open when this file is closed.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._abandoned = False
        self._regular = stat.S_ISREG(os.fstat(descriptor).st_mode)

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        """Write all bytes, in as many system calls as that takes.

        Raises:
            OSError: the write failed; some of the bytes may be written.
        """
        left = memoryview(data).cast("B")
        size = len(left)
        while left and not self._abandoned:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # another process made the pipe that we share non-blocking
                select.select([], [self._descriptor], [])
        return size

    def sync_output(self) -> None:
        """Flush a regular file to the disk; do nothing for a pipe or a terminal."""
        if self._regular and not self._abandoned:
            os.fsync(self._descriptor)

    def abandon(self) -> None:
        """Write nothing more, so that the output of a failed command does not look complete."""
        self._abandoned = True


def with_complete_writes(stream: TextIO) -> TextIO:
    """Return a text stream like the given one that writes completely; the stream itself if it has no descriptor.

    Characters that the stream's encoding lacks are written as escapes.
    """
    try:
        out = CompleteWrites(stream.fileno())
    except (AttributeError, OSError):  # None where the caller closed it, or a stand-in without a descriptor
        return stream
    stream.flush()
    unbuffered = isinstance(stream.buffer, io.RawIOBase)
    binary: Any = out if unbuffered else io.BufferedWriter(out)
    return io.TextIOWrapper(
        binary,
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=bool(stream.line_buffering),
        write_through=unbuffered,
    )
