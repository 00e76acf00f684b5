"""One set of cases for every sink: each call at which a process can die, fail or stop; faults that must be found."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from kohort.errors import CorruptDataError, InvalidInputError, KafkaError, RetriableError
from kohort.region.files import remove_file
from kohort.region.sinks import Keep, Sink, delta_table, iceberg_files, iceberg_table, rows, sql_table
from kohort.region.sinks.delta_log import DeltaLog
from kohort.region.sinks.delta_table import DeltaTable
from kohort.region.sinks.ducklake_table import DuckLakeTable
from kohort.region.sinks.iceberg_log import IcebergLog
from kohort.region.sinks.iceberg_table import IcebergTable
from kohort.region.sinks.parquet_folder import ParquetFolder
from kohort.region.sinks.parquet_objects import ParquetObjects
from kohort.region.sinks.sql_table import SqlTable
from kohort.region.staged import StagedKey
from tests.region import place_runs as runs
from tests.region.places import REGION, SCHEMA, Calls, HeldFileIO, Place, kinds, merged, same, table
from tests.region.postgres import PostgresPlace, Server
from tests.support.long_runs import IS_LONG

OTHER = UUID(int=0xB0B)
KINDS = {case.kind: case for case in kinds()}
POSTGRES = ("postgres", "postgres-update")


@pytest.fixture(params=[*KINDS, *POSTGRES])
def place(request: pytest.FixtureRequest, root: Path) -> Place:
    if request.param in POSTGRES:
        server: Server = request.getfixturevalue("postgres")
        made: Place = PostgresPlace(request.param, server.fresh())
    else:
        made = copy.copy(KINDS[request.param])
    made.at(root / "first")
    return made


@pytest.fixture
def sink(place: Place) -> Sink:
    made = place.sink()
    made.check(SCHEMA)
    return made


def key(unit: int, member: str = "worker-1", epoch: int = 1) -> StagedKey:
    return StagedKey(REGION, epoch, member, unit)


def test_what_is_published_is_seen_and_nothing_else(place: Place, sink: Sink) -> None:
    assert sink.published() == 0
    sink.stage(key(1), table([(1, "a"), (2, "b")]))
    sink.stage(key(1, "größe/2"), table([(3, "c")]))
    sink.stage(key(2), table([(4, "d")]))
    assert place.rows() == []
    sink.publish(1, [key(1), key(1, "größe/2")])
    assert place.rows() == [(1, "a"), (2, "b"), (3, "c")]
    sink.publish(1, [key(1), key(1, "größe/2")])
    assert place.rows() == [(1, "a"), (2, "b"), (3, "c")] and sink.published() == 1
    sink.publish(2, [key(2)])
    assert place.rows()[-1] == (4, "d") and sink.published() == 2
    if not place.kind.startswith("parquet") or "objects" in place.kind:
        assert sink.place == place.sink(region=OTHER).place  # type: ignore[attr-defined]


def test_a_sequence_without_rows_is_done(place: Place, sink: Sink) -> None:
    sink.stage(key(1), table([]))
    sink.publish(1, [key(1)])
    sink.publish(2, [])
    assert sink.published() == 2 and place.rows() == [] and place.staged() == []
    sink.publish(1, [key(1)])
    assert sink.published() == 2


def test_a_key_that_nobody_staged_is_lost_output(place: Place, sink: Sink) -> None:
    sink.stage(key(1), table([(1, "a")]))
    with pytest.raises(CorruptDataError, match=r"(?s)Sequence 1.*are gone.*worker-1-e1-u2"):
        sink.publish(1, [key(1), key(2)])
    assert sink.published() == 0 and place.rows() == []


def test_staged_again_the_last_counts(place: Place, sink: Sink) -> None:
    sink.stage(key(1), table([(1, "a")]))
    sink.stage(key(1), table([]))
    sink.stage(key(1), table([(7, "g"), (8, "h")]))
    sink.stage(key(1), table([(7, "G")]))
    sink.publish(1, [key(1)])
    assert place.rows() == [(7, "G")] and place.staged() == []


def test_of_rows_of_one_key_the_later_unit_counts_then_the_later_row(place: Place, sink: Sink) -> None:
    first, second = [(1, "a"), (1, "b")], [(1, "c"), (2, "d"), (2, "e")]
    sink.stage(key(10, "a"), table(second))
    sink.stage(key(9, "b"), table(first))
    sink.publish(1, [key(10, "a"), key(9, "b")])
    assert same(place.rows(), merged(place, first, second))
    assert not place.replaces or place.rows() == [(1, "c"), (2, "e")]


def test_a_schema_that_does_not_fit_is_refused_for_good(sink: Sink) -> None:
    given = pa.schema([("id", pa.int32()), ("extra", pa.string())])
    for act in (lambda: sink.check(given), lambda: sink.stage(key(1), given.empty_table())):
        with pytest.raises(InvalidInputError, match="extra|no column 'name'|keys names|partition_by names"):
            act()
    sink.check(pa.schema([("name", pa.string()), ("id", pa.int64())], metadata={"a": "b"}))
    sink.stage(key(1), table([(1, "a")]).select(["name", "id"]))


def test_as_spark_delivers_it(place: Place) -> None:
    schema = pa.schema([
        ("id", pa.int64()), ("name", pa.large_string()), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()),
        ("amount", pa.decimal128(38, 18)), ("raw", pa.large_binary()), ("flag", pa.bool_()), ("share", pa.float64()),
        pa.field("small", pa.int8(), nullable=False),
    ])  # fmt: skip
    sink = place.sink()
    if place.kind.startswith("parquet"):
        schema = schema.set(1, pa.field("name", pa.string())).set(5, pa.field("raw", pa.binary()))
    sink.check(schema)
    values = {"id": [2**62], "name": ["x"], "at": [1], "day": [1], "amount": [None], "raw": [b"\0\xff"], "flag": [True],
              "share": [0.5], "small": [-1]}  # fmt: skip
    sink.stage(
        key(1), pa.table({field.name: pa.array(values[field.name], field.type) for field in schema}, schema=schema)
    )
    sink.publish(1, [key(1)])
    assert place.rows() == [(2**62, "x")]


def test_nested_types(place: Place) -> None:
    nested = pa.struct([("x", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.float64()))])
    schema = pa.schema([*SCHEMA, ("nested", nested)])
    sink = place.sink()
    if not place.kind.startswith(("delta", "ducklake", "iceberg", "parquet")):
        with pytest.raises(InvalidInputError, match="'nested'.*to_json"):
            sink.check(schema)
        return
    sink.check(schema)
    said = {"id": [1], "name": ["a"], "nested": [{"x": [1, None], "m": [("k", 0.5)]}]}
    sink.stage(key(1), pa.table(said, schema=schema))
    sink.publish(1, [key(1)])
    assert place.rows() == [(1, "a")]


def test_null_where_none_may_be(place: Place) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    sink = place.sink()
    sink.check(schema)
    with pytest.raises(InvalidInputError, match="'id' may be null now|takes no null in 'id'"):
        sink.check(SCHEMA)
    with pytest.raises(InvalidInputError, match="Null in columns that may not be: id"):
        sink.stage(key(1), pa.table({"id": pa.array([None], pa.int64()), "name": ["a"]}, schema=schema))


def test_before_bind_and_check_it_says_what_to_do(place: Place) -> None:
    sink = place.sink()
    with pytest.raises(InvalidInputError, match="call check"):
        sink.stage(key(1), table([(1, "a")]))
    assert sink.published() == 0
    sink.sweep(Keep(3))
    sink.empty(1, 3)
    sink.check(SCHEMA)
    with pytest.raises(InvalidInputError, match="the first is 1"):
        sink.publish(0, [])
    with pytest.raises(InvalidInputError, match="key of another region"):
        sink.stage(StagedKey(OTHER, 1, "a", 1), table([(1, "a")]))


def test_place_that_shows_the_number_of_a_reset_is_emptied(place: Place, sink: Sink) -> None:
    """The topic is from an older copy, without the sequence that the place shows: its rows stayed, and came again."""
    sink.stage(key(1), table([(1, "a")]))
    sink.publish(1, [key(1)])
    sink.stage(key(2), table([(2, "b")]))
    sink.publish(3, [key(2)])
    sink.stage(key(3, epoch=2), table([(1, "again")]))
    for _ in range(2):
        sink.empty(3, 2)
        assert place.rows() == [] and sink.published() == 3
    sink.publish(4, [key(3, epoch=2)])
    sink.empty(3, 2)
    assert place.rows() == [(1, "again")] and sink.published() == 4, "who is late takes nothing out"


def test_another_region(place: Place, sink: Sink) -> None:
    sink.stage(key(1), table([(1, "a")]))
    sink.publish(1, [key(1)])
    stranger, theirs = place.sink(region=OTHER), StagedKey(OTHER, 1, "worker-1", 1)
    if not place.shared:
        with pytest.raises(InvalidInputError, match=f"{REGION}.*{OTHER}"):
            stranger.check(SCHEMA)
        return
    stranger.check(SCHEMA)
    assert stranger.published() == 0
    stranger.stage(theirs, table([(2, "b")]))
    stranger.sweep(Keep(0))
    stranger.publish(1, [theirs])
    assert place.rows() == [(1, "a"), (2, "b")], "a region made anew loses nothing"
    if not place.replaces:
        sink.empty(2, 9)
        assert place.rows() == [(2, "b")]


def test_a_copy_by_pickle(place: Place, sink: Sink) -> None:
    plain: Any = None
    if place.kind.startswith("sqlite"):
        plain = SqlTable(f"sqlite:///{place.path}", "flights", mode=sink.mode, keys=sink.keys)  # type: ignore[attr-defined]
    elif place.kind.startswith("delta") and "objects" not in place.kind:
        plain = DeltaTable(sink.path, mode=sink.mode, keys=sink.keys)  # type: ignore[attr-defined]
    if plain is not None:
        plain._place = sink.place
        sink = plain.bind("r", REGION)
    pickle.loads(pickle.dumps(sink)).stage(key(1), table([(1, "a")]))
    pickle.loads(pickle.dumps(sink)).publish(1, [key(1)])
    assert place.rows() == [(1, "a")]


def test_publishers_at_once_and_a_reader(place: Place) -> None:
    """Three of them, each with all sequences; who reads sees only the first ones, each whole."""
    last = 8 if IS_LONG else 4
    first = place.sink()
    first.check(SCHEMA)
    wanted: list[list[tuple[int, str]]] = [[]]
    for sequence in range(1, last + 1):
        first.stage(key(sequence, "a"), table([(sequence * 10, "a"), (0, f"at {sequence}")]))
        first.stage(key(sequence, "b"), table([(sequence * 10 + 1, "b")]))
        wanted.append([*wanted[-1], (sequence * 10, "a"), (0, f"at {sequence}"), (sequence * 10 + 1, "b")])
    failed: list[BaseException] = []

    def publish() -> None:
        sink = place.sink()
        try:
            for sequence in range(1, last + 1):
                done = False
                while not done:
                    with contextlib.suppress(RetriableError):
                        sink.publish(sequence, [key(sequence, "a"), key(sequence, "b")])
                        sink.sweep(Keep(1))
                        done = True
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    threads = [threading.Thread(target=publish) for _ in range(3)]
    for thread in threads:
        thread.start()
    seen = []
    while any(thread.is_alive() for thread in threads):
        if not place.kind.startswith("parquet") or "objects" in place.kind:  # two folders of it are two looks
            seen.append(place.rows())
    for thread in threads:
        thread.join()
    assert failed == []
    allowed = [merged(place, rows) for rows in wanted]
    assert all(any(same(rows, outcome) for outcome in allowed) for rows in seen)
    assert same(place.rows(), allowed[-1]) and first.published() == last and place.staged() == []


def test_what_is_said_is_durable(place: Place) -> None:
    """Files and commits are synced before a sequence is marked as done, and it is marked before anything goes."""
    if "delta" not in place.kind or "objects" in place.kind:
        pytest.skip("Parquet folders lose power in their own tests, databases and stores keep what they commit")
    _commits_are_durable_before_they_are_marked(place)


def _commits_are_durable_before_they_are_marked(place: Place) -> None:
    calls = Calls()
    sink = place.sink(calls)
    sink.check(SCHEMA)
    sink.stage(key(1), table([(1, "a")]))
    staged = [call for call in calls.trace if call.startswith("fsync") and call.endswith((".parquet", ".part"))]
    assert len(staged) == 3, "the rows, what is said of them, and whose the table is"
    calls.trace.clear()
    sink.publish(1, [key(1)])
    trace = [call.replace(str(sink.path), "") for call in calls.trace]  # type: ignore[attr-defined]
    committed = next(at for at, call in enumerate(trace) if call in ("commit", "merge"))
    marked = next(at for at, call in enumerate(trace) if call.startswith("open ") and "published-1" in call)
    removed = next(at for at, call in enumerate(trace) if call.startswith(("rename", "unlink")) and "/staged/" in call)
    assert f"fsync /_delta_log/{1:020}.json" in trace[committed:marked]
    assert "fsync /_delta_log" in trace
    assert committed < len(trace) - trace[::-1].index("fsync /_delta_log") - 1 < marked < removed
    if committed and trace[committed] == "commit":
        assert "fsync " in trace[:committed], "the second names, before the log says them"
    else:
        assert any(call.startswith("fsync /part-") for call in trace[committed:marked])


@pytest.mark.slow
@pytest.mark.timeout(600)  # DuckLake's take up to a minute of processor time each
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", runs.RUNS, ids=lambda run: run.__name__)
def test_run(run: Callable[[Place, Path], None], kind: str, root: Path) -> None:
    run(copy.copy(KINDS[kind]), root)


@pytest.mark.parametrize(
    "kind",
    [
        *(
            kind
            for kind in KINDS
            if kind.startswith(("delta", "ducklake")) or kind in ("iceberg-parted", "iceberg-update")
        ),
        pytest.param("iceberg", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("run", runs.SHARED_RUNS, ids=lambda run: run.__name__)
def test_a_table_that_others_write_too(run: Callable[[Place, Path], None], kind: str, root: Path) -> None:
    run(copy.copy(KINDS[kind]), root)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind, case in KINDS.items() if case.replaces and case.shared])
@pytest.mark.parametrize("run", runs.UPDATE_RUNS, ids=lambda run: run.__name__)
def test_a_sequence_that_replaces_rows(run: Callable[[Place, Path], None], kind: str, root: Path) -> None:
    run(copy.copy(KINDS[kind]), root)


Patch = pytest.MonkeyPatch


def _does_not_look_into_the_log(patch: Patch) -> None:
    patch.setattr(DeltaLog, "has_sequence", lambda self, table, sequence: False)


def _refused_by_the_log_is_done(patch: Patch) -> None:
    def until_there(self: DeltaTable, is_there: Any, commit: Any) -> None:
        if not is_there(table := self._log.load()):
            commit(table)

    patch.setattr(DeltaTable, "_until_there", until_there)


def _delta_marks_first(patch: Patch) -> None:
    whole = DeltaTable._bring

    def bring(self: DeltaTable, sequence: int, staged: Any, lost: str) -> None:
        delta_table.staged_files.mark_published(self._files, self._own, sequence)
        whole(self, sequence, staged, lost)

    patch.setattr(DeltaTable, "_bring", bring)


def _delta_removes_before_it_is_marked(patch: Patch) -> None:
    whole = DeltaLog.sync_last_commit

    def settle(self: DeltaLog, newest: int, synced: Any) -> None:
        whole(self, newest, synced)
        staged = f"{self._path}/_kohort/{REGION.hex}/staged"
        for name in self._files.listdir(staged):
            self._files.unlink(f"{staged}/{name}")

    patch.setattr(DeltaLog, "sync_last_commit", settle)


def _transaction_by_name(patch: Patch) -> None:
    whole = DeltaLog.__init__
    patch.setattr(DeltaLog, "__init__", lambda self, path, region_id, files: whole(self, path, UUID(int=0), files))


def _no_settling(patch: Patch) -> None:
    patch.setattr(DeltaLog, "sync_last_commit", lambda self, newest, synced: None)


def _nothing_to_take_out_is_not_said(patch: Patch) -> None:
    whole = DeltaLog.is_emptied
    patch.setattr(
        DeltaLog, "is_emptied", lambda self, at, sequence: whole(self, at, sequence) or not self.data_file_entries(at)
    )


def _delta_sweeps_all(patch: Patch) -> None:
    whole = DeltaTable.sweep
    patch.setattr(DeltaTable, "sweep", lambda self, keep: whole(self, Keep(keep.floor)))


def _first_staged_counts(patch: Patch) -> None:
    def in_order(keys: Iterable[StagedKey]) -> list[StagedKey]:
        return sorted(set(keys), key=lambda each: (each.member, each.unit))

    patch.setattr(delta_table, "sort_staged_keys", in_order)
    patch.setattr(iceberg_table, "sort_staged_keys", in_order)
    patch.setattr(sql_table, "sort_staged_keys", in_order)


def _first_row_counts(patch: Patch) -> None:
    for module in (delta_table, iceberg_table):
        patch.setattr(module, "last_row_of_each_key", lambda given, keys: rows.last_row_of_each_key(given[::-1], keys))
    whole = SqlTable._moving
    patch.setattr(SqlTable, "_moving", lambda self, columns: whole(self, columns).replace("DESC", "ASC"))


def _a_transaction_for_each_statement(patch: Patch) -> None:
    whole = sql_table._Cursor.execute_template

    def run(self: Any, statement: str, *given: object) -> None:
        whole(self, statement, *given)
        if not statement.startswith("SELECT"):
            self.cursor.execute("COMMIT")
            self.cursor.execute("BEGIN IMMEDIATE")

    patch.setattr(sql_table._Cursor, "execute_template", run)


def _sequence_is_not_asked(patch: Patch) -> None:
    patch.setattr(SqlTable, "_mine", lambda self, at: 0)


def _sql_sweeps_all(patch: Patch) -> None:
    whole = SqlTable.sweep
    patch.setattr(SqlTable, "sweep", lambda self, keep: whole(self, Keep(keep.floor)))


def _sql_says_nothing_of_emptying(patch: Patch) -> None:
    whole = sql_table._Cursor.execute_template

    def run(self: Any, statement: str, *given: object) -> None:
        if not (statement.startswith("UPDATE {sequences}") and given[0] == 3):
            whole(self, statement, *given)

    patch.setattr(sql_table._Cursor, "execute_template", run)


def _its_own_number_is_taken_for_emptied(patch: Patch) -> None:
    for kind in (ParquetFolder, ParquetObjects, DeltaTable, DuckLakeTable, IcebergTable, SqlTable):
        patch.setattr(kind, "empty", _empties_what_shows_less(kind.empty))


def _empties_what_shows_less(whole: Callable[[Any, int, int], None]) -> Callable[[Any, int, int], None]:
    def empty(sink: Sink, sequence: int, floor: int) -> None:
        if sink.published() < sequence:
            whole(sink, sequence, floor)

    return empty


def _a_later_number_is_not_seen(patch: Patch) -> None:
    patch.setattr(DeltaLog, "is_emptied", lambda self, table, sequence: False)
    patch.setattr(DeltaTable, "_is_marked", lambda self, sequence: False)


def _iceberg_does_not_look(patch: Patch) -> None:
    patch.setattr(IcebergLog, "has_sequence", lambda self, table, sequence: False)


def _the_library_tries_again(patch: Patch) -> None:
    """The library's own retry builds the snapshot anew on whatever the table is by then."""

    def commit(self: IcebergLog, table: Table, sequence: int, added: Any, offsets: str) -> bool:
        with table.transaction() as transaction:
            with transaction.update_snapshot().fast_append() as producer:
                for file in added:
                    producer.append_data_file(file)
            transaction.set_properties({f"{self._prefix}sequence": str(sequence)})
        return True

    patch.setattr(IcebergLog, "commit", commit)


def _iceberg_marks_first(patch: Patch) -> None:
    whole = IcebergTable._bring

    def bring(self: IcebergTable, sequence: int, *given: Any) -> None:
        self._mark(self._load_table(), sequence)
        whole(self, sequence, *given)

    patch.setattr(IcebergTable, "_bring", bring)


def _emptying_adds_no_snapshot(patch: Patch) -> None:
    whole = IcebergLog.commit_emptied

    def commit_emptied(self: IcebergLog, table: Table, sequence: int, removed: Any) -> bool:
        if removed:
            return whole(self, table, sequence, removed)
        with table.transaction() as transaction:
            transaction.set_properties({self._prefix + name: str(sequence) for name in ("sequence", "emptied")})
        return True

    patch.setattr(IcebergLog, "commit_emptied", commit_emptied)


def _an_update_has_two_snapshots(patch: Patch) -> None:
    """Rows go in one snapshot and come in the next: pyiceberg's own upsert does that."""
    whole = IcebergLog._commit_changes

    def commit(
        self: IcebergLog, table: Table, properties: Any, summary: Any, added: Any, removed: Any, *more: Any
    ) -> bool:
        if removed and added:
            whole(self, table, {}, {}, (), removed)
            table = self.load()
        return whole(self, table, properties, summary, added, () if added else removed, *more)

    patch.setattr(IcebergLog, "_commit_changes", commit)


def _a_refused_merge_is_tried_again_as_it_is(patch: Patch) -> None:
    """The files of the first attempt are committed upon whatever the table has become by then."""
    kept: list[Any] = []
    whole = IcebergTable._merged

    def merged(self: IcebergTable, *given: Any) -> Any:
        if not kept:
            kept.append(whole(self, *given))
        return kept[0]

    patch.setattr(IcebergTable, "_merged", merged)


def _an_update_removes_what_is_staged_first(patch: Patch) -> None:
    whole = IcebergLog.commit

    def commit(self: IcebergLog, table: Table, *given: Any) -> bool:
        for path in Path(HeldFileIO.OPEN[table.io.properties["held"]][0]).glob("air/flights/_kohort/*/*/staged/*"):
            path.unlink()
        return whole(self, table, *given)

    patch.setattr(IcebergLog, "commit", commit)


def _attempts_are_not_named(patch: Patch) -> None:
    whole = iceberg_files._LocalStore.replace_file

    def put(self: Any, folder: str, name: str, data: bytes) -> None:
        if not folder.endswith("/merges"):
            whole(self, folder, name, data)

    patch.setattr(iceberg_files._LocalStore, "replace_file", put)


def _all_attempts_are_settled(patch: Patch) -> None:
    """Also one whose commit may still succeed."""
    whole = iceberg_table.remove_failed_attempts
    patch.setattr(
        iceberg_table, "remove_failed_attempts", lambda store, folder, last, there: whole(store, folder, 99, there)
    )


def _iceberg_sweeps_all(patch: Patch) -> None:
    whole = IcebergTable.sweep
    patch.setattr(IcebergTable, "sweep", lambda self, keep: whole(self, Keep(keep.floor)))


def _iceberg_names_no_file_before_it_is_written(patch: Patch) -> None:
    whole = iceberg_files._LocalStore.replace_file

    def put(self: Any, folder: str, name: str, data: bytes) -> None:
        if b'"whole":false' not in data:
            whole(self, folder, name, data)

    patch.setattr(iceberg_files._LocalStore, "replace_file", put)


def _lake_does_not_look(patch: Patch) -> None:
    whole = DuckLakeTable._until_there
    patch.setattr(DuckLakeTable, "_until_there", lambda self, is_there, act: whole(self, lambda state: False, act))


def _lake_marks_first(patch: Patch) -> None:
    whole = DuckLakeTable._bring

    def bring(self: DuckLakeTable, sequence: int, *given: Any) -> bool:
        self._mark(self._load()[0], sequence)
        return whole(self, sequence, *given)

    patch.setattr(DuckLakeTable, "_bring", bring)


def _lake_sweeps_all(patch: Patch) -> None:
    whole = DuckLakeTable.sweep
    patch.setattr(DuckLakeTable, "sweep", lambda self, keep: whole(self, Keep(keep.floor)))


def _lake_names_no_file_before_it_is_written(patch: Patch) -> None:
    whole = DuckLakeTable._put_piece

    def put(self: DuckLakeTable, state: Any, staged: StagedKey, piece: Any) -> None:
        if piece.whole:
            whole(self, state, staged, piece)

    patch.setattr(DuckLakeTable, "_put_piece", put)


def _lake_removes_what_it_has(patch: Patch) -> None:
    def remove_all(self: DuckLakeTable, state: Any, names: Any) -> None:
        for name in names:
            remove_file(self._files, self._file(state, name))

    patch.setattr(DuckLakeTable, "_remove_unknown", remove_all)


def _made_anew(place: Place, root: Path) -> None:
    place.at(root / "first")
    place.sink().check(SCHEMA)
    test_another_region(place, place.sink())


def _ordered(place: Place, root: Path) -> None:
    place.at(root / "first")
    sink = place.sink()
    sink.check(SCHEMA)
    test_of_rows_of_one_key_the_later_unit_counts_then_the_later_row(place, sink)


def _durable(place: Place, root: Path) -> None:
    place.at(root / "first")
    _commits_are_durable_before_they_are_marked(place)


Mutant = tuple[Callable[[Patch], None], str, Callable[[Place, Path], None]]
MUTANTS: tuple[Mutant, ...] = (
    (_does_not_look_into_the_log, "delta", runs.compacted_meanwhile),
    (_refused_by_the_log_is_done, "delta", runs.others_write_meanwhile),
    (_delta_marks_first, "delta", runs.killed_publishers),
    (_delta_removes_before_it_is_marked, "delta", _durable),
    (_transaction_by_name, "delta", _made_anew),
    (_no_settling, "delta", _durable),
    (_no_settling, "delta-update", _durable),
    (_nothing_to_take_out_is_not_said, "delta", runs.emptied_under_the_first_publisher),
    (_delta_sweeps_all, "delta", runs.sweeps_at_each_moment),
    (_iceberg_does_not_look, "iceberg", runs.compacted_meanwhile),
    (_the_library_tries_again, "iceberg", runs.held_publishers),
    (_iceberg_marks_first, "iceberg", runs.killed_publishers),
    (_emptying_adds_no_snapshot, "iceberg", runs.emptied_under_the_first_publisher),
    (_iceberg_sweeps_all, "iceberg", runs.sweeps_at_each_moment),
    (_iceberg_names_no_file_before_it_is_written, "iceberg", runs.killed_while_staging),
    (_iceberg_does_not_look, "iceberg-update", runs.compacted_meanwhile),
    (_an_update_has_two_snapshots, "iceberg-update", runs.killed_while_replacing),
    (_a_refused_merge_is_tried_again_as_it_is, "iceberg-update", runs.others_replace_meanwhile),
    (_an_update_removes_what_is_staged_first, "iceberg-update", runs.killed_while_replacing),
    (_attempts_are_not_named, "iceberg-update", runs.killed_while_replacing),
    (_all_attempts_are_settled, "iceberg-update", runs.sweeps_at_each_moment),
    (_first_staged_counts, "iceberg-update", _ordered),
    (_first_row_counts, "iceberg-update", _ordered),
    (_lake_does_not_look, "ducklake", runs.held_publishers),
    (_lake_marks_first, "ducklake", runs.killed_publishers),
    (_lake_sweeps_all, "ducklake", runs.sweeps_at_each_moment),
    (_lake_names_no_file_before_it_is_written, "ducklake", runs.killed_while_staging),
    (_lake_removes_what_it_has, "ducklake", runs.killed_publishers),
    (_first_staged_counts, "delta-update", _ordered),
    (_first_row_counts, "delta-update", _ordered),
    (_first_staged_counts, "sqlite-update", _ordered),
    (_first_row_counts, "sqlite-update", _ordered),
    (_a_transaction_for_each_statement, "sqlite", runs.killed_publishers),
    (_sequence_is_not_asked, "sqlite", runs.killed_publishers),
    (_sql_sweeps_all, "sqlite", runs.sweeps_at_each_moment),
    (_sql_says_nothing_of_emptying, "sqlite", runs.killed_while_emptied),
    *(
        (_its_own_number_is_taken_for_emptied, kind, runs.killed_while_emptied_as_a_number_that_is_shown)
        for kind in KINDS
    ),
    (_a_later_number_is_not_seen, "delta", runs.emptied_by_two),
)


@pytest.mark.parametrize(("mutant", "kind", "run"), MUTANTS, ids=lambda each: getattr(each, "__name__", each))
def test_the_run_kills_the_mutant(
    mutant: Callable[[Patch], None], kind: str, run: Callable[[Place, Path], None], root: Path, monkeypatch: Patch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KafkaError, FileNotFoundError)):  # the last: a sweep took what is being written
        run(copy.copy(KINDS[kind]), root)
