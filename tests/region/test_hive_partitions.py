"""Folders with Hive's partitions: values as readers that nobody here wrote get them back, and rows that are refused."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from kohort.errors import InvalidInputError
from kohort.region import ParquetFolder, RowRefusedError, Sink
from kohort.region.sinks import Keep, hive_partitions
from kohort.region.sinks.dead_letters import split_refused_rows
from kohort.region.sinks.hive_partitions import NULL
from kohort.region.staged import StagedKey
from tests.region.places import Calls, LocalObjects

REGION = UUID(int=1)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.date32()), ("good", pa.bool_())])
TEXTS = [
    "plain", "a/b", "a=b", "a:b", "50%", "größe x", "日本", "..", ".", "a+b", "{x}", "[0-9]", "*", "?", "'", '"', "\\",
    "tab\tnew\nline", "^", "~", "%2F", "#", "&;,!<>|", " ", "x" * 60, "\x7f", "\x01",
]  # fmt: skip
DAY = datetime.date(2026, 11, 26)


def key(unit: int, epoch: int = 1) -> StagedKey:
    return StagedKey(REGION, epoch, "größe/1", unit)


def table(*names: str | None, start: int = 0) -> pa.Table:
    many = len(names)
    return pa.table(
        {
            "id": range(start, start + many),
            "name": list(names),
            "day": [DAY if number % 2 else None for number in range(many)],
            "good": [number % 3 == 0 for number in range(many)],
        },
        schema=SCHEMA,
    )


@pytest.fixture(params=["folder", "store"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> ParquetFolder:
    if request.param == "folder":
        made = ParquetFolder(tmp_path / "out", partition_by=["name"])
    else:
        made = ParquetFolder("s3://bucket/out", partition_by=["name"])
        stored: Any = made
        stored._store = stored._log._store = LocalObjects(str(tmp_path / "out"), Calls())
    bound = made.bind("flights", REGION)
    bound.check(SCHEMA)
    return bound


def local(sink: ParquetFolder, tmp_path: Path) -> list[str]:
    """Return the published files, as paths of this machine."""
    return [file.path.replace("s3://bucket/out", f"{tmp_path}/out") for file in sink.published_files()]


def published(sink: ParquetFolder) -> dict[int, str | None]:
    """Publish all texts, and return by id what readers must find."""
    names = [*TEXTS, None, "", "plain"]
    sink.stage(key(1), table(*names))
    sink.stage(key(2), table("plain", start=100))
    sink.publish(1, [key(1), key(2)])
    return {number: name or None for number, name in enumerate(names)} | {100: "plain"}


def test_pyarrow_duckdb_and_polars_see_each_value(sink: ParquetFolder, tmp_path: Path) -> None:
    wanted = published(sink)
    files = local(sink, tmp_path)
    assert len(files) == len(TEXTS) + 2, "one for each value and member"
    rows = ds.dataset(files, format="parquet", partitioning="hive").to_table()
    assert dict(zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True)) == wanted
    duckdb = pytest.importorskip("duckdb", reason="DuckDB reads the files")
    with duckdb.connect() as connection:
        read = f"SELECT id, name FROM read_parquet({files!r}, hive_partitioning = true)"
        assert dict(connection.execute(read).fetchall()) == wanted
    polars: Any = pytest.importorskip("polars", reason="Polars reads the files")
    frame = polars.scan_parquet(files, hive_partitioning=True, glob=False).collect()
    assert dict(zip(frame["id"], frame["name"], strict=True)) == wanted


def test_reader_of_a_local_folder_sees_sequence_and_partitions(tmp_path: Path) -> None:
    sink = ParquetFolder(tmp_path / "out", partition_by=["day", "good"]).bind("flights", REGION)
    sink.check(SCHEMA)
    sink.stage(key(1), table("a", "b", "c"))
    sink.publish(1, [key(1)])
    names = sorted(str(path.parent.relative_to(sink.path)) for path in Path(sink.path).glob("sequence=*/**/*.parquet"))
    assert names == [
        "sequence=1/day=2026-11-26/good=false", f"sequence=1/day={NULL}/good=false", f"sequence=1/day={NULL}/good=true",
    ]  # fmt: skip
    typed = ds.partitioning(
        pa.schema([("sequence", pa.int64()), ("day", pa.date32()), ("good", pa.bool_())]), flavor="hive"
    )
    rows = ds.dataset(sink.path, format="parquet", partitioning=typed).to_table().sort_by("id")
    assert rows.select(["id", "day", "good", "sequence"]).to_pylist() == [
        {"id": 0, "day": None, "good": True, "sequence": 1},
        {"id": 1, "day": DAY, "good": False, "sequence": 1},
        {"id": 2, "day": None, "good": False, "sequence": 1},
    ]


def test_staged_again_the_last_counts_and_nothing_is_left(sink: ParquetFolder, tmp_path: Path) -> None:
    sink.stage(key(1), table("a", "b"))
    sink.stage(key(1), table())
    sink.stage(key(1), table("b", "c", start=10))
    sink.stage(key(2), table("lost"))
    sink.stage(key(3), table("x"))
    sink.stage(key(3), table())
    sink.publish(1, [key(1), key(3)])
    rows = ds.dataset(local(sink, tmp_path), format="parquet", partitioning="hive").to_table()
    assert sorted(zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True)) == [(10, "b"), (11, "c")]
    sink.sweep(Keep(2))
    staged = tmp_path / "out" / ("_staged" if sink.path.startswith("s3:") else "_staging")
    assert os.listdir(staged) == []
    left = [str(path) for path in (tmp_path / "out").glob("**/*.parquet")]
    assert sorted(left) == sorted(local(sink, tmp_path))
    sink.empty(2, 2)
    assert sink.published_files() == [] and not list((tmp_path / "out").glob("**/*.parquet"))


def test_value_that_no_folder_can_be_named_by_is_refused_with_its_row(sink: ParquetFolder) -> None:
    long = table("ok", "ä" * 200, None, "x" * 300, "%" * 84)
    with pytest.raises(RowRefusedError, match=r"'name' is too long.*: row 2 of 5") as refused:
        sink.check_rows(long)
    assert sorted(refused.value.reasons) == [1, 3, 4]
    good, bad = split_refused_rows(sink, long)
    assert good["id"].to_pylist() == [0, 2] and sorted(bad) == [1, 3, 4], "they become dead letters"
    sink.stage(key(1), good)
    sink.publish(1, [key(1)])


def test_rows_of_too_many_partitions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that chooses the values would choose the number of files, too."""
    monkeypatch.setattr(hive_partitions, "PARTITIONS_MAX", 3)
    bound = ParquetFolder(tmp_path / "out", partition_by=["day"]).bind("r", REGION)
    rows = pa.table({"id": range(8), "day": [1, 2, 3, 1, 4, 2, 5, 3]})
    bound.check(rows.schema)
    bound.check_rows(rows.slice(0, 4))
    with pytest.raises(RowRefusedError, match="more than 3 partitions by day") as refused:
        bound.check_rows(rows)
    assert sorted(refused.value.reasons) == [4, 6]


def test_rows_whose_folders_are_too_long_together_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), ("c", pa.string()), ("id", pa.int64())])
    sink = ParquetFolder(tmp_path / "out", partition_by=["a", "b", "c"]).bind("flights", REGION)
    sink.check(schema)
    long = "x" * 240
    given = pa.table({"a": ["x", long], "b": ["x", long], "c": ["x", long], "id": [1, 2]}, schema=schema)
    with pytest.raises(RowRefusedError, match="600 bytes: row 2 of 2"):
        sink.check_rows(given)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ([f"p{number}" for number in range(8)], "600 bytes: row 1 of 1"),
        (["x" * 200], "too long for the name of a folder"),
    ],
)
def test_short_texts_whose_escapes_make_folders_too_long_are_refused(
    columns: list[str], why: str, tmp_path: Path
) -> None:
    rows = pa.table({**{column: ["/" * 60] for column in columns}, "id": [1]})
    sink = ParquetFolder(tmp_path / "out", partition_by=columns).bind("flights", REGION)
    sink.check(rows.schema)
    with pytest.raises(RowRefusedError, match=why):
        sink.check_rows(rows)


def test_text_that_readers_take_for_null_is_refused_where_null_is(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("name", pa.string(), nullable=False), ("id", pa.int64())])
    sink = ParquetFolder(tmp_path / "out", partition_by=["name"]).bind("flights", REGION)
    sink.check(schema)
    with pytest.raises(RowRefusedError) as refused:
        sink.check_rows(pa.table({"name": ["a", "", NULL], "id": [1, 2, 3]}, schema=schema))
    assert sorted(refused.value.reasons) == [1, 2]


@pytest.mark.parametrize(
    ("schema", "partition_by", "why"),
    [
        (pa.schema([("x", pa.float64()), ("id", pa.int64())]), ["x"], "'x' of type double"),
        (pa.schema([("x", pa.timestamp("us")), ("id", pa.int64())]), ["x"], "take a text, an integer"),
        (pa.schema([("x", pa.string()), ("id", pa.int64())]), ["y"], "names y, and the rows have only"),
        (pa.schema([("x", pa.string())]), ["x"], "all columns"),
        (pa.schema([("_x", pa.string()), ("id", pa.int64())]), ["_x"], "readers skip folders"),
    ],
)
def test_column_that_can_not_partition_is_refused(
    schema: pa.Schema, partition_by: list[str], why: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match=why):
        ParquetFolder(tmp_path / "out", partition_by=partition_by).bind("flights", REGION).check(schema)
    assert not (tmp_path / "out").exists()


def test_partitions_of_a_folder_are_fixed(sink: ParquetFolder, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="give a list"):
        ParquetFolder(tmp_path, partition_by="name")
    with pytest.raises(InvalidInputError, match="twice"):
        ParquetFolder(tmp_path, partition_by=["name", "name"])
    other = sink.bind("flights", REGION)
    other.partition_by = ("day",)
    with pytest.raises(InvalidInputError, match=r"is partitioned by name, and partition_by=\['day'\] differs"):
        other.check(SCHEMA)
    other.partition_by = ()
    other.check(SCHEMA)
    taken: Sink = other
    taken.stage(key(1), table("a"))
    taken.publish(1, [key(1)])
    assert [os.path.basename(os.path.dirname(file.path)) for file in other.published_files()] == ["name=a"]


def test_folder_without_partitions_takes_a_large_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hive_partitions, "PARTITIONS_MAX", 3)
    bound = ParquetFolder(tmp_path / "out").bind("r", REGION)
    rows = pa.table({"id": range(8)})
    bound.check(rows.schema)
    assert bound.check_rows(rows).num_rows == 8
