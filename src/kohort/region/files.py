"""File operations of sinks: the `os` module itself, or a test's replacement.

Sinks need names (links and renames, confined to a folder), the log needs positions (`kohort.log.filesystem`). One
interface of both would make each replacement carry calls that nobody makes.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import unquote

from kohort.errors import InvalidInputError
from kohort.settings.validation import redacted_url

ReadBuffer: TypeAlias = bytearray | memoryview | bytes

_READ_BYTES: Final = 1 << 18


class FileCalls(Protocol):
    """Operations on files and folders with Linux's semantics, named as the functions in `os`; all raise OSError.

    Written data may be lost in a power loss until `fsync` returns. For a file's bytes, `fsync` is called on the file;
    for the names in a folder, on the folder.
    """

    def open(self, path: str, flags: int, mode: int = ..., /) -> int:
        """Return a file descriptor."""

    def close(self, fd: int, /) -> None:
        """Close a file descriptor."""

    def read(self, fd: int, length: int, /) -> bytes:
        """Read bytes; return none only at the end of the file."""

    def write(self, fd: int, data: ReadBuffer, /) -> int:
        """Write bytes, and return how many were written, perhaps not all."""

    def fsync(self, fd: int) -> None:
        """Make a file's bytes, or a folder's names, survive a power loss."""

    def stat(self, path: str) -> os.stat_result:
        """Return a file's size, times and mode; only the size is used."""

    def listdir(self, path: str) -> list[str]:
        """Return the names of the files and folders in a folder, in any order."""

    def mkdir(self, path: str) -> None:
        """Create a folder."""

    def link(self, src: str, dst: str) -> None:
        """Create a hard link to a file; fail if the new name exists."""

    def utime(self, path: str) -> None:
        """Set a file's modification time to now."""

    def rename(self, src: str, dst: str) -> None:
        """Rename atomically, over a file or an empty folder that has the new name."""

    def unlink(self, path: str) -> None:
        """Remove a file's name; its content goes with the last name."""

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""


SYSTEM: Final[FileCalls] = os
"""The machine's own file system."""
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//?)(.*)", re.DOTALL)


_STORE: Final = re.compile(r"(s3a?|gs|az)://.*", re.IGNORECASE | re.DOTALL)


def is_store_url(path: object) -> bool:
    """Return whether a path is the URL of an object store that sinks support."""
    return isinstance(path, str) and _STORE.fullmatch(path) is not None


def local_path(path: str | os.PathLike[str], what: str) -> str:
    """Return the absolute path of a local file or folder; `file:` URLs are accepted too.

    Args:
        path: the path that a user gave.
        what: what the path is for, in the error.

    Raises:
        InvalidInputError: the path is empty, or the URL of a store without hard links and atomic renames.
    """
    text = os.fspath(path)
    if found := _URL.match(text):
        host, _, rest = found[3].partition("/") if found[2] == "//" else ("", "", found[3])
        if found[1].lower() != "file" or host not in ("", "localhost"):
            raise InvalidInputError(
                f"{what} can't lie in {redacted_url(text)}: what is exact needs hard links and atomic renames, so give "
                "a path on a file system that has them, local or mounted; object stores and HDFS have none"
            )
        text = f"/{unquote(rest)}"
    if not text:
        raise InvalidInputError(f"{what} needs a path")
    return os.path.abspath(text)


class Output(io.RawIOBase):
    """A new file that Arrow writes to, in pieces as the kernel accepts them; after an error, part of it may remain."""

    def __init__(self, files: FileCalls, path: str) -> None:
        super().__init__()
        self._files = files
        self._at = 0
        self._fd = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def writable(self) -> bool:
        """Return True: the file is open for writing."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._at

    def write(self, data: Any, /) -> int:  # any buffer, as `io` says it
        """Write all of the data."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            rest = rest[self._files.write(self._fd, rest) :]
        self._at += size
        return size

    def sync(self) -> None:
        """Flush the written bytes to the disk, so that they survive a power loss."""
        self._files.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            super().close()
            self._files.close(self._fd)


def read_file(files: FileCalls, path: str) -> bytes:
    """Read a whole file."""
    fd = files.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := files.read(fd, _READ_BYTES):
            parts.append(part)
        return b"".join(parts)
    finally:
        files.close(fd)


def write_file(files: FileCalls, path: str, data: bytes) -> None:
    """Write a new file and flush its bytes to the disk; its name needs a `sync_folder`."""
    with contextlib.closing(Output(files, path)) as output:
        output.write(data)
        output.sync()


def copy_file(files: FileCalls, src: str, dst: str) -> None:
    """Copy a file into a new one and flush its bytes to the disk; its name needs a `sync_folder`."""
    fd = files.open(src, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.closing(Output(files, dst)) as output:
            while part := files.read(fd, _READ_BYTES):
                output.write(part)
            output.sync()
    finally:
        files.close(fd)


def sync_file(files: FileCalls, path: str) -> None:
    """Flush the bytes of a file, which another writer such as a library has written, to the disk.

    If that fails, write the bytes again, for the next call. After a failure the kernel counts them as written, and the
    next `fsync` would succeed without writing them. Source: "Can Applications Recover from fsync Failures?" (2020).

    Raises:
        OSError: the disk failed this time.
    """
    fd = files.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        files.fsync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            _write_again(files, path)
        raise
    finally:
        files.close(fd)


def _write_again(files: FileCalls, path: str) -> None:
    rest = memoryview(read_file(files, path))
    fd = files.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        while rest:
            rest = rest[files.write(fd, rest) :]
    finally:
        files.close(fd)


def sync_folder(files: FileCalls, path: str) -> None:
    """Flush the names in a folder to the disk, so that new files there survive a power loss."""
    fd = files.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        files.fsync(fd)
    finally:
        files.close(fd)


def list_folder(files: FileCalls, path: str) -> list[str]:
    """Return the names in a folder; none if the folder does not exist."""
    try:
        return files.listdir(path)
    except FileNotFoundError:
        return []


def make_folder(files: FileCalls, path: str) -> None:
    """Create a folder and its missing parents, so that they survive a power loss.

    A parent that exists is taken for durable. So a new folder whose name can't be flushed to the disk is removed again.
    Otherwise a later call for a folder in it would not flush its name.
    """
    above = os.path.dirname(path)
    is_new = _makes_folder(files, path)
    try:
        with contextlib.suppress(PermissionError):  # of somebody else's folder, which was there before us
            sync_folder(files, above)
    except OSError:
        if is_new:
            with contextlib.suppress(OSError):
                files.rmdir(path)
        raise


def _makes_folder(files: FileCalls, path: str) -> bool:
    """Create a folder and its missing parents; return whether it is new. Only parents are durable then."""
    try:
        files.mkdir(path)
    except FileExistsError:
        return False
    except FileNotFoundError:
        if (above := os.path.dirname(path)) == path:
            raise
        make_folder(files, above)
        try:
            files.mkdir(path)
        except FileExistsError:
            return False
    return True


def make_folders(files: FileCalls, root: str, below: str) -> None:
    """Create a folder and those between it and a root, and flush the name of each to the disk.

    `make_folder` alone takes an existing parent for durable. Its name may not be on the disk: the call that made it may
    have failed, or ended with its process.
    """
    make_folder(files, root)
    path = root
    for name in below.split("/"):
        path = f"{path}/{name}"
        make_folder(files, path)


def remove_file(files: FileCalls, path: str) -> None:
    """Remove a file; do nothing if it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(path)


def remove_folder(files: FileCalls, path: str) -> None:
    """Remove a folder and the files in it; another process may remove it at the same time."""
    for name in list_folder(files, path):
        remove_file(files, f"{path}/{name}")
    with contextlib.suppress(FileNotFoundError):
        files.rmdir(path)


def remove_tree(files: FileCalls, path: str) -> None:
    """Remove a folder, its files and its partition folders (names with `=`).

    Another process may remove it at the same time.
    """
    for name in list_folder(files, path):
        if "=" in name:
            remove_tree(files, f"{path}/{name}")
        else:
            remove_file(files, f"{path}/{name}")
    with contextlib.suppress(FileNotFoundError):
        files.rmdir(path)
