"""The table of a trial, and its reader, which no writer uses: DuckDB for Iceberg, delta-rs for Delta."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import deltalake
import duckdb
import duckdb_extensions  # type: ignore[import-untyped]
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField
from sqlalchemy.exc import OperationalError

from frameworks.framework import INPUT

CATALOG = "default"
NAMESPACE, NAME = "air", "numbers"
APPEND_EVERY_S = 3.0
COMPACT_EVERY = 5
FOREIGN_ROWS = 10


@dataclass(frozen=True, slots=True)
class Look:
    """Rows that a reader saw in a snapshot, beside the offsets that the snapshot names.

    Attributes:
        offsets: the next offset of each partition, as the newest snapshot of a region says.
        rows: number of rows of the topic's numbers.
        total: the sum of these numbers.
    """

    offsets: Mapping[int, int]
    rows: int
    total: int


class NumbersTable(Protocol):
    """A table of one column, `number`. Negative numbers are those of other writers.

    Attributes:
        looks: what was read, where the table says how far it reaches.
    """

    looks: list[Look]

    def count_snapshots(self) -> int:
        """Return the number of snapshots; 0: there is no table yet."""

    def read(self) -> Counter[int]:
        """Return how often each number is in the table."""

    def close(self) -> None: ...


class IcebergNumbers:
    """An Iceberg table in a folder with its SQLite catalog.

    Args:
        folder: an empty folder of the trial.
    """

    def __init__(self, folder: Path) -> None:
        self.looks: list[Look] = []
        self.warehouse = folder / "lake"
        self.catalog_file = self.warehouse / "catalog.db"
        self._duckdb = duckdb.connect(config={"extension_directory": str(folder / "extensions"), "threads": 1})
        for name in ("avro", "iceberg"):
            duckdb_extensions.import_extension(name, con=self._duckdb)
            self._duckdb.execute(f"LOAD {name}")

    @cached_property
    def _catalog(self) -> SqlCatalog:
        return SqlCatalog(CATALOG, uri=f"sqlite:///{self.catalog_file}", warehouse=f"file://{self.warehouse}")

    def create(self) -> None:
        """Create the catalog and the table, for a writer that does not."""
        self.warehouse.mkdir()
        self._catalog.create_namespace(NAMESPACE)
        self._catalog.create_table((NAMESPACE, NAME), Schema(NestedField(1, "number", LongType(), required=False)))

    def load(self) -> Table | None:
        """Return the table as it is now; None: there is none yet."""
        if "_catalog" not in self.__dict__ and not self._is_created():
            return None
        try:
            return self._catalog.load_table((NAMESPACE, NAME))
        except NoSuchTableError:
            return None

    def _is_created(self) -> bool:
        """Return whether the writer has created the catalog: pyiceberg would create it at the same time."""
        if not self.catalog_file.exists():
            return False
        with closing(sqlite3.connect(self.catalog_file)) as catalog:
            names = {name for (name,) in catalog.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        return names >= {"iceberg_tables", "iceberg_namespace_properties"}

    def count_snapshots(self) -> int:
        """Return the number of snapshots; 0: there is no table yet."""
        table = self.load()
        return 0 if table is None else len(table.snapshots())

    def read(self) -> Counter[int]:
        """Return how often each number is in the table."""
        table = self.load()
        if table is None or table.current_snapshot() is None:
            return Counter()
        scan = f"iceberg_scan('{table.metadata_location.removeprefix('file://')}')"
        found = dict(self._duckdb.execute(f"SELECT number, count(*) FROM {scan} GROUP BY number").fetchall())
        own = {number: count for number, count in found.items() if number >= 0}
        if offsets := offsets_of(table):
            self.looks.append(Look(offsets, sum(own.values()), sum(number * count for number, count in own.items())))
        return Counter(found)

    def close(self) -> None:
        self._duckdb.close()
        if "_catalog" in self.__dict__:
            self._catalog.close()


def offsets_of(table: Table) -> dict[int, int]:
    """Return where the newest snapshot of a region ends, by partition; empty: there is none."""
    for snapshot in reversed(table.snapshots()):
        text = None if snapshot.summary is None else snapshot.summary.additional_properties.get("kohort.offsets")
        if text:
            (topics,) = json.loads(text).values()
            return {int(partition): offset for partition, offset in topics.get(INPUT, {}).items()}
    return {}


class OtherWriters:
    """A thread that appends rows of its own to an Iceberg table, and writes all files anew now and then.

    Attributes:
        tried: how many rows it has tried to append: the numbers -1, -2, …
        appended: the numbers that it knows to be in the table.
        compactions: how many times it has written all files anew.
    """

    def __init__(self, folder: Path) -> None:
        self.tried = self.compactions = 0
        self.appended: set[int] = set()
        self._folder = folder
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        numbers, rounds = IcebergNumbers(self._folder), 0
        while not self._stopped.wait(APPEND_EVERY_S):
            table = numbers.load()
            if table is None:
                continue
            rounds += 1
            with suppress(CommitFailedException, OperationalError):
                if rounds % COMPACT_EVERY:
                    self._append(table)
                else:
                    table.metadata.properties["commit.retry.num-retries"] = "0"  # of this object: it would drop rows
                    table.overwrite(table.scan().to_arrow())
                    self.compactions += 1
        numbers.close()

    def _append(self, table: Table) -> None:
        rows = [-1 - number for number in range(self.tried, self.tried + FOREIGN_ROWS)]
        self.tried += FOREIGN_ROWS
        table.append(pa.table({"number": pa.array(rows, pa.int64())}))
        self.appended |= set(rows)

    def stop(self) -> None:
        """Write no more."""
        self._stopped.set()
        self._thread.join()


class DeltaNumbers:
    """A Delta table in a folder."""

    def __init__(self, folder: Path) -> None:
        self.looks: list[Look] = []
        self.folder = folder / "lake"

    def _load(self) -> deltalake.DeltaTable | None:
        path = f"{self.folder}/table"
        return deltalake.DeltaTable(path) if deltalake.DeltaTable.is_deltatable(path) else None

    def count_snapshots(self) -> int:
        """Return the number of versions; 0: there is no table yet."""
        table = self._load()
        return 0 if table is None else table.version() + 1

    def read(self) -> Counter[int]:
        """Return how often each number is in the table."""
        table = self._load()
        column = [] if table is None else table.to_pyarrow_table().column("number").to_pylist()
        return Counter(number for number in column if number is not None)

    def close(self) -> None: ...
