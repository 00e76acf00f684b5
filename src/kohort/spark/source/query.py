"""One query on the driver: the offsets of its next batch, and the end of that batch.

The query's offset coordinator decides where its partitions come from and where they start, and commits a finished
batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kohort.errors import CommitFailedError, KafkaError
from kohort.ids import TopicId, TopicPartition
from kohort.settings.validation import duration_ms
from kohort.spark.options import SourceOptions
from kohort.spark.source.batch_offset import BatchOffset, OffsetRange
from kohort.spark.source.catalog import TopicCatalog
from kohort.spark.source.group_offsets import GroupOffsets
from kohort.spark.source.offset_coordinator import AssignedPartitions, AssignmentRetry, OffsetCoordinator
from kohort.spark.source.progress import MemberProgress

# -- A query's lag and group membership, for its progress. Pure


def lag_report(
    positions: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    generation: int,
    group: str | None,
    member_progress: MemberProgress,
    chosen: str = "",
) -> dict[str, Any]:
    """Return a query's positions and the ends of its partitions, as plain JSON.

    Args:
        positions: next offsets to read; a partition that is not in it has nothing to read.
        ends: end offsets of the owned partitions.
        generation: the group's generation; -1 without a group.
        group: the group's name; None: the query has no group.
        member_progress: the query's group membership.
        chosen: the choice of topics, as `SourceOptions.topic_choice_text` gives it.
    """
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for tp in sorted(ends):
        position = positions.get(tp, ends[tp])
        topics.setdefault(tp.topic, {})[str(tp.partition)] = {
            "position": position,
            "end": ends[tp],
            "lag": max(0, ends[tp] - position),
        }
    lag = sum(report["lag"] for numbers in topics.values() for report in numbers.values())
    downtime_ms = None if member_progress.downtime_ms is None else round(member_progress.downtime_ms)
    return {
        "group": group,
        "member": member_progress.member_id,
        "generation": generation,
        "rebalances": member_progress.rebalances,
        "lastDowntimeMs": downtime_ms,
        "lag": lag,
        "chosen": chosen,
        "topics": topics,
    }


# -- How much a micro-batch takes, and from which partitions. Pure

Key = TypeVar("Key", bound=Hashable)


def fair_shares(available: Mapping[Key, int], limit: int, first: int = 0) -> dict[Key, int]:
    """Split `limit` over partitions in equal shares; the rest of a share that one can't use goes to the others.

    Args:
        available: records waiting, by partition, in a stable order.
        limit: the most records in total.
        first: the partition, by index, that gets a single left-over record first; the caller counts it up with each
            batch.

    Returns:
        The share of each partition, never more than it has; together `min(limit, sum(available))`.
    """
    shares = dict.fromkeys(available, 0)
    if sum(available.values()) <= limit:
        return {key: max(0, count) for key, count in available.items()}
    left = limit
    open_keys = deque(sorted((key for key in available if available[key] > 0), key=lambda key: available[key]))
    while open_keys:
        level = left // len(open_keys)
        key = open_keys[0]
        if available[key] > level:
            break
        shares[key] = available[key]
        left -= available[key]
        open_keys.popleft()
    if open_keys:
        level, rest = divmod(left, len(open_keys))
        still_open = set(open_keys)
        order = [key for key in available if key in still_open]
        turn = first % len(order)
        for index, key in enumerate(order[turn:] + order[:turn]):
            shares[key] = level + (1 if index < rest else 0)
    return shares


@dataclass(slots=True)
class RecordSize:
    """The mean bytes per record of one partition, as a moving average of samples; 0.0 before the first sample.

    `batches_ago` counts the batches since the last sample.
    """

    mean: float
    batches_ago: int = 0

    def add(self, mean: float) -> None:
        self.mean = self.mean + (mean - self.mean) / 2 if self.mean else mean
        self.batches_ago = 0


def limit_by_bytes(available: Mapping[Key, int], bytes_per_record: Mapping[Key, float], limit: int) -> int:
    """Return how many records a batch may have by a limit in bytes, at least one, if `fair_shares` splits it.

    Args:
        available: records waiting, by partition.
        bytes_per_record: an estimate for each of these partitions.
        limit: the limit in bytes.
    """
    low, high = 1, max(1, sum(available.values()))
    while low < high:
        middle = (low + high + 1) // 2
        shares = fair_shares(available, middle)
        if sum(shares[key] * bytes_per_record[key] for key in shares) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


log = logging.getLogger("kohort.spark")

RESAMPLE_BATCHES = 10
"""A partition's record size is sampled again after this many batches."""
SHARED_STATE = (
    "[group %s] the query keeps state (windows, joins of streams, dropDuplicates), and has %d of the %d partitions: "
    "other members of the group read the others. Each query counts what it has read alone, and state stays when a "
    "partition moves, so results are partial. Give the query a group.id of its own, or use a region with state="
)
LAST_COMMIT_MS = 1_000
"""Timeout of the last commit of a query that ends: Spark does not wait for its process."""


class SourceQuery:
    """The state of a streaming query's source: its group, its positions and its running batch.

    A batch is *running* from its plan until its sink is known to be done and the checkpoint has it. The query learns
    that from the driver program (`sink_done`), or from Spark's request for the next batch, which comes only then. Then
    the offset coordinator finishes the batch: it commits the end offsets, and only then releases revoked partitions.

    Spark's calls come from one thread; `sink_done` may come from another at any time. Both touch the running batch and
    its end, under the lock `_ending`: nothing else uses the coordinator while a batch is running.
    """

    def __init__(
        self,
        options: SourceOptions,
        identity: str,
        place: Callable[[SourceOptions, TopicCatalog], OffsetCoordinator] = GroupOffsets,
    ) -> None:
        """Set up the query; nothing has joined yet.

        Args:
            options: the options of the source.
            identity: the query's identity.
            place: makes the query's offset coordinator.
        """
        self.identity = identity
        self._options = options
        self._catalog = TopicCatalog(options)
        self._coordinator = place(options, self._catalog)
        self._ending = threading.Lock()
        self._running: BatchOffset | None = None
        self._planned: BatchOffset | None = None  # the running batch as Spark has it
        self._known = False  # whether the running batch's sink is known to be done
        self._failure: CommitFailedError | None = None  # of a commit, to be raised at Spark's next call
        self._held: AssignedPartitions | None = None
        self._ids: dict[str, TopicId] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._fixed_ends: dict[TopicPartition, int] | None = None
        self._fixed_ids: Mapping[str, TopicId] = {}  # topic ids of the fixed ends
        self._sizes: dict[TopicPartition, RecordSize] = {}
        self._delay_ms = duration_ms("maxTriggerDelay", options.max_trigger_delay)
        self._triggered_s = float("-inf")
        self._held_back = False  # records wait for more, by the last lookup
        self._batch = 0
        self._stateful = False  # as far as the driver program has said
        self._state_checked: frozenset[TopicPartition] | None = None  # the partitions of the last look for others

    def fix_end_offsets(self) -> None:
        """Fix the partitions' current end offsets as the end of the query: no later batch reads beyond them."""
        partitions = self._catalog.partitions(known=None)
        self._fixed_ids = self._catalog.describe_existing({tp.topic for tp in partitions}).ids
        self._fixed_ends = self._catalog.end_offsets(partitions)

    def commit_completed_batch(self, start: BatchOffset) -> None:
        """Finish the batch that ends at `start`, which Spark has completed: commit its offsets.

        Raises:
            CommitFailedError: the batch took too long, other members own its partitions, and that ends the query.
        """
        with self._ending:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            if self._running is not None:
                self._end_running()
            elif start.batch:  # the first call after a restart
                self._coordinator.resume_from_checkpoint(start)

    def sink_done(self, end: BatchOffset) -> bool:
        """Commit a batch's offsets when its sink is done and the checkpoint has it; then release revoked partitions.

        An error is raised at Spark's next trigger; a commit without an answer is repeated then. Return False if `end`,
        the batch as Spark has it, is not the running batch: it is another run's, or has ended before.
        """
        with self._ending:
            if self._running is None or end != self._planned:
                return False
            try:
                self._end_running()
            except CommitFailedError as error:
                log.warning(
                    "a batch is done, but its offsets could not be committed; the query fails at its next trigger: %s",
                    error,
                )
                self._failure = error
            except KafkaError as error:
                log.warning(
                    "batch %s is done, but the commit of its offsets failed and will be retried: %s", end.batch, error
                )
            return True

    def record_stateful(self) -> None:
        """Record that the query keeps state between batches. Any thread may call this."""
        self._stateful = True

    def _warn_of_shared_state(self, held: AssignedPartitions) -> None:
        """Log a warning if the query keeps state and other members own partitions of its topics.

        State does not move with partitions. The check is made once for each assignment.
        """
        mine, options = frozenset(held.partitions), self._options
        if not self._stateful or mine == self._state_checked:
            return
        if options.group_id is None or options.assign is not None or options.region_session is not None:
            return
        try:
            every = self._catalog.partitions(known=None)
        except KafkaError as error:
            log.debug(
                "[group %s] could not look up all partitions, to warn of state that members share, retrying: %s",
                options.group_id,
                error,
            )
            return
        self._state_checked = mine
        if mine < set(every):
            log.warning(SHARED_STATE, options.group_id, len(mine), len(every))

    def is_running(self) -> bool:
        """Return whether a batch was planned whose sink is not known to have completed it."""
        return self._running is not None and not self._known

    def _begin_running(self, running: BatchOffset, planned: BatchOffset) -> None:
        with self._ending:
            self._running, self._planned, self._known = running, planned, False

    def _end_running(self, timeout_ms: float | None = None) -> None:
        """Commit the running batch's offsets, because its sink is done; then no batch is running.

        After an error other than CommitFailedError the batch stays the running one, so that the commit can be repeated.
        """
        running = self._running
        assert running is not None
        self._known = True
        try:
            self._coordinator.finish_batch(running, timeout_ms)
        except CommitFailedError:
            self._running = None
            raise
        self._running = None

    def plan_batch(self, start: BatchOffset, *, limited: bool) -> BatchOffset | None:
        """Return the next batch, or None if there is nothing to read now.

        Spark may end a query on None, so it is returned only if the assignment is still valid. With AvailableNow, also
        wait for partitions that the group assigns to the query and others have not released yet. If those members end,
        nobody else would read them.

        Args:
            start: the previous batch.
            limited: whether the options that bound a batch apply.
        """
        self._batch, again = start.batch, AssignmentRetry()
        while True:
            held = self._hold(start)
            if held is None:
                return None
            self._warn_of_shared_state(held)
            spans = self._plan_ranges(held, limited=limited)
            if spans is not None:
                due = any(span.offset_count for span in spans.values())
                if due or (start.batch == 0 and self._coordinator.needs_start_in_checkpoint()):
                    if self._coordinator.begin_batch(held, start.batch + 1):
                        self._triggered_s = time.monotonic()
                        return self._batch_of(held, start, spans)
                elif self._is_settled() and self._coordinator.is_assignment_current(held):
                    if not self._held_back:
                        self._triggered_s = time.monotonic()
                    return None
            # The assignment has changed or is about to, or a topic was deleted, since the lookup.
            again.wait_and_warn()

    def _is_settled(self) -> bool:
        if self._fixed_ends is None:
            return True
        present = self._catalog.describe_existing({tp.topic for tp in self._fixed_ends})
        there = present.partitions.intersection(self._fixed_ends)  # nobody has partitions of a topic that was deleted
        return self._coordinator.owns_whole_assignment(
            {tp for tp in there if present.ids.get(tp.topic) == self._fixed_ids.get(tp.topic)}
        )

    def _plan_ranges(self, held: AssignedPartitions, *, limited: bool) -> dict[TopicPartition, OffsetRange] | None:
        """Return the ranges of a batch of the owned partitions; None if one of them no longer exists."""
        self._ends = self._catalog.end_offsets(held.partitions)
        if len(self._ends) != len(held.partitions):
            return None
        self._positions = self._coordinator.move_into_logs(held, self._positions, self._ends)
        available = {tp: max(0, self._limit(tp) - self._positions[tp]) for tp in held.partitions}
        shares = self._admit(available) if limited else available
        return {tp: OffsetRange(self._positions[tp], self._positions[tp] + shares[tp]) for tp in held.partitions}

    def _batch_of(
        self, held: AssignedPartitions, start: BatchOffset, spans: Mapping[TopicPartition, OffsetRange]
    ) -> BatchOffset:
        """Begin a batch with these ranges, and return it."""
        self._positions.update({tp: span.end for tp, span in spans.items()})
        planned = BatchOffset(
            self.identity,
            start.batch + 1,
            held.generation,
            spans,
            held.ids,
            self._options.group_id or "",
            held.epoch,
            held.assignment_versions,
        )
        self._begin_running(planned, planned)
        self._given = planned
        return planned

    def _hold(self, start: BatchOffset) -> AssignedPartitions | None:
        """Wait for the partitions to read and their start offsets; return None if a region allows no batch now."""
        held = self._coordinator.wait_assigned_partitions(start, self._positions)
        if held is not None:
            for tp in [tp for tp in self._sizes if held.ids.get(tp.topic) != self._ids.get(tp.topic)]:
                del self._sizes[tp]
            self._held, self._ids, self._positions = held, dict(held.ids), dict(held.starts)
        return held

    def _limit(self, tp: TopicPartition) -> int:
        """Return the end offset for the next batch of a partition: its log end, or the fixed end of AvailableNow.

        With fixed ends, it is 0 for a topic that was recreated since: nothing of the new topic is read.
        """
        end = self._ends[tp]
        if self._fixed_ends is None:
            return end
        return min(end, self._fixed_ends.get(tp, 0)) if self._fixed_ids.get(tp.topic) == self._ids.get(tp.topic) else 0

    def _admit(self, available: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        options, total = self._options, sum(available.values())
        self._held_back = self._holds_back(total)
        if self._held_back:
            return dict.fromkeys(available, 0)
        most = min(total, options.max_offsets_per_trigger or total)
        if options.max_bytes_per_trigger is not None and total:
            sizes = self._record_sizes(available)
            most = min(most, limit_by_bytes(available, sizes, options.max_bytes_per_trigger))
        return fair_shares(available, most, first=self._batch)

    def _holds_back(self, total: int) -> bool:
        """Return whether to plan no batch yet, because fewer records than `minOffsetsPerTrigger` are there (`total`).

        As in Spark's own source, `maxTriggerDelay` counts from the last trigger that did not hold back, and a run's
        first trigger does not hold back.

        Source: Apache Spark's KafkaMicroBatchStream.delayBatch, whose last trigger is in 1970 at first.
        """
        least = self._options.min_offsets_per_trigger
        if least is None or self._fixed_ends is not None:
            return False
        return total < least and (time.monotonic() - self._triggered_s) * 1000 < self._delay_ms

    def _record_sizes(self, available: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        for tp, count in available.items():
            sample = self._sizes.setdefault(tp, RecordSize(0.0, RESAMPLE_BATCHES))
            sample.batches_ago += 1
            if count and sample.batches_ago > RESAMPLE_BATCHES:
                start = self._positions[tp]
                sample.add(self._catalog.mean_record_bytes(tp, start, start + count, self._ids.get(tp.topic)))
        return {tp: max(1.0, self._sizes[tp].mean) for tp in available}

    def ranges_to_replay(self, start: BatchOffset, planned: BatchOffset) -> BatchOffset:
        """Return the ranges to read of a batch: all of it if it runs, otherwise those that the coordinator gives."""
        with self._ending:
            running = self._running
            if running is not None and running.batch == planned.batch and self._coordinator.keep_batch_for_reading():
                return self._given
            self._running = None
        self.identity, self._batch = planned.query, start.batch
        repeated = self._coordinator.replay_batch(start, planned)
        self._positions = dict(repeated.starts)
        self._begin_running(repeated.running, planned)
        self._given = repeated.batch
        return repeated.batch

    def progress_report(self) -> dict[str, Any] | None:
        """Return the query's positions and the ends of its partitions, for Spark's progress."""
        if not self._ends:
            return None
        generation = self._held.generation if self._held else -1
        options, member_progress = self._options, self._coordinator.member_progress()
        return lag_report(
            self._positions, self._ends, generation, options.group_id, member_progress, options.topic_choice_text()
        )

    def close(self) -> None:
        """Leave the group or region, after committing a completed batch whose commit was interrupted."""
        if self._ending.acquire(timeout=LAST_COMMIT_MS / 1000):
            try:
                if self._running is not None and self._known:
                    self._end_running(LAST_COMMIT_MS)
            except KafkaError as error:
                log.warning("a batch is done, but its offsets could not be committed when the query closed: %s", error)
            finally:
                self._running = None
                self._ending.release()
        self._coordinator.close()
        self._catalog.close()
