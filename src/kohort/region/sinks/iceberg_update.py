"""Rows that replace those of the same keys in an Iceberg table.

pyiceberg writes no delete files. A data file that has a row to be replaced is therefore written anew without that row.
The new row goes into a file with the sequence's other rows. One snapshot takes the old files out and adds the new.

A row of the table whose key is null is never replaced. If others have written a key several times, each of its rows
is replaced. Columns that the region does not have keep their values in a replaced row. A merge of Delta does the same.

    table/_kohort/TABLE-ID/REGION-ID/merges/17-ID.json   the files that one attempt to commit sequence 17 may write

An attempt names its files before it writes them. If its commit is refused, or its answer is lost, nobody knows yet
whether the files are the table's. As soon as the table has the sequence, an attempt that was based on an earlier
snapshot can't succeed any more: `MergeAttempt.remove_unused_files` then removes those of its files that no
snapshot has.

Memory: a publisher holds the rows of the sequence, and the rows of one data file of the table.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.io import pyarrow as pyiceberg_arrow
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.types import ListType, MapType

from kohort.errors import InvalidInputError, RetriableError
from kohort.region.sinks.iceberg_files import PlannedFile, StagedFile, TableSideStore, rows_by_partition
from kohort.region.sinks.owner_marker import UNFINISHED
from kohort.region.sinks.rows import with_plain_types
from kohort.region.sinks.staged_files import read_json

_PATHS_AT_ONCE: Final = 32
"""Number of files that an attempt names at once: each time costs an object."""
_FROM: Final[Any] = GreaterThanOrEqual  # whose types name bound terms alone
_UP_TO: Final[Any] = LessThanOrEqual
_ATTEMPT: Final = re.compile(rf"([0-9]+)-[0-9a-f]{{32}}\.(?:json|[0-9a-f]+{re.escape(UNFINISHED)})")


class RowKeyIndex:
    """An index from the values of key columns to the number of the row with them. Keys are unique and not null."""

    def __init__(self, rows: pa.Table, keys: Sequence[str]) -> None:
        self._steps: list[tuple[str, Any, Any]] = []
        codes: Any = None
        for name in keys:
            values: Any = pc.unique(rows.column(name))
            own, pairs = _places_of(rows.column(name), values), None
            if codes is not None:
                own = pc.add(pc.multiply(codes, len(values)), own)
                pairs = pc.unique(own)
                own = _places_of(own, pairs)
            codes = own
            self._steps.append((name, values, pairs))

    def row_numbers_of(self, table: pa.Table) -> Any:
        """Return for each row of a table the number of the indexed row with the same keys; null: there is none."""
        codes: Any = None
        for name, values, pairs in self._steps:
            codes_here = _places_of(table.column(name).cast(values.type), values)
            if pairs is not None:
                codes_here = _places_of(pc.add(pc.multiply(codes, len(values)), codes_here), pairs)
            codes = codes_here
        return codes


def _places_of(column: Any, values: Any) -> Any:
    """Return for each value of a column its index in `values`, which are unique; null: the value is not there."""
    return pc.index_in(column, value_set=values).cast(pa.int64())


class ReplacedFile(NamedTuple):
    """A data file of the table with rows that an update replaces, so that it must be written again.

    Attributes:
        file: the data file.
        rest: its rows that stay.
        replacing: the new rows for those that are replaced.
        found: the indices of these new rows among the update's rows.
    """

    file: DataFile
    rest: pa.Table
    replacing: pa.Table
    found: Any


def find_replaced_files(table: Table, rows: pa.Table, keys: Sequence[str], place: str) -> Iterator[ReplacedFile]:
    """Yield the table's data files that have rows with keys of this update.

    Args:
        table: the table's metadata.
        rows: the update's rows, with unique keys.
        keys: the key columns.
        place: the sink, for messages.

    Raises:
        InvalidInputError: the table has delete files that pyiceberg can't apply.
        FileNotFoundError: a data file is gone: others have rewritten the table meanwhile.
    """
    index = RowKeyIndex(rows, keys)
    for task in _candidate_tasks(table, rows, keys, place):
        found = index.row_numbers_of(_read_columns(table, task, keys))
        if found.null_count == len(found):
            continue
        whole = _read_columns(table, task, [field.name for field in table.schema().fields])
        if whole.num_rows != len(found):
            raise RetriableError(f"{place} has a file that is read as {len(found)} rows, and as {whole.num_rows}")
        gone = whole.filter(pc.is_valid(found))
        numbers = found.drop_null()
        replacing = rows.take(numbers)
        for name in gone.column_names:
            if name not in rows.column_names:
                replacing = replacing.append_column(gone.schema.field(name), gone.column(name))
        yield ReplacedFile(task.file, whole.filter(pc.is_null(found)), replacing, numbers)


class _NullKeepingProjection(pyiceberg_arrow.ArrowProjectionVisitor):
    """pyiceberg's projection of a file to the table's schema, corrected to keep null lists and maps of structs.

    pyiceberg returns them empty, and a file that is written again would keep that for good (iceberg-python #3833).
    """

    def list(self, list_type: ListType, list_array: Any, value_array: Any) -> Any:
        """Project a list column to the table's schema; None: the schema lacks it."""
        return _with_nulls_of(list_array, super().list(list_type, list_array, value_array))

    def map(self, map_type: MapType, map_array: Any, key_result: Any, value_result: Any) -> Any:
        """Project a map column to the table's schema; None: the schema lacks it."""
        return _with_nulls_of(map_array, super().map(map_type, map_array, key_result, value_result))


def _with_nulls_of(given: Any, projected: Any) -> Any:
    """Return the projected lists or maps with null where the file (`given`) has null."""
    if projected is None or projected.null_count == given.null_count:
        return projected
    kind: Any = type(projected)
    offsets = pa.array(projected.offsets.to_numpy())  # Arrow takes no mask beside a slice
    parts = (projected.keys, projected.items) if isinstance(projected, pa.MapArray) else (projected.values,)
    return kind.from_arrays(offsets, *parts, type=projected.type, mask=given.is_null())


def _read_columns(table: Table, task: FileScanTask, names: Sequence[str]) -> pa.Table:
    if pyiceberg_arrow.ArrowProjectionVisitor is not _NullKeepingProjection:  # `ArrowScan` takes no other
        pyiceberg_arrow.ArrowProjectionVisitor = _NullKeepingProjection  # type: ignore[misc]
    scan = pyiceberg_arrow.ArrowScan(table.metadata, table.io, table.schema().select(*names), AlwaysTrue())
    read = scan.to_table([task]).select(list(names))
    kinds = with_plain_types(read.schema)
    return read if read.schema.equals(kinds) else read.cast(kinds)


def _candidate_tasks(table: Table, rows: pa.Table, keys: Sequence[str], place: str) -> list[FileScanTask]:
    """Return the data files, with their delete files, that may have rows of these keys by statistics and partition."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return []
    planner, manifests = (
        ManifestGroupPlanner(table.metadata, table.io, _range_of(rows, keys)),
        snapshot.manifests(table.io),
    )
    _refuse_equality_deletes(table, manifests, place)
    try:
        tasks = list(planner.plan_files(manifests))
    except ValueError as error:
        raise _unreadable_deletes(place, str(error)) from error
    fields = table.spec().fields
    if not fields or not {table.schema().find_column_name(field.source_id) for field in fields}.issubset(keys):
        return tasks
    wanted = {
        values for values, _ in rows_by_partition(table, rows)
    }  # a row of these keys is in a partition of its own
    current = table.metadata.default_spec_id
    return [
        task
        for task in tasks
        if task.file.spec_id != current or tuple(task.file.partition[at] for at in range(len(fields))) in wanted
    ]


def _refuse_equality_deletes(table: Table, manifests: Sequence[ManifestFile], place: str) -> None:
    """Refuse a table with equality deletes, which pyiceberg can't apply.

    pyiceberg's planner finds only those whose statistics overlap the update's keys. Another one may delete a row beside
    a replaced row: written again, that row would be younger than its deletion, and back in the table.
    """
    for manifest in manifests:
        if manifest.content == ManifestContent.DELETES:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
                    raise _unreadable_deletes(place, "It has equality deletes")


def _unreadable_deletes(place: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"{place} can't be updated: {why}. Compact the table with the program that has written its delete files"
    )


def _range_of(rows: pa.Table, keys: Sequence[str]) -> BooleanExpression:
    """Return a row filter on the ranges of the keys' values; by it pyiceberg skips files through their statistics."""
    condition: BooleanExpression = AlwaysTrue()
    for name in keys:
        column = rows.column(name)
        if pa.types.is_integer(column.type) or pa.types.is_string(column.type):
            ends: Any = pc.min_max(column)
            low, high = ends["min"].as_py(), ends["max"].as_py()
            condition = And(condition, And(_FROM(name, low), _UP_TO(name, high)))
    return condition


# -- the files of an attempt


class _AttemptFiles(msgspec.Struct, frozen=True):
    """The content of the object that lists the data files which one commit attempt may write."""

    paths: tuple[str, ...]


class MergeAttempt:
    """The data files of one attempt to commit an update. An object beside the table lists them before they are written.

    If the commit's outcome is unknown, the list lets a later process remove files that no snapshot has.
    """

    def __init__(self, table: Table, store: TableSideStore, folder: str, sequence: int, stem: str) -> None:
        self._locations, self._store, self._folder = table.location_provider(), store, folder
        self._name, self._stem = f"{sequence}-{uuid.uuid4().hex}.json", stem
        self.paths: list[str] = []
        self._used = 0

    def write_rows(self, table: Table, rows: pa.Table, write: Callable[[PlannedFile], StagedFile]) -> list[StagedFile]:
        """Write rows to new data files of the table, one for each partition; list the files before."""
        written = []
        for values, part in rows_by_partition(table, rows) if rows.num_rows else ():
            written.append(write(PlannedFile(self._next_path(), values, part)))
        return written

    def _next_path(self) -> str:
        if self._used == len(self.paths):
            first = len(self.paths)
            self.paths += [
                self._locations.new_data_location(f"{self._stem}-{number}.parquet")
                for number in range(first, first + _PATHS_AT_ONCE)
            ]
            self._store.replace_file(self._folder, self._name, msgspec.json.encode(_AttemptFiles(tuple(self.paths))))
        self._used += 1
        return self.paths[self._used - 1]

    def remove_written_files(self) -> None:
        """Remove all files of this attempt, which has failed before its commit, and their list."""
        _remove_files(self._store, self.paths[: self._used])
        self.remove_file_list()

    def remove_unused_files(self, in_table: Callable[[], set[str]]) -> None:
        """Remove the attempt's files that no snapshot has, and their list.

        Call this only when the table has the sequence: the attempt's commit can't succeed any more, or has succeeded.
        """
        if self._used:
            there = in_table()
            _remove_files(self._store, [path for path in self.paths[: self._used] if path not in there])
            self.remove_file_list()

    def remove_file_list(self) -> None:
        """Remove the object that lists this attempt's files."""
        if self.paths:
            self._store.remove_object(f"{self._folder}/{self._name}")


def remove_failed_attempts(store: TableSideStore, folder: str, last: int, in_table: Callable[[], set[str]]) -> None:
    """Remove data files that no snapshot has, left by commit attempts of publishers that crashed.

    Args:
        store: the small objects beside the table.
        folder: the folder of the attempts' file lists.
        last: the last sequence in the table. Attempts at later ones are left alone: they may still succeed.
        in_table: returns the data files of all snapshots, which may take long.

    Raises:
        CorruptDataError: the file list of an attempt can't be read.
    """
    there: set[str] | None = None
    for name in store.list_files(folder):
        found = _ATTEMPT.fullmatch(name)
        if found is None or int(found[1]) > last:
            continue
        if name.endswith(UNFINISHED):  # no file was written in its name
            store.remove_object(f"{folder}/{name}")
            continue
        attempt = read_json(store.read, f"{folder}/{name}", _AttemptFiles)
        if attempt is None:
            continue
        there = in_table() if there is None else there
        _remove_files(store, [path for path in attempt.paths if path not in there])
        store.remove_object(f"{folder}/{name}")


def _remove_files(store: TableSideStore, paths: Sequence[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            store.remove_object(path)
