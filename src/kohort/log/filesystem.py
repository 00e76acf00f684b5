"""What the log asks of the system's files: the `os` module itself, or what the simulation puts in its place.

An object like `os` is bound once to each open file and index, so that a call costs what `os.pwrite` costs.
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
    """Files and folders by Linux's rules, as the functions of these names in `os`; all of them raise OSError.

    What is written is lost with the machine until `fsync` returns: a file's bytes until it is called for the file,
    the names in a folder until it is called for the folder.
    """

    def open(self, path: StrPath, flags: int, mode: int = ..., /) -> int:
        """A descriptor."""

    def close(self, fd: int, /) -> None:
        """Nobody uses it any more."""

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        """Fewer bytes only at the end of the file."""

    def write(self, fd: int, data: ReadBuffer, /) -> int:
        """How many bytes it took, perhaps not all."""

    def pwrite(self, fd: int, data: ReadBuffer, offset: int, /) -> int:
        """How many bytes it took, perhaps not all."""

    def pwritev(self, fd: int, buffers: Sequence[ReadBuffer], offset: int, /) -> int:
        """How many bytes it took, perhaps not all."""

    def ftruncate(self, fd: int, length: int, /) -> None:
        """Cut off, or fill up with zeros."""

    def truncate(self, path: StrPath, length: int) -> None:
        """Cut off, or fill up with zeros."""

    def fsync(self, fd: int) -> None:
        """A file's bytes survive a power loss, or a folder's names."""

    def fstat(self, fd: int) -> os.stat_result:
        """Size and times of an open file."""

    def stat(self, path: StrPath) -> os.stat_result:
        """Size and times of a file."""

    def listdir(self, path: StrPath) -> list[str]:
        """The names in a folder, in any order."""

    def mkdir(self, path: StrPath, mode: int = ...) -> None:
        """A new folder."""

    def unlink(self, path: StrPath) -> None:
        """Remove a name."""

    def replace(self, src: StrPath, dst: StrPath) -> None:
        """Rename at once, over what has the new name."""


SYSTEM: Final[FileSystem] = os
"""The machine's own files."""


def read_file(path: StrPath, fs: FileSystem = SYSTEM) -> bytes:
    """A whole file."""
    fd = fs.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_open(fd, fs)
    finally:
        fs.close(fd)


def read_open(fd: int, fs: FileSystem = SYSTEM) -> bytes:
    """All of an open file."""
    parts: list[bytes] = []
    at = 0
    while data := fs.pread(fd, _READ_BYTES, at):
        parts.append(data)
        at += len(data)
    return b"".join(parts)


def write_file(path: StrPath, data: bytes, fs: FileSystem = SYSTEM, *, sync: bool, mode: int = 0o644) -> None:
    """Create a file, or give it other content; a failure leaves a part of it."""
    fd = fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        write_all(fd, data, 0, fs)
        if sync:
            fs.fsync(fd)
    finally:
        fs.close(fd)


def write_all(fd: int, data: ReadBuffer, offset: int, fs: FileSystem = SYSTEM) -> int:
    """Write, also when the kernel takes a part at a time; returns how many bytes."""
    rest = memoryview(data)
    while rest:
        count = fs.pwrite(fd, rest, offset)
        rest = rest[count:]
        offset += count
    return len(data)


def exists(path: StrPath, fs: FileSystem = SYSTEM) -> bool:
    """Whether there is something of this name."""
    try:
        fs.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def remove(path: StrPath, fs: FileSystem = SYSTEM) -> None:
    """Remove a name, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        fs.unlink(path)


def sync_file(path: StrPath, fs: FileSystem = SYSTEM) -> None:
    """Make a file's bytes survive a power loss, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        fd = fs.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fs.fsync(fd)
        finally:
            fs.close(fd)


def sync_folder(path: StrPath, fs: FileSystem = SYSTEM) -> None:
    """Make created, renamed and removed names in a folder survive a power loss."""
    fd = fs.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fs.fsync(fd)
    finally:
        fs.close(fd)
