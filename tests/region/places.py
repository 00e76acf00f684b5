"""Places of each kind that regions write to; processes of which every call can be held, fail or be the last."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Protocol
from urllib.parse import unquote
from uuid import UUID

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.exceptions import GenericError
from obstore.store import LocalStore
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from kohort.errors import RetriableError
from kohort.region.sinks import Sink
from kohort.region.sinks.delta_log import DeltaLog
from kohort.region.sinks.delta_objects import DeltaObjects, StoreDeltaLog
from kohort.region.sinks.delta_table import DeltaTable
from kohort.region.sinks.ducklake_catalog import DuckLake, LakeTransaction
from kohort.region.sinks.ducklake_table import DuckLakeTable
from kohort.region.sinks.hive_partitions import NULL
from kohort.region.sinks.iceberg_files import DurableFileIO
from kohort.region.sinks.iceberg_table import IcebergTable
from kohort.region.sinks.object_store import ObjectStore
from kohort.region.sinks.parquet_folder import ParquetFolder
from kohort.region.sinks.parquet_objects import ParquetObjects, PublishedSequenceLog
from kohort.region.sinks.sql_table import SqlTable
from tests.region.volume import Died

REGION = UUID(int=0xA11CE)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
Row = tuple[int, str]
_FILE_CALLS = frozenset({"open", "write", "fsync", "listdir", "mkdir", "link", "rename", "unlink", "rmdir"})


@dataclass
class Calls:
    """One process's calls to the system. `at(number, call)` runs before each and may raise; `after` likewise."""

    number: int = 0
    dead: bool = False
    at: Callable[[int, str], None] = lambda number, call: None
    after: Callable[[int, str], None] = lambda number, call: None
    trace: list[str] = field(default_factory=list)

    def do(self, call: str, act: Callable[[], Any]) -> Any:
        if self.dead:
            raise Died
        self.number += 1
        number = self.number
        self.trace.append(call)
        self.at(number, call)
        if self.dead:
            raise Died
        done = act()
        self.after(number, call)
        return done

    def die(self) -> None:
        self.dead = True
        raise Died

    def die_at(self, number: int, *, happened: bool, really: bool = False) -> None:
        """Be killed at the so-manyth call, before it or after it; by SIGKILL, or by an error that nobody catches."""

        def die(now: int, call: str) -> None:
            if now == number:
                if really:
                    os.kill(os.getpid(), signal.SIGKILL)
                self.die()

        if happened:
            self.after = die
        else:
            self.at = die


class HeldFiles:
    """`os`, asked through `Calls`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        call = getattr(os, name)
        if name not in _FILE_CALLS:
            return call
        return lambda *args: self._calls.do(f"{name} {args[-1] if name in ('link', 'rename') else args[0]}",
                                            lambda: call(*args))  # fmt: skip

    def fsync(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        self._calls.do(f"fsync {path}", lambda: os.fsync(fd))


class HeldLog(DeltaLog):
    """A log whose commits are asked through `Calls`."""

    calls: Calls

    def load(self) -> Any:
        return self.calls.do("load", super().load)

    def commit(self, *args: Any) -> bool:
        return bool(self.calls.do("commit", lambda: DeltaLog.commit(self, *args)))

    def merge(self, *args: Any) -> bool:
        return bool(self.calls.do("merge", lambda: DeltaLog.merge(self, *args)))

    def try_add_columns(self, *args: Any) -> bool:
        return bool(self.calls.do("add columns", lambda: DeltaLog.try_add_columns(self, *args)))


class HeldStoreLog(HeldLog, StoreDeltaLog):
    """Such a log over a store of this machine, whose folder the library opens."""

    def load(self) -> Any:
        return self._asked(super().load)

    def create_table(self, *args: Any) -> Any:
        return self._asked(lambda: self.calls.do("create", lambda: StoreDeltaLog.create_table(self, *args)))

    def commit(self, *args: Any) -> bool:
        return bool(self._asked(lambda: HeldLog.commit(self, *args)))

    def merge(self, *args: Any) -> bool:
        return bool(self._asked(lambda: HeldLog.merge(self, *args)))

    def try_add_columns(self, *args: Any) -> bool:
        return bool(self._asked(lambda: HeldLog.try_add_columns(self, *args)))

    @staticmethod
    def _asked(act: Callable[[], Any]) -> Any:
        try:
            return act()
        except GenericError as error:  # a test's, in place of the library's
            raise RetriableError(str(error)) from None


class HeldDelta(DeltaTable):
    """A Delta table of such a log."""

    @property
    def _log(self) -> DeltaLog:
        log = HeldLog(self.path, self._bound(), self._files)
        log.calls = self._files._calls  # type: ignore[attr-defined]
        return log


class HeldFileIO(DurableFileIO):
    """The files of a lake whose folder may be anywhere: copies of it go on, though their paths are absolute."""

    LAKE: ClassVar = "file:///lake"
    OPEN: ClassVar[dict[str, tuple[str, Calls]]] = {}
    NUMBERS: ClassVar = itertools.count()

    @property
    def files(self) -> Any:
        return HeldFiles(self.OPEN[self.properties["held"]][1])

    def local_path_of(self, location: str) -> str | None:
        return location.replace(self.LAKE, self.OPEN[self.properties["held"]][0], 1)


class HeldCatalog(SqlCatalog):
    """A catalog that is asked through `Calls`."""

    @property
    def _calls(self) -> Calls:
        return HeldFileIO.OPEN[self.properties["held"]][1]

    def load_table(self, identifier: Any) -> Table:
        return self._calls.do("load", lambda: SqlCatalog.load_table(self, identifier))  # type: ignore[no-any-return]

    def commit_table(self, *args: Any) -> Any:
        return self._calls.do("commit", lambda: SqlCatalog.commit_table(self, *args))

    def create_namespace(self, *args: Any) -> None:
        self._calls.do("create namespace", lambda: SqlCatalog.create_namespace(self, *args))

    def create_table(self, *args: Any, **options: Any) -> Any:
        return self._calls.do("create table", lambda: SqlCatalog.create_table(self, *args, **options))


class HeldIceberg(IcebergTable):
    """An Iceberg table of such a catalog."""

    calls: Calls

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in super().__getstate__().items() if name != "calls"}

    def _opened(self) -> Catalog:
        number = str(next(HeldFileIO.NUMBERS))
        HeldFileIO.OPEN[number] = (self.warehouse, getattr(self, "calls", Calls()))
        mapped = {"warehouse": HeldFileIO.LAKE, "py-io-impl": "tests.region.places.HeldFileIO", "held": number}
        return HeldCatalog("default", **{**self._properties, **mapped})


class HeldCursor(sqlite3.Cursor):
    """A cursor whose statements are asked through `Calls`."""

    def execute(self, statement: str, *given: Any) -> Any:
        calls: Calls = self.connection.calls  # type: ignore[attr-defined]
        return calls.do(statement[:60], lambda: sqlite3.Cursor.execute(self, statement, *given))

    def executemany(self, statement: str, rows: Any) -> Any:
        calls: Calls = self.connection.calls  # type: ignore[attr-defined]
        return calls.do(statement[:60], lambda: sqlite3.Cursor.executemany(self, statement, rows))


class HeldConnection(sqlite3.Connection):
    """A connection of such cursors."""

    calls: Calls

    def cursor(self, *args: Any) -> Any:
        return super().cursor(HeldCursor)


class Place(Protocol):
    """A place of one kind, in a folder of its own."""

    kind: str
    replaces: bool
    """A row replaces one of its id."""
    shared: bool
    """Several regions may write there."""

    def at(self, root: Path) -> None:
        """Be in this folder."""

    def sink(self, calls: Calls | None = None, region: UUID = REGION) -> Sink:
        """Return the sink as a process has it, bound to a region."""

    def rows(self) -> list[Row]:
        """Return the rows that any reader sees, sorted."""

    def staged(self) -> list[str]:
        """Names of what is staged, and of what was left."""


def _rows_in(files: Iterable[Path]) -> list[Row]:
    """Return the rows of files, whose names are those of their partitions, if they have any."""
    found: list[Row] = []
    for file in files:
        named = file.parent.name.startswith("name=") and unquote(file.parent.name.removeprefix("name="))
        for row in pq.ParquetFile(file).read().to_pylist():
            name = row["name"] if not named else None if named == NULL else named
            found.append((row["id"], name))
    return sorted(found)


class _Files:
    """Places that are folders or files."""

    kind = ""
    replaces = False
    shared = False
    path = ""

    def at(self, root: Path) -> None:
        self.path = str(root / "out")


class ParquetPlace(_Files):
    def __init__(self, kind: str = "parquet", **options: Any) -> None:
        self.kind, self._options = kind, options

    def sink(self, calls: Calls | None = None, region: UUID = REGION) -> Sink:
        made = ParquetFolder(self.path, **self._options)
        made._place = "parquet:out"  # a copy of the place is to be this one
        made._files = HeldFiles(calls or Calls())  # type: ignore[assignment]
        return made.bind(f"region-{region.int}", region)

    def rows(self) -> list[Row]:
        return _rows_in(Path(self.path).glob("sequence=*/**/*.parquet"))

    def staged(self) -> list[str]:
        return os.listdir(f"{self.path}/_staging")


class HeldObjects:
    """A store of this machine, asked through `Calls`."""

    def __init__(self, root: str, calls: Calls) -> None:
        self.store, self.calls = LocalStore(root, mkdir=True), calls

    def put(self, path: str, data: bytes, **options: Any) -> Any:
        return self.calls.do(f"put {path}", lambda: self.store.put(path, data, **options))

    def get(self, path: str) -> Any:
        return self.calls.do(f"get {path}", lambda: self.store.get(path))

    def head(self, path: str) -> Any:
        return self.calls.do(f"head {path}", lambda: self.store.head(path))

    def list(self, prefix: str, **options: Any) -> Any:
        return self.calls.do(f"listdir {prefix}", lambda: iter(list(self.store.list(prefix, **options))))

    def list_with_delimiter(self, prefix: str | None = None) -> Any:
        return self.calls.do("listdir", lambda: self.store.list_with_delimiter(prefix))

    def copy(self, path: str, to: str) -> None:
        self.calls.do(f"copy {path}", lambda: self.store.copy(path, to))

    def delete(self, paths: Any) -> Any:
        return self.calls.do(f"unlink {paths}", lambda: self.store.delete(paths))


class LocalObjects(ObjectStore):
    """Objects below a URL that are in a folder of this machine. A race is no call, since its requests are at once."""

    def __init__(self, root: str, calls: Calls, url: str = "s3://bucket/out") -> None:
        super().__init__(url, {})
        self.root, self.calls = root, calls

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in super().__getstate__().items() if name != "calls"}

    def _open_store(self) -> Any:
        return HeldObjects(self.root, getattr(self, "calls", Calls()))

    def count_race_winners(self, path: str) -> int:
        raw = self._raw
        self._opened = (os.getpid(), LocalStore(self.root, mkdir=True))
        try:
            return super().count_race_winners(path)
        finally:
            self._opened = (os.getpid(), raw)


class ObjectsPlace(_Files):
    def __init__(self, kind: str = "parquet-objects", **options: Any) -> None:
        self.kind, self._options = kind, options

    def sink(self, calls: Calls | None = None, region: UUID = REGION) -> Sink:
        made = ParquetFolder("s3://bucket/out", **self._options)
        assert isinstance(made, ParquetObjects)
        made._store = LocalObjects(self.path, calls or Calls())
        made._log = PublishedSequenceLog(made._store)
        return made.bind(f"region-{region.int}", region)

    def _shown(self) -> list[str]:
        """Return the files of the sequences, as their objects name them."""
        names = list(Path(self.path).glob("_sequences/*.*"))
        emptied = max((int(name.stem) for name in names if name.suffix == ".emptied"), default=0)
        shown = [json.loads(name.read_bytes()) for name in names if name.suffix == ".json" and int(name.stem) > emptied]
        return [f"{self.path}/{file}" for entry in shown for file in entry["files"]]

    def rows(self) -> list[Row]:
        shown = [Path(file) for file in self._shown()]
        assert all(file.exists() for file in shown), "a sequence names a file that is gone"
        return _rows_in(shown)

    def staged(self) -> list[str]:
        """Names of what is staged, and of data that no sequence has."""
        left = {str(path) for path in Path(self.path).glob("_data/**/*.parquet")} - set(self._shown())
        return [path.name for path in Path(self.path).glob("_staged/*")] + sorted(left)


class DeltaPlace(_Files):
    shared = True

    def __init__(self, kind: str, **options: Any) -> None:
        self.kind, self._options = kind, options
        self.replaces = options.get("mode") == "update"

    def sink(self, calls: Calls | None = None, region: UUID = REGION, **options: Any) -> Sink:
        made = HeldDelta(self.path, **self._options | options)
        made._place = "delta:out"
        made._files = HeldFiles(calls or Calls())  # type: ignore[assignment]
        return made.bind(f"region-{region.int}", region)

    def rows(self) -> list[Row]:
        if not deltalake.DeltaTable.is_deltatable(self.path):
            return []
        table = deltalake.DeltaTable(self.path).to_pyarrow_table()
        return sorted((row["id"], row["name"]) for row in table.to_pylist())

    def staged(self) -> list[str]:
        return [
            name for name in os.listdir(f"{self.path}/_kohort/{REGION.hex}/staged") if not name.startswith("_done-")
        ]

    def compact(self) -> None:
        """Write the files anew, as any engine may."""
        deltalake.DeltaTable(self.path).optimize.compact()


class HeldDeltaObjects(DeltaObjects):
    """A Delta table in a store of this machine."""

    def _store_log(self) -> StoreDeltaLog:
        store = self._store
        assert isinstance(store, LocalObjects)
        log = HeldStoreLog(store, self._bound())
        log.calls, log._given, log._path = getattr(store, "calls", Calls()), {}, store.root
        return log


class DeltaObjectsPlace(DeltaPlace):
    def sink(self, calls: Calls | None = None, region: UUID = REGION, **options: Any) -> Sink:
        made = HeldDeltaObjects("s3://bucket/out", **self._options | options)
        made._store = LocalObjects(self.path, calls or Calls())
        return made.bind(f"region-{region.int}", region)

    def staged(self) -> list[str]:
        return [path.name for path in Path(self.path, "_kohort", REGION.hex, "staged").glob("*")]


class IcebergPlace(_Files):
    shared = True

    def __init__(self, kind: str, **options: Any) -> None:
        self.kind, self._options = kind, options
        self.replaces = options.get("mode") == "update"

    def sink(self, calls: Calls | None = None, region: UUID = REGION) -> HeldIceberg:
        made = HeldIceberg("air.flights", warehouse=self.path, **self._options)
        made._place, made.calls = "iceberg:out", calls or Calls()
        return made.bind(f"region-{region.int}", region)

    def table(self) -> Table | None:
        """Return the table as a stranger opens it."""
        sink = self.sink()
        return sink._log.load_if_exists() if sink._is_there() else None

    def rows(self) -> list[Row]:
        table = self.table()
        try:
            found = [] if table is None else table.scan().to_arrow().to_pylist()
        except FileNotFoundError as error:
            raise AssertionError("the table has a file that is gone") from error
        return sorted((row["id"], row["name"]) for row in found)

    def staged(self) -> list[str]:
        """Names of what is staged, and of data files that no snapshot has."""
        table = self.table()
        if table is None:
            return []
        data = Path(self.path) / "air/flights/data"  # a stranger's files are in folders of their partitions
        there = os.listdir(data) if data.is_dir() else []
        left = {f"{HeldFileIO.LAKE}/air/flights/data/{name}" for name in there if name.startswith("kohort-")}
        kept = Path(self.path).glob(f"air/flights/_kohort/*/{REGION.hex}/*/*")
        return [path.name for path in kept if path.parent.name in ("staged", "merges")] + sorted(
            left - _files_of(table)
        )

    def compact(self) -> None:
        """Write the files anew, as any engine may, and forget how the table was before."""
        table = self.table()
        assert table is not None
        table.overwrite(table.scan().to_arrow())
        before = _files_of(table)
        table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
        for path in before - _files_of(table.refresh()):
            table.io.delete(path)


def _files_of(table: Table) -> set[str]:
    """Return the data files of all snapshots."""
    manifests = {manifest.manifest_path: manifest for snapshot in table.snapshots()
                 for manifest in snapshot.manifests(table.io)}  # fmt: skip
    return {
        entry.data_file.file_path
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io)
    }


class HeldLakeTransaction(LakeTransaction):
    """A transaction whose statements are asked through `Calls`."""

    calls: Calls

    def _run(self, statement: str, *values: object) -> Any:
        return self.calls.do(statement[:60], lambda: LakeTransaction._run(self, statement, *values))


class HeldLake(DuckLake):
    """A lake of such transactions."""

    calls: Calls

    def _begun(self, cursor: Any, name: str) -> LakeTransaction:
        made = HeldLakeTransaction(cursor, name)
        made.calls = self.calls
        return made


class HeldDuckLake(DuckLakeTable):
    """A DuckLake table of such a lake."""

    calls: Calls

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in super().__getstate__().items() if name != "calls"}

    @property
    def _lake(self) -> DuckLake:
        lake = HeldLake(self.path, self.place)
        lake.calls = getattr(self, "calls", Calls())
        return lake


class DuckLakePlace(_Files):
    kind = "ducklake"
    shared = True

    def at(self, root: Path) -> None:
        """Be in this folder; the catalog of a copy has the paths of the first folder."""
        super().at(root)
        if not os.path.exists(f"{self.path}/catalog.sqlite"):
            return
        with contextlib.closing(sqlite3.connect(f"{self.path}/catalog.sqlite")) as catalog, catalog:
            tables = {row[0] for row in catalog.execute("SELECT name FROM sqlite_master")}
            if "ducklake_metadata" not in tables:
                return
            (old,) = catalog.execute("SELECT value FROM ducklake_metadata WHERE key = 'data_path'").fetchone()
            for table, column in (
                ("metadata", "value"),
                ("data_file", "path"),
                ("files_scheduled_for_deletion", "path"),
            ):
                moved = f"UPDATE ducklake_{table} SET {column} = replace({column}, ?, ?)"
                catalog.execute(moved, (old.removesuffix("/data/"), self.path))

    def sink(self, calls: Calls | None = None, region: UUID = REGION) -> HeldDuckLake:
        made = HeldDuckLake("air.flights", lake=self.path)
        made._place, made.calls = "ducklake:out", calls or Calls()
        made._files = HeldFiles(made.calls)  # type: ignore[assignment]
        return made.bind(f"region-{region.int}", region)

    def ask(self, statement: str) -> list[Any]:
        """Return the rows of a query as a stranger asks it; none if there is no table."""
        sink = self.sink()
        if sink._newest_state() is None:
            return []
        with sink._lake.transaction() as at:
            return at.query_rows(statement)

    def rows(self) -> list[Row]:
        try:
            return sorted(self.ask("SELECT id, name FROM {lake}.air.flights"))
        except RetriableError as error:
            raise AssertionError("the table has a file that is gone") from error

    def staged(self) -> list[str]:
        """Names of what is staged, and of data files that the lake does not have."""
        known = self.ask(
            "SELECT path FROM __ducklake_metadata_{lake}.ducklake_data_file UNION ALL SELECT path FROM "
            "__ducklake_metadata_{lake}.ducklake_files_scheduled_for_deletion"
        )
        own = Path(self.path) / "_kohort"
        left = {str(path) for path in own.glob(f"*/{REGION.hex}/data/*")} - {path for (path,) in known}
        others = [path.name for kind in ("staged", "tried") for path in own.glob(f"*/{REGION.hex}/{kind}/*")]
        return others + sorted(left)

    def compact(self) -> None:
        """Merge the files, forget how the table was before, and remove what nobody needs."""
        for statement in (
            "CALL ducklake_flush_inlined_data('{lake}')",
            "CALL ducklake_merge_adjacent_files('{lake}')",
            "CALL ducklake_expire_snapshots('{lake}', older_than => now())",
            "CALL ducklake_cleanup_old_files('{lake}', cleanup_all => true)",
        ):
            with self.sink()._lake.transaction() as at:
                at.execute_change(statement)


class SqlitePlace(_Files):
    def __init__(self, kind: str, **options: Any) -> None:
        self.kind, self._options = kind, options
        self.replaces = bool(options)

    def at(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.path = str(root / "out.db")

    def sink(self, calls: Calls | None = None, region: UUID = REGION) -> Sink:
        made = SqlTable(f"sqlite:///{self.path}", "flights", **self._options)
        made._place = "sql:out"
        path = self.path

        def connect() -> HeldConnection:
            connection = sqlite3.connect(path, timeout=0, isolation_level=None, factory=HeldConnection)
            connection.calls = calls or Calls()
            return connection

        made._connect = connect
        return made.bind(f"region-{region.int}", region)

    def _ask(self, statement: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            asked = statement.split(" FROM ")[1]
            return connection.execute(statement).fetchall() if (asked,) in tables else []

    def rows(self) -> list[Row]:
        return sorted(self._ask("SELECT id, name FROM flights"))

    def staged(self) -> list[str]:
        rows = self._ask("SELECT kohort_key FROM flights__staged")
        return [row[0] for row in rows + self._ask("SELECT staged_key FROM kohort_staged")]


def kinds() -> list[Place]:
    """One of each kind, nowhere yet."""
    return [
        ParquetPlace(),
        ParquetPlace("parquet-parted", partition_by=["name"]),
        ObjectsPlace(),
        ObjectsPlace("parquet-objects-parted", partition_by=["name"]),
        DeltaPlace("delta"),
        DeltaPlace("delta-parted", partition_by=["name"]),
        DeltaPlace("delta-update", mode="update", keys=["id"]),
        DeltaObjectsPlace("delta-objects"),
        DeltaObjectsPlace("delta-objects-update", mode="update", keys=["id"]),
        IcebergPlace("iceberg"),
        IcebergPlace("iceberg-parted", partition_by=["truncate(1, name)", "bucket(2, id)"]),
        IcebergPlace("iceberg-update", mode="update", keys=["id"]),
        DuckLakePlace(),
        SqlitePlace("sqlite"),
        SqlitePlace("sqlite-update", mode="update", keys=["id"]),
    ]


def copied(place: Place, to: Path) -> None:
    """Have the place go on in a copy of its folder."""
    here = Path(place.path)  # type: ignore[attr-defined]
    to.mkdir(parents=True)
    if here.is_dir():
        shutil.copytree(here, to / here.name)
    else:
        for path in here.parent.glob(f"{here.name}*"):
            shutil.copy2(path, to / path.name)
    place.at(to)


def table(rows: list[Row]) -> pa.Table:
    return pa.table({"id": [row[0] for row in rows], "name": [row[1] for row in rows]}, schema=SCHEMA)


def merged(place: Place, *sequences: list[Row]) -> list[Row]:
    """Return the rows that readers must see after rows arrived in this order."""
    rows = [row for rows in sequences for row in rows]
    return sorted(dict(rows).items()) if place.replaces else sorted(rows)


def same(found: list[Row], wanted: list[Row]) -> bool:
    return Counter(found) == Counter(wanted)
