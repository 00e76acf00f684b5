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
from kohort.region.facts import Position
from kohort.region.member import events as happens
from kohort.region.messages import Cut
from kohort.region.sinks import Sink
from kohort.region.staged import StagedKey
from kohort.spark.batch_offset import BatchOffset
from kohort.spark.region.built import BuiltQuery
from kohort.spark.region.checkpoint_logs import find_source, last_batch, last_planned, offsets_of
from kohort.spark.region.failures import Failures, Where
from kohort.spark.region.folders import derive, epoch_folder, forget
from kohort.spark.region.query_thread import QueryThread
from kohort.spark.region.saved import SavedQuery, refuse_other
from kohort.spark.region.seats import SEATS
from kohort.spark.region.staging import StagedBatches, StagingTask, stage_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("kohort.spark")

LEAD = 0
STOP_S = 30.0
"""How long a run may take to end; then the application must."""
LOOK_S = 0.2
"""How often a run is looked at: whether it has failed, and how far ahead it is."""
RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception): ")
"""How Python tells of an exception, at the end of its traceback."""
ALONE_S = 2.0
"""A query goes back as a whole: whose other member does not in this time has all go back."""


@dataclass(slots=True)
class _Run:
    """One run.

    Attributes:
        began: the last batch that its folder began with; None: it began anew.
        seats: ids of its sources' seats; who asks under an earlier run's is refused.
    """

    epoch: int
    folder: str
    began: int | None
    staged: StagedBatches
    query: StreamingQuery
    seats: tuple[str, ...]


@dataclass(slots=True)
class _Wanted:
    """What the members have said since the last run ended, by their numbers."""

    epochs: dict[int, int] = field(default_factory=dict)
    since_s: float = 0.0


class RegionQuery:
    """See the module's text. A thread of its own starts and stops runs; members' threads only say what they want."""

    def __init__(
        self,
        name: str,
        built: BuiltQuery,
        sink: Sink,
        region_id: UUID,
        folder: str,
        members: Callable[[], Sequence[QueryThread]],
    ) -> None:
        """Does nothing before `start`.

        Args:
            name: of the query in its region.
            built: how it is made anew, and what it is.
            sink: as the region writes to it.
            region_id: the region's.
            folder: of its checkpoints.
            members: of its sources, in their order.
        """
        self.name, self._built, self._sink, self._region_id, self._folder = name, built, sink, region_id, folder
        self._members = members
        self._lock = threading.Lock()
        self._posted: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._wanted = _Wanted()
        self._run: _Run | None = None
        self._saved: SavedQuery | None = None
        self._given: SavedQuery | None = None
        self._cut: tuple[Cut, int | None] | None = None
        self._failed = False
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
        self._posted.put(lambda: self._wants(member, epoch, state))

    def go_back(self, member: int, epoch: int, state: bytes | None) -> None:
        """See `query_thread.Query`."""

        def back() -> None:
            self._stop()
            self._wants(member, epoch, state)
            self._members()[member].post(happens.WentBack(epoch))

        self._posted.put(back)

    def ended(self, member: int, error: BaseException | None) -> None:
        """See `query_thread.Query`."""

        def end() -> None:
            self._stop()
            if error is not None and error.__cause__ is None:
                error.__cause__ = self._failures.last
            self.error = self.error or error
            self._gone.add(member)
            if error is not None:
                for one in self._members():
                    one.abandon()
            if len(self._gone) == len(self._members()):
                self.over.set()

        self._posted.put(end)

    def contribute(self, member: int, cut: Cut) -> tuple[dict[TopicPartition, Position], tuple[StagedKey, ...], bytes]:
        """See `query_thread.Query`."""
        with self._lock:
            run = self._run
            if run is None:
                saved = self._saved or self._as_of(-1, None)
                return {}, (), saved.to_bytes() if member == LEAD else b""
            if self._cut is None or self._cut[0] != cut:
                self._cut = cut, last_batch(run.folder)
            last = self._cut[1]
            ends = self._ends(run, self._members()[member], last)
            if member != LEAD:
                return ends, (), b""
            now = self._as_of(run.epoch, last)
            keys = run.staged.give(last)
            self._given = now
            return ends, keys, now.to_bytes()

    def _as_of(self, epoch: int, last: int | None) -> SavedQuery:
        """The query as it is, with a batch of its checkpoint of an epoch."""
        return SavedQuery(epoch, last, self._built.output, self._built.operators, self._built.sources)

    def _ends(self, run: _Run, member: QueryThread, last: int | None) -> dict[TopicPartition, Position]:
        """Where the last batch ends, of what it read under the same handing-out as it is held now."""
        batch = None if last is None else self._batch_of(run, last, member)
        if batch is None or batch.epoch != run.epoch:
            return {}
        group, handed = member.machine.group, member.seat.handed()
        return {
            at: Position(group, at.topic, part.topic_id, at.partition, batch.spans[at].end)
            for at, part in handed.items()
            if at in batch.spans and batch.handings.get(at) == part.handing
        }

    def _batch_of(self, run: _Run, last: int, member: QueryThread) -> BatchOffset | None:
        """What a member's source has read with a batch; it is found by its identity."""
        identity = SEATS.query_at(run.seats[member.number])
        found = None if identity is None else find_source(offsets_of(run.folder, last), identity)
        return None if found is None else BatchOffset.from_json(found)

    def counted(self, member: int) -> None:
        """See `query_thread.Query`."""
        if member != LEAD:
            return
        with self._lock:
            if self._run is not None and self._given is not None:
                self._run.staged.counted()
                before, self._saved, self._given = self._saved, self._given, None
                kept = {one.epoch for one in (before, self._saved) if one is not None} | {self._run.epoch}
                self._posted.put(partial(forget, self._folder, kept))

    def settled(self, member: int) -> None:
        """See `query_thread.Query`."""
        run, seat = self._run, self._members()[member].seat
        batch = seat.running()
        if run is None or batch is None:
            return
        last = last_batch(run.folder)
        found = None if last is None else self._batch_of(run, last, self._members()[member])
        if found is not None and found.batch == batch and found.epoch == run.epoch:
            seat.end(batch)

    # -- the thread

    def _turns(self) -> None:
        while True:
            try:
                do = self._posted.get(timeout=LOOK_S)
            except queue.Empty:
                self._look()
                continue
            if do is None:
                self._stop()
                self.over.set()
                return
            try:
                do()
                self._start_if_all_are_there()
            except Exception as error:
                log.exception("query %s can't go on", self.name)
                self._fail(error)

    def _wants(self, member: int, epoch: int, state: bytes | None) -> None:
        wanted = self._wanted
        wanted.epochs[member] = epoch
        wanted.since_s = time.monotonic()
        if member == LEAD:
            with self._lock:  # what is contributed until it runs
                self._saved = None if state is None else SavedQuery.from_bytes(state)

    def _start_if_all_are_there(self) -> None:
        if self._run is None and len(self._wanted.epochs) == len(self._members()) and not self._failed:
            wanted, self._wanted = self._wanted, _Wanted()
            self._start(max(wanted.epochs.values()))

    def _start(self, epoch: int) -> None:
        saved = self._saved
        if saved is not None:
            refuse_other(saved, self._as_of(-1, None), self.name)
        new, began = epoch_folder(self._folder, epoch), None if saved is None else saved.batch
        derive(epoch_folder(self._folder, -1 if saved is None else saved.epoch), new, began)
        seats = tuple(uuid4().hex for _ in self._members())
        for id, member in zip(seats, self._members(), strict=True):
            member.seat.start(epoch)
            SEATS.add(id, member.seat)
        staged = StagedBatches(began)
        task = StagingTask(self._sink, self._built.schema, self._region_id, epoch, self.name)
        stage = stage_batch(task)

        def sink(rows: DataFrame, batch: int) -> None:
            staged.add(batch, stage(rows))

        query = self._built.run(sink, new, seats)
        with self._lock:
            self._given, self._cut = None, None
            self._run = _Run(epoch, new, began, staged, query, seats)
        for member in self._members():
            member.seat.let("not started")
        log.info("query %s runs in epoch %s, from %s", self.name, epoch, "its beginning" if began is None else began)

    def _stop(self) -> None:
        """End the run: what it does after that is void."""
        for member in self._members():
            member.seat.hold("not started")
        with self._lock:
            run, self._run, self._cut, self._given = self._run, None, None, None
        self._failed = False
        if run is None:
            return  # what members have said since the last one ended still counts
        self._wanted = _Wanted()
        for id in run.seats:
            SEATS.remove(id)
        stopping = threading.Thread(target=_stop_quietly, args=(run.query,), daemon=True)
        stopping.start()
        stopping.join(STOP_S)
        if stopping.is_alive():
            raise TimedOutError(
                f"the query {self.name} has not ended {STOP_S:g} s after it was stopped: end the program"
            )

    def _look(self) -> None:
        run = self._run
        if run is None:
            self._look_for_lone()
            return
        if not run.query.isActive and not self._failed:
            cause = run.query.exception()
            self._fail(cause or InvalidInputError(f"the query {self.name} was stopped: stop its region instead"))
            return
        ahead = run.staged.ahead(last_batch(run.folder))
        kept = self._built.batches_kept
        for member in self._members():
            member.look_ahead(ahead, kept // 4, kept // 2)

    def _look_for_lone(self) -> None:
        """Some members have gone back, and others don't know why they should."""
        wanted = self._wanted
        some = 0 < len(wanted.epochs) < len(self._members())
        if some and not self._failed and time.monotonic() > wanted.since_s + ALONE_S:
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
        if isinstance(error, InvalidInputError | TimedOutError):
            self.error = error
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
