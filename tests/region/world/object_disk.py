"""The sink that ships for a Parquet folder in an object store, in a store in memory, beside compactors and readers.

Only Parquet's own encoding is left out: an object with rows has a line for each record.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import pyarrow as pa

from kohort.errors import CorruptDataError
from kohort.region.sinks import compaction
from kohort.region.sinks.availability import AWAY
from kohort.region.sinks.compaction import Generation
from kohort.region.sinks.parquet_objects import ParquetObjects, PublishedSequenceLog, StoreGenerations
from tests.region.volume import Died
from tests.region.world.bucket import Bucket, BucketClient, StoreFaults, WorldStore
from tests.region.world.clock import Clock, ViolatedError
from tests.region.world.disk import Disk, Record, RunningSum, WorldSink, are_equal, lines_of, records_in
from tests.region.world.names import REGION, REGION_ID

Takes = Callable[[Record], bool]


class ObjectDisk(Disk):
    """A prefix of a store, and what has to be there.

    Attributes:
        bucket: the objects.
        partition_by: the columns that partition the rows.
    """

    READABLE: tuple[str, ...] = ("_sequences/", "_data/", "_compacted/")
    """Where a change may change what readers find."""
    LOG: str = "_sequences/"
    """Where a new object may: elsewhere nothing names it yet."""

    def __init__(self, path: str, takes: Takes, faults: StoreFaults, partition_by: tuple[str, ...] = ()) -> None:
        super().__init__(path, takes)
        self.faults, self.partition_by = faults, partition_by
        self._seen: dict[object, object] = {}
        self._found, self._wanted = RunningSum(), RunningSum()
        self._use(self._new_bucket())

    def _new_bucket(self) -> Bucket:
        return Bucket()

    def _use(self, bucket: Bucket) -> None:
        self.bucket = bucket
        bucket.changed = self._changed
        sink = self._sink(None)
        self._store, self._log, self.place = sink._store, sink._log, sink.place

    def _sink(self, faults: StoreFaults | None) -> ObjectFolder:
        return ObjectFolder(self, BucketClient(self.bucket, faults))

    def open_sink(self, may_wait: Callable[[], bool] | None = None) -> ObjectFolder:
        """Return the sink as a new process has it; without `may_wait` each of its requests is answered at once."""
        sink = self._sink(None if may_wait is None else self.faults)
        if may_wait is not None:
            sink.client.may_wait = may_wait
        return sink.bind(REGION, REGION_ID)

    def is_there(self) -> bool:
        """Return whether a member has claimed the folder."""
        return any(path.startswith("_region/region") for path in self.bucket.objects)

    def besides(self, clock: Clock, seed: int, era: Callable[[], object]) -> list[Any]:
        """Return readers; and in two of three worlds a compactor."""
        readers = [Reader(clock, self, seed, era)]
        return readers if seed % 3 == 0 else [Compactor(clock, self, seed, era), *readers]

    def backup(self) -> Bucket:
        """Return a copy of all objects."""
        return self.bucket.copied()

    def restore(self, backup: Bucket) -> None:
        """Be as when the copy was made. A request that is under way goes to the store that was there."""
        self.bucket.changed = lambda path, is_new: None
        self._use(backup.copied())
        self.forget_what_was_seen()
        self.published = min(self.published, self.shows())  # readers may find what the copy has

    def forget_what_was_seen(self) -> None:
        """The store is another one."""
        self._seen.clear()

    def emptied(self) -> None:
        """Nothing of what was void is shown any more."""
        self._seen.clear()
        super().emptied()

    def lose_power(self, chance: random.Random) -> None:
        """The store is elsewhere: nothing is lost."""

    def shown(self) -> set[int]:
        """Return the sequences that are there, by themselves or merged."""
        generation, log = self._generation()
        seen = log._listed()
        merged = {number for number in self._expected() if seen.emptied < number <= generation.upto}
        return merged | {number for number in seen.sequences if number > max(seen.emptied, generation.upto)}

    def check(self) -> None:
        """Whatever a reader finds is a sequence that is complete, and all of it.

        Raises:
            ViolatedError: it is not.
        """
        generation, log = self._generation()
        emptied = log.last_emptied_sequence(generation.upto)
        self._compare_merged(generation, log.last_emptied_sequence(0))
        for entry in log.read_sequence_entries(max(generation.upto, emptied)) or ():
            if not self._looked_at(entry.sequence, tuple(entry.files)):
                wanted = self.wanted.get(entry.sequence, self.void.get(entry.sequence))
                if wanted is None:
                    raise ViolatedError(f"sequence {entry.sequence} is in {self.place} and not complete")
                self._compare_rows(f"sequence {entry.sequence}", entry.files, wanted)

    def _compare_merged(self, generation: Generation, emptied: int) -> None:
        if generation.files and not self._looked_at((generation.attempt, emptied), tuple(generation.files)):
            what = f"generation {generation.generation}, up to {generation.upto}"
            self._compare_all(what, generation.files, emptied, generation.upto)

    def _looked_at(self, what: object, paths: tuple[str, ...]) -> bool:
        """Return whether this was found to be right before, and all its objects are there still."""
        there = tuple(self.bucket.objects.get(path) for path in paths)
        if None in there:
            raise ViolatedError(f"{what} in {self.place} names {paths[there.index(None)]}, which is gone")
        known, self._seen[what] = self._seen.get(what), (paths, there)
        return known == (paths, there)

    def _compare_all(self, what: str, paths: Iterable[str], emptied: int, last: int) -> None:
        """Compare objects with the rows of all sequences after the one that emptied the place, up to the last."""
        wanted = {number: rows for number, rows in self._expected().items() if emptied < number <= last}
        self._compare(what, self._found.of(self._parts(paths)), self._wanted.of(wanted))

    def _compare_rows(self, what: str, paths: Iterable[str], wanted: Counter[Record]) -> None:
        self._compare(what, self.rows_in(paths), wanted)

    def _compare(self, what: str, found: Counter[Record], wanted: Counter[Record]) -> None:
        if not are_equal(found, wanted):
            raise ViolatedError(f"{what} of {self.place}: missing {wanted - found}, too many {found - wanted}")

    def rows_in(self, paths: Iterable[str]) -> Counter[Record]:
        """Return the records in objects.

        Raises:
            ViolatedError: one is gone.
        """
        return Counter(itertools.chain.from_iterable(rows.elements() for rows in self._parts(paths).values()))

    def _parts(self, paths: Iterable[str]) -> dict[int, Counter[Record]]:
        """Return the records in each object, by its place among these; one may be named twice."""
        objects = self.bucket.objects
        try:
            return {number: records_in(objects[path]) for number, path in enumerate(paths)}
        except KeyError as error:
            raise ViolatedError(f"{error} in {self.place} is gone") from None

    def _expected(self) -> dict[int, Counter[Record]]:
        return {**self.void, **self.wanted}

    def _generation(self) -> tuple[Generation, PublishedSequenceLog]:
        return StoreGenerations(self._store, self._log).newest_generation(), self._log

    def _changed(self, path: str, is_new: bool) -> None:
        if path.startswith(self.LOG if is_new else self.READABLE):
            self.check()


class ObjectFolder(WorldSink, ParquetObjects):
    """The folder in a store as one process sees it."""

    def __new__(cls, *_given: object) -> ObjectFolder:
        return object.__new__(cls)

    def __init__(self, disk: ObjectDisk, client: BucketClient) -> None:
        super().__init__(f"s3://world{disk.path}", partition_by=disk.partition_by)
        self.disk, self.client, self.calls = disk, client, client.calls
        self._store = WorldStore(self.path, client)
        self._log = PublishedSequenceLog(self._store)

    def _parquet(self, table: pa.Table) -> bytes:
        return lines_of(table)

    def _put_parts(self, name: str, parts: Mapping[str, pa.Table]) -> None:
        """The rows of each partition, with the column that its folder has the value of."""
        whole = {
            folder: part.append_column("partition", pa.array([int(folder.partition("=")[2])] * part.num_rows))
            for folder, part in parts.items()
        }
        super()._put_parts(name, whole)


GRACE_MS: Final = 10_000
SKEW_MS: Final = 3_000
"""The clocks of two compactors differ by twice this at most; readers need the rest of the grace time."""
READS_MS: Final = 3_000
COMPACTS_MS: Final = 4_000
LOOKS_MS: Final = 2_000


def merge_lines(merge: object, sources: Mapping[str, Callable[[], bytes]], output: Any) -> None:
    """Write the lines of several objects into one, in place of `compaction.merge_files`."""
    del merge
    for content in sources.values():
        output.write(content())


class Compactor:
    """Processes that compact a folder, each once: they fail, die, and may be slower than those after them."""

    def __init__(self, clock: Clock, disk: ObjectDisk, seed: int, era: Callable[[], object]) -> None:
        self._clock, self._disk, self._era = clock, disk, era
        self._chance = random.Random(f"{seed}: compactor of {disk.path}")
        self._faults = StoreFaults(clock, seed, rate=0.1, slow=0.1)
        self.done = 0

    def start(self) -> None:
        """Compact again and again."""
        self._clock.after(self._chance.randint(1, COMPACTS_MS), self._compact)

    def _compact(self) -> None:
        chance, disk = self._chance, self._disk
        self._clock.after(chance.randint(100, COMPACTS_MS), self._compact)
        if not disk.is_there():
            return
        sink = disk.open_sink(self._disk.faults.is_bad)
        if self._disk.faults.is_bad():
            sink.client._faults = self._faults
        if self._disk.faults.is_bad() and chance.random() < 0.3:
            sink.die_after(chance.randint(1, 40), self._disk.faults.is_bad)
        until = None if chance.random() < 0.7 else max(0, disk.shows() - chance.randint(0, 3))
        virtual, era, bucket = SimpleNamespace(time=self._time_s), (self._era(), disk.void), disk.bucket
        try:
            with (
                mock.patch.object(compaction, "merge_files", merge_lines),
                mock.patch.object(compaction, "time", virtual),
            ):
                result = sink.compact(target_file_size=chance.choice((100, 1_000, 10**6)), grace="10s", until=until)
            self.done += result.merged
        except (Died, *AWAY) as error:
            self._clock.log(f"a compactor of {disk.path} ends by {error!r}")
        except CorruptDataError:
            if era == (self._era(), {}) and bucket is disk.bucket:
                raise

    def _time_s(self) -> float:
        """Return what the clock of some machine shows."""
        skew_ms = self._chance.randint(-SKEW_MS, SKEW_MS)
        return (10**9 + self._clock.now_ms + skew_ms) / 1000


class Reader:
    """A reader that takes the list of files, and reads them later: it never sees a part of a sequence."""

    def __init__(self, clock: Clock, disk: ObjectDisk, seed: int, era: Callable[[], object]) -> None:
        self._clock, self._disk, self._chance, self._era = clock, disk, random.Random(f"{seed}: reader"), era
        self.done = 0

    def start(self) -> None:
        """Read again and again."""
        self._clock.after(self._chance.randint(1, LOOKS_MS), self._look)

    def _look(self) -> None:
        disk = self._disk
        self._clock.after(self._chance.randint(LOOKS_MS // 2, 2 * LOOKS_MS), self._look)
        era, bucket, least = self._era(), disk.bucket, disk.published
        if disk.void:
            return
        sink = disk.open_sink(self._disk.faults.is_bad)
        try:
            paths = [file.path.removeprefix(f"{sink.path}/") for file in sink.published_files()]
        except AWAY:
            return
        finally:
            void = era != self._era() or bucket is not disk.bucket
        if void:
            return
        most = max(disk._expected(), default=0)

        def read() -> None:
            if era == self._era() and bucket is disk.bucket:
                self._compare(disk.rows_in(paths), least, most)

        self._clock.after(self._chance.randint(1, READS_MS), read)

    def _compare(self, found: Counter[Record], least: int, most: int) -> None:
        wanted: Counter[Record] = Counter()
        expected = {number: rows for number, rows in self._disk._expected().items() if number <= most}
        self.done += 1
        for number in sorted({0, least, *expected}):
            wanted.update(expected.get(number, ()))
            if number >= min(least, most) and are_equal(found, wanted):
                return
        raise ViolatedError(f"a reader of {self._disk.place} found {found}, which is not the first {least} to {most}")
