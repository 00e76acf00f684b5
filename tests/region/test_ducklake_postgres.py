"""A DuckLake whose catalog is PostgreSQL: late commits, publishers that are killed, a server that goes away."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kohort.errors import InvalidInputError, NotAuthorizedError, RetriableError
from kohort.region import DuckLakeTable, Keep
from kohort.region.sinks.ducklake_catalog import DuckLake, LakeTransaction, PostgresLake, UnknownCommitError
from kohort.region.sinks.sql_dialects import libpq_parameters
from kohort.region.staged import StagedKey
from tests.region.ducklake_process import REGION, sink_at
from tests.region.postgres import Server, programs, running
from tests.region.test_ducklake_commits import MOVE, OTHERS, TABLE_AND_MARKER, add, change, expire
from tests.region.test_ducklake_commits import ask as ask_lake
from tests.support.long_runs import IS_LONG

pytest.importorskip("duckdb_extension_postgres_scanner", reason="duckdb-extension-postgres-scanner of DuckDB's version")
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
BETWEEN = [None, "merges", "appends", "flushes the marker", "creates a table"]
"""One of `OTHERS`, done before another process publishes the sequence."""


@pytest.fixture
def catalog(postgres: Server) -> str:
    return postgres.fresh_database()


def key(unit: int) -> StagedKey:
    return StagedKey(REGION, 1, "größe/1", unit)


def table(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": ["x"] * len(ids)}, schema=SCHEMA)


def ids(sink: DuckLakeTable) -> list[int]:
    with sink._lake.transaction() as at:
        return [number for (number,) in at.query_rows("SELECT id FROM {lake}.air.flights ORDER BY id")]


def begun(folder: Path, catalog: str) -> DuckLakeTable:
    """One sequence is published, the next one is staged."""
    sink = sink_at(str(folder), catalog)
    sink.check(SCHEMA)
    sink.stage(key(1), table(1, 2))
    sink.publish(1, [key(1)])
    sink.stage(key(2), table(3))
    sink.stage(key(3), table(4))
    return sink


def file(folder: Path, name: str, *numbers: int) -> str:
    path = folder / f"{name}.parquet"
    pq.write_table(pa.table({"id": pa.array(numbers, pa.int64())}), path)
    return str(path)


@pytest.mark.parametrize("expired", [False, True] if IS_LONG else [True], ids=lambda given: f"expired={given}")
@pytest.mark.parametrize("flushed", [False, True], ids=["inlined", "flushed"])
@pytest.mark.parametrize("what", BETWEEN if IS_LONG else BETWEEN[:2])
def test_a_publication_behind_another_is_refused(
    tmp_path: Path, catalog: str, what: str | None, flushed: bool, expired: bool
) -> None:
    """Also if the snapshots of the other are gone, so that the number of the late one is free again."""
    lake = PostgresLake(str(tmp_path), "ducklake:here", libpq_parameters(catalog))
    (tmp_path / "data").mkdir()
    for statement in TABLE_AND_MARKER:
        change(lake, statement)
    change(lake, add(file(tmp_path, "a", 7)))
    if flushed:
        change(lake, "CALL ducklake_flush_inlined_data('{lake}')")
    mine, theirs = file(tmp_path, "mine", 1, 2), file(tmp_path, "theirs", 1, 2)
    with pytest.raises(UnknownCommitError):  # noqa: PT012 - the other acts within the transaction
        with lake.transaction() as at:
            assert at.query_rows("SELECT number FROM {lake}.marker") == [(0,)]
            if what is not None:
                OTHERS[what](lake)
            change(lake, add(theirs), MOVE)
            if expired:
                expire(lake)
            at.execute_change(add(mine))
            assert at.execute_change(MOVE) == 1
    rows = sorted(number for (number,) in ask_lake(lake, "SELECT id FROM {lake}.flights"))
    assert [number for number in rows if number < 3] == [1, 2]


def test_sequences_are_published_once_and_nothing_is_left(tmp_path: Path, catalog: str) -> None:
    sink = begun(tmp_path, catalog)
    assert "password" not in sink.place and sink.place.startswith("ducklake:postgresql://")
    for _ in range(2):
        sink.publish(2, [key(2), key(3)])
    again = sink_at(str(tmp_path), catalog)
    assert again.published() == 2 and ids(again) == [1, 2, 3, 4]
    again.stage(key(4), table(9))
    again.sweep(Keep(2))
    assert not list(tmp_path.glob("_kohort/*/*/staged/*"))
    again.empty(3, 2)
    assert ids(again) == [] and again.published() == 3


class _Dying(LakeTransaction):
    """A transaction whose process is killed before or after one of its statements."""

    at = after = 0
    number = 0

    def _run(self, statement: str, *values: object) -> Any:
        type(self).number += 1
        if self.number == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        found = super()._run(statement, *values)
        if self.number == self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        return found


@pytest.mark.parametrize("happened", [False, True], ids=["before", "after"])
def test_a_publisher_that_is_killed_at_each_statement(postgres: Server, tmp_path: Path, happened: bool) -> None:
    every = 1 if IS_LONG else 7
    killed, number, committed = 0, 1, 0
    while True:
        folder, catalog = tmp_path / str(number), postgres.fresh_database()
        begun(folder, catalog)
        child = os.fork()
        if not child:
            try:
                setattr(_Dying, "after" if happened else "at", number)
                DuckLake._begun = lambda self, cursor, name: _Dying(cursor, name)  # type: ignore[method-assign]
                sink_at(str(folder), catalog).publish(2, [key(2), key(3)])
            finally:
                os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sink = sink_at(str(folder), catalog)
        assert ids(sink) in ([1, 2], [1, 2, 3, 4])
        committed += ids(sink) == [1, 2, 3, 4]
        sink.publish(2, [key(2), key(3)])
        assert ids(sink) == [1, 2, 3, 4] and sink.published() == 2
        sink.sweep(Keep(2))
        assert not list(folder.glob("_kohort/*/*/staged/*"))
        if code == 0:
            break
        killed, number = killed + 1, number + every
    assert killed > 2 and committed


def test_members_that_make_the_lake_at_once_make_one(tmp_path: Path, catalog: str) -> None:
    failed: list[BaseException] = []

    def check(number: int) -> None:
        sink = sink_at(str(tmp_path), catalog)
        try:
            while True:
                try:
                    sink.check(SCHEMA)
                    break
                except RetriableError:
                    continue
            sink.stage(key(number), table(number))
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    threads = [threading.Thread(target=check, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    sink = sink_at(str(tmp_path), catalog)
    sink.publish(1, [key(number) for number in range(4)])
    assert ids(sink) == [0, 1, 2, 3]


def test_a_server_that_is_away_is_tried_again(tmp_path: Path) -> None:
    if not (found := programs()):
        pytest.skip("no PostgreSQL server is installed: apt-get install postgresql")
    with running(found) as server:
        sink = begun(tmp_path, server.fresh_database())
        server.control("stop")
        acts: list[Callable[[], object]] = [
            lambda: sink.publish(2, [key(2), key(3)]),
            lambda: sink.stage(key(4), table(5)),
            sink.published,
            lambda: sink.check(SCHEMA),
        ]
        for act in acts:
            with pytest.raises(RetriableError):
                act()
        server.control("start")
        sink.publish(2, [key(2), key(3)])
        assert ids(sink) == [1, 2, 3, 4]


def test_a_password_in_the_url_and_missing_rights_are_refused(tmp_path: Path, catalog: str, postgres: Server) -> None:
    with pytest.raises(InvalidInputError, match="has a password") as refused:
        DuckLakeTable("flights", lake=tmp_path, catalog="postgresql://me:a-secret@host/db")
    assert "a-secret" not in str(refused.value)
    begun(tmp_path, catalog)
    with psycopg.connect(catalog, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS guest")
        connection.execute("CREATE ROLE guest LOGIN")
    sink = sink_at(str(tmp_path), catalog.replace("kohort@", "guest@"))
    with pytest.raises(NotAuthorizedError, match="No right"):
        sink.check(SCHEMA)
    with pytest.raises(NotAuthorizedError, match=r"grant .* the schema public \(CREATE\)"):
        sink_at(str(tmp_path), postgres.fresh_database().replace("kohort@", "guest@")).check(SCHEMA)


def test_user_who_may_only_read_the_catalog_is_refused(tmp_path: Path, catalog: str) -> None:
    """A commit that PostgreSQL refuses looks like one that came too late."""
    begun(tmp_path, catalog)
    with psycopg.connect(catalog, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS reader")
        connection.execute("CREATE ROLE reader LOGIN")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    sink = sink_at(str(tmp_path), catalog.replace("kohort@", "reader@"))
    acts: list[Callable[[], object]] = [lambda: sink.check(SCHEMA), lambda: sink.publish(2, [key(2), key(3)])]
    for act in acts:
        with pytest.raises(NotAuthorizedError, match=r"grant .* public.ducklake_snapshot \(INSERT\)"):
            act()
    assert sink.published() == 1
