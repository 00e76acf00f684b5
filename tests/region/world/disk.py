"""The folder that a region's members write to: the sink that ships, on a disk in memory.

Only Parquet's own encoding is left out: a file is a line for each record.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import pyarrow as pa

from kohort.region.files import Output
from kohort.region.records import Part
from kohort.region.sinks.parquet_folder import ParquetFolder
from kohort.region.sinks.rows import refused_rows_error
from kohort.region.staged import StagedKey
from tests.region.volume import Calls, Node, Volume
from tests.region.world.clock import Clock, ViolatedError
from tests.region.world.names import REGION, REGION_ID

Record = tuple[int, int]
"""Its partition and offset."""
SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])


class RunningSum:
    """The sum of some counts. A part that was added before costs nothing, if it is the same object still."""

    def __init__(self) -> None:
        self._parts: dict[Hashable, Counter[Record]] = {}
        self._sum: Counter[Record] = Counter()

    def of(self, parts: Mapping[Any, Counter[Record]]) -> Counter[Record]:
        """Return the sum of these parts, which the caller does not change."""
        for key in [key for key, part in self._parts.items() if parts.get(key) is not part]:
            for record, count in self._parts.pop(key).items():
                self._sum[record] -= count
                if not self._sum[record]:
                    del self._sum[record]
        for key, part in parts.items():
            if key not in self._parts:
                self._parts[key] = part
                self._sum.update(part)
        return self._sum


def are_equal(found: Counter[Record], wanted: Counter[Record]) -> bool:
    """Return whether two counts without zeros are the same. The comparison of `Counter` takes ten times as long."""
    return dict.__eq__(found, wanted) is True


class Disk:
    """The disk of one sink, and what has to be on it.

    Attributes:
        takes: the records that the sink can take; the others are refused.
        published: the last sequence that a member has said to be.
        away_until_ms: until then nothing can be staged, as where the disk is full.
        offsets: where each sequence ends, as a snapshot says it.
    """

    def __init__(self, path: str, takes: Callable[[Record], bool] = lambda record: True) -> None:
        self.path, self.place, self.takes = path, f"parquet:{path}", takes
        self.volume = Volume()
        self.published = self.away_until_ms = 0
        self.wanted: dict[int, Counter[Record]] = {}
        self.offsets: dict[int, str] = {}
        self.void: dict[int, Counter[Record]] = {}
        self.staged: set[StagedKey] = set()
        self._whole: dict[int, Node] = {}

    def in_virtual_time(self) -> contextlib.AbstractContextManager[None]:
        """Replace what the sink has of real time and threads, while a world plays."""
        return contextlib.nullcontext()

    def open_sink(self, may_wait: Callable[[], bool] = lambda: False) -> Any:
        """Return the sink as a new process has it, of the world's region.

        Args:
            may_wait: whether a request of this process may take its time now.
        """
        del may_wait
        return Folder(self).bind(REGION, REGION_ID)

    def besides(self, clock: Clock, seed: int, era: Callable[[], object]) -> list[Any]:
        """Return other processes that use the place, such as readers, each with a method `start`."""
        del clock, seed, era
        return []

    def shows(self) -> int:
        """Return the last sequence that anybody finds published."""
        return int(self.open_sink().published())

    def backup(self) -> Any:
        """Return a copy of all that is on the disk."""
        return copy.deepcopy(self.volume)

    def restore(self, backup: Any) -> None:
        """Be as when the copy was made."""
        self.volume = copy.deepcopy(backup)
        self.forget_what_was_seen()

    def complete(self, sequence: int, spans: dict[Part, tuple[int, int]], lost: set[Record]) -> None:
        """A sequence is complete: of each partition it has the records from one offset to before another, once.

        Args:
            sequence: its number.
            spans: the two offsets.
            lost: except these, which the log had lost when they were to be read.
        """
        self.wanted[sequence] = Counter(
            (part.partition, offset)
            for part, (begin, end) in spans.items()
            for offset in range(begin, end)
            if (part.partition, offset) not in lost and self.takes((part.partition, offset))
        )

    def goes_back(self, *, empties: bool) -> None:
        """To the initial state: what is shown is void, and may be shown until the folder is emptied.

        Raises:
            ViolatedError: it will never be.
        """
        self.void |= self.wanted
        if not empties and any(self.void.values()):
            raise ViolatedError(f"what {self.place} shows is void, and will be shown for ever")
        self.wanted.clear()

    def emptied(self) -> None:
        """Nothing of what was void is shown any more.

        Raises:
            ViolatedError: something is.
        """
        self.void.clear()
        self._whole.clear()
        self.check()

    def check(self) -> None:
        """Whatever a reader finds is a sequence that is complete, and all of it.

        Raises:
            ViolatedError: it is not.
        """
        for name, node in self._names().items():
            if name.startswith(("_", ".")):
                continue
            sequence = int(name.removeprefix("sequence="))
            if self._whole.get(sequence) is not node:
                self._compare(sequence, node)
                self._whole[sequence] = node

    def check_published(self, last: int) -> None:
        """All sequences to this one can be read.

        Raises:
            ViolatedError: one can't.
        """
        self.check()
        there = self.shown()
        missing = [sequence for sequence, rows in self.wanted.items() if sequence <= last and rows]
        missing = [sequence for sequence in missing if sequence not in there]
        if missing:
            raise ViolatedError(f"sequences {missing} are not there, though {last} was published")

    def shown(self) -> set[int]:
        """Return the sequences that are there."""
        return {int(name.removeprefix("sequence=")) for name in self._names() if name.startswith("sequence=")}

    def forget_what_was_seen(self) -> None:
        """The disk is another one."""
        self._whole.clear()

    def lose_after(self, last: int) -> None:
        """A person goes on without what is not shown: nobody waits for it any more."""
        there = self.shown()
        self.wanted = {number: rows for number, rows in self.wanted.items() if number <= last and number in there}
        self.published = last

    def lose_power(self, chance: random.Random) -> None:
        """Whatever was not synced may be gone."""
        self.volume.lose_power(chance)
        self._whole.clear()
        self.check()

    def heal(self) -> None:
        """Do at once what would hold others up, for all faults have ended."""

    def settle(self) -> None:
        """Do at once what comes with time, after all processes have ended."""

    def _names(self) -> dict[str, Node]:
        node = (self.volume.root.names or {}).get(self.path.removeprefix("/"))
        return {} if node is None else node.names or {}

    def _compare(self, sequence: int, node: Node) -> None:
        wanted = self.wanted.get(sequence, self.void.get(sequence))
        if wanted is None:
            raise ViolatedError(f"sequence {sequence} is in {self.place} and not complete")
        found: Counter[Record] = Counter()
        for file, data in (node.names or {}).items():
            if not file.startswith("_"):
                found.update(records_in(bytes(data.data)))
        if not are_equal(found, wanted):
            raise ViolatedError(f"sequence {sequence}: missing {wanted - found}, too many {found - wanted}")


class WorldSink:
    """A sink of the world, as one process has it: the parts that are not of its kind.

    Attributes:
        disk: where it writes.
        calls: its calls to that, at each of which it may die, fail or be held.
    """

    disk: Disk
    calls: Calls

    def check_rows(self: Any, table: pa.Table) -> pa.Table:
        bad = [row for row, record in enumerate(records_of(table)) if not self.disk.takes(record)]
        if bad:
            raise refused_rows_error(dict.fromkeys(bad[: 1 + bad[0] % 3], "bad"), table, "offset")
        return super().check_rows(table)

    def stage(self: Any, key: StagedKey, table: pa.Table) -> None:
        super().stage(key, table)
        if key in self.disk.staged:
            raise ViolatedError(f"{key} was staged twice")
        self.disk.staged.add(key)

    def before(self, number: int, do: Callable[[], None], when: Callable[[], bool] = lambda: True) -> None:
        """Do something, once, before the so-manyth call from now, or the first one after it when that holds."""
        first = self.calls.number + number

        def at(now: int, name: str, path: str) -> None:
            del name, path
            if now >= first and when():
                self.calls.at = lambda now, name, path: None
                do()

        self.calls.at = at

    def die_after(self, number: int, when: Callable[[], bool]) -> None:
        """Die when the so-manyth call from now has happened, if that holds then."""
        last = self.calls.number + number

        def after(now: int, name: str, path: str) -> None:
            self._changed(now, name, path)
            if now == last and when():
                self.calls.die()

        self.calls.after = after

    def _changed(self, now: int, name: str, path: str) -> None:
        """Look at what a call has changed."""


class Folder(WorldSink, ParquetFolder):
    """The folder as one process sees it."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.path)
        self.disk, self.calls = disk, Calls(disk.volume)
        self.calls.after = self._changed
        self._files = self.calls

    def _changed(self, now: int, name: str, path: str) -> None:
        del now
        if name == "rename" and not path.startswith(f"{self.disk.path}/_"):
            self.disk.check()

    def _write_file(self, table: pa.Table, output: Output) -> None:
        output.write(lines_of(table))


def lines_of(table: pa.Table) -> bytes:
    """The records of a table, one on each line."""
    return "".join(f"{partition} {offset}\n" for partition, offset in records_of(table)).encode()


@functools.lru_cache(1_000)
def records_in(data: bytes) -> Counter[Record]:
    """The records on the lines of a file: the same object for the same bytes."""
    lines = data.decode().split("\n")[:-1]
    return Counter((int(word), int(other)) for word, other in (line.split() for line in lines))


def records_of(table: pa.Table) -> list[Record]:
    """The records of which rows were made."""
    return list(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))
