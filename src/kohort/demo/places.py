"""The places that the region's demo writes to: a sink for those who write, and a reader for those who look.

Another kind of place is a class with these three and a line in `KINDS`; which query writes where is said in the story.
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
"""Of each partition with rows, how many there are and the sum of their offsets."""


class Place(Protocol):
    """A place that is written to."""

    def sink(self) -> Sink:
        """For who writes."""

    def sums(self) -> Sums:
        """Of all rows that a reader sees now."""

    def rows(self) -> pa.Table:
        """All rows, with all `COLUMNS`, read anew."""


class ParquetPlace:
    """A folder of Parquet files. Files never change, so a reader that looks all the time reads each of them once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "parquet"
        self._read: dict[str, pa.Table] = {}

    def sink(self) -> Sink:
        """See `Place`."""
        return ParquetFolder(self._folder)

    def sums(self) -> Sums:
        """See `Place`."""
        for file in self._files():
            if file.name not in self._read:
                self._read[file.name] = pq.ParquetFile(file).read(columns=list(COLUMNS[:2]))
        return summed(pa.concat_tables(self._read.values())) if self._read else frozenset()

    def rows(self) -> pa.Table:
        """See `Place`."""
        tables = [pq.ParquetFile(file).read(columns=list(COLUMNS)) for file in self._files()]
        return pa.concat_tables(tables) if tables else EMPTY

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("sequence=*/*.parquet"))


class DeltaPlace:
    """A Delta table."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "delta"

    def sink(self) -> Sink:
        """See `Place`."""
        from kohort.region import DeltaTable  # an extra of its own

        return DeltaTable(self._folder)

    def sums(self) -> Sums:
        """See `Place`."""
        return summed(self._table(COLUMNS[:2]))

    def rows(self) -> pa.Table:
        """See `Place`."""
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
        """See `Place`."""
        return SqlTable(f"sqlite:///{self._file}", "flights")

    def sums(self) -> Sums:
        """See `Place`."""
        found = self._ask('SELECT "partition", count(*), sum("offset") FROM flights GROUP BY 1')
        return frozenset((partition, rows, total) for partition, rows, total in found)

    def rows(self) -> pa.Table:
        """See `Place`."""
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
"""No rows, as they are written."""
KINDS: dict[str, Callable[[Path], Place]] = {"parquet": ParquetPlace, "delta": DeltaPlace, "sqlite": SqlitePlace}
"""Each kind of place, made of the demo's folder."""


def summed(offsets: pa.Table) -> Sums:
    """Of rows with `partition` and `offset`."""
    found = offsets.group_by("partition").aggregate([("offset", "count"), ("offset", "sum")]).to_pylist()
    return frozenset((row["partition"], row["offset_count"], row["offset_sum"]) for row in found)


class Faltering:
    """A sink that loses its rights whenever a file lies where it looks for one; it takes the file away.

    A full disk would not do: the region waits for it, and nobody goes back.
    """

    def __init__(self, sink: Sink, omen: Path) -> None:
        self._sink, self._omen = sink, omen

    @property
    def place(self) -> str:
        """See `Sink`."""
        return self._sink.place

    def bind(self, region: str, region_id: UUID) -> Self:
        """See `Sink`."""
        return type(self)(self._sink.bind(region, region_id), self._omen)

    def check(self, schema: pa.Schema) -> None:
        """See `Sink`."""
        self._sink.check(schema)

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        """See `Sink`."""
        with contextlib.suppress(FileNotFoundError):
            if table.num_rows:
                self._omen.unlink()
                raise PermissionError(errno.EACCES, f"{os.strerror(errno.EACCES)}, as the demo has it", self.place)
        self._sink.stage(key, table)

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        """See `Sink`."""
        self._sink.publish(sequence, keys)

    def empty(self, sequence: int, floor: int) -> None:
        """See `Sink`."""
        self._sink.empty(sequence, floor)

    def published(self) -> int:
        """See `Sink`."""
        return self._sink.published()

    def adopt(self) -> str:
        """Take this sink's name for the place: see `Sink`."""
        return self._sink.adopt()

    def sweep(self, keep: Keep) -> None:
        """See `Sink`."""
        self._sink.sweep(keep)


def omen(folder: Path) -> Path:
    """The file that makes a faltering sink fail once."""
    return folder / "the-rights-are-gone"
