"""A Delta table in an object store, without a server: what its store loses, delays and refuses."""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pytest
from deltalake.exceptions import DeltaError, SchemaMismatchError, TableNotFoundError
from obstore.exceptions import PermissionDeniedError
from obstore.store import LocalStore

from kohort.errors import InvalidInputError, KafkaError, NotAuthorizedError, RetriableError
from kohort.region import DeltaTable
from kohort.region.sinks import Keep
from kohort.region.sinks.by_name import sink_of
from kohort.region.sinks.delta_log import DeltaLog
from kohort.region.sinks.delta_objects import DeltaObjects, StoreDeltaLog
from kohort.region.sinks.delta_table import DeltaTable as Table
from kohort.region.sinks.object_store import ObjectStore
from kohort.region.staged import StagedKey
from tests.region import object_runs
from tests.region.places import (
    REGION,
    SCHEMA,
    Calls,
    DeltaObjectsPlace,
    DeltaPlace,
    HeldObjects,
    LocalObjects,
    Place,
    table,
)
from tests.region.volume import Died

Run = Callable[[Place, Path], None]
RUNS: tuple[Run, ...] = (
    object_runs.lost_answers,
    object_runs.refused_requests,
    object_runs.published_rows_stay,
    object_runs.swept_after_death,
    object_runs.staging_killed_and_swept,
)
PLACES = [DeltaObjectsPlace("delta-objects"), DeltaPlace("delta")]
KEYS = [StagedKey(REGION, 5, "größe/1", unit) for unit in range(3)]


@pytest.fixture
def place(tmp_path: Path) -> DeltaObjectsPlace:
    made = DeltaObjectsPlace("delta-objects")
    made.at(tmp_path)
    return made


def made(place: DeltaObjectsPlace, store: ObjectStore | None = None, **options: Any) -> DeltaObjects:
    sink = place.sink(**options)
    assert isinstance(sink, DeltaObjects)
    sink._store = store or sink._store
    return sink


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_run(run: Run, tmp_path: Path) -> None:
    run(DeltaObjectsPlace("delta-objects"), tmp_path)


def test_commit_below_a_checkpoint_is_not_taken_for_the_sequence(
    place: DeltaObjectsPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a publisher slept, others wrote, and cleaned the log: the late put succeeds, and nobody sees it."""
    sink = made(place)
    sink.check(SCHEMA)
    sink.stage(KEYS[0], table([(1, "a")]))
    slept: list[str] = []
    whole = DeltaLog.commit

    def commit(self: DeltaLog, *args: Any) -> bool:
        if slept:
            return whole(self, *args)
        done = whole(self, *args)
        log = Path(place.path, "_delta_log")
        late = (log / f"{1:020}.json").read_bytes()
        (log / f"{1:020}.json").unlink()
        deltalake.write_deltalake(place.path, table([(8, "others")]), mode="append")
        deltalake.write_deltalake(place.path, table([(9, "others")]), mode="append")
        deltalake.DeltaTable(place.path).create_checkpoint()
        (log / f"{1:020}.json").write_bytes(late)
        slept.append("now")
        return done

    monkeypatch.setattr(DeltaLog, "commit", commit)
    sink.publish(1, [KEYS[0]])
    assert slept and place.rows() == [(1, "a"), (8, "others"), (9, "others")] and sink.published() == 1
    sink.publish(1, [KEYS[0]])
    assert place.rows() == [(1, "a"), (8, "others"), (9, "others")]


def test_put_of_an_earlier_attempt_that_arrives_late_loses_no_row(place: DeltaObjectsPlace) -> None:
    """The first attempt's `KEY.json` comes after the second one's: the files that it names are still there."""
    calls = Calls()
    late: list[tuple[Path, bytes]] = []

    def lose(number: int, call: str) -> None:
        if call.startswith("put ") and call.endswith(".json") and "/staged/" in call and not late:
            path = Path(place.path, call.removeprefix("put "))
            late.append((path, path.read_bytes()))
            path.unlink()
            raise object_runs.GenericError("the connection was closed")

    made(place).check(SCHEMA)
    sink = made(place, LocalObjects(place.path, calls))
    calls.after = lose
    with pytest.raises(RetriableError):
        sink.stage(KEYS[0], table([(1, "a"), (2, "b")]))
    sink.stage(KEYS[0], table([(1, "a"), (2, "b")]))
    path, content = late[0]
    path.write_bytes(content)
    sink.publish(1, [KEYS[0]])
    assert place.rows() == [(1, "a"), (2, "b")]
    sink.sweep(Keep(6))
    assert place.staged() == []


def test_copy_that_is_not_whole_is_not_published(place: DeltaObjectsPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = made(place)
    sink.check(SCHEMA)
    sink.stage(KEYS[0], table([(1, "a")]))
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "_copy", lambda self, path, to: self.put_object(to, b"half"))
        with pytest.raises(RetriableError, match="not copied all"):
            sink.publish(1, [KEYS[0]])
    assert place.rows() == []
    sink.publish(1, [KEYS[0]])
    assert place.rows() == [(1, "a")]


def test_copy_on_azure_is_read_and_written(tmp_path: Path) -> None:
    store = LocalObjects(str(tmp_path), calls := Calls(), "az://container/out")
    store.put_object("a", b"rows")
    store.copy_objects({"a": "b"})
    assert store.read_object("b") == b"rows" and not any(call.startswith("copy") for call in calls.trace)
    with pytest.raises(FileNotFoundError):
        store.copy_objects({"missing": "c"})


def test_vacuum_leaves_what_is_staged(place: DeltaObjectsPlace) -> None:
    sink = made(place)
    sink.check(SCHEMA)
    sink.stage(KEYS[0], table([(1, "a")]))
    deltalake.DeltaTable(place.path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    sink.publish(1, [KEYS[0]])
    deltalake.DeltaTable(place.path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert place.rows() == [(1, "a")]
    sink.check(SCHEMA)


def _orphaned_by_a_dead_publisher(place: DeltaPlace) -> list[str]:
    """Return what VACUUM finds of a publisher that died before its commit, long ago."""
    sink = place.sink()
    sink.check(SCHEMA)
    sink.stage(KEYS[0], table([(1, "a")]))
    calls = Calls()
    calls.at = lambda number, call: calls.die() if call == "commit" else None
    with pytest.raises(Died):
        place.sink(calls).publish(1, [KEYS[0]])
    for path in Path(place.path).glob("*.parquet"):
        if "objects" in place.kind:  # a store's copy has an age of its own
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content)
        os.utime(path, (0, 0))
    return deltalake.DeltaTable(place.path).vacuum(full=True)


@pytest.mark.parametrize("made_place", PLACES, ids=lambda at: at.kind)
def test_vacuum_removes_no_file_that_a_later_publisher_names(made_place: DeltaPlace, tmp_path: Path) -> None:
    """VACUUM has listed what a dead publisher left, another publishes, and VACUUM removes its list."""
    made_place.at(tmp_path)
    listed = _orphaned_by_a_dead_publisher(made_place)
    assert len(listed) == 1
    made_place.sink().publish(1, [KEYS[0]])
    for name in listed:
        Path(made_place.path, name).unlink()
    assert made_place.rows() == [(1, "a")]
    sink = made_place.sink()
    sink.stage(KEYS[1], table([(2, "b")]))
    sink.publish(2, [KEYS[1]])
    sink.sweep(Keep(6))
    assert made_place.rows() == [(1, "a"), (2, "b")] and made_place.staged() == []


class _Careless(HeldObjects):
    """A store that takes a conditional put for a plain one."""

    def put(self, path: str, data: bytes, **options: Any) -> Any:
        return super().put(path, data, **{name: options[name] for name in options if name != "mode"})


class _CarelessStore(LocalObjects):
    def _open_store(self) -> Any:
        return _Careless(self.root, getattr(self, "calls", Calls()))

    def count_race_winners(self, path: str) -> int:
        return ObjectStore.count_race_winners(self, path)


def test_store_without_conditional_puts_is_refused_before_a_table_is_created(place: DeltaObjectsPlace) -> None:
    sink = made(place, _CarelessStore(place.path, Calls()))
    for _ in range(2):
        with pytest.raises(InvalidInputError, match="no conditional puts"):
            sink.check(SCHEMA)
    assert not deltalake.DeltaTable.is_deltatable(place.path)
    deltalake.write_deltalake(place.path, table([(9, "others")]))
    with pytest.raises(InvalidInputError, match="no conditional puts"):
        sink.check(SCHEMA)


@pytest.mark.parametrize("there", [True, False], ids=["another table", "nothing"])
def test_libraries_that_reach_two_places_are_refused(place: DeltaObjectsPlace, tmp_path: Path, there: bool) -> None:
    """The environment may lead one of them elsewhere."""
    elsewhere = DeltaObjectsPlace("delta-objects")
    elsewhere.at(tmp_path / "elsewhere")
    if there:
        deltalake.write_deltalake(elsewhere.path, table([(7, "others")]), partition_by=["name"])
    sink = made(place)

    class Elsewhere(type(sink)):  # type: ignore[misc]
        def _store_log(self) -> StoreDeltaLog:
            log = super()._store_log()
            log._path = elsewhere.path
            return log  # type: ignore[no-any-return]

    sink.__class__ = Elsewhere
    with pytest.raises(InvalidInputError, match="do not reach the same place"):
        sink.check(SCHEMA)
    assert made(place).published() == 0, "a refused check leaves no owner marker"
    assert Path(elsewhere.path, "_delta_log", f"{0:020}.json").exists() == there


@pytest.mark.parametrize("made_place", PLACES, ids=lambda at: at.kind)
def test_table_created_anew_with_other_partitions_is_refused(made_place: DeltaPlace, tmp_path: Path) -> None:
    """The staged files lack the partition columns, and a table without partitions reads null there."""
    made_place.at(tmp_path)
    sink = made_place.sink(partition_by=["name"])
    sink.check(SCHEMA)
    sink.stage(KEYS[0], table([(1, "a")]))
    shutil.rmtree(f"{made_place.path}/_delta_log")
    deltalake.DeltaTable.create(made_place.path, deltalake.Schema.from_arrow(SCHEMA))
    with pytest.raises(InvalidInputError, match=r"is parted by \[\], .* by \['name'\]"):
        sink.publish(1, [KEYS[0]])
    for options in ({}, {"partition_by": ["name"]}):
        with pytest.raises(InvalidInputError, match=r"is parted by \[\]"):
            made_place.sink(**options).check(SCHEMA)
    assert made_place.rows() == []


def test_library_whose_commits_replace_others_is_refused(
    place: DeltaObjectsPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings in the environment can take the condition from its puts."""

    def commit(found: deltalake.DeltaTable, transaction: str) -> bool:
        Path(found.table_uri.removeprefix("file://"), "_delta_log", f"{1:020}.json").write_bytes(b"{}")
        return True

    monkeypatch.setattr(StoreDeltaLog, "_try_commit", staticmethod(commit))
    with pytest.raises(InvalidInputError, match="deltalake does not create commits by conditional puts"):
        made(place).check(SCHEMA)
    assert not deltalake.DeltaTable.is_deltatable(place.path)


@pytest.mark.parametrize("right", ["copy", "unlink"])
def test_missing_right_that_only_a_publisher_needs_is_found_by_check(place: DeltaObjectsPlace, right: str) -> None:
    calls = Calls()

    def refuse(number: int, call: str) -> None:
        if call.startswith(f"{right} "):
            raise PermissionDeniedError("status code: 403 Forbidden")

    calls.at = refuse
    with pytest.raises(NotAuthorizedError, match="403"):
        place.sink(calls).check(SCHEMA)
    assert not deltalake.DeltaTable.is_deltatable(place.path) and made(place).published() == 0


def test_check_leaves_nothing_that_it_tried(place: DeltaObjectsPlace) -> None:
    for _ in range(2):
        made(place).check(SCHEMA)
    own = Path(place.path, "_kohort", REGION.hex)
    assert sorted(str(path.relative_to(own)) for path in own.rglob("*") if path.is_file()) == [
        "conditional-put", "region.json"
    ]  # fmt: skip
    assert sorted(os.listdir(place.path)) == ["_delta_log", "_kohort"]


ANSWER = (
    "Generic S3 error: Error performing GET http://h/x in 1ms - Server returned non-2xx status code: 403 Forbidden: "
    "<Error><Code>ExpiredToken</Code><Token-0>a-session-token</Token-0></Error>"
)


@pytest.mark.parametrize("kind", [TableNotFoundError, SchemaMismatchError, DeltaError, OSError])
def test_error_of_the_library_lacks_the_answer_of_the_server(
    place: DeltaObjectsPlace, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    sink = made(place)
    sink.check(SCHEMA)
    log = sink._log

    def fail(self: object) -> None:
        raise kind(f"Kernel error: {ANSWER}")

    monkeypatch.setattr(StoreDeltaLog, "_open_table", fail)
    with pytest.raises((KafkaError, DeltaError)) as failed:
        log.load()
    said = "".join(traceback.format_exception(failed.value))
    assert "403 Forbidden" in said and "a-session-token" not in said


@pytest.mark.parametrize("made_place", PLACES, ids=lambda at: at.kind)
def test_sequence_without_rows_that_another_publishes_meanwhile_is_not_lost(
    made_place: DeltaPlace, tmp_path: Path
) -> None:
    """The first publisher has read that it is not done; the second one marks it, and forgets what is staged."""
    made_place.at(tmp_path)
    sink = made_place.sink()
    sink.check(SCHEMA)
    sink.stage(KEYS[0], table([]))
    calls = Calls()

    def meanwhile(number: int, call: str) -> None:
        if KEYS[0].file_stem() in call:
            calls.at = lambda number, call: None
            made_place.sink().publish(1, [KEYS[0]])

    calls.at = meanwhile
    made_place.sink(calls).publish(1, [KEYS[0]])
    assert calls.at is not meanwhile and made_place.sink().published() == 1


def test_first_check_does_not_read_what_the_log_says_of_each_file(
    place: DeltaObjectsPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake.write_deltalake(place.path, table([(9, "others")]))
    monkeypatch.setattr(DeltaLog, "data_file_entries", lambda self, at: pytest.fail("all actions are read"))
    made(place).check(SCHEMA)
    assert not made(place)._claim().alone


def test_marker_of_the_folder_itself_is_no_stranger(place: DeltaObjectsPlace) -> None:
    """A console that creates a folder puts an empty object of its name."""

    class Marked(HeldObjects):
        def list_with_delimiter(self, prefix: str | None = None) -> Any:
            found = dict(super().list_with_delimiter(prefix))
            return {**found, "objects": [{"path": prefix.rstrip("/") if prefix else ""}, *found["objects"]]}

    class MarkedStore(LocalObjects):
        def _open_store(self) -> Any:
            return Marked(self.root, Calls())

    store = MarkedStore(place.path, Calls())
    made(place, store).check(SCHEMA)
    assert store.list_directly_below("_kohort") == [f"_kohort/{REGION.hex}"]


def test_folder_with_other_objects_is_refused(place: DeltaObjectsPlace) -> None:
    LocalStore(place.path, mkdir=True).put("notes.csv", b"x")
    with pytest.raises(InvalidInputError, match=r"holds 'notes\.csv' and is no Delta table"):
        made(place).check(SCHEMA)


def test_names_of_tables_in_stores() -> None:
    there = DeltaTable(
        "s3a://bucket/t/", storage_options={"endpoint": "https://store.example", "secret_access_key": "x"}
    )
    assert there.place == "delta:s3://bucket/t[https://store.example]" and "secret" not in repr(there)
    assert isinstance(sink_of(there.place), DeltaObjects) and sink_of(there.place).place == there.place
    assert DeltaTable("gs://bucket/t").place == "delta:gs://bucket/t"
    azure = DeltaTable("az://container/t", storage_options={"account_name": "air"})
    assert sink_of(azure.place).place == azure.place
    with pytest.raises(InvalidInputError, match="storage_options are for object stores"):
        DeltaTable("out", storage_options={"region": "x"})
    with pytest.raises(InvalidInputError, match="needs keys"):
        DeltaTable("s3://bucket/t", mode="update")
    with pytest.raises(InvalidInputError, match="holds no credentials"):
        DeltaTable("s3://key:secret@bucket/t")


def _counts_without_a_new_reading(patch: pytest.MonkeyPatch) -> None:
    def until_there(self: Table, is_there: Any, commit: Any) -> None:
        while not is_there(table := self._log.load()):
            if commit(table):
                return

    patch.setattr(Table, "_until_there", until_there)


def _removes_files_of_a_failed_attempt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeltaObjects, "_LATE", False)


def _does_not_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeltaLog, "has_sequence", lambda self, at, sequence: False)
    patch.setattr("kohort.region.sinks.delta_table.COMMITS_MAX", 2)


def _sweeps_all(patch: pytest.MonkeyPatch) -> None:
    whole = DeltaObjects.sweep
    patch.setattr(DeltaObjects, "sweep", lambda self, keep: whole(self, Keep(keep.floor)))


def _trusts_a_copy(patch: pytest.MonkeyPatch) -> None:
    def show_files(self: DeltaObjects, sizes: Any, names: Any) -> None:
        self._store.copy_objects({f"{self._staging}/{name}": names[name] for name in sizes})

    patch.setattr(DeltaObjects, "_show_files", show_files)


def _names_the_copies_of_others(patch: pytest.MonkeyPatch) -> None:
    """A mutant: names are those of the staged files, and a copy that is there is not made again."""

    def show_files(self: DeltaObjects, sizes: Any, names: Any) -> None:
        there = self._store.object_sizes(list(sizes))
        self._store.copy_objects({f"{self._staging}/{name}": name for name in sizes if name not in there})

    patch.setattr("kohort.region.sinks.delta_table._second_name", lambda name: name)
    patch.setattr(DeltaObjects, "_show_files", show_files)


def _vacuumed(place: DeltaObjectsPlace, patch: pytest.MonkeyPatch) -> None:
    test_vacuum_removes_no_file_that_a_later_publisher_names(place, Path(place.path).parent / "vacuumed")


def _late_commit(place: DeltaObjectsPlace, patch: pytest.MonkeyPatch) -> None:
    test_commit_below_a_checkpoint_is_not_taken_for_the_sequence(place, patch)


def _late_piece(place: DeltaObjectsPlace, patch: pytest.MonkeyPatch) -> None:
    test_put_of_an_earlier_attempt_that_arrives_late_loses_no_row(place)


def _lost(place: DeltaObjectsPlace, patch: pytest.MonkeyPatch) -> None:
    object_runs.lost_answers(place, Path(place.path).parent / "lost")


def _swept(place: DeltaObjectsPlace, patch: pytest.MonkeyPatch) -> None:
    object_runs.swept_after_death(place, Path(place.path).parent / "swept")


@pytest.mark.parametrize(
    ("mutant", "run"),
    [
        (_counts_without_a_new_reading, _late_commit),
        (_removes_files_of_a_failed_attempt, _late_piece),
        (_does_not_look, _lost),
        (_sweeps_all, _swept),
        (_names_the_copies_of_others, _vacuumed),
        (_trusts_a_copy, test_copy_that_is_not_whole_is_not_published),
    ],
    ids=lambda each: each.__name__,
)
def test_the_run_kills_the_mutant(
    mutant: Callable[[pytest.MonkeyPatch], None],
    run: Callable[[DeltaObjectsPlace, pytest.MonkeyPatch], None],
    place: DeltaObjectsPlace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KafkaError, FileNotFoundError, pytest.fail.Exception)):
        run(place, monkeypatch)
