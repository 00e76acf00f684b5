"""The storage of keyed states: a folder that all members see, or an object store."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from kohort.errors import CorruptDataError, InvalidInputError, NotAuthorizedError
from kohort.region.confined_files import confine_files
from kohort.region.files import (
    SYSTEM,
    FileCalls,
    is_store_url,
    list_folder,
    local_path,
    make_folders,
    remove_file,
    remove_folder,
)
from kohort.region.keyed_state.state_files import (
    CONTENT_BYTES_MAX,
    FILE_BYTES,
    KeyedStateFile,
    ReadPart,
    StateFileCheck,
    checkpoint_id_in_name,
    damaged_file_error,
    decode_state_file,
    encode_file_header,
    entry_of_file,
    file_name,
    partition_folder_name,
)
from kohort.region.records import KeyedStateChainHead, Part
from kohort.region.sinks.staged_files import write_file_atomically

if TYPE_CHECKING:
    from kohort.region.sinks.object_store import ObjectStore

_OBJECTS: Final = "kohort.region.sinks.object_store"
"""The module of object stores, which needs an extra of the package."""
_PROBE: Final = "probe"
_FOLDER: Final = re.compile("[0-9a-f]{32}")
DELTAS_MAX: Final = 32
_READ_BYTES: Final = 1 << 20
_FILES_AT_ONCE: Final = 4
"""Files of one state that are read at once; each takes a MiB of memory, a delta its size."""
_WRITTEN_AT_ONCE: Final = 4
"""Files that a member writes at once; each is in memory."""
_AHEAD_BYTES: Final = FILE_BYTES
"""Limit on deltas that are read ahead, except the first of them."""

Write: TypeAlias = Callable[[int, ReadPart], None]
"""Writes bytes of a base at a position."""


class KeyedStateStore(Protocol):
    """The storage of keyed state files: a folder or an object store.

    Each file is written once, and is durable when `write` returns. All calls may raise OSError.
    """

    def write(self, folder: str, name: str, content: ReadPart) -> None:
        """Write a file durably. A file that has this name already has the same content."""

    def read(self, folder: str, name: str) -> Generator[ReadPart, None, None]:
        """Yield a file's content in parts of some MiB at most; raise FileNotFoundError if there is none."""

    def list_files(self, folder: str) -> list[str]:
        """Return the names in a folder; none if it does not exist."""

    def remove_files(self, folder: str, names: Iterable[str]) -> None:
        """Remove files; those that do not exist are no error."""

    def remove_region(self, folder: str) -> int:
        """Remove a region's folder with all that is in it; return the number of files removed."""


class FolderStateStore:
    """Keyed state files in a folder of a file system."""

    def __init__(self, path: str, files: FileCalls = SYSTEM) -> None:
        self._path, self._files = path, confine_files(files, path)
        self._made: set[str] = set()

    def write(self, folder: str, name: str, content: ReadPart) -> None:
        """Write a file durably under a temporary name, then rename it."""
        path = f"{self._path}/{folder}"
        if folder not in self._made:
            make_folders(self._files, self._path, folder)  # others may have made them, and not have synced the names
            self._made.add(folder)
        write_file_atomically(self._files, path, name, lambda output: output.write(content))

    def read(self, folder: str, name: str) -> Generator[ReadPart, None, None]:
        """Yield a file's content in parts. A named pipe in its place reads as empty, and does not block."""
        fd = self._files.open(f"{self._path}/{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            while part := self._files.read(fd, _READ_BYTES):
                yield part
        finally:
            self._files.close(fd)

    def list_files(self, folder: str) -> list[str]:
        """Return the names in a folder; none if it does not exist."""
        return list_folder(self._files, f"{self._path}/{folder}")

    def remove_files(self, folder: str, names: Iterable[str]) -> None:
        """Remove files; those that do not exist are no error."""
        for name in names:
            remove_file(self._files, f"{self._path}/{folder}/{name}")

    def remove_region(self, folder: str) -> int:
        """Remove a region's folder, with a level of folders in it; return the number of files removed."""
        path, count = f"{self._path}/{folder}", 0
        for name in list_folder(self._files, path):
            try:
                inside = list_folder(self._files, f"{path}/{name}")
            except NotADirectoryError:
                remove_file(self._files, f"{path}/{name}")
                count += 1
            else:
                remove_folder(self._files, f"{path}/{name}")
                count += len(inside)
        remove_folder(self._files, path)
        return count


class ObjectStateStore:
    """Keyed state files as objects in an object store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def write(self, folder: str, name: str, content: ReadPart) -> None:
        """Put an object with this content."""
        self._store.put_object(f"{folder}/{name}", content)

    def read(self, folder: str, name: str) -> Generator[ReadPart, None, None]:
        """Yield an object's content in parts."""
        return self._store.stream_object(f"{folder}/{name}", _READ_BYTES)

    def list_files(self, folder: str) -> list[str]:
        """Return the names of the objects in a folder."""
        return self._store.list_names(folder)

    def remove_files(self, folder: str, names: Iterable[str]) -> None:
        """Remove objects."""
        self._store.remove_objects([f"{folder}/{name}" for name in names])

    def remove_region(self, folder: str) -> int:
        """Remove all objects below a region's folder; return their number."""
        count = 0
        while names := next((page for page in self._store.list_pages(folder) if page), []):
            self.remove_files(folder, names)
            count += len(names)
        return count


class SweepOrder(NamedTuple):
    """An order to remove files of a partition's keyed state that are not needed any more.

    Attributes:
        part: the partition.
        head: its state in the last manifest. Files of checkpoints before the state's oldest file are removed.
        names: the names of the files that the state consists of. Other files are removed too, unless they are of a
            later checkpoint than the state. None: the names are not known.
    """

    part: Part
    head: KeyedStateChainHead
    names: frozenset[str] | None = None

    def is_removed(self, name: str, sequence: int) -> bool:
        """Return whether the sweep removes the file of this name, which was written for this checkpoint id."""
        replaced = self.names is not None and name not in self.names and sequence <= self.head.sequence
        return sequence < self.head.base or replaced


class KeyedState:
    """The folder or object store in which a region's Python members save the keyed states of partitions.

    All members of a group name the same one. Regions may share it: each has a folder of its own in it, named by the
    region's id. `RegionConsumer.partition_state` returns the states.

    Attributes:
        path: the absolute path, or the URL.
        work_folder: where a member has its working copies, SQLite files without a name; None: the system's folder for
            temporary files.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
        work_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        """Set the folder or object store in which regions save keyed states; it is not accessed yet.

        Args:
            path: a folder that all members see, or the URL of an object store (`s3://`, `gs://`, `az://`).
            storage_options: credentials and settings of an object store, as of `ParquetFolder`.
            work_folder: a local folder with room for the states of a member's partitions.

        Raises:
            InvalidInputError: the path is neither, or the store can't be opened.
        """
        self.work_folder = None if work_folder is None else os.fspath(work_folder)
        self._store: KeyedStateStore
        if is_store_url(path):
            objects: ObjectStore = import_module(_OBJECTS).ObjectStore(os.fspath(path), storage_options or {})
            self._store, self.path, self._name = ObjectStateStore(objects), objects.url, objects.name
            return
        if storage_options:
            raise InvalidInputError(f"storage_options are for object stores: {os.fspath(path)} is a folder")
        self.path = self._name = local_path(path, "A KeyedState")
        self._store = FolderStateStore(self.path)

    def __repr__(self) -> str:
        return f"KeyedState({self._name!r})"  # without credentials

    def bind(self, region_id: UUID) -> RegionStateStore:
        """Return the storage of one region's keyed states, a folder of its own below this path."""
        return RegionStateStore(self._store, self._name, region_id)

    def remove_region(self, folder: str) -> int:
        """Remove the keyed states of a region that was deleted; return the number of files removed.

        Args:
            folder: what `Region.delete` has returned.

        Raises:
            InvalidInputError: it is no such folder.
            OSError, RetriableError: the storage does not answer. Some files may be gone: the call can be repeated.
        """
        if not _FOLDER.fullmatch(folder):
            raise InvalidInputError(f"{folder!r} is no folder of a region's states: give what Region.delete returned")
        return self._store.remove_region(folder)


class RegionStateStore:
    """The storage of one region's keyed states.

    A state is a chain of files: a base, which is a whole copy, then deltas, which have the changed keys.

    Attributes:
        place: the path or URL, without credentials.
        deltas_max: how many deltas may follow a base before some are merged: a new owner reads each. 0: each checkpoint
            saves a base.
    """

    def __init__(self, store: KeyedStateStore, place: str, region_id: UUID, deltas_max: int = DELTAS_MAX) -> None:
        self._store, self.place, self._region, self.deltas_max = store, place, region_id.hex, deltas_max
        self._writes = threading.BoundedSemaphore(_WRITTEN_AT_ONCE)

    def check_access(self) -> None:
        """Check that files can be written, read and listed.

        Raises:
            NotAuthorizedError: a permission is missing.
            InvalidInputError: the folder or store does not exist, or does not list a file that was just written.
        """
        try:
            self._store.write(self._region, _PROBE, b"")
            there = not any(self._store.read(self._region, _PROBE)) and _PROBE in self._store.list_files(self._region)
        except PermissionError as error:
            raise NotAuthorizedError(f"No right to save keyed states in {self.place}: {error}") from error
        except FileNotFoundError as error:
            raise InvalidInputError(f"Keyed states can't be saved in {self.place}: {error}") from error
        if not there:
            raise InvalidInputError(f"Keyed states can't be saved in {self.place}: it does not list a new file")

    def append_deltas(
        self, part: Part, sequence: int, chain: list[KeyedStateFile], payloads: Iterable[bytes]
    ) -> list[KeyedStateFile]:
        """Write files of changes (deltas) that follow a state's chain of files; return the longer chain.

        Args:
            part: the partition.
            sequence: the id of the checkpoint for which they are saved.
            chain: the files so far.
            payloads: the content of each delta, without its header.
        """
        chain = list(chain)
        for payload in payloads:
            with self._writes:
                content = encode_file_header("delta", chain) + payload
                file = entry_of_file(sequence, "delta", content)
                self._store.write(self._folder(part), file.name, content)
            chain.append(file)
        return chain

    def write_base_files(
        self, part: Part, sequence: int, pieces: Sequence[Callable[[bytes], bytearray]]
    ) -> list[KeyedStateFile]:
        """Write a whole copy of a state (a base) as one file or several; return its files as the new chain.

        Args:
            part: the partition.
            sequence: the id of the checkpoint for which it is saved.
            pieces: each returns the content of a file that begins with the given bytes.
        """
        chain: list[KeyedStateFile] = []

        def encode_next(piece: Callable[[bytes], bytearray]) -> tuple[KeyedStateFile, bytearray]:
            content = piece(encode_file_header("base", chain))
            chain.append(entry_of_file(sequence, "base", content))
            return chain[-1], content

        if len(pieces) == 1:
            with self._writes:
                file, content = encode_next(pieces[0])
                self._store.write(self._folder(part), file.name, memoryview(content))
            return chain
        with ThreadPoolExecutor(_WRITTEN_AT_ONCE) as pool:
            writes: deque[Future[None]] = deque()
            for piece in pieces:
                if len(writes) == _WRITTEN_AT_ONCE:
                    writes.popleft().result()
                self._writes.acquire()
                try:
                    writes.append(pool.submit(self._write_and_release, self._folder(part), *encode_next(piece)))
                except BaseException:  # nothing was submitted that would release it
                    self._writes.release()
                    raise
            for write in writes:
                write.result()
        return chain

    def _write_and_release(self, folder: str, file: KeyedStateFile, content: bytearray) -> None:
        try:
            self._store.write(folder, file.name, memoryview(content))
        finally:
            self._writes.release()

    def read_newest_file(self, part: Part, head: KeyedStateChainHead) -> tuple[list[KeyedStateFile], memoryview]:
        """Return a state's chain of files, and the payload of the newest one.

        Raises:
            CorruptDataError: the file is gone or damaged.
        """
        name = file_name(head.sequence, head.digest)
        content = self._content(part, name, min(head.size, CONTENT_BYTES_MAX))
        newest, before, payload = decode_state_file(name, head.digest, content)
        return [*before, newest], payload

    def read_delta_payloads(self, part: Part, files: list[KeyedStateFile]) -> Iterator[memoryview]:
        """Yield the payloads of files of changes (deltas) in order; some files are read ahead.

        Raises:
            CorruptDataError: a file is gone or damaged.
        """

        def payload(file: KeyedStateFile) -> memoryview:
            return decode_state_file(file.name, file.digest, self._content(part, file.name, file.size))[2]

        if len(files) < 2:
            yield from map(payload, files)
            return
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            ahead: deque[tuple[int, Future[memoryview]]] = deque()
            left = deque(files)
            try:
                while left or ahead:
                    while left and (not ahead or left[0].size + sum(size for size, _ in ahead) <= _AHEAD_BYTES):
                        file = left.popleft()
                        ahead.append((file.size, pool.submit(payload, file)))
                    yield ahead.popleft()[1].result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def copy_base_to(self, part: Part, files: list[KeyedStateFile], write: Write) -> int:
        """Read the files of a base, several at once, and pass their payloads to `write`, each with its position.

        What was written counts only if this call returns: each file is checked at its end.

        Returns:
            The size of the base, which is the position behind its end.

        Raises:
            CorruptDataError: a file is gone or damaged.
        """
        work: list[tuple[int, StateFileCheck, KeyedStateFile]] = []
        begin = 0
        for number, file in enumerate(files):
            check = StateFileCheck(file, files[:number])
            work.append((begin, check, file))
            begin += check.payload_bytes

        def copy_piece(begin: int, check: StateFileCheck, file: KeyedStateFile) -> None:
            with closing(self.read_checked_parts(part, file.name, file.size)) as parts:
                for read in parts:
                    at, share = check.add(read)
                    if share:
                        write(begin + at, share)
            check.finish_check()

        if len(work) < 2:
            for piece in work:
                copy_piece(*piece)
            return begin
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            copies = [pool.submit(copy_piece, *piece) for piece in work]
            try:
                for copy in copies:
                    copy.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        return begin

    def _content(self, part: Part, name: str, bytes_max: int) -> bytes:
        with closing(self.read_checked_parts(part, name, bytes_max)) as parts:
            return b"".join(parts)

    def read_checked_parts(self, part: Part, name: str, bytes_max: int) -> Generator[ReadPart, None, None]:
        """Yield a file in parts.

        Raises:
            CorruptDataError: the file is gone, or larger than `bytes_max`, the size that was saved.
        """
        folder, size = self._folder(part), 0
        try:
            with closing(self._store.read(folder, name)) as parts:
                for read in parts:
                    size += len(read)
                    if size > bytes_max:
                        raise damaged_file_error(name, "it is larger than the file that was saved")
                    yield read
        except FileNotFoundError as error:
            raise CorruptDataError(
                f"The keyed state of {part} needs the file {folder}/{name}, which is not in {self.place}: give all "
                "members the place where it was saved, or reset the region to its initial state"
            ) from error

    def sweep(self, order: SweepOrder) -> None:
        """Remove the files of a partition's keyed state that the last manifest does not need."""
        folder = self._folder(order.part)
        numbers = ((name, checkpoint_id_in_name(name)) for name in self._store.list_files(folder))
        self._store.remove_files(
            folder, [name for name, number in numbers if number is not None and order.is_removed(name, number)]
        )

    def _folder(self, part: Part) -> str:
        return f"{self._region}/{partition_folder_name(part)}"


def no_room_error(error: BaseException) -> OSError:
    """Return the retriable error for a working copy that does not fit on the disk."""
    return OSError(errno.ENOSPC, f"a working copy of a keyed state can't be written: {error}")
