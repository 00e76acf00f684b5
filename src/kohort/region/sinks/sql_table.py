"""A database table that is written to exactly once: a sequence is one transaction.

    flights             the table; it is created if it is missing
    flights__staged     its columns, the key under which the row is staged, and its number
    kohort_staged       a row for each staged key, also of one without rows
    kohort_sequences    a row for each table: the region, the sink's name, the schema, the last sequence published

Publishing happens in one transaction. It locks the table's row in `kohort_sequences`, checks whether the sequence is
there, moves the rows and records the sequence. A second publisher waits for the lock, and finds the sequence done.

A row that is permanently refused at that moment would block the region for ever. Therefore the staging table has the
columns' own types. A table with constraints of its own (checks, references, triggers, unique columns other than the
keys) is refused before the first row. References of other tables refuse no row. They matter when the table is emptied.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kohort.errors import CorruptDataError, InvalidInputError, KafkaError
from kohort.region.files import local_path
from kohort.region.sinks import Keep
from kohort.region.sinks.bound import BoundSink
from kohort.region.sinks.columns import fill_null_types, resolve_null_types
from kohort.region.sinks.owner_marker import decode_schema, encode_schema, other_name_error, other_owner_error
from kohort.region.sinks.rows import (
    Mode,
    cast_to_sink_schema,
    check_column_names,
    check_keys,
    check_mode,
    check_schema_fits,
    refuse_invalid_values,
    refuse_out_of_range_times,
    refused_rows_error,
    row_indices_where,
    sort_staged_keys,
    with_plain_types,
)
from kohort.region.sinks.sql_dialects import (
    SQLITE,
    Connect,
    ExistingTable,
    PostgresDialect,
    PostgresUrl,
    SqlDialect,
    SqliteFile,
    dialect_of,
    driver_value_rows,
    quote_sql_name,
    quoted_column_list,
    safe_postgres_url,
)
from kohort.region.staged import StagedKey, check_sequence, missing_rows_text

_STAGED: Final = "__staged"
_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS {sequences} (target TEXT PRIMARY KEY, region TEXT NOT NULL, region_id TEXT NOT NULL,
    sequence BIGINT NOT NULL, row_schema TEXT NOT NULL, row_keys TEXT NOT NULL, place TEXT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS {keys} (target TEXT NOT NULL, staged_key TEXT NOT NULL, epoch BIGINT NOT NULL,
    row_count BIGINT NOT NULL, PRIMARY KEY (target, staged_key))""",
)


class SqlTable(BoundSink):
    """A sink that writes a table of SQLite or PostgreSQL; each checkpoint of the region is one transaction.

    The sink can be pickled. `Sink` documents the guarantees of its methods. Rows are appended; with `mode="update"` a
    row replaces the one with the same keys. If a checkpoint has two rows of one key, the later counts. The order is by
    epoch, unit and member of the staged keys, then by the order in the table.

    Attributes:
        table: the table's name, or its schema and its name with a dot between.
        mode: append or update.
        keys: the columns by which rows replace one another, for `update`.
    """

    _kept: pa.Schema | None
    _is_sqlite: bool = False

    def __init__(self, connect: str | Connect, table: str, *, mode: Mode = "append", keys: Sequence[str] = ()) -> None:
        """Initialise the sink; no connection is opened.

        Args:
            connect: a URL (`sqlite:///file.db`, `sqlite:////absolute/file.db`, `postgresql://user@host/database`). Or a
                function at the top of a module that returns a new connection of sqlite3 or psycopg for each call.
            table: the table's name, or its schema and its name with a dot between.
            mode: append or update.
            keys: the columns by which rows replace one another, for `update`.

        Raises:
            InvalidInputError: an argument is invalid; the message says what is valid.
        """
        check_mode(mode, keys)
        parts = table.split(".")
        if not all(parts) or len(parts) > 2:
            raise InvalidInputError(f"table is {table!r}: give its name, or its schema's and its own: 'schema.table'")
        self.table, self.mode, self.keys = table, mode, tuple(keys)
        self._names = parts
        self._connect, self._said = _connection_of(connect)

    def __repr__(self) -> str:
        return f"SqlTable({self._said!r}, {self.table!r})"

    def _place_name(self) -> str:
        """Return a name made of the database's host, port and name and of the table's; without user and password."""
        if isinstance(self._connect, SqliteFile):
            return f"sql:{self._connect.canonical_url()}#{SQLITE.comparable_table_name(self._names[-1])}"
        home = self._connect.canonical_url() if isinstance(self._connect, PostgresUrl) else self._said
        return f"sql:{home}#{self.table}"

    # -- transactions

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[_Cursor]:
        """Run the block in one transaction on a new connection. Commit it at the end; translate the driver's errors."""
        dialect: SqlDialect = SQLITE
        try:
            connection = self._connect()
            dialect = dialect_of(connection)
            with contextlib.closing(connection):
                dialect.configure_connection(connection)
                with contextlib.closing(connection.cursor()) as cursor:
                    for statement in dialect.begin:
                        cursor.execute(statement)
                    yield _Cursor(dialect, cursor, dialect.qualified_table_name(cursor, self._names))
                    cursor.execute("COMMIT")  # any error before it: the connection ends, and the transaction with it
        except (KafkaError, OSError):
            raise
        except Exception as error:
            told = dialect.translate_driver_error(error) or _translate_other_error(error)
            if told is None:
                raise
            raise told from error

    # -- before the first record

    def check(self, schema: pa.Schema) -> None:
        """Check that tables of this schema can be staged and published; create the table if it is missing.

        The first call stores the schema, which holds for all later rows: this sink adds no columns to it.
        """
        self._bound()
        check_column_names(schema, self.keys, "keys=[…]")
        given = resolve_null_types(with_plain_types(schema), self._known_columns)
        check_keys(given, self.keys)
        if zeros := [repr(name) for name in given.names if "\0" in name]:
            raise InvalidInputError(f"Columns {', '.join(zeros)} have a zero character in their names: rename them")
        if ours := [name for name in given.names if name.lower().startswith("kohort_")]:
            raise InvalidInputError(f"Columns of the sink's own names: {', '.join(ours)}: rename them")
        with self._transaction() as at:
            types = at.sql_types_by_column(given)
            at.dialect.lock_table_checks(at.cursor, self.table)
            for statement in _TABLES:
                at.execute_template(statement)
            found = at.dialect.describe_existing_table(at.cursor, at.names)
            if found is not None:
                self._fitting(found, given, types)
            owned = self._owner(at, locked=True)
            if owned is None:
                self._first(at, found, given, types)
            elif found is None:
                raise InvalidInputError(
                    f"Table {self.table} was taken away, and region {self._region!r} has published into it: bring it "
                    "back"
                )
        self._kept = None
        check_schema_fits(f"table {self.table}", self._fixed(), given)

    def _known_columns(self) -> pa.Schema | None:
        """Return the schema that the region has stored for its rows; None: the region has not written the table yet."""
        with self._transaction() as at:
            owned = self._owner(at) if at.has_sequences_table() else None
        return None if owned is None else owned[1]

    def _first(self, at: _Cursor, found: ExistingTable | None, schema: pa.Schema, types: dict[str, str]) -> None:
        """Claim a new or empty table for this region; create its staging table and its marker row.

        Raises:
            InvalidInputError: the table has rows, or another table has the staging table's name.
        """
        if found is None:
            must = {field.name for field in schema if not field.nullable or field.name in self.keys}
            columns = [f"{quote_sql_name(n)} {kind}{' NOT NULL' if n in must else ''}" for n, kind in types.items()]
            columns += [f"PRIMARY KEY ({quoted_column_list(self.keys)})"] if self.keys else []
            at.execute_template(f"CREATE TABLE {{target}} ({', '.join(columns)})")
        elif at.first_row("SELECT 1 FROM {target} LIMIT 1") is not None:
            raise InvalidInputError(
                f"Table {self.table} holds rows already, and they are of no region: give region {self._region!r} an "
                "empty table"
            )
        beside = at.dialect.describe_existing_table(at.cursor, at.staging_names)
        if beside is not None and "kohort_key" not in beside.columns:
            raise InvalidInputError(f"Table {'.'.join(at.staging_names)} is in the way of staged rows: rename it")
        at.execute_template("DROP TABLE IF EXISTS {staging}")
        at.execute_template(at.dialect.create_staging_statement(at.target, at.staging))
        at.execute_template(f"CREATE INDEX {quote_sql_name(at.staging_names[-1] + '_key')} ON {{staging}} (kohort_key)")
        at.execute_template("DELETE FROM {keys} WHERE target = ?", at.name)
        keys = msgspec.json.encode(self.keys).decode()
        said = (at.name, self._region, str(self._bound()), encode_schema(schema), keys, self.place)
        at.execute_template("INSERT INTO {sequences} VALUES (?, ?, ?, 0, ?, ?, ?)", *said)

    def _fitting(self, found: ExistingTable, schema: pa.Schema, types: dict[str, str]) -> None:
        """Check that an existing table will accept every row of this schema at publication.

        Raises:
            InvalidInputError: a column or a rule of the table is in the way; the message names all of them.
        """
        wrong = list(found.against)
        wrong += [f"has no column {name!r}" for name in schema.names if name not in found.columns]
        wrong += [
            f"has a column {name!r}, which the rows have not" for name in found.columns if name not in schema.names
        ]
        wrong += [f"takes no null in {field.name!r}, and the rows may have it" for field in schema
                  if field.nullable and field.name not in self.keys and found.columns.get(field.name)]  # fmt: skip
        wrong += [f"keeps {name!r} as {kind}, and the rows need {types[name]}" for name, kind in found.types.items()
                  if name in types and kind != types[name]]  # fmt: skip
        wanted = frozenset(self.keys)
        others = [constraint for constraint in found.unique if constraint != wanted]
        wrong += [f"takes each {', '.join(sorted(constraint))} once only" for constraint in others]
        if wanted and wanted not in found.unique:
            wrong.append(f"has no unique index on {', '.join(self.keys)}")
        if wrong:
            raise InvalidInputError(
                f"Table {self.table} can't be written exactly once: it {'; it '.join(wrong)}. Change that, or let the "
                "region make a table"
            )

    def _owner(self, at: _Cursor, *, locked: bool = False, written: bool = True) -> tuple[int, pa.Schema] | None:
        """Return the last checkpoint's number and the row schema from the marker row; None: there is no marker row.

        The marker must name this region and this sink's name. With `written`, it must also have this sink's `keys`.

        Raises:
            InvalidInputError: it has others.
        """
        row = self._marker(at, locked=locked)
        if row is None:
            return None
        if row[5] != self.place:
            raise other_name_error(self._region, row[5], self.place)
        if written and (keys := tuple(msgspec.json.decode(row[4]))) != self.keys:
            raise InvalidInputError(
                f"Region {self._region!r} writes table {self.table} with keys={list(keys)}, not {list(self.keys)}: all "
                "members say the same"
            )
        return row[2], decode_schema(row[3])

    def _marker(self, at: _Cursor, *, locked: bool) -> Any:
        """Return the table's row in `kohort_sequences`; None: there is none.

        With `locked`, lock it until the transaction ends.

        Raises:
            InvalidInputError: the row is another region's.
        """
        question = "SELECT region, region_id, sequence, row_schema, row_keys, place FROM {sequences} WHERE target = ?"
        row = at.first_row(question + (at.dialect.locked if locked else ""), at.name)
        mine = self._bound()
        if row is not None and row[1] != str(mine):
            remedy = "give each region a table of its own"
            raise other_owner_error(f"Table {self.table}", (row[0], UUID(row[1])), (self._region, mine), remedy)
        return row

    def adopt(self) -> str:
        """Store this sink's present name in the marker row. Return the earlier name; empty: there was no marker row."""
        self._bound()
        with self._transaction() as at:
            row = self._marker(at, locked=True) if at.has_sequences_table() else None
            if row is None:
                return ""
            at.execute_template("UPDATE {sequences} SET place = ? WHERE target = ?", self.place, at.name)
            return str(row[5])

    def _written_name(self) -> str:
        self._bound()
        with self._transaction() as at:
            row = self._marker(at, locked=False) if at.has_sequences_table() else None
            return "" if row is None else str(row[5])

    def _mine(self, at: _Cursor) -> int:
        """Return the last published checkpoint's number; lock its row against other publishers in this transaction.

        Raises:
            InvalidInputError: the table is not this region's, or `check` was not called yet.
        """
        owned = self._owner(at, locked=True) if at.has_sequences_table() else None
        if owned is None:
            raise InvalidInputError(f"Table {self.table} is not known to region {self._region!r}: call check first")
        return owned[0]

    def _fixed(self) -> pa.Schema:
        if self._kept is None:
            with self._transaction() as at:
                self._mine(at)
                owned = self._owner(at)
                assert owned is not None
                self._kept, self._is_sqlite = owned[1], at.dialect is SQLITE
        return self._kept

    # -- staging

    def check_rows(self, table: pa.Table) -> pa.Table:
        """Check each row of a table, and return the rows in the sink's schema, as `stage` writes them.

        Raises:
            RowRefusedError: the database can't store a row.
        """
        kept = self._fixed()
        check_schema_fits(f"table {self.table}", kept, fill_null_types(with_plain_types(table.schema), kept))
        rows = cast_to_sink_schema(table, kept, self.keys)
        refuse_invalid_values(rows)
        _refuse_values(rows, is_sqlite=self._is_sqlite)
        return rows

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        """Write rows durably to the staging table, which readers of the target table do not see.

        A repeated call with the same key replaces the rows.
        """
        self._refuse_others(key)
        table = self.check_rows(table)
        name = key.file_stem()
        with self._transaction() as at:
            at.execute_template(
                "INSERT INTO {keys} (target, staged_key, epoch, row_count) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (target, staged_key) DO UPDATE SET row_count = excluded.row_count",
                at.name, name, key.epoch, table.num_rows,
            )  # fmt: skip
            at.execute_template("DELETE FROM {staging} WHERE kohort_key = ?", name)
            rows = driver_value_rows(at.dialect, table, lambda number: name, lambda number: number)
            at.dialect.insert_rows(at.cursor, at.staging, [*table.column_names, "kohort_key", "kohort_row"], rows)

    # -- publishing

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        """Publish the rows staged under these keys as one sequence (checkpoint), by one transaction of the database."""
        check_sequence(sequence)
        names = [key.file_stem() for key in sort_staged_keys(keys)]
        columns = self._fixed().names
        with self._transaction() as at:
            if self._mine(at) >= sequence:
                return
            at.execute_template("SELECT staged_key FROM {keys} WHERE target = ?", at.name)
            there = {row[0] for row in at.cursor.fetchall()}
            if gone := missing_rows_text({name: name in there for name in names}):
                raise CorruptDataError(f"Sequence {sequence} can't be published into {self.table}: {gone}")
            for name in names:
                at.execute_template(self._moving(columns), name)
                at.execute_template("DELETE FROM {staging} WHERE kohort_key = ?", name)
                at.execute_template("DELETE FROM {keys} WHERE target = ? AND staged_key = ?", at.name, name)
            at.execute_template("UPDATE {sequences} SET sequence = ? WHERE target = ?", sequence, at.name)

    def _moving(self, columns: Sequence[str]) -> str:
        """Return the INSERT statement that copies the rows of one staged key to the target table.

        With keys it updates rows that exist; of several staged rows of one key the last counts.
        """
        names = quoted_column_list(columns)
        if not self.keys:
            moved = f"SELECT {names} FROM {{staging}} WHERE kohort_key = ? ORDER BY kohort_row"
            return f"INSERT INTO {{target}} ({names}) {moved}"
        last = (
            f"row_number() OVER (PARTITION BY {quoted_column_list(self.keys)} ORDER BY kohort_row DESC) AS kohort_last"
        )
        rest = [name for name in columns if name not in self.keys]
        change = "UPDATE SET " + ", ".join(f"{quote_sql_name(name)} = excluded.{quote_sql_name(name)}" for name in rest)
        return (
            f"INSERT INTO {{target}} ({names}) SELECT {names} FROM (SELECT {names}, {last} FROM {{staging}} "
            f"WHERE kohort_key = ?) AS kohort_rows WHERE kohort_last = 1 ON CONFLICT ({quoted_column_list(self.keys)}) "
            f"DO {change if rest else 'NOTHING'}"
        )

    def empty(self, sequence: int, floor: int) -> None:
        """Delete all rows of the table and record the sequence (checkpoint), in one transaction.

        It also deletes staged rows of epochs before `floor`, the minimum valid epoch; rows of later epochs stay staged.
        """
        self._bound()
        with self._transaction() as at:
            owned = self._owner(at, locked=True) if at.has_sequences_table() else None
            if owned is None or owned[0] > sequence:  # its own number may be from a history that the topic has lost
                return
            holding = at.dialect.referring_foreign_keys(at.cursor, at.names)
            if holding and at.first_row("SELECT 1 FROM {target} LIMIT 1") is not None:
                raise InvalidInputError(
                    f"Table {self.table} can't be emptied: other tables refer to its rows by the foreign key "
                    f"{', '.join(holding)}. Delete all rows of the table by hand; the region goes on by itself"
                )
            at.execute_template("DELETE FROM {target}")
            at.execute_template("UPDATE {sequences} SET sequence = ? WHERE target = ?", sequence, at.name)
            self._delete_staged_before(at, floor, ())

    # -- progress and cleanup

    def published(self) -> int:
        """Return the last published sequence (checkpoint number); 0: none."""
        self._bound()
        with self._transaction() as at:
            owned = self._owner(at, written=False) if at.has_sequences_table() else None
            return 0 if owned is None else owned[0]

    def sweep(self, keep: Keep) -> None:
        """Remove staged rows of epochs before `keep.floor` whose keys are not in `keep.keys`."""
        self._bound()
        with self._transaction() as at:
            if at.has_sequences_table() and self._owner(at, locked=True) is not None:
                self._delete_staged_before(at, keep.floor, [key.file_stem() for key in keep.keys])

    def _delete_staged_before(self, at: _Cursor, min_valid_epoch: int, kept: Iterable[str]) -> None:
        at.execute_template("SELECT staged_key FROM {keys} WHERE target = ? AND epoch < ?", at.name, min_valid_epoch)
        for name in sorted({row[0] for row in at.cursor.fetchall()} - set(kept)):
            at.execute_template("DELETE FROM {staging} WHERE kohort_key = ?", name)
            at.execute_template("DELETE FROM {keys} WHERE target = ? AND staged_key = ?", at.name, name)


class _Cursor:
    """A database cursor in an open transaction, with the names of the sink's four tables and the dialect."""

    def __init__(self, dialect: SqlDialect, cursor: Any, names: Sequence[str]) -> None:
        self.dialect, self.cursor, self.names = dialect, cursor, names
        before, name = names[:-1], names[-1]
        if len((name + _STAGED + "_key").encode()) > dialect.name_bytes_max:
            raise InvalidInputError(f"The table's name {name!r} is too long for a staging table beside it")
        self.name = dialect.comparable_table_name(name)
        self.staging_names = [*before, name + _STAGED]
        self.target, self.staging = quote_sql_name(*names), quote_sql_name(*self.staging_names)
        self._places = {
            "target": self.target,
            "staging": self.staging,
            "sequences": quote_sql_name(*before, "kohort_sequences"),
            "keys": quote_sql_name(*before, "kohort_staged"),
        }

    def execute_template(self, statement: str, *given: object) -> None:
        """Execute a statement.

        In it, `?` stands for the next value, and `{target}`, `{staging}`, `{sequences}` and `{keys}` for the sink's
        tables.
        """

        def placeholder_text(found: re.Match[str]) -> str:
            if found[0] == "?":
                return self.dialect.mark
            name = self._places[found[1]] if found[1] else found[0]
            return self.dialect.escape_placeholders(name) if given else name

        text = _PLACE.sub(placeholder_text, statement)
        if given:
            self.cursor.execute(text, given)
        else:
            self.cursor.execute(text)

    def first_row(self, statement: str, *given: object) -> Any:
        """Execute a statement as `execute_template` does, and return the first row; None: there is none."""
        self.execute_template(statement, *given)
        return self.cursor.fetchone()

    def has_sequences_table(self) -> bool:
        """Return whether the table `kohort_sequences` exists: without it no region has written here."""
        return self.dialect.table_exists(self.cursor, [*self.names[:-1], "kohort_sequences"])

    def sql_types_by_column(self, schema: pa.Schema) -> dict[str, str]:
        """Return the SQL type of each column, by name.

        Raises:
            InvalidInputError: the database has no type for a column.
        """
        found = {field.name: self.dialect.sql_type_of(field.type) for field in schema}
        refused = [f"column {field.name!r} of type {field.type}" for field in schema if not found[field.name]]
        if refused:
            raise InvalidInputError(
                f"The table can't keep {'; '.join(refused)}: cast these columns, nested ones to JSON text "
                "(to_json in Spark)"
            )
        return found


_PLACE: Final = re.compile(r'"(?:[^"]|"")*"|\?|\{(target|staging|sequences|keys)\}')


_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def _connection_of(connect: str | Connect) -> tuple[Connect, str]:
    """Return a callable that opens connections, and the database's name for messages, for the argument `connect`.

    Raises:
        InvalidInputError: the argument is neither a supported URL nor a function of a module.
    """
    if not isinstance(connect, str):
        home, name = getattr(connect, "__module__", ""), getattr(connect, "__qualname__", "")
        if not callable(connect) or not name or "<" in name:
            raise InvalidInputError(
                f"connect is {connect!r}: give a URL, or a function at the top of a module, which other processes find "
                "too"
            )
        return connect, f"{home}.{name}"
    if connect.startswith("sqlite:///"):
        path = connect.removeprefix("sqlite:///")
        if not path or path == ":memory:":
            raise InvalidInputError("A database in memory is seen by one process alone: give a file, sqlite:///file.db")
        path = local_path(path, "A database of SQLite")
        return SqliteFile(path), f"sqlite:///{path}"
    scheme = _SCHEME.match(connect)
    if scheme is not None and scheme[1] in ("postgresql", "postgres"):
        return PostgresUrl(connect), safe_postgres_url(connect)
    raise InvalidInputError(
        f"SqlTable does not know {repr(scheme[1]) if scheme else 'a text that is no URL'}: give sqlite:///file.db, "
        "postgresql://user@host/database, or a function that connects"
    )


def _translate_other_error(error: Exception) -> KafkaError | None:
    """Return the package's own error for a failed connection of psycopg, or for a value that the driver can't write.

    None: it is another error.
    """
    if type(error).__module__.partition(".")[0] == "psycopg":
        return PostgresDialect().translate_driver_error(error)
    if isinstance(error, pa.ArrowException | OverflowError | ValueError):
        return InvalidInputError(f"A value can't be written: {error}")
    return None


def _refuse_values(rows: pa.Table, *, is_sqlite: bool) -> None:
    """Check that the database can store each value of these rows, such as times of the years 1 to 9999 only.

    Raises:
        RowRefusedError: it can't store a value.
    """
    refuse_out_of_range_times(rows, rows.column_names)
    for field in rows.schema:
        column: Any = rows.column(field.name)  # the stubs know types one by one
        bad, why = None, ""
        if pa.types.is_string(field.type) and not is_sqlite:
            bad, why = pc.match_substring(column, "\0"), "a text with a zero byte, which PostgreSQL has not"
        elif pa.types.is_floating(field.type) and is_sqlite and not field.nullable:
            bad, why = pc.is_nan(column), "NaN, and may not be null: SQLite keeps NaN as null"
        if bad is not None and (found := row_indices_where(bad)):
            raise refused_rows_error(
                dict.fromkeys(found, f"{field.name!r} can't be written: it is {why}"), rows, field.name
            )
