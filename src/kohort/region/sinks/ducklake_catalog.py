"""Transactions on a DuckLake whose catalog is a SQLite file or a database of PostgreSQL, and the errors of DuckDB.

DuckDB's extension repeats a refused commit on the newest snapshot, after a look at what the snapshots since have
changed. A snapshot that was expired meanwhile does not count there (ducklake #1472), so that a late commit could add
its files once more. `ducklake_max_retry_count=0` switches that off. A commit then is one transaction of SQLite with
all that was read before it. SQLite refuses it if any other transaction has committed since, whatever that one did and
whatever has expired. The callers begin anew, and look first.

PostgreSQL refuses such a commit too. Each commit of DuckLake inserts a snapshot, whose number is a primary key, and
updates the counters of the tables that it writes. At the isolation level REPEATABLE READ, the update of a row that
another has updated since is refused. So a late publication is refused even if all snapshots since have expired.

SQLite's write-ahead log keeps a process that sleeps in a transaction from holding up others: it only reads until its
commit.

Each process has one DuckDB in memory, since loading the extensions takes 0.6 s. Each transaction attaches the lake
anew, which takes 10 ms. A lake stays attached to no refused transaction, whose lock SQLite would keep.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from kohort.errors import CorruptDataError, InvalidInputError, NotAuthorizedError, RetriableError
from kohort.region.sinks.parquet_schema import other_type_text
from kohort.region.sinks.rows import stored_schema_of_format, with_plain_types

CATALOG: Final = "catalog.sqlite"
DATA: Final = "data"
_LOCK_WAIT_MS: Final = 10_000
"""Time to wait for another writer's commit, which takes milliseconds."""
_EXTENSIONS: Final = ("sqlite_scanner", "ducklake")
_TRIED: Final = "1.5."
"""The versions of DuckDB with which the promises were tried. Another one may commit otherwise."""
_METADATA_GONE: Final = re.compile(r'Catalog "__ducklake_metadata_\w+" does not exist')
"""The extension's text when it does not find the catalog of a lake that was attached a moment before: seen once, on a
busy machine.
"""
_REFUSED: Final = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConstraintException,
    duckdb.ConversionException,
    duckdb.InvalidInputException,
    duckdb.InvalidTypeException,
    duckdb.NotImplementedException,
    duckdb.OutOfRangeException,
    duckdb.ParserException,
    duckdb.TypeMismatchException,
)
"""Errors of a statement that fails again, however often it is repeated."""
_ISOLATED: Final = ("repeatable read", "serializable")
_NO_RIGHT: Final = ("permission denied for", "password authentication failed", "no password supplied")
"""PostgreSQL's English texts for a login that fails, which has no SQLSTATE, and for a missing right.

A server may have them in another language; `_RIGHTS_LACKING` finds missing rights then too.
"""
_RIGHTS_LACKING: Final = """
SELECT 'public.' || c.relname || ' (' || n.privilege || ')' FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace AND s.nspname = 'public' JOIN (VALUES
    ('ducklake_metadata', 'SELECT'), ('ducklake_snapshot', 'SELECT'), ('ducklake_schema', 'SELECT'),
    ('ducklake_table', 'SELECT'), ('ducklake_column', 'SELECT'), ('ducklake_data_file', 'SELECT'),
    ('ducklake_snapshot', 'INSERT'), ('ducklake_snapshot_changes', 'INSERT'), ('ducklake_data_file', 'INSERT'),
    ('ducklake_file_column_stats', 'INSERT'), ('ducklake_table_stats', 'UPDATE')
) n (relation, privilege) ON c.relname = n.relation
WHERE c.relkind = 'r' AND NOT pg_catalog.has_table_privilege(c.oid, n.privilege)
UNION ALL SELECT 'the schema public (USAGE)' WHERE NOT pg_catalog.has_schema_privilege('public', 'USAGE')
UNION ALL SELECT 'the schema public (CREATE)' WHERE NOT pg_catalog.has_schema_privilege('public', 'CREATE')
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_class WHERE relname = 'ducklake_metadata')
"""
"""A query for the rights that a sink needs in PostgreSQL, and that this user lacks.

DuckDB hands on PostgreSQL's messages, and not its SQLSTATE (42501).
"""
_ESCAPED_NAME: Final = "{lake\0}"
"""The stand-in for `{lake}` in names that others chose. DuckDB takes no zero, so that no name has it."""
_COLUMNS_REFUSED: Final = "too many columns on "
"""SQLite's text when the catalog can't have a table for a lake's table: 2,000 columns, three of them DuckLake's."""
_NAMES: Final = itertools.count()
_OPENING: Final = threading.Lock()
_OPENED: Final[dict[int, duckdb.DuckDBPyConnection]] = {}
"""The DuckDB of each process by its id. A forked process keeps its parent's, and neither uses nor closes it."""


class UnknownCommitError(RetriableError):
    """The error of a commit that was refused or whose answer was lost.

    Only reading the catalog again shows whether it succeeded.
    """


class NoLakeError(RetriableError):
    """The error that the catalog's file or database has no DuckLake yet; another process may be creating it."""


class LakeTransaction:
    """A DuckDB transaction on an attached DuckLake.

    In statements, `{lake}` stands for the name under which it is attached. `escape_lake_name` escapes `{lake}` in names
    and values.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection, name: str) -> None:
        self._cursor, self.name = cursor, name
        self.changed = False

    def query_rows(self, statement: str, *values: object) -> list[Any]:
        """Execute a query and return its rows."""
        return self._run(statement, *values).fetchall()

    def execute_change(self, statement: str, *values: object) -> int:
        """Execute a statement that changes the lake, so that `transaction` commits; return the number of its rows."""
        self.changed = True
        found = self._run(statement, *values).fetchall()
        return int(found[0][0]) if found and isinstance(found[0][0], int) else 0

    def execute_statement(self, statement: str) -> None:
        """Execute a statement that needs no commit by itself.

        Without a call of `execute_change` the transaction is rolled back.
        """
        self._run(statement).fetchall()

    def table_uuids(self, schema: str) -> dict[str, str]:
        """Return the UUID (in hexadecimal) of each table in a schema, by the table's name in lower case."""
        found = self.query_rows(
            "SELECT lower(t.table_name), t.table_uuid FROM __ducklake_metadata_{lake}.ducklake_table t JOIN "
            "__ducklake_metadata_{lake}.ducklake_schema s USING (schema_id) JOIN ducklake_current_snapshot('{lake}') c "
            "ON t.begin_snapshot <= c.id AND coalesce(t.end_snapshot > c.id, true) AND s.begin_snapshot <= c.id AND "
            "coalesce(s.end_snapshot > c.id, true) WHERE lower(s.schema_name) = ?",
            schema.lower(),
        )
        return {name: UUID(str(table_id)).hex for name, table_id in found}

    def table_columns(self, table: str) -> pa.Schema:
        """Return a table's columns as an Arrow schema; `table` is the table's name, quoted for SQL."""
        found = self._run(f"SELECT * FROM {{lake}}.{table} LIMIT 0").to_arrow_table().schema
        must = {
            name
            for name, null in self.query_rows(f'SELECT column_name, "null" FROM (DESCRIBE {{lake}}.{table})')
            if null == "NO"
        }
        return normalized_duckdb_schema(
            pa.schema([pa.field(field.name, field.type, field.name not in must) for field in found])
        )

    def _run(self, statement: str, *values: object) -> duckdb.DuckDBPyConnection:
        text = statement.replace("{lake}", self.name).replace(_ESCAPED_NAME, "{lake}")
        return self._cursor.execute(text, list(values)) if values else self._cursor.execute(text)


class DuckLake:
    """A DuckLake in a local folder: the catalog is a SQLite file, and `data` has the files that DuckDB writes."""

    _kind: ClassVar[str] = "sqlite"

    def __init__(self, folder: str, place: str) -> None:
        self._folder, self._place = folder, place
        self.catalog = f"{folder}/{CATALOG}"

    def check_rights(self) -> None:
        """Check that this process may write the catalog.

        Raises:
            NotAuthorizedError: it may not.
        """
        if self.has_catalog_database() and not os.access(self.catalog, os.W_OK):
            raise NotAuthorizedError(f"No right to write {self.catalog}, the catalog of {self._place}")

    def has_catalog_database(self) -> bool:
        """Return whether the catalog's database is there: a file that is not empty.

        Attaching a missing file would create it.

        The file is only looked at, never opened: closing it would drop all locks that this process has on it.
        """
        try:
            return os.stat(self.catalog).st_size > 0
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def transaction(self, *, create: bool = False) -> Iterator[LakeTransaction]:
        """Run one transaction.

        If `execute_change` was called in it, commit it as one snapshot of the lake; else roll it back.

        Args:
            create: create the lake if it is missing.

        Raises:
            UnknownCommitError: another has committed since the transaction began, or the answer was lost.
            NoLakeError: there is no lake, and `create` is not set.
            RetriableError: the catalog is locked, or can't be read now.
            InvalidInputError: a statement is refused for good; the message says why.
        """
        name = f"lake{next(_NAMES)}"
        with self._translated_errors():
            with contextlib.closing(_database().cursor()) as cursor:
                at = self._begun(cursor, name)
                try:
                    self._attach(at, create)
                    at.execute_statement("BEGIN")
                    yield at
                    if at.changed:
                        self._commit_snapshot(at)
                finally:
                    _abandon_transaction(cursor, name)

    def _translated_errors(self) -> contextlib.AbstractContextManager[None]:
        return translated_duckdb_errors(self._place)

    def _begun(self, cursor: duckdb.DuckDBPyConnection, name: str) -> LakeTransaction:
        return LakeTransaction(cursor, name)

    def _attach(self, at: LakeTransaction, create: bool) -> None:
        """Attach the lake under the transaction's name; create it if it is missing and `create` is set."""
        make = create and not self._has_lake(at)
        make_or_not = f"DATA_PATH {quote_sql_text(f'{self._folder}/{DATA}')}" if make else "CREATE_IF_NOT_EXISTS false"
        options = [*self._attach_options(), make_or_not]
        try:
            at.execute_statement(
                f"ATTACH {quote_sql_text(f'ducklake:{self._kind}:{self.catalog}')} AS {{lake}} ({', '.join(options)})"
            )
        except duckdb.Error as error:
            if make:
                raise UnknownCommitError(f"{self._place} can't be made: {first_error_line(error)}") from error
            missing = "creating a new DuckLake is" in str(error)  # by text: refused statements have one class
            if missing or not self._has_lake(at):  # another process may have made it since
                raise NoLakeError(f"{self.catalog} holds no DuckLake yet") from error
            raise

    def _attach_options(self) -> list[str]:
        return [f"META_BUSY_TIMEOUT {_LOCK_WAIT_MS}", "META_JOURNAL_MODE 'WAL'"]

    def _has_lake(self, at: LakeTransaction) -> bool:
        """Return whether the catalog already has DuckLake's own tables, without creating them."""
        if not self.has_catalog_database():
            return False
        at.execute_statement(f"ATTACH {quote_sql_text(self.catalog)} AS {{lake}}_file (TYPE {self._kind}, READ_ONLY)")
        try:
            return bool(
                at.query_rows(
                    "SELECT 1 FROM duckdb_tables() WHERE database_name = ? AND table_name = 'ducklake_metadata'",
                    f"{at.name}_file",
                )
            )
        finally:
            at.execute_statement("DETACH {lake}_file")

    def _commit_snapshot(self, at: LakeTransaction) -> None:
        try:
            at.execute_statement("COMMIT")
        except duckdb.Error as error:
            if isinstance(error, duckdb.FatalException | duckdb.InternalException):
                _forget_database()
            if _COLUMNS_REFUSED in str(error):  # by text: SQLite's errors have no class in DuckDB
                raise InvalidInputError(
                    f"{self._place} has more columns than SQLite keeps in a catalog's table, which are 1,997: put some "
                    "of them into a struct"
                ) from error
            raise UnknownCommitError(
                f"{self._place} was written by another meanwhile: {first_error_line(error)}"
            ) from error


class PostgresLake(DuckLake):
    """A DuckLake whose catalog is a PostgreSQL database, and whose data files are in a local folder.

    The connection's parameters occur in statements, and so in DuckDB's errors. They contain no password: libpq takes it
    from a file or from the environment.
    """

    _kind: ClassVar[str] = "postgres"

    def __init__(self, folder: str, place: str, parameters: str) -> None:
        super().__init__(folder, place)
        self.catalog = parameters

    def check_rights(self) -> None:
        """Check that this user may do in the database what each publication does.

        Raises:
            NotAuthorizedError: it may not. A commit would be refused, as if others had written meanwhile.
        """
        if lacking := self._lacking_rights():
            raise self._no_right(lacking)

    def has_catalog_database(self) -> bool:
        """Return True: the database must exist before the lake, or else no connection can be opened."""
        return True

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate errors as for any lake; if this user lacks a right to the catalog, the error is not retriable."""
        try:
            with super()._translated_errors():
                yield
        except RetriableError as error:
            if lacking := self._lacking_rights():
                raise self._no_right(lacking) from error
            raise

    def _no_right(self, lacking: Sequence[str]) -> NotAuthorizedError:
        return NotAuthorizedError(
            f"No right to write {self._place}: grant the user of its catalog {', '.join(lacking)}"
        )

    def _lacking_rights(self) -> list[str]:
        """Return the rights in the database that this user lacks; none if the database does not answer."""
        name = f"lake{next(_NAMES)}"
        with contextlib.suppress(duckdb.Error), contextlib.closing(_database().cursor()) as cursor:
            try:
                cursor.execute(f"ATTACH {_sql_text(self.catalog)} AS {name} (TYPE postgres, READ_ONLY)")
                found = cursor.execute("FROM postgres_query(?, ?)", [name, _RIGHTS_LACKING]).fetchall()
                return sorted(text for (text,) in found)
            finally:
                _abandon_transaction(cursor, name)
        return []

    def _attach_options(self) -> list[str]:
        return []

    def _attach(self, at: LakeTransaction, create: bool) -> None:
        _load_extension(at.execute_statement, "postgres_scanner")
        super()._attach(at, create)
        [(level,)] = at.query_rows(
            "FROM postgres_query(?, 'SELECT current_setting(''transaction_isolation'')')",
            f"__ducklake_metadata_{at.name}",
        )
        if level not in _ISOLATED:
            raise InvalidInputError(
                f"{self._place} is written at the isolation level {level}, at which a late commit could count twice: "
                "take away the setting pg_isolation_level, or install the version of DuckDB that kohort names"
            )


def _abandon_transaction(cursor: duckdb.DuckDBPyConnection, name: str) -> None:
    """Roll back the transaction if it is not committed, and detach the lake, so that all its locks are released."""
    for statement in ("ROLLBACK", f"DETACH DATABASE IF EXISTS {name}", f"DETACH DATABASE IF EXISTS {name}_file"):
        with contextlib.suppress(duckdb.Error):
            cursor.execute(statement)


def ducklake_stored_schema(place: str, schema: pa.Schema) -> pa.Schema:
    """Return the Arrow types in which a DuckLake gives these columns back to readers.

    Raises:
        InvalidInputError: DuckLake can't store a column unchanged; the message names the columns.
    """
    _database()  # without which no column is at fault

    def stored_type(field: pa.Field[Any]) -> pa.DataType | str:
        kind = _micros(field.type)
        one = pa.schema([pa.field(field.name, kind)])
        try:
            with translated_duckdb_errors(place), contextlib.closing(_database().cursor()) as cursor:
                back = (
                    normalized_duckdb_schema(cursor.from_arrow(one.empty_table()).to_arrow_table().schema).field(0).type
                )
        except (InvalidInputError, RetriableError) as error:
            return str(error)
        return back if back.equals(_loose(kind)) else other_type_text(back)

    return stored_schema_of_format(schema, "DuckLake", stored_type)


def column_types(place: str, schema: pa.Schema) -> dict[str, str]:
    """Return the SQL type of each column in DuckDB, by name.

    DuckDB must be able to store them unchanged (`ducklake_stored_schema`).
    """
    with translated_duckdb_errors(place), contextlib.closing(_database().cursor()) as cursor:
        found = cursor.from_arrow(schema.empty_table())
        return dict(zip(schema.names, (str(kind) for kind in found.types), strict=True))


def normalized_duckdb_schema(schema: pa.Schema) -> pa.Schema:
    """Normalise an Arrow schema that DuckDB returns, to compare it with the sink's: plain types, UTC under one name."""
    return pa.schema([pa.field(field.name, _loose(field.type), field.nullable) for field in with_plain_types(schema)])


def _loose(kind: Any) -> Any:
    """Return a type as DuckDB would give it back: all nested fields may be null, and UTC has one name."""
    if pa.types.is_timestamp(kind) and kind.tz in ("Etc/UTC", "Z", "+00:00"):
        return pa.timestamp(kind.unit, "UTC")
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(field.name, _loose(field.type)) for field in kind])
    if isinstance(kind, pa.ListType):
        return pa.list_(pa.field("element", _loose(kind.value_type)))
    if isinstance(kind, pa.MapType):
        return pa.map_(_loose(kind.key_type), pa.field("value", _loose(kind.item_type)))
    return kind


def _micros(kind: Any) -> Any:
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) and kind.unit in ("s", "ms") else kind


def columns_with_safe_statistics(rows: pa.Table) -> bool | list[str]:
    """Return the columns for which a Parquet file may have statistics, or True if it may for all.

    The statistics of floating-point columns leave NaN out, which DuckDB takes for the greatest number. DuckLake takes
    them as they are, and would skip the file when a reader asks for values above its maximum. Those of the type FLOAT
    are left out always: DuckLake writes them as decimal numbers, which its filters take for DOUBLE. Such a number is
    seldom equal to the value, so that a reader would miss it.
    """
    doubtful = [name for name in rows.column_names if _misleads(rows.column(name))]
    if not doubtful:
        return True
    return [field.name for field in rows.schema if field.name not in doubtful and not pa.types.is_nested(field.type)]


def _misleads(column: Any) -> bool:
    if pa.types.is_float32(column.type) or pa.types.is_float16(column.type):
        return True
    if pa.types.is_floating(column.type):
        return bool(pc.any(pc.is_nan(column)).as_py())
    return _holds_floats(column.type)


def _holds_floats(kind: Any) -> bool:
    if pa.types.is_nested(kind):
        return any(_holds_floats(kind.field(at).type) for at in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def escape_lake_name(text: str) -> str:
    """Escape `{lake}` in a name or path, since a transaction replaces `{lake}` in statements by the lake's name."""
    return text.replace("{lake}", _ESCAPED_NAME)


def quote_sql_text(text: str) -> str:
    """Quote a text as an SQL string literal for a statement of a `LakeTransaction`."""
    return escape_lake_name(_sql_text(text))


def _sql_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def sql_list_literal(values: Sequence[str]) -> str:
    """Return texts as a list literal in SQL, for a transaction's statement."""
    return "[" + ", ".join(quote_sql_text(value) for value in values) + "]"


@contextlib.contextmanager
def translated_duckdb_errors(place: str) -> Iterator[None]:
    """Translate DuckDB's errors inside the block to the package's own.

    After a fatal one, drop this process's DuckDB.
    """
    try:
        yield
    except duckdb.PermissionException as error:
        raise NotAuthorizedError(f"No right to write {place}: {first_error_line(error)}") from error
    except _REFUSED as error:
        if _METADATA_GONE.search(str(error)):  # by text: the extension's race has no class of its own
            raise RetriableError(f"{place} does not answer: {first_error_line(error)}") from error
        raise InvalidInputError(f"{place} refuses a request: {first_error_line(error)}") from error
    except (duckdb.FatalException, duckdb.InternalException) as error:
        _forget_database()
        if isinstance(error, duckdb.FatalException):
            raise RetriableError(f"{place} does not answer: {first_error_line(error)}") from error
        raise CorruptDataError(f"{place} can't be read: {first_error_line(error)}") from error
    except duckdb.SerializationException as error:
        raise CorruptDataError(f"{place} can't be read: {first_error_line(error)}") from error
    except duckdb.Error as error:
        if any(text in str(error) for text in _NO_RIGHT):  # by text: DuckDB does not hand on SQLSTATE
            raise NotAuthorizedError(f"No right to write {place}: {first_error_line(error)}") from error
        if "file is not a database" in str(error):  # by text: SQLite's errors have no class in DuckDB
            raise InvalidInputError(f"The catalog of {place} is no SQLite file: {first_error_line(error)}") from error
        raise RetriableError(f"{place} does not answer: {first_error_line(error)}") from error


def first_error_line(error: Exception) -> str:
    """Return the first line of an error's text; DuckDB adds the statement in later ones."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _database() -> duckdb.DuckDBPyConnection:
    """Return this process's in-memory DuckDB with its extensions loaded; open it at the first call.

    A fork opens its own.
    """
    process = os.getpid()
    with _OPENING:
        if process not in _OPENED:
            _OPENED[process] = _open_database()
        return _OPENED[process]


def _forget_database() -> None:
    """Make the next use open another DuckDB in this process: after a fatal error, DuckDB refuses all statements."""
    with _OPENING:
        _OPENED.pop(os.getpid(), None)


def _open_database() -> duckdb.DuckDBPyConnection:
    if not duckdb.__version__.startswith(_TRIED):
        raise InvalidInputError(
            f"DuckLakeTable was tried with DuckDB {_TRIED}x alone, and this is {duckdb.__version__}: another one may "
            "commit otherwise. Install duckdb<1.6"
        )
    config: dict[str, Any] = {"autoinstall_known_extensions": False, "threads": 1}
    database = duckdb.connect(":memory:", config=config)
    for name in _EXTENSIONS:
        _load_extension(database.execute, name)
    database.execute("SET ducklake_max_retry_count = 0")
    return database


def _load_extension(execute: Callable[[str], object], name: str) -> None:
    try:
        execute(f"LOAD {_sql_text(_extension(name))}")
    except duckdb.Error as error:
        package = "'kohort[ducklake]'" if name in _EXTENSIONS else f"duckdb-extension-{name.replace('_', '-')}"
        raise InvalidInputError(
            f"DuckLakeTable needs DuckDB's extension {name}: pip install {package}, or run INSTALL {name} "
            f"in DuckDB {duckdb.__version__} ({first_error_line(error)})"
        ) from error


def _extension(name: str) -> str:
    """Return the path of a DuckDB extension that a Python package has installed; without one, the extension's name."""
    try:
        package = importlib.import_module(f"duckdb_extension_{name}")
    except ImportError:
        return name
    folder = os.path.dirname(package.__file__ or "")
    path = f"{folder}/extensions/v{duckdb.__version__}/{name}.duckdb_extension"
    return path if os.path.exists(path) else name
