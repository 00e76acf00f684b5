"""Common parts of this package's sinks: their region, their location, and the offsets that a snapshot may name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, Self
from uuid import UUID

import msgspec

from kohort.errors import InvalidInputError
from kohort.region.confined_files import confine_files
from kohort.region.files import SYSTEM, FileCalls, local_path
from kohort.region.records import Position
from kohort.region.sinks import owner_marker
from kohort.region.sinks.owner_marker import OwnerMarker
from kohort.region.staged import StagedKey

PROBE: Final = "_probe-"
"""How the names of files begin that tell whether a folder can be written."""
_PROBES: Final = 5


def local_sink_folder(path: str, storage_options: Mapping[str, str], what: str) -> str:
    """Return the absolute path of a sink's local folder.

    Args:
        path: the path or `file:` URL as the user gave it.
        storage_options: options of an object store, which a local folder must not have.
        what: the sink, as the subject of an error message.

    Raises:
        InvalidInputError: there are options, or the path is not one of this machine.
    """
    if storage_options:
        raise InvalidInputError(f"storage_options are for object stores: {path} is a folder")
    return local_path(path, what)


class BoundSink:
    """The base class of this package's sinks: the region to which `bind` binds a sink, and the sink's name."""

    _region: str = ""
    _id: UUID | None = None
    _place: str = ""
    _kept: Any = None
    """Cached content of the destination; another region does not share it."""

    def bind(self, region: str, region_id: UUID) -> Self:
        """Return a copy that is bound to a region.

        The copy's name is fixed: another host may resolve the path differently.
        """
        bound = type(self).__new__(type(self))
        bound.__dict__.update(self.__dict__, _region=region, _id=region_id, _kept=None, _place=self.place)
        return bound

    @property
    def place(self) -> str:
        """The unique name of the destination, such as `parquet:/data/out`; equal for all members that write there."""
        return self._place or self._place_name()

    def _place_name(self) -> str:
        """Return the destination's name, made from its path or address as this process resolves them."""
        raise NotImplementedError

    def known(self) -> tuple[str, int]:
        """Return the sink's name as stored in the destination, and the last sequence (checkpoint) published there.

        The name is empty if the region has written nothing there yet. `stored_name_and_sequence` calls this.
        """
        name = self._written_name()
        there = type(self).__new__(type(self))
        there.__dict__.update(self.__dict__, _kept=None, _place=name or self.place)
        return name, there.published()

    def _written_name(self) -> str:
        """Return the sink's name as stored in the destination; empty: the region has written nothing there yet."""
        raise NotImplementedError

    def published(self) -> int:
        """Return the last sequence (checkpoint) that is certainly published; 0: none."""
        raise NotImplementedError

    def _bound(self) -> UUID:
        if self._id is None:
            raise InvalidInputError(f"{self!r} is not bound to a region yet: use what bind(region, region_id) returns")
        return self._id

    def _refuse_others(self, key: StagedKey) -> None:
        if key.region_id != self._bound():
            raise InvalidInputError(f"{key.file_stem()} is a key of another region than {self._region!r} ({self._id})")


class FolderSink(BoundSink):
    """The base class of sinks whose files are below one folder. Its file operations follow no symbolic link there."""

    KIND: ClassVar[str]
    path: str
    _given_files: FileCalls = SYSTEM

    @property
    def _files(self) -> FileCalls:
        """The file operations for this folder, which follow no symbolic link in it. A test may set others."""
        return confine_files(self._given_files, self.path)

    @_files.setter
    def _files(self, files: FileCalls) -> None:
        self._given_files = files

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    def __getstate__(self) -> dict[str, object]:
        """Return the state for pickling, without file operations that a test has set."""
        return {name: value for name, value in self.__dict__.items() if name != "_given_files"}

    def _place_name(self) -> str:
        """Return the sink's kind and the folder's path with all symbolic links resolved: `parquet:/data/out`."""
        return f"{self.KIND}:{os.path.realpath(self.path)}"

    def _probe_in(
        self, folders: Iterable[str], remove: Callable[[FileCalls, str], None], attempt: Callable[[], None]
    ) -> None:
        """Run `attempt`, which checks by trial files that `publish` can work in these folders.

        First remove trial files that crashed processes left. Another process that starts may remove this one's files in
        the same way, but only once. After a FileNotFoundError the attempt is therefore repeated, at most five times in
        all.
        """
        for folder in folders:
            for name in self._files.listdir(folder):
                if name.startswith(PROBE):
                    remove(self._files, f"{folder}/{name}")
        for again in reversed(range(_PROBES)):
            try:
                attempt()
            except FileNotFoundError:
                if not again:
                    raise
            else:
                return

    def _refuse_other_name(self, claim: OwnerMarker) -> None:
        if claim.place != self.place:
            raise owner_marker.other_name_error(self._region, claim.place, self.place)

    def _read_claim(self, folder: str) -> OwnerMarker:
        """Return the owner marker that is stored in a folder; raise FileNotFoundError if there is none."""
        return owner_marker.read_owner_marker(self._files, folder)

    def _own_claim(self, folder: str) -> OwnerMarker | None:
        """Return the owner marker in a folder, after checking that it names this region; None: there is no marker."""
        try:
            claim = self._read_claim(folder)
        except FileNotFoundError:
            return None
        if claim.id != self._bound():
            remedy = "give each region a place of its own"
            raise owner_marker.other_owner_error(
                self.place, (claim.region, claim.id), (self._region, self._bound()), remedy
            )
        return claim

    def _written_in(self, folder: str) -> str:
        claim = self._own_claim(folder)
        return "" if claim is None else claim.place

    def _adopt(self, folder: str) -> str:
        """Store this sink's present name in a folder's owner marker.

        Return the earlier name; empty: there is no marker.
        """
        claim = self._own_claim(folder)
        if claim is None:
            return ""
        if claim.place != self.place:
            owner_marker.replace_owner_marker(self._files, folder, msgspec.structs.replace(claim, place=self.place))
        self._kept = None
        return claim.place


OFFSETS_CHARS_MAX: Final = 16_384
"""Limit on the offsets in a snapshot: Iceberg's metadata has the summaries of all snapshots, and each commit writes it
anew. About 1,000 partitions fit."""


def offsets_as_json(positions: Iterable[Position]) -> str:
    """Return next offsets as JSON `{group: {topic: {partition: offset}}}`, for the metadata of a published snapshot.

    Empty if there are no offsets, or if the text would exceed 16,384 characters.
    """
    groups: dict[str, dict[str, dict[str, int]]] = {}
    for position in positions:
        topics = groups.setdefault(position.group, {})
        topics.setdefault(position.topic, {})[str(position.partition)] = position.offset
    text = json.dumps(groups, separators=(",", ":")) if groups else ""
    return text if len(text) <= OFFSETS_CHARS_MAX else ""
