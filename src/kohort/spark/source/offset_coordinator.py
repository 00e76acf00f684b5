"""The interface of a query to whoever keeps its offsets: partitions, their starts, and the commit of a completed batch.

A query decides how much a batch reads; an offset coordinator decides everything that is shared with others.
`group_offsets.py` is for a query that keeps its own offsets, `region_offsets.py` for a query of a region.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kohort.ids import TopicId, TopicPartition
from kohort.spark.source.batch_offset import BatchOffset
from kohort.spark.source.progress import MemberProgress

log = logging.getLogger("kohort.spark")

RETRY_DELAY_S = 0.1
"""Delay before partitions are requested again that changed while their starts were looked up."""
_WARNING_AFTER_S, _WARNING_ATTEMPTS = 30.0, 20
"""Time and attempts after which repeated changes are logged. A rebalance or a deleted topic costs one or two attempts,
though one may take long.
"""


class AssignmentRetry:
    """The delay between attempts to plan a batch while the assignment keeps changing, with one warning for many."""

    def __init__(self) -> None:
        self._warning_at_s = time.monotonic() + _WARNING_AFTER_S
        self._attempts = 0

    def wait_and_warn(self) -> None:
        """Wait before the next attempt, and log one warning after many attempts."""
        self._attempts += 1
        if self._attempts >= _WARNING_ATTEMPTS and time.monotonic() > self._warning_at_s:
            self._warning_at_s = float("inf")
            log.warning(
                "the assignment of a query's group was changing at each of %d lookups (the group rebalances again and "
                "again, another "
                "member has yet to release partitions, or topics are deleted and created): nothing is read, and "
                "lookups are repeated, until it is stable",
                self._attempts,
            )
        time.sleep(RETRY_DELAY_S)


@dataclass(frozen=True, slots=True)
class AssignedPartitions:
    """The partitions that the query may read now.

    Attributes:
        partitions: all of them.
        generation: the group's generation since when they are owned; -1 without a group.
        starts: where each of them continues, once that is known.
        ids: the ids of their topics, as far as they are known.
        epoch: the region's epoch; -1 without a region.
        assignment_versions: in a region, the number of each partition's assignment.
        version: in a region, the version of the driver program's assignment.
    """

    partitions: tuple[TopicPartition, ...]
    generation: int = -1
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    ids: Mapping[str, TopicId] = field(default_factory=dict)
    epoch: int = -1
    assignment_versions: Mapping[TopicPartition, int] = field(default_factory=dict)
    version: int = -1


@dataclass(frozen=True, slots=True)
class ReplayedBatch:
    """A planned batch that begins again: an earlier run did not finish it, or this run abandoned it unread.

    Attributes:
        batch: the ranges to read.
        running: those of these ranges whose ends the query commits when the batch is done.
        starts: the offset at which each of the query's partitions continues after this batch, as far as it is known.
    """

    batch: BatchOffset
    running: BatchOffset
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)


class OffsetCoordinator(Protocol):
    """The coordination of a query's offsets with its group or region.

    The planning thread calls all methods. The thread that learns of a sink's end calls `finish_batch` too, but only
    while a batch runs, when the planning thread makes no calls.
    """

    def resume_from_checkpoint(self, start: BatchOffset) -> None:
        """Read the checkpoint, once: `start` is the end of its last finished batch."""

    def wait_assigned_partitions(
        self, previous: BatchOffset, positions: Mapping[TopicPartition, int]
    ) -> AssignedPartitions | None:
        """Wait until the partitions to read are known; return them with the start of each.

        While they are unknown, the call waits. Spark would take an empty result for "nothing new", and might end the
        query.

        Args:
            previous: the end of the previous batch.
            positions: the next offset of each partition that the query had before.

        Returns:
            None if a region forbids planning now, and waiting would not help.

        Raises:
            TimedOutError: the partitions to read are not known within `joinTimeoutMs`.
        """

    def move_into_logs(
        self, held: AssignedPartitions, at: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the positions `at`, with those outside their partition's log moved into it.

        Raises:
            OffsetError: records are lost, and failOnDataLoss ends the query.
        """

    def needs_start_in_checkpoint(self) -> bool:
        """Return whether only the checkpoint stores a fresh query's start, so that an empty batch has to save it."""

    def is_assignment_current(self, held: AssignedPartitions) -> bool:
        """Return whether the assignment `held` is still valid; False if it has changed since, or is about to."""

    def owns_whole_assignment(self, expected: Collection[TopicPartition]) -> bool:
        """Return whether the query owns all partitions that the group gives it, and waits for no other member.

        Args:
            expected: all partitions that a complete assignment of the group must contain.
        """

    def begin_batch(self, held: AssignedPartitions, batch: int) -> bool:
        """Begin a batch: until it ends, no partition is released; return False if the assignment has changed."""

    def keep_batch_for_reading(self) -> bool:
        """Keep the running batch, because Spark has asked for its tasks: it is not abandoned any more.

        Return False if the batch was abandoned before and must be planned again.

        A batch that waits for this call waits for other sources of its query; see `SourceMembership`.
        """

    def finish_batch(self, batch: BatchOffset, timeout_ms: float | None = None) -> None:
        """Commit a batch that its sink has completed and the checkpoint has.

        Raises:
            CommitFailedError: its partitions were assigned to others meanwhile, and that ends the query.
            KafkaError: the commit failed; the call may be repeated.
        """

    def replay_batch(self, start: BatchOffset, planned: BatchOffset) -> ReplayedBatch:
        """Begin a batch that an earlier run planned, or that was abandoned, and return the ranges to read again.

        Args:
            start: the previous batch.
            planned: the batch as it was planned.
        """

    def member_progress(self) -> MemberProgress:
        """Return the member's state for the query's progress."""

    def close(self) -> None:
        """Leave the group or region."""
