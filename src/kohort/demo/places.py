"""The places that the region's demo writes to: a sink for those who write, and a reader for those who look.

Another kind of place is a class with these three and a line in `KINDS`; which query writes where is said in the story.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, Self
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from kohort.region import ParquetFolder, Sink
from kohort.region.sinks import Keep
from kohort.region.staged import StagedKey

COLUMNS = ("partition", "offset", "carrier", "origin", "dest", "hour", "dep_delay", "arr_delay")


class Place(Protocol):
    """A place that is written to."""

    def sink(self) -> Sink:
        """For who writes."""

    def offsets(self) -> pa.Table:
        """The columns `partition` and `offset` of all rows that a reader sees now."""

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

    def offsets(self) -> pa.Table:
        """See `Place`."""
        for file in self._files():
            if file.name not in self._read:
                self._read[file.name] = pq.ParquetFile(file).read(columns=list(COLUMNS[:2]))
        return pa.concat_tables([_NO_OFFSETS, *self._read.values()])

    def rows(self) -> pa.Table:
        """See `Place`."""
        return pa.concat_tables([pq.ParquetFile(file).read(columns=list(COLUMNS)) for file in self._files()])

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("sequence=*/*.parquet"))


_NO_OFFSETS = pa.table({"partition": pa.array([], pa.int32()), "offset": pa.array([], pa.int64())})
KINDS: dict[str, Callable[[Path], Place]] = {"parquet": ParquetPlace}
"""Each kind of place, made of the demo's folder."""


class Faltering:
    """A sink that runs out of room whenever a file lies where it looks for one; it takes the file away."""

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
                raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}, as the demo has it", self.place)
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

    def sweep(self, keep: Keep) -> None:
        """See `Sink`."""
        self._sink.sweep(keep)


def omen(folder: Path) -> Path:
    """The file that makes a faltering sink fail once."""
    return folder / "the-disk-is-full"
