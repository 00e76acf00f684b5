"""One shard over a real journal that fails when told to, driven by hand.

Events and turns go in, answers and the journal's state come out.

Nothing here looks into the shard: `Driven` is the only place that knows how one is made and given its turns.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from kohort.broker.driver import LoopDriver
from kohort.broker.metrics import Metrics
from kohort.coordinator.shard import Phase, Shard
from kohort.errors import ErrorCode, InvalidInputError
from kohort.groups.config import GroupConfig
from kohort.groups.effects import BackgroundTask, Push
from kohort.groups.events import Event, GroupSettings, OffsetCommit, OffsetFetch, OffsetToCommit, Topic, TopicImage
from kohort.groups.machine import GroupMachine
from kohort.groups.records import OffsetCommitted, Record
from kohort.ids import TopicPartition
from kohort.journal.local import LogJournal
from kohort.journal.protocol import Owner
from kohort.log import OpenOptions, PartitionLog
from tests.log.making import small

TERM = 1
TOPIC = "t"
IMAGE = TopicImage(1, {TOPIC: Topic(TOPIC, UUID(int=1), 4)})
LONG_S = 60.0
"""Longer than any pause of a shard: what is due by then is done."""


class Turns:
    """A loop whose turns are given by hand, and whose time passes when it is told to.

    Attributes:
        now_s: its time.
    """

    def __init__(self) -> None:
        self._soon: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._later: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        self.now_s = 0.0

    def call_soon(self, call: Callable[..., Any], *args: Any) -> None:
        self._soon.append((call, args))

    def call_later(self, delay_s: float, call: Callable[..., Any], *args: Any) -> Timer:
        timer = Timer(call, args)
        heapq.heappush(self._later, (self.now_s + delay_s, next(self._count), timer))
        return timer

    def turn(self) -> None:
        """The callbacks due in this turn; those added meanwhile run in the next turn."""
        soon, self._soon = self._soon, []
        for call, args in soon:
            call(*args)

    def settle(self) -> None:
        """Turns until there is nothing left to do now."""
        while self._soon:
            self.turn()

    def pass_time(self, seconds: float) -> None:
        """Let time pass with all that becomes due in it."""
        end = self.now_s + seconds
        self.settle()
        while self._later and self._later[0][0] <= end:
            self.now_s, _, timer = heapq.heappop(self._later)
            if not timer.cancelled:
                self._soon.append((timer.call, timer.args))
            self.settle()
        self.now_s = end


class Timer:
    """Something that will be called, unless it is cancelled."""

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.call, self.args = call, args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


Failure = Callable[["FailingJournal", Sequence[Record], int], None]
"""What goes wrong in an append, instead of it or after it."""


def no_space(journal: FailingJournal, records: Sequence[Record], now_ms: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def broken_disk(journal: FailingJournal, records: Sequence[Record], now_ms: int) -> None:
    raise OSError(errno.EIO, "Input/output error")


def short_write(journal: FailingJournal, records: Sequence[Record], now_ms: int) -> None:
    """The kernel takes the first bytes of the append and refuses the rest."""
    with files_up_to(journal.log.active.size + 20):
        journal.real.append(TERM, records, now_ms)


def fenced(journal: FailingJournal, records: Sequence[Record], now_ms: int) -> None:
    """Another coordinator has begun a later term."""
    LogJournal(journal.log).begin_term(TERM + 1)
    journal.real.append(TERM, records, now_ms)
    raise AssertionError("a deposed coordinator has written")


def too_large(journal: FailingJournal, records: Sequence[Record], now_ms: int) -> None:
    raise InvalidInputError("too many bytes of group records in one append", ErrorCode.RECORD_LIST_TOO_LARGE)


def unexpected(journal: FailingJournal, records: Sequence[Record], now_ms: int) -> None:
    raise ZeroDivisionError("a fault in the journal")


def written_all_the_same(journal: FailingJournal, records: Sequence[Record], now_ms: int) -> None:
    """The records are there, but what comes after the write fails, as a flush may."""
    journal.real.append(TERM, records, now_ms)
    raise OSError(errno.EIO, "Input/output error")


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file of this process can grow beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class FailingJournal:
    """A real journal whose appends fail when told to.

    Attributes:
        loads: how often a load has begun.
        appends: the records of each append that was asked for.
        fails: what goes wrong in the appends to come, first to last; None: nothing.
        too_large_for: an append that holds a record of this group is refused as too large, each time.
    """

    holds_transactions = True
    append_bytes_max: int | None = None
    ownership_proof_ms: int | None = None

    def __init__(self, folder: Path) -> None:
        self.log = PartitionLog.open(folder / "__consumer_offsets-0", small(), OpenOptions())
        self.real = LogJournal(self.log)
        self.loads = 0
        self.appends: list[list[Record]] = []
        self.fails: list[Failure | None] = []
        self.unreadable: list[BaseException] = []
        self.too_large_for = ""

    def begin_term(self, term: int, owner: Owner) -> Iterator[Sequence[Record] | None]:
        self.loads += 1
        committed = self.real.begin_term(term)
        if self.unreadable:
            raise self.unreadable.pop(0)
        return committed

    def append(self, term: int, records: Sequence[Record], now_ms: int) -> int | None:
        self.appends.append(list(records))
        if self.too_large_for and any(self.too_large_for in record.key for record in records):
            too_large(self, records, now_ms)
        failure = self.fails.pop(0) if self.fails else None
        if failure is not None:
            failure(self, records, now_ms)
        self.real.append(term, records, now_ms)
        return None


class LateJournal(FailingJournal):
    """One that answers when it is told to, and is read in pieces.

    Attributes:
        owner: who began the newest term.
        on_way: the append that is not answered yet: its token, its records and their time.
        reads_wait: reading finds nothing at first.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.owner: Owner | None = None
        self.on_way: tuple[int, Sequence[Record], int] | None = None
        self.reads_wait = False
        self._tokens = itertools.count(1)

    def begin_term(self, term: int, owner: Owner) -> Iterator[Sequence[Record] | None]:
        self.owner, self.on_way = owner, None
        committed = super().begin_term(term, owner)
        if self.reads_wait:
            yield None
        yield from committed

    def append(self, term: int, records: Sequence[Record], now_ms: int) -> int | None:
        assert self.on_way is None, "two appends on their way"
        if self.too_large_for and any(self.too_large_for in record.key for record in records):
            too_large(self, records, now_ms)
        self.appends.append(list(records))
        self.on_way = next(self._tokens), records, now_ms
        return self.on_way[0]

    def answer(self) -> None:
        """The append on its way is durable."""
        assert self.owner is not None
        assert self.on_way is not None
        (token, records, now_ms), self.on_way = self.on_way, None
        self.real.append(TERM, records, now_ms)
        self.owner.on_append_durable(token, 0)

    def lose(self, reason: Exception, *, written: bool = False) -> None:
        """Lose the acknowledgement: whether the append reached the journal stays unknown."""
        assert self.owner is not None
        assert self.on_way is not None
        (_, records, now_ms), self.on_way = self.on_way, None
        if written:
            self.real.append(TERM, records, now_ms)
        self.owner.on_journal_lost(reason)


class Driven:
    """A shard, its journal, and what it answered."""

    def __init__(self, folder: Path, journal: FailingJournal | None = None) -> None:
        self.journal = journal or FailingJournal(folder)
        self.turns = Turns()
        self.answers: dict[int, list[Any]] = {}
        self.answered: list[int] = []
        self.unseen: list[str] = []
        self.not_noted: list[OSError] = []
        self.settings_asked = 0
        self.ended: list[tuple[int, Phase, Exception]] = []
        self.notes: list[Any] = []
        self._numbers = itertools.count(1)
        self.metrics = Metrics()
        self.image = IMAGE
        self.driver = LoopDriver(self.turns, self)  # type: ignore[arg-type]
        self.shard = self.make(0, TERM)

    def make(self, index: int, term: int) -> Shard:
        """A shard over the journal, for a term."""
        return Shard(index, self.journal, term, GroupConfig(), self.driver)

    # -- what a shard needs of the broker

    def topic_image(self) -> TopicImage:
        return self.image

    def topics_since_load(self, index: int) -> list[str]:
        return self.unseen

    def handle_shard_loaded(self, index: int) -> None:
        if self.not_noted:
            raise self.not_noted.pop(0)
        self.unseen = []

    def group_settings_of_shard(self, index: int) -> dict[str, GroupSettings]:
        self.settings_asked += 1
        return {}

    def handle_shard_ended(self, index: int, error: Exception) -> None:
        self.ended.append((index, self.shard.phase, error))

    def run_background_task(self, work: BackgroundTask, done: Callable[[Event], None]) -> None:
        raise AssertionError("no work in these tests")

    def send_to_push_consumer(self, push: Push) -> None:
        raise AssertionError("nothing is pushed in these tests")

    def record_metric(self, note: Any) -> None:
        self.notes.append(note)

    # -- driving

    def load(self) -> None:
        """Load, and do what follows at once."""
        self.shard.start_loading()
        self.turns.settle()

    def ask(self, make: Callable[[int], Any]) -> int:
        """Hand in a request's event; returns its number."""
        number = next(self._numbers)
        answers = self.answers[number] = []

        def answered(value: Any) -> None:
            answers.append(value)
            self.answered.append(number)

        self.shard.ask(make(number), answered)
        return number

    def commit(self, group: str, offset: int) -> int:
        """Ask for a commit by someone who assigns partitions to itself."""
        return self.ask(lambda number: OffsetCommit(number, group, "", -1, (OffsetToCommit(TOPIC, 0, offset),)))

    def fetch(self, group: str) -> int:
        """Ask for what is committed."""
        return self.ask(lambda number: OffsetFetch(number, group, (TopicPartition(TOPIC, 0),)))

    def answer(self, number: int) -> Any:
        """The one answer to a request: a code, or of a commit its error, of a fetch its offset."""
        (value,) = self.answers[number]
        if isinstance(value, ErrorCode):
            return value
        return value.errors[0] if hasattr(value, "errors") else value.offsets[0].offset

    def each_answered_once(self) -> bool:
        """Whether every request so far has exactly one answer."""
        return all(len(answers) == 1 for answers in self.answers.values())

    # -- what is durable

    def written(self) -> dict[str, int]:
        """The offset of each group as another coordinator would find it in the files."""
        again = PartitionLog.open(self.journal.log.path, self.journal.log.config, OpenOptions(clean=False))
        machine = GroupMachine(GroupConfig())
        for records in LogJournal(again).replay():
            for record in records:
                machine.apply(record)
        return {record.group_id: record.offset for record in machine.snapshot() if isinstance(record, OffsetCommitted)}
