"""A reader that polls the places of a story's sinks all the time, as a dashboard or the next job would.

Another kind of place is a class with these three methods and a line in `KINDS`.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from tests.spark.region.history import SequenceStep

from kohort.region import ParquetFolder, Sink, SqlTable

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


LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Look:
    """One reading of a place: the number of rows of each partition, and the sum of their offsets."""

    place: str
    seen: Sums

    @property
    def rows(self) -> int:
        return sum(rows for _, rows, _ in self.seen)


class Watcher:
    """The reader's thread."""

    def __init__(self, places: Mapping[str, SinkPlace]) -> None:
        self._places = places
        self.looks: list[Look] = []
        self.count = 0
        self.error: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        """Read the places until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """End, after a last reading."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                last = self._ended.wait(LOOK_S)
                for name, place in self._places.items():
                    look = Look(name, place.sums())
                    self.count += 1
                    if look not in self.looks[-len(self._places) :]:
                        self.looks.append(look)
                if last:
                    return
        except Exception as error:  # noqa: BLE001 - reported at the end: a reader that can't read is a fault
            self.error = error


def whole(steps: Sequence[SequenceStep], kinds: Mapping[str, str]) -> dict[str, list[Sums]]:
    """Return the valid readings of each place: nothing, or all rows up to some sequence.

    Args:
        steps: the region's sequences.
        kinds: the place of each member.
    """
    so_far: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    found: dict[str, list[Sums]] = {name: [frozenset()] for name in kinds.values()}
    for step in steps:
        for given in step.contributions:
            sums = so_far[kinds[given.member]]
            for span in given.spans:
                rows, total = sums.get(span.partition, (0, 0))
                count = span.end - span.begin
                sums[span.partition] = rows + count, total + (span.begin + span.end - 1) * count // 2
        for name in found:
            found[name].append(frozenset((at, rows, total) for at, (rows, total) in so_far[name].items() if rows))
    return found


def parts_seen(looks: Sequence[Look], steps: Sequence[SequenceStep], kinds: Mapping[str, str]) -> Iterator[str]:
    """Return the invalid readings: a part of a sequence, or fewer rows than before."""
    allowed = whole(steps, kinds)
    before: dict[str, int] = {}
    for look in looks:
        if look.seen not in allowed[look.place]:
            yield f"a reader of {look.place} saw {look.rows:,} rows, which is not what any sequence ends with"
        if look.rows < before.get(look.place, 0):
            yield f"a reader of {look.place} saw {look.rows:,} rows after {before[look.place]:,}"
        before[look.place] = look.rows
