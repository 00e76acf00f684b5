"""A cache of open log files with a limit on their number."""

from __future__ import annotations

import errno
import os
from collections import deque
from typing import Protocol
from weakref import WeakSet

from kohort.log.filesystem import SYSTEM, FileSystem
from kohort.log.results import OpenFile

FILES_OWN = frozenset((errno.EACCES, errno.EPERM, errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EIO, errno.ELOOP))
"""Errors that are caused by the file itself, not by a shortage of resources."""


class FileHolder(Protocol):
    """An object that may keep one log file open. The cache closes files that were not used for long to open others."""

    file: OpenFile | None
    touched: bool


class FileCache:
    """A cache that opens files for holders, and closes those that were not used for the longest time (second chance).

    A closed file stays open for responses in progress until they have read it.

    Attributes:
        fs: the file system.
    """

    __slots__ = ("_lent_max", "_limit", "_living", "_open", "fs")

    def __init__(self, limit: int, lent_max: int, fs: FileSystem = SYSTEM) -> None:
        """Create a cache of at most `limit` files. It is `is_crowded` when readers hold `lent_max` other files."""
        self.fs = fs
        self._limit = limit
        self._lent_max = lent_max
        self._open: deque[FileHolder] = deque()
        self._living: WeakSet[OpenFile] = WeakSet()

    @property
    def is_crowded(self) -> bool:
        """Whether readers should read bytes at once instead of holding a file."""
        return len(self._living) - len(self._open) >= self._lent_max

    def open(self, holder: FileHolder, path: str, flags: int = 0) -> OpenFile:
        """Open `path` for reading and writing on behalf of `holder`. `flags` may add `os.O_CREAT`."""
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

    def release_file(self, holder: FileHolder) -> None:
        """Take the holder's file out of the cache; it is closed when no response in progress reads it any more."""
        if holder.file is not None:
            holder.file = None
            self._open.remove(holder)

    def __len__(self) -> int:
        return len(self._open)
