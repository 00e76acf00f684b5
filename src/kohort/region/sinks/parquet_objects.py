"""A folder of Parquet files in an object store that is written to exactly once: a sequence is one small object.

    out/_region/region.json     whose folder this is, its name, and the schema of all its rows; created once
    out/_region/conditional-put an object that `check` could create once only
    out/_staged/KEY.rows        a member stages rows under this key, or has; KEY.none: it had no rows (empty objects)
    out/_data/KEY.parquet       the rows; they stay there when they are published
    out/_sequences/…17.json     sequence 17, which names its files: created once, by a conditional put

A store has neither links nor renames, and no listing of many objects is whole. Readers therefore take the files that
`_sequences` names: `ParquetFolder.files` lists them. A name that begins with `_` keeps readers of the whole folder away
from rows that are not published.

The order of writes replaces locks:

- `KEY.rows` before `KEY.parquet`: a sweep finds the rows of a member that died without a list of all data;
- `KEY.parquet` before `stage` returns, hence before a manifest names it, hence before `…17.json` does;
- `…17.json` before its `KEY.rows` and `KEY.none` are removed;
- those of the last sequence are removed before the next sequence is created. So only the last sequence's files may have
  a `KEY.rows`, and a sweep asks that one alone. It looks at the last sequence first, and lists `_staged` then.

Correctness needs no clock and no lock. A late publisher of a sequence finds its object, or is refused by the store. The
object of an emptied folder (`…18.emptied`) makes all earlier ones void, those too that a late publisher creates.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import pyarrow as pa

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.region.sinks import Keep, owner_marker, staged_files
from kohort.region.sinks.object_store import ObjectStore
from kohort.region.sinks.owner_marker import OwnerMarker
from kohort.region.sinks.parquet_folder import ParquetFolder, SequenceFile
from kohort.region.sinks.parquet_schema import check_writable
from kohort.region.sinks.sequence_log import SequenceEntry, SequenceLog, data_path, unfinished
from kohort.region.sinks.staged_files import Codec
from kohort.region.staged import StagedKey

_CLAIM: Final = f"_region/{owner_marker.CLAIM}"
_PROBE: Final = "_region/conditional-put"
_STAGED: Final = "_staged"
_ROWS: Final = ".rows"
_NONE: Final = ".none"


class ParquetObjects(ParquetFolder):
    """A `ParquetFolder` in an object store, which `ParquetFolder(url)` makes of a store's URL.

    Attributes:
        path: the URL.
        compression: as of `ParquetFolder`.
        row_group_size: as of `ParquetFolder`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        compression: Codec = "zstd",
        row_group_size: int | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        staged_files.check_pages(compression, row_group_size)
        self._store = ObjectStore(os.fspath(path), storage_options or {})
        self._log = SequenceLog(self._store)
        self.path = self._store.url
        self.compression = compression
        self.row_group_size = row_group_size

    def __repr__(self) -> str:
        return f"ParquetFolder({self._store.name!r})"  # without credentials

    def _named(self) -> str:
        return f"{self.KIND}:{self._store.name}"

    # -- before the first record

    def check(self, schema: pa.Schema) -> None:
        """Check that tables of this schema can be staged and published; create the owner marker if it is missing."""
        self._bound()
        check_writable(self._typed(schema))
        try:
            if not self._is_owned():
                self._first(schema)
            self._store.check_conditional(_PROBE)
        except FileNotFoundError as error:
            raise InvalidInputError(f"The bucket of {self.path} does not exist: create it first") from error
        self._fitting(schema)

    def _first(self, schema: pa.Schema) -> None:
        """Make the folder this region's, unless another process was faster."""
        strangers = sorted(name for name in self._store.top_names() if not name.startswith(("_", ".")))
        if strangers and not self._is_owned():
            raise InvalidInputError(
                f"{self.path} holds {strangers[0]!r} and is no folder of a region: give region {self._region!r} "
                "an empty folder, so that readers find nothing but its sequences"
            )
        claim = OwnerMarker(1, self._region, self._bound(), owner_marker.text_of(schema), place=self.place)
        self._store.create(_CLAIM, owner_marker.encoded(claim))
        self._owned()

    def _read_claim(self, folder: str) -> OwnerMarker:
        return owner_marker.decoded(self._store.read(_CLAIM), self.path)

    # -- staging

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        """Stage a table durably and invisibly; for repeated calls with one key the last counts."""
        self._refuse_others(key)
        table = self.check_rows(table)
        store, name = self._store, key.text()
        if not table.num_rows:
            store.put(_staged(name, _NONE), b"")
            if _staged(name, _ROWS) in self._staged_paths():
                store.remove([data_path(name)])
                store.remove([_staged(name, _ROWS)])
            return
        data = staged_files.parquet_bytes(table, self.path, self.compression, self.row_group_size)
        store.put(_staged(name, _ROWS), b"")
        store.put(data_path(name), data)

    def _staged_paths(self) -> set[str]:
        return {f"{_STAGED}/{name}" for name in self._store.names(_STAGED)}

    # -- publishing

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        """Show the rows of these keys as this sequence, by one object that names their files."""
        if sequence < 1:
            raise InvalidInputError(f"Sequence {sequence} can't be published: the first is 1")
        self._owned()
        names = sorted({key.text() for key in keys})
        if not self._log.is_done(sequence):
            entry = self._entry(sequence, names)
            if entry is not None:
                self._forget_before(sequence)
                self._log.publish(entry)
        if self._log.is_emptied(sequence):
            self._store.remove([data_path(name) for name in names])
            self._log.remove_void(sequence)
        self._forget(names)

    def _entry(self, sequence: int, names: list[str]) -> SequenceEntry | None:
        """Return what there is to publish; None: another process has done it."""
        sizes = self._store.sizes([data_path(name) for name in names])
        without = [name for name in names if data_path(name) not in sizes]
        there = self._staged_paths() if without else set()
        lost = [name for name in without if _staged(name, _NONE) not in there]
        if not lost:
            return SequenceEntry(1, self._bound(), sequence, sizes, tuple(without))
        if self._log.is_done(sequence):
            return None
        raise CorruptDataError(
            f"Sequence {sequence} can't be published into {self.path}: of {len(names)} staged files {len(lost)} are "
            f"gone, {lost[0]} among them"
        )

    def _forget_before(self, sequence: int) -> None:
        """Remove what is staged of the sequence before, whose publisher may have died before."""
        entry = self._log.read(sequence - 1) or self._log.read(self._log.last())
        if entry is not None:
            self._forget(entry.keys())

    def _forget(self, names: Iterable[str]) -> None:
        """Remove what says that these keys are staged."""
        both = {_staged(name, ending) for name in names for ending in (_ROWS, _NONE)}
        self._store.remove(sorted(both & self._staged_paths()))

    def empty(self, sequence: int, floor: int) -> None:
        """Remove all published rows: one object makes them void, then their files are removed."""
        if not self._is_owned():
            return
        if self._log.is_done(sequence + 1):
            return
        self._log.empty(sequence)
        self._log.remove_void(sequence)
        self._remove_staged(unfinished(self._store.names(_STAGED), self._id, floor))

    # -- progress

    def published(self) -> int:
        """Return the last sequence that is certainly published; 0: none."""
        try:
            self._owned()
        except FileNotFoundError:
            return 0
        return self._log.last()

    def files(self, after: int = 0) -> list[SequenceFile]:
        """Return the files of all published sequences after a number, in order, as URLs."""
        return self._log.files(after)

    def adopt(self) -> str:
        """Write this sink's name into the owner marker, and return the earlier one."""
        claim = self._own_claim("")
        if claim is None:
            return ""
        if claim.place != self.place:
            self._store.put(_CLAIM, owner_marker.encoded(msgspec.structs.replace(claim, place=self.place)))
        self._kept = None
        return claim.place

    def _written_name(self) -> str:
        return self._written_in("")

    # -- cleanup

    def sweep(self, keep: Keep) -> None:
        """Remove staged rows that will never be published."""
        try:
            self._owned()
        except FileNotFoundError:
            return
        last = self._log.read(self._log.last())  # before the listing: see the order of writes above
        shown = set() if last is None else last.keys()
        kept = {key.text() for key in keep.keys}
        names = [name for name in self._store.names(_STAGED) if name.rpartition(".")[0] not in kept]
        void = unfinished(names, self._id, keep.floor)
        self._remove_staged(name for name in void if name.rpartition(".")[0] not in shown)
        self._store.remove(f"{_STAGED}/{name}" for name in void if name.rpartition(".")[0] in shown)

    def _remove_staged(self, names: Iterable[str]) -> None:
        """Remove staged rows, and then what says that they are staged."""
        gone = list(names)
        self._store.remove(data_path(name.rpartition(".")[0]) for name in gone if name.endswith(_ROWS))
        self._store.remove(f"{_STAGED}/{name}" for name in gone)


def _staged(name: str, ending: str) -> str:
    return f"{_STAGED}/{name}{ending}"
