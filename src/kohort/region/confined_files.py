"""File operations below one folder that follow no symbolic link there, whoever plants it and whenever.

Another user who may write to a sink's folder could plant `_staging` as a link to a folder of the victim's. So each
operation opens every folder below the root without following links, and works relative to the last one (`openat`). The
root itself may be reached through links, since the operator names it. Paths outside the root are the system's.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Self

from kohort.errors import InvalidInputError
from kohort.region.files import SYSTEM, FileCalls, ReadBuffer

FOLDERS_OPEN_MAX: Final = 16
"""Descriptors of folders that many operations in a row keep: two for a move, and some of a table's partitions."""
_NO_NAMES: Final = frozenset({"", ".", ".."})


def _folder_flags() -> int:
    return os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC  # not a constant: Windows, which imports this, lacks the second


class _Spot:
    """A file name relative to an open folder's descriptor (`openat`); without a descriptor, an ordinary path.

    Leaving its `with` block releases the folder. An OSError from the block then names the whole path.
    """

    __slots__ = ("_files", "_path", "fd", "name")

    def __init__(self, files: ConfinedFiles, path: str, fd: int | None, name: str) -> None:
        self._files, self._path, self.fd, self.name = files, path, fd, name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self.fd is None:
            return
        if isinstance(error, OSError) and error.filename == self.name:
            error.filename = self._path
        self._files.close_folder_unless_kept(self.fd)


class ConfinedFiles:
    """File operations that follow no symbolic link below one root folder.

    Paths outside the root are passed to the operating system as they are.
    """

    def __init__(self, root: str, *, private: bool = False) -> None:
        """Confine operations to `root`; with `private`, only this user can read the files and folders made there."""
        self._root = root.rstrip("/") or "/"
        self._below = f"{root.rstrip('/')}/"
        self._folder_mode, self._file_mode = (0o700, 0o600) if private else (0o777, 0o666)

    def _at(self, path: str) -> _Spot:
        """Open the folder that contains a path, without following symbolic links below the root."""
        if path == self._root or not path.startswith(self._below):
            return _Spot(self, path, None, path)
        *above, name = path[len(self._below) :].split("/")
        if not _NO_NAMES.isdisjoint((*above, name)):
            raise InvalidInputError(f"{path!r} has a part that is empty or leads upwards: no file is reached by it")
        return _Spot(self, path, self._descriptor_of(tuple(above)), name)

    def _descriptor_of(self, folders: tuple[str, ...]) -> int:
        """Open a folder below the root and return its descriptor, which `close_folder_unless_kept` closes."""
        fd = os.open(self._root, _folder_flags())
        walked = self._root.rstrip("/")
        for part in folders:
            walked = f"{walked}/{part}"
            try:
                inside = self._open_folder(fd, part, walked)
            finally:
                os.close(fd)
            fd = inside
        return fd

    def close_folder_unless_kept(self, fd: int) -> None:
        """Close a descriptor that `_descriptor_of` returned, unless the folders are kept open."""
        os.close(fd)

    @staticmethod
    def _open_folder(above: int, name: str, path: str) -> int:
        try:
            return os.open(name, _folder_flags() | os.O_NOFOLLOW, dir_fd=above)
        except OSError as error:
            _refuse_link(above, name, path)
            error.filename = path
            raise

    def open(self, path: str, flags: int, mode: int = 0o777, /) -> int:
        """Open a file and return its descriptor; raise InvalidInputError if its name is a symbolic link."""
        with self._at(path) as spot:
            if spot.fd is None:
                return os.open(path, flags, mode)
            try:
                return os.open(spot.name, flags | os.O_NOFOLLOW, mode & self._file_mode, dir_fd=spot.fd)
            except OSError:
                _refuse_link(spot.fd, spot.name, path)
                raise

    def close(self, fd: int, /) -> None:
        """Close a file descriptor."""
        os.close(fd)

    def read(self, fd: int, length: int, /) -> bytes:
        """Return at most `length` bytes; none at the end of the file."""
        return os.read(fd, length)

    def write(self, fd: int, data: ReadBuffer, /) -> int:
        """Write bytes, and return how many were written, perhaps not all."""
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        """Make a file's bytes, or a folder's names, survive a power loss."""
        os.fsync(fd)

    def stat(self, path: str) -> os.stat_result:
        """Return a file's size, times and mode; of a symbolic link, its own."""
        with self._at(path) as spot:
            return os.stat(spot.name, dir_fd=spot.fd, follow_symlinks=False)

    def listdir(self, path: str) -> list[str]:
        """Return the names of the files and folders in a folder."""
        with self._at(path) as spot:
            if spot.fd is None:
                return os.listdir(path)
            fd = self._open_folder(spot.fd, spot.name, path)
            try:
                return os.listdir(fd)
            finally:
                os.close(fd)

    def mkdir(self, path: str) -> None:
        """Create a folder; its parent must exist."""
        with self._at(path) as spot:
            os.mkdir(spot.name, self._folder_mode, dir_fd=spot.fd)

    def link(self, src: str, dst: str) -> None:
        """Create a hard link to a regular file; a link to anything else is removed again and refused."""
        with self._at(src) as old, self._at(dst) as new:
            os.link(old.name, new.name, src_dir_fd=old.fd, dst_dir_fd=new.fd, follow_symlinks=False)
            if not stat.S_ISREG(os.stat(new.name, dir_fd=new.fd, follow_symlinks=False).st_mode):
                os.unlink(new.name, dir_fd=new.fd)
                raise _is_link(src)

    def utime(self, path: str) -> None:
        """Set a file's modification time to now; of a symbolic link, the link's own."""
        with self._at(path) as spot:
            os.utime(spot.name, dir_fd=spot.fd, follow_symlinks=False)

    def rename(self, src: str, dst: str) -> None:
        """Rename a file or folder atomically."""
        with self._at(src) as old, self._at(dst) as new:
            os.rename(old.name, new.name, src_dir_fd=old.fd, dst_dir_fd=new.fd)

    def unlink(self, path: str) -> None:
        """Remove a file; of a symbolic link, the link itself."""
        with self._at(path) as spot:
            os.unlink(spot.name, dir_fd=spot.fd)

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        with self._at(path) as spot:
            os.rmdir(spot.name, dir_fd=spot.fd)


class _FoldersKeptOpen(ConfinedFiles):
    """Confined file operations that keep the descriptors of opened folders, at most 16, and use them again.

    A folder that takes the name of an open one is not noticed meanwhile.
    """

    def __init__(self, files: ConfinedFiles) -> None:
        self.__dict__.update(files.__dict__)
        self._open: OrderedDict[tuple[str, ...], int] = OrderedDict()

    def _descriptor_of(self, folders: tuple[str, ...]) -> int:
        fd = self._open.get(folders)
        if fd is None:
            fd = self._open[folders] = super()._descriptor_of(folders)
        self._open.move_to_end(folders)
        return fd

    def close_folder_unless_kept(self, fd: int) -> None:
        while len(self._open) > FOLDERS_OPEN_MAX:
            os.close(self._open.popitem(last=False)[1])

    def close_folders(self) -> None:
        """Close the descriptors of all folders."""
        while self._open:
            os.close(self._open.popitem()[1])


@contextlib.contextmanager
def keep_folders_open(files: FileCalls) -> Iterator[FileCalls]:
    """Yield file operations that keep folders open, for many files in few folders.

    No folder may be renamed inside the block. File operations that are not confined are yielded unchanged.
    """
    if not isinstance(files, ConfinedFiles):
        yield files
        return
    kept = _FoldersKeptOpen(files)
    try:
        yield kept
    finally:
        kept.close_folders()


def confine_files(files: FileCalls, root: str, *, private: bool = False) -> FileCalls:
    """Confine the operating system's file operations to a folder; return those of a test unchanged."""
    return ConfinedFiles(root, private=private) if files is SYSTEM else files


def _refuse_link(above: int, name: str, path: str) -> None:
    """Raise if the name is a symbolic link."""
    with contextlib.suppress(OSError):
        if stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
            raise _is_link(path)


def _is_link(path: str) -> InvalidInputError:
    return InvalidInputError(
        f"{path} is a symbolic link, or no regular file: nothing there is written, published or removed, for it may "
        "lead anywhere. See who has planted it, and remove it"
    )
