"""The published sequences of a folder in an object store: one small object each, created once.

    _sequences/00000000000000000017.json      sequence 17: the keys that it has, with the size of each one's file
    _sequences/00000000000000000018.emptied   all sequences up to 18 are void, whatever is written about them later

Readers see a sequence when its object exists, hence all of its files at once. Sequences are published in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.region.sinks.object_store import ObjectStore
from kohort.region.sinks.parquet_folder import SequenceFile
from kohort.region.staged import StagedKey

FOLDER: Final = "_sequences"
DATA: Final = "_data"
_NAME: Final = re.compile(r"([0-9]{20})\.(json|emptied)")
_STEP: Final = 1024
_READ_ATTEMPTS: Final = 5


class SequenceEntry(msgspec.Struct, frozen=True):
    """The content of a sequence's object.

    Attributes:
        format: the format's version, 1.
        region: the region's id.
        sequence: the number.
        files: the files with rows, by their path below the folder's URL, with their sizes in bytes.
        empty: the keys without rows.
    """

    format: int
    region: UUID
    sequence: int
    files: dict[str, int]
    empty: tuple[str, ...]

    def keys(self) -> set[str]:
        """Return the texts of all keys."""
        return {key_of(path) for path in self.files} | set(self.empty)


class _Seen(NamedTuple):
    """What a listing shows: numbers of sequences, and of the last emptying."""

    sequences: list[int]
    emptied: int


def data_path(key: str) -> str:
    """Return where a key's rows are."""
    return f"{DATA}/{key}.parquet"


def key_of(path: str) -> str:
    """Return the text of the key whose rows are in a file."""
    return path.removeprefix(f"{DATA}/").removesuffix(".parquet")


class SequenceLog:
    """The sequences below one URL."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._seen = 0

    # -- what there is

    def _after(self, number: int) -> Iterator[list[tuple[int, bool]]]:
        """Return the entries after a number in pages, each with whether it says that the folder was emptied."""
        for page in self._store.pages(FOLDER, f"{number:020}.~" if number else ""):
            found = [(int(entry[1]), entry[2] == "emptied") for name in page if (entry := _NAME.fullmatch(name))]
            if found:
                yield found

    def last(self) -> int:
        """Return the last number that is published or emptied; 0: none. Lists little, however many there are."""
        low, step = max(0, self._seen - 1), _STEP
        if low and next(self._after(low), None) is None:
            low = 0  # the folder was removed
        while page := next(self._after(low + step), None):
            low, step = max(number for number, _ in page) - 1, step * 2
        while step > _STEP:
            step //= 2
            if page := next(self._after(low + step), None):
                low = max(number for number, _ in page) - 1
        self._seen = max((number for page in self._after(low) for number, _ in page), default=0)
        return self._seen

    def _listed(self, after: int = 0) -> _Seen:
        found = [entry for page in self._after(after) for entry in page]
        emptied = max((number for number, is_emptied in found if is_emptied), default=0)
        return _Seen(sorted(number for number, is_emptied in found if not is_emptied), emptied)

    def is_done(self, sequence: int) -> bool:
        """Return whether the sequence, or a later one, is published or emptied."""
        return next(self._after(sequence - 1), None) is not None

    def is_emptied(self, sequence: int) -> bool:
        """Return whether the sequence is void."""
        return self._listed(sequence - 1).emptied >= sequence

    def read(self, sequence: int) -> SequenceEntry | None:
        """Return a published sequence; None: there is none, or it is removed."""
        try:
            return self._decoded(sequence, self._store.read(_path(sequence)))
        except FileNotFoundError:
            return None

    def _decoded(self, sequence: int, data: bytes) -> SequenceEntry:
        try:
            entry = msgspec.json.decode(data, type=SequenceEntry)
        except msgspec.DecodeError as error:
            raise CorruptDataError(f"{self._store.url}/{_path(sequence)} can't be read: {error}") from error
        if entry.format != 1:
            raise InvalidInputError(f"{self._store.url} was written by a newer kohort, in format {entry.format}")
        return entry

    def files(self, after: int = 0) -> list[SequenceFile]:
        """Return the files of all published sequences after a number, in order."""
        for _ in range(_READ_ATTEMPTS):
            seen = self._listed(after)
            shown = [number for number in seen.sequences if number > seen.emptied]
            content = self._store.read_all([_path(number) for number in shown])
            if len(content) == len(shown):  # otherwise the folder was emptied meanwhile
                entries = [self._decoded(number, content[_path(number)]) for number in shown]
                return [
                    SequenceFile(entry.sequence, f"{self._store.url}/{path}")
                    for entry in entries
                    for path in sorted(entry.files)
                ]
        raise CorruptDataError(f"Sequences of {self._store.url} are gone while they are read: list it again")

    # -- changes

    def publish(self, entry: SequenceEntry) -> None:
        """Create a sequence's object, unless it is there already.

        Raises:
            InvalidInputError: something else is in its place.
        """
        there = self._decoded(entry.sequence, self._store.create(_path(entry.sequence), msgspec.json.encode(entry)))
        if there.region != entry.region or there.keys() != entry.keys():
            raise InvalidInputError(
                f"{self._store.url}/{_path(entry.sequence)} is there, and has other rows (of region {there.region}): "
                "another process has published something else as this sequence. Move it away; nothing of the sequence "
                "is lost"
            )

    def empty(self, sequence: int) -> None:
        """Make all sequences up to this one void."""
        self._store.put(f"{FOLDER}/{sequence:020}.emptied", b"{}")

    def remove_void(self, sequence: int) -> None:
        """Remove the void sequences up to this one: their files first."""
        for number in self._listed().sequences:
            if number <= sequence and (entry := self.read(number)) is not None:
                self._store.remove(entry.files)
                self._store.remove([_path(number)])


def unfinished(names: Iterable[str], region_id: UUID | None, floor: int) -> list[str]:
    """Return the keys among these names that this region staged in an epoch before `floor`."""
    keys = {name: StagedKey.parse(name.rpartition(".")[0]) for name in names}
    return [name for name, key in keys.items() if key is not None and key.region_id == region_id and key.epoch < floor]


def _path(sequence: int) -> str:
    return f"{FOLDER}/{sequence:020}.json"
