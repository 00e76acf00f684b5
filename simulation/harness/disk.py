"""A journal on a simulated disk: late answers, write errors, crashes within a write, takeovers, compaction.

The journal is the released one, on files in memory. Faults hit single file operations, and losses single bytes.
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
from kohort.log.checkpoints import CLEANED, RECOVERY_POINTS, encode_offset_checkpoint, replace_file
from kohort.log.compaction import Compaction
from kohort.log.config import LogConfig
from kohort.log.files import FileCache
from kohort.log.filesystem import file_exists, read_file
from kohort.log.partition import PartitionLog
from kohort.log.store import StoreCheckpoints, UnreadableLog
from simulation.harness.files import Fault, Files, Volume
from simulation.harness.world import World

READ_RECORDS = 50
"""The number of records that are read at once."""
WAITS = 0.3
"""The probability, with late answers, that a read returns nothing at first, and that an append is answered at once."""
SMALL_APPENDS = (None, None, 600)
"""Bounds on an append's bytes; the last splits the gathered records into more than one append."""
UNSURE, FENCED = "does not say whether it wrote", "has been taken over"
FAILURES = (None, None, UNSURE, UNSURE, FENCED)
"""Reasons why an append fails; None: a file operation fails, at any byte."""
FLUSHED = 0.5
"""The share of runs that sync every append before it is acknowledged; in those the machine may lose its power."""
POWER_LOSS = 0.5
"""The probability, in those runs, that a crash is one of the whole machine."""
SEGMENT_BYTES = (1_500, 6_000, 30_000, 4 << 20)
INDEX_BYTES = (100, 1_000, 4_096)
"""The number of bytes between two entries of an index."""
UPKEEP_MS = 10_000
STEP_MS = 3
"""The delay between two steps of a compaction."""
OPEN_FILES = (2, 3, 50)
FOLDER = Path("/data")
LOGS = ("kohort.log", "kohort.cluster", "kohort.coordinator")
JOURNAL = TopicPartition("__consumer_offsets", 0)
TOPIC_ID = TopicId(int=2**100)


class TraceHandler(logging.Handler):
    """A log handler that adds the log lines of the journal and the coordinator to the run's trace."""

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
    logs, lines = [logging.getLogger(name) for name in LOGS], TraceHandler(world)
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
    """The disk's files, which a restart finds, and the open log while a process runs.

    Attributes:
        records: the log's records, decoded.
        fails: probability that a file operation, or a load, fails.
        tears: probability of a crash within an append, which then leaves any number of its bytes.
        late_ms: the maximum delay of an append; 0: it is answered at once.
        tears_after: crash once, when this number of records has been written in total; -1: never.
        loses: at `tears_after`, crash in the append that would exceed it; otherwise also after one that just reaches
            it, before its replies are sent.
        appended: the total number of records written.
        torn: the intended records of the last planned torn write, and how many of them are on disk; None before one.
        flushes: whether each append was synced before it was acknowledged.
        compacts: whether the log is compacted when that is due, and not only in planned steps.
        log: the journal's open log in the current process.
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
        """Open the log in a new process, recovering it. Raises OSError if that fails, or if the process crashed."""
        files = self.files = Files(self.volume, die)
        self.apply_fault_rates()
        points = StoreCheckpoints.read(FOLDER, files)
        options = replace(
            points.log_open_options(JOURNAL, same_boot=self._same_boot),
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
        """Write the two offset checkpoints that change, in the format without checksums.

        `tests/log/test_power_loss.py` plays each step of a write with checksums. More steps here would move the faults
        of all seeds, also of those that are known to show a rare mutant.
        """
        if self.log is None or self.files is None:
            return
        for name, offset in ((RECOVERY_POINTS, self.log.flushed_offset), (CLEANED, self.log.cleaned_offset)):
            path, data = FOLDER / name, encode_offset_checkpoint({JOURNAL: offset} if offset else {})
            if not file_exists(path, self.files) or read_file(path, self.files) != data:
                replace_file(path, data, fs=self.files)

    def apply_fault_rates(self) -> None:
        """Let the files fail at the configured rate."""
        if self.files is not None:
            self.files.fails, self.files.tears = self.fails, self.tears

    def stop(self) -> None:
        """End the process that has the log open, perhaps with a crash of the machine."""
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
        """Decide whether the process crashes in this append, and how much of the append is on disk then."""
        there, after = self.appended + len(records), self.tears_after
        written = after == there and not self.loses
        if self.files is not None and (written or 0 <= after < there):
            self.tears_after = -1
            self.torn = list(records), len(records) if written else 0
            self.files.fault = Fault(61, 1 << 30 if written else self.chance.upto(60))

    # -- upkeep

    def _upkeep(self, log: PartitionLog) -> None:
        """Do the broker's periodic maintenance of a log."""
        if self.log is not log:
            return
        self.world.after(UPKEEP_MS, partial(self._upkeep, log))
        now_ms = self.world.wall_ms
        with contextlib.suppress(OSError):
            log.finish_interrupted_change()
            retention.flush_idle_segments(log, now_ms)
            retention.roll_for_compaction(log, now_ms)
            if (
                self.compacts
                and self._compaction is None
                and (run := Compaction.compaction_if_due(log, now_ms)) is not None
            ):
                self._begin(run, log)
        if self.log is log and self.files is not None:
            with contextlib.suppress(OSError):
                self._persist()

    def compact(self, share: float) -> None:
        """Compact the log, including or excluding its active segment."""
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
        """Do one step of a compaction while its process lives."""
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
        """Decode the whole log again."""
        self.records = [record for records in LogJournal(log).replay() for record in records]


class DiskJournal:
    """The `Journal` of one process on this disk: the broker's own log, which may answer late here."""

    holds_transactions = True
    ownership_proof_ms = None

    def __init__(self, disk: Disk, log: PartitionLog, turn: Callable[[Action], None]) -> None:
        """`turn` runs a function as one turn of the process."""
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
        """Return a term that no owner has had."""
        return self.log.leader_epoch + 1

    def begin_term(self, term: int, owner: Owner) -> Iterator[Sequence[Record] | None]:
        """Implement `Journal.begin_term`."""
        self.abandon()
        replay = self._journal.begin_term(term, owner)
        self._term, self._owner = term, owner
        return self._read(owner, replay)

    def _read(self, owner: Owner, replay: Iterator[Sequence[Record]]) -> Iterator[Sequence[Record] | None]:
        disk = self.disk
        if disk.late_ms and self._chance.likely(WAITS):
            self._world.after(self._chance.upto(disk.late_ms), partial(self._turn, owner.on_records_available))
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
        """Forget the pending append: it may or may not be on disk."""
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
            owner.on_journal_lost(failure)
        else:
            owner.on_append_durable(token, on_way[3])

    def _write(self, term: int, records: Sequence[Record], now_ms: int) -> None:
        """Write the records, or fail."""
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
        """Read back the records written from an offset on."""
        self.disk.appended += len(records)
        for found in self._journal.replay(offset):
            self.disk.records += found
