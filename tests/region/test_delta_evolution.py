"""Columns that appear while a region writes a Delta table: added once by `evolve="add"`, else refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import deltalake
import polars
import pyarrow as pa
import pytest

from kohort.errors import InvalidInputError, RetriableError
from kohort.region import DeltaTable
from kohort.region.consuming.staging import RowStager
from kohort.region.sinks import Keep, Sink, owner_marker
from kohort.region.sinks.delta_log import DeltaLog
from kohort.region.staged import StagedKey
from tests.region import place_runs
from tests.region.place_runs import Trials
from tests.region.places import SCHEMA as PLACE_SCHEMA
from tests.region.places import Calls, DeltaObjectsPlace, DeltaPlace
from tests.region.places import table as place_table
from tests.region.test_delta_table import REGION, SCHEMA, key, made, table

MORE = SCHEMA.append(pa.field("crew", pa.int32()))
UPDATE: dict[str, Any] = {"mode": "update", "keys": ["id"]}


def wide(*ids: int, crew: int | None = 5, name: str = "crew", column: str = "x") -> pa.Table:
    return table(*ids, name=column).append_column(pa.field(name, pa.int32()), pa.array([crew] * len(ids), pa.int32()))


def rows(path: str | Path) -> list[tuple[int, int | None]]:
    found = deltalake.DeltaTable(path).to_pyarrow_table()
    return sorted(zip(found.column("id").to_pylist(), found.column("crew").to_pylist(), strict=True))


def columns_ever(path: str | Path) -> list[list[str]]:
    """Return the names of the table's columns after each change of them."""
    commits = sorted(Path(path, "_delta_log").glob("*.json"))
    lines = [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]
    schemas = [json.loads(line["metaData"]["schemaString"]) for line in lines if "metaData" in line]
    return [[field["name"] for field in schema["fields"]] for schema in schemas]


@pytest.mark.parametrize("options", [{}, {"partition_by": ["day"]}, UPDATE], ids=["append", "parted", "update"])
def test_a_new_column_is_added_once_and_older_members_continue(tmp_path: Path, options: dict[str, Any]) -> None:
    older, newer = (made(tmp_path / "t", evolve="add", **options) for _ in range(2))
    older.stage(key(1), table(1))
    older.publish(1, [key(1)])
    older.stage(key(2), table(2))  # staged before the column is there, published after it
    newer.check(MORE)
    newer.stage(key(3), wide(3))
    older.stage(key(4), table(4))  # a member that has not seen the column
    made(tmp_path / "t", **options).stage(key(5), table(5))  # one that would refuse to add it
    older.publish(2, [key(2), key(3), key(4), key(5)])
    assert rows(older.path) == [(1, None), (2, None), (3, 5), (4, None), (5, None)]
    newer.check(MORE)
    newer.check(SCHEMA)
    assert columns_ever(older.path) == [SCHEMA.names, MORE.names]


def test_members_that_add_a_column_at_once_add_it_once(tmp_path: Path) -> None:
    sinks = [made(tmp_path / "t", evolve="add") for _ in range(4)]

    def work(number: int) -> None:
        sinks[number].check(MORE)
        sinks[number].stage(key(number), wide(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
        for _ in pool.map(lambda sink: sink.publish(1, [key(number) for number in range(4)]), sinks):
            pass
    assert rows(tmp_path / "t") == [(number, 5) for number in range(4)]
    assert columns_ever(tmp_path / "t") == [SCHEMA.names, MORE.names]


@pytest.mark.parametrize("options", [{}, UPDATE], ids=["append", "update"])
def test_members_with_different_new_columns_add_both(tmp_path: Path, options: dict[str, Any]) -> None:
    sinks = [made(tmp_path / "t", evolve="add", **options) for _ in range(4)]
    names = ["crew", "seats", "crew", "doors"]

    def work(number: int) -> None:
        rows_of_member = wide(number, crew=number, name=names[number])
        sinks[number].check(rows_of_member.schema)
        sinks[number].stage(key(number), rows_of_member)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    sinks[1].publish(1, [key(number) for number in range(4)])
    found = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table().sort_by("id").to_pydict()
    assert [found[name] for name in ("crew", "seats", "doors")] == [
        [0, None, 2, None],
        [None, 1, None, None],
        [None, None, None, 3],
    ]
    assert sorted(columns_ever(tmp_path / "t")[-1]) == sorted([*SCHEMA.names, "crew", "seats", "doors"])
    assert len(columns_ever(tmp_path / "t")) == 4


def test_a_lost_answer_adds_the_column_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = made(tmp_path / "t", evolve="add")
    whole = DeltaLog.try_add_columns

    def lost(*args: Any) -> bool:
        whole(*args)
        raise RetriableError("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaLog, "try_add_columns", lost)
        with pytest.raises(RetriableError):
            sink.check(MORE)
    made(tmp_path / "t", evolve="add").stage(key(1), table(1))  # a member without the column is not kept out by it
    sink.check(MORE)
    assert columns_ever(sink.path) == [SCHEMA.names, MORE.names]


def test_a_column_that_others_have_added_is_taken_or_refused_by_its_type(tmp_path: Path) -> None:
    sink = made(tmp_path / "t", evolve="add")
    others = pa.schema([pa.field("crew", pa.int32()), pa.field("rows", pa.string())])
    deltalake.DeltaTable(sink.path).alter.add_columns(deltalake.Schema.from_arrow(others).fields)
    sink.check(MORE)
    sink.stage(key(1), wide(1))
    sink.publish(1, [key(1)])
    assert rows(sink.path) == [(1, 5)]
    assert columns_ever(sink.path) == [SCHEMA.names, [*MORE.names, "rows"]]
    with pytest.raises(InvalidInputError, match="'rows' of type .*string.*int64"):
        sink.check(MORE.append(pa.field("rows", pa.int64())))


def test_a_table_that_was_there_before_gets_the_column_too(tmp_path: Path) -> None:
    sink = made(tmp_path / "t", evolve="add")
    DeltaTable(sink.path, evolve="add").bind("other", UUID(int=7)).check(MORE)
    assert columns_ever(sink.path) == [SCHEMA.names, MORE.names]


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
    sink = made(tmp_path / "t", evolve="add")
    with pytest.raises(InvalidInputError, match=said):
        sink.check(schema)
    assert columns_ever(sink.path) == [SCHEMA.names]


def test_a_new_column_is_refused_by_default(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="'crew' is new"):
        made(tmp_path / "t").check(MORE)
    with pytest.raises(InvalidInputError, match="evolve is 'widen': choose one of refuse, add"):
        made(tmp_path / "t", evolve="widen")


@pytest.mark.parametrize("options", [{}, UPDATE], ids=["append", "update"])
def test_an_added_column_that_others_drop_is_added_again(tmp_path: Path, options: dict[str, Any]) -> None:
    """Delta drops a column by writing the table anew."""
    sink = made(tmp_path / "t", evolve="add", **options)
    sink.check(MORE)
    sink.stage(key(1), wide(1))
    deltalake.write_deltalake(sink.path, SCHEMA.empty_table(), mode="overwrite", schema_mode="overwrite")
    made(tmp_path / "t", **options).publish(1, [key(1)])
    assert rows(sink.path) == [(1, 5)]
    deltalake.write_deltalake(sink.path, SCHEMA.empty_table(), mode="overwrite", schema_mode="overwrite")
    made(tmp_path / "t", evolve="add", **options)
    assert deltalake.DeltaTable(sink.path).schema().to_arrow().names == MORE.names


def changed_by_others(path: str, schema: pa.Schema) -> None:
    deltalake.write_deltalake(path, schema.empty_table(), mode="overwrite", schema_mode="overwrite")


@pytest.mark.parametrize("options", [{}, UPDATE], ids=["append", "update"])
def test_a_sequence_is_not_written_into_columns_that_others_have_changed(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    sink = made(tmp_path / "t", evolve="add", **options)
    sink.check(MORE)
    sink.stage(key(1), wide(1))
    changed_by_others(sink.path, SCHEMA.append(pa.field("crew", pa.string())))
    with pytest.raises(InvalidInputError, match=r"'crew' of type string, which others have changed.*int32"):
        sink.publish(1, [key(1)])
    with pytest.raises(InvalidInputError, match=r"'crew' is int32 \(string before\)"):
        made(tmp_path / "t", evolve="add", **options)
    changed_by_others(sink.path, MORE.remove(2))
    with pytest.raises(InvalidInputError, match=r"lacks the column 'name' of type string.*rename it back"):
        sink.publish(1, [key(1)])
    changed_by_others(sink.path, SCHEMA)
    sink.publish(1, [key(1)])
    assert rows(sink.path) == [(1, 5)] and sink.published() == 1


@pytest.mark.parametrize("evolve", ["refuse", "add"])
def test_columns_of_others_that_may_be_null_are_left_alone(tmp_path: Path, evolve: str) -> None:
    made(tmp_path / "t")
    changed_by_others(str(tmp_path / "t"), MORE)
    sink = made(tmp_path / "t", evolve=evolve)
    sink.stage(key(1), table(1))
    sink.publish(1, [key(1)])
    assert rows(sink.path) == [(1, None)]
    changed_by_others(sink.path, SCHEMA.append(pa.field("crew", pa.int32(), nullable=False)))
    with pytest.raises(InvalidInputError, match="'crew' is missing .int32 not null"):
        made(tmp_path / "t", evolve=evolve)


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.list_(pa.struct([("at", pa.timestamp("us"))]))])
def test_a_column_that_older_readers_do_not_know_is_refused(tmp_path: Path, kind: pa.DataType) -> None:
    sink = made(tmp_path / "t", evolve="add")
    local = SCHEMA.append(pa.field("at", kind))
    with pytest.raises(InvalidInputError, match="'at' of type .*needs the table feature timestampNtz"):
        sink.check(local)
    assert deltalake.DeltaTable(sink.path).protocol().min_reader_version == 1
    feature = deltalake.TableFeatures.TimestampWithoutTimezone
    deltalake.DeltaTable(sink.path).alter.add_feature(feature, allow_protocol_versions_increase=True)
    sink.check(local)
    assert columns_ever(sink.path)[-1] == local.names
    made(tmp_path / "new", evolve="add").check(SCHEMA.append(pa.field("at", pa.timestamp("us", "UTC"))))


def test_a_publisher_that_does_not_know_added_columns_refuses_to_replace_rows_without_them(tmp_path: Path) -> None:
    """Such a publisher reads `files` alone, and merges the columns of `region.json`."""
    for name, options, said in (("a", {}, {"files"}), ("u", UPDATE, {"grown"})):
        sink = made(tmp_path / name, evolve="add", **options)
        sink.stage(key(1), table(1))
        sink.check(MORE)
        sink.stage(key(2), wide(2))
        staged = [Path(sink.path, f"_kohort/{REGION.hex}/staged/{key(number).file_stem()}.json") for number in (1, 2)]
        assert [set(json.loads(piece.read_bytes())) for piece in staged] == [{"files"}, said]
        sink.publish(1, [key(1), key(2)])
        assert rows(sink.path) == [(1, None), (2, 5)]


def test_an_update_leaves_the_columns_of_others(tmp_path: Path) -> None:
    sink = made(tmp_path / "t", **UPDATE)
    others = deltalake.Schema.from_arrow(pa.schema([pa.field("crew", pa.int32())])).fields
    deltalake.DeltaTable(sink.path).alter.add_columns(others)
    deltalake.write_deltalake(sink.path, wide(1, crew=7), mode="append")
    made(tmp_path / "t", **UPDATE)
    sink.stage(key(1), table(1, 2))
    sink.publish(1, [key(1)])
    assert rows(sink.path) == [(1, 7), (2, None)]


@pytest.mark.parametrize("options", [{}, UPDATE], ids=["append", "update"])
def test_a_reset_keeps_the_column(tmp_path: Path, options: dict[str, Any]) -> None:
    sink = made(tmp_path / "t", evolve="add", **options)
    sink.check(MORE)
    sink.stage(key(1), wide(1))
    sink.publish(1, [key(1)])
    sink.empty(2, 2)
    assert rows(sink.path) == [] and sink.published() == 2
    sink.stage(key(2, epoch=2), wide(1, crew=6))
    made(tmp_path / "t", evolve="add", **options).stage(key(3, epoch=2), table(2))
    sink.publish(3, [key(2, epoch=2), key(3, epoch=2)])
    sink.sweep(Keep(3))
    assert rows(sink.path) == [(1, 6), (2, None)] and sink.published() == 3
    assert columns_ever(sink.path) == [SCHEMA.names, MORE.names]


def test_a_member_submits_tables_with_and_without_the_new_column(tmp_path: Path) -> None:
    stager = RowStager(made(tmp_path / "t", evolve="add"), REGION, "a")
    stager.begin_epoch(1)
    untyped = table(0).append_column("crew", pa.nulls(1))
    for rows_of_table in (untyped, table(1), wide(2), table(3), table(4).append_column("crew", pa.nulls(1))):
        stager.add(rows_of_table)
        stager.finish_table()
    made(tmp_path / "t").publish(1, stager.stage_rest())
    assert rows(tmp_path / "t") == [(0, None), (1, None), (2, 5), (3, None), (4, None)]
    assert columns_ever(tmp_path / "t") == [SCHEMA.names, MORE.names]


def test_an_older_marker_of_another_thread_does_not_refuse_a_new_column(tmp_path: Path) -> None:
    sink, other = (made(tmp_path / "t", evolve="add") for _ in range(2))
    other.check(MORE)
    assert sink.check_rows(wide(1)).column_names == MORE.names
    with pytest.raises(InvalidInputError, match="'seats' is new"):
        sink.check_rows(wide(1).append_column("seats", pa.array([2])))


def test_polars_sees_the_new_column(tmp_path: Path) -> None:
    sink = made(tmp_path / "t", evolve="add")
    sink.stage(key(1), table(1))
    sink.publish(1, [key(1)])
    sink.check(MORE)
    sink.stage(key(2), wide(2))
    sink.publish(2, [key(2)])
    frame = polars.read_delta(sink.path).select("id", "crew")
    assert sorted(frame.rows()) == [(1, None), (2, 5)]


# Processes that end at each call.

FIRST, SECOND, THIRD = (StagedKey(place_runs.REGION, 5, member, 1) for member in "abc")
GROWN = PLACE_SCHEMA.append(pa.field("crew", pa.int32()))


def grown(*given: tuple[int, str, int], column: str = "crew") -> pa.Table:
    names = [row[1] for row in given]
    schema = PLACE_SCHEMA.append(pa.field(column, pa.int32()))
    return pa.table({"id": [row[0] for row in given], "name": names, column: [row[2] for row in given]}, schema=schema)


def values(place: DeltaPlace, column: str = "crew") -> list[tuple[int, int | None]]:
    found = deltalake.DeltaTable(place.path).to_pyarrow_table()
    crew = found.column(column).to_pylist() if column in found.column_names else [None] * found.num_rows
    return sorted(zip(found.column("id").to_pylist(), crew, strict=True))


def evolve(sink: Sink) -> None:
    """Add the column, stage rows with it, and publish them beside older rows."""
    sink.check(GROWN)
    sink.stage(SECOND, grown((2, "two", 5)))
    sink.publish(1, [FIRST, SECOND])


def begun(kind: str, root: Path) -> Trials:
    options: dict[str, Any] = {"delta-update": UPDATE, "delta-parted": {"partition_by": ["name"]}}.get(kind, {})
    place = (DeltaObjectsPlace if kind == "delta-objects" else DeltaPlace)(kind, evolve="add", **options)
    place.at(root / "first")
    sink = place.sink()
    sink.check(PLACE_SCHEMA)
    sink.stage(FIRST, place_table([(1, "one")]))
    return Trials(place, root, short_every=3)


def finish(place: Any) -> None:
    """Another member takes over; each row is there once, and so is the column."""
    assert values(place) in ([], [(1, None), (2, 5)])
    older, sink = place.sink(), place.sink()
    older.check(PLACE_SCHEMA)
    if sink.published() < 1:
        sink.check(GROWN)
        sink.stage(SECOND, grown((2, "two", 5)))
    older.publish(1, [FIRST, SECOND])
    assert values(place) == [(1, None), (2, 5)]
    assert columns_ever(place.path) == [PLACE_SCHEMA.names, GROWN.names]
    sink.empty(2, 6)
    again = StagedKey(place_runs.REGION, 6, "a", 1)
    sink.stage(again, grown((1, "again", 6)))
    sink.publish(3, [again])
    sink.sweep(Keep(7))
    assert values(place) == [(1, 6)] and sink.published() == 3 and place.staged() == []


def killed_while_the_column_is_added(kind: str, root: Path) -> None:
    for place in begun(kind, root).deaths(evolve):
        finish(place)


def held_while_another_adds(kind: str, root: Path, column: str) -> None:
    """One is held at each call, while another adds the same column, or one of its own, and stages."""

    def meanwhile(place: Any, number: int) -> None:
        sink = place.sink()
        sink.check(grown(column=column).schema)
        sink.stage(THIRD, grown((3, "three", 7), column=column))

    for place in begun(kind, root).holds(evolve, meanwhile):
        assert values(place) == [(1, None), (2, 5)]  # type: ignore[arg-type]
        place.sink().publish(2, [THIRD])
        assert (3, 7) in values(place, column)  # type: ignore[arg-type]
        for given in (GROWN, grown(column=column).schema):
            place.sink(evolve="refuse").check(given)  # type: ignore[call-arg]
        names = columns_ever(place.path)  # type: ignore[attr-defined]
        assert len(names) == 2 + (column != "crew") and set(names[-1]) == {*GROWN.names, column}


def held_while_others_add(kind: str, root: Path) -> None:
    """A member is held at each call, while another program adds the same column and writes a row with it."""

    def meanwhile(place: Any, number: int) -> None:
        others = deltalake.DeltaTable(place.path)
        if len(others.schema().fields) == len(PLACE_SCHEMA):
            others.alter.add_columns(deltalake.Schema.from_arrow(pa.schema([GROWN.field("crew")])).fields)
        deltalake.write_deltalake(place.path, grown((9, "nine", 9)), mode="append")

    for place in begun(kind, root).holds(evolve, meanwhile):
        assert values(place) == [(1, None), (2, 5), (9, 9)]  # type: ignore[arg-type]
        assert columns_ever(place.path) == [PLACE_SCHEMA.names, GROWN.names]  # type: ignore[attr-defined]


KINDS = ("delta", "delta-parted", "delta-update", "delta-objects")


@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_each_call_leaves_each_row_and_the_column_once(kind: str, root: Path) -> None:
    killed_while_the_column_is_added(kind, root)


@pytest.mark.parametrize("column", ["crew", "seats"])
@pytest.mark.parametrize("kind", KINDS)
def test_members_that_add_columns_at_each_moment_of_another(kind: str, column: str, root: Path) -> None:
    held_while_another_adds(kind, root, column)


@pytest.mark.parametrize("kind", KINDS)
def test_members_and_others_that_add_a_column_at_each_moment(kind: str, root: Path) -> None:
    held_while_others_add(kind, root)


def test_a_column_is_durable_before_rows_with_it_are_staged(root: Path) -> None:
    trials = begun("delta", root)
    calls = Calls()
    trials.place.sink(calls).check(GROWN)
    trace = [call.replace(str(trials.place.path), "") for call in calls.trace]  # type: ignore[attr-defined]
    added = trace.index("add columns")
    named = next(at for at, call in enumerate(trace) if call.startswith("link ") and call.endswith("columns-1.json"))
    assert f"fsync /_delta_log/{1:020}.json" in trace[added:named]
    assert "fsync /_delta_log" in trace[added:named]
    assert f"fsync /_kohort/{place_runs.REGION.hex}" in trace[named:]


def test_commits_of_others_before_a_sequence_are_durable_with_it(root: Path) -> None:
    """A log with a gap can't be read, and other writers do not sync their commits."""
    place = begun("delta", root).place
    place.sink().publish(1, [FIRST])
    others = deltalake.Schema.from_arrow(pa.schema([GROWN.field("crew")])).fields
    deltalake.DeltaTable(place.path).alter.add_columns(others)  # type: ignore[attr-defined]
    deltalake.write_deltalake(place.path, grown((9, "nine", 9)), mode="append")  # type: ignore[attr-defined]
    calls = Calls()
    sink = place.sink(calls)
    sink.stage(SECOND, place_table([(2, "two")]))
    sink.publish(2, [SECOND])
    trace = [call.replace(str(place.path), "") for call in calls.trace]  # type: ignore[attr-defined]
    marked = next(at for at, call in enumerate(trace) if call.startswith("open ") and "published-2" in call)
    assert {f"fsync /_delta_log/{version:020}.json" for version in (2, 3, 4)} <= set(trace[:marked])


def test_commits_of_others_before_a_new_column_are_durable_with_it(root: Path) -> None:
    place = begun("delta", root).place
    place.sink().publish(1, [FIRST])
    deltalake.write_deltalake(place.path, place_table([(9, "nine")]), mode="append")
    calls = Calls()
    place.sink(calls).check(GROWN)
    trace = [call.replace(str(place.path), "") for call in calls.trace]  # type: ignore[attr-defined]
    named = next(at for at, call in enumerate(trace) if call.startswith("link ") and call.endswith("columns-1.json"))
    assert {f"fsync /_delta_log/{version:020}.json" for version in (2, 3)} <= set(trace[:named])


def test_first_sequence_syncs_no_commit_before_the_last_checkpoint_of_a_table(root: Path) -> None:
    """A table of others may have tens of thousands of commits."""
    place = DeltaPlace("delta", evolve="add")
    place.at(root / "first")
    for number in range(6):
        deltalake.write_deltalake(place.path, place_table([(number, "of others")]), mode="append")
        if number == 3:
            deltalake.DeltaTable(place.path).create_checkpoint()
    calls = Calls()
    sink = place.sink(calls)
    sink.check(PLACE_SCHEMA)
    sink.stage(FIRST, place_table([(9, "nine")]))
    sink.publish(1, [FIRST])
    trace = [call.replace(str(place.path), "") for call in calls.trace]  # type: ignore[attr-defined]
    newest = deltalake.DeltaTable(place.path).version()
    assert {f"fsync /_delta_log/{version:020}.json" for version in range(4, newest + 1)} <= set(trace)
    assert not {f"fsync /_delta_log/{version:020}.json" for version in range(4)} & set(trace)
    assert {"fsync /_delta_log/_last_checkpoint", f"fsync /_delta_log/{3:020}.checkpoint.parquet"} <= set(trace)


Patch = pytest.MonkeyPatch


def _a_second_member_replaces_the_columns(patch: Patch) -> None:
    """The marker's file of a second member replaces that of the first."""

    def try_add_columns(files: Any, folder: str, number: int, columns: Any) -> bool:
        data = json.dumps({"format": 1, "schema": owner_marker.encode_schema(pa.schema(columns))}).encode()
        Path(f"{folder}/columns-{number}.json").write_bytes(data)
        return True

    patch.setattr(owner_marker, "try_add_columns", try_add_columns)


def _publishes_by_what_it_knew(patch: Patch) -> None:
    """Merge with the columns that the publisher knew when it started."""
    whole = DeltaTable._merge
    patch.setattr(
        DeltaTable,
        "_merge",
        lambda self, table, sequence, staged, claim: whole(
            self, table, sequence, staged, owner_marker.read_owner_marker(self._files, self._own)
        ),
    )


def _adds_to_whatever_is_newest(patch: Patch) -> None:
    """The library's own retry."""

    def try_add_columns(self: DeltaLog, table: Any, columns: Any) -> bool:
        deltalake.DeltaTable(self._path).alter.add_columns(deltalake.Schema.from_arrow(pa.schema(columns)).fields)
        return True

    patch.setattr(DeltaLog, "try_add_columns", try_add_columns)


Run = Callable[[str, Path], None]


def both(kind: str, root: Path) -> None:
    held_while_another_adds(kind, root, "seats")


def the_same(kind: str, root: Path) -> None:
    held_while_another_adds(kind, root, "crew")


@pytest.mark.parametrize(
    ("mutant", "kind", "run"),
    [
        (_a_second_member_replaces_the_columns, "delta", both),
        (_publishes_by_what_it_knew, "delta-update", killed_while_the_column_is_added),
        (_adds_to_whatever_is_newest, "delta", the_same),
    ],
)
def test_the_run_kills_the_mutant(mutant: Callable[[Patch], None], kind: str, run: Run, root: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        with pytest.raises((AssertionError, InvalidInputError)):
            run(kind, root)
