"""One query of a region as Spark runs it: started from a checkpoint folder of its own, stopped, and started anew.

A run begins when all of the query's members work, and ends when one of them goes back: whatever it did since the last
complete sequence is void, and the next run goes on from a fresh folder that is derived from that sequence's. So the
start of an application and a reset are one path. What the query has staged since, and where its partitions end, is
contributed by its members; the first of them, the lead, brings the keys and the query's own state.
"""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from kohort.errors import InvalidInputError, KafkaError, TimedOutError
from kohort.ids import TopicPartition
from kohort.region.member import events as happens
from kohort.region.messages import Cut
from kohort.region.records import Position
from kohort.region.sinks.dead_letters import LetterLog
from kohort.region.staged import Staged
from kohort.spark.region.checkpoint_logs import find_source, last_batch, last_planned, offsets_of
from kohort.spark.region.folders import derive, epoch_folder, forget
from kohort.spark.region.handing import RunSeat
from kohort.spark.region.query_factory import BuiltQuery
from kohort.spark.region.query_state import SavedQuery, refuse_other
from kohort.spark.region.query_thread import QueryThread
from kohort.spark.region.sessions import SEATS
from kohort.spark.region.staging import QueryOutput, StagedBatches, StagingTask, stage_batch
from kohort.spark.source.batch_offset import BatchOffset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


# -- Whether a query that fails again and again gets anywhere: going back mends a full disk, and no wrong code

Where = frozenset[tuple[int, str, int, int]]
"""From where a batch reads: number of the source, topic, partition, offset."""
IN_A_ROW_MAX = 5


class Failures:
    """Of one query, while its application lives; for one thread.

    Sequences that are complete in between say nothing: others make them, and so does a query that has only begun. What
    counts is whether a failed batch begins where an earlier one did.
    """

    def __init__(self) -> None:
        self.last: BaseException | None = None
        self.in_a_row = 0
        self._where: Where = frozenset()

    def another(self, error: BaseException, where: Where) -> bool:
        """Note a failure of a batch that reads from there; gives whether it is one too many."""
        moved = bool(where) and bool(self._where) and not where & self._where
        self.in_a_row = 1 if moved else self.in_a_row + 1
        self.last, self._where = error, where or self._where
        return self.in_a_row >= IN_A_ROW_MAX


log = logging.getLogger("kohort.spark")

LEAD = 0
STOP_S = 30.0
"""How long a run may take to end; then the application must."""
LOOK_S = 0.2
"""How often a run is looked at: whether it has failed, and how far ahead it is."""
RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception): ")
"""How Python tells of an exception, at the end of its traceback."""
SLOW, SLOW_MOST = "failed to connect back", 40
"""Spark's word for a Python process that was not up within its ten seconds, as happens on a busy machine; so often it
is tried again."""
UNPLANNED_MOST = 5
"""So many runs in a row may end before they have planned a batch."""
STOPPED = "the query {} was stopped: stop its region instead"
ALONE_S = 2.0
"""A query goes back as a whole: whose other member does not in this time has all go back."""


@dataclass(slots=True)
class _Run:
    """One run.

    Attributes:
        began: the last batch that its folder began with; None: it began anew.
        seats: its sources' seats by their ids; who asks under an earlier run's is refused.
    """

    epoch: int
    folder: str
    began: int | None
    staged: StagedBatches
    query: StreamingQuery
    seats: dict[str, RunSeat]


@dataclass(slots=True)
class _Wanted:
    """What the members have said since the last run began, by their numbers.

    Attributes:
        epochs: in which each is to begin.
    """

    epochs: dict[int, int] = field(default_factory=dict)
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _AtCut:
    """What the query contributes to a cut: settled once, for all of its members.

    Attributes:
        cut: with its control plane's term: another one counts its cuts anew.
        run: whose; None: none runs, and nothing has happened since the last sequence.
        last: the last batch that counts.
        ends: by member. All are told at once: the run may be stopped before the next member contributes.
    """

    cut: tuple[int, Cut]
    run: _Run | None
    last: int | None
    ends: tuple[dict[TopicPartition, Position], ...]


@dataclass(frozen=True, slots=True)
class _Given:
    """What was contributed last and is in no complete sequence yet."""

    saved: SavedQuery
    state: bytes
    run: _Run


class RegionQuery:
    """See the module's text. A thread of its own starts and stops runs; members' threads only say what they want."""

    def __init__(
        self,
        name: str,
        built: BuiltQuery,
        output: QueryOutput,
        region_id: UUID,
        folder: str,
        members: Callable[[], Sequence[QueryThread]],
    ) -> None:
        """Does nothing before `start`.

        Args:
            name: of the query in its region.
            built: how it is made anew, and what it is.
            output: where its rows go.
            region_id: the region's.
            folder: of its checkpoints.
            members: of its sources, in their order.
        """
        self.name, self._built, self._output, self._region_id, self._folder = name, built, output, region_id, folder
        self._letter_log = LetterLog(name, "" if output.letters is None else output.letters.place)
        self._members = members
        self._lock = threading.Lock()
        self._posted: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._wanted = _Wanted()
        self._run: _Run | None = None
        self._state: bytes | None = None  # what the last complete sequence says of the query
        self._saved: SavedQuery | None = None  # the same of the one that the run began with, or that came after
        self._given: _Given | None = None
        self._at_cut: _AtCut | None = None
        self._failed = False
        self._unplanned = self._slow = 0  # runs that ended before they had planned anything, since a batch counted
        self._gone: set[int] = set()
        self._failures = Failures()
        self.error: BaseException | None = None
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._turns, name=f"kohort-query-{name}", daemon=True)

    def start(self) -> None:
        """Wait for the members."""
        self._thread.start()

    def close(self) -> None:
        """Stop the run, if there is one, and end."""
        self._posted.put(None)
        self._thread.join(STOP_S)

    # -- what the members' threads say

    def begin(self, member: int, epoch: int, state: bytes | None) -> None:
        """See `query_thread.Query`."""
        self._is_told(member, state)
        self._posted.put(lambda: self._wants(member, epoch))

    def go_back(self, member: int, epoch: int, state: bytes | None) -> None:
        """See `query_thread.Query`."""
        self._is_told(member, state)

        def back() -> None:
            log.info("query %s goes back, to begin in epoch %s", self.name, epoch)
            self._stop()
            self._failed = False
            self._wants(member, epoch)
            self._members()[member].post(happens.WentBack(epoch))

        self._posted.put(back)

    def _is_told(self, member: int, state: bytes | None) -> None:
        """At once, and not when the run begins: a cut that comes before that must not forget the state."""
        if member == LEAD:
            with self._lock:
                self._state, self._given = state, None

    def ended(self, member: int, error: BaseException | None) -> None:
        """See `query_thread.Query`."""

        def end() -> None:
            if error is not None and error.__cause__ is None:
                error.__cause__ = self._failures.last
            self._gone.add(member)
            self.error = self.error or error
            for number, one in enumerate(self._members()):
                if number not in self._gone and error is not None:
                    one.abandon()
            if len(self._gone) == len(self._members()):
                self.over.set()
            self._stop()

        self._posted.put(end)

    def is_idle(self) -> bool:
        """See `query_thread.Query`."""
        return all(one.seat.running() is None for one in self._members())

    def contribute(
        self, member: int, cut: Cut, names: tuple[str, ...]
    ) -> tuple[dict[TopicPartition, Position], Staged, bytes]:
        """See `query_thread.Query`."""
        own = self._members()[member]
        with self._lock:
            key = own.machine.term, cut
            if self._at_cut is None or self._at_cut.cut != key:
                self._at_cut = self._settle(key, names)
            run, last, ends = self._at_cut.run, self._at_cut.last, self._at_cut.ends[member]
            if member != LEAD:
                return ends, Staged(), b""
            self._given = None
            if run is None:
                return ends, Staged(), self._as_of(-1, None).to_bytes() if self._state is None else self._state
            saved, staged = self._as_of(run.epoch, last), run.staged.give(last)
            self._given = _Given(saved, saved.to_bytes(), run)
            return ends, staged, self._given.state

    def _settle(self, cut: tuple[int, Cut], names: tuple[str, ...]) -> _AtCut:
        those, run = self._members(), self._run
        if run is None or not {one.machine.name for one in those} <= set(names):
            return _AtCut(cut, None, None, tuple({} for _ in those))
        last = last_batch(run.folder)
        return _AtCut(cut, run, last, tuple(self._ends(run, one, last) for one in those))

    def _as_of(self, epoch: int, last: int | None) -> SavedQuery:
        """The query as it is, with a batch of its checkpoint of an epoch."""
        return SavedQuery(epoch, last, self._built.output, self._built.operators, self._built.sources)

    def _ends(self, run: _Run, member: QueryThread, last: int | None) -> dict[TopicPartition, Position]:
        """Where what is held ends, by the last batch that read it under the same handing-out.

        That need not be the last batch of all: what the group wants back is in no batch any more. What no batch has
        since the last sequence ends where that one ended.
        """
        group, handed, counted = member.machine.group, member.seat.handed(), run.staged.after()
        ends: dict[TopicPartition, Position] = {}
        for number in range(-1 if last is None else last, counted, -1):
            batch = None if len(ends) == len(handed) else self._batch_of(run, number, member)
            if batch is None or batch.epoch != run.epoch:
                break
            ends |= {
                at: Position(group, at.topic, part.topic_id, at.partition, batch.spans[at].end)
                for at, part in handed.items()
                if at not in ends and at in batch.spans and batch.handings.get(at) == part.handing
            }
        return ends

    def _batch_of(self, run: _Run, last: int, member: QueryThread) -> BatchOffset | None:
        """What a member's source has read with a batch; it is found by its identity."""
        identity = SEATS.query_at(tuple(run.seats)[member.number])
        found = None if identity is None else find_source(offsets_of(run.folder, last), identity)
        return None if found is None else BatchOffset.from_json(found)

    def counted(self, member: int) -> int:
        """See `query_thread.Query`."""
        if member != LEAD:
            return 0
        with self._lock:
            given, self._given = self._given, None
            if given is None:
                return 0
            dead_letters = given.run.staged.counted()
            before, self._saved, self._state = self._saved, given.saved, given.state
            if given.saved.batch != given.run.began:
                self._unplanned = self._slow = 0
            kept = {one.epoch for one in (before, given.saved, self._run) if one is not None}
        self._posted.put(partial(forget, self._folder, kept))
        return dead_letters

    def settled(self, member: int) -> None:
        """See `query_thread.Query`."""
        run, batch = self._run, self._members()[member].seat.running()
        if run is None or batch is None:
            return
        last = last_batch(run.folder)
        found = None if last is None else self._batch_of(run, last, self._members()[member])
        if found is not None and found.batch == batch and found.epoch == run.epoch:
            tuple(run.seats.values())[member].end(batch)

    # -- the thread

    def _turns(self) -> None:
        closed, look_s = False, time.monotonic() + LOOK_S
        while not closed:
            try:  # a look is due also where something comes all the time
                do = self._posted.get(timeout=max(0.0, look_s - time.monotonic()))
            except queue.Empty:
                do, look_s = self._look, time.monotonic() + LOOK_S
            closed = do is None
            try:
                if do is None:
                    self._stop()
                else:
                    do()
                    self._start_if_all_are_there()
            except Exception as error:
                log.exception("query %s can't go on", self.name)
                self._fail(error)
        self.over.set()

    def _wants(self, member: int, epoch: int) -> None:
        self._wanted.epochs[member] = epoch
        self._wanted.since_s = time.monotonic()

    def _start_if_all_are_there(self) -> None:
        """Start, if all members want that, and none of them is about to go back once more."""
        if self._run is not None or self._failed or self._gone or not self._posted.empty():
            return
        wanted = self._wanted.epochs
        if all(wanted.get(number) == member.machine.epoch for number, member in enumerate(self._members())):
            self._wanted = _Wanted()
            self._start(max(wanted.values()))

    def _start(self, epoch: int) -> None:
        with self._lock:
            state = self._state
        saved = None if state is None else SavedQuery.from_bytes(state)
        if saved is not None:
            refuse_other(saved, self._as_of(-1, None), self.name)
        new, began = epoch_folder(self._folder, epoch), None if saved is None else saved.batch
        derive(epoch_folder(self._folder, -1 if saved is None else saved.epoch), new, began)
        seats = {uuid4().hex: member.seat.start(epoch) for member in self._members()}
        for id, seat in seats.items():
            SEATS.add(id, seat)
        staged = StagedBatches(began)
        task = StagingTask(self._output, self._built.schema, self._region_id, epoch, self.name)
        stage = stage_batch(task)

        def sink(rows: DataFrame, batch: int) -> None:
            found = stage(rows)
            staged.add(batch, found)
            if found.dead_letters:
                self._letter_log.add(found.dead_letters)

        try:
            query = self._built.run(sink, new, tuple(seats))
        except BaseException:
            for id in seats:
                SEATS.remove(id)
            raise
        with self._lock:
            self._saved = saved
            self._run = _Run(epoch, new, began, staged, query, seats)
        for member in self._members():
            member.seat.let("not started")
        log.info("query %s runs in epoch %s, from %s", self.name, epoch, "its beginning" if began is None else began)

    def _stop(self) -> None:
        """End the run: what it does after that is void."""
        for member in self._members():
            member.seat.hold("not started")
        with self._lock:
            run, self._run = self._run, None
        if run is None:
            return
        for id, seat in run.seats.items():
            SEATS.remove(id)
            seat.seat.end_run()
        stopping = threading.Thread(target=_stop_quietly, args=(run.query,), daemon=True)
        stopping.start()
        stopping.join(STOP_S)
        if stopping.is_alive():
            raise TimedOutError(
                f"the query {self.name} has not ended {STOP_S:g} s after it was stopped: end the program"
            )
        for member in self._members():
            member.seat.stop()

    def _look(self) -> None:
        run = self._run
        if run is None:
            self._look_for_lone()
            return
        if self._failed:
            return
        if not run.query.isActive:
            self._run_has_ended(run, run.query.exception() or InvalidInputError(STOPPED.format(self.name)))
            return
        ahead = run.staged.ahead(last_batch(run.folder))
        kept = self._built.batches_kept
        for member in self._members():
            member.look_ahead(ahead, kept // 4, kept // 2)

    def _run_has_ended(self, run: _Run, error: BaseException) -> None:
        """One that has planned nothing is started again as it was, and nobody goes back for it."""
        slow = SLOW in str(error)  # by text: Spark has no class for it
        self._slow, self._unplanned = self._slow + slow, self._unplanned + (not slow)
        too_often = self._slow > SLOW_MOST or self._unplanned >= UNPLANNED_MOST
        if too_often or self._is_final(error) or last_planned(run.folder) != run.began:
            self._fail(error)
            return
        log.warning(
            "query %s has failed before its first batch, and is started again: %s", self.name, _first_line(error)
        )
        self._stop()
        self._start(run.epoch)

    def _is_final(self, error: BaseException) -> bool:
        return isinstance(error, InvalidInputError | TimedOutError) or self._built.is_over(error)

    def _look_for_lone(self) -> None:
        """Some members have gone back, and others don't know why they should."""
        wanted = self._wanted
        some = 0 < len(wanted.epochs) < len(self._members())
        if some and not self._failed and not self._gone and time.monotonic() > wanted.since_s + ALONE_S:
            wanted.since_s = time.monotonic()
            for number, member in enumerate(self._members()):
                if number not in wanted.epochs and member.machine.epoch >= 0:
                    member.post(happens.ResetWanted(f"{self.name} reads from several groups, and goes back as a whole"))

    def _fail(self, error: BaseException) -> None:
        """Have all go back: from the last complete sequence it may go on. What can't be mended so ends the query."""
        self._failed = True
        lead = self._members()[LEAD]
        if isinstance(error, InvalidInputError) and self._run is None:
            self.error = error  # nothing of it has run, and nobody has to go back
            for member in self._members():
                member.leave()
            return
        if self._is_final(error):
            self.error = self.error or error
            for member in self._members():
                member.abandon()
            self.over.set()
            return
        log.warning("query %s has failed: %s", self.name, error)
        cause = f"{self.name} has failed: {_told_of(error)}"
        if self._failures.another(error, self._where()):
            remedy = f"mend it, then `kohort region resume {lead.machine.region} --execute`, and start the queries"
            lead.post(happens.Failed(f"{cause}, {self._failures.in_a_row} times in a row", remedy))
        else:
            lead.post(happens.ResetWanted(cause))

    def _where(self) -> Where:
        """What the batch reads that is planned and not done."""
        run = self._run
        found: set[tuple[int, str, int, int]] = set()
        try:
            planned = None if run is None else last_planned(run.folder)
            if run is None or planned is None or planned == last_batch(run.folder):
                return frozenset()
            for member in self._members():
                batch = self._batch_of(run, planned, member)
                spans = {} if batch is None else batch.spans
                found |= {
                    (member.number, at.topic, at.partition, span.start)
                    for at, span in spans.items()
                    if span.end > span.start
                }
        except (KafkaError, OSError) as error:
            log.info("%s: what has failed can't be told: %s", self.name, error)
        return frozenset(found)


def _stop_quietly(query: Any) -> None:
    try:
        query.stop()
    except Exception as error:  # noqa: BLE001 - it ends in any case, or is seen not to
        log.info("a run that was stopped has ended with: %s", _first_line(error))


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:500]


def _told_of(error: BaseException) -> str:
    """What Python raised in a worker, which Spark puts last; else the first line."""
    raised = [line for line in map(str.strip, str(error).splitlines()) if RAISED.match(line)]
    return raised[-1][:500] if raised else _first_line(error)
