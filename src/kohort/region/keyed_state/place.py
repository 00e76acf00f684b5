"""Where keyed states are saved: a folder that all members see, or an object store."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from kohort.errors import CorruptDataError, InvalidInputError, NotAuthorizedError
from kohort.region.confined_files import confined
from kohort.region.files import SYSTEM, FileCalls, is_store_url, local_path, make_folder, names_in, read_file, remove
from kohort.region.keyed_state.state_files import StateFile, decode_file, file_name, folder_of, sequence_in
from kohort.region.records import Part, StateHead
from kohort.region.sinks.staged_files import write_staged

if TYPE_CHECKING:
    from kohort.region.sinks.object_store import ObjectStore

_OBJECTS: Final = "kohort.region.sinks.object_store"
"""The module of object stores, which needs an extra of the package."""
_PROBE: Final = "probe"
DELTAS_MAX: Final = 32


class StateStore(Protocol):
    """The files of keyed states; each is written once, and durable when the call returns. All calls raise OSError."""

    def write(self, folder: str, name: str, content: bytes) -> None:
        """Write a file; one of the same name has the same content."""

    def read(self, folder: str, name: str) -> bytes:
        """Return a file's content; raise FileNotFoundError if there is none."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if it does not exist."""

    def remove(self, folder: str, names: Iterable[str]) -> None:
        """Remove files, those that are there."""


class FolderStore:
    """Files of states in a folder."""

    def __init__(self, path: str, files: FileCalls = SYSTEM) -> None:
        self._path, self._files = path, confined(files, path)
        self._made: set[str] = set()

    def write(self, folder: str, name: str, content: bytes) -> None:
        """Write a file by a rename."""
        path = self._path
        for part in ("", *folder.split("/")):
            path = f"{path}/{part}" if part else path
            if path not in self._made:
                make_folder(self._files, path)  # another process may have made it, and not have synced its name
                self._made.add(path)
        write_staged(self._files, path, name, lambda output: output.write(content))

    def read(self, folder: str, name: str) -> bytes:
        """Return a file's content."""
        return read_file(self._files, f"{self._path}/{folder}/{name}")

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        return names_in(self._files, f"{self._path}/{folder}")

    def remove(self, folder: str, names: Iterable[str]) -> None:
        """Remove files."""
        for name in names:
            remove(self._files, f"{self._path}/{folder}/{name}")


class ObjectStateStore:
    """Files of states as objects of a store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def write(self, folder: str, name: str, content: bytes) -> None:
        """Put an object."""
        self._store.put_object(f"{folder}/{name}", content)

    def read(self, folder: str, name: str) -> bytes:
        """Return an object's content."""
        return self._store.read_object(f"{folder}/{name}")

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects in a folder."""
        return self._store.list_names(folder)

    def remove(self, folder: str, names: Iterable[str]) -> None:
        """Remove objects."""
        self._store.remove_objects([f"{folder}/{name}" for name in names])


class KeyedState:
    """The place where a region's Python members save the keyed states of partitions.

    All members of a group name the same place. Regions may share one: each has a folder of its own in it, named by the
    region's id. `RegionConsumer.partition_state` has the states.

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
        """Initialise a place; nothing is accessed.

        Args:
            path: a folder that all members see, or the URL of an object store (`s3://`, `gs://`, `az://`).
            storage_options: credentials and settings of an object store, as of `ParquetFolder`.
            work_folder: a local folder with room for the states of a member's partitions.

        Raises:
            InvalidInputError: the path is neither, or the store can't be opened.
        """
        self.work_folder = None if work_folder is None else os.fspath(work_folder)
        self._store: StateStore
        if is_store_url(path):
            objects: ObjectStore = import_module(_OBJECTS).ObjectStore(os.fspath(path), storage_options or {})
            self._store, self.path, self._name = ObjectStateStore(objects), objects.url, objects.name
            return
        if storage_options:
            raise InvalidInputError(f"storage_options are for object stores: {os.fspath(path)} is a folder")
        self.path = self._name = local_path(path, "A KeyedState")
        self._store = FolderStore(self.path)

    def __repr__(self) -> str:
        return f"KeyedState({self._name!r})"  # without credentials

    def bind(self, region_id: UUID) -> RegionStates:
        """Return the states of one region."""
        return RegionStates(self._store, self._name, region_id)


class RegionStates:
    """The keyed states of one region in their place.

    Attributes:
        place: the name of the place, without credentials.
        deltas_max: the limit on deltas behind a base. A new owner reads each of them.
    """

    def __init__(self, store: StateStore, place: str, region_id: UUID, deltas_max: int = DELTAS_MAX) -> None:
        self._store, self.place, self._region, self.deltas_max = store, place, region_id.hex, deltas_max

    def check(self) -> None:
        """Check that files can be written, read, listed and removed.

        Raises:
            NotAuthorizedError: a permission is missing.
            InvalidInputError: the place does not exist, or has no file that was just written.
        """
        try:
            self._store.write(self._region, _PROBE, b"")
            there = not self._store.read(self._region, _PROBE) and _PROBE in self._store.names(self._region)
        except PermissionError as error:
            raise NotAuthorizedError(f"No right to save keyed states in {self.place}: {error}") from error
        except FileNotFoundError as error:
            raise InvalidInputError(f"Keyed states can't be saved in {self.place}: {error}") from error
        if not there:
            raise InvalidInputError(f"Keyed states can't be saved in {self.place}: it does not list a new file")

    def write(self, part: Part, file: StateFile, content: bytes) -> None:
        """Write a file of a partition's state."""
        self._store.write(self._folder(part), file.name, content)

    def read_head(self, part: Part, head: StateHead) -> tuple[list[StateFile], memoryview]:
        """Return the chain of a state, and the payload of its newest file.

        Raises:
            CorruptDataError: the file is gone or damaged.
        """
        name = file_name(head.sequence, head.digest)
        newest, before, payload = decode_file(name, head.digest, self._content(part, name))
        return [*before, newest], payload

    def read(self, part: Part, file: StateFile) -> memoryview:
        """Return the payload of a file; raise as `read_head`."""
        return decode_file(file.name, file.digest, self._content(part, file.name))[2]

    def _content(self, part: Part, name: str) -> bytes:
        folder = self._folder(part)
        try:
            return self._store.read(folder, name)
        except FileNotFoundError as error:
            raise CorruptDataError(
                f"The keyed state of {part} needs the file {folder}/{name}, which is not in {self.place}: give all "
                "members the place where it was saved, or reset the region to its initial state"
            ) from error

    def sweep(self, part: Part, base: int) -> None:
        """Remove the files of earlier sequences than the base of the state that the last manifest names."""
        folder = self._folder(part)
        numbers = ((name, sequence_in(name)) for name in self._store.names(folder))
        self._store.remove(folder, [name for name, number in numbers if number is not None and number < base])

    def _folder(self, part: Part) -> str:
        return f"{self._region}/{folder_of(part)}"


def no_room(error: BaseException) -> OSError:
    """Return the error of a working copy for which the disk has no room: it passes when there is some."""
    return OSError(errno.ENOSPC, f"a working copy of a keyed state can't be written: {error}")
