"""Faults planted in sinks in object stores: the checkers of a world with a store must see each of them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import msgspec
from obstore.exceptions import AlreadyExistsError, BaseError

from kohort.errors import RetriableError
from kohort.region.sinks import Keep, kafka_topic, sql_table
from kohort.region.sinks.compaction import Compactor, Generation
from kohort.region.sinks.delta_objects import StoreDeltaLog
from kohort.region.sinks.delta_table import DeltaTable
from kohort.region.sinks.ducklake_table import DuckLakeTable
from kohort.region.sinks.iceberg_files import side_store_of
from kohort.region.sinks.iceberg_log import IcebergLog
from kohort.region.sinks.iceberg_table import IcebergTable
from kohort.region.sinks.kafka_topic import KafkaTopic
from kohort.region.sinks.object_store import ObjectStore
from kohort.region.sinks.parquet_objects import PublishedSequenceLog, StoreGenerations
from kohort.region.sinks.sql_table import SqlTable
from kohort.region.sinks.staging_topic import StagingTopic
from tests.region.mutants import MUTANTS
from tests.region.world.bucket import BucketClient


def _instead(module: Any, name: str, other: Callable[..., Any]) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.object(module, name, other)


def _put_anyway(store: ObjectStore, path: str, data: bytes) -> bytes:
    store.put_object(path, data)
    return data


def _finds_conditions(store: ObjectStore, path: str) -> None:
    store.put_object(path, b"")


@contextlib.contextmanager
def _publishes_without_condition() -> Iterator[None]:
    """Also the check before the first record, which would refuse the store."""
    with (
        mock.patch.object(ObjectStore, "create_object_if_absent", _put_anyway),
        mock.patch.object(ObjectStore, "check_conditional_puts", _finds_conditions),
    ):
        yield


def _takes_an_error_for_a_refusal(store: ObjectStore, path: str, data: bytes) -> bytes:
    try:
        store._raw.put(path, data, mode="create", use_multipart=False)
    except AlreadyExistsError:
        return store.read_object(path)
    except BaseError as error:
        if path.startswith("_sequences/compaction-"):
            return b""
        raise RetriableError(str(error)) from None
    return data


def _removes_orphans_first(compactor: Compactor, *given: Any) -> Any:
    store = compactor._store
    base = store.newest_generation()
    store.remove_files([path for path in store.compaction_output_files() if path not in base.files | base.replaced])
    return _ATTEMPT(compactor, *given)


_ATTEMPT = Compactor._attempt


def _forgets_the_grace(generations: StoreGenerations, generation: Generation) -> bool:
    created = _CREATE(generations, generation)
    if created:
        generations.remove_files(generation.replaced)
    return created


_CREATE = StoreGenerations.create_generation


def _commits_before_it_looks(table: DeltaTable, is_there: Callable[..., bool], commit: Callable[..., bool]) -> None:
    commit(table._log.load())
    _UNTIL_THERE(table, is_there, commit)


_UNTIL_THERE = DeltaTable._until_there


def _puts_over_another(client: BucketClient, path: str, data: bytes, **options: Any) -> None:
    _PUT(client, path, data, **options | {"mode": "overwrite"})


_PUT = BucketClient.put


@contextlib.contextmanager
def _commits_without_condition() -> Iterator[None]:
    with (
        mock.patch.object(BucketClient, "put", _puts_over_another),
        mock.patch.object(ObjectStore, "check_conditional_puts", _finds_conditions),
    ):
        yield


def _sweeps_all(table: DeltaTable, keep: Keep) -> None:
    _SWEEP(table, replace(keep, floor=10**6))


_SWEEP = DeltaTable.sweep


def _counts_rows_of_no_version(log: StoreDeltaLog, table: Any) -> int:
    del log, table
    return 0


DELTA_MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "a commit has no condition": _commits_without_condition,
    "a publisher commits before it looks": _instead(DeltaTable, "_until_there", _commits_before_it_looks),
    "a sweep takes what a manifest names": _instead(DeltaTable, "sweep", _sweeps_all),
    "what is void stays": _instead(DeltaTable, "_removals", lambda table, version: []),
    "rows are counted from another version": _instead(StoreDeltaLog, "appended_row_count", _counts_rows_of_no_version),
}


def _commits_to_iceberg_first(table: IcebergTable, is_there: Callable[..., bool], commit: Callable[..., bool]) -> bool:
    return commit(table._load_table()) or _UNTIL_IN_ICEBERG(table, is_there, commit)


_UNTIL_IN_ICEBERG = IcebergTable._until_there


def _sweeps_all_of_iceberg(table: IcebergTable, keep: Keep) -> None:
    _SWEEP_ICEBERG(table, replace(keep, floor=10**6))


_SWEEP_ICEBERG = IcebergTable.sweep


def _removes_unseen(table: IcebergTable, paths: Any, sequence: int = 0) -> None:
    del sequence
    lake = table._load_table()
    for path in paths:
        side_store_of(lake, table.place).remove_object(path)


def _says_the_last_offsets(
    log: IcebergLog, table: Any, sequence: int, added: Any, offsets: str, removed: Any = None
) -> bool:
    before = [snapshot.summary.additional_properties.get("kohort.offsets", "") for snapshot in table.snapshots()]
    return _COMMIT_TO_ICEBERG(log, table, sequence, added, next(filter(None, reversed(before)), offsets), removed)


_COMMIT_TO_ICEBERG = IcebergLog.commit


def _discards_unseen(log: IcebergLog, table: Any, refused: Any) -> None:
    del log
    for manifest in refused.manifests(table.io):
        if manifest.added_snapshot_id == refused.snapshot_id:
            table.io.delete(manifest.manifest_path)
    table.io.delete(refused.manifest_list)


ICEBERG_MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "a retry does not look first": _instead(IcebergTable, "_until_there", _commits_to_iceberg_first),
    "a sweep takes what a manifest names": _instead(IcebergTable, "sweep", _sweeps_all_of_iceberg),
    "files are removed that the table has": _instead(IcebergTable, "_remove_unused", _removes_unseen),
    "offsets are taken from another snapshot": _instead(IcebergLog, "commit", _says_the_last_offsets),
    "manifests of a commit are removed that was taken": _instead(IcebergLog, "_discard", _discards_unseen),
    "what is void stays": _instead(IcebergTable, "_removals", lambda table, lake: []),
}


def _commits_the_last_marker(writer: Any, marker: Any, tables: Any = (), done: Any = ()) -> None:
    _COMMIT_TO_TOPIC(writer, writer.marker or marker, tables, done)


_COMMIT_TO_TOPIC = kafka_topic._Writer.commit


def _forgets_the_marker(writer: Any, producer: Any, topic: str, staging_topic: Any) -> None:
    _NEW_WRITER(writer, producer, topic, staging_topic)
    if writer.marker is not None:
        writer.marker = msgspec.structs.replace(writer.marker, sequence=0)


_NEW_WRITER = kafka_topic._Writer.__init__


def _sweeps_all_of_a_topic(topic: KafkaTopic, keep: Keep) -> None:
    _SWEEP_TOPIC(topic, replace(keep, floor=10**6))


_SWEEP_TOPIC = KafkaTopic.sweep


def _names_no_end(staging_topic: StagingTopic, partitions: Any) -> Any:
    del staging_topic
    return dict.fromkeys(partitions, -1)


TOPIC_MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "a transaction is committed without its sequence": _instead(
        kafka_topic._Writer, "commit", _commits_the_last_marker
    ),
    "a publisher does not look at the marker": _instead(kafka_topic._Writer, "__init__", _forgets_the_marker),
    "a sweep takes what a manifest names": _instead(KafkaTopic, "sweep", _sweeps_all_of_a_topic),
    "a topic is emptied up to whatever its end is then": _instead(StagingTopic, "high_watermarks", _names_no_end),
    "a reader of the marker does not wait for open transactions": _instead(
        StagingTopic, "read_owner_marker", lambda topic, to_the_end=False: _MARKER(topic)
    ),
}
_MARKER = StagingTopic.read_owner_marker


def _looks_once(table: SqlTable, at: Any) -> int:
    """Each process looks at its first publication only, and goes on from what it has published by itself."""
    looked = table.__dict__.setdefault("_looked", [])
    if not looked:
        looked.append(_LOOK_IN_SQL(table, at))
    return int(looked[0])


_LOOK_IN_SQL = SqlTable._mine


def _without_guard(table: SqlTable, at: Any) -> int:
    _LOOK_IN_SQL(table, at)
    return 0


def _sweeps_all_of_sql(table: SqlTable, keep: Keep) -> None:
    _SWEEP_SQL(table, replace(keep, floor=10**6))


_SWEEP_SQL = SqlTable.sweep


def _changed_statements(change: Callable[[str], str]) -> Callable[[], AbstractContextManager[Any]]:
    def run(at: Any, statement: str, *given: object) -> None:
        changed = change(statement)
        if changed:
            _RUN(at, changed, *given[: changed.count("?")])

    return _instead(sql_table._Cursor, "execute_template", run)


_RUN = sql_table._Cursor.execute_template
_RECORDS = "UPDATE {sequences} SET sequence = ? WHERE target = ?"


def _records_in_another_transaction(at: Any, statement: str, *given: object) -> None:
    if statement == _RECORDS:
        at.cursor.execute("COMMIT")
        at.cursor.execute("BEGIN IMMEDIATE")
    _RUN(at, statement, *given)


SQL_MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "publish without the guard": _instead(SqlTable, "_mine", _without_guard),
    "a retry does not look first": _instead(SqlTable, "_mine", _looks_once),
    "a sequence is recorded in a transaction of its own": _instead(
        sql_table._Cursor, "execute_template", _records_in_another_transaction
    ),
    "a sequence is recorded for all tables": _changed_statements(
        lambda text: text.partition(" WHERE")[0] if text == _RECORDS else text
    ),
    "a sweep takes what a manifest names": _instead(SqlTable, "sweep", _sweeps_all_of_sql),
    "a sweep takes what another region has staged": _changed_statements(
        lambda text: text.replace("WHERE target = ? AND epoch < ?", "WHERE ? <> '' AND epoch < ?").replace(
            "WHERE target = ? AND staged_key = ?", "WHERE ? <> '' AND staged_key = ?"
        )
    ),
    "what is void stays": _changed_statements(lambda text: "" if text == "DELETE FROM {target}" else text),
}


def _publishes_into_a_lake_unguarded(table: DuckLakeTable, is_there: Any, change: Any) -> bool:
    del is_there
    return _UNTIL_IN_LAKE(table, lambda state: False, change)


def _looks_at_a_lake_once(table: DuckLakeTable, is_there: Any, change: Any) -> bool:
    looks = itertools.count()
    return _UNTIL_IN_LAKE(table, lambda state: next(looks) == 0 and is_there(state), change)


_UNTIL_IN_LAKE = DuckLakeTable._until_there


def _sweeps_all_of_a_lake(table: DuckLakeTable, keep: Keep) -> None:
    _SWEEP_LAKE(table, replace(keep, floor=10**6))


_SWEEP_LAKE = DuckLakeTable.sweep


def _says_other_offsets(table: DuckLakeTable, at: Any, sequence: int, offsets: str = "") -> None:
    said = table.__dict__.setdefault("_said", offsets)
    _SAY(table, at, sequence, offsets and said)


_SAY = DuckLakeTable._set_commit_message


def _removes_all_from_a_lake(table: DuckLakeTable, state: Any, names: Any) -> None:
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            table._files.unlink(table._file(state, name))


def _moves_alone(table: DuckLakeTable, at: Any, state: Any, sequence: int) -> None:
    table._set_commit_message(at, sequence)
    table._move(at, state, sequence, 0, sequence)


DUCKLAKE_MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "publish without the guard": _instead(DuckLakeTable, "_until_there", _publishes_into_a_lake_unguarded),
    "a retry does not look first": _instead(DuckLakeTable, "_until_there", _looks_at_a_lake_once),
    "a sweep takes what a manifest names": _instead(DuckLakeTable, "sweep", _sweeps_all_of_a_lake),
    "offsets are taken from another snapshot": _instead(DuckLakeTable, "_set_commit_message", _says_other_offsets),
    "files are removed that the lake has": _instead(DuckLakeTable, "_remove_unknown", _removes_all_from_a_lake),
    "what is void stays": _instead(DuckLakeTable, "_empty_table", _moves_alone),
}

STORE_MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "publish without a condition": _publishes_without_condition,
    "a publisher does not look whether its sequence is done": _instead(
        PublishedSequenceLog, "is_published_or_emptied", lambda log, sequence: False
    ),
    "a compactor takes an unknown outcome for a refusal": _instead(
        ObjectStore, "create_object_if_absent", _takes_an_error_for_a_refusal
    ),
    "a sweep takes what a manifest names": MUTANTS["what still counts is swept"],
    "a compactor removes orphans before its generation": _instead(Compactor, "_attempt", _removes_orphans_first),
    "replaced files are removed at once": _instead(StoreGenerations, "create_generation", _forgets_the_grace),
}
