"""The file system interface of the log: the `os` module, or its replacement in the simulation.

Each open file and index stores such an object once, so that a call costs as much as `os.pwrite`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

StrPath: TypeAlias = str | os.PathLike[str]
ReadBuffer: TypeAlias = bytearray | memoryview | bytes

_READ_BYTES: Final = 1 << 20


class FileSystem(Protocol):
    """A file system with Linux's semantics, as the functions of these names in `os`. All of them raise OSError.

    A power loss takes all writes that were not fsynced: `fsync` of a file saves its bytes, `fsync` of a folder its
    names.
    """

    def open(self, path: StrPath, flags: int, mode: int = ..., /) -> int:
        """Open a file and return its descriptor."""

    def close(self, fd: int, /) -> None:
        """Close a descriptor."""

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        """Read bytes; fewer only at the end of the file."""

    def write(self, fd: int, data: ReadBuffer, /) -> int:
        """Write bytes; return how many, perhaps not all."""

    def pwrite(self, fd: int, data: ReadBuffer, offset: int, /) -> int:
        """Write bytes at an offset; return how many, perhaps not all."""

    def pwritev(self, fd: int, buffers: Sequence[ReadBuffer], offset: int, /) -> int:
        """Write buffers at an offset; return how many bytes, perhaps not all."""

    def ftruncate(self, fd: int, length: int, /) -> None:
        """Truncate a file, or extend it with zeros."""

    def truncate(self, path: StrPath, length: int) -> None:
        """Truncate a file, or extend it with zeros."""

    def fsync(self, fd: int) -> None:
        """Make a file's bytes, or the names in a folder, survive a power loss."""

    def fstat(self, fd: int) -> os.stat_result:
        """Return size and times of an open file."""

    def stat(self, path: StrPath) -> os.stat_result:
        """Return size and times of a file."""

    def listdir(self, path: StrPath) -> list[str]:
        """Return the names in a folder, in any order."""

    def mkdir(self, path: StrPath, mode: int = ...) -> None:
        """Create a folder."""

    def unlink(self, path: StrPath) -> None:
        """Remove a name."""

    def replace(self, src: StrPath, dst: StrPath) -> None:
        """Rename atomically, replacing the target."""


SYSTEM: Final[FileSystem] = os
"""The machine's own file system."""

# -- Permissions: a data folder is for the broker's user, its records perhaps for a group that makes copies

PRIVATE_MODE: Final = 0o600
"""Of checkpoints, users, settings and other small files of the data folder."""
_INTERNAL: Final = "__"


def file_mode(path: StrPath) -> int:
    """Return the permissions of a file in a partition's folder: internal topics hold groups, transactions, tokens."""
    return PRIVATE_MODE if is_internal(os.path.dirname(path)) else 0o640


def folder_mode(path: StrPath) -> int:
    """Return the permissions of a partition's folder."""
    return 0o700 if is_internal(path) else 0o750


def is_internal(folder: StrPath) -> bool:
    """Return whether a folder belongs to a partition of an internal topic, by its name."""
    return os.path.basename(folder).startswith(_INTERNAL)


def restrict_umask() -> None:
    """Give other users no right to the process's new files, and the group none to write: at least umask 027."""
    os.umask(os.umask(0o077) | 0o027)


def read_file(path: StrPath, fs: FileSystem = SYSTEM) -> bytes:
    """Read a file."""
    fd = fs.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_open_file(fd, fs)
    finally:
        fs.close(fd)


def read_open_file(fd: int, fs: FileSystem = SYSTEM) -> bytes:
    """Read all of an open file."""
    parts: list[bytes] = []
    at = 0
    while data := fs.pread(fd, _READ_BYTES, at):
        parts.append(data)
        at += len(data)
    return b"".join(parts)


def write_file(path: StrPath, data: bytes, fs: FileSystem = SYSTEM, *, sync: bool, mode: int = PRIVATE_MODE) -> None:
    """Create a file or replace its content. A failure leaves a part of it."""
    fd = fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        write_all(fd, data, 0, fs)
        if sync:
            fs.fsync(fd)
    finally:
        fs.close(fd)


def write_all(fd: int, data: ReadBuffer, offset: int, fs: FileSystem = SYSTEM) -> int:
    """Write everything, also if the kernel accepts a part at a time; return the number of bytes."""
    rest = memoryview(data)
    while rest:
        count = fs.pwrite(fd, rest, offset)
        rest = rest[count:]
        offset += count
    return len(data)


def file_exists(path: StrPath, fs: FileSystem = SYSTEM) -> bool:
    """Return whether a file or folder of this name exists."""
    try:
        fs.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def remove_if_exists(path: StrPath, fs: FileSystem = SYSTEM) -> None:
    """Remove a name, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        fs.unlink(path)


def sync_file(path: StrPath, fs: FileSystem = SYSTEM, *, again: bool = False) -> None:
    """Make a file's bytes survive a power loss, if it exists.

    After a failure they are written again, because the kernel takes them for written from then on.

    Args:
        path: the file.
        fs: the file system.
        again: write them again at first, because an earlier call failed.

    Raises:
        OSError: the disk failed; the next call must have `again`.
    """
    with contextlib.suppress(FileNotFoundError):
        fd = fs.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if again:
                write_all(fd, read_open_file(fd, fs), 0, fs)
            try:
                fs.fsync(fd)
            except OSError:
                with contextlib.suppress(OSError):  # now, because this process may die before the next attempt
                    write_all(fd, read_open_file(fd, fs), 0, fs)
                raise
        finally:
            fs.close(fd)


def sync_folder(path: StrPath, fs: FileSystem = SYSTEM) -> None:
    """Make created, renamed and removed names in a folder survive a power loss."""
    fd = fs.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fs.fsync(fd)
    finally:
        fs.close(fd)
