"""The thread of a member that reads with a consumer: only this thread polls and commits.

Work that must wait until no table is in progress is checked again on every iteration. Source: spec 5.2, 5.7-5.11.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from kohort.client.consumer.consumer import Consumer
from kohort.client.consumer.core import WakeupError
from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import FencedError, InvalidInputError, KafkaError, NotAuthorizedError, OffsetError
from kohort.ids import TopicPartition
from kohort.region.consuming.member_thread import COMMIT_MS, MemberThread, offset_and_metadata, to_topic_partition
from kohort.region.consuming.publishing import SinkPublisher
from kohort.region.consuming.settings import MemberConfig
from kohort.region.consuming.staging import RowStager, sink_retry_wait
from kohort.region.consuming.work_queue import FetchedTable, RecordQueue
from kohort.region.keyed_state.states import KeyedStateSweeper
from kohort.region.member import events
from kohort.region.member.events import Effect
from kohort.region.member.machine import MemberMachine
from kohort.region.messages import CheckpointAttempt
from kohort.region.records import Part, Position, to_part
from kohort.region.sinks.availability import is_permanent_error, is_temporary_error
from kohort.region.staged import Staged

log = logging.getLogger("kohort.region")

POLL_MS, SLOW_S = 100, 0.1
LEAVE_S = 60.0
"""Seconds in which a member leaves after its sink has refused its rows for good."""
LEFT_UNDONE = "the application left its loop with a table in hand, which its state may have already"


class RegionCallbacks(Protocol):
    """The application's callbacks during checkpoints and resets: on_drain, on_checkpoint, on_reset, on_retire."""

    def on_drain(self) -> None: ...

    def on_checkpoint(self, sequence: int) -> bytes: ...

    def on_reset(self, sequence: int, state: bytes | None) -> None: ...

    def on_retire(self, sequence: int) -> None: ...


@dataclass(slots=True)
class _Waiting:
    """The deferred work of the thread: a drain, a reset, or a state to save. Each iteration tries it again."""

    drain: CheckpointAttempt | None = None
    drain_since_s: float = 0.0
    go_back: events.ResetApplication | None = None
    save: CheckpointAttempt | None = None


class EventThread(MemberThread):
    """The thread that polls, commits and takes part in checkpoints for a member with a consumer."""

    def __init__(
        self,
        machine: MemberMachine,
        consumer: Consumer,
        flow: RecordQueue,
        stager: RowStager,
        publishers: Sequence[SinkPublisher],
        callbacks: RegionCallbacks,
        config: MemberConfig,
    ) -> None:
        """Initialise the thread; nothing runs before `start`."""
        super().__init__(machine, consumer, publishers, config)
        self._flow, self._stager, self._callbacks = flow, stager, callbacks
        self._states = config.states
        self._sweeper = None if config.states is None else KeyedStateSweeper(config.states.store, machine.name)
        self._waiting, self._sink_wait = _Waiting(), sink_retry_wait(machine.name)
        self._reads: set[TopicPartition] = set()
        self._resumed: set[TopicPartition] = set()
        self._at: dict[TopicPartition, OffsetAndMetadata] = {}
        self._polls = self._slowly = self._full = self._refused = self.aborting = False
        self._polled_s = 0.0
        self._end_by: tuple[float, float] | None = None
        self.late = ""
        flow.set_change_callback(self._flow_changed)

    def _flow_changed(self) -> None:
        """Wake the thread after a table was taken or finished, if a drain, a reset or a full queue waits for that."""
        waiting = self._waiting
        if waiting.drain is not None or waiting.go_back is not None or self._full:
            self.wake()

    def post_without_waking(self, event: events.Event) -> None:
        """Queue an event without waking the thread, which handles it after its current poll.

        This takes no lock: a signal handler may call it.
        """
        self._posted.put(event)

    def set_close_deadline(self, timeout_s: float) -> None:
        """Set the deadline for closing: after `timeout_s` seconds the member ends without a checkpoint.

        `late` then has the error text.

        A later call can only make the deadline earlier.
        """
        wanted = (time.monotonic() + timeout_s, timeout_s)
        self._end_by = wanted if self._end_by is None else min(self._end_by, wanted)

    def _look_at_the_time(self) -> None:
        if self._refused and any(publisher.refused for publisher in self._publishers.values()):
            self._over = True  # no sequence can be published here, so that leaving would not end
        if self._end_by is not None and time.monotonic() > self._end_by[0]:
            self.late = f"{self.name}: no sequence was complete within {self._end_by[1]:g} s of the close"
            self._over = True

    def _most(self) -> int:
        return self._consumer.config.max_poll_records

    def _work(self) -> None:
        self._look_at_the_time()
        if self._over:
            return
        if self._states is not None and self._flow.is_idle():
            self._states.close_forgotten_copies()
        if self.aborting:
            self._flow.discard_all_records()
        self._continue_draining()
        self._continue_saving()
        self._continue_reset()
        if not self._over:
            self._poll()

    def _thread_ended(self, error: BaseException | None) -> None:
        self._flow.end_queue(error)
        if self._sweeper is not None:
            self._sweeper.close()

    # -- polling

    def _poll(self) -> None:
        self._full = self._flow.free_record_count() < self._most()
        reading = self._polls and self._waiting.drain is None and not self._full
        self._resume(self._reads if reading else set())
        self._news.clear()
        if not self._posted.empty():
            return
        if self._slowly and (wait_s := self._polled_s + SLOW_S - time.monotonic()) > 0 and self._news.wait(wait_s):
            return
        self._polled_s = time.monotonic()
        try:
            batch = self._poll_once()
        except WakeupError:
            return
        except OffsetError as error:
            self._data_lost(error)
            return
        if batch is not None and batch.num_rows:
            self._fetched(batch)

    def _poll_once(self) -> pa.RecordBatch | None:
        """Poll for as many records as the application takes at once: a poll costs about the same for more records."""
        most = max(self._most(), min(self._flow.free_record_count(), self._flow.at_once))
        try:
            return self._consumer.poll_arrow(POLL_MS, max_records=most)
        except WakeupError:
            if self._news.is_set():
                raise
        return self._consumer.poll_arrow(
            POLL_MS, max_records=most
        )  # the wakeup was for an event that is handled already

    def _resume(self, wanted: set[TopicPartition]) -> None:
        held = self._consumer.assignment()
        wanted = (wanted & held) - self._consumer.wanted()
        self._resumed &= held
        if wanted != self._resumed:
            self._consumer.pause(*(self._resumed - wanted))
            self._consumer.resume(*(wanted - self._resumed))
            self._resumed = wanted

    def _fetched(self, batch: pa.RecordBatch) -> None:
        self._step(events.RecordsFetched())
        if not self._polls:
            return  # the records are discarded: the region resets
        now = self._consumer.positions()
        moved = {part: now[part] for part in self._reads if part in now and now[part] != self._at.get(part)}
        self._at.update(moved)
        ends = {self._parts[at]: _position(self._parts[at], where) for at, where in moved.items()}
        self._flow.add_fetched(FetchedTable(pa.Table.from_batches([batch]), ends))

    def _data_lost(self, error: OffsetError) -> None:
        """Handle a read position that the log no longer has: skip to the earliest offset, or stop the region."""
        if not self._config.fail_on_data_loss and error.partition is not None:
            if error.partition in self._reads:
                log.warning(
                    "[member %s] the log no longer has the next offset, so records are lost; continuing at the "
                    "earliest offset "
                    "(fail_on_data_loss=False): %s",
                    self.name,
                    error,
                )
                self._consumer.seek_to_beginning(error.partition)
            return
        self._step(
            events.MemberFailed(
                f"records are lost: {error}",
                "go on with fail_on_data_loss=False, which leaves them out, or reset the region to its initial state",
            )
        )
        self._reads.clear()

    # -- deferred work

    def _continue_draining(self) -> None:
        """Commit the offsets of all partitions in one request, then report the drain. Source: spec 5.9.

        Nothing happens while a table is in progress. A commit that is fenced or not authorized fails the drain. After
        another error, it is retried after the next poll, which brings a new generation or the loss of the partitions.
        """
        cut = self._waiting.drain
        if cut is None or not self._flow.is_idle():
            return
        if self._flow.dirty:
            self._waiting.drain = None
            self._step(events.DrainAborted(cut, LEFT_UNDONE))
            return
        offsets = {to_topic_partition(part): offset_and_metadata(at) for part, at in self._ends().items()}
        try:
            if offsets:
                self._consumer.commit(offsets, timeout_ms=COMMIT_MS)
        except (FencedError, NotAuthorizedError) as error:
            self._waiting.drain = None
            self._step(events.DrainAborted(cut, f"its offsets could not be committed: {error}"))
            return
        except KafkaError as error:
            log.info("[member %s] offset commit failed, retrying: %s", self.name, error)
            return
        self._waiting.drain = None
        took_ms = (time.monotonic() - self._waiting.drain_since_s) * 1000
        self.metrics.drain_ms = took_ms
        self.metrics.longest_drain_ms = max(self.metrics.longest_drain_ms, took_ms)
        try:
            self._callbacks.on_drain()
        except Exception as error:
            log.exception(
                "[member %s] the application's on_drain raised an exception, so the region will be reset", self.name
            )
            self._step(events.DrainAborted(cut, f"on_drain: {error!r}"))
            return
        self._step(events.DrainCompleted(cut))

    def _ends(self) -> dict[Part, Position]:
        """Return each partition's next offset: after its last submitted record, and past offsets without a record."""
        ends = self._flow.next_offsets()
        now = self._consumer.positions()
        for part in ends:
            at = now.get(to_topic_partition(part))
            if at is not None and at.offset > ends[part].offset and not self._flow.has_records_of(part):
                ends[part] = _position(part, at)
        return ends

    def _continue_reset(self) -> None:
        wanted = self._waiting.go_back
        if wanted is None or not self._flow.is_idle():
            return
        self._waiting.go_back = None
        self._flow.discard_all_records()
        self._flow.discard_partitions()
        self._reads.clear()
        self._at.clear()
        self._later.look_up.clear()
        self._stager.begin_epoch(wanted.epoch)
        if self._states is not None:
            self._states.forget_all_partitions()
        self.metrics.resets += 1
        if not self.aborting:
            self._callbacks.on_reset(wanted.sequence, wanted.state)
        self._step(events.ApplicationReset(wanted.epoch))

    # -- effects

    def _run_effect(self, effect: Effect) -> None:
        match effect:
            case events.StartPolling(slowly):
                self._polls, self._slowly = True, slowly
            case events.StopPolling(clear):
                self._polls = False
                self._flow.close_for_application()
                if clear:
                    self._flow.discard_all_records()
            case events.DrainMember(cut):
                self._flow.close_for_application()
                self._waiting.drain, self._waiting.drain_since_s = cut, time.monotonic()
            case events.SaveState(cut, _):
                self._save_state(cut)
            case events.ResumeSubmitting():
                self._waiting.drain = None
                self._saves_no_more()
                self._flow.open_for_application()
            case events.ResetApplication():
                self._waiting.drain, self._waiting.go_back = None, effect
                self._saves_no_more()
                self._flow.close_for_application()
            case events.BeginEpoch(epoch, sequence, state):
                self._begin_epoch(epoch, sequence, state)
            case events.RetireCheckpoints(_, retired, counts):
                self._retire(retired, counts=counts)

    def _assignment_changed(self, partitions: set[TopicPartition]) -> None:
        self._reads &= partitions

    def _sought(self, position: Position, partition: TopicPartition) -> None:
        self._consumer.seek(partition, offset_and_metadata(position))
        self._flow.set_start_offset(position, to_part(position))
        self._at[partition] = offset_and_metadata(position)
        self._reads.add(partition)
        if self._states is not None:
            self._states.set_saved_state(to_part(position), position.state)

    def _forget_partitions(self, parts: tuple[Part, ...]) -> None:
        self._flow.discard_partitions(parts)
        self._reads -= {to_topic_partition(part) for part in parts}
        if self._states is not None:
            self._states.forget_partitions(list(parts))

    def _begin_epoch(self, epoch: int, sequence: int, state: bytes | None) -> None:
        self._stager.begin_epoch(epoch)
        if state is not None:
            self._callbacks.on_reset(sequence, state)
        self._flow.open_for_application()

    def _save_state(self, cut: CheckpointAttempt) -> None:
        self._waiting.save = cut
        self._continue_saving()

    def _continue_saving(self) -> None:
        """Stage the remaining rows, save all state, and contribute to the checkpoint.

        While the sink is unavailable, this is retried, and polls continue.
        """
        cut = self._waiting.save
        if cut is None or time.monotonic() < self._sink_wait.again_s:
            return
        try:
            staged = Staged(self._stager.stage_rest(), *self._stager.stage_dead_letters())
            heads = {} if self._states is None else self._states.save(cut.sequence)
        except Exception as error:
            if is_temporary_error(error):
                self.report_sink_wait(self._sink_wait.record_failure(error))
                return
            if is_permanent_error(error):
                self._end_refused(error)
                return
            log.exception("[member %s] rows could not be staged in the sink, so the region will be reset", self.name)
            self._not_saved(cut, error)
            return
        self._saves_no_more(works=True)
        try:
            state = self._callbacks.on_checkpoint(cut.sequence)
            if not isinstance(state, bytes):
                raise InvalidInputError(
                    f"on_checkpoint gives bytes, not {type(state).__name__}: encode what it returns"
                )
        except Exception as error:
            log.exception(
                "[member %s] the application's on_checkpoint raised an exception, so the region will be reset",
                self.name,
            )
            self._not_saved(cut, error)
            return
        ends = {part: replace(at, state=heads.get(part)) for part, at in self._ends().items()}
        self._give(cut, ends, staged, state)

    def _end_refused(self, error: Exception) -> None:
        """Leave the region because the sink refuses this member's rows permanently; the others reset once and continue.

        `tables()` raises the error at once, as `submit` does when it meets such an error.
        """
        log.error("[member %s] leaving the region: its sink refuses the rows for good: %s", self.name, error)
        self._saves_no_more()
        self._error, self.aborting, self._refused = error, True, True
        self._flow.end_queue(error)
        self.set_close_deadline(LEAVE_S)
        self._step(events.ResetRequested(f"{self.name} could not stage its rows: {error!r}"))
        self._step(events.CloseRequested())

    def _not_saved(self, cut: CheckpointAttempt, error: Exception) -> None:
        self._saves_no_more()
        self._step(events.DrainAborted(cut, f"its state could not be saved: {error!r}"))

    def _saves_no_more(self, *, works: bool = False) -> None:
        self._waiting.save = None
        if self._sink_wait.end_wait(works=works):
            self.report_sink_wait("")

    def report_sink_wait(self, cause: str) -> None:
        """Report why the sink accepts no rows at the moment; empty: it accepts rows again. Any thread may call this."""
        self.metrics.staging_wait_cause = cause
        self.post(events.SinkWaitChanged(cause))

    def _retire(self, retired: int, *, counts: bool) -> None:
        self.metrics.sequences += 1
        if counts:
            self.metrics.dead_letters += self._stager.forget_contribution()
            if self._states is not None and self._sweeper is not None:
                self._sweeper.queue_sweeps(self._states.on_checkpoint_completed())
        if retired > 0:
            self._callbacks.on_retire(retired)


def _position(part: Part, at: OffsetAndMetadata) -> Position:
    return Position(part.group, part.topic, part.topic_id, part.partition, at.offset, at.leader_epoch)
