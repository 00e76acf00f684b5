"""Columns that appear while a region writes a Parquet folder: added once by `evolve="add"`, else refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.region import ParquetFolder
from kohort.region.consuming.staging import RowStager
from kohort.region.sinks import Keep, Sink, owner_marker
from kohort.region.staged import StagedKey
from tests.region import place_runs
from tests.region.place_runs import Trials
from tests.region.places import REGION, SCHEMA, Calls, ObjectsPlace, ParquetPlace, table

MORE = SCHEMA.append(pa.field("crew", pa.int32()))
FIRST, SECOND, THIRD = (StagedKey(place_runs.REGION, 5, member, 1) for member in "abc")
AnyPlace = ParquetPlace | ObjectsPlace
PARTED: dict[str, Any] = {"partition_by": ["name"]}
PLACES: dict[str, Callable[..., AnyPlace]] = {
    "folder": ParquetPlace,
    "objects": ObjectsPlace,
    "folder-parted": lambda **options: ParquetPlace("parquet-parted", **PARTED, **options),
    "objects-parted": lambda **options: ObjectsPlace("parquet-objects-parted", **PARTED, **options),
}


def key(unit: int, epoch: int = 1) -> StagedKey:
    return StagedKey(REGION, epoch, "größe/1", unit)


def rows(*ids: int) -> pa.Table:
    return table([(number, "x") for number in ids])


def wide(*ids: int, crew: int | None = 5, column: str = "crew") -> pa.Table:
    return rows(*ids).append_column(pa.field(column, pa.int32()), pa.array([crew] * len(ids), pa.int32()))


@pytest.fixture(params=PLACES.values(), ids=PLACES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """Return a sink of one place, as another process has it, which has checked the first schema."""

    def made(**options: Any) -> Any:
        place = request.param(**{"evolve": "add", **options})
        place.at(tmp_path)
        sink = place.sink()
        sink.check(SCHEMA)
        return sink

    return made


def paths(sink: Any) -> list[str]:
    """Return the published files as files of this machine; a store of the tests is a folder."""
    store = getattr(sink, "_store", None)
    found = [file.path for file in sink.published_files()]
    return found if store is None else [f"{store.root}/{path.removeprefix(f'{store.url}/')}" for path in found]


def found(sink: Any) -> list[tuple[int, int | None]]:
    """Return the rows with the column, as pyarrow reads them by the published schema."""
    schema = sink.published_schema()
    if "crew" not in schema.names:
        schema = schema.append(MORE.field("crew"))
    dataset = ds.dataset(paths(sink), schema=schema, format="parquet", partitioning="hive")
    read = dataset.to_table() if paths(sink) else schema.empty_table()
    return sorted(zip(read.column("id").to_pylist(), read.column("crew").to_pylist(), strict=True))


def test_new_column_is_added_once_and_older_members_continue(make: Callable[..., Any]) -> None:
    older, newer = make(), make()
    older.stage(key(1), rows(1))
    older.publish(1, [key(1)])
    older.stage(key(2), rows(2))  # staged before the column is there, published after it
    newer.check(MORE)
    newer.stage(key(3), wide(3))
    older.stage(key(4), rows(4))  # a member that has not seen the column
    make(evolve="refuse").stage(key(5), rows(5))  # one that would refuse to add it
    older.publish(2, [key(2), key(3), key(4), key(5)])
    assert found(older) == [(1, None), (2, None), (3, 5), (4, None), (5, None)]
    assert older.published_schema().equals(MORE) and make().published_schema().equals(MORE)
    newer.check(MORE)
    newer.check(SCHEMA)
    assert make()._reload().additions == 1


def test_readers_that_nobody_here_wrote_see_older_and_newer_files(make: Callable[..., Any]) -> None:
    """In both orders of the files; DuckDB, Polars and pyarrow."""
    sink = make()
    sink.stage(key(1), rows(1))
    sink.publish(1, [key(1)])
    sink.check(MORE)
    sink.stage(key(2), wide(2))
    sink.publish(2, [key(2)])
    make(evolve="refuse").stage(key(3), rows(3))
    sink.publish(3, [key(3)])
    wanted = [(1, None), (2, 5), (3, None)]
    for files in (paths(sink), paths(sink)[::-1]):
        assert len(files) == 3
        scan = f"read_parquet({files}, union_by_name = true, hive_partitioning = true)"
        assert duckdb.sql(f"SELECT id, crew FROM {scan} ORDER BY id").fetchall() == wanted
        in_files = pa.schema([field for field in sink.published_schema() if field.name not in sink.partition_by])
        frame = polars.scan_parquet(
            files,
            schema=polars.from_arrow(in_files.empty_table()).schema,
            missing_columns="insert",
            hive_partitioning=bool(sink.partition_by),
        )
        assert sorted(frame.select("id", "crew").collect().rows()) == wanted
    assert found(sink) == wanted


def test_compaction_merges_older_and_newer_files(make: Callable[..., Any]) -> None:
    sink, compactor = make(), make()
    for number in range(3):
        sink.stage(key(number), rows(number))
        sink.publish(number + 1, [key(number)])
    assert compactor.compact().merged == 3
    sink.check(MORE)
    for number in range(3, 5):
        sink.stage(key(number), wide(number))
        sink.publish(number + 1, [key(number)])
    wanted = [(0, None), (1, None), (2, None), (3, 5), (4, 5)]
    assert found(sink) == wanted
    assert compactor.compact(grace="0s").merged == 3, "by a process that has not seen the column"
    assert compactor.compact(grace="0s").waiting == 0
    assert found(sink) == wanted and len(paths(sink)) == 1
    assert "crew" in pq.read_schema(paths(sink)[0]).names


def test_compaction_refuses_a_file_that_lacks_another_column(make: Callable[..., Any]) -> None:
    sink = make()
    sink.check(MORE)
    for number in range(2):
        sink.stage(key(number), wide(number))
        sink.publish(number + 1, [key(number)])
    damaged = paths(sink)[0]
    pq.write_table(pq.ParquetFile(damaged).read().drop_columns(["id"]), damaged)
    with pytest.raises(CorruptDataError, match="can't be merged"):
        sink.compact()


def test_members_with_different_new_columns_add_both_at_once(make: Callable[..., Any]) -> None:
    sinks, names = [make() for _ in range(4)], ["crew", "seats", "crew", "doors"]

    def work(number: int) -> None:
        given = wide(number, crew=number, column=names[number])
        sinks[number].check(given.schema)
        sinks[number].stage(key(number), given)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    sinks[1].publish(1, [key(number) for number in range(4)])
    schema = sinks[0].published_schema()
    assert schema.names[:2] == SCHEMA.names and sorted(schema.names[2:]) == ["crew", "doors", "seats"]
    read = ds.dataset(paths(sinks[0]), schema=schema, format="parquet", partitioning="hive").to_table().sort_by("id")
    assert [read.column(name).to_pylist() for name in ("crew", "seats", "doors")] == [
        [0, None, 2, None], [None, 1, None, None], [None, None, None, 3],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (SCHEMA.append(pa.field("crew", pa.int32(), nullable=False)), "'crew' of type int32 may not be null"),
        (SCHEMA.set(1, pa.field("name", pa.int64())), "'name' is int64 .string before"),
        (SCHEMA.remove(0), "'id' is missing .*int64|names all columns"),
        (SCHEMA.append(pa.field("ID", pa.string())), "ID"),
        (SCHEMA.append(pa.field("sequence", pa.string())), "'sequence'"),
        (SCHEMA.append(pa.field("crew", pa.list_(pa.null()))), "crew"),
    ],
    ids=["not null", "type", "missing", "case", "sequence", "untyped"],
)
def test_anything_else_than_a_nullable_column_is_refused(
    make: Callable[..., Any], schema: pa.Schema, said: str
) -> None:
    sink = make()
    with pytest.raises(InvalidInputError, match=said):
        sink.check(schema)
    assert sink.published_schema().equals(SCHEMA)


def test_new_column_is_refused_by_default_and_a_second_type_always(make: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInputError, match="'crew' is new"):
        make(evolve="refuse").check(MORE)
    with pytest.raises(InvalidInputError, match="evolve is 'widen': choose one of refuse, add"):
        make(evolve="widen")
    make().check(MORE)
    with pytest.raises(InvalidInputError, match=r"'crew' is string \(int32 before\)"):
        make().check(SCHEMA.append(pa.field("crew", pa.string())))
    make(evolve="refuse").check(MORE)


def test_another_partitioning_is_refused_with_a_new_column_too(make: Callable[..., Any]) -> None:
    other = make()
    other.partition_by = ("id",)
    with pytest.raises(InvalidInputError, match="differs"):
        other.check(MORE)
    assert make().published_schema().equals(SCHEMA)


def test_reset_keeps_the_column(make: Callable[..., Any]) -> None:
    sink = make()
    sink.check(MORE)
    sink.stage(key(1), wide(1))
    sink.publish(1, [key(1)])
    sink.empty(2, 2)
    assert found(sink) == [] and sink.published_schema().equals(MORE)
    sink.stage(key(2, epoch=2), wide(1, crew=6))
    make().stage(key(3, epoch=2), rows(2))
    sink.publish(3, [key(2, epoch=2), key(3, epoch=2)])
    assert found(sink) == [(1, 6), (2, None)]


def test_member_submits_tables_with_and_without_the_new_column(make: Callable[..., Any]) -> None:
    stager = RowStager(make(), REGION, "a")
    stager.begin_epoch(1)
    untyped = rows(0).append_column("crew", pa.nulls(1))
    for given in (untyped, rows(1), wide(2), rows(3), rows(4).append_column("crew", pa.nulls(1))):
        stager.add(given)
        stager.finish_table()
    sink = make()
    sink.publish(1, stager.stage_rest())
    assert found(sink) == [(0, None), (1, None), (2, 5), (3, None), (4, None)]
    assert sink._reload().additions == 1


def test_older_layout_of_another_thread_does_not_refuse_a_new_column(make: Callable[..., Any]) -> None:
    sink, other = make(), make()
    other.check(MORE)
    assert sink.check_rows(wide(1)).column_names == MORE.names
    with pytest.raises(InvalidInputError, match="'seats' is new"):
        sink.check_rows(wide(1).append_column("seats", pa.array([2])))


def test_schema_of_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no folder of a region"):
        ParquetFolder(tmp_path).published_schema()


def test_column_is_durable_before_rows_with_it_are_staged(tmp_path: Path) -> None:
    place = ParquetPlace(evolve="add")
    place.at(tmp_path)
    place.sink().check(SCHEMA)
    calls = Calls()
    place.sink(calls).check(MORE)
    trace = [call.replace(place.path, "") for call in calls.trace]
    named = next(at for at, call in enumerate(trace) if call.startswith("link ") and call.endswith("columns-1.json"))
    assert "fsync /_region" in trace[named:]
    calls = Calls()
    place.sink(calls).stage(key(1), wide(1))  # by a process that only finds the column
    trace = [call.replace(place.path, "") for call in calls.trace]
    staged = next(at for at, call in enumerate(trace) if call.startswith(("rename ", "link ")))
    assert "fsync /_region" in trace[:staged]


# Processes that end at each call.


def grown(*given: tuple[int, int], column: str = "crew") -> pa.Table:
    names = [f"name {number}" for number, _ in given]
    schema = SCHEMA.append(pa.field(column, pa.int32()))
    return pa.table({"id": [row[0] for row in given], "name": names, column: [row[1] for row in given]}, schema=schema)


def evolve(sink: Sink) -> None:
    """Add the column, stage rows with it, and publish them beside older rows."""
    sink.check(MORE)
    sink.stage(SECOND, grown((2, 5)))
    sink.publish(1, [FIRST, SECOND])


def begun(kind: str, root: Path) -> Trials:
    place = PLACES[kind](evolve="add")
    place.at(root / "first")
    sink = place.sink()
    sink.check(SCHEMA)
    sink.stage(FIRST, table([(1, "name 1")]))
    return Trials(place, root, short_every=2)


@pytest.mark.parametrize("kind", PLACES)
def test_kill_at_each_call_leaves_each_row_and_the_column_once(kind: str, root: Path) -> None:
    for place in begun(kind, root).deaths(evolve):
        older, sink = place.sink(), place.sink()
        assert found(sink) in ([], [(1, None), (2, 5)])
        older.check(SCHEMA)
        if sink.published() < 1:
            sink.check(MORE)
            sink.stage(SECOND, grown((2, 5)))
        older.publish(1, [FIRST, SECOND])
        assert found(sink) == [(1, None), (2, 5)] and place.sink()._reload().additions == 1  # type: ignore[attr-defined]
        sink.sweep(Keep(6))
        assert place.staged() == []


@pytest.mark.parametrize("column", ["crew", "seats"])
@pytest.mark.parametrize("kind", PLACES)
def test_members_that_add_columns_at_each_moment_of_another(kind: str, column: str, root: Path) -> None:
    """One is held at each call, while another adds the same column, or one of its own, and stages and compacts."""

    def meanwhile(place: Any, number: int) -> None:
        sink = place.sink()
        sink.check(grown(column=column).schema)
        sink.stage(THIRD, grown((3, 7), column=column))
        with contextlib.suppress(FileNotFoundError):
            sink.compact()

    for place in begun(kind, root).holds(evolve, meanwhile):
        sink: Any = place.sink()
        assert found(sink) == [(1, None), (2, 5)]
        sink.publish(2, [THIRD])
        assert found(sink)[-1] == (3, 7 if column == "crew" else None)
        assert sink._reload().additions == 1 + (column != "crew")
        assert set(sink.published_schema().names) == {*MORE.names, column}


def test_marker_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    place = ParquetPlace(evolve="add")
    place.at(tmp_path)
    place.sink().check(MORE)
    Path(owner_marker.added_columns_path(f"{place.path}/_region", 1)).write_bytes(b'{"format": 2, "schema": ""}')
    with pytest.raises((InvalidInputError, CorruptDataError)):
        place.sink().check(MORE)
