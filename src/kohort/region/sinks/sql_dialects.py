"""The dialects of SQLite (`sqlite3`) and PostgreSQL (`psycopg`).

SQLAlchemy would replace the names of types and a few statements, some 60 lines. The rest it lacks: row security,
triggers, rules and partial indexes that may refuse rows later, and which errors to retry. Its import takes 450 ms of
CPU, this module's 85 ms beside pyarrow's.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

import pyarrow as pa

from kohort.errors import CorruptDataError, InvalidInputError, KafkaError, NotAuthorizedError, RetriableError
from kohort.settings.validation import is_secret

Connect: TypeAlias = Callable[[], Any]
"""Type of a function that opens a connection of Python's database API."""
ROWS_AT_ONCE: Final = 10_000
"""Number of rows that are converted to Python values at the same time."""
_ASCII_UPPER: Final = re.compile("[A-Z]")
_SEARCH_PATH: Final = re.compile(r"search_path\s*=\s*((?:\\.|\S)+)")
_SQLITE_WAIT_S: Final = 30.0
"""Time to wait for a locked file, before the call fails and is retried."""


@dataclass(frozen=True, slots=True)
class ExistingTable:
    """The columns, unique constraints and other rules of a database table that exists already.

    Attributes:
        columns: whether each column is NOT NULL, by name.
        unique: the columns of each unique constraint, also of the primary key.
        against: texts on features that may refuse or change rows at publication, such as triggers.
        types: the affinity of each column, in SQLite; empty in other databases.
    """

    columns: dict[str, bool]
    unique: tuple[frozenset[str], ...]
    against: tuple[str, ...]
    types: dict[str, str]


class SqlDialect(Protocol):
    """The interface to what differs between SQLite and PostgreSQL."""

    mark: str
    """The placeholder of a value in a statement."""
    begin: tuple[str, ...]
    """The statements that open a transaction which may write."""
    locked: str
    """The suffix of a query that locks its row until the transaction ends."""
    name_bytes_max: int

    def configure_connection(self, connection: Any) -> None:
        """Configure a new connection: transactions only by BEGIN, and commits that survive a power loss."""

    def sql_type_of(self, kind: pa.DataType) -> str:
        """Return the SQL type for a column of an Arrow type; empty: the database has no such type."""

    def lock_table_checks(self, cursor: Any, place: str) -> None:
        """Wait until no other transaction checks a sink's table, and lock others out until this transaction ends."""

    def comparable_table_name(self, table: str) -> str:
        """Return a table's name in the form by which the database compares names."""

    def qualified_table_name(self, cursor: Any, table: Sequence[str]) -> Sequence[str]:
        """Return a table's name with the schema in which the search path finds it, or would create it.

        The sink's own tables are in the same schema.
        """

    def escape_placeholders(self, name: str) -> str:
        """Escape a quoted name for a statement with placeholders."""

    def table_exists(self, cursor: Any, table: Sequence[str]) -> bool:
        """Return whether the database has a table of this name."""

    def describe_existing_table(self, cursor: Any, table: Sequence[str]) -> ExistingTable | None:
        """Return the columns and rules of a table; None: it does not exist. The name may lack the schema."""

    def referring_foreign_keys(self, cursor: Any, table: Sequence[str]) -> list[str]:
        """Return texts on foreign keys that refer to this table: they forbid a deletion of its rows, or cascade it."""

    def create_staging_statement(self, target: str, staging: str) -> str:
        """Return the CREATE TABLE statement for the staging table: the target's columns, and two for the staged key."""

    def insert_rows(self, cursor: Any, table: str, columns: Sequence[str], rows: Iterable[tuple[object, ...]]) -> None:
        """Insert rows, given as tuples of values that `to_driver_value` has converted."""

    def to_driver_value(self, value: Any) -> object:
        """Convert a Python value to one that the driver accepts."""

    def translate_driver_error(self, error: Exception) -> KafkaError | None:
        """Return the package's own error for an error of the driver; None: it is another error."""


def dialect_of(connection: Any) -> SqlDialect:
    """Return the dialect for a database connection of sqlite3 or psycopg.

    Raises:
        InvalidInputError: the connection is of another driver.
    """
    home = type(connection).__module__.partition(".")[0]
    if isinstance(connection, sqlite3.Connection):
        return SQLITE
    if home == "psycopg":
        return PostgresDialect()
    raise InvalidInputError(
        f"SqlTable does not know connections of {home}: let connect() return one of sqlite3 or of psycopg (3)"
    )


def driver_value_rows(
    dialect: SqlDialect, table: pa.Table, *extra_values: Callable[[int], object]
) -> Iterator[tuple[object, ...]]:
    """Yield the rows of a table as tuples of values that the driver accepts.

    Each function in `extra_values` adds a value at the end of the tuple, computed from the row's number from 0.
    """
    number = 0
    for batch in table.to_batches(max_chunksize=ROWS_AT_ONCE):
        columns = [[dialect.to_driver_value(value) for value in _python_values(column)] for column in batch.columns]
        for row in zip(*columns, strict=True):
            yield (*row, *(function(number) for function in extra_values))
            number += 1


def _python_values(column: Any) -> list[Any]:
    """Convert a column to a list of Python values.

    A time in a zone may lie beyond the years 1 to 9999 while its UTC does not: such values are given in UTC.
    """
    column = _known_zone(column)
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except OverflowError:
        utc = column.cast(pa.timestamp(column.type.unit, "UTC"))
        return [_time_at_edge(*found) for found in zip(column, utc, strict=True)]


def _time_at_edge(value: Any, in_utc: Any) -> Any:
    try:
        return value.as_py()
    except OverflowError:
        return in_utc.as_py()


def _known_zone(column: Any) -> Any:
    """Return a column of times in UTC if Python does not know the name of its time zone, such as GMT+08:00."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        try:
            pa.scalar(0, kind).as_py()
        except (LookupError, ValueError):
            return column.cast(pa.timestamp(kind.unit, "UTC"))
    return column


def quote_sql_name(*names: str) -> str:
    """Quote a name for SQL; of several parts, such as schema and table, each is quoted, with dots between."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def quoted_column_list(names: Iterable[str]) -> str:
    """Return quoted column names with commas between, for an SQL statement."""
    return ", ".join(quote_sql_name(name) for name in names)


class SqliteDialect:
    """The dialect of SQLite: a database is one file with one writer at a time."""

    mark = "?"
    begin: tuple[str, ...] = ("BEGIN IMMEDIATE",)
    locked = ""
    name_bytes_max = 1000

    def configure_connection(self, connection: Any) -> None:
        """Turn off implicit transactions, and make commits survive a power loss (`synchronous=EXTRA`)."""
        connection.isolation_level = None
        connection.execute("PRAGMA synchronous = EXTRA")

    def sql_type_of(self, kind: pa.DataType) -> str:
        """Return the SQL type for a column of an Arrow type; empty: SQLite has no such type.

        Times and decimals are stored as text, because SQLite would round them.
        """
        if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and kind != pa.uint64()):
            return "INTEGER"
        if pa.types.is_floating(kind):
            return "REAL"
        if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
            return "BLOB"
        if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
            return "" if kind.unit == "ns" else "TEXT"
        text = pa.types.is_string(kind) or pa.types.is_date(kind) or pa.types.is_decimal(kind)
        return "TEXT" if text else ""

    def lock_table_checks(self, cursor: Any, place: str) -> None:
        """Do nothing: the transaction is BEGIN IMMEDIATE, and SQLite has one writer at a time."""

    def comparable_table_name(self, table: str) -> str:
        """Return the name with ASCII letters in lower case: SQLite ignores the case of no other letters."""
        return _ASCII_UPPER.sub(lambda found: found[0].lower(), table)

    def qualified_table_name(self, cursor: Any, table: Sequence[str]) -> Sequence[str]:
        """Return the name unchanged: SQLite's tables have no search path."""
        return table

    def escape_placeholders(self, name: str) -> str:
        """Return the name unchanged: SQLite does not search quoted names for placeholders."""
        return name

    def table_exists(self, cursor: Any, table: Sequence[str]) -> bool:
        """Return whether the database has a table of this name."""
        cursor.execute("SELECT 1 FROM sqlite_master WHERE name = ? COLLATE NOCASE", (table[-1],))
        return cursor.fetchone() is not None

    def describe_existing_table(self, cursor: Any, table: Sequence[str]) -> ExistingTable | None:
        """Return the columns and rules of a table; None: it does not exist."""
        name = table[-1]
        cursor.execute("SELECT type, sql FROM sqlite_master WHERE name = ? COLLATE NOCASE", (name,))
        row = cursor.fetchone()
        if row is None:
            return None
        against = [] if row[0] == "table" else [f"is a {row[0]}"]
        if re.search(r"\bCHECK\s*\(", row[1], re.IGNORECASE):
            against.append("has a CHECK")
        cursor.execute(f"PRAGMA table_xinfo({quote_sql_name(name)})")
        info = cursor.fetchall()
        against += [f"makes the values of {column[1]!r} itself" for column in info if column[6]]
        unique = [frozenset(column[1] for column in info if column[5])]
        cursor.execute(f"PRAGMA index_list({quote_sql_name(name)})")
        for index in [entry for entry in cursor.fetchall() if entry[2]]:
            cursor.execute(f"PRAGMA index_info({quote_sql_name(index[1])})")
            unique.append(frozenset(str(column[2]) for column in cursor.fetchall()))
            against += [f"has the partial index {index[1]!r}"] if index[4] else []
        cursor.execute(f"PRAGMA foreign_key_list({quote_sql_name(name)})")
        against += [f"refers to {key[2]!r}" for key in cursor.fetchall()]
        cursor.execute("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE", (name,))
        against += [f"has the trigger {trigger[0]!r}" for trigger in cursor.fetchall()]
        types = {column[1]: _affinity(column[2]) for column in info}
        columns = {column[1]: bool(column[3]) for column in info}
        return ExistingTable(columns, tuple(names for names in unique if names), tuple(against), types)

    def referring_foreign_keys(self, cursor: Any, table: Sequence[str]) -> list[str]:
        """Return the tables whose foreign keys refer to this one; none if the connection does not enforce them."""
        cursor.execute("PRAGMA foreign_keys")
        if not cursor.fetchone()[0]:
            return []
        cursor.execute(
            "SELECT DISTINCT m.name FROM sqlite_master m, pragma_foreign_key_list(m.name) k "
            "WHERE m.type = 'table' AND k.\"table\" = ? COLLATE NOCASE ORDER BY 1",
            (table[-1],),
        )
        return [f"of {name!r}" for (name,) in cursor.fetchall()]

    def create_staging_statement(self, target: str, staging: str) -> str:
        """Return the CREATE TABLE statement for the staging table: the target's columns, and two for the staged key."""
        return f"CREATE TABLE {staging} AS SELECT *, '' AS kohort_key, 0 AS kohort_row FROM {target} WHERE 0"

    def insert_rows(self, cursor: Any, table: str, columns: Sequence[str], rows: Iterable[tuple[object, ...]]) -> None:
        """Insert rows, given as tuples of values that `to_driver_value` has converted."""
        marks = ", ".join("?" for _ in columns)
        cursor.executemany(f"INSERT INTO {table} ({quoted_column_list(columns)}) VALUES ({marks})", rows)

    def to_driver_value(self, value: Any) -> object:
        """Convert times, dates and decimals to text, which SQLite stores unchanged; return other values as they are."""
        if isinstance(value, datetime):
            return value.isoformat(" ", "microseconds")
        if isinstance(value, time):
            return value.isoformat("microseconds")
        if isinstance(value, date):
            return value.isoformat()
        return f"{value:f}" if isinstance(value, Decimal) else value

    def translate_driver_error(self, error: Exception) -> KafkaError | None:
        """Return the package's own error for an error of sqlite3, by its code; None: it is another error."""
        if not isinstance(error, sqlite3.Error):
            return None
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
            return NotAuthorizedError(f"No right to write the database: {error}")
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return CorruptDataError(f"The database is damaged: {error}")
        if code in _SQLITE_AGAIN:
            return RetriableError(f"The database does not take it now: {error}")
        return InvalidInputError(f"The database refuses it: {error}")


_SQLITE_AGAIN: Final = frozenset({
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_SCHEMA,
})  # fmt: skip
SQLITE: Final[SqlDialect] = SqliteDialect()


def _affinity(declared: str) -> str:
    """Return the affinity that SQLite gives a column by the name of its declared type."""
    name = declared.upper()
    for parts, kind in ((("INT",), "INTEGER"), (("CHAR", "CLOB", "TEXT"), "TEXT"), (("REAL", "FLOA", "DOUB"), "REAL")):
        if any(part in name for part in parts):
            return kind
    return "BLOB" if not name or "BLOB" in name else "NUMERIC"


def open_sqlite(path: str) -> sqlite3.Connection:
    """Open a connection to a SQLite file; it waits up to 30 s for other writers' locks."""
    return sqlite3.connect(path, timeout=_SQLITE_WAIT_S, isolation_level=None, check_same_thread=False)


class PostgresDialect:
    """The dialect of PostgreSQL with the driver psycopg 3."""

    mark = "%s"
    begin: tuple[str, ...] = (
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
        "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'",
    )
    locked = " FOR UPDATE"
    name_bytes_max = 63

    def configure_connection(self, connection: Any) -> None:
        """Turn off implicit transactions (psycopg's autocommit)."""
        connection.autocommit = True

    def sql_type_of(self, kind: pa.DataType) -> str:
        """Return the SQL type for a column of an Arrow type; empty: PostgreSQL has no such type."""
        if pa.types.is_timestamp(kind):
            return "" if kind.unit == "ns" else "timestamptz" if kind.tz else "timestamp"
        if pa.types.is_decimal(kind):
            return f"numeric({kind.precision}, {kind.scale})"
        if pa.types.is_fixed_size_binary(kind):
            return "bytea"
        if pa.types.is_date(kind):
            return "date"
        if pa.types.is_time(kind):
            return "" if kind == pa.time64("ns") else "time"
        return _POSTGRES_TYPES.get(kind, "")

    def lock_table_checks(self, cursor: Any, place: str) -> None:
        """Take the advisory lock for checks of sinks' tables, until the transaction ends."""
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('kohort_sequences', 0))")

    def comparable_table_name(self, table: str) -> str:
        """Return the name unchanged: PostgreSQL distinguishes the case of quoted names."""
        return table

    def qualified_table_name(self, cursor: Any, table: Sequence[str]) -> Sequence[str]:
        """Return the name with the schema in which the search path finds the table, or would create it."""
        if len(table) > 1:
            return table
        cursor.execute(_POSTGRES_SCHEMA, (quote_sql_name(*table),))
        schema = cursor.fetchone()[0]
        return table if schema is None else (schema, *table)

    def escape_placeholders(self, name: str) -> str:
        """Double the percent signs of a quoted name, since psycopg's placeholders begin with one."""
        return name.replace("%", "%%")

    def table_exists(self, cursor: Any, table: Sequence[str]) -> bool:
        """Return whether the database has a table of this name."""
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (quote_sql_name(*table),))
        return bool(cursor.fetchone()[0])

    def describe_existing_table(self, cursor: Any, table: Sequence[str]) -> ExistingTable | None:
        """Return the columns and rules of a table, also those of its partitions; None: it does not exist.

        Raises:
            NotAuthorizedError: a right to read or write the table is missing.
        """
        cursor.execute(
            "SELECT oid, relkind::text, relrowsecurity, relispartition, relpersistence = 'u', "
            "has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT') AND "
            "has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE') "
            "FROM pg_class WHERE oid = to_regclass(%s)",
            (quote_sql_name(*table),),
        )
        row = cursor.fetchone()
        if row is None:
            return None
        oid, kind, secured, is_partition, unlogged, allowed = row
        if not allowed:
            raise NotAuthorizedError(f"No right to read, insert, update and delete in {'.'.join(table)}: grant them")
        against = [] if kind in ("r", "p") else ["is no table"]
        against += ["has row security"] if secured else []
        against += ["is a partition, which takes some rows only"] if is_partition else []
        against += ["is unlogged, so that a crash of the server empties it"] if unlogged else []
        columns, unique, found = _constraints(cursor, oid)
        against += found
        if kind == "p":
            against += _partition_gaps(cursor, oid)
            cursor.execute(_POSTGRES_PARTITIONS, (oid, oid))
            for part, name, is_table, is_unlogged in cursor.fetchall():
                others, indexes, found = _constraints(cursor, part)
                columns = {column: required or others.get(column, False) for column, required in columns.items()}
                found += [f"takes each {', '.join(sorted(keys))} once only" for keys in indexes if keys not in unique]
                found += [] if is_table else ["is no table of this database"]
                found += ["is unlogged"] if is_unlogged else []
                against += [f"has the partition {name!r}, which {why}" for why in found]
        return ExistingTable(columns, tuple(unique), tuple(against), {})

    def referring_foreign_keys(self, cursor: Any, table: Sequence[str]) -> list[str]:
        """Return the names of foreign keys that refer to this table or to a partition of it."""
        cursor.execute(
            "SELECT DISTINCT conname::text FROM pg_constraint WHERE contype = 'f' AND conparentid = 0 AND confrelid IN "
            "(SELECT to_regclass(%s)::oid UNION SELECT relid::oid FROM pg_partition_tree(to_regclass(%s))) ORDER BY 1",
            (quote_sql_name(*table), quote_sql_name(*table)),
        )
        return [repr(name) for (name,) in cursor.fetchall()]

    def create_staging_statement(self, target: str, staging: str) -> str:
        """Return the CREATE TABLE statement for the staging table: the target's columns, and two for the staged key."""
        return f"CREATE TABLE {staging} (LIKE {target}, kohort_key text NOT NULL, kohort_row bigint NOT NULL)"

    def insert_rows(self, cursor: Any, table: str, columns: Sequence[str], rows: Iterable[tuple[object, ...]]) -> None:
        """Insert rows by COPY, given as tuples of values."""
        with cursor.copy(f"COPY {table} ({quoted_column_list(columns)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def to_driver_value(self, value: Any) -> object:
        """Return the value unchanged: psycopg converts all types."""
        return value

    def translate_driver_error(self, error: Exception) -> KafkaError | None:
        """Return the package's own error for an error of psycopg, by its class; None: it is another error."""
        import psycopg

        if not isinstance(error, psycopg.Error):
            return None
        rights = (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidAuthorizationSpecification)
        refused = "authentication failed" in str(error)  # by text: a connection that failed has no SQLSTATE
        if refused or isinstance(error, rights):
            return NotAuthorizedError(f"The database does not allow it: {error}")
        again = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction)
        if isinstance(error, again):
            return RetriableError(f"The database does not take it now: {error}")
        return InvalidInputError(f"The database refuses it: {error}")


def _constraints(cursor: Any, oid: int) -> tuple[dict[str, bool], list[frozenset[str]], list[str]]:
    """Return the rules of a PostgreSQL table or partition for its rows.

    They are: whether each column is NOT NULL, the columns of each unique index, and texts on other rules that may
    refuse rows.
    """
    against = []
    for said, question in _POSTGRES_RULES.items():
        cursor.execute(question, (oid,))
        against += [f"{said} {rule[0]!r}" for rule in cursor.fetchall()]
    cursor.execute(_POSTGRES_UNIQUE, (oid,))
    unique = [frozenset(constraint[0]) for constraint in cursor.fetchall()]
    cursor.execute(_POSTGRES_COLUMNS, (oid,))
    return dict(cursor.fetchall()), unique, against


def _partition_gaps(cursor: Any, oid: int) -> list[str]:
    """Return texts on rows that no partition of a PostgreSQL table would accept; empty: every row fits one."""
    cursor.execute(_POSTGRES_PARTITIONED, (oid,))
    found = []
    for name, strategy, has_default, nullable, bounds in cursor.fetchall():
        if strategy == "h":
            moduli = [_HASH_BOUND.search(bound) for bound in bounds]
            if sum(Fraction(1, int(modulus[1])) for modulus in moduli if modulus) < 1:
                found.append(f"lacks partitions for some rows of {name!r}")
        elif not has_default and (strategy != "r" or nullable or not _is_everything(bounds)):
            found.append(f"has no default partition in {name!r} for rows of no other one")
    return found


def _is_everything(bounds: Iterable[str]) -> bool:
    """Return whether non-overlapping range partitions cover all values from MINVALUE to MAXVALUE without a gap."""
    ends = {found[1]: found[2] for bound in bounds if (found := _RANGE_BOUND.fullmatch(bound))}
    at = next((begin for begin in ends if begin.startswith("MINVALUE")), "")
    while at in ends:
        at = ends.pop(at)
    return at.startswith("MAXVALUE")


_HASH_BOUND: Final = re.compile(r"modulus (\d+)")
_VALUES: Final = r"((?:[^')]|'(?:[^']|'')*')*)"
_RANGE_BOUND: Final = re.compile(rf"FOR VALUES FROM \({_VALUES}\) TO \({_VALUES}\)")
_POSTGRES_PARTITIONS: Final = (
    "SELECT oid, oid::regclass::text, relkind IN ('r', 'p'), relpersistence = 'u' "
    "FROM pg_partition_tree(%s::oid) JOIN pg_class ON oid = relid WHERE oid <> %s ORDER BY 2"
)
_POSTGRES_PARTITIONED: Final = (
    "SELECT partrelid::regclass::text, partstrat::text, partdefid <> 0, (SELECT count(*) FROM pg_attribute WHERE "
    "attrelid = partrelid AND attnum = ANY(partattrs::int2[]) AND attnotnull) < partnatts, "
    "ARRAY(SELECT pg_get_expr(relpartbound, oid) FROM pg_inherits JOIN pg_class ON oid = inhrelid "
    "WHERE inhparent = partrelid) FROM pg_partition_tree(%s::oid) JOIN pg_partitioned_table ON partrelid = relid "
    "ORDER BY 1"
)
_POSTGRES_RULES: Final = {
    "has the constraint": "SELECT conname FROM pg_constraint WHERE conrelid = %s AND contype IN ('c', 'f', 'x', 't')",
    "has the trigger": "SELECT tgname FROM pg_trigger WHERE tgrelid = %s AND NOT tgisinternal",
    "has the rule": "SELECT rulename FROM pg_rewrite WHERE ev_class = %s AND rulename <> '_RETURN'",
    "makes by itself the column": (
        "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 "
        "AND (attgenerated <> '' OR attidentity = 'a')"
    ),
    "has the index": (
        "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = %s AND indisunique "
        "AND (indpred IS NOT NULL OR indexprs IS NOT NULL OR NOT indimmediate)"
    ),
}
_POSTGRES_UNIQUE: Final = (
    "SELECT array_agg(attname::text) FROM pg_index JOIN pg_attribute ON attrelid = indrelid "
    "AND attnum = ANY((indkey::int2[])[0:indnkeyatts - 1]) WHERE indrelid = %s AND indisunique GROUP BY indexrelid"
)
_POSTGRES_SCHEMA: Final = (
    "SELECT COALESCE((SELECT nspname::text FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
    "WHERE pg_class.oid = to_regclass(%s)), current_schema()::text)"
)
_POSTGRES_COLUMNS: Final = (
    "SELECT attname, attnotnull FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"
)
_POSTGRES_TYPES: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",
    pa.uint16(): "integer",
    pa.uint32(): "bigint",
    pa.uint64(): "numeric(20, 0)",
    pa.float16(): "real",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
}


_POSTGRES_SERVERS: Final = re.compile(r"(?:(?:\[[^]]*]|[^][:,@]*)(?::\d*)?(?:,|$))*")
"""Hosts with their ports, with commas between."""


def safe_postgres_url(url: str) -> str:
    """Return a PostgreSQL URL for messages, without its password and other secrets.

    As in libpq, user and password are the text before the first `@`, unless a `/` comes first.

    Raises:
        InvalidInputError: the text is no such URL, or its password has an unescaped character that ends it. The message
            does not show the text, which may have a password anywhere.
    """
    scheme, _, rest = url.partition("://")
    login, _, address = rest.partition("@")
    if "@" not in rest or "/" in login:
        login, address = "", rest
    address, _, query = address.partition("?")
    if scheme not in ("postgresql", "postgres") or "@" in address or not _is_servers(address.partition("/")[0]):
        raise InvalidInputError(
            "This is no URL of PostgreSQL: give postgresql://user@host:5432/database; in a password write %2F, %3F, "
            "%23 and %40 for the characters / ? # @"
        )
    user = login.partition(":")[0]
    said = [(name, value) for name, value in parse_qsl(query) if "pass" not in name and not is_secret(name)]
    parameters = f"?{urlencode(said, safe='/=')}" if said else ""
    return f"postgresql://{user}{'@' if user else ''}{address}{parameters}"


def _is_servers(text: str) -> bool:
    return _POSTGRES_SERVERS.fullmatch(text) is not None


class PostgresUrl:
    """A callable that opens a connection to PostgreSQL by a URL; unlike a closure it can be pickled."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self) -> Any:
        """Open a new connection to the database.

        Raises:
            InvalidInputError: psycopg is not installed.
        """
        return _psycopg().connect(self.url, autocommit=True)

    def canonical_url(self) -> str:
        """Return a canonical URL of the database: hosts, ports and name, without user, password and most parameters.

        Parameters by which the same table name would mean another table stay: `service` and `search_path`.

        Raises:
            InvalidInputError: psycopg is not installed, or can't read the URL.
        """
        psycopg = _psycopg()
        defaults = psycopg.pq.Conninfo.get_defaults()
        try:
            told = psycopg.conninfo.conninfo_to_dict(self.url)
        except psycopg.Error:  # whose text may repeat the password
            raise InvalidInputError(
                f"psycopg can't read the URL of the database, {safe_postgres_url(self.url)}: see that its parameters "
                "are libpq's, and that % stands before two hexadecimal digits; write %20 for a space"
            ) from None
        given = {option.keyword.decode(): (option.val or b"").decode() for option in defaults}
        given |= {name: str(value) for name, value in told.items() if value is not None}
        hosts = (given["host"] or given["hostaddr"]).split(",")
        ports = given["port"].split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        servers = sorted(
            f"{host if host.startswith('/') else host.lower()}:{port or '5432'}"
            for host, port in zip(hosts, ports, strict=False)
        )
        name = quote(given["dbname"] or given["user"], safe="")
        more = {"service": given["service"]} if given.get("service") else {}
        if path := _SEARCH_PATH.search(given["options"]):
            more["search_path"] = path[1].replace("\\", "")
        return f"postgresql://{quote(','.join(servers), safe=':,[]')}/{name}{'?' if more else ''}{urlencode(more)}"


def libpq_parameters(url: str) -> str:
    """Convert a PostgreSQL URL to libpq's connection parameters, with timeouts for a dead server.

    Raises:
        InvalidInputError: psycopg is not installed, or can't read the URL; or the URL has a password.
    """
    psycopg, shown = _psycopg(), safe_postgres_url(url)
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error:  # whose text may repeat the password
        raise InvalidInputError(f"psycopg can't read the URL of the catalog: {shown}") from None
    if given.pop("password", None):
        raise InvalidInputError(
            f"The catalog's URL {shown} has a password, which errors of DuckDB would repeat: give it in "
            "~/.pgpass or in PGPASSWORD"
        )
    waits = {"connect_timeout": "10", "tcp_user_timeout": "60000"}
    return str(psycopg.conninfo.make_conninfo("", **waits | given))


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise InvalidInputError(
            f"SqlTable needs psycopg for PostgreSQL: pip install 'kohort[postgres]' ({error})"
        ) from error
    return psycopg


class SqliteFile:
    """A callable that opens a connection to a SQLite file; unlike a closure it can be pickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self) -> sqlite3.Connection:
        """Open a new connection to the file."""
        return open_sqlite(self.path)

    def canonical_url(self) -> str:
        """Return the file's URL with all symbolic links resolved."""
        return f"sqlite:///{os.path.realpath(self.path)}"
