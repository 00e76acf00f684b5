"""What an answer is made of: buffers, and bytes of log files that never enter this process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeAlias

from kohort.log import FileRange
from kohort.wire.schema import Buffer

SMALL_BYTES = 4096
"""Answers below it are copied together: cheaper than to give them to the kernel one by one."""


class LogSlice:
    """Bytes of a log file inside an answer, read when the socket takes them."""

    __slots__ = ("_file", "_length", "_position")

    def __init__(self, part: FileRange) -> None:
        self._file, self._position, self._length = part

    def __len__(self) -> int:
        return self._length

    def send_to(self, fd: int, count: int) -> int:
        """Send the first `count` bytes to a socket; returns how many it took."""
        return os.sendfile(fd, self._file.fd, self._position, count)

    def drop(self, count: int) -> None:
        """Forget the first bytes: they were sent."""
        self._position += count
        self._length -= count


Part: TypeAlias = Buffer | LogSlice


def gathered(parts: Sequence[Part]) -> list[Part]:
    """The same bytes with small buffers that follow each other in one."""
    found: list[Part] = []
    run: list[Buffer] = []
    for part in parts:
        if not isinstance(part, LogSlice) and len(part) < SMALL_BYTES:
            run.append(part)
            continue
        if run:
            found.append(b"".join(run))
            run = []
        found.append(part)
    if run:
        found.append(b"".join(run))
    return found
