"""Rows that a sink can't take are refused by `submit`, with row, column and offset, before they are staged."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from kohort.errors import InvalidInputError
from kohort.region import (
    DeltaTable,
    DuckLakeTable,
    IcebergTable,
    ParquetFolder,
    Region,
    RowRefusedError,
    Sink,
    SqlTable,
)
from kohort.region.sinks import check_rows
from kohort.region.sinks.rows import cast_to_sink_schema
from kohort.region.staged import StagedKey
from tests.region.conftest import fill, make_topic

ID = UUID(int=3)
FIXED = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("small", pa.int32())])


def made_sinks(tmp_path: Path) -> dict[str, Sink]:
    return {
        "parquet": ParquetFolder(tmp_path / "out"),
        "sql": SqlTable(f"sqlite:///{tmp_path}/out.db", "flights"),
        "delta": DeltaTable(tmp_path / "out"),
        "ducklake": DuckLakeTable("air.flights", lake=tmp_path / "lake"),
        "iceberg": IcebergTable("air.flights", warehouse=tmp_path / "lake"),
    }


@pytest.fixture(params=["parquet", "sql", "delta", "ducklake", "iceberg"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Sink:
    return made_sinks(tmp_path)[request.param]


def rows(*ids: int | None) -> pa.Table:
    return pa.Table.from_arrays([pa.array(ids, pa.int64()), pa.array([1] * len(ids), pa.int32())], schema=FIXED)


def test_a_null_is_refused_with_its_row(sink: Sink) -> None:
    bound = sink.bind("r", ID)
    bound.check(FIXED)
    check_rows(bound, rows(1, 2))
    with pytest.raises(RowRefusedError, match="id: row 3 of 3") as told:
        check_rows(bound, rows(1, 2, None))
    assert (told.value.row, told.value.column, told.value.offset) == (2, "id", None)
    again = pickle.loads(pickle.dumps(told.value))
    assert (again.row, again.column, str(again)) == (2, "id", str(told.value))


def test_a_null_key_is_refused_with_its_offset(tmp_path: Path) -> None:
    bound = SqlTable(f"sqlite:///{tmp_path}/out.db", "flights", mode="update", keys=["id"]).bind("r", ID)
    source = {"topic": ["t", "t"], "partition": [3, 3], "offset": [17, 18]}
    bad = pa.table({"id": pa.array([1, None], pa.int64()), **source})
    bound.check(bad.schema)
    with pytest.raises(RowRefusedError, match=r"id: row 2 of 2 \(topic t, partition 3, offset 18\)") as told:
        check_rows(bound, bad)
    assert told.value.offset == 18


def test_an_empty_partition_text_is_refused_with_its_row(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("day", pa.string(), nullable=False), pa.field("id", pa.int64())])
    bound = DeltaTable(tmp_path / "out", partition_by=["day"]).bind("r", ID)
    bound.check(schema)
    with pytest.raises(RowRefusedError, match="An empty text in 'day'.*: row 2 of 2"):
        check_rows(bound, pa.table({"day": ["monday", ""], "id": [1, 2]}, schema=schema))


def test_a_text_that_is_not_utf8_is_refused_by_row(sink: Sink) -> None:
    """Spark's strings may be any bytes, and one of them would keep readers from all rows of a file."""
    texts = [b"good", b"\xff\xfe", None, b"\xc3\xa4", b"a\x80"]
    bad = pa.Array.from_buffers(pa.string(), 5, pa.array(texts, pa.binary()).buffers())
    rows = pa.table({"id": [1, 2, 3, 4, 5], "name": bad, "parts": pa.array([["x"]] * 5, pa.list_(pa.string()))})
    if isinstance(sink, SqlTable):
        rows = rows.drop_columns(["parts"])
    bound = sink.bind("r", ID)
    bound.check(rows.schema)
    with pytest.raises(RowRefusedError, match=r"'name' can't be written.*not UTF-8: row 2 of 5") as told:
        check_rows(bound, rows)
    assert sorted(told.value.reasons) == [1, 4]
    key = StagedKey(ID, 1, "m", 1)
    with pytest.raises(RowRefusedError):
        bound.stage(key, rows)
    bound.stage(key, rows.take(pa.array([0, 2, 3])))
    bound.publish(1, [key])
    assert bound.published() == 1


@pytest.mark.parametrize("kind", ["list", "struct", "map"])
def test_a_text_within_a_value_that_is_not_utf8_costs_its_row_alone(tmp_path: Path, kind: str) -> None:
    texts = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff", b"c"], pa.binary()).buffers())
    ends = pa.array([0, 1, 2, 3], pa.int32())
    column: Any = {
        "list": lambda: pa.ListArray.from_arrays(ends, texts),
        "struct": lambda: pa.StructArray.from_arrays([texts], names=["text"]),
        "map": lambda: pa.MapArray.from_arrays(ends, pa.array(["k"] * 3), texts),
    }[kind]()
    rows = pa.table({"id": [1, 2, 3], "x": column})
    bound = ParquetFolder(tmp_path / "out").bind("r", ID)
    bound.check(rows.schema)
    with pytest.raises(RowRefusedError, match=r"'x' can't be written.*: row 2 of 3") as told:
        check_rows(bound, rows)
    assert sorted(told.value.reasons) == [1]
    check_rows(bound, rows.slice(0, 1))
    check_rows(bound, rows.slice(2))


@pytest.mark.parametrize("name", ["parquet", "delta", "ducklake", "iceberg"])
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (pa.decimal128(5, -2), "negative scale"),
        (pa.struct([]), "without fields"),
        (pa.list_(pa.struct([])), "without fields"),
        (pa.map_(pa.string(), pa.decimal128(5, -2)), "negative scale"),
        (pa.struct([("a", pa.int64()), ("A", pa.int64())]), "fields of one name"),
    ],
    ids=["decimal", "struct", "in a list", "in a map", "names"],
)
def test_a_type_that_no_file_keeps_is_refused_before_the_first_record(
    tmp_path: Path, name: str, kind: pa.DataType, why: str
) -> None:
    """A table of rows such as `{"x": {}}` has a struct without fields; a decimal's negative scale is `1E+2`."""
    made = made_sinks(tmp_path)[name].bind("r", ID)
    with pytest.raises(InvalidInputError, match=rf"column 'x' of type .*{why}.*cast"):
        made.check(pa.schema([("id", pa.int64()), ("x", kind)]))


def test_a_zero_in_a_column_s_name_is_refused_before_the_first_record(sink: Sink) -> None:
    """Libraries of C end the name there."""
    bound = sink.bind("r", ID)
    with pytest.raises(InvalidInputError, match=r"'a\\x00b'.*zero character"):
        bound.check(pa.schema([("id", pa.int64()), ("a\0b", pa.int64())]))


@pytest.mark.parametrize("name", ["parquet", "delta", "ducklake", "iceberg"])
def test_a_zero_in_a_field_s_name_is_refused_before_the_first_record(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError, match="column 'x' of type .*zero character"):
        made_sinks(tmp_path)[name].bind("r", ID).check(pa.schema([("x", pa.list_(pa.struct([("a\0b", pa.int64())])))]))


def test_a_number_within_a_list_that_its_column_can_not_keep_costs_its_row_alone() -> None:
    given = pa.table({"x": pa.array([[1], [2], [2**40], [4]], pa.list_(pa.int64()))})
    with pytest.raises(RowRefusedError, match="row 3 of 4") as told:
        cast_to_sink_schema(given, pa.schema([("x", pa.list_(pa.int32()))]), ())
    assert sorted(told.value.reasons) == [2]


FAR_DAY, FAR_TIME = 2_932_897, 2**60


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.date32(), 2_932_896, FAR_DAY),
        (pa.timestamp("us", "UTC"), -62_135_596_800_000_000, -FAR_TIME),
        (pa.struct([("at", pa.timestamp("us"))]), {"at": 0}, {"at": FAR_TIME}),
        (pa.list_(pa.struct([("day", pa.date32())])), [{"day": 0}, None], [{"day": 0}, {"day": FAR_DAY}]),
        (pa.map_(pa.string(), pa.date32()), [("a", None)], [("a", 0), ("b", FAR_DAY)]),
    ],
    ids=["date", "time", "in a struct", "in a list", "in a map"],
)
def test_a_time_of_a_far_year_is_refused_by_row_where_its_library_has_none(
    tmp_path: Path, kind: pa.DataType, good: Any, bad: Any
) -> None:
    """Databases write such years for "never", and pyiceberg makes Python's dates of a file's least and greatest."""
    rows = pa.table({"x": pa.array([good, bad, None, good, bad], kind), "id": [1, 2, 3, 4, 5]})
    bound = IcebergTable("air.flights", warehouse=tmp_path / "lake").bind("r", ID)
    bound.check(rows.schema)
    with pytest.raises(RowRefusedError, match=r"'x' can't be written.*the years 1 to 9999: row 2 of 5") as told:
        check_rows(bound, rows.slice(0))
    assert sorted(told.value.reasons) == [1, 4]
    rest = rows.take(pa.array([0, 2, 3]))
    key = StagedKey(ID, 1, "m", 1)
    bound.stage(key, rest)
    bound.publish(1, [key])
    assert bound.published() == 1


@pytest.mark.parametrize("kind", ["list", "map"])
def test_what_is_stored_beneath_a_null_is_no_time_of_a_row(tmp_path: Path, kind: str) -> None:
    far, day = pa.array([2**30, 0], pa.int32()).cast(pa.date32()), pa.date32()
    made: Any = {
        "list": lambda: pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), far, type=pa.list_(day)),
        "map": lambda: pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["a", "b"]), far),
    }[kind]()
    masked = pa.StructArray.from_arrays([made], names=["days"], mask=pa.array([True, False]))
    given = pa.table({"id": pa.array([1, 2], pa.int64()), "x": masked})
    bound = IcebergTable("air.flights", warehouse=tmp_path / "lake").bind("r", ID)
    bound.check(given.schema)
    check_rows(bound, given)
    bound.stage(StagedKey(ID, 1, "m", 0), given)
    shown = pa.table({"id": given["id"], "x": pa.StructArray.from_arrays([made], names=["days"])})
    with pytest.raises(RowRefusedError, match=r"the years 1 to 9999: row 1 of 2"):
        check_rows(bound, shown)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_day_of_a_far_year_is_refused_as_a_partition_alone(tmp_path: Path, kind: str) -> None:
    rows = pa.table({"day": pa.array([0, FAR_DAY, None], pa.date32()), "id": [1, 2, 3]})
    for by in (["day"], []):
        path = tmp_path / f"by{len(by)}"
        sink = ParquetFolder(path, partition_by=by) if kind == "parquet" else DeltaTable(path, partition_by=by)
        bound = sink.bind("r", ID)
        bound.check(rows.schema)
        if by:
            with pytest.raises(RowRefusedError, match=r"the years 1 to 9999: row 2 of 3"):
                check_rows(bound, rows)
        else:
            key = StagedKey(ID, 1, "m", 1)
            bound.stage(key, rows)
            bound.publish(1, [key])


def test_a_value_that_a_column_can_not_keep_is_found(tmp_path: Path) -> None:
    """Of a thousand rows the first one, with its value."""
    bound = DeltaTable(tmp_path / "out").bind("r", ID)
    bound.check(pa.schema([pa.field("at", pa.timestamp("ms"))]))  # which Delta keeps in microseconds
    moments = [1_000] * 1_000
    moments[700] = 2**60
    with pytest.raises(RowRefusedError, match="'at' can't keep .*: row 701 of 1000") as told:
        check_rows(bound, pa.table({"at": pa.array(moments, pa.timestamp("ms"))}))
    assert told.value.row == 700


@pytest.fixture
def region(own_servers: str, name: str) -> Iterator[Region]:
    make_topic(own_servers, name, 1)
    fill(own_servers, name, range(40), 1)
    with Region(name, own_servers, checkpoint_every="200ms") as made:
        yield made


def test_submit_refuses_a_row_at_once_and_takes_in_what_is_mended(region: Region, name: str, tmp_path: Path) -> None:
    """A row without its record's place is told with the records of the table in hand."""
    sink = SqlTable(f"sqlite:///{tmp_path}/out.db", "flights", mode="update", keys=["id"])
    with region.consumer("m1", group_id=name, topics=[name], start="beginning", into=sink) as consumer:
        tables = consumer.tables()
        table = next(tables)
        values = [int(value) for value in table.column("value").to_pylist()]
        bad = pa.table({"id": pa.array([None, *values[1:]], pa.int64())})
        with pytest.raises(RowRefusedError, match=f"id: row 1 of .*; the table in hand has offsets of {name}-0 0 to"):
            consumer.submit(bad)
        consumer.submit(bad.slice(1))
