"""Where the tables of `bench.lake` are, how writers name them, and readers of theirs that nobody here wrote."""

from __future__ import annotations

import sqlite3
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.table import StaticTable
from tests.region import s3_server

from bench.harness import RunFailed

DELTA, ICEBERG = "delta", "iceberg"
LOCAL_DISK, S3 = "local disk", "S3"
_ACCESS, _BUCKET = s3_server.ACCESS, s3_server.BUCKET
_OFFSETS_OF_A_PARTITION = 1 << 40


@dataclass(frozen=True, slots=True)
class Store:
    """A folder, or an S3 server.

    Attributes:
        name: for titles.
        folder: for catalogs, checkpoints and, without an address, the tables.
        address: the server's; empty: tables are in the folder.
    """

    name: str
    folder: Path
    address: str = ""

    def job(self, kind: str) -> TableJob:
        """Return a new table of that kind, which nobody has created yet."""
        name = f"b{uuid.uuid4().hex[:12]}"
        (self.folder / name).mkdir()
        return TableJob(kind, name, self)

    @property
    def delta_options(self) -> dict[str, str]:
        """The options by which deltalake and obstore reach the server."""
        if not self.address:
            return {}
        access = {f"aws_{_delta_name(key)}": value for key, value in _ACCESS.items()}
        return {**access, "aws_endpoint": self.address, "aws_allow_http": "true"}

    @property
    def iceberg_options(self) -> dict[str, str]:
        """The properties by which pyiceberg reaches the server."""
        return {**_ACCESS, "s3.endpoint": self.address} if self.address else {}


def _delta_name(key: str) -> str:
    return key.removeprefix("s3.").replace("-", "_")


@dataclass(frozen=True, slots=True)
class TableJob:
    """One new table, and what each writer is told about it."""

    kind: str
    name: str
    store: Store
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of the table's catalog, and of the writers' own files."""
        return self.store.folder / self.name

    def url(self, scheme: str = "s3") -> str:
        """Return where the table, or its warehouse, is."""
        return f"{scheme}://{_BUCKET}/{self.name}" if self.store.address else str(self.folder / "lake")

    def of_members(self) -> dict[str, Any]:
        """Return what our writers are told."""
        warehouse = self.url() if self.store.address else f"file://{self.url()}"
        catalog = {"type": "sql", "uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": warehouse}
        return {
            "kind": self.kind, "path": self.url(), "storage": self.store.delta_options, "region": self.name,
            "catalog": {**catalog, **self.store.iceberg_options}, "folder": str(self.folder), **self.more,
        }  # fmt: skip

    def of_spark(self) -> dict[str, Any]:
        """Return what Spark's own sinks are told."""
        address, hadoop = self.store.address, {}
        catalog = {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog", "uri": f"jdbc:sqlite:{self.folder}/catalog.db",
            "jdbc.schema-version": "V1", "warehouse": self.url(),
        }  # fmt: skip
        if address:
            key, secret = _ACCESS["s3.access-key-id"], _ACCESS["s3.secret-access-key"]
            catalog |= {
                "io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.endpoint": address, "client.region": "us-east-1",
                "s3.path-style-access": "true", "s3.access-key-id": key, "s3.secret-access-key": secret,
            }  # fmt: skip
            hadoop = {
                "fs.s3a.endpoint": address, "fs.s3a.endpoint.region": "us-east-1", "fs.s3a.access.key": key,
                "fs.s3a.secret.key": secret, "fs.s3a.path.style.access": "true",
                "fs.s3a.connection.ssl.enabled": "false",
            }  # fmt: skip
        return {
            "kind": self.kind, "path": self.url("s3a"), "catalog": catalog, "hadoop": hadoop, "region": self.name,
            "folder": str(self.folder), **self.more,
        }  # fmt: skip

    def reader(self) -> TableReader:
        """Return a reader of the table."""
        return DeltaReader(self) if self.kind == DELTA else IcebergReader(self)


class TableReader(Protocol):
    """A reader of one table that may not be there yet."""

    def count(self) -> int:
        """Return the number of rows that a reader sees now; 0: there is no table yet."""

    def new_files(self) -> list[str]:
        """Return the files that have come since the last call, as paths or URLs."""

    def keys(self) -> pa.Table:
        """Read partition and offset of all rows."""


class DeltaReader:
    """delta-rs, without anything of this project."""

    def __init__(self, job: TableJob) -> None:
        self._path, self._options = job.url(), job.store.delta_options
        self._table: deltalake.DeltaTable | None = None
        self._version = -1
        self._count = 0
        self._seen: set[str] = set()

    def _adds(self) -> pa.Table | None:
        """Return the files of the newest version; None: there is none, or the same as before."""
        if self._table is None:
            if not deltalake.DeltaTable.is_deltatable(self._path, self._options):
                return None
            self._table = deltalake.DeltaTable(self._path, storage_options=self._options)
        else:
            self._table.update_incremental()
        if self._table.version() == self._version:
            return None
        self._version = self._table.version()
        return pa.table(self._table.get_add_actions(flatten=True))

    def count(self) -> int:
        """Return the number of rows that a reader sees now; 0: there is no table yet."""
        adds = self._adds()
        if adds is not None:
            self._count = int(pc.sum(adds.column("num_records")).as_py() or 0)
        return self._count

    def new_files(self) -> list[str]:
        """Return the files that have come since the last call, as paths or URLs."""
        adds = self._adds()
        paths = [] if adds is None else [str(path) for path in adds.column("path").to_pylist()]
        new = [path for path in paths if path not in self._seen]
        self._seen.update(new)
        return [f"{self._path}/{path}" for path in new]

    def keys(self) -> pa.Table:
        """Read partition and offset of all rows."""
        table = deltalake.DeltaTable(self._path, storage_options=self._options)
        return table.to_pyarrow_table(columns=["partition", "offset"])


class IcebergReader:
    """pyiceberg on the metadata file that the catalog names, without anything of this project."""

    def __init__(self, job: TableJob) -> None:
        self._catalog, self._options = job.folder / "catalog.db", job.store.iceberg_options
        self._snapshot: int | None = None
        self._seen: set[str] = set()

    def _table(self) -> StaticTable | None:
        """Return the table's newest state; None: there is none yet."""
        if not self._catalog.exists():
            return None
        with closing(sqlite3.connect(f"file:{self._catalog}?mode=ro", uri=True)) as catalog:
            try:
                found = catalog.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
            except sqlite3.OperationalError:  # nobody has created its tables, or a writer locks them
                return None
        return StaticTable.from_metadata(found[0][0], self._options) if found else None

    def count(self) -> int:
        """Return the number of rows that a reader sees now; 0: there is no table yet."""
        table = self._table()
        snapshot = None if table is None else table.current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return 0
        return int(snapshot.summary.additional_properties["total-records"])

    def new_files(self) -> list[str]:
        """Return the files that have come since the last call, as paths or URLs."""
        table = self._table()
        snapshot = None if table is None else table.current_snapshot()
        if table is None or snapshot is None or snapshot.snapshot_id == self._snapshot:
            return []
        self._snapshot = snapshot.snapshot_id
        paths = [task.file.file_path.removeprefix("file:") for task in table.scan().plan_files()]
        new = [path for path in paths if path not in self._seen]
        self._seen.update(new)
        return new

    def keys(self) -> pa.Table:
        """Read partition and offset of all rows."""
        table = self._table()
        assert table is not None
        return table.scan(selected_fields=("partition", "offset")).to_arrow()


def check_exact(reader: TableReader, count: int) -> None:
    """Read the whole table, and check that it has each record once.

    Raises:
        RunFailed: records are missing, or there twice.
    """
    keys = reader.keys()
    partitions = pc.multiply(keys.column("partition").cast(pa.int64()), pa.scalar(_OFFSETS_OF_A_PARTITION))
    distinct = pc.count_distinct(pc.add(partitions, keys.column("offset"))).as_py()
    if (keys.num_rows, distinct) != (count, count):
        raise RunFailed(f"the table has {keys.num_rows} rows of {distinct} records, and the topic {count} records")


@contextmanager
def stores() -> Iterator[list[Store]]:
    """The local disk, and an S3 server where there is one."""
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kohort-bench-lake-")))
        (folder / "disk").mkdir()
        (folder / "s3").mkdir()
        found = [Store(LOCAL_DISK, folder / "disk")]
        try:
            address = running.enter_context(s3_server.running(folder / "s3"))
        except pytest.skip.Exception:  # no server of S3's protocol is installed
            pass
        else:
            found.append(Store(S3, folder / "s3", address))
        yield found
