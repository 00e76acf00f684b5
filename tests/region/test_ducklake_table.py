"""A DuckLake table as a sink: its files, its snapshots, its readers, and processes that are killed at any moment."""

from __future__ import annotations

import ast
import json
import os
import pickle
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pytest

from kohort.errors import CorruptDataError, InvalidInputError, NotAuthorizedError, RetriableError
from kohort.region import DuckLakeTable, Keep, Sink
from kohort.region.records import Position
from kohort.region.sinks import ducklake_catalog, ducklake_table, publish_rows
from kohort.region.sinks.by_name import sink_of
from kohort.region.sinks.ducklake_catalog import DuckLake, LakeTransaction, ducklake_stored_schema
from kohort.region.staged import StagedKey
from tests.region.ducklake_process import MEMBERS, REGION, ROWS_EACH, keys, sink_at
from tests.region.places import REGION as PLACE_REGION
from tests.region.places import Calls, DuckLakePlace
from tests.support.long_runs import IS_LONG

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
OTHER = UUID(int=2)


def key(unit: int, epoch: int = 1, region: UUID = REGION) -> StagedKey:
    return StagedKey(region, epoch, "größe/1", unit)


def table(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": ["x"] * len(ids)}, schema=SCHEMA)


def made(path: Path, region: UUID = REGION, **options: Any) -> DuckLakeTable:
    sink = DuckLakeTable("air.flights", lake=path, **options).bind("flights", region)
    sink.check(SCHEMA)
    return sink


def ask(path: Path, statement: str) -> list[Any]:
    with DuckLake(str(path), "ducklake:reader").transaction() as at:
        return at.query_rows(statement)


def change(path: Path, *statements: str) -> None:
    """Act as another program does."""
    with DuckLake(str(path), "ducklake:stranger").transaction() as at:
        for statement in statements:
            at.execute_change(statement)


def ids(path: Path) -> list[int]:
    return [number for (number,) in ask(path, "SELECT id FROM {lake}.air.flights ORDER BY id")]


def files(path: Path) -> list[Path]:
    return sorted(path.glob("_kohort/*/*/data/*"))


def publish(sink: Sink, sequence: int, *rows: int) -> None:
    sink.stage(key(sequence), table(*rows))
    sink.publish(sequence, [key(sequence)])


def test_a_table_is_a_sink_and_is_known_by_its_folder(tmp_path: Path) -> None:
    taken: Sink = DuckLakeTable("Air.Flights", lake=tmp_path / "lake").bind("flights", REGION)
    assert taken.place == f"ducklake:{tmp_path}/lake#air.flights" == sink_of(taken.place).place
    assert taken.published() == 0 and not (tmp_path / "lake").exists()
    taken.check(SCHEMA)
    assert sink_of(taken.place).bind("flights", REGION).published() == 0
    assert DuckLakeTable("flights", lake=tmp_path).table == "main.flights"


def test_published_files_are_the_staged_ones(tmp_path: Path) -> None:
    sink = made(tmp_path)
    sink.stage(key(1), table(1, 2))
    staged = [(file.name, file.stat().st_ino) for file in files(tmp_path)]
    assert len(staged) == 1 and ids(tmp_path) == []
    sink.publish(1, [key(1)])
    assert [(file.name, file.stat().st_ino) for file in files(tmp_path)] == staged
    assert ids(tmp_path) == [1, 2] and not list((tmp_path / "data").rglob("*.parquet"))


def test_a_snapshot_says_which_sequence_it_is_and_where_it_ends(tmp_path: Path) -> None:
    sink = made(tmp_path)
    ends = [Position("etl", "flights", UUID(int=7), part, 10 * part) for part in (0, 1)]
    sink.stage(key(7), table(1))
    publish_rows(sink, 7, [key(7)], ends)
    author, said = ask(tmp_path, "SELECT author, commit_extra_info FROM ducklake_snapshots('{lake}')")[-1]
    assert author == "kohort" and json.loads(said) == {
        "kohort": {
            "region": "flights", "region-id": str(REGION), "sequence": 7,
            "offsets": {"etl": {"flights": {"0": 0, "1": 10}}},
        }
    }  # fmt: skip


def test_the_sequence_survives_the_expiry_of_its_snapshot(tmp_path: Path) -> None:
    """The marks are gone too: only the lake knows."""
    sink = made(tmp_path)
    for number in (1, 2):
        publish(sink, number, number)
    change(tmp_path, "INSERT INTO {lake}.air.flights VALUES (9, 'y')")
    change(tmp_path, "CALL ducklake_expire_snapshots('{lake}', older_than => now())")
    for mark in tmp_path.glob("_kohort/*/*/published-*"):
        mark.unlink()
    sink.publish(2, [key(1), key(2)])
    assert ids(tmp_path) == [1, 2, 9] and sink.published() == 2


def test_a_lost_answer_is_found_by_whoever_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = made(tmp_path)
    sink.stage(key(1), table(1))
    whole = DuckLake._commit_snapshot

    def cut_off(self: DuckLake, at: LakeTransaction) -> None:
        whole(self, at)
        raise OSError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(DuckLake, "_commit_snapshot", cut_off)
        with pytest.raises(OSError, match="lost"):
            sink.publish(1, [key(1)])
    sink.publish(1, [key(1)])
    assert ids(tmp_path) == [1] and len(files(tmp_path)) == 1


def test_a_foreign_writer_in_between_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = made(tmp_path)
    sink.stage(key(1), table(1))
    whole, left, strangers = DuckLake._commit_snapshot, [9, 8], set[str]()

    def late(self: DuckLake, at: LakeTransaction) -> None:
        if at.name not in strangers and left:
            number = left.pop()
            strangers.add(f"lake{int(at.name.removeprefix('lake')) + 1}")
            change(tmp_path, f"INSERT INTO {{lake}}.air.flights VALUES ({number}, 'y')")
        whole(self, at)

    with monkeypatch.context() as patch:
        patch.setattr(ducklake_table.DuckLake, "_commit_snapshot", late)
        sink.publish(1, [key(1)])
    assert ids(tmp_path) == [1, 8, 9] and sink.published() == 1


def test_when_others_always_come_first_it_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = made(tmp_path)
    sink.stage(key(1), table(1))

    def late(self: DuckLake, at: LakeTransaction) -> None:
        raise ducklake_table.UnknownCommitError("another was faster")

    with monkeypatch.context() as patch:
        patch.setattr(DuckLake, "_commit_snapshot", late)
        with pytest.raises(RetriableError, match="written by others all the time"):
            sink.publish(1, [key(1)])
    sink.publish(1, [key(1)])
    assert ids(tmp_path) == [1]


def test_files_and_the_catalog_are_durable_before_a_sequence_is_marked(tmp_path: Path) -> None:
    place, calls, kept = DuckLakePlace(), Calls(), StagedKey(PLACE_REGION, 1, "a", 1)
    place.at(tmp_path)
    sink = place.sink(calls)
    sink.check(SCHEMA)
    sink.stage(StagedKey(PLACE_REGION, 1, "a", 0), table(0))  # the folders are there
    calls.trace.clear()
    sink.stage(kept, table(1))
    synced = [call for call in calls.trace if call.startswith("fsync")]
    kinds = [next((end for end in (".part", ".parquet") if call.endswith(end)), "folder") for call in synced]
    assert kinds == [".part", "folder", ".parquet", "folder", ".part", "folder"], "the intent, the rows, the word"
    calls.trace.clear()
    sink.publish(1, [kept])
    marked = next(n for n, call in enumerate(calls.trace) if call.startswith("open ") and call.endswith("published-1"))
    removed = next(n for n, call in enumerate(calls.trace) if call.startswith("unlink"))
    assert calls.trace.index("COMMIT") < marked < removed
    with sink._lake.transaction() as at:
        assert at.query_rows("FROM sqlite_query('__ducklake_metadata_{lake}', 'PRAGMA synchronous')") == [("2",)], (
            "FULL"
        )
        assert at.query_rows("FROM sqlite_query('__ducklake_metadata_{lake}', 'PRAGMA journal_mode')") == [("wal",)]


def test_compaction_expiry_and_cleanup_leave_what_is_needed(tmp_path: Path) -> None:
    """DuckLake removes published files itself, once. Staged ones stay, also when it removes orphans."""
    sink = made(tmp_path)
    for number in (1, 2, 3):
        publish(sink, number, number)
    sink.stage(key(4), table(4))
    for statement in (
        "CALL ducklake_flush_inlined_data('{lake}')",
        "CALL ducklake_merge_adjacent_files('{lake}')",
        "CALL ducklake_expire_snapshots('{lake}', older_than => now())",
    ):
        change(tmp_path, statement)
    sink.sweep(Keep(2, [key(4)]))
    assert len(files(tmp_path)) == 4, "DuckLake removes them, since it may still read them"
    change(tmp_path, "CALL ducklake_cleanup_old_files('{lake}', cleanup_all => true)")
    change(tmp_path, "CALL ducklake_delete_orphaned_files('{lake}', cleanup_all => true)")
    assert len(files(tmp_path)) == 1
    for _ in range(2):
        sink.publish(4, [key(4)])
        sink.sweep(Keep(2))
    assert ids(tmp_path) == [1, 2, 3, 4]


def test_compacted_rows_can_not_be_distinguished(tmp_path: Path) -> None:
    sink = made(tmp_path)
    publish(sink, 1, 1)
    change(tmp_path, f"INSERT INTO {{lake}}.air.flights SELECT range, 'y' FROM range({100})")
    change(tmp_path, "CALL ducklake_merge_adjacent_files('{lake}')")
    with pytest.raises(InvalidInputError, match="can't be told from others"):
        sink.empty(2, 2)
    change(tmp_path, "DELETE FROM {lake}.air.flights")
    sink.empty(2, 2)
    assert sink.published() == 2 and ids(tmp_path) == []


def test_a_place_is_emptied_of_many_rows(tmp_path: Path) -> None:
    """No file of deletions is left, which nobody would remove if the commit failed."""
    sink = made(tmp_path)
    publish(sink, 1, *range(5_000))
    change(tmp_path, "INSERT INTO {lake}.air.flights SELECT range, 'y' FROM range(-50, 0)")
    before = sorted((tmp_path / "data").rglob("*.parquet"))
    sink.empty(2, 2)
    assert ids(tmp_path) == list(range(-50, 0)) and sink.published() == 2
    assert sorted((tmp_path / "data").rglob("*.parquet")) == before
    change(tmp_path, "CALL ducklake_expire_snapshots('{lake}', older_than => now())")
    change(tmp_path, "CALL ducklake_cleanup_old_files('{lake}', cleanup_all => true)")
    assert files(tmp_path) == [] and ids(tmp_path) == list(range(-50, 0))


def test_a_table_that_was_there_before(tmp_path: Path) -> None:
    other = made(tmp_path, OTHER)
    other.stage(key(1, region=OTHER), table(9))
    other.publish(1, [key(1, region=OTHER)])
    change(tmp_path, "CREATE TABLE {lake}.air.typed (id INTEGER, name VARCHAR)")
    sink = made(tmp_path)
    assert sink.published() == 0
    publish(sink, 1, 1)
    assert ids(tmp_path) == [1, 9]
    with pytest.raises(InvalidInputError, match="'id'.*int32"):
        DuckLakeTable("air.typed", lake=tmp_path).bind("flights", REGION).check(SCHEMA)


def test_columns_that_others_add_are_null_and_a_dropped_one_is_named(tmp_path: Path) -> None:
    sink = made(tmp_path)
    sink.stage(key(1), table(1))
    change(tmp_path, "ALTER TABLE {lake}.air.flights ADD COLUMN more BIGINT")
    sink.publish(1, [key(1)])
    assert ask(tmp_path, "FROM {lake}.air.flights") == [(1, "x", None)]
    sink.check(SCHEMA)
    sink.stage(key(2), table(2))
    change(tmp_path, "ALTER TABLE {lake}.air.flights RENAME COLUMN name TO called")
    for act in (lambda: sink.publish(2, [key(2)]), lambda: sink.stage(key(3), table(3))):
        with pytest.raises(InvalidInputError, match='Column "name" exists in file'):
            act()
    change(tmp_path, "ALTER TABLE {lake}.air.flights RENAME COLUMN called TO name")
    sink.publish(2, [key(2)])
    assert ids(tmp_path) == [1, 2]


def test_a_table_that_is_made_anew_knows_nothing_of_the_former(tmp_path: Path) -> None:
    sink = made(tmp_path)
    publish(sink, 1, 1)
    sink.stage(key(2), table(2))
    change(tmp_path, "DROP TABLE {lake}.air.flights")
    assert sink.published() == 0
    with pytest.raises(InvalidInputError, match="call check"):
        sink.publish(2, [key(2)])
    sink.check(SCHEMA)
    assert sink.published() == 0 and ids(tmp_path) == []
    with pytest.raises(CorruptDataError, match="are gone"):
        sink.publish(2, [key(2)])


def test_a_sweep_takes_unfinished_files_and_none_that_the_lake_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = made(tmp_path)
    publish(sink, 1, 1)
    (kept,) = files(tmp_path)

    def died(self: DuckLakeTable, path: str) -> None:
        os._exit(0)

    child = os.fork()
    if not child:
        monkeypatch.setattr(DuckLakeTable, "_check_file_accepted", died)
        pickle.loads(pickle.dumps(sink)).stage(key(2), table(2))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(files(tmp_path)) == 2
    sink.sweep(Keep(1))
    assert len(files(tmp_path)) == 2
    sink.sweep(Keep(2))
    assert files(tmp_path) == [kept] and not list(tmp_path.glob("_kohort/*/*/staged/*"))


def test_a_staged_file_that_is_gone_is_lost_output(tmp_path: Path) -> None:
    sink = made(tmp_path)
    sink.stage(key(1), table(1))
    files(tmp_path)[0].unlink()
    with pytest.raises(CorruptDataError, match=r"1 are gone"):
        sink.publish(1, [key(1)])


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("a.b.c", {}, "its schema and its name"),
        (".flights", {}, "its schema and its name"),
        ("air.kohort_sequences", {}, "the sink's own table"),
        ("flights", {"compression": "zip"}, "compression is 'zip'"),
        ("flights", {"lake": "s3://bucket/lake"}, "a SQLite file here"),
        ("flights", {"lake": "/data/[lake]"}, "takes for a pattern"),
    ],
)
def test_options_that_can_t_be(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        DuckLakeTable(name, **{"lake": "/data/lake", **options})


@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("ns", "UTC"), pa.timestamp("us", "Europe/Berlin"), pa.binary(4), pa.float16(), pa.decimal256(60, 2)],
    ids=str,
)
def test_types_that_it_does_not_keep(kind: pa.DataType, tmp_path: Path) -> None:
    sink = DuckLakeTable("flights", lake=tmp_path).bind("flights", REGION)
    with pytest.raises(InvalidInputError, match="'c'|refuses"):
        sink.check(pa.schema([("c", kind)]))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.bool_(), True), (pa.int8(), -1), (pa.int16(), -1), (pa.int32(), -1), (pa.int64(), 2**62),
        (pa.uint8(), 255), (pa.uint16(), 2**16 - 1), (pa.uint32(), 2**32 - 1), (pa.uint64(), 2**64 - 1),
        (pa.float32(), 0.5), (pa.float64(), float("inf")), (pa.decimal128(38, 18), None), (pa.string(), "größe\0"),
        (pa.large_string(), "x"), (pa.binary(), b"\0\xff"), (pa.date32(), 1), (pa.time64("us"), 1),
        (pa.timestamp("us"), 1), (pa.timestamp("us", "UTC"), 1), (pa.timestamp("ns"), 1),
        (pa.timestamp("s"), 1), (pa.timestamp("ms", "UTC"), 1),
        (pa.list_(pa.int32()), [1, None]), (pa.struct([("x", pa.list_(pa.string()))]), {"x": ["a", None]}),
        (pa.map_(pa.string(), pa.float64()), [("k", 0.5)]), (pa.dictionary(pa.int32(), pa.string()), "x"),
    ],
    ids=str,
)  # fmt: skip
def test_types_that_it_keeps(kind: pa.DataType, value: Any, tmp_path: Path) -> None:
    schema = pa.schema([("c", kind)])
    sink = DuckLakeTable("flights", lake=tmp_path).bind("flights", REGION)
    sink.check(schema)
    given = pa.table({"c": pa.array([value, None], kind)})
    sink.stage(key(1), given)
    sink.publish(1, [key(1)])
    with DuckLake(str(tmp_path), "ducklake:reader").transaction() as at:
        found = at._run("SELECT c FROM {lake}.flights").to_arrow_table()
    kept = ducklake_stored_schema("here", schema).field(0).type
    assert found.column("c").cast(kept).to_pylist() == given.column("c").cast(kept).to_pylist()


def test_a_reader_that_filters_finds_rows_with_nan(tmp_path: Path) -> None:
    """DuckDB sorts NaN above all numbers, and the statistics of a Parquet file leave it out."""
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("in", pa.struct([("y", pa.float64())]))])
    sink = DuckLakeTable("air.flights", lake=tmp_path).bind("flights", REGION)
    sink.check(schema)
    nan = float("nan")
    for number, values in enumerate(([1.0, nan], [nan], [2.0]), 1):
        rows = {"id": [number] * len(values), "x": values, "in": [{"y": value} for value in values]}
        sink.stage(key(number), pa.table(rows, schema=schema))
        sink.publish(number, [key(number)])
    for column in ("x", '"in".y'):
        for asked, found in (("> 5", 2), ("= 'nan'::DOUBLE", 2), (">= 2", 3), ("< 2", 1)):
            statement = f"SELECT count(*) FROM {{lake}}.air.flights WHERE {column} {asked}"
            assert ask(tmp_path, statement) == [(found,)], statement
    assert ask(tmp_path, "SELECT count(*) FROM {lake}.air.flights WHERE id = 1") == [(2,)]


def test_a_reader_that_filters_finds_rows_of_the_type_float(tmp_path: Path) -> None:
    """DuckLake compares such a column with its statistics as numbers of twice the size, which are seldom equal."""
    schema = pa.schema([("id", pa.int64()), ("x", pa.float32()), ("in", pa.struct([("y", pa.float32())]))])
    sink = DuckLakeTable("air.flights", lake=tmp_path).bind("flights", REGION)
    sink.check(schema)
    values = pa.array(
        [0.1, 3.4e38, 3.112949685531276e-18, -2.8926721466842832e-28, 9.313130389300072e-21], pa.float32()
    )
    for number, value in enumerate(values.to_pylist(), 1):
        rows = {"id": [number], "x": [value], "in": [{"y": value}]}
        sink.stage(key(number), pa.table(rows, schema=schema))
        sink.publish(number, [key(number)])
    for number, value in enumerate(values.to_pylist(), 1):
        for column in ("x", '"in".y'):
            for asked in ("=", ">=", "<="):
                statement = f"SELECT count(*) FROM {{lake}}.air.flights WHERE id = {number} AND {column} {asked} "
                assert ask(tmp_path, f"{statement}{value!r}::FLOAT") == [(1,)], (column, asked, value)


def test_a_table_that_others_have_partitioned_is_refused_with_the_way_out(tmp_path: Path) -> None:
    made(tmp_path)
    change(tmp_path, "ALTER TABLE {lake}.air.flights SET PARTITIONED BY (name)")
    with pytest.raises(InvalidInputError, match="a table with partitions.* RESET PARTITIONED BY"):
        made(tmp_path, OTHER)
    change(tmp_path, "ALTER TABLE {lake}.air.flights RESET PARTITIONED BY")
    made(tmp_path, OTHER)


@pytest.mark.parametrize("kind", [duckdb.FatalException, duckdb.InternalException])
def test_a_member_outlives_a_fatal_error_of_its_duckdb(kind: type[duckdb.Error], tmp_path: Path) -> None:
    """DuckDB refuses every statement after it."""
    sink = made(tmp_path)
    lost = ducklake_catalog._database()
    with pytest.raises((RetriableError, CorruptDataError)), ducklake_catalog.translated_duckdb_errors("lake"):
        raise kind("database has been invalidated because of a previous fatal error")
    assert ducklake_catalog._database() is not lost
    publish(sink, 1, 1)
    assert ids(tmp_path) == [1]


def test_a_lake_that_the_extension_does_not_find_a_moment_after_its_attachment_is_tried_again() -> None:
    text = "Binder Error: Failed to query most recent snapshot for DuckLake: Catalog {} does not exist!"
    with pytest.raises(RetriableError), ducklake_catalog.translated_duckdb_errors("lake"):
        raise duckdb.BinderException(text.format('"__ducklake_metadata_lake307"'))
    with pytest.raises(InvalidInputError), ducklake_catalog.translated_duckdb_errors("lake"):
        raise duckdb.BinderException(text.format('"lake307"'))


def test_a_missing_extension_is_named_and_no_column_is_blamed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ducklake_catalog, "_OPENED", {})
    monkeypatch.setattr(ducklake_catalog, "_extension", lambda name: str(tmp_path / f"{name}.duckdb_extension"))
    with pytest.raises(InvalidInputError, match="^DuckLakeTable needs DuckDB's extension sqlite_scanner: pip install"):
        made(tmp_path / "lake")


def test_a_text_that_is_none_is_refused_before_it_is_staged(tmp_path: Path) -> None:
    sink = made(tmp_path)
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"], pa.binary()).buffers())
    with pytest.raises(InvalidInputError, match="not UTF-8: row 1 of 1"):
        sink.stage(key(1), pa.table({"id": [1], "name": bad}, schema=SCHEMA))
    assert files(tmp_path) == []


def test_columns_with_ducklake_s_own_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="FileName: rename"):
        DuckLakeTable("flights", lake=tmp_path).bind("flights", REGION).check(pa.schema([("FileName", pa.int64())]))


def test_a_catalog_that_is_none_or_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").write_text("not a catalog, but a text" * 100)
    with pytest.raises(InvalidInputError, match="no SQLite file"):
        made(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="is a file"):
        made(tmp_path / "file")
    if os.geteuid():
        (tmp_path / "shut").mkdir(mode=0o500)
        with pytest.raises(NotAuthorizedError, match="No right"):
            made(tmp_path / "shut" / "lake")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_publishers_killed_at_any_moment_and_a_reader_in_another_process(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """Each process publishes what is left until SIGKILL; two at once at times. The reader sees whole sequences."""
    catalog = ""
    if kind == "postgres":
        pytest.importorskip("duckdb_extension_postgres_scanner", reason="DuckDB's extension for PostgreSQL")
        catalog = request.getfixturevalue("postgres").fresh_database()
    sequences, schema = 8 if IS_LONG else 4, pa.schema([("sequence", pa.int64()), ("number", pa.int64())])
    sink = sink_at(str(tmp_path), catalog)
    sink.check(schema)
    for sequence in range(1, sequences + 1):
        for staged in keys(sequence):
            sink.stage(
                staged, pa.table({"sequence": [sequence] * ROWS_EACH, "number": range(ROWS_EACH)}, schema=schema)
            )
    whole, chance, seen = len(MEMBERS) * ROWS_EACH, random.Random(7), Counter[int]()
    command = [sys.executable, "-m", "tests.region.ducklake_process", str(tmp_path)]
    more = [catalog] if catalog else []
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [*command, "read", *more], text=True, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdin is not None and reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        while sink.published() < sequences:
            publishers = [
                subprocess.Popen([*command, str(sequences), *more], text=True, cwd=root, stdout=subprocess.PIPE)
                for _ in range(chance.choice((1, 1, 2)))
            ]
            for publisher in publishers:
                assert publisher.stdout is not None
                publisher.stdout.readline()
                killer = threading.Timer(chance.uniform(0, 0.4), publisher.kill)
                killer.start()
                while publisher.poll() is None:
                    print(file=reader.stdin, flush=True)
                    counts = ast.literal_eval(reader.stdout.readline())
                    assert counts == [(number, whole) for number in range(1, len(counts) + 1)]
                    seen[len(counts)] += 1
                killer.join()
                publisher.stdout.close()
        reader.stdin.close()
    with sink._lake.transaction() as at:
        found = at.query_rows("SELECT sequence, number, count(*) FROM {lake}.air.flights GROUP BY ALL")
    assert sorted(found) == [(n, row, len(MEMBERS)) for n in range(1, sequences + 1) for row in range(ROWS_EACH)]
    assert len(files(tmp_path)) == sequences * len(MEMBERS) and len(seen) > 1
    for sequence in range(1, sequences + 1):
        sink.publish(sequence, keys(sequence))
    sink.sweep(Keep(2))
    assert not list(tmp_path.glob("_kohort/*/*/staged/*"))
    with sink._lake.transaction() as at:
        assert at.query_rows("SELECT count(*) FROM {lake}.air.flights") == [(sequences * whole,)]


def test_names_with_the_lake_s_own_word_stay_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "a {lake}"
    schema = pa.schema([("{lake}", pa.int64()), ("b", pa.struct([("x{lake}", pa.string())]))])
    rows = pa.table({"{lake}": [1], "b": [{"x{lake}": "{lake}"}]}, schema=schema)
    sink = DuckLakeTable("s{lake}.t{lake}", lake=folder).bind("r{lake}", REGION)
    sink.check(schema)
    sink.stage(StagedKey(REGION, 1, "m{lake}", 1), rows)
    publish_rows(sink, 1, [StagedKey(REGION, 1, "m{lake}", 1)], [Position("g{lake}", "t", REGION, 0, 5)])
    assert sink.published() == 1
    with DuckLake(str(folder), "ducklake:reader").transaction() as at:
        assert at.query_rows('FROM {lake}."s{lake\0}"."t{lake\0}"') == [(1, {"x{lake}": "{lake}"})]
        said = json.loads(at.query_rows("SELECT commit_extra_info FROM ducklake_snapshots('{lake}')")[-1][0])
    assert said["kohort"]["region"] == "r{lake}" and "g{lake}" in said["kohort"]["offsets"]
    sink.empty(2, 2)
    assert sink.published() == 2


def test_more_columns_than_the_catalog_keeps_are_refused_for_good(tmp_path: Path) -> None:
    schema = pa.schema([(f"c{number}", pa.int64()) for number in range(1_998)])
    with pytest.raises(InvalidInputError, match="more columns than SQLite keeps.*1,997"):
        DuckLakeTable("wide", lake=tmp_path).bind("flights", REGION).check(schema)
    kept = pa.schema([(f"c{number}", pa.int64()) for number in range(1_997)])
    with DuckLake(str(tmp_path), "ducklake:stranger").transaction() as at:
        columns = ", ".join(f"{name} BIGINT" for name in kept.names)
        at.execute_change(f"CREATE TABLE {{lake}}.wide ({columns})")
