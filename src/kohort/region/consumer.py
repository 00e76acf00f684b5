"""Region members that read with a consumer.

    region = Region("flights", servers, checkpoint_every="5s")
    with region.consumer("worker-1", group_id="etl", topics=["flights"], into=ParquetFolder("out")) as consumer:
        for table in consumer.tables():
            consumer.submit(transform(table))

A member has two threads. The event thread polls, commits, and receives events of the group and the control plane. The
application's thread processes the records. Source: spec 5.2.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import pyarrow as pa

from kohort.errors import CorruptDataError, InvalidInputError, TimedOutError
from kohort.io.channel import Link
from kohort.io.closing import NotPicklable
from kohort.region.consuming.event_thread import EventThread
from kohort.region.consuming.settings import MemberMetrics, RegionOptions
from kohort.region.consuming.staging import RowStager, sink_retry_wait
from kohort.region.consuming.waits import RetryWait
from kohort.region.consuming.work_queue import FetchedTable, RecordQueue
from kohort.region.keyed_state.states import KeyedStates, LoadedKeyedState, StateMapping
from kohort.region.member.events import CheckpointRequested, CloseRequested, Event, ResetRequested
from kohort.region.records import Part
from kohort.region.sinks.availability import AWAY, is_temporary_error
from kohort.region.sinks.dead_letters import DEAD_LETTER, make_dead_letters
from kohort.region.sinks.rows import SOURCE, RowRefusedError, has_source_columns, refused_rows_error
from kohort.region.states import RegionMemberState

log = logging.getLogger("kohort.region")
CLOSE_S = 60.0
SLEPT_S = 5.0
"""Seconds in which a member that has slept learns from its control plane that it must reset."""
SPANS_TOLD = 10
"""Limit on the partitions of the current table that an error lists."""


class ThreadsInsideMethods:
    """The set of threads that are inside a method of a member or region.

    A signal handler on such a thread must not wait for the member: the method that it interrupted could never go on.

    No lock is taken, because a signal handler may interrupt anywhere.
    """

    def __init__(self) -> None:
        self._threads: set[int] = set()

    def includes_current_thread(self) -> bool:
        """Return whether the calling thread is inside a method already, as when a signal handler or callback calls."""
        return threading.get_ident() in self._threads

    @contextmanager
    def mark_current_thread(self) -> Iterator[None]:
        """Mark the calling thread as inside a method until the `with` block ends; a nested block has no effect.

        A signal handler on this thread then does not wait for the method that it has interrupted.
        """
        ident = threading.get_ident()
        if ident in self._threads:
            yield
            return
        try:
            self._threads.add(ident)  # within `try`: a handler may raise as soon as it is in
            yield
        finally:
            self._threads.discard(ident)


class RegionConsumer(NotPicklable):
    """A region member that reads with a consumer; `Region.consumer` creates one.

    A table counts as processed when the next one is requested. If the loop ends with a table in progress, for any
    reason, that table is not processed. Rows submitted for it are dropped, and its records are read again. Only one
    thread may iterate and submit; other methods may be called from any thread and from signal handlers.

    After a reset, rows submitted since the last complete checkpoint are produced again; `on_reset` is called first.
    """

    def __init__(
        self,
        events: EventThread,
        flow: RecordQueue,
        stager: RowStager,
        own: RegionOptions,
        ended: Callable[[RegionConsumer], None],
        states: KeyedStates | None = None,
    ) -> None:
        self._states = states
        self._events, self._flow, self._stager, self._ended = events, flow, stager, ended
        self._own, self._records = own, 0
        self._pid = os.getpid()
        self._callers = ThreadsInsideMethods()
        self._hand: int | None = None
        self._asked_to_close = self._forgotten = False

    def start(self, reach: Callable[[], Link]) -> None:
        """Start the threads; `Region.consumer` calls this."""
        self._events.start(reach)

    @property
    def name(self) -> str:
        """The member's name in the region."""
        return self._events.name

    @property
    def state(self) -> RegionMemberState:
        """The state of the member, such as RECORDS_FETCHED or DRAINED."""
        return self._events.machine.state

    @property
    def sequence(self) -> int:
        """The id of the last complete checkpoint that the member knows of; 0: none."""
        return self._events.machine.sequence

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all members of the region, as the control plane last reported them. Source: spec 5.3."""
        return self._events.machine.names

    @property
    def metrics(self) -> MemberMetrics:
        """The member's metrics: counters and times."""
        return self._events.metrics

    # -- tables

    def tables(self) -> Iterator[pa.Table]:
        """Yield records with the columns of Spark's Kafka source, until the member is closed.

        A table counts as processed when the next one is requested. If the loop ends before (`break`, `return`, an
        exception), the current table stays unprocessed. Rows submitted for it are dropped, and the next `tables()`, or
        another member, starts with its records. With `on_checkpoint` the whole region resets, because the state may
        contain part of the table. To leave after a table, call `close` in the loop.

        Raises:
            RegionStoppedError: the region has stopped, or refused this member.
            TimedOutError: `close` was called in this loop, and no checkpoint completed in time after it.
            KafkaError: the group can't be joined, or the topics can't be read.
        """
        while (piece := self._next_piece()) is not None:
            try:
                yield piece.table
            except BaseException:  # GeneratorExit: the loop was left
                self._leave_undone(piece, dirty=self._own.has_application_state)
                raise
        if self._asked_to_close:
            self._wait_for_the_end()

    def _next_piece(self) -> FetchedTable | None:
        """Count the current table as processed, and wait for the next one; return None when the member has ended."""
        self._refuse_handler("tables")
        with self._in_use():
            try:
                self._count_table()
                piece = self._flow.take_table()
                if piece is not None:
                    self._hand = threading.get_ident()
                    self._records += piece.table.num_rows
                return piece
            except BaseException as error:  # a signal's handler may raise anything anywhere
                if error is not self._flow.error:
                    self._leave_undone(self._flow.current_table, dirty=True)
                raise

    def _count_table(self) -> None:
        if self._flow.is_idle():
            return
        if not self._flow.discards_rows:
            self._stager.finish_table()
        self._flow.finish_table()
        self._hand = None
        enough = self._own.every_records is not None and self._records >= self._own.every_records
        if enough or (self._states is not None and self._states.has_many_changes()):
            self._records = 0
            self._events.post(CheckpointRequested())

    def _leave_undone(self, piece: FetchedTable | None, *, dirty: bool) -> None:
        """Put a table that the application left in progress back into the queue, unless a reset has discarded it.

        Rows submitted for it are dropped. Do nothing in a forked child.
        """
        if os.getpid() != self._pid:
            return
        with self._in_use():
            if piece is not None and self._flow.current_table is piece:
                if not self._flow.discards_rows:
                    self._stager.drop_unfinished_table()
                    log.info(
                        "[member %s] the loop over tables() ended before its table was done: the table's rows are "
                        "dropped, and its records read again",
                        self.name,
                    )
                self._flow.put_back_table(dirty=dirty)
            if self._flow.current_table is None:
                self._hand = None  # last: a signal handler must not wait for this thread before

    def submit(self, table: pa.Table | pa.RecordBatch, *, records: pa.Table | pa.RecordBatch | None = None) -> None:
        """Submit rows to the sink: they are published with the checkpoint that covers their records, or never.

        While the sink is unavailable (`OSError`, `RetriableError`), this call waits.

        Args:
            table: the rows.
            records: the records from which the rows were made, row by row, as `tables()` returns them. An error or a
                dead letter for a bad row then names its record. Rows with the columns `topic`, `partition` and `offset`
                name it themselves.

        Raises:
            RowRefusedError: the sink refuses a row. The error names row, column and offset, and no row is accepted.
                With `on_bad_record="dead-letter"`, only if the dead-letter sink refuses a row.
            InvalidInputError: no table is in progress, or the argument is not a table.
            Exception: any other error with which the sink rejects these rows.
        """
        rows, made_of = self._submitted("submit", table), None
        if records is not None:
            made_of = self._submitted("records=", records)
            if made_of.num_rows != rows.num_rows or not has_source_columns(made_of):
                raise InvalidInputError(
                    f"records= has {made_of.num_rows} rows and the columns {', '.join(made_of.column_names)}: give "
                    f"topic, partition and offset of the record of each of the {rows.num_rows} rows"
                )
        with self._in_use():
            self._wait_for_sink(lambda piece: self._add(rows, made_of, piece))

    def dead_letter(self, rows: pa.Table | pa.RecordBatch, reason: str) -> None:
        """Write rows that the application can't use to the dead-letter sink, as `submit` does with refused rows.

        They are published with the checkpoint that covers their records, or never. Rows of `tables()` are kept
        unchanged; other rows also as JSON.

        Args:
            rows: such as `table.filter(mask)`.
            reason: the reason, for humans.

        Raises:
            InvalidInputError: no table is in progress, the argument is not a table, or the member has no dead-letter
                sink.
            Exception: any error with which that sink rejects the rows.
        """
        given = self._submitted("dead_letter", rows)
        letters = make_dead_letters(given, dict.fromkeys(range(given.num_rows), reason), self.name)
        with self._in_use():
            self._wait_for_sink(lambda piece: self._stager.add_dead_letters(letters) if given.num_rows else None)

    def partition_state(self, topic: str, partition: int) -> StateMapping:
        """Return the keyed state of a partition of the current table: a mapping of bytes to bytes.

        Its changes are saved with the checkpoint that covers the table's records, or never. The state moves with the
        partition to another member, and a reset returns it to the last complete checkpoint. A state is loaded when it
        is first asked for; this call waits while its storage is unavailable. If the region resets meanwhile, nothing of
        the table counts, and the mapping may be empty.

        Args:
            topic: the partition's topic.
            partition: its number.

        Raises:
            InvalidInputError: the member has no `keyed_state`, or the current table has no record of the partition.
            CorruptDataError: a file of the state is gone or damaged.
        """
        self._check_process()
        self._refuse_handler("partition_state")
        if self._states is None:
            raise InvalidInputError(f"{self.name} keeps no keyed states: give it keyed_state=KeyedState(...)")
        piece = self._flow.current_table
        part = None if piece is None else _part_in(piece, topic, partition)
        if piece is None or part is None:
            raise InvalidInputError(
                f"no record of {topic}-{partition} is in the current table: ask for the state of a partition in the "
                "loop over tables(), with the partition's records"
            )
        with self._in_use():
            return StateMapping(self._loaded_state(self._states, part), lambda: self._flow.current_table is piece)

    def _loaded_state(self, states: KeyedStates, part: Part) -> LoadedKeyedState:
        """Load a partition's keyed state, retrying while its storage is unavailable.

        If the region resets meanwhile, return a state that is never saved.
        """
        wait = RetryWait(
            f"[member {self.name}] the keyed state of {part} can't be loaded at the moment, retrying",
            f"[member {self.name}] the keyed state of {part} is loaded",
        )
        state = None
        try:
            while state is None:
                try:
                    state = states.state_of(part)
                except AWAY as error:
                    if not is_temporary_error(error):
                        raise
                    self._events.report_sink_wait(wait.record_failure(error))
                    self._flow.wait_until_discarded(wait.again_s - time.monotonic())
                    if self._flow.discards_rows:
                        states.forget_partitions([part])
                except CorruptDataError:
                    self._flow.wait_until_discarded(
                        SLEPT_S
                    )  # another member may own the partition, if this one has slept
                    if not self._flow.discards_rows:
                        raise
                    states.forget_partitions([part])
            return state
        finally:
            if wait.end_wait(works=state is not None):
                self._events.report_sink_wait("")

    def _submitted(self, what: str, table: pa.Table | pa.RecordBatch) -> pa.Table:
        """Check rows that the application passes while it processes a table, and return them as a pyarrow Table."""
        self._check_process()
        self._refuse_handler(what)
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if not isinstance(table, pa.Table):
            raise InvalidInputError(f"{what} takes a pyarrow Table or RecordBatch, not {type(table).__name__}")
        if self._flow.is_idle():
            raise InvalidInputError(
                "no table is in hand, of which this is made: submit in the loop over tables(), before the next table"
            )
        return table

    def _wait_for_sink(self, give: Callable[[FetchedTable], None]) -> None:
        """Call `give`, which submits rows, again while the sink is unavailable; report the wait to the control plane.

        Return when the rows are submitted, or when a reset or the member's end discards them.
        """
        wait, taken = sink_retry_wait(self.name), False
        try:
            while not taken and not self._flow.discards_rows and (piece := self._flow.current_table) is not None:
                taken = self._try_to_give(give, piece, wait)
        finally:
            if wait.end_wait(works=taken):
                self._events.report_sink_wait("")

    def _add(self, rows: pa.Table, records: pa.Table | None, piece: FetchedTable) -> None:
        """Pass rows to the stager; an error or a dead letter names the records that the rows may come from."""

        def made_of() -> str:
            return f"; {_made_of(piece)}" if records is None and not has_source_columns(rows) else ""

        try:
            self._stager.add(rows, records=records, read=piece.table, made_of=made_of)
        except RowRefusedError as error:
            if self._own.on_bad_record == DEAD_LETTER:
                raise  # from the dead-letter sink
            if records is not None:
                raise refused_rows_error(error.reasons, records.select(SOURCE), error.column) from error
            raise RowRefusedError(f"{error.message}{made_of()}", error.row, error.column, error.offset) from error

    def _try_to_give(self, give: Callable[[FetchedTable], None], piece: FetchedTable, wait: RetryWait) -> bool:
        """Submit rows once and return True. If the sink is unavailable, wait at most one retry delay; return False."""
        try:
            give(piece)
        except AWAY as error:
            if not is_temporary_error(error):
                raise
            self._events.report_sink_wait(wait.record_failure(error))
            self._flow.wait_until_discarded(wait.again_s - time.monotonic())
            return False
        return True

    # -- requests to the region

    def checkpoint(self) -> None:
        """Request a checkpoint, in which all members drain and contribute. Return at once."""
        self._post(CheckpointRequested())

    def reset(self, cause: str) -> None:
        """Request a reset of all members to the last complete checkpoint.

        For a failure downstream of this member, of which the region can't know.
        """
        self._post(ResetRequested(cause))

    def _post(self, event: Event) -> None:
        """Queue an event for the member's thread, and wake that thread.

        A call from a signal handler does not wake it: that takes locks which the interrupted method may hold.
        """
        post = self._events.post_without_waking if self._callers.includes_current_thread() else self._events.post
        with self._in_use():
            post(event)

    def _refuse_handler(self, method: str) -> None:
        if self._callers.includes_current_thread():
            raise InvalidInputError(
                f"{method} was called by a signal's handler, or a callback, that interrupted a call of {self.name} on "
                "the same thread: set a flag there, and look at it in the loop"
            )

    # -- shutdown

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Leave with the next complete checkpoint. Do nothing on a second call.

        From the thread that is processing a table, also in a signal handler, `close` returns at once. The table counts
        when the next one is requested, and the loop ends when the member has left.

        From another thread, `close` waits until the member has left. If a signal handler has interrupted another method
        of the member, `close` returns at once too.

        Raises:
            TimedOutError: no checkpoint completed in time. The member has left nevertheless, and the region resets.
        """
        if os.getpid() != self._pid:
            return
        self.request_close(timeout_s)
        if not self.must_not_wait_here():
            self._wait_for_the_end()

    def must_not_wait_here(self) -> bool:
        """Return whether the calling thread processes a table or is inside a method, so that it must not wait."""
        ident = threading.get_ident()
        return ident == self._hand or self._callers.includes_current_thread() or ident == self._events.thread.ident

    def abort(self, cause: str) -> None:
        """Leave without a last checkpoint: the whole region resets to the last complete checkpoint.

        Like `close`, the call waits for the member's end only if this thread neither processes a table nor is inside a
        method.
        """
        if os.getpid() != self._pid:
            return
        if self._flow.error is None:  # otherwise the member is leaving by itself, and has said why
            self._events.aborting = True
            if not self.must_not_wait_here():  # otherwise the event thread clears it
                self._flow.discard_all_records()
            self.request_close(CLOSE_S)
            self._events.post_without_waking(ResetRequested(cause))
        if not self.must_not_wait_here():
            self._wait_for_the_end()

    def request_close(self, timeout_s: float = CLOSE_S) -> None:
        """Request to leave with the next complete checkpoint, without waiting.

        This method takes no lock: a signal handler may have interrupted the thread that holds it.
        """
        if not self._asked_to_close:
            self._asked_to_close = True
            self._flow.stop_delivery()
            self._events.set_close_deadline(timeout_s)
            self._events.post_without_waking(CloseRequested())

    def _wait_for_the_end(self) -> None:
        with self._in_use():
            self._events.wake()
            self._events.thread.join()
            if not self._forgotten:
                self._forgotten = True
                self._ended(self)
            if self._states is not None and self._flow.is_idle():
                self._states.close()
        self._raise_if_late()

    def _raise_if_late(self) -> None:
        """Raise TimedOutError, once, if no checkpoint was complete within the timeout of `close`."""
        late, self._events.late = self._events.late, ""
        if late:
            raise TimedOutError(late)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Mark the thread as inside a method of the member, so that a signal handler on it does not wait for it."""
        self._check_process()
        with self._callers.mark_current_thread():
            yield

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise InvalidInputError(
                f"{self.name} was made before a fork and belongs to the parent process: make a member in each process"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hand == threading.get_ident():
            self._leave_undone(self._flow.current_table, dirty=self._own.has_application_state)
        if error is None:
            self.close()
        else:
            try:
                self.abort(f"the application has failed: {error!r}")
            except TimedOutError as late:  # the application's own error is the cause, and stays the one that is raised
                log.warning("[member %s] still closing, after an error of the application: %s", self.name, late)


def _part_in(piece: FetchedTable, topic: str, partition: int) -> Part | None:
    """Return a partition of the current table with its topic id; None: the table has no record of it."""
    return next((part for part in piece.ends if (part.topic, part.partition) == (topic, partition)), None)


def _made_of(piece: FetchedTable) -> str:
    """Describe the current table's records as text, for errors about rows without topic, partition and offset."""
    table = piece.table.select(["topic", "partition", "offset"])
    spans = table.group_by(["topic", "partition"]).aggregate([("offset", "min"), ("offset", "max")]).to_pylist()
    spans.sort(key=lambda span: (span["topic"], span["partition"]))
    said = [f"{span['topic']}-{span['partition']} {span['offset_min']} to {span['offset_max']}" for span in spans]
    more = f", and {len(said) - SPANS_TOLD} more" if len(said) > SPANS_TOLD else ""
    return f"the table in hand has offsets of {', '.join(said[:SPANS_TOLD])}{more}"
