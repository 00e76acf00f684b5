"""Columns that appear while a region writes an Iceberg table: added once by `evolve="add"`, else refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from pyiceberg.types import IntegerType

from kohort.errors import InvalidInputError, RetriableError
from kohort.region import IcebergTable
from kohort.region.consuming.staging import RowStager
from kohort.region.sinks.iceberg_log import IcebergLog
from tests.region.test_iceberg_table import REGION, SCHEMA, key, made, opened, publish, table

MORE = SCHEMA.append(pa.field("crew", pa.int32()))


def wide(*ids: int, crew: int | None = 5) -> pa.Table:
    return table(*ids).append_column(MORE.field("crew"), pa.array([crew] * len(ids), pa.int32()))


def rows(path: Path) -> list[tuple[int, int | None]]:
    found = opened(path).scan().to_arrow()
    return sorted(zip(found.column("id").to_pylist(), found.column("crew").to_pylist(), strict=True))


def columns_ever(path: Path) -> list[list[str]]:
    return [[field.name for field in schema.fields] for schema in opened(path).schemas().values()]


def test_a_new_column_is_added_once_and_older_members_continue(tmp_path: Path) -> None:
    older, newer = made(tmp_path, evolve="add"), made(tmp_path, evolve="add")
    publish(older, 1, 1)
    older.stage(key(2), table(2))  # staged before the column is there, published after it
    newer.check(MORE)
    newer.stage(key(3), wide(3))
    older.stage(key(4), table(4))  # a member that has not seen the column
    made(tmp_path).stage(key(5), table(5))  # one that would refuse to add it
    newer.publish(2, [key(2), key(3), key(4), key(5)])
    assert rows(tmp_path) == [(1, None), (2, None), (3, 5), (4, None), (5, None)]
    newer.check(MORE)
    newer.check(SCHEMA)
    assert columns_ever(tmp_path) == [SCHEMA.names, MORE.names]


def test_rows_that_are_divided_anew_have_the_column(tmp_path: Path) -> None:
    """Staged before the column and other partitions were there, and written again for them."""
    sink = made(tmp_path, evolve="add")
    sink.stage(key(1), table(1, 2))
    sink.check(MORE)
    with opened(tmp_path).update_spec() as update:
        update.add_identity("name")
    sink.stage(key(2), wide(3))
    sink.publish(1, [key(1), key(2)])
    assert rows(tmp_path) == [(1, None), (2, None), (3, 5)]


def test_members_that_add_a_column_at_once_add_it_once(tmp_path: Path) -> None:
    sinks = [made(tmp_path, evolve="add") for _ in range(4)]

    def work(number: int) -> None:
        while True:
            try:
                sinks[number].check(MORE)
                return sinks[number].stage(key(number), wide(number))
            except RetriableError:  # SQLite's lock, as `check` and `stage` may say
                continue

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
        for _ in pool.map(lambda sink: sink.publish(1, [key(number) for number in range(4)]), sinks):
            pass
    assert rows(tmp_path) == [(number, 5) for number in range(4)]
    assert columns_ever(tmp_path) == [SCHEMA.names, MORE.names]


def test_a_lost_answer_adds_the_column_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = made(tmp_path, evolve="add")
    commit = IcebergLog._commit_changes

    def lost(*args: Any) -> bool:
        commit(*args)
        raise RetriableError("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(IcebergLog, "_commit_changes", lost)
        with pytest.raises(RetriableError):
            sink.check(MORE)
    sink.check(MORE)
    assert columns_ever(tmp_path) == [SCHEMA.names, MORE.names]


def test_a_column_that_others_have_added_is_taken_or_refused_by_its_type(tmp_path: Path) -> None:
    sink = made(tmp_path, evolve="add")
    with opened(tmp_path).update_schema() as update:
        update.union_by_name(pa.schema([pa.field("crew", pa.int32()), pa.field("rows", pa.string())]))
    sink.check(MORE)
    sink.stage(key(1), wide(1))
    sink.publish(1, [key(1)])
    assert rows(tmp_path) == [(1, 5)]
    with pytest.raises(InvalidInputError, match="'rows' of type .*string.*int64"):
        sink.check(MORE.append(pa.field("rows", pa.int64())))


def test_a_table_that_was_there_before_gets_the_column_too(tmp_path: Path) -> None:
    made(tmp_path, evolve="add")
    other = IcebergTable("air.flights", warehouse=tmp_path, evolve="add").bind("other", key(1, region=REGION).region_id)
    other.check(MORE)
    assert columns_ever(tmp_path) == [SCHEMA.names, MORE.names]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (SCHEMA.append(pa.field("crew", pa.int32(), nullable=False)), "'crew' of type int32 may not be null"),
        (SCHEMA.set(2, pa.field("name", pa.int64())), "'name' is int64 .string before"),
        (SCHEMA.remove(2), "'name' is missing .*string"),
        (SCHEMA.append(pa.field("NAME", pa.string())), "name"),
        (SCHEMA.append(pa.field("crew", pa.uint64())), "'crew' of type uint64"),
        (SCHEMA.append(pa.field("crew", pa.list_(pa.null()))), "crew"),
    ],
)
def test_anything_else_than_a_nullable_column_is_refused(tmp_path: Path, schema: pa.Schema, said: str) -> None:
    sink = made(tmp_path, evolve="add")
    with pytest.raises(InvalidInputError, match=said):
        sink.check(schema)
    assert columns_ever(tmp_path) == [SCHEMA.names]


def dropped(path: Path, column: str) -> None:
    with opened(path).update_schema() as update:
        update.delete_column(column)


def test_an_added_column_that_others_drop_is_added_again(tmp_path: Path) -> None:
    sink = made(tmp_path, evolve="add")
    sink.check(MORE)
    dropped(tmp_path, "crew")
    made(tmp_path, evolve="add").check(SCHEMA)
    assert opened(tmp_path).schema().column_names == MORE.names
    sink.stage(key(1), wide(1))
    sink.stage(key(2), table(2))
    sink.publish(1, [key(1), key(2)])
    assert rows(tmp_path) == [(1, 5), (2, None)]


def test_an_added_column_that_others_drop_is_added_again_together_with_a_new_one(tmp_path: Path) -> None:
    sink = made(tmp_path, evolve="add")
    sink.check(MORE)
    dropped(tmp_path, "crew")
    sink.check(SCHEMA.append(pa.field("seats", pa.int32())))
    assert opened(tmp_path).schema().column_names == [*SCHEMA.names, "crew", "seats"]


def test_a_running_member_adds_a_dropped_column_again(tmp_path: Path) -> None:
    sink = made(tmp_path, evolve="add")
    sink.check(MORE)
    sink.stage(key(1), wide(1))
    dropped(tmp_path, "crew")
    sink.stage(key(2), wide(2))
    sink.stage(key(3), table(3))
    sink.publish(1, [key(1), key(2), key(3)])
    assert rows(tmp_path) == [(1, None), (2, 5), (3, None)]  # staged for the dropped column, which had another id


def test_a_column_that_is_never_added_again_is_named(tmp_path: Path) -> None:
    made(tmp_path, evolve="add").check(MORE)
    dropped(tmp_path, "crew")
    with pytest.raises(InvalidInputError, match=r"lacks the column 'crew' of type int32.*add it again"):
        made(tmp_path).stage(key(1), wide(1))
    dropped(tmp_path, "name")
    sink = made(tmp_path, evolve="add")
    with pytest.raises(InvalidInputError, match=r"lacks the column 'name' of type string.*rename it back"):
        sink.stage(key(1), table(1))


def test_a_column_that_is_dropped_while_its_marker_is_written_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = made(tmp_path, evolve="add")
    with opened(tmp_path).update_schema() as update:
        update.add_column("crew", IntegerType())
    commit = IcebergLog._commit_changes
    drops = [True]

    def late(*args: Any, **named: Any) -> bool:
        if drops:
            drops.clear()
            dropped(tmp_path, "crew")
        return commit(*args, **named)

    monkeypatch.setattr(IcebergLog, "_commit_changes", late)
    sink.check(MORE)
    assert opened(tmp_path).schema().column_names == MORE.names


def test_an_older_state_of_another_thread_does_not_refuse_a_new_column(tmp_path: Path) -> None:
    """The publisher's thread has read the marker before the column was added, and keeps it afterwards."""
    sink = made(tmp_path, evolve="add")
    before = opened(tmp_path)
    sink.check(MORE)
    assert sink._claim_in(before) is not None
    assert sink.check_rows(wide(1)).column_names == MORE.names
    with pytest.raises(InvalidInputError, match="'seats' is new"):
        sink.check_rows(wide(1).append_column("seats", pa.array([2])))


def test_rows_that_are_staged_keep_a_column_that_an_older_state_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = made(tmp_path, evolve="add")
    before = opened(tmp_path)
    sink.check(MORE)
    sink.stage(key(1), wide(1))
    with opened(tmp_path).update_spec() as update:
        update.add_identity("name")
    write = IcebergTable._divided_anew

    def write_late(sink: IcebergTable, *args: Any) -> Any:
        assert sink._claim_in(before) is not None
        return write(sink, *args)

    monkeypatch.setattr(IcebergTable, "_divided_anew", write_late)
    sink.publish(1, [key(1)])
    assert rows(tmp_path) == [(1, 5)]


def test_a_new_column_may_have_a_dot_in_its_name(tmp_path: Path) -> None:
    sink = made(tmp_path, evolve="add")
    field = pa.field("crew.size", pa.int32())
    sink.check(SCHEMA.append(field))
    sink.stage(key(1), table(1).append_column(field, pa.array([5], pa.int32())))
    sink.publish(1, [key(1)])
    assert opened(tmp_path).scan().to_arrow().column("crew.size").to_pylist() == [5]


def test_a_new_column_that_looks_like_a_part_of_another_is_refused(tmp_path: Path) -> None:
    sink = made(tmp_path, evolve="add")
    sink.check(SCHEMA.append(pa.field("crew", pa.struct([pa.field("size", pa.int32())]))))
    with pytest.raises(InvalidInputError, match=r"can't be given the column 'crew\.size'"):
        sink.check(SCHEMA.append(pa.field("crew.size", pa.int32())))


def test_a_new_column_is_left_out_until_it_has_a_type(tmp_path: Path) -> None:
    stager = RowStager(made(tmp_path, evolve="add"), REGION, "a")
    stager.begin_epoch(1)
    for rows_of_table in (table(1).append_column("crew", pa.nulls(1)), wide(2)):
        stager.add(rows_of_table)
        stager.finish_table()
        stager.stage_rest()
    stager.add(table(3).append_column("crew", pa.nulls(1)))
    stager.finish_table()
    made(tmp_path).publish(1, stager.stage_rest())
    assert rows(tmp_path) == [(1, None), (2, 5), (3, None)]
    assert columns_ever(tmp_path) == [SCHEMA.names, MORE.names]


def test_a_new_column_is_refused_by_default(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="'crew' is new"):
        made(tmp_path).check(MORE)
    with pytest.raises(InvalidInputError, match="evolve is 'widen': choose one of refuse, add"):
        made(tmp_path, evolve="widen")


def grown(path: Path) -> str:
    """Publish rows without and with the new column, and return the location of the table's metadata."""
    sink = made(path, evolve="add")
    publish(sink, 1, 1)
    sink.check(MORE)
    sink.stage(key(2), wide(2))
    sink.publish(2, [key(2)])
    return opened(path).metadata_location


def test_polars_sees_the_new_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    frame = polars.scan_iceberg(grown(tmp_path)).select("id", "crew").collect()
    assert sorted(frame.rows()) == [(1, None), (2, 5)]


def test_duckdb_sees_the_new_column(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="DuckDB and its extension package read the table")
    extensions = pytest.importorskip("duckdb_extensions", reason="duckdb-extensions with iceberg and avro")
    location = grown(tmp_path)
    with duckdb.connect(config={"extension_directory": str(tmp_path / "extensions")}) as connection:
        for name in ("avro", "iceberg"):
            extensions.import_extension(name, con=connection)
            connection.execute(f"LOAD {name}")
        found = connection.execute(f"SELECT id, crew FROM iceberg_scan('{location}') ORDER BY id").fetchall()
    assert found == [(1, None), (2, 5)]


def test_a_member_submits_tables_with_and_without_the_new_column(tmp_path: Path) -> None:
    stager = RowStager(made(tmp_path, evolve="add"), REGION, "a")
    stager.begin_epoch(1)
    for rows_of_table in (table(1), wide(2), table(3)):
        stager.add(rows_of_table)
        stager.finish_table()
    keys = stager.stage_rest()
    made(tmp_path).publish(1, keys)
    assert rows(tmp_path) == [(1, None), (2, 5), (3, None)]
