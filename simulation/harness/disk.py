"""A journal on a disk: it answers at once or late, fails, dies within a write, passes to others, and is compacted.

The journal is the one that ships, on files in memory. What fails is a file's operation; what is lost is bytes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from kohort.coordinator.driver import Action
from kohort.errors import CorruptDataError, ErrorCode, FencedError
from kohort.groups.records import Record
from kohort.ids import TopicId, TopicPartition
from kohort.journal.local import LogJournal
from kohort.journal.protocol import Owner
from kohort.log import retention
from kohort.log.checkpoints import CLEANED, RECOVERY_POINTS, offsets_file, replace_file
from kohort.log.compaction import Compaction
from kohort.log.config import LogConfig
from kohort.log.files import FileCache
from kohort.log.filesystem import file_exists, read_file
from kohort.log.partition import PartitionLog
from kohort.log.store import StoreCheckpoints, UnreadableLog
from simulation.harness.files import Fault, Files, Volume
from simulation.harness.world import World

READ_RECORDS = 50
"""Records that are read in one piece."""
WAITS = 0.3
"""The probability, with late answers, that a read finds nothing at first, and that an append is answered at once."""
SMALL_APPENDS = (None, None, 600)
"""Bounds on an append's bytes; the last makes what is gathered more than one append."""
UNSURE, FENCED = "does not say whether it wrote", "has been taken over"
FAILURES = (None, None, UNSURE, UNSURE, FENCED)
"""What fails an append; None: the file does, at any byte."""
FLUSHED = 0.5
"""The share of runs that sync every append before it is acknowledged; in those the machine may lose its power."""
POWER_LOSS = 0.5
"""The probability, in those runs, that the process dies because the machine does."""
SEGMENT_BYTES = (1_500, 6_000, 30_000, 4 << 20)
INDEX_BYTES = (100, 1_000, 4_096)
"""Between two entries of an index."""
UPKEEP_MS = 10_000
STEP_MS = 3
"""A compaction's step is followed by the next so much later."""
OPEN_FILES = (2, 3, 50)
FOLDER = Path("/data")
LOGS = ("kohort.log", "kohort.cluster", "kohort.coordinator")
JOURNAL = TopicPartition("__consumer_offsets", 0)
TOPIC_ID = TopicId(int=2**100)


class Lines(logging.Handler):
    """A log handler that adds the lines of the log and the coordinator to the run's trace."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Add one line to the trace."""
        if self._world.tells:
            self._world.log(f"{record.name.removeprefix('kohort.')}: {record.getMessage()}")


@contextlib.contextmanager
def log_lines(world: World) -> Iterator[None]:
    """Send these loggers' lines to this run's trace, and nowhere else, inside the context."""
    logs, lines = [logging.getLogger(name) for name in LOGS], Lines(world)
    known = [log.propagate for log in logs]
    for log in logs:
        log.propagate = False
        log.addHandler(lines)
    try:
        yield
    finally:
        for log, propagates in zip(logs, known, strict=True):
            log.removeHandler(lines)
            log.propagate = propagates


class Disk:
    """The files that a restart would find, and the log in them while a process runs.

    Attributes:
        records: what the log's bytes say, decoded.
        fails: probability that a file's operation fails, and a load.
        tears: probability that the process dies in an append, of which then any number of bytes is there.
        late_ms: up to so long an append takes; 0: it is answered at once.
        tears_after: once, the process dies when so many records were ever written; -1: never.
        loses: it dies in the append that would pass them; otherwise also after one that just reaches them, before
            its replies are out.
        appended: records ever written.
        torn: what the last planned torn write was to hold, and how many of those records are there; None before one.
        flushes: what is acknowledged was synced before.
        compacts: the log is compacted when that is due, and not only when the plan says so.
        log: the journal's, as the process that runs has it open.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.stream("disk")
        shape = world.stream("shape")
        self.append_bytes_max = world.stream("appends").choice(SMALL_APPENDS)
        self.flushes = shape.likely(FLUSHED)
        self.config = LogConfig(
            cleanup_policy=("compact",),
            segment_bytes=shape.choice(SEGMENT_BYTES),
            index_interval_bytes=shape.choice(INDEX_BYTES),
            min_cleanable_dirty_ratio=0.3,
            delete_retention_ms=shape.choice((0, 60_000, 86_400_000)),
            flush_messages=1 if self.flushes else 2**63 - 1,
        )
        self._open_files = shape.choice(OPEN_FILES)
        self.volume = Volume(world, str(FOLDER))
        self.files: Files | None = None
        self.log: PartitionLog | None = None
        self.records: list[Record] = []
        self.fails = 0.0
        self.tears = 0.0
        self.late_ms = 0
        self.tears_after = -1
        self.loses = False
        self.compacts = True
        self.appended = 0
        self.torn: tuple[list[Record], int] | None = None
        self._same_boot = True
        self._power_losses = 0
        self._compaction: Compaction | None = None

    def start(self, die: Callable[[], None]) -> PartitionLog:
        """Open the log in a new process, recovering it. Raises OSError if that fails, or the process died."""
        files = self.files = Files(self.volume, die)
        self.weather()
        points = StoreCheckpoints.read(FOLDER, files)
        options = replace(
            points.of(JOURNAL, same_boot=self._same_boot),
            clean=False,
            files=FileCache(self._open_files, 1, files),
            topic_id=TOPIC_ID,
            epoch_without_folder=self._power_losses,
            persist=self._persist,
        )
        path = FOLDER / str(JOURNAL)
        try:
            log = PartitionLog.open(path, self.config, options, now_ms=self.world.wall_ms)
        except CorruptDataError as error:
            log = UnreadableLog(path, self.config, options, error)
        if not self._same_boot:
            self.volume.sync()
            self._same_boot = True
        self.log = log
        self.world.after(UPKEEP_MS, partial(self._upkeep, log))
        return log

    def _persist(self) -> None:
        """Write the two offset checkpoints that change, as a folder has them without checksums.

        `tests/log/test_power_loss.py` plays each step of a write with checksums. More steps here would move the faults
        of all seeds, also of those that are known to show a rare mutant.
        """
        if self.log is None or self.files is None:
            return
        for name, offset in ((RECOVERY_POINTS, self.log.flushed_offset), (CLEANED, self.log.cleaned_offset)):
            path, data = FOLDER / name, offsets_file({JOURNAL: offset} if offset else {})
            if not file_exists(path, self.files) or read_file(path, self.files) != data:
                replace_file(path, data, fs=self.files)

    def weather(self) -> None:
        """Let the files fail at the configured rate."""
        if self.files is not None:
            self.files.fails, self.files.tears = self.fails, self.tears

    def stop(self) -> None:
        """The process that has the log open dies, perhaps because the machine does."""
        self.log = self._compaction = None
        if self.files is not None:
            self.files.dead = True
            self.files = None
        if self.flushes and self.chance.likely(POWER_LOSS):
            self.world.log("disk: the machine loses its power")
            self.volume.lose_power()
            self._same_boot = False
            self._power_losses += 1

    def plan_death(self, records: Sequence[Record]) -> None:
        """Whether the process dies in this append, which then has been written or not: all of it, or a part."""
        there, after = self.appended + len(records), self.tears_after
        written = after == there and not self.loses
        if self.files is not None and (written or 0 <= after < there):
            self.tears_after = -1
            self.torn = list(records), len(records) if written else 0
            self.files.fault = Fault(61, 1 << 30 if written else self.chance.upto(60))

    # -- upkeep

    def _upkeep(self, log: PartitionLog) -> None:
        """Do the broker's periodic upkeep of a log."""
        if self.log is not log:
            return
        self.world.after(UPKEEP_MS, partial(self._upkeep, log))
        now_ms = self.world.wall_ms
        with contextlib.suppress(OSError):
            log.settle()
            retention.flush_settled(log, now_ms)
            retention.close_for_compaction(log, now_ms)
            if self.compacts and self._compaction is None and (run := Compaction.due(log, now_ms)) is not None:
                self._begin(run, log)
        if self.log is log and self.files is not None:
            with contextlib.suppress(OSError):
                self._persist()

    def compact(self, share: float) -> None:
        """Compact the log, all of it or only what is in closed segments."""
        log = self.log
        if log is None or self._compaction is not None:
            return
        with contextlib.suppress(OSError):
            if share > self.chance.random():
                log.roll()
            self._begin(Compaction(log, self.world.wall_ms), log)

    def _begin(self, run: Compaction, log: PartitionLog) -> None:
        self._compaction = run
        self._step(run, run.steps(), log)

    def _step(self, run: Compaction, steps: Iterator[bool], log: PartitionLog) -> None:
        """One step of a compaction, as long as its process lives."""
        if self.log is not log:
            return
        try:
            next(steps)
        except StopIteration:
            self.world.after(STEP_MS, partial(self._finish, run, log))
        except (OSError, CorruptDataError) as error:
            self.world.log(f"disk: a compaction fails, {error}")
            self._compaction = None
        else:
            self.world.after(STEP_MS, partial(self._step, run, steps, log))

    def _finish(self, run: Compaction, log: PartitionLog) -> None:
        if self.log is not log:
            return
        self._compaction = None
        before = log.size_bytes()
        try:
            run.finish()
        except OSError as error:
            self.world.log(f"disk: a compaction fails at its end, {error}")
        else:
            self.world.log(f"disk: compacted {before} bytes to {log.size_bytes()}")
            self.read_back(log)

    # -- what is there

    def read_back(self, log: PartitionLog) -> None:
        """Decode all of the log again."""
        self.records = [record for records in LogJournal(log).replay() for record in records]


class DiskJournal:
    """The `Journal` of one process on this disk: that of the broker's own log, which here may also answer late."""

    holds_transactions = True
    ownership_proof_ms = None

    def __init__(self, disk: Disk, log: PartitionLog, turn: Callable[[Action], None]) -> None:
        """`turn` gives the process a turn."""
        self.disk = disk
        self.log = log
        self.append_bytes_max = disk.append_bytes_max
        self._turn = turn
        self._journal = LogJournal(log)
        self._world = disk.world
        self._chance = disk.chance
        self._owner: Owner | None = None
        self._term = -1
        self._tokens = 0
        self._on_way: tuple[int, int, Sequence[Record], int] | None = None

    @property
    def next_term(self) -> int:
        """A term that no one had."""
        return self.log.leader_epoch + 1

    def begin(self, term: int, owner: Owner) -> Iterator[Sequence[Record] | None]:
        """Implement `Journal.begin`."""
        self.abandon()
        replay = self._journal.begin(term, owner)
        self._term, self._owner = term, owner
        return self._read(owner, replay)

    def _read(self, owner: Owner, replay: Iterator[Sequence[Record]]) -> Iterator[Sequence[Record] | None]:
        disk = self.disk
        if disk.late_ms and self._chance.likely(WAITS):
            self._world.after(self._chance.upto(disk.late_ms), partial(self._turn, owner.continue_reading))
            yield None
        if disk.fails and self._chance.likely(disk.fails):
            raise OSError(errno.EIO, "Input/output error")
        found: list[Record] = []
        for records in replay:
            found += records
            for at in range(0, len(records), READ_RECORDS):
                yield records[at : at + READ_RECORDS]
        disk.records = found

    def append(self, term: int, records: Sequence[Record], now_ms: int) -> int | None:
        """Implement `Journal.append`."""
        if not self.disk.late_ms or self._chance.likely(WAITS):
            self._write(term, records, now_ms)
            return None
        if term != self.log.leader_epoch:
            raise FencedError(f"term {term} is over", ErrorCode.FENCED_LEADER_EPOCH)
        self._tokens += 1
        self._on_way = self._tokens, term, records, self._world.now_ms
        later = partial(self._turn, partial(self._answer, self._tokens))
        self._world.after(1 + self._chance.upto(self.disk.late_ms), later)
        return self._tokens

    def abandon(self) -> None:
        """Nobody waits for the append on its way any more; it is there or not."""
        if self._on_way is not None:
            (_, term, records, _), self._on_way = self._on_way, None
            if self._chance.likely(0.5):
                with contextlib.suppress(OSError, FencedError):
                    self._append(term, records, self._world.wall_ms)

    def _answer(self, token: int) -> None:
        on_way, owner = self._on_way, self._owner
        if on_way is None or owner is None or on_way[0] != token:
            return
        self._on_way = None
        try:
            self._write(on_way[1], on_way[2], self._world.wall_ms)
        except (OSError, FencedError) as failure:
            owner.lost(failure)
        else:
            owner.durable(token, on_way[3])

    def _write(self, term: int, records: Sequence[Record], now_ms: int) -> None:
        """Write, or fail."""
        disk, chance = self.disk, self._chance
        failure = chance.choice(FAILURES) if disk.fails and chance.likely(disk.fails) else None
        if failure is FENCED:
            self._world.log(f"disk: {failure}, at an append of {len(records)} records")
            with contextlib.suppress(OSError):
                self.log.advance_leader_epoch(self.log.leader_epoch + 1)
        disk.plan_death(records)
        self._append(term, records, now_ms)
        if failure is UNSURE:
            self._world.log(f"disk: {failure}, at an append of {len(records)} records")
            raise OSError(errno.EIO, failure)

    def _append(self, term: int, records: Sequence[Record], now_ms: int) -> None:
        offset = self.log.end_offset
        self._journal.append(term, records, now_ms)
        self._written(records, offset)

    def _written(self, records: Sequence[Record], offset: int) -> None:
        """Read back what was written from an offset on."""
        self.disk.appended += len(records)
        for found in self._journal.replay(offset):
            self.disk.records += found
