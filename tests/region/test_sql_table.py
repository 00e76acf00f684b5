from __future__ import annotations

import contextlib
import datetime
import decimal
import functools
import itertools
import os
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
import pytest

from kohort.errors import CorruptDataError, InvalidInputError, NotAuthorizedError, RetriableError
from kohort.region.sinks import Keep, Sink, sql_table
from kohort.region.sinks.by_name import sink_of
from kohort.region.sinks.ducklake_table import DuckLakeTable
from kohort.region.sinks.rows import RowRefusedError
from kohort.region.sinks.sql_dialects import PostgresDialect
from kohort.region.sinks.sql_table import SqlTable
from kohort.region.staged import StagedKey
from tests.region import place_runs as runs
from tests.region.places import same
from tests.region.places import table as rows_of
from tests.region.postgres import PostgresPlace, Server
from tests.region.volume import Died

REGION = UUID(int=1)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def key(unit: int, epoch: int = 1) -> StagedKey:
    return StagedKey(REGION, epoch, "größe/1", unit)


def table(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [str(number) for number in ids]}, schema=SCHEMA)


class Database:
    """Of a kind, new."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_postgres = url.startswith("postgres")

    def sink(self, **options: Any) -> SqlTable:
        return SqlTable(self.url, "flights", **options).bind("flights", REGION)

    def run(self, statement: str) -> list[Any]:
        opened: Any = psycopg.connect(self.url) if self.is_postgres else sqlite3.connect(self.url[len("sqlite:///") :])
        with contextlib.closing(opened) as connection:
            cursor = connection.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
            connection.commit()
            return list(rows)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database(f"sqlite:///{tmp_path}/out.db")
    server: Server = request.getfixturevalue("postgres")
    return Database(server.fresh())


def test_it_is_a_sink(database: Database) -> None:
    taken: Sink = database.sink()
    assert taken.published() == 0


def test_a_sequence_is_written_down_with_its_rows(database: Database) -> None:
    sink = database.sink()
    sink.check(SCHEMA)
    sink.stage(key(1), table(1, 2))
    sink.publish(17, [key(1)])
    assert database.run("SELECT target, region_id, sequence FROM kohort_sequences") == [("flights", str(REGION), 17)]
    assert database.run("SELECT id, name FROM flights ORDER BY id") == [(1, "1"), (2, "2")]


ODD = ["na me", 'quo"te', "per%cent", "que?stion", "select", "{target}"]


@pytest.mark.parametrize("options", [{}, {"mode": "update", "keys": ["que?stion", 'quo"te']}], ids=["append", "update"])
def test_names_that_need_quotes(database: Database, options: dict[str, Any]) -> None:
    odd = SqlTable(database.url, 'fli"gh%ts?', **options).bind("flights", REGION)
    schema = pa.schema([(name, pa.string()) for name in ODD])
    odd.check(schema)
    for number in (1, 2):
        odd.stage(key(number), pa.table({name: [f"{name}"] for name in ODD}, schema=schema))
        odd.publish(number, [key(number)])
    assert database.run('SELECT * FROM "fli""gh%ts?"') == [tuple(ODD)] * (1 if options else 2)


MANY = "12345678901234567890.123456789012345678"
AT = datetime.datetime(2026, 11, 24, 12, 0, 0, 1, datetime.UTC)
VALUES: list[tuple[pa.DataType, Any, Any]] = [
    (pa.bool_(), True, 1),
    (pa.int8(), -128, -128),
    (pa.uint32(), 2**32 - 1, 2**32 - 1),
    (pa.int64(), -(2**63), -(2**63)),
    (pa.float32(), 0.5, 0.5),
    (pa.float64(), 1e300, 1e300),
    (pa.decimal128(38, 18), decimal.Decimal(MANY), MANY),
    (pa.string(), "ß\n'\"\\N\t", "ß\n'\"\\N\t"),
    (pa.large_string(), "", ""),
    (pa.dictionary(pa.int8(), pa.string()), "x", "x"),
    (pa.binary(), b"\0\\\xff", b"\0\\\xff"),
    (pa.date32(), datetime.date(1, 1, 1), "0001-01-01"),
    (pa.time64("us"), datetime.time(23, 59, 59, 1), "23:59:59.000001"),
    (pa.timestamp("us", "UTC"), AT, "2026-11-24 12:00:00.000001+00:00"),
    (pa.timestamp("ms"), AT.replace(tzinfo=None, microsecond=0), "2026-11-24 12:00:00.000000"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "text"), VALUES, ids=lambda each: str(each)[:30])
def test_values_are_read_back(database: Database, kind: pa.DataType, value: Any, text: Any) -> None:
    schema = pa.schema([("x", kind)])
    sink = database.sink()
    sink.check(schema)
    sink.stage(key(1), pa.table({"x": pa.array([value, None], kind)}, schema=schema))
    sink.publish(1, [key(1)])
    assert database.run("SELECT x FROM flights ORDER BY x IS NULL") == [
        (value if database.is_postgres else text,),
        (None,),
    ]


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("ns"),
        pa.time64("ns"),
        pa.list_(pa.int8()),
        pa.struct([("x", pa.int8())]),
        pa.map_(pa.string(), pa.int8()),
        pa.duration("s"),
    ],
    ids=str,
)
def test_types_that_it_does_not_keep(database: Database, kind: pa.DataType) -> None:
    with pytest.raises(InvalidInputError, match="'x' of type .*to_json"):
        database.sink().check(pa.schema([("x", kind)]))


@pytest.mark.parametrize(
    ("kind", "good", "bad", "said"),
    [
        (pa.timestamp("us", "UTC"), [0, -(2**50), 253_402_300_799_999_999], 2**60, "a date or time beyond the years"),
        (pa.timestamp("s"), [0, -62_135_596_800], -62_135_596_801, "a date or time beyond the years"),
        (pa.date32(), [0, -719_162, 2_932_896], 2_932_897, "a date or time beyond the years"),
        (pa.string(), ["", "x"], "a\0b", "a text with a zero byte"),
    ],
    ids=["timestamp", "seconds", "date", "zero byte"],
)
def test_values_that_the_database_does_not_take_are_refused_row_by_row(
    database: Database, kind: Any, good: list[Any], bad: Any, said: str
) -> None:
    """Before they are staged, so that they can become dead letters."""
    sink, schema = database.sink(), pa.schema([("x", kind)])
    sink.check(schema)
    given = pa.Table.from_arrays([pa.array([*good, None, bad], kind)], schema=schema)
    sink.stage(key(1), given.slice(0, len(good) + 1))
    sink.publish(1, [key(1)])
    if kind == pa.string() and not database.is_postgres:
        sink.stage(key(2), given)
        return
    for call in (sink.check_rows, lambda rows: sink.stage(key(2), rows)):
        with pytest.raises(RowRefusedError, match=f"'x' can't be written: it is {said}") as refused:
            call(given)
        assert (refused.value.row, refused.value.column) == (len(good) + 1, "x")
    with pytest.raises(CorruptDataError, match="are gone"):
        sink.publish(2, [key(2)])


def test_times_of_a_zone_that_python_does_not_have_are_written(database: Database) -> None:
    """Spark has zones such as GMT+08:00."""
    sink, schema = database.sink(), pa.schema([("x", pa.timestamp("us", "GMT+08:00"))])
    sink.check(schema)
    sink.stage(key(1), pa.Table.from_arrays([pa.array([0, None], schema.field(0).type)], schema=schema))
    sink.publish(1, [key(1)])
    found = database.run("SELECT x FROM flights ORDER BY x IS NULL")
    moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    assert found == [(moment if database.is_postgres else "1970-01-01 00:00:00.000000+00:00",), (None,)]


def test_a_time_whose_year_is_beyond_9999_in_its_zone_alone_is_written(database: Database) -> None:
    """Databases write the last second of 9999 for "never"."""
    sink, schema = database.sink(), pa.schema([("x", pa.timestamp("us", "Asia/Tokyo"))])
    sink.check(schema)
    never = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
    moments = pa.array([0, 253_402_300_799_000_000], pa.int64()).cast(schema.field(0).type)
    sink.stage(key(1), pa.Table.from_arrays([moments], schema=schema))
    sink.publish(1, [key(1)])
    found = database.run("SELECT x FROM flights ORDER BY x")
    if database.is_postgres:
        assert found == [(datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),), (never,)]
    else:
        assert found == [("1970-01-01 09:00:00.000000+09:00",), ("9999-12-31 23:59:59.000000+00:00",)]


def test_nan_in_sqlite(tmp_path: Path) -> None:
    sink = Database(f"sqlite:///{tmp_path}/out.db").sink()
    schema = pa.schema([pa.field("x", pa.float64(), nullable=False)])
    sink.check(schema)
    with pytest.raises(RowRefusedError, match="keeps NaN as null: row 2 of 2"):
        sink.check_rows(pa.table({"x": [1.0, float("nan")]}, schema=schema))


def test_a_table_that_was_there_before(database: Database) -> None:
    database.run("CREATE TABLE flights (name text, id bigint)")
    sink = database.sink()
    sink.check(SCHEMA)
    sink.stage(key(1), table(1))
    sink.publish(1, [key(1)])
    assert database.run("SELECT name, id FROM flights") == [("1", 1)]


PARTED = "CREATE TABLE flights (id bigint, name text) PARTITION BY RANGE (id)"
GAP = (
    f"{PARTED}; ALTER TABLE flights ADD PRIMARY KEY (id); "
    "CREATE TABLE flights_1 PARTITION OF flights FOR VALUES FROM (MINVALUE) TO (0)"
)
HASHED = "CREATE TABLE flights (id bigint, name text) PARTITION BY HASH (id)"


@pytest.mark.parametrize(
    ("made", "options", "said"),
    [
        ("CREATE TABLE flights (id bigint)", {}, "has no column 'name'"),
        ("CREATE TABLE flights (id bigint, name text, more text)", {}, "has a column 'more', which the rows have not"),
        ("CREATE TABLE flights (id bigint NOT NULL, name text)", {}, "takes no null in 'id'"),
        ("CREATE TABLE flights (id bigint PRIMARY KEY, name text)", {}, "each id once only"),
        ("CREATE TABLE flights (id bigint, name text UNIQUE)", {"keys": ["id"]}, "each name once.*no unique index on"),
        ("CREATE TABLE flights (id bigint CHECK (id > 0), name text)", {}, "CHECK|constraint"),
        ("CREATE TABLE o (id bigint PRIMARY KEY); CREATE TABLE flights (id bigint REFERENCES o, name text)", {},
         "refers to 'o'|constraint"),
        ("CREATE TABLE flights (id bigint, name text, UNIQUE (id, name))", {"keys": ["id"]}, "each id, name once only"),
        ("CREATE VIEW flights AS SELECT 1 AS id, 'x' AS name", {}, "is a view|is no table"),
        ("CREATE TABLE flights (id bigint, name text); CREATE UNIQUE INDEX i ON flights (id) WHERE id > 0", {},
         "index"),
        ("CREATE TABLE flights (id bigint, name text); INSERT INTO flights VALUES (1, 'x')", {}, "holds rows already"),
        ("CREATE TABLE flights (id bigint, name text); CREATE TABLE flights__staged (id bigint)", {}, "in the way"),
    ],
)  # fmt: skip
def test_a_table_that_could_refuse_rows_later_is_refused_at_once(
    database: Database, made: str, options: dict[str, Any], said: str
) -> None:
    for statement in made.split("; "):
        database.run(statement)
    with pytest.raises(InvalidInputError, match=said):
        database.sink(**({"mode": "update"} if options else {}), **options).check(SCHEMA)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("CREATE TABLE flights (id timestamp, name text)", "keeps 'id' as NUMERIC, and the rows need INTEGER"),
        ("CREATE TABLE flights (id bigint, name text); CREATE TRIGGER t AFTER INSERT ON flights BEGIN SELECT 1; END",
         "trigger 't'"),
        ("CREATE TABLE flights (id bigint, name text AS ('x' || id))", "makes the values of 'name'"),
    ],
)  # fmt: skip
def test_the_same_in_sqlite_alone(tmp_path: Path, made: str, said: str) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "out.db")) as connection:
        connection.executescript(made)
    with pytest.raises(InvalidInputError, match=said):
        Database(f"sqlite:///{tmp_path}/out.db").sink().check(SCHEMA)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("CREATE TABLE flights (id bigint GENERATED ALWAYS AS IDENTITY, name text)", "takes no null in 'id'|by itself"),
        ("CREATE TABLE flights (id bigint, name text); ALTER TABLE flights ENABLE ROW LEVEL SECURITY", "row security"),
        ("CREATE TABLE flights (id bigint, name text); CREATE RULE r AS ON INSERT TO flights DO INSTEAD NOTHING",
         "rule 'r'"),
        ("CREATE UNLOGGED TABLE flights (id bigint, name text)", "unlogged"),
        (f"{PARTED}; CREATE TABLE flights_1 PARTITION OF flights FOR VALUES FROM (0) TO (10)", "no default partition"),
        (f"{PARTED}; CREATE TABLE flights_1 PARTITION OF flights FOR VALUES FROM (MINVALUE) TO (MAXVALUE)",
         "no default partition"),
        (f"{GAP}; CREATE TABLE flights_2 PARTITION OF flights FOR VALUES FROM (1) TO (MAXVALUE)",
         "no default partition"),
        (f"{PARTED}; CREATE TABLE flights_1 PARTITION OF flights DEFAULT PARTITION BY LIST (name)",
         "no default partition in 'flights_1'"),
        (f"{PARTED}; CREATE TABLE flights_1 PARTITION OF flights (CHECK (id < 10)) DEFAULT",
         "partition 'flights_1', which has the constraint"),
        (f"{PARTED}; CREATE TABLE flights_1 PARTITION OF flights DEFAULT; CREATE UNIQUE INDEX ON flights_1 (name)",
         "partition 'flights_1', which takes each name once only"),
        (f"{PARTED}; CREATE TABLE flights_1 PARTITION OF flights (name NOT NULL) DEFAULT", "takes no null in 'name'"),
        (f"{PARTED}; CREATE UNLOGGED TABLE flights_1 PARTITION OF flights DEFAULT", "'flights_1', which is unlogged"),
        (f"{HASHED}; CREATE TABLE flights_1 PARTITION OF flights FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
         "lacks partitions"),
        (f"{PARTED.replace('flights', 'o')}; CREATE TABLE flights PARTITION OF o FOR VALUES FROM (0) TO (10)",
         "is a partition"),
    ],
)  # fmt: skip
def test_the_same_in_postgres_alone(postgres: Server, made: str, said: str) -> None:
    database = Database(postgres.fresh())
    for statement in made.split("; "):
        database.run(statement)
    with pytest.raises(InvalidInputError, match=said):
        database.sink().check(SCHEMA)


@pytest.mark.parametrize(
    "made",
    [
        [PARTED, "PARTITION OF flights FOR VALUES FROM (0) TO (10)", "PARTITION OF flights DEFAULT"],
        [
            HASHED,
            "PARTITION OF flights FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
            "PARTITION OF flights FOR VALUES WITH (MODULUS 4, REMAINDER 0)",
            "PARTITION OF flights FOR VALUES WITH (MODULUS 4, REMAINDER 2)",
        ],
    ],
    ids=["range", "hash"],
)
@pytest.mark.parametrize("keys", [[], ["id"]], ids=["append", "update"])
def test_partitions_that_take_every_row_are_written(postgres: Server, made: list[str], keys: list[str]) -> None:
    database = Database(postgres.fresh())
    database.run(made[0])
    for number, partition in enumerate(made[1:]):
        database.run(f"CREATE TABLE flights_{number} {partition}")
    if keys:
        database.run("ALTER TABLE flights ADD PRIMARY KEY (id)")
    sink = database.sink(mode="update", keys=keys) if keys else database.sink()
    sink.check(SCHEMA)
    for number in (1, 2):
        sink.stage(key(number), table(*range(20)))
        sink.publish(number, [key(number)])
    assert database.run("SELECT count(*), count(DISTINCT id) FROM flights") == [(20 if keys else 40, 20)]
    sink.empty(3, 2)
    assert database.run("SELECT count(*) FROM flights") == [(0,)]


def test_ranges_without_a_gap_are_written(postgres: Server) -> None:
    database = Database(postgres.fresh())
    database.run("CREATE TABLE flights (id bigint, name text, PRIMARY KEY (name, id)) PARTITION BY RANGE (name, id)")
    ends = ["MINVALUE, MINVALUE", "') TO (''', 1", "') TO (''', 2", "'x', MINVALUE", "MAXVALUE, MAXVALUE"]
    for number, (begin, end) in enumerate(itertools.pairwise(ends)):
        database.run(f"CREATE TABLE flights_{number} PARTITION OF flights FOR VALUES FROM ({begin}) TO ({end})")
    sink = database.sink(mode="update", keys=["name", "id"])
    sink.check(SCHEMA)
    sink.stage(key(1), table(*range(20)))
    sink.publish(1, [key(1)])
    assert database.run("SELECT count(*) FROM flights") == [(20,)]


def _enforcing(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


@pytest.mark.parametrize("cascade", ["", " ON DELETE CASCADE"], ids=["holds", "cascades"])
def test_a_table_that_others_refer_to_is_written_and_not_emptied_under_them(database: Database, cascade: str) -> None:
    database.run("CREATE TABLE flights (id bigint PRIMARY KEY, name text)")
    database.run(f"CREATE TABLE o (id bigint REFERENCES flights (id){cascade})")
    sink = database.sink(mode="update", keys=["id"])
    if database.url.startswith("sqlite"):
        sink._connect = functools.partial(_enforcing, sink._connect.path)  # type: ignore[union-attr,attr-defined]
    sink.check(SCHEMA)
    sink.stage(key(1), table(1, 2))
    sink.publish(1, [key(1)])
    database.run("INSERT INTO o VALUES (1)")
    sink.stage(key(2), pa.table({"id": [1], "name": ["new"]}, schema=SCHEMA))
    sink.publish(2, [key(2)])
    assert database.run("SELECT name FROM flights ORDER BY id") == [("new",), ("2",)]
    with pytest.raises(InvalidInputError, match="can't be emptied.*foreign key.*by hand"):
        sink.empty(3, 2)
    assert database.run("SELECT id FROM o") == [(1,)] and sink.published() == 2
    database.run("DELETE FROM o")
    database.run("DELETE FROM flights")
    sink.empty(3, 2)
    assert sink.published() == 3


def test_a_stricter_column_refuses_rows_when_they_are_staged(postgres: Server) -> None:
    database = Database(postgres.fresh())
    database.run("CREATE TABLE flights (id smallint, name varchar(3))")
    sink = database.sink()
    sink.check(SCHEMA)
    for number in (70_000, 1234):
        with pytest.raises(InvalidInputError, match="refuses it"):
            sink.stage(key(1), table(number))
    sink.stage(key(1), table(123))
    sink.publish(1, [key(1)])
    assert database.run("SELECT * FROM flights") == [(123, "123")]


def test_a_unique_index_with_further_columns_is_the_key_s(postgres: Server) -> None:
    database = Database(postgres.fresh())
    database.run("CREATE TABLE flights (id bigint, name text)")
    database.run("CREATE UNIQUE INDEX i ON flights (id) INCLUDE (name)")
    sink = database.sink(mode="update", keys=["id"])
    sink.check(SCHEMA)
    for number in (1, 2):
        sink.stage(key(number), table(1))
        sink.publish(number, [key(number)])
    assert database.run("SELECT * FROM flights") == [(1, "1")]


def test_rights_that_are_missing_are_found_by_check(postgres: Server) -> None:
    database = Database(postgres.fresh())
    schema = database.run("SELECT current_schema()")[0][0]
    database.run("CREATE TABLE flights (id bigint, name text)")
    database.run(f"CREATE ROLE r_{schema} LOGIN")
    database.run(f"GRANT USAGE, CREATE ON SCHEMA {schema} TO r_{schema}")
    database.run(f"GRANT SELECT, INSERT ON flights TO r_{schema}")
    other = Database(database.url.replace("kohort@", f"r_{schema}@"))
    with pytest.raises(NotAuthorizedError, match=r"update and delete in s\d+.flights"):
        other.sink().check(SCHEMA)
    database.run(f"REVOKE CREATE ON SCHEMA {schema} FROM r_{schema}")
    with pytest.raises(NotAuthorizedError, match="does not allow it"):
        other.sink().check(SCHEMA)


def test_a_table_in_a_schema_of_its_own(postgres: Server) -> None:
    database = Database(postgres.fresh())
    schema = database.run("SELECT current_schema()")[0][0]
    sink = SqlTable(postgres.url, f"{schema}.flights").bind("flights", REGION)
    sink.check(SCHEMA)
    sink.stage(key(1), table(1))
    sink.publish(1, [key(1)])
    assert sink.published() == 1 and database.run("SELECT id FROM flights") == [(1,)]
    with pytest.raises(InvalidInputError, match="belongs to region 'flights'"):
        database.sink().bind("trains", UUID(int=9)).check(SCHEMA)


def test_connection_is_closed_when_the_server_stays_in_a_transaction(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{postgres.fresh()}%20-csynchronous_commit%3Doff"
    sink = SqlTable(url, "flights").bind("flights", REGION)
    said: list[str] = []
    whole = sql_table._Cursor.execute_template

    def run(self: Any, statement: str, *given: object) -> None:
        said.append(self.cursor.execute("SHOW synchronous_commit").fetchone()[0])
        whole(self, statement, *given)

    monkeypatch.setattr(sql_table._Cursor, "execute_template", run)
    sink.check(SCHEMA)
    assert set(said) == {"on"}


def test_who_comes_second_waits_and_finds_it_done(postgres: Server) -> None:
    database = Database(postgres.fresh())
    sink = database.sink()
    sink.check(SCHEMA)
    sink.stage(key(1), table(1, 2))
    with psycopg.connect(database.url) as holder:
        holder.execute("SELECT * FROM kohort_sequences FOR UPDATE")
        late = [threading.Thread(target=sink.publish, args=(1, [key(1)])) for _ in range(2)]
        for thread in late:
            thread.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while database.run(waiting) != [(2,)]:
            assert all(thread.is_alive() for thread in late)
        holder.rollback()
    for thread in late:
        thread.join()
    assert database.run("SELECT id FROM flights ORDER BY id") == [(1,), (2,)]


def test_without_the_lock_nobody_waits(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that the test before must find."""
    monkeypatch.setattr(PostgresDialect, "locked", "")
    with pytest.raises(AssertionError):
        test_who_comes_second_waits_and_finds_it_done(postgres)


@pytest.mark.parametrize("kind", ["postgres", "postgres-update"])
def test_connections_that_end_at_each_statement(postgres: Server, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a publish, by the server's hand, before the statement and after it; then whoever comes next."""
    for act in (runs.publish, lambda sink: sink.empty(1, runs.EPOCH)):
        number, ended = 0, True
        while ended:
            number, ended = number + 1, False
            place = PostgresPlace(kind, postgres.fresh())
            sink = place.sink()
            sink.check(SCHEMA)
            for entry in (*runs.KEYS, *runs.NEXT, *runs.QUIET):
                sink.stage(entry, rows_of(runs.STAGED.get(entry, [])))
            with monkeypatch.context() as patch, contextlib.suppress(RetriableError):
                patch.setattr(sql_table._Cursor, "execute_template", _ending(postgres, number))
                act(sink)
            ended = _ENDED.pop() if _ENDED else False
            if act is runs.publish:
                assert same(place.rows(), []) or same(place.rows(), runs.merged(place, runs.FIRST))
                runs.all_is_well(place)
            else:
                act(place.sink())
                assert place.rows() == [] and place.sink().published() == 1
        assert number > 3


_ENDED: list[bool] = []


def _ending(server: Server, at: int) -> Callable[..., None]:
    whole, count = sql_table._Cursor.execute_template, [0]

    def run(self: Any, statement: str, *given: object) -> None:
        count[0] += 1
        if count[0] == at:
            _ENDED.append(True)
            pid = self.cursor.connection.info.backend_pid
            with psycopg.connect(server.url) as other:
                other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        whole(self, statement, *given)

    return run


def test_a_database_that_is_busy_or_away_can_be_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(f"sqlite:///{tmp_path}/out.db")
    sink = database.sink()
    sink.check(SCHEMA)
    monkeypatch.setattr("kohort.region.sinks.sql_dialects._SQLITE_WAIT_S", 0.0)
    with contextlib.closing(sqlite3.connect(tmp_path / "out.db", isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        for act in (lambda: sink.stage(key(1), table(1)), lambda: sink.publish(1, []), lambda: sink.sweep(Keep(2))):
            with pytest.raises(RetriableError, match="locked"):
                act()
    gone = SqlTable(f"sqlite:///{tmp_path}/nowhere/out.db", "flights").bind("flights", REGION)
    with pytest.raises(RetriableError, match="unable to open"):
        gone.check(SCHEMA)
    (tmp_path / "bad.db").write_bytes(b"no database" * 1000)
    with pytest.raises(CorruptDataError, match="damaged"):
        SqlTable(f"sqlite:///{tmp_path}/bad.db", "flights").bind("flights", REGION).check(SCHEMA)
    away = SqlTable("postgresql://kohort:secret@127.0.0.1:1/x", "flights").bind("flights", REGION)
    with pytest.raises(RetriableError):
        away.check(SCHEMA)


def test_a_full_disk(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/out.db")
    sink = SqlTable(_small, "flights").bind("flights", REGION)
    os.environ["KOHORT_TEST_DATABASE"] = f"{tmp_path}/out.db"
    try:
        sink.check(SCHEMA)
        wide = pa.table({"id": range(50_000), "name": ["x" * 100] * 50_000}, schema=SCHEMA)
        with pytest.raises(RetriableError, match="full"):
            sink.stage(key(1), wide)
    finally:
        del os.environ["KOHORT_TEST_DATABASE"]
    grown = database.sink()
    assert grown.adopt() == sink.place, "the function that connected has another name"
    grown.stage(key(1), wide)
    grown.publish(1, [key(1)])
    assert database.run("SELECT count(*) FROM flights") == [(50_000,)]


def _small() -> sqlite3.Connection:
    connection = sqlite3.connect(os.environ["KOHORT_TEST_DATABASE"])
    connection.execute("PRAGMA max_page_count = 100")
    return connection


def test_a_table_that_is_taken_away(database: Database) -> None:
    sink = database.sink()
    sink.check(SCHEMA)
    sink.stage(key(1), table(1))
    database.run("DROP TABLE flights")
    with pytest.raises(InvalidInputError, match="refuses it"):
        sink.publish(1, [key(1)])
    with pytest.raises(InvalidInputError, match="bring it back"):
        sink.check(SCHEMA)
    database.run("CREATE TABLE flights (id bigint, name text)")
    sink.publish(1, [key(1)])
    assert database.run("SELECT id FROM flights") == [(1,)]


def test_a_function_that_connects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOHORT_TEST_DATABASE", f"{tmp_path}/out.db")
    sink = SqlTable(_small, "flights").bind("flights", REGION)
    assert sink.place == "sql:tests.region.test_sql_table._small#flights"
    sink.check(SCHEMA)
    with pytest.raises(InvalidInputError, match="one of sqlite3 or of psycopg"):
        SqlTable(_nothing, "flights").bind("flights", REGION).check(SCHEMA)


def _nothing() -> Any:
    return contextlib.closing(None)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("connect", "name", "said"),
    [
        ("mysql://host/database", "flights", "does not know 'mysql'"),
        ("sqlite:///:memory:", "flights", "seen by one process alone"),
        (lambda: None, "flights", "at the top of a module"),
        ("sqlite:///x.db", "", "'schema.table'"),
        ("sqlite:///x.db", "a.b.c", "'schema.table'"),
    ],
)
def test_places_that_can_t_be(connect: Any, name: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        SqlTable(connect, name)


def test_passwords_are_not_said() -> None:
    sink = SqlTable("postgresql://kohort:secret@db:5433/x?sslmode=require&password=secret", "s.flights")
    assert sink.place == "sql:postgresql://db:5433/x#s.flights"
    assert "secret" not in repr(sink)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:s3cret#x@db:5433/x", "postgresql://me@db:5433/x"),
        ("postgres://me:s3cret?x@db/x?sslpassword=s3cret&oauth_client_secret=s3cret", "postgresql://me@db/x"),
        ("postgresql://me:s3cret@[::1]:5433,db2/x?host=/run", "postgresql://me@[::1]:5433,db2/x?host=/run"),
        ("postgresql:///x?user=me@example&password=s3cret", "postgresql:///x?user=me%40example"),
        ("postgresql://me:s3 cret@db/x", "postgresql://me@db/x"),
        ("postgresql://me:s3cret%zz@db/x", "postgresql://me@db/x"),
        ("postgresql://me:a/s3cret@db/x", ""),
        ("postgresql://me:a@s3cret@db/x", ""),
        ("postgresql://me:s3cret", ""),
        ("postgresql:host=db password=s3cret", ""),
        ("host=db password=s3cret", ""),
        ("mysql:password=s3cret", ""),
    ],
    ids=[
        "hash", "question mark", "servers", "user as a parameter", "space", "percent", "slash", "at", "no database",
        "scheme alone", "parameters", "another scheme",
    ],
)  # fmt: skip
def test_password_of_no_form_is_said(url: str, shown: str, tmp_path: Path) -> None:
    """Libpq takes more characters in a password than a URL may have, and repeats it in errors."""
    said = []
    for make in (lambda: SqlTable(url, "t"), lambda: DuckLakeTable("t", lake=tmp_path, catalog=url)):
        try:
            sink = make()
            said += [repr(sink), sink.bind("r", REGION).place]
        except InvalidInputError as error:
            said += [str(error), "".join(traceback.format_exception(error)).replace(url, "")]
    assert not any("s3" in text for text in said), said
    assert shown in said[0] and (shown or "no URL" in said[0])


@pytest.mark.parametrize(
    "place", ["sql:host=db password=s3cret", "sql:host=db PASSWORD = s3cret#t", "pgpass=s3cret", "sql:token=s3cret"]
)
def test_place_that_is_no_url_is_not_shown_with_its_password(place: str) -> None:
    with pytest.raises(InvalidInputError, match="names no sink") as refused:
        sink_of(place)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("names", [["kohort_key"], ["id", "ID"]])
def test_columns_that_can_t_be(database: Database, names: list[str]) -> None:
    with pytest.raises(InvalidInputError, match="sink's own names|of one name"):
        database.sink().check(pa.schema([(name, pa.int64()) for name in names]))


def test_without_the_package_it_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "import uuid, pyarrow, kohort.region\n"
        "sink = kohort.region.SqlTable('postgresql://x@/y', 't')\n"
        "try: sink.bind('r', uuid.UUID(int=1)).check(pyarrow.schema([('x', pyarrow.int8())]))\n"
        "except ValueError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'kohort[postgres]'" in said


def test_who_dies_leaves_no_transaction(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = database.sink()
    sink.check(SCHEMA)
    sink.stage(key(1), table(1))
    with monkeypatch.context() as patch:
        patch.setattr(SqlTable, "_moving", _dying)
        with pytest.raises(Died):
            sink.publish(1, [key(1)])
    sink.publish(1, [key(1)])
    assert database.run("SELECT id FROM flights") == [(1,)]


def _dying(*_: object) -> Iterator[None]:
    raise Died
