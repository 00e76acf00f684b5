"""The member's thread of a Spark source: it serves group and control plane while the query keeps reading.

It differs from a member that reads by itself in three ways:

- A checkpoint attempt does not stop the query: the thread contributes the last completed batch.
- When partitions are being revoked, no batch reads them once the running one is done. They are released with the region
  checkpoint of an attempt that begins after that.
- A reset is the query's task, which starts again from another checkpoint folder.

Source: spec 5.6-5.12, 6.2.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from kohort.client.consumer.consumer import Consumer
from kohort.client.consumer.core import WakeupError
from kohort.errors import KafkaError
from kohort.ids import TopicPartition
from kohort.region.consuming.member_thread import MemberThread, to_topic_partition
from kohort.region.consuming.publishing import SinkPublisher
from kohort.region.consuming.settings import MemberConfig
from kohort.region.member import events as happens
from kohort.region.member.events import Effect, Event
from kohort.region.member.machine import MemberMachine
from kohort.region.messages import CheckpointAttempt
from kohort.region.records import Part, Position
from kohort.region.staged import Staged
from kohort.spark.region.source_assignments import SourceAssignments
from kohort.spark.source_sessions import LostRecords

log = logging.getLogger("kohort.spark")

POLL_TIMEOUT_MS, BUSY_POLL_TIMEOUT_MS = 100, 10
"""Longest wait of a poll, and the wait while something depends on the running batch."""
REQUEST_INTERVAL_S = 1.0
"""Interval at which a query that is far ahead asks again for a region checkpoint: a request may be lost with a
connection or a reset.
"""
RELEASE, POLLING, CLOSING, AHEAD = "partitions are wanted back", "not polling", "closing", "too far ahead"
"""Reasons to keep batches from beginning."""


class QueryForMembers(Protocol):
    """An interface: the methods of a query (`RegionQuery`) that its members call, from any thread."""

    def request_run(self, member: int, epoch: int, state: bytes | None) -> None:
        """Request a run in this epoch, from this saved state; it starts when all members of the query have done so."""

    def restart_run(self, member: int, epoch: int, state: bytes | None) -> None:
        """Stop the query's run because the region resets, and request the next in this epoch, from this saved state."""

    def contribute(
        self, member: int, cut: CheckpointAttempt, names: tuple[str, ...]
    ) -> tuple[dict[TopicPartition, Position], Staged, bytes]:
        """Return the results up to the last completed batch: end offsets, staged files, and the query's state.

        Args:
            member: the member that contributes.
            cut: the checkpoint attempt.
            names: all members that contribute; unless all of the query's members do, every contribution is discarded.

        Raises:
            KafkaError: the results can't be determined.
        """

    def forget_contribution(self, member: int) -> int:
        """Forget the last contribution, which a complete checkpoint includes; return its number of dead letters."""

    def check_running_batch(self, member: int) -> None:
        """Check whether the running batch is done, by the commits in Spark's checkpoint."""

    def is_idle(self) -> bool:
        """Return whether no batch that reads from any of the query's sources is running."""

    def on_source_member_ended(self, source_number: int, error: BaseException | None) -> None:
        """Record that the member of one of the query's sources has ended, perhaps by an error."""


class SourceMemberThread(MemberThread):
    """The thread of one source's member of the region: it runs in the application, and joins the source's group."""

    def __init__(
        self,
        machine: MemberMachine,
        consumer: Consumer,
        publishers: Sequence[SinkPublisher],
        config: MemberConfig,
        query: QueryForMembers,
        number: int,
    ) -> None:
        """Set up the thread of source `number` of the query; `start` starts it."""
        super().__init__(machine, consumer, publishers, config)
        self.assignments = SourceAssignments(lambda: self.post(happens.RecordsFetched()), self.wake, self._lost)
        self._query, self.number = query, number
        self._asked_back: deque[happens.PartitionsRevoked] = deque()  # revocations that wait for the running batch
        self._kept: deque[happens.PartitionsRevoked] = deque()  # no batch reads these; they wait for the attempt to end
        self._leaves = False
        self._saves: tuple[CheckpointAttempt, tuple[str, ...]] | None = (
            None  # the attempt to save state for, and its members
        )
        self._ask_again_s = 0.0

    def leave_region(self) -> None:
        """Leave with the next complete checkpoint: finish the running batch, and begin no other."""
        self.assignments.pause_batches(CLOSING)
        self._leaves = True
        self.wake()

    def pace_checkpoints(self, ahead: int, asks_at: int, holds_at: int) -> None:
        """Request checkpoints, or pause the query, so that it does not run too many batches ahead of the last one.

        Args:
            ahead: the batches that the query has run since that checkpoint.
            asks_at: this many batches ahead, request a checkpoint.
            holds_at: this many batches ahead, begin no batch until the checkpoint is complete.
        """
        if ahead >= holds_at:
            self.assignments.pause_batches(AHEAD, stays=True)  # timers alone could run more batches than Spark retains
        else:
            self.assignments.resume_batches(AHEAD)
        if ahead < asks_at:
            self._ask_again_s = 0.0
        elif time.monotonic() >= self._ask_again_s:
            self._ask_again_s = time.monotonic() + REQUEST_INTERVAL_S
            self.post(happens.CheckpointRequested())

    def _lost(self, lost: LostRecords) -> None:
        """Fail the member, because its source has lost records; do nothing with failOnDataLoss=false."""
        if lost.fatal:
            remedy = "set failOnDataLoss=false, which leaves them out, or reset the region to its initial state"
            self.post(happens.MemberFailed(lost.text, remedy))

    # -- The loop of the thread

    def _work(self) -> None:
        self._continue_saving()
        self._keep_when_idle()
        self._give_back_between_cuts()
        self._leave_when_idle()
        waits = bool(self._asked_back) or (self._leaves and not self.machine.closing)
        if waits:
            self._look_for_end()
        if not self._over:
            self._poll(BUSY_POLL_TIMEOUT_MS if waits else POLL_TIMEOUT_MS)

    def _look_for_end(self) -> None:
        try:
            self._query.check_running_batch(self.number)
        except (KafkaError, OSError) as error:
            log.info(
                "[member %s] can't check whether its query's batch is done, waiting for Spark's report: %s",
                self.name,
                error,
            )

    def _process_posted(self) -> None:
        """Pass all posted events to the member's state machine now, above all that a batch has begun to read.

        Otherwise the machine could release partitions as if nothing had been read. That event is repeated, because the
        machine may ignore it during a checkpoint attempt.
        """
        while not self._posted.empty():
            self._step(self._posted.get())
        if self.assignments.has_begun_batch():
            self._step(happens.RecordsFetched())

    def _poll(self, wait_ms: float) -> None:
        self._news.clear()
        if not self._posted.empty():
            return
        try:
            self._consumer.poll(wait_ms)
        except WakeupError:
            return

    def _from_the_group(self, event: Event) -> None:
        if isinstance(event, happens.PartitionsRevoked):
            self.assignments.pause_batches(RELEASE)
            self._asked_back.append(event)
            return
        if isinstance(event, happens.PartitionsLost):
            self.assignments.remove_revoked(
                map(to_topic_partition, event.parts)
            )  # no batch begins with them from here on
            self._process_posted()
            self._is_not_asked_back(event.parts)
        self._step(event)

    def _is_not_asked_back(self, parts: tuple[Part, ...]) -> None:
        """Remove lost partitions from the pending revocations.

        Otherwise a late release could release the same partition after it was assigned again.
        """
        for waiting in (self._asked_back, self._kept):
            left = [tuple(part for part in event.parts if part not in parts) for event in waiting]
            waiting.clear()
            waiting.extend(happens.PartitionsRevoked(parts_left) for parts_left in left if parts_left)
        if not self._asked_back:
            self.assignments.resume_batches(RELEASE)

    def _keep_when_idle(self) -> None:
        """Stop planning batches of revoked partitions, once no batch is running; other partitions continue."""
        if not self._asked_back or self.assignments.pause_batches(RELEASE) is not None:
            return
        while self._asked_back:
            event = self._asked_back.popleft()
            self.assignments.stop_planning(map(to_topic_partition, event.parts))
            self._kept.append(event)
        self.assignments.resume_batches(RELEASE)

    def _give_back_between_cuts(self) -> None:
        """Pass pending revocations to the member's machine, unless a checkpoint attempt is under way.

        The machine releases the partitions with the next region checkpoint. The contribution to a running attempt may
        be older than the last batch that read them.
        """
        if self._kept:
            self._process_posted()
        while self._kept and self.machine.cut is None:
            self._step(self._kept.popleft())

    def _leave_when_idle(self) -> None:
        """Request to leave the region, if the query is idle and no checkpoint attempt is under way.

        The next checkpoint then includes everything that was read.
        """
        if self._leaves and not self.machine.closing and self._query.is_idle():
            self._process_posted()
            if self.machine.cut is None:
                self._step(happens.CloseRequested())

    def _thread_ended(self, error: BaseException | None) -> None:
        self.assignments.pause_batches("ended")
        self._query.on_source_member_ended(self.number, error)

    # -- Effects of the machine

    def _run_effect(self, effect: Effect) -> None:
        match effect:
            case happens.StartPolling():
                self.assignments.resume_batches(POLLING)
            case happens.StopPolling(clear):
                self.assignments.pause_batches(POLLING)
                if clear:
                    self.assignments.remove_partitions()
            case happens.DrainMember(cut):
                self._step(happens.DrainCompleted(cut))  # the query keeps reading
            case happens.SaveState(cut, names):
                self._saves = cut, names
                self._continue_saving()
            case happens.ResetApplication(epoch, _, state):
                self.metrics.resets += 1
                self._later.look_up.clear()
                self._query.restart_run(self.number, epoch, state)
            case happens.BeginEpoch(epoch, _, state):
                self._query.request_run(self.number, epoch, state)
            case happens.RetireCheckpoints(_, _, counts):
                self.metrics.sequences += 1
                if counts:
                    self.metrics.dead_letters += self._query.forget_contribution(self.number)
            case _:
                pass  # `ResumeSubmitting`: the query never stopped

    def _continue_saving(self) -> None:
        """Contribute to the checkpoint attempt, once no earlier offset commit is pending.

        A late commit could overwrite the newer offsets. A commit without an answer is sent again: when the second is
        answered, the first is over too.
        """
        if self._saves is None or self._saves[0] != self.machine.cut:
            self._saves = None
            return
        cut, names = self._saves
        waiting = self._later
        unanswered, waiting.unanswered = waiting.unanswered, {}
        self._commit_deferred(unanswered)
        if waiting.unanswered:
            return
        self._saves = None
        self._save_state(cut, names)

    def _save_state(self, cut: CheckpointAttempt, names: tuple[str, ...]) -> None:
        try:
            ends, staged, state = self._query.contribute(self.number, cut, names)
        except (KafkaError, OSError) as error:
            log.warning(
                "[member %s] can't determine its end offsets, staged files and state for checkpoint %s, so the region "
                "will be reset: %s",
                self.name,
                cut,
                error,
            )
            self._step(happens.DrainAborted(cut, str(error)))
            return
        self._give(cut, self._ends(ends), staged, state)

    def _ends(self, ends: dict[TopicPartition, Position]) -> dict[Part, Position]:
        """Return the end offsets of all assigned partitions; for one that no batch has read, its start offset."""
        found: dict[Part, Position] = {}
        for part, begin in self.machine.begins.items():
            at = ends.get(to_topic_partition(part))
            sound = at is not None and at.topic_id == part.topic_id
            begun = Position(part.group, part.topic, part.topic_id, part.partition, begin)
            found[part] = at if at is not None and sound else begun
        return found

    def _assignment_changed(self, partitions: set[TopicPartition]) -> None:
        gone = self.assignments.all_assigned().keys() - partitions
        if gone:
            self.assignments.remove_revoked(gone)
        self.assignments.set_group_generation(self.machine.identity.generation)

    def _sought(self, position: Position, partition: TopicPartition) -> None:
        self.assignments.assign_partition(position)

    def _forget_partitions(self, parts: tuple[Part, ...]) -> None:
        self.assignments.remove_revoked(map(to_topic_partition, parts))
