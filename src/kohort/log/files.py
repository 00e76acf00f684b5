"""Open log files, at most so many at once."""

from __future__ import annotations

import errno
import os
from collections import deque
from typing import Protocol
from weakref import WeakSet

from kohort.log.filesystem import SYSTEM, FileSystem
from kohort.log.results import OpenFile

FILES_OWN = frozenset((errno.EACCES, errno.EPERM, errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EIO, errno.ELOOP))
"""What using a file fails with for the file's own sake, and not because the machine is short of something."""


class Holder(Protocol):
    """Something that keeps one file open while it is used."""

    file: OpenFile | None
    touched: bool


class FileCache:
    """Opens files for their holders and takes those back that were not used for the longest time (second chance).

    A file taken back closes when its last reader is done: answers under way may hold on to some.

    Attributes:
        fs: where the files are.
    """

    __slots__ = ("_lent_max", "_limit", "_living", "_open", "fs")

    def __init__(self, limit: int, lent_max: int, fs: FileSystem = SYSTEM) -> None:
        """At most `limit` files are open for holders; `crowded` once readers hold on to `lent_max` others."""
        self.fs = fs
        self._limit = limit
        self._lent_max = lent_max
        self._open: deque[Holder] = deque()
        self._living: WeakSet[OpenFile] = WeakSet()

    @property
    def crowded(self) -> bool:
        """Whether readers should take their bytes at once instead of holding on to a file."""
        return len(self._living) - len(self._open) >= self._lent_max

    def open(self, holder: Holder, path: str, flags: int = 0) -> OpenFile:
        """Open `path` for reading and writing and lend it to `holder`; `flags` may add `os.O_CREAT`."""
        while len(self._open) >= self._limit:
            oldest = self._open.popleft()
            if oldest.touched and oldest.file is not None:
                oldest.touched = False
                self._open.append(oldest)
            else:
                oldest.file = None
        file = OpenFile(path, os.O_RDWR | flags, self.fs)
        self._living.add(file)
        holder.file = file
        holder.touched = False
        self._open.append(holder)
        return file

    def forget(self, holder: Holder) -> None:
        """The holder is done with its file."""
        if holder.file is not None:
            holder.file = None
            self._open.remove(holder)

    def __len__(self) -> int:
        return len(self._open)
