"""What a sink asks of the system's files: the `os` module itself, or what a test puts in its place."""

from __future__ import annotations

import contextlib
import io
import os
import re
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import unquote

from kohort.errors import InvalidInputError

ReadBuffer: TypeAlias = bytearray | memoryview | bytes

_READ_BYTES: Final = 1 << 18


class FileCalls(Protocol):
    """Files and folders by Linux's rules, as the functions of these names in `os`; all of them raise OSError.

    What is written is lost with the machine until `fsync` returns: a file's bytes until it is called for the file,
    the names in a folder until it is called for the folder.
    """

    def open(self, path: str, flags: int, mode: int = ..., /) -> int:
        """A descriptor."""

    def close(self, fd: int, /) -> None:
        """Nobody uses it any more."""

    def read(self, fd: int, length: int, /) -> bytes:
        """Nothing only at the end of the file."""

    def write(self, fd: int, data: ReadBuffer, /) -> int:
        """How many bytes it took, perhaps not all."""

    def fsync(self, fd: int) -> None:
        """A file's bytes survive a power loss, or a folder's names."""

    def listdir(self, path: str) -> list[str]:
        """The names in a folder, in any order."""

    def mkdir(self, path: str) -> None:
        """A new folder."""

    def link(self, src: str, dst: str) -> None:
        """A second name of a file; fails if something has it."""

    def rename(self, src: str, dst: str) -> None:
        """At once, over a file or an empty folder that has the new name."""

    def unlink(self, path: str) -> None:
        """Remove a file's name."""

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""


SYSTEM: Final[FileCalls] = os
"""The machine's own files."""
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//?)(.*)", re.DOTALL)


def local_path(path: str | os.PathLike[str], what: str) -> str:
    """The absolute path of a file or a folder on this machine, by the working directory; `file:` URLs name one too.

    Args:
        path: as a user gives it.
        what: is to lie there, for the error.

    Raises:
        InvalidInputError: nothing; or a URL of a store that has no hard links and no atomic renames.
    """
    text = os.fspath(path)
    if found := _URL.match(text):
        host, _, rest = found[3].partition("/") if found[2] == "//" else ("", "", found[3])
        if found[1].lower() != "file" or host not in ("", "localhost"):
            raise InvalidInputError(
                f"{what} can't lie in {text}: what is exact needs hard links and atomic renames, so give a path on a "
                "file system that has them, local or mounted; object stores and HDFS have none"
            )
        text = f"/{unquote(rest)}"
    if not text:
        raise InvalidInputError(f"{what} needs a path")
    return os.path.abspath(text)


class Output(io.RawIOBase):
    """A new file that Arrow writes to, in whatever pieces the kernel takes; an error leaves a part of it."""

    def __init__(self, files: FileCalls, path: str) -> None:
        super().__init__()
        self._files = files
        self._at = 0
        self._fd = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def writable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """How many bytes were written."""
        return self._at

    def write(self, data: Any, /) -> int:  # any buffer, as `io` says it
        """All of it."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            rest = rest[self._files.write(self._fd, rest) :]
        self._at += size
        return size

    def sync(self) -> None:
        """The bytes survive a power loss."""
        self._files.fsync(self._fd)

    def close(self) -> None:
        """Nobody uses it any more."""
        if not self.closed:
            super().close()
            self._files.close(self._fd)


def read_file(files: FileCalls, path: str) -> bytes:
    """A whole file."""
    fd = files.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := files.read(fd, _READ_BYTES):
            parts.append(part)
        return b"".join(parts)
    finally:
        files.close(fd)


def write_file(files: FileCalls, path: str, data: bytes) -> None:
    """A new file, whose bytes survive a power loss; its name does not yet."""
    with contextlib.closing(Output(files, path)) as output:
        output.write(data)
        output.sync()


def copy_file(files: FileCalls, src: str, dst: str) -> None:
    """The bytes of a file in a new one, which survive a power loss; its name does not yet."""
    fd = files.open(src, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.closing(Output(files, dst)) as output:
            while part := files.read(fd, _READ_BYTES):
                output.write(part)
            output.sync()
    finally:
        files.close(fd)


def sync_file(files: FileCalls, path: str) -> None:
    """Make the bytes of a file that another has written survive a power loss."""
    fd = files.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        files.fsync(fd)
    finally:
        files.close(fd)


def sync_folder(files: FileCalls, path: str) -> None:
    """Make the names in a folder survive a power loss."""
    fd = files.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        files.fsync(fd)
    finally:
        files.close(fd)


def names_in(files: FileCalls, path: str) -> list[str]:
    """What is in a folder; nothing, if there is none."""
    try:
        return files.listdir(path)
    except FileNotFoundError:
        return []


def make_folder(files: FileCalls, path: str) -> None:
    """A folder, and those above it, unless they are there; they survive a power loss."""
    above = os.path.dirname(path)
    try:
        files.mkdir(path)
    except FileExistsError:
        pass
    except FileNotFoundError:
        if above == path:
            raise
        make_folder(files, above)
        with contextlib.suppress(FileExistsError):
            files.mkdir(path)
    with contextlib.suppress(PermissionError):  # of somebody else's folder, which was there before us
        sync_folder(files, above)


def remove(files: FileCalls, path: str) -> None:
    """Remove a file's name, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(path)


def remove_folder(files: FileCalls, path: str) -> None:
    """Remove a folder of files, also when somebody else is at it."""
    for name in names_in(files, path):
        remove(files, f"{path}/{name}")
    with contextlib.suppress(FileNotFoundError):
        files.rmdir(path)
