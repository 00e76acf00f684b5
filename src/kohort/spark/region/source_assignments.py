"""The assignments of one source of a region: the driver program's answers to the source's requests.

Two threads meet here: the member's, which adds and removes partitions, and the thread of the source's connection. The
partitions of a batch are fixed when it begins; later changes apply to the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kohort.ids import TopicPartition
from kohort.region.records import Position
from kohort.spark.source_sessions import AssignmentReply, AssignmentReplyPart, IdleState, LostRecords


class SourceAssignments:
    """The partitions assigned to one source of a region's query, and its running batch.

    The object lives as long as the source's member, over several runs of the query. Batches can be paused for several
    reasons at once; a batch that runs already continues.
    """

    def __init__(
        self, begun: Callable[[], None], done: Callable[[], None], lost: Callable[[LostRecords], None]
    ) -> None:
        """Set up a source's state without partitions.

        Args:
            begun: called when a batch begins, before other threads can see that it runs; must not call this object. A
                thread that calls `pause_batches` and sees no running batch has had this call for every earlier one.
            done: called when a batch is done; from any thread.
            lost: called when the source has found that records are missing; from its connection's thread.
        """
        self._begun, self._done, self.lost = begun, done, lost
        self._changed = threading.Condition()
        self._parts: dict[TopicPartition, AssignmentReplyPart] = {}
        self._kept: set[TopicPartition] = set()  # being revoked: no new batch reads them
        self._holds = {"not started": False}  # by reason; whether Spark's trigger must wait until it ends
        self._version = self._assigned_count = self._run = 0
        self._epoch = self._generation = -1
        self._running: int | None = None
        self._has_read = False

    # -- the source's thread

    def wait_partitions(self, wait_ms: int, run: int, idle: IdleState | None = None) -> AssignmentReply | None:
        """Return the partitions that a region's query may read now; None while batches are paused, or the run is over.

        The region pauses batches before the query starts, while partitions are released, and at its end. Then this
        waits at most `wait_ms`. A source that found nothing to read (`idle`) first waits for `idle.ms`, unless the
        assignment changes.
        """

        def has_assignment_news() -> bool:
            return idle is None or bool(self._holds) or (idle.version, run) != (self._version, self._run)

        with self._changed:
            if idle is not None:
                self._changed.wait_for(has_assignment_news, idle.ms / 1000)
            self._changed.wait_for(lambda: not self._holds or self._run != run, wait_ms / 1000)
            if self._holds or self._run != run:
                return None
            parts = tuple(part for partition, part in sorted(self._parts.items()) if partition not in self._kept)
            return AssignmentReply(self._version, self._epoch, self._generation, parts)

    def keeps_trigger_waiting(self) -> bool:
        """Return whether `latestOffset` must keep waiting, because "no new data" would end Spark's trigger."""
        with self._changed:
            return any(self._holds.values())

    def begin_batch(self, version: int, batch: int) -> bool:
        """Begin a batch of an assignment version; return False if the assignment has changed."""
        with self._changed:
            if self._holds or version != self._version:
                return False
            self._begun()
            self._running, self._has_read = batch, True
        return True

    def complete_batch(self, batch: int, run: int) -> None:
        """Mark the running batch as done: its rows are staged, and `commits/` of Spark's checkpoint has it.

        Ignored for a batch that is not running, and for another run, which may use the same batch numbers.
        """
        with self._changed:
            if (self._run, self._running) != (run, batch):
                return
            self._running = None
        self._done()

    # -- the member's thread

    def end_run(self) -> None:
        """End the run before it is stopped: Spark's stop would wait for the source's request, which is answered now."""
        with self._changed:
            self._run += 1
            self._changed.notify_all()

    def discard_running_batch(self) -> None:
        """Forget the running batch, if there is one, because its run was stopped."""
        with self._changed:
            self._running = None
        self._done()

    def begin_run(self, epoch: int) -> RunSession:
        """Begin a run of the query; batches and messages of earlier runs are ignored from now on."""
        with self._changed:
            self._epoch, self._running = epoch, None
            self._run += 1
            self._changes()
            return RunSession(self, self._run)

    def set_group_generation(self, generation: int) -> None:
        """Set the group's generation, which sources report in the query's progress."""
        with self._changed:
            self._generation = generation

    def assign_partition(self, position: Position) -> None:
        """Assign a partition from an offset on, with an assignment number that it never had."""
        with self._changed:
            self._assigned_count += 1
            self._parts[TopicPartition(position.topic, position.partition)] = AssignmentReplyPart(
                position.topic, position.topic_id, position.partition, position.offset, self._assigned_count
            )
            self._changes()

    def stop_planning(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop planning partitions that are being revoked; the member still owns them."""
        with self._changed:
            self._kept |= set(partitions) & self._parts.keys()
            self._changes()

    def remove_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions that the member no longer owns."""
        with self._changed:
            for partition in partitions:
                self._parts.pop(partition, None)
                self._kept.discard(partition)
            self._changes()

    def remove_partitions(self) -> None:
        """Remove all partitions and the running batch."""
        with self._changed:
            self._parts.clear()
            self._kept.clear()
            self._running, self._has_read = None, False
            self._changes()

    def pause_batches(self, why: str, *, stays: bool = False) -> int | None:
        """Keep batches from beginning until `resume_batches` gets the same reason; return the running batch's number.

        Args:
            why: the reason.
            stays: whether batches without records are kept from beginning too, so that Spark's trigger waits.
        """
        with self._changed:
            self._holds[why] = stays
            self._changed.notify_all()
            return self._running

    def resume_batches(self, why: str) -> None:
        """Let batches begin again, unless `pause_batches` has other reasons."""
        with self._changed:
            self._holds.pop(why, None)
            self._changed.notify_all()

    def running_batch(self) -> int | None:
        """Return the number of the running batch; None if none runs."""
        with self._changed:
            return self._running

    def has_begun_batch(self) -> bool:
        """Return whether a batch has begun since `remove_partitions`."""
        with self._changed:
            return self._has_read

    def all_assigned(self) -> dict[TopicPartition, AssignmentReplyPart]:
        """Return all assigned partitions, including those being revoked."""
        with self._changed:
            return dict(self._parts)

    def _changes(self) -> None:
        self._version += 1
        self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class RunSession:
    """The `SourceSession` of one source for one run of its query, so that late messages of earlier runs are ignored."""

    assignments: SourceAssignments
    run: int

    def wait_partitions(self, wait_ms: int, idle: IdleState | None = None) -> AssignmentReply | None:
        return self.assignments.wait_partitions(wait_ms, self.run, idle)

    def keeps_trigger_waiting(self) -> bool:
        return self.assignments.keeps_trigger_waiting()

    def begin_batch(self, version: int, batch: int) -> bool:
        return self.assignments.begin_batch(version, batch)  # versions are unique across runs

    def complete_batch(self, batch: int) -> None:
        self.assignments.complete_batch(batch, self.run)

    def report_lost(self, lost: LostRecords) -> None:
        self.assignments.lost(lost)
