"""The places that the region's demo writes to: each has a sink for a query, and methods for a reader.

Another kind of place is a class with these three methods and a line in `KINDS`. `region_story` assigns queries to
places.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, Self
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from kohort.region import ParquetFolder, Sink, SqlTable
from kohort.region.sinks import Keep
from kohort.region.staged import StagedKey

COLUMNS = ("partition", "offset", "carrier", "origin", "dest", "hour", "dep_delay", "arr_delay")


Sums = frozenset[tuple[int, int, int]]
"""For each partition with rows: the partition, the number of rows, and the sum of their offsets."""


class SinkPlace(Protocol):
    """A place that a query writes to and a reader reads from."""

    def sink(self) -> Sink:
        """Return a sink that writes to the place."""

    def sums(self) -> Sums:
        """Return the sums of all rows that a reader sees now."""

    def rows(self) -> pa.Table:
        """Read all rows, with all `COLUMNS`."""


class ParquetPlace:
    """A folder of Parquet files. Files never change, so a reader that polls reads each of them once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "parquet"
        self._read: dict[str, pa.Table] = {}

    def sink(self) -> Sink:
        """Return a Parquet sink on the folder."""
        return ParquetFolder(self._folder)

    def sums(self) -> Sums:
        """Return the sums of all rows, from new files and from those read before."""
        for file in self._files():
            if file.name not in self._read:
                self._read[file.name] = pq.ParquetFile(file).read(columns=list(COLUMNS[:2]))
        return summed(pa.concat_tables(self._read.values())) if self._read else frozenset()

    def rows(self) -> pa.Table:
        """Read all rows of all files."""
        tables = [pq.ParquetFile(file).read(columns=list(COLUMNS)) for file in self._files()]
        return pa.concat_tables(tables) if tables else EMPTY

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("sequence=*/*.parquet"))


class DeltaPlace:
    """A Delta table."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "delta"

    def sink(self) -> Sink:
        """Return a Delta sink on the table."""
        from kohort.region import DeltaTable  # an extra of its own

        return DeltaTable(self._folder)

    def sums(self) -> Sums:
        """Return the sums of the table's rows."""
        return summed(self._table(COLUMNS[:2]))

    def rows(self) -> pa.Table:
        """Read all rows of the table."""
        return self._table(COLUMNS)

    def _table(self, columns: Sequence[str]) -> pa.Table:
        import deltalake

        if not deltalake.DeltaTable.is_deltatable(str(self._folder)):
            return EMPTY.select(list(columns))
        return deltalake.DeltaTable(self._folder).to_pyarrow_table(columns=list(columns))


class SqlitePlace:
    """A table of an SQLite database."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "flights.db"

    def sink(self) -> Sink:
        """Return an SQL sink on the table."""
        return SqlTable(f"sqlite:///{self._file}", "flights")

    def sums(self) -> Sums:
        """Return the sums of the table's rows, computed by SQLite."""
        sums = self._ask('SELECT "partition", count(*), sum("offset") FROM flights GROUP BY 1')
        return frozenset((partition, rows, total) for partition, rows, total in sums)

    def rows(self) -> pa.Table:
        """Read all rows of the table."""
        quoted = ", ".join(f'"{name}"' for name in COLUMNS)
        found = self._ask(f"SELECT {quoted} FROM flights")
        columns = {name: [row[number] for row in found] for number, name in enumerate(COLUMNS)}
        return pa.table(columns, EMPTY.schema)

    def _ask(self, question: str) -> list[tuple[Any, ...]]:
        if not self._file.exists():
            return []
        with contextlib.closing(sqlite3.connect(self._file, timeout=30)) as database:
            made = database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'flights'").fetchone()
            return database.execute(question).fetchall() if made[0] else []


EMPTY = pa.table(
    {
        name: pa.array([], pa.string() if name in ("carrier", "origin", "dest") else kind)
        for name, kind in zip(COLUMNS, [pa.int32(), pa.int64(), *[pa.int32()] * 6], strict=True)
    }
)
"""A table without rows, with the schema of the written rows."""
KINDS: dict[str, Callable[[Path], SinkPlace]] = {"parquet": ParquetPlace, "delta": DeltaPlace, "sqlite": SqlitePlace}
"""The kinds of places, each with a function that creates one in the demo's folder."""


def summed(offsets: pa.Table) -> Sums:
    """Return the sums of rows with `partition` and `offset`."""
    sums = offsets.group_by("partition").aggregate([("offset", "count"), ("offset", "sum")]).to_pylist()
    return frozenset((row["partition"], row["offset_count"], row["offset_sum"]) for row in sums)


class Faltering:
    """A sink that fails once with a missing permission whenever a marker file exists; it deletes the file.

    A full disk would not do: the region waits for free space instead of a reset.
    """

    def __init__(self, sink: Sink, omen: Path) -> None:
        self._sink, self._omen = sink, omen

    @property
    def place(self) -> str:
        """The name of the wrapped sink's place."""
        return self._sink.place

    def bind(self, region: str, region_id: UUID) -> Self:
        """Bind the wrapped sink to a region."""
        return type(self)(self._sink.bind(region, region_id), self._omen)

    def check(self, schema: pa.Schema) -> None:
        """Check the schema with the wrapped sink."""
        self._sink.check(schema)

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        """Stage rows, or fail once if the marker file exists."""
        with contextlib.suppress(FileNotFoundError):
            if table.num_rows:
                self._omen.unlink()
                raise PermissionError(errno.EACCES, f"{os.strerror(errno.EACCES)}, as the demo has it", self.place)
        self._sink.stage(key, table)

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        """Publish a sequence with the wrapped sink."""
        self._sink.publish(sequence, keys)

    def empty(self, sequence: int, floor: int) -> None:
        """Empty the wrapped sink."""
        self._sink.empty(sequence, floor)

    def published(self) -> int:
        """Return the last sequence that the wrapped sink has published."""
        return self._sink.published()

    def adopt(self) -> str:
        """Adopt the place under this sink's name, and return what the wrapped sink returns."""
        return self._sink.adopt()

    def sweep(self, keep: Keep) -> None:
        """Delete staged rows that are not needed any more, with the wrapped sink."""
        self._sink.sweep(keep)


def omen(folder: Path) -> Path:
    """The file that makes a faltering sink fail once."""
    return folder / "the-rights-are-gone"
