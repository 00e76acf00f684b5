"""Rows that replace others: one set of rules for all tables with `mode="update"` that others may write too."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyiceberg.types import LongType

from kohort.region.sinks import Sink
from kohort.region.sinks.delta_table import DeltaTable
from kohort.region.sinks.iceberg_table import IcebergTable
from kohort.region.staged import StagedKey

REGION = UUID(int=1)
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("name", pa.string())])
Row = tuple[Any, ...]


def rows(*given: tuple[int | None, str, str]) -> pa.Table:
    columns = [pa.array([row[at] for row in given], field.type) for at, field in enumerate(SCHEMA)]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def key(unit: int) -> StagedKey:
    return StagedKey(REGION, 1, "a", unit)


class TargetTable(Protocol):
    """A table that a region and others write."""

    def sink(self, **options: Any) -> Sink:
        """Return the region's sink with `mode="update"`, checked."""

    def append(self, given: pa.Table) -> None:
        """Write rows as another program does."""

    def add_column(self, name: str) -> None:
        """Add a column of whole numbers as another program does."""

    def read(self) -> list[Row]:
        """Return the rows that a reader sees, sorted by their text."""


class DeltaTarget:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "table"

    def sink(self, **options: Any) -> Sink:
        made = DeltaTable(self._path, mode="update", **options).bind("flights", REGION)
        made.check(SCHEMA)
        return made

    def append(self, given: pa.Table) -> None:
        deltalake.write_deltalake(self._path, given, mode="append")

    def add_column(self, name: str) -> None:
        deltalake.DeltaTable(self._path).alter.add_columns([deltalake.Field(name, "long")])

    def read(self) -> list[Row]:
        found = deltalake.DeltaTable(self._path).to_pyarrow_table().to_pylist()
        return sorted((tuple(row.values()) for row in found), key=str)


class IcebergTarget:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "lake"

    def sink(self, **options: Any) -> Sink:
        made = IcebergTable("air.flights", warehouse=self._path, mode="update", **options).bind("flights", REGION)
        made.check(SCHEMA)
        return made

    def _table(self) -> Table:
        uri, warehouse = f"sqlite:///{self._path}/catalog.db", f"file://{self._path}"
        return load_catalog("default", type="sql", uri=uri, warehouse=warehouse).load_table("air.flights")

    def append(self, given: pa.Table) -> None:
        self._table().append(given)

    def add_column(self, name: str) -> None:
        with self._table().update_schema() as update:
            update.add_column(name, LongType())

    def read(self) -> list[Row]:
        return sorted((tuple(row.values()) for row in self._table().scan().to_arrow().to_pylist()), key=str)


@pytest.fixture(params=[DeltaTarget, IcebergTarget], ids=["delta", "iceberg"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> TargetTable:
    make: Callable[[Path], TargetTable] = request.param
    return make(tmp_path)


def publish(sink: Sink, sequence: int, given: pa.Table) -> None:
    sink.stage(key(sequence), given)
    sink.publish(sequence, [key(sequence)])


def test_a_key_that_others_have_written_twice_is_replaced_twice(written: TargetTable) -> None:
    sink = written.sink(keys=["id"])
    written.append(rows((1, "mon", "first"), (2, "mon", "other")))
    written.append(rows((1, "tue", "second")))
    publish(sink, 1, rows((1, "wed", "new"), (3, "wed", "new")))
    assert written.read() == [(1, "wed", "new"), (1, "wed", "new"), (2, "mon", "other"), (3, "wed", "new")]


def test_a_row_without_a_key_is_never_replaced(written: TargetTable) -> None:
    sink = written.sink(keys=["id"])
    written.append(rows((None, "mon", "first"), (1, "mon", "first")))
    publish(sink, 1, rows((1, "wed", "new"), (0, "wed", "new")))
    assert written.read() == [(0, "wed", "new"), (1, "wed", "new"), (None, "mon", "first")]


def test_of_keys_of_two_columns_both_count(written: TargetTable) -> None:
    sink = written.sink(keys=["day", "id"])
    publish(sink, 1, rows((1, "mon", "a"), (1, "tue", "b"), (2, "mon", "c"), (2, "tue", "d")))
    written.append(rows((None, "mon", "e")))
    publish(sink, 2, rows((2, "mon", "new"), (1, "tue", "new"), (3, "mon", "new")))
    assert written.read() == [
        (1, "mon", "a"), (1, "tue", "new"), (2, "mon", "new"), (2, "tue", "d"), (3, "mon", "new"), (None, "mon", "e"),
    ]  # fmt: skip


def test_columns_of_others_keep_their_values(written: TargetTable) -> None:
    sink = written.sink(keys=["id"])
    publish(sink, 1, rows((1, "mon", "a"), (2, "mon", "b")))
    written.add_column("more")
    more = rows((7, "sun", "x")).append_column("more", pa.array([70], pa.int64()))
    written.append(more)
    publish(sink, 2, rows((7, "tue", "new"), (1, "tue", "new"), (8, "tue", "new")))
    assert written.read() == [
        (1, "tue", "new", None), (2, "mon", "b", None), (7, "tue", "new", 70), (8, "tue", "new", None),
    ]  # fmt: skip


def test_a_row_moves_to_the_partition_of_its_new_values(written: TargetTable) -> None:
    sink = written.sink(keys=["id"], partition_by=["day"])
    publish(sink, 1, rows((1, "mon", "a"), (2, "mon", "b"), (3, "tue", "c")))
    publish(sink, 2, rows((1, "tue", "new"), (3, "tue", "new")))
    assert written.read() == [(1, "tue", "new"), (2, "mon", "b"), (3, "tue", "new")]


def test_of_rows_of_one_key_in_one_piece_the_last_counts_in_whatever_partition(written: TargetTable) -> None:
    """The pieces' files are those of partitions, in which the order of the rows is lost."""
    sink = written.sink(keys=["id"], partition_by=["day"])
    publish(sink, 1, rows((2, "mon", "b"), (1, "tue", "old"), (1, "mon", "new")))
    assert written.read() == [(1, "mon", "new"), (2, "mon", "b")]


ITEM = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])
NESTED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "list": (pa.list_(ITEM), [None, [], [None, {"a": 1, "b": None}], [{"a": None, "b": []}]]),
    "map": (pa.map_(pa.string(), ITEM), [None, [], [("x", None)], [("x", {"a": 1, "b": [None]})]]),
    "lists": (pa.list_(pa.list_(ITEM)), [None, [], [None, []], [[{"a": 1, "b": None}], None]]),
    "struct": (pa.struct([("x", pa.list_(ITEM))]), [None, {"x": None}, {"x": []}, {"x": [None]}]),
    "numbers": (pa.list_(pa.int64()), [None, [], [None], [1, None]]),
    "bytes": (pa.binary(), [None, b"", b"\x00", b"\xff\x00"]),
    "decimal": (pa.decimal128(38, 10), [None, Decimal("-0.0000000001"), Decimal(0), Decimal("9" * 28)]),
    "day": (pa.date32(), [None, date.min, date(1969, 12, 31), date.max]),
}


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("name", ["delta", "iceberg"])
def test_values_beside_a_replaced_row_are_as_they_were(tmp_path: Path, name: str, kind: str) -> None:
    """Files are written anew, and pyiceberg reads a null list of structs as an empty one (iceberg-python #3833)."""
    of_type, values = NESTED[kind]
    options: dict[str, Any] = {"mode": "update", "keys": ["id"]}
    sink: Sink
    if name == "delta":
        sink = DeltaTable(tmp_path / "table", **options).bind("flights", REGION)
    else:
        sink = IcebergTable("air.t", warehouse=tmp_path, **options).bind("flights", REGION)
    given = pa.table({"id": range(5), "x": pa.array([*values, None], of_type)})
    sink.check(given.schema)
    publish(sink, 1, given)
    publish(sink, 2, given.slice(4))
    found = [row for path in files_of(tmp_path, name) for row in pq.ParquetFile(path).read().to_pylist()]
    assert sorted(found, key=lambda row: row["id"]) == given.to_pylist()


def test_nulls_of_a_part_of_a_file_are_kept(tmp_path: Path) -> None:
    """The batches of a large file are slices, in which a list's offsets do not begin at zero."""
    sink = IcebergTable("air.t", warehouse=tmp_path, mode="update", keys=["id"]).bind("flights", REGION)
    values = pa.array([None, [{"a": 1, "b": None}], []] * 60_000, pa.list_(ITEM))
    given = pa.table({"id": range(len(values)), "x": values})
    sink.check(given.schema)
    publish(sink, 1, given)
    publish(sink, 2, given.slice(4, 1))
    found = pa.concat_tables([pq.ParquetFile(path).read() for path in files_of(tmp_path, "iceberg")])
    assert found.num_rows == given.num_rows
    assert found.column("x").null_count == values.null_count


def files_of(folder: Path, name: str) -> list[str]:
    """The data files of a table, which are read here without the table's library."""
    if name == "delta":
        return deltalake.DeltaTable(folder / "table").file_uris()
    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{folder}/catalog.db")
    tasks = catalog.load_table("air.t").scan().plan_files()
    return [task.file.file_path.removeprefix("file://") for task in tasks]
