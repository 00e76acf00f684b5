"""One query on the driver: which offsets its next batch reads, and when that batch is done.

Where its partitions come from and where they start, and what a finished batch means to others, is its place's to say.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kohort.errors import CommitFailedError, KafkaError
from kohort.ids import TopicId, TopicPartition
from kohort.settings.validation import duration_ms
from kohort.spark.options import SourceOptions
from kohort.spark.source.batch_offset import BatchOffset, Span
from kohort.spark.source.catalog import Catalog
from kohort.spark.source.group_offsets import GroupPlace
from kohort.spark.source.offset_coordinator import Again, Held, Place
from kohort.spark.source.progress import Standing

# -- What a query's progress shows of its lag and its place in the group. Pure


def lag_report(
    positions: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    generation: int,
    group: str | None,
    standing: Standing,
) -> dict[str, Any]:
    """Where a query is and how far its partitions go, as plain JSON.

    Args:
        positions: next offsets to read; a partition without one has nothing to read.
        ends: of the partitions held.
        generation: of the group; -1 without one.
        group: its name; None without one.
        standing: the query's, as a member.
    """
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for tp in sorted(ends):
        position = positions.get(tp, ends[tp])
        topics.setdefault(tp.topic, {})[str(tp.partition)] = {
            "position": position,
            "end": ends[tp],
            "lag": max(0, ends[tp] - position),
        }
    lag = sum(one["lag"] for numbers in topics.values() for one in numbers.values())
    standstill_ms = None if standing.standstill_ms is None else round(standing.standstill_ms)
    return {
        "group": group,
        "member": standing.member_id,
        "generation": generation,
        "rebalances": standing.rebalances,
        "lastStandstillMs": standstill_ms,
        "lag": lag,
        "topics": topics,
    }


# -- How much a micro-batch takes, and from which partitions. Pure

Key = TypeVar("Key", bound=Hashable)


def fair_shares(available: Mapping[Key, int], limit: int, first: int = 0) -> dict[Key, int]:
    """Split `limit` over partitions so that none starves: equal shares, what one can't use going to the others.

    Args:
        available: records waiting, by partition, in a stable order.
        limit: the most to take of all together.
        first: whose turn it is when single records are left over; a count that the caller raises with each batch.

    Returns:
        What to take of each, never more than it has; together `min(limit, sum(available))`.
    """
    shares = dict.fromkeys(available, 0)
    if sum(available.values()) <= limit:
        return {key: max(0, count) for key, count in available.items()}
    left = limit
    open_keys = sorted((key for key in available if available[key] > 0), key=lambda key: available[key])
    while open_keys:
        level = left // len(open_keys)
        key = open_keys[0]
        if available[key] > level:
            break
        shares[key] = available[key]
        left -= available[key]
        open_keys.pop(0)
    if open_keys:
        level, rest = divmod(left, len(open_keys))
        order = [key for key in available if key in set(open_keys)]
        turn = first % len(order)
        for place, key in enumerate(order[turn:] + order[:turn]):
            shares[key] = level + (1 if place < rest else 0)
    return shares


@dataclass(slots=True)
class BytesSeen:
    """Bytes per record of one partition, as a sliding mean of samples."""

    mean: float
    batches_ago: int = 0

    def add(self, mean: float) -> None:
        self.mean += (mean - self.mean) / 2
        self.batches_ago = 0


def limit_by_bytes(available: Mapping[Key, int], bytes_per_record: Mapping[Key, float], limit: int) -> int:
    """The number of records that a byte limit lets through, at least one, if a batch is split fairly.

    Args:
        available: records waiting, by partition.
        bytes_per_record: an estimate for each of these partitions.
        limit: bytes.
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
"""After so many batches a partition's record size is looked at again."""
LAST_COMMIT_MS = 1_000
"""How long a query that ends may take to commit what is done: Spark does not wait for its process."""


class Query:
    """The state of a running query.

    A batch is *running* from the moment it is planned until it is known that the sink has taken it and the checkpoint
    says so: the application tells (`sink_done`), or Spark asks for the next batch, which it does only then. Then the
    place finishes it: in a group its ends are committed, and only then are partitions given up that the group wants
    back.

    Spark's calls come from one thread; `sink_done` may come from another at any time. What both touch is the running
    batch and how it ends, under `_ending`: nothing else uses the place while a batch is running.
    """

    def __init__(
        self,
        options: SourceOptions,
        identity: str,
        place: Callable[[SourceOptions, Catalog], Place] = GroupPlace,
    ) -> None:
        """Nothing is joined yet.

        Args:
            options: of the source.
            identity: of the query.
            place: makes its place.
        """
        self.identity = identity
        self._options = options
        self._catalog = Catalog(options)
        self._place = place(options, self._catalog)
        self._ending = threading.Lock()
        self._running: BatchOffset | None = None
        self._planned: BatchOffset | None = None  # the running batch as Spark knows it
        self._known = False  # that the running batch's sink is done
        self._failure: CommitFailedError | None = None  # of a commit that Spark has not been told of
        self._held: Held | None = None
        self._ids: dict[str, TopicId] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._targets: dict[TopicPartition, int] | None = None
        self._aimed: Mapping[str, TopicId] = {}  # whose the targets are
        self._sizes: dict[TopicPartition, BytesSeen] = {}
        self._delay_ms = duration_ms("maxTriggerDelay", options.max_trigger_delay)
        self._triggered_s = float("-inf")
        self._held_back = False  # records, by the last look, until there are more
        self._batch = 0

    def aim_at_present(self) -> None:
        """From now on plan nothing beyond the partitions' present ends."""
        partitions = self._catalog.partitions(known=None)
        self._aimed = self._catalog.present({tp.topic for tp in partitions}).ids
        self._targets = self._catalog.ends(partitions)

    def finish(self, start: BatchOffset) -> None:
        """Spark is done with everything before `start`: tell the place.

        Raises:
            CommitFailedError: the batch took too long and its partitions are others', if that is to end the query.
        """
        with self._ending:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            if self._running is not None:
                self._end_running()
            elif start.batch:  # the first call after a restart
                self._place.resume(start)

    def sink_done(self, end: BatchOffset) -> bool:
        """A batch's sink is done, and the checkpoint says so: tell the place, and be idle.

        What goes wrong is Spark's to hear at the next trigger; a commit that nobody answered is tried again then.
        False: `end`, the batch as Spark knows it, is not the running one; it is none of this run's, or ended before.
        """
        with self._ending:
            if self._running is None or end != self._planned:
                return False
            try:
                self._end_running()
            except CommitFailedError as error:
                log.warning("%s", error)
                self._failure = error
            except KafkaError as error:
                log.warning("batch %s is done, but not committed yet: %s", end.batch, error)
            return True

    def is_running(self) -> bool:
        """Whether a batch is under way that is not known to be done."""
        return self._running is not None and not self._known

    def _begin_running(self, running: BatchOffset, planned: BatchOffset) -> None:
        with self._ending:
            self._running, self._planned, self._known = running, planned, False

    def _end_running(self, timeout_ms: float | None = None) -> None:
        """Finish the running batch, which is done; it stays the running one while that can be tried again."""
        running = self._running
        assert running is not None
        self._known = True
        try:
            self._place.finish(running, timeout_ms)
        except CommitFailedError:
            self._running = None
            raise
        self._running = None

    def plan(self, start: BatchOffset, *, limited: bool) -> BatchOffset | None:
        """The next batch, or None if there is nothing to read now.

        None is said of what the query holds when this returns: Spark may end a query on it.

        Args:
            start: the batch before.
            limited: whether the options that bound a batch count.
        """
        self._batch, again = start.batch, Again()
        while True:
            held = self._hold(start)
            if held is None:
                return None
            spans = self._look(held, limited=limited)
            if spans is not None:
                due = any(span.offsets for span in spans.values())
                if due or (start.batch == 0 and self._place.notes_start()):
                    if self._place.begin(held, start.batch + 1):
                        self._triggered_s = time.monotonic()
                        return self._batch_of(held, start, spans)
                elif self._place.still(held):
                    if not self._held_back:
                        self._triggered_s = time.monotonic()
                    return None
            again.wait()  # what is held has changed, or a topic has gone, since it was looked at

    def _look(self, held: Held, *, limited: bool) -> dict[TopicPartition, Span] | None:
        """Look how far a batch would read in what is held; None: not all of it is there any more."""
        self._ends = self._catalog.ends(held.partitions)
        if len(self._ends) != len(held.partitions):
            return None
        self._positions = self._place.settle(held, self._positions, self._ends)
        available = {tp: max(0, self._limit(tp) - self._positions[tp]) for tp in held.partitions}
        shares = self._admit(available) if limited else available
        return {tp: Span(self._positions[tp], self._positions[tp] + shares[tp]) for tp in held.partitions}

    def _batch_of(self, held: Held, start: BatchOffset, spans: Mapping[TopicPartition, Span]) -> BatchOffset:
        """The batch that has begun."""
        self._positions.update({tp: span.end for tp, span in spans.items()})
        planned = BatchOffset(
            self.identity,
            start.batch + 1,
            held.generation,
            spans,
            held.ids,
            self._options.group_id or "",
            held.epoch,
            held.handings,
        )
        self._begin_running(planned, planned)
        return planned

    def _hold(self, start: BatchOffset) -> Held | None:
        """Wait until it is known what may be read now; None: nothing may be."""
        held = self._place.hold(start, self._positions)
        if held is not None:
            for tp in [tp for tp in self._sizes if held.ids.get(tp.topic) != self._ids.get(tp.topic)]:
                del self._sizes[tp]
            self._held, self._ids, self._positions = held, dict(held.ids), dict(held.starts)
        return held

    def _limit(self, tp: TopicPartition) -> int:
        """How far the next batch may go; a target of another topic of the name is none."""
        end = self._ends[tp]
        if self._targets is None:
            return end
        return min(end, self._targets.get(tp, 0)) if self._aimed.get(tp.topic) == self._ids.get(tp.topic) else 0

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
        """Whether `minOffsetsPerTrigger` has so few records wait for more.

        As in Spark's own source, `maxTriggerDelay` counts from the last trigger that did not hold back, and a run's
        first trigger does not.

        Source: Apache Spark's KafkaMicroBatchStream.delayBatch, whose last trigger is in 1970 at first.
        """
        least = self._options.min_offsets_per_trigger
        if least is None or self._targets is not None:
            return False
        return total < least and (time.monotonic() - self._triggered_s) * 1000 < self._delay_ms

    def _record_sizes(self, available: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        for tp, count in available.items():
            seen = self._sizes.setdefault(tp, BytesSeen(0.0, RESAMPLE_BATCHES))
            seen.batches_ago += 1
            if count and seen.batches_ago > RESAMPLE_BATCHES:
                start = self._positions[tp]
                seen.add(self._catalog.bytes_per_record(tp, start, start + count, self._ids.get(tp.topic)))
        return {tp: max(1.0, self._sizes[tp].mean) for tp in available}

    def replay(self, start: BatchOffset, planned: BatchOffset) -> BatchOffset:
        """Say what is to be read of a batch: all that was planned if it is under way, else what the place says."""
        with self._ending:
            running = self._running
            if running is not None and running.batch == planned.batch and self._place.read():
                return running
            self._running = None
        self.identity, self._batch = planned.query, start.batch
        again = self._place.replay(start, planned)
        self._positions = dict(again.starts)
        self._begin_running(again.running, planned)
        return again.batch

    def report(self) -> dict[str, Any] | None:
        """Where the query is and how far its partitions go, for the progress that Spark shows."""
        if not self._ends:
            return None
        generation = self._held.generation if self._held else -1
        return lag_report(self._positions, self._ends, generation, self._options.group_id, self._place.standing())

    def close(self) -> None:
        """Leave the place; a batch that is known to be done, and whose commit was cut off, is committed first."""
        if self._ending.acquire(timeout=LAST_COMMIT_MS / 1000):
            try:
                if self._running is not None and self._known:
                    self._end_running(LAST_COMMIT_MS)
            except KafkaError as error:
                log.warning("a batch that is done was not committed: %s", error)
            finally:
                self._running = None
                self._ending.release()
        self._place.close()
        self._catalog.close()
