"""One query of a region as Spark runs it: started from its own checkpoint folder, stopped, and started again.

A run begins when all members of the query work, and ends when one of them resets. What the run did since the last
complete checkpoint of the region is then void. The next run starts from a folder that is cloned from that checkpoint's,
or from an empty one if the query keeps nothing there. So an application's start and a reset take the same path.

The query's members contribute to a region checkpoint: what the query has staged since the last one, and the end offsets
of its partitions. The first member, the lead, contributes the staged files and the query's own state.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4, uuid5

from kohort.errors import InvalidInputError, KafkaError, TimedOutError
from kohort.ids import TopicPartition
from kohort.region.member import events as happens
from kohort.region.messages import CheckpointAttempt
from kohort.region.records import Position
from kohort.region.sinks.dead_letters import DeadLetterLog
from kohort.region.staged import Staged
from kohort.spark.region.checkpoint_files import (
    STATE,
    find_source_offset,
    last_completed_batch,
    last_planned_batch,
    read_batch_offsets,
)
from kohort.spark.region.folders import clone_checkpoint, epoch_folder, remove_old_epochs
from kohort.spark.region.query_factory import BuiltQuery
from kohort.spark.region.query_state import SavedQuery, refuse_changed_query
from kohort.spark.region.query_thread import SourceMemberThread
from kohort.spark.region.source_assignments import RunSession
from kohort.spark.region.staging import QueryOutput, StagedBatches, StagingTask, make_batch_stager
from kohort.spark.source.batch_offset import BatchOffset
from kohort.spark.source_sessions import SOURCE_SESSIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


# -- Failures in a row: a reset helps against a full disk, but not against wrong code

Where = frozenset[tuple[int, str, int, int]]
"""The start of a batch: number of the source, topic, partition, offset."""
FAILURES_IN_A_ROW_MAX = 5


class QueryFailures:
    """A counter of a query's failures in a row without progress; for one thread.

    A failure is progress if its batch reads no partition from the same offset as the failed batch before: the count
    starts anew. Region checkpoints in between are no progress: other queries complete them too.
    """

    def __init__(self) -> None:
        self.last: BaseException | None = None
        self.in_a_row = 0
        self._where: Where = frozenset()

    def record_failure(self, error: BaseException, where: Where) -> bool:
        """Record a failure of a batch that starts at `where`; return whether there are too many in a row."""
        moved = bool(where) and bool(self._where) and not where & self._where
        self.in_a_row = 1 if moved else self.in_a_row + 1
        self.last, self._where = error, where or self._where
        return self.in_a_row >= FAILURES_IN_A_ROW_MAX


log = logging.getLogger("kohort.spark")

LEAD = 0
STOP_S = 30.0
"""Longest time for a run to stop; after it the application must end."""
CHECK_INTERVAL_S = 0.2
"""Interval of checks whether a run has failed, and how far ahead of the region it is."""
EXCEPTION_LINE = re.compile(r"[A-Za-z_][\w.]*(Error|Exception): ")
"""The line of a Python traceback that names the exception."""
WORKER_START_TIMEOUT, WORKER_START_ATTEMPTS_MAX = "failed to connect back", 40
"""Spark's text for a Python process that was not up within ten seconds, as happens on a busy machine; such starts are
retried this many times.
"""
UNPLANNED_RUNS_MAX = 5
"""Most runs in a row that may end before they have planned a batch."""
UNKNOWN_STATE = (
    "the query {} keeps state, in {}, by an operator that kohort does not know: the state would be lost with the next "
    "run. Leave that operator out, and report the query's plan"
)
STOPPED = "the query {} was stopped: stop its region instead"
PARTIAL_RESET_TIMEOUT_S = 2.0
"""If one member of a query resets and another does not follow within this time, the whole query is reset."""


@dataclass(slots=True)
class _Run:
    """One run of a region's query: a Spark query with its checkpoint folder.

    Attributes:
        epoch: the epoch of the run.
        folder: its checkpoint folder.
        began: the last batch of the folder when the run began; None: the folder was empty.
        staged: what its batches have staged.
        query: the Spark query.
        sessions: its sources' sessions by their ids; requests with the ids of an earlier run are refused.
    """

    epoch: int
    folder: str
    began: int | None
    staged: StagedBatches
    query: StreamingQuery
    sessions: dict[str, RunSession]


@dataclass(slots=True)
class _RunRequests:
    """The members' requests to start the next run, since the last one began.

    Attributes:
        epochs: the epoch that each requesting member asks for, by the member's number.
        since_s: the time of the last request, on the monotonic clock.
    """

    epochs: dict[int, int] = field(default_factory=dict)
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _AttemptContribution:
    """The query's contribution to a checkpoint attempt, determined once for all of its members.

    Attributes:
        cut: the control plane's term and the attempt's number, which is unique within a term only.
        run: the run that contributes; None: none runs, and nothing has happened since the last region checkpoint.
        last: the last batch that belongs to the checkpoint; None: none does.
        ends: the end offsets of each member's partitions, determined at one time for all.
    """

    cut: tuple[int, CheckpointAttempt]
    run: _Run | None
    last: int | None
    ends: tuple[dict[TopicPartition, Position], ...]


@dataclass(frozen=True, slots=True)
class _LastContribution:
    """The query's last contribution to a checkpoint attempt, until a complete checkpoint includes it.

    `state` is `saved`, encoded; `run` is the run that contributed.
    """

    saved: SavedQuery
    state: bytes
    run: _Run


class RegionQuery:
    """A query of a region: starts and stops its runs (Spark queries), and contributes to checkpoints.

    Runs start and stop on its own thread; the threads of its members only post requests.
    """

    def __init__(
        self,
        name: str,
        built: BuiltQuery,
        output: QueryOutput,
        region_id: UUID,
        folder: str,
        members: Callable[[], Sequence[SourceMemberThread]],
    ) -> None:
        """Set up the query; `start` starts its thread.

        Args:
            name: the query's name in its region.
            built: the query, which can be started once for each run.
            output: the sink of its rows.
            region_id: the region's id.
            folder: the folder of its checkpoints.
            members: returns the members of its sources, in their order.
        """
        self.name, self._built, self._output, self._region_id, self._folder = name, built, output, region_id, folder
        self._letter_log = DeadLetterLog(name, "" if output.letters is None else output.letters.place)
        self._members = members
        self._lock = threading.Lock()
        self._posted: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._wanted = _RunRequests()
        self._run: _Run | None = None
        self._state: bytes | None = None  # the query's state in the last complete checkpoint
        self._saved: SavedQuery | None = None  # parsed state: of the checkpoint that the run began with, or a later one
        self._given: _LastContribution | None = None
        self._at_cut: _AttemptContribution | None = None
        self._failed = False
        self._unplanned = self._slow = 0  # runs that ended before planning a batch, since one counted
        self._gone: set[int] = set()
        self._failures = QueryFailures()
        self.error: BaseException | None = None
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._process_requests, name=f"kohort-query-{name}", daemon=True)

    def start(self) -> None:
        """Start the query's thread, which waits for the members."""
        self._thread.start()

    def close(self) -> None:
        """Stop the run, if there is one, and end the thread."""
        self._posted.put(None)
        self._thread.join(STOP_S)

    # -- Requests of the members' threads

    def request_run(self, member: int, epoch: int, state: bytes | None) -> None:
        """Request a run in this epoch for one member; the run starts when all members have requested it.

        `state` is the query's saved state in the checkpoint from which it continues.
        """
        self._set_state(member, state)
        self._posted.put(lambda: self._wants(member, epoch))

    def restart_run(self, member: int, epoch: int, state: bytes | None) -> None:
        """Stop the run because the region resets, and request the next one in this epoch, from this saved state.

        The member learns by `ApplicationReset` when the run has stopped.
        """
        self._set_state(member, state)

        def reset_run() -> None:
            log.info(
                "[query %s] resetting with its region: the next run continues from the region's last complete "
                "sequence, in region epoch %s",
                self.name,
                epoch,
            )
            self._stop()
            self._failed = False
            self._wants(member, epoch)
            self._members()[member].post(happens.ApplicationReset(epoch))

        self._posted.put(reset_run)

    def _set_state(self, member: int, state: bytes | None) -> None:
        """Set the query's saved state, if the lead member brings it: a checkpoint attempt may need it before a run."""
        if member == LEAD:
            with self._lock:
                self._state, self._given = state, None

    def on_source_member_ended(self, source_number: int, error: BaseException | None) -> None:
        """Stop the run, because a source's member has ended; after an error, end the other members without a leave.

        The query is over when all its members have ended.
        """

        def end_member() -> None:
            if error is not None and error.__cause__ is None:
                error.__cause__ = self._failures.last
            self._gone.add(source_number)
            self.error = self.error or error
            for number, other in enumerate(self._members()):
                if number not in self._gone and error is not None:
                    other.end_without_leaving()
            if len(self._gone) == len(self._members()):
                self.over.set()
            self._stop()

        self._posted.put(end_member)

    def is_idle(self) -> bool:
        """Return whether no batch that reads any of the query's sources is running."""
        return all(member.assignments.running_batch() is None for member in self._members())

    def contribute(
        self, member: int, cut: CheckpointAttempt, names: tuple[str, ...]
    ) -> tuple[dict[TopicPartition, Position], Staged, bytes]:
        """Return one member's contribution to a checkpoint attempt, up to the last completed batch.

        Every member contributes the end offsets of its partitions. The lead member adds the keys of the staged rows and
        the query's state; for the others both are empty.
        """
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
            saved, staged = self._as_of(run.epoch, last), run.staged.unacknowledged_keys(last)
            self._given = _LastContribution(saved, saved.to_bytes(), run)
            return ends, staged, self._given.state

    def _settle(self, cut: tuple[int, CheckpointAttempt], names: tuple[str, ...]) -> _AttemptContribution:
        members, run = self._members(), self._run
        if run is None or not {member.machine.name for member in members} <= set(names):
            return _AttemptContribution(cut, None, None, tuple({} for _ in members))
        last = last_completed_batch(run.folder)
        return _AttemptContribution(cut, run, last, tuple(self._ends(run, member, last) for member in members))

    def _as_of(self, epoch: int, last: int | None) -> SavedQuery:
        """Make the state to save in a region checkpoint: this epoch, its last batch, and the query's definition."""
        built = self._built
        return SavedQuery(epoch, last, built.output, built.operators, built.sources, built.needs_last_checkpoint)

    def _ends(self, run: _Run, member: SourceMemberThread, last: int | None) -> dict[TopicPartition, Position]:
        """Return the end offsets of a member's partitions: for each, that of the last batch that read it.

        Only batches since the last region checkpoint, and of the partition's current assignment, count. Partitions that
        none of them read are left out: their offsets in that checkpoint stay.
        """
        group, handed, counted = (
            member.machine.group,
            member.assignments.all_assigned(),
            run.staged.last_included_batch(),
        )
        ends: dict[TopicPartition, Position] = {}
        for number in range(-1 if last is None else last, counted, -1):
            batch = None if len(ends) == len(handed) else self._batch_of(run, number, member)
            if batch is None or batch.epoch != run.epoch:
                break
            ends |= {
                at: Position(group, at.topic, part.topic_id, at.partition, batch.spans[at].end)
                for at, part in handed.items()
                if at not in ends and at in batch.spans and batch.assignment_versions.get(at) == part.assignment_version
            }
        return ends

    def _batch_of(self, run: _Run, last: int, member: SourceMemberThread) -> BatchOffset | None:
        """Return the offset ranges of a batch that a member's source planned, from `offsets/` of the run's checkpoint.

        None: the source has not connected yet, or the batch has no offset of it.
        """
        identity = SOURCE_SESSIONS.query_of_session(tuple(run.sessions)[member.number])
        found = None if identity is None else find_source_offset(read_batch_offsets(run.folder, last), identity)
        return None if found is None else BatchOffset.from_json(found)

    def forget_contribution(self, member: int) -> int:
        """Forget the staged keys of the last contribution, because a complete checkpoint includes it.

        Old checkpoint folders are removed. Return the number of dead letters in the contribution.
        """
        if member != LEAD:
            return 0
        with self._lock:
            given, self._given = self._given, None
            if given is None:
                return 0
            dead_letters = given.run.staged.forget_contribution()
            before, self._saved, self._state = self._saved, given.saved, given.state
            if given.saved.batch != given.run.began:
                self._unplanned = self._slow = 0
            kept = {state.epoch for state in (before, given.saved, self._run) if state is not None}
        self._posted.put(partial(remove_old_epochs, self._folder, kept))
        return dead_letters

    def check_running_batch(self, member: int) -> None:
        """Mark a member's running batch as done if `commits/` of Spark's checkpoint has it."""
        run, batch = self._run, self._members()[member].assignments.running_batch()
        if run is None or batch is None:
            return
        last = last_completed_batch(run.folder)
        found = None if last is None else self._batch_of(run, last, self._members()[member])
        if found is not None and found.batch == batch and found.epoch == run.epoch:
            tuple(run.sessions.values())[member].complete_batch(batch)

    # -- The query's thread

    def _process_requests(self) -> None:
        closed, look_s = False, time.monotonic() + CHECK_INTERVAL_S
        while not closed:
            try:  # checks are due even under a constant stream of requests
                do = self._posted.get(timeout=max(0.0, look_s - time.monotonic()))
            except queue.Empty:
                do, look_s = self._look, time.monotonic() + CHECK_INTERVAL_S
            closed = do is None
            try:
                if do is None:
                    self._stop()
                else:
                    do()
                    self._start_if_all_are_there()
            except Exception as error:
                log.exception(
                    "[query %s] unexpected error in the query's thread: the region resets, or the query ends", self.name
                )
                self._fail(error)
        self.over.set()

    def _wants(self, member: int, epoch: int) -> None:
        self._wanted.epochs[member] = epoch
        self._wanted.since_s = time.monotonic()

    def _start_if_all_are_there(self) -> None:
        """Start a run if every member has requested one in its current epoch, and no other request is queued."""
        if self._run is not None or self._failed or self._gone or not self._posted.empty():
            return
        wanted = self._wanted.epochs
        if all(wanted.get(number) == member.machine.epoch for number, member in enumerate(self._members())):
            self._wanted = _RunRequests()
            self._start(max(wanted.values()))

    def _start(self, epoch: int) -> None:
        with self._lock:
            state = self._state
        saved = None if state is None else SavedQuery.from_bytes(state)
        if saved is not None:
            refuse_changed_query(saved, self._as_of(-1, None), self.name)
        new, began = epoch_folder(self._folder, epoch), self._continues_after(saved)
        old = epoch_folder(self._folder, -1 if saved is None else saved.epoch)
        clone_checkpoint(old, new, began, query_id=uuid5(self._region_id, self.name))
        seats = {uuid4().hex: member.assignments.begin_run(epoch) for member in self._members()}
        for id, seat in seats.items():
            SOURCE_SESSIONS.add(id, seat)
        staged = StagedBatches(began)
        task = StagingTask(self._output, self._built.schema, self._region_id, epoch, self.name)
        stage = make_batch_stager(task)

        def stage_batch_rows(rows: DataFrame, batch: int) -> None:
            found = stage(rows)
            if not self._built.needs_last_checkpoint and os.path.exists(f"{new}/{STATE}"):
                raise InvalidInputError(UNKNOWN_STATE.format(self.name, f"{new}/{STATE}"))
            staged.add_batch(batch, found)
            if found.dead_letters:
                self._letter_log.add(found.dead_letters)

        try:
            query = self._built.run(stage_batch_rows, new, tuple(seats))
        except BaseException:
            for id in seats:
                SOURCE_SESSIONS.remove_session(id)
            raise
        with self._lock:
            self._saved = saved
            self._run = _Run(epoch, new, began, staged, query, seats)
        for member in self._members():
            member.assignments.resume_batches("not started")
        log.info(
            "[query %s] started in its region's epoch %s, %s",
            self.name,
            epoch,
            "with a checkpoint that has no batches" if began is None else f"after batch {began} of the checkpoint",
        )

    def _continues_after(self, saved: SavedQuery | None) -> int | None:
        """Return the batch of the last run's checkpoint after which the next run continues; None: it starts empty.

        A query without state or outside sources needs no file of an earlier run, which may be on another machine. The
        control plane sends the offsets where its partitions begin.
        """
        if saved is None or saved.kept is False or not self._built.needs_last_checkpoint:
            return None
        return saved.batch

    def _stop(self) -> None:
        """Stop the run of the query; its later output is discarded."""
        for member in self._members():
            member.assignments.pause_batches("not started")
        with self._lock:
            run, self._run = self._run, None
        if run is None:
            return
        for id, seat in run.sessions.items():
            SOURCE_SESSIONS.remove_session(id)
            seat.assignments.end_run()
        stopping = threading.Thread(target=_stop_quietly, args=(run.query,), daemon=True)
        stopping.start()
        stopping.join(STOP_S)
        if stopping.is_alive():
            raise TimedOutError(
                f"the query {self.name} has not ended {STOP_S:g} s after it was stopped: end the program"
            )
        for member in self._members():
            member.assignments.discard_running_batch()

    def _look(self) -> None:
        run = self._run
        if run is None:
            self._complete_partial_reset()
            return
        if self._failed:
            return
        if not run.query.isActive:
            self._run_has_ended(run, run.query.exception() or InvalidInputError(STOPPED.format(self.name)))
            return
        ahead = run.staged.batches_ahead(last_completed_batch(run.folder))
        kept = self._built.batches_kept
        for member in self._members():
            member.pace_checkpoints(ahead, kept // 4, kept // 2)

    def _run_has_ended(self, run: _Run, error: BaseException) -> None:
        """Handle the end of a run; restart it without a reset of the region if it has planned nothing."""
        slow = WORKER_START_TIMEOUT in str(error)  # by text: Spark has no class for it
        self._slow, self._unplanned = self._slow + slow, self._unplanned + (not slow)
        too_often = self._slow > WORKER_START_ATTEMPTS_MAX or self._unplanned >= UNPLANNED_RUNS_MAX
        if too_often or self._is_final(error) or last_planned_batch(run.folder) != run.began:
            self._fail(error)
            return
        log.warning("[query %s] failed before it planned a batch; restarting: %s", self.name, _first_line(error))
        self._stop()
        self._start(run.epoch)

    def _is_final(self, error: BaseException) -> bool:
        return isinstance(error, InvalidInputError | TimedOutError) or self._built.has_spark_ended(error)

    def _complete_partial_reset(self) -> None:
        """Reset the query's other members, if only some have reset, and the rest has not followed in time."""
        wanted = self._wanted
        some = 0 < len(wanted.epochs) < len(self._members())
        if some and not self._failed and not self._gone and time.monotonic() > wanted.since_s + PARTIAL_RESET_TIMEOUT_S:
            wanted.since_s = time.monotonic()
            for number, member in enumerate(self._members()):
                if number not in wanted.epochs and member.machine.epoch >= 0:
                    member.post(
                        happens.ResetRequested(
                            f"{self.name} reads from several groups, and all of them must reset together"
                        )
                    )

    def _fail(self, error: BaseException) -> None:
        """Reset the region to its last complete checkpoint; an error that a reset can't cure ends the query."""
        self._failed = True
        lead = self._members()[LEAD]
        if isinstance(error, InvalidInputError) and self._run is None:
            self.error = error  # nothing has run, so no reset is needed
            for member in self._members():
                member.leave_region()
            return
        if self._is_final(error):
            self.error = self.error or error
            for member in self._members():
                member.end_without_leaving()
            self.over.set()
            return
        log.warning("[query %s] failed, so its region resets: %s", self.name, error)
        cause = f"{self.name} has failed: {_worker_exception(error)}"
        if self._failures.record_failure(error, self._where()):
            remedy = f"mend it, then `kohort region resume {lead.machine.region} --execute`, and start the queries"
            lead.post(happens.MemberFailed(f"{cause}, {self._failures.in_a_row} times in a row", remedy))
        else:
            lead.post(happens.ResetRequested(cause))

    def _where(self) -> Where:
        """Return the start offsets of the unfinished batch, by member and partition, to detect repeated failures."""
        run = self._run
        found: set[tuple[int, str, int, int]] = set()
        try:
            planned = None if run is None else last_planned_batch(run.folder)
            if run is None or planned is None or planned == last_completed_batch(run.folder):
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
            log.info("[query %s] can't determine the start offsets of the failed batch: %s", self.name, error)
        return frozenset(found)


def _stop_quietly(query: Any) -> None:
    try:
        query.stop()
    except Exception as error:  # noqa: BLE001 - the caller checks whether it has ended
        log.info("stopping a streaming query raised an error, which is ignored: %s", _first_line(error))


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:500]


def _worker_exception(error: BaseException) -> str:
    """Return the Python exception of a worker from the end of Spark's error text, or the text's first line."""
    raised = [line for line in map(str.strip, str(error).splitlines()) if EXCEPTION_LINE.match(line)]
    return raised[-1][:500] if raised else _first_line(error)
