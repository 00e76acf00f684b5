"""Conflicts of DuckLake, and commits that a catalog in SQLite refuses: the sink's promises rest on them.

Two transactions each add a file and move one marker from 0 to 1, as two publishers of one sequence do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kohort.region.sinks import ducklake_catalog
from kohort.region.sinks.ducklake_catalog import DuckLake, NoLakeError, UnknownCommitError

NUMBERS = itertools.count()
TABLE_AND_MARKER = (
    "CREATE TABLE {lake}.flights (id BIGINT)",
    "CREATE TABLE {lake}.marker (number BIGINT)",
    "CALL ducklake_set_option('{lake}', 'data_inlining_row_limit', 0)",
    "CALL ducklake_set_option('{lake}', 'data_inlining_row_limit', 10, table_name => 'marker')",
    "INSERT INTO {lake}.marker VALUES (0)",
)
"""The statements that make an empty table, and a marker of 0 that is inlined whatever the lake's own limit is."""
MOVE = "UPDATE {lake}.marker SET number = 1 WHERE number = 0"


@pytest.fixture
def lake(tmp_path: Path) -> DuckLake:
    """A lake with an empty table and a marker of 0, which is inlined whatever the lake's own limit is."""
    made = DuckLake(str(tmp_path), "ducklake:here")
    for statement in TABLE_AND_MARKER:
        change(made, statement)
    assert not list((tmp_path / "data").rglob("*.parquet"))
    return made


def change(lake: DuckLake, *statements: str) -> None:
    with lake.transaction(create=True) as at:
        for statement in statements:
            at.execute_change(statement)


def ask(lake: DuckLake, statement: str) -> list[Any]:
    with lake.transaction() as at:
        return at.query_rows(statement)


def file(lake: DuckLake, *ids: int) -> str:
    path = Path(lake.catalog).parent / f"staged-{next(NUMBERS)}.parquet"
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), path)
    return str(path)


def add(path: str) -> str:
    return f"CALL ducklake_add_data_files('{{lake}}', 'flights', '{path}')"


def expire(lake: DuckLake) -> None:
    """Forget all snapshots but the newest, and remove the files that only they have."""
    change(lake, "CALL ducklake_expire_snapshots('{lake}', older_than => now())")
    change(lake, "CALL ducklake_cleanup_old_files('{lake}', cleanup_all => true)")


OTHERS: dict[str, Callable[[DuckLake], None]] = {
    "publishes the same": lambda lake: change(lake, add(file(lake, 1, 2)), MOVE),
    "appends": lambda lake: change(lake, "INSERT INTO {lake}.flights VALUES (9)"),
    "merges": lambda lake: change(lake, "CALL ducklake_merge_adjacent_files('{lake}')"),
    "flushes the marker": lambda lake: change(lake, "CALL ducklake_flush_inlined_data('{lake}')"),
    "creates a table": lambda lake: change(lake, "CREATE TABLE {lake}.unrelated (number BIGINT)"),
}


@pytest.mark.parametrize("expired", [False, True], ids=["kept", "expired"])
@pytest.mark.parametrize("flushed", [False, True], ids=["inlined", "flushed"])
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_commit_behind_any_other_is_refused(
    lake: DuckLake, other: Callable[[DuckLake], None], flushed: bool, expired: bool
) -> None:
    """Also if the snapshots of the other are gone: DuckLake's own look finds nothing then."""
    change(lake, add(file(lake, 7)))
    change(lake, add(file(lake, 8)))
    if flushed:
        change(lake, "CALL ducklake_flush_inlined_data('{lake}')")
    mine = file(lake, 1, 2)
    with pytest.raises(UnknownCommitError):  # noqa: PT012 - the other acts within the transaction
        with lake.transaction() as at:
            assert at.query_rows("SELECT number FROM {lake}.marker") == [(0,)]
            other(lake)
            change(lake, "INSERT INTO {lake}.flights VALUES (10)")
            if expired:
                expire(lake)
            at.execute_change(add(mine))
            assert at.execute_change(MOVE) == 1
    assert Path(mine).exists(), "a refused transaction removes no file that it has added"
    published = ask(lake, "SELECT number FROM {lake}.marker") == [(1,)]
    rows = sorted(number for (number,) in ask(lake, "SELECT id FROM {lake}.flights"))
    assert [number for number in rows if number < 3] == ([1, 2] if published else [])
    assert 7 in rows and 8 in rows and 10 in rows


def test_an_update_of_the_marker_leaves_no_file(lake: DuckLake, tmp_path: Path) -> None:
    """Inlined, though the lake's own limit is 0; also behind a flush, which writes the row into a file."""
    change(lake, add(file(lake, 1)), MOVE)
    assert not list((tmp_path / "data").rglob("*.parquet"))
    change(lake, "CALL ducklake_flush_inlined_data('{lake}')")
    before = sorted((tmp_path / "data").rglob("*.parquet"))
    change(lake, "UPDATE {lake}.marker SET number = 2 WHERE number = 1")
    assert sorted((tmp_path / "data").rglob("*.parquet")) == before
    assert ask(lake, "SELECT number FROM {lake}.marker") == [(2,)]


def test_a_transaction_that_ends_without_a_commit_leaves_the_file(lake: DuckLake) -> None:
    path = file(lake, 1)
    with lake.transaction() as at:
        at.execute_statement(add(path))
        assert at.query_rows("SELECT id FROM {lake}.flights") == [(1,)]
    assert Path(path).exists() and ask(lake, "SELECT count(*) FROM {lake}.flights") == [(0,)]


def test_a_lake_that_two_create_at_once_is_one(tmp_path: Path) -> None:
    lake = DuckLake(str(tmp_path), "ducklake:here")

    def create_behind_another() -> None:
        with lake.transaction(create=True) as at:
            at.execute_change("CREATE TABLE {lake}.flights (id BIGINT)")
            change(lake, "CREATE TABLE {lake}.flights (id BIGINT)")

    with pytest.raises(UnknownCommitError):
        create_behind_another()
    assert ask(lake, "SELECT count(*) FROM {lake}.flights") == [(0,)]


@pytest.fixture
def two(tmp_path: Path) -> Any:
    """Two connections to a lake whose catalog is a file of DuckDB, with DuckLake's own retries."""
    with ExitStack() as stack:
        database = stack.enter_context(duckdb.connect(":memory:", config={"threads": 1}))
        database.execute(f"LOAD '{ducklake_catalog._extension('ducklake')}'")
        database.execute(f"ATTACH 'ducklake:{tmp_path}/catalog.ducklake' AS lake (DATA_PATH '{tmp_path}/data')")
        database.execute("CREATE TABLE lake.flights (id BIGINT); CREATE TABLE lake.marker (number BIGINT)")
        database.execute("INSERT INTO lake.marker VALUES (0)")
        yield [stack.enter_context(database.cursor()) for _ in range(2)]


def publish(connection: Any, path: str) -> None:
    connection.execute(add(path).replace("{lake}", "lake"))
    connection.execute(MOVE.replace("{lake}", "lake"))


def test_ducklake_s_own_rules_for_conflicts(two: Any, lake: DuckLake) -> None:
    """Two that append do not conflict; two that update one row do."""
    first, second = two
    for connection in two:
        connection.execute("BEGIN")
        connection.execute(add(file(lake, 1)).replace("{lake}", "lake"))
    first.execute("COMMIT")
    second.execute("COMMIT")
    for connection in two:
        connection.execute("BEGIN")
        publish(connection, file(lake, 2))
    first.execute("COMMIT")
    with pytest.raises(duckdb.TransactionException, match="conflict"):
        second.execute("COMMIT")
    assert first.execute("SELECT id FROM lake.flights ORDER BY id").fetchall() == [(1,), (1,), (2,)]


def test_why_a_catalog_in_duckdb_and_its_retries_are_not_enough(two: Any, lake: DuckLake) -> None:
    """A publisher that sleeps while its sequence is published and forgotten publishes it once more (ducklake #1472)."""
    late, other = two
    late.execute("BEGIN")
    assert late.execute("SELECT number FROM lake.marker").fetchall() == [(0,)]
    other.execute("BEGIN")
    publish(other, file(lake, 1))
    other.execute("COMMIT")
    other.execute("CREATE TABLE lake.unrelated (number BIGINT)")
    other.execute("CALL ducklake_expire_snapshots('lake', older_than => now())")
    publish(late, file(lake, 1))
    late.execute("COMMIT")
    assert other.execute("SELECT id FROM lake.flights").fetchall() == [(1,), (1,)]


def test_lake_that_another_process_makes_meanwhile_is_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks_for = DuckLake._has_lake

    def made_meanwhile(lake: DuckLake, at: Any) -> bool:
        monkeypatch.setattr(DuckLake, "_has_lake", looks_for)
        change(DuckLake(str(tmp_path), "ducklake:other"), "CREATE TABLE {lake}.flights (id BIGINT)")
        return looks_for(lake, at)

    monkeypatch.setattr(DuckLake, "_has_lake", made_meanwhile)
    late = DuckLake(str(tmp_path), "ducklake:late")
    Path(late.catalog).parent.mkdir(exist_ok=True)
    Path(late.catalog).touch()
    with pytest.raises(NoLakeError):
        ask(late, "SELECT * FROM {lake}.flights")
    monkeypatch.setattr(DuckLake, "_has_lake", looks_for)
    change(DuckLake(str(tmp_path), "ducklake:other"), "CREATE TABLE IF NOT EXISTS {lake}.flights (id BIGINT)")
    assert ask(late, "SELECT * FROM {lake}.flights") == []
