"""One query on the driver: which offsets its next batch reads, and what it tells the group."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from kohort.durations import duration_ms
from kohort.errors import CommitFailedError, KafkaError, NotFoundError, TimedOutError
from kohort.ids import TopicId, TopicPartition
from kohort.spark.admission import BytesSeen, fair_shares, limit_by_bytes
from kohort.spark.batch_offset import BatchOffset, Committed, Reached, Span, resume_at
from kohort.spark.bounds import starting_bound
from kohort.spark.catalog import Catalog
from kohort.spark.changed import refuse_passing_over, take_over
from kohort.spark.data_loss import lose
from kohort.spark.incarnations import Incarnations
from kohort.spark.lag_report import lag_report
from kohort.spark.options import SourceOptions
from kohort.spark.query_member import Held, Maker, Membership, OffsetKeeper, Place, given_away
from kohort.spark.rebalances import Standing
from kohort.spark.starting import first_positions, refuse_beyond, within

log = logging.getLogger("kohort.spark")

REBALANCE_WAIT_MS = 1_000
"""How long a trigger waits for a rebalance to end before it reports nothing new."""
AGAIN_S = 0.1
"""How long to wait before partitions are taken again that changed while they were."""
RESAMPLE_BATCHES = 10
"""After so many batches a partition's record size is looked at again."""
LAST_COMMIT_MS = 1_000
"""How long a query that ends may take to commit what is done: Spark does not wait for its process."""
REFRESH_S = 5.0
"""How often a query without a group looks for new partitions."""


class Query:
    """The state of a running query.

    A batch is *running* from the moment it is planned until it is known that the sink has taken it and the checkpoint
    says so: the application tells (`sink_done`), or Spark asks for the next batch, which it does only then. Then its
    ends are committed to the group, and only then are partitions given up that the group wants back.

    Spark's calls come from one thread; `sink_done` may come from another at any time. What both touch is the running
    batch and how it ends, under `_ending`: nothing else uses the place in the group while a batch is running.
    """

    def __init__(self, options: SourceOptions, identity: str, heard: Callable[[], bool] = lambda: False) -> None:
        """Nothing is joined yet; `heard` tells whether `sink_done` can come."""
        self.identity = identity
        self._options = options
        self._bound = starting_bound(options, streaming=True)
        self._catalog = Catalog(options)
        self._place: Place | None = None
        self._heard = heard
        self._ending = threading.Lock()
        self._running: BatchOffset | None = None
        self._planned: BatchOffset | None = None  # the running batch as Spark knows it
        self._known = False  # that the running batch's sink is done
        self._failure: CommitFailedError | None = None  # of a commit that Spark has not been told of
        self._held: Held | None = None
        self._done: dict[TopicPartition, Reached] = {}  # what this query has finished, by its own knowledge
        self._positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._targets: dict[TopicPartition, int] | None = None
        self._aimed: Mapping[str, TopicId] = {}  # whose the targets are
        self._sizes: dict[TopicPartition, BytesSeen] = {}
        self._delay_ms = duration_ms("maxTriggerDelay", options.max_trigger_delay)
        self._planned_at = time.monotonic()
        self._refreshed_at = 0.0
        self._found: Mapping[TopicPartition, Committed | None] = {}
        self._topics = Incarnations(self._catalog, strict=options.fail_on_data_loss)
        self._brought: dict[TopicPartition, int] = {}  # by the checkpoint, from another group
        self._resumed = False  # what the checkpoint says is known
        self._restarted = False  # or has had partitions: what is unknown from then on is new
        self._there: frozenset[TopicPartition] | None = None  # when the query started
        self._every: list[TopicPartition] = []
        self._batch = 0

    def aim_at_present(self) -> None:
        """From now on plan nothing beyond the partitions' present ends."""
        partitions = self._catalog.partitions(known=None)
        self._aimed = self._catalog.present({tp.topic for tp in partitions}).ids
        self._targets = self._catalog.ends(partitions)

    def finish(self, start: BatchOffset) -> None:
        """Spark is done with everything before `start`: tell the group.

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
                self._resume(start)

    def sink_done(self, end: BatchOffset) -> bool:
        """A batch's sink is done, and the checkpoint says so: tell the group, and be idle.

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
        """Commit the running batch, which is done; it stays the running one while that can be tried again."""
        running = self._running
        assert running is not None
        self._known = True
        self._done.update(running.reached())
        if self._place is not None:
            try:
                self._commit(self._place, running, timeout_ms)
            except CommitFailedError as error:
                self._running = None
                self._place.end()
                self._lost(running, error)
                return
            self._place.end()
        self._running = None

    def _resume(self, start: BatchOffset, planned: BatchOffset | None = None) -> None:
        """Take over what the checkpoint says, once; `planned` was not finished."""
        if self._resumed:
            return
        self._brought = take_over(self._options, start, planned)
        self._resumed = self._restarted = True
        self._done.update(start.reached())
        self._topics.remember(start)

    def _commit(self, place: Place, batch: BatchOffset, timeout_ms: float | None = None) -> None:
        """Commit a batch's ends; what is gone meanwhile is left out, and told by the next look."""
        ends = batch.ends()
        while ends:
            try:
                place.commit(ends, Maker(self.identity, batch.batch, batch.generation, batch.ids), timeout_ms)
                return
            except NotFoundError:
                now = self._catalog.present({tp.topic for tp in ends})
                there = {
                    tp: end
                    for tp, end in ends.items()
                    if tp in now.partitions and now.ids.get(tp.topic) == batch.ids.get(tp.topic)
                }
                if there == ends:
                    raise
                ends = there

    def _lost(self, running: BatchOffset, error: CommitFailedError) -> None:
        self._held = None
        text = given_away(running.batch, error)
        if self._options.on_revocation_timeout == "fail":
            raise CommitFailedError(f"{text}; onRevocationTimeout=release goes on instead", error.code) from error
        log.warning("%s; going on without them: the others read them again", text)

    def plan(self, start: BatchOffset, *, limited: bool) -> BatchOffset | None:
        """The next batch, or None if there is nothing to read (or to be had) now.

        Args:
            start: the batch before.
            limited: whether the options that bound a batch count.
        """
        self._batch, self._resumed = start.batch, True
        while True:
            held = self._hold(REBALANCE_WAIT_MS) if self._targets is None else self._hold_surely()
            if held is None:
                return None
            self._ends = self._catalog.ends(held.partitions)
            if len(self._ends) == len(held.partitions):
                break
            self._held = None  # a topic has gone since it was looked at
        self._positions = within(self._positions, {}, self._ends, self._catalog, self._options)
        available = {tp: max(0, self._limit(tp) - self._positions[tp]) for tp in held.partitions}
        shares = self._admit(available) if limited else available
        if not any(shares.values()) and not self._must_note(start):
            return None
        if self._place is not None and not self._place.begin(held):
            return None
        spans = {tp: Span(self._positions[tp], self._positions[tp] + shares[tp]) for tp in held.partitions}
        self._positions.update({tp: span.end for tp, span in spans.items()})
        group = self._options.group_id or ""
        planned = BatchOffset(self.identity, start.batch + 1, held.generation, spans, self._topics.of(spans), group)
        self._planned_at = time.monotonic()
        self._begin_running(planned, planned)
        return planned

    def _must_note(self, start: BatchOffset) -> bool:
        """Whether an empty batch is due: only the checkpoint can keep where a query started if no group does.

        A group does not either while there is nothing to commit an offset of, as with a pattern that matches nothing.
        """
        return (self._place is None or not self._there) and start.batch == 0 and self._bound.kind != "earliest"

    def _limit(self, tp: TopicPartition) -> int:
        end = self._ends[tp]
        return end if self._targets is None else min(end, self._targets.get(tp, 0))

    def _admit(self, available: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        options, total = self._options, sum(available.values())
        least = options.min_offsets_per_trigger
        waited_ms = (time.monotonic() - self._planned_at) * 1000
        if least is not None and total < least and self._targets is None and waited_ms < self._delay_ms:
            return dict.fromkeys(available, 0)
        most = min(total, options.max_offsets_per_trigger or total)
        if options.max_bytes_per_trigger is not None and total:
            sizes = self._record_sizes(available)
            most = min(most, limit_by_bytes(available, sizes, options.max_bytes_per_trigger))
        return fair_shares(available, most, first=self._batch)

    def _record_sizes(self, available: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        for tp, count in available.items():
            seen = self._sizes.setdefault(tp, BytesSeen(0.0, RESAMPLE_BATCHES))
            seen.batches_ago += 1
            if count and seen.batches_ago > RESAMPLE_BATCHES:
                start = self._positions[tp]
                seen.add(self._catalog.bytes_per_record(tp, start, start + count, self._topics.ids.get(tp.topic)))
        return {tp: max(1.0, self._sizes[tp].mean) for tp in available}

    def replay(self, start: BatchOffset, planned: BatchOffset) -> BatchOffset:
        """What is to be read of a batch: all that was planned, if this run planned it.

        The ranges of a batch that an earlier run planned and did not finish are read again as `plannedRanges` says.
        What is not read again starts at the group's offset, here or wherever its owner is.
        """
        with self._ending:
            running = self._running
            if running is not None and running.batch == planned.batch:
                return running
            self._running = None
        self.identity, self._batch = planned.query, start.batch
        self._resume(start, planned)
        another = self._topics.remember(planned)
        for tp in [tp for tp in self._done if tp.topic in another]:
            del self._done[tp]  # where the batch before ended is an offset of the earlier topic
        if self._options.group_id is None:
            self._present(Held(tuple(planned.spans)))
            readable = planned.of(self._readable(planned))
            self._begin_running(readable, planned)
            return readable
        while True:
            held = self._hold_surely()
            readable = planned.of(self._readable(planned))
            kept = self._still_ours(readable, held)
            if self._mark_left(readable, kept, held) and self._begin(held):
                break
        ours = {
            tp: span
            for tp, span in kept.items()
            if tp in held.partitions and span.start <= self._positions[tp] <= span.end  # else the group was set there
        }
        self._positions.update({tp: span.end for tp, span in ours.items()})
        ids = self._topics.of(kept)
        self._begin_running(BatchOffset(self.identity, planned.batch, held.generation, ours, ids), planned)
        released = sorted(set(readable.spans) - set(kept))
        if released:
            log.warning("batch %s: left to the group: %s", planned.batch, ", ".join(map(str, released)))
        return BatchOffset(self.identity, planned.batch, planned.generation, kept, ids, planned.group)

    def _readable(self, planned: BatchOffset) -> dict[TopicPartition, Span]:
        """The spans of a batch of an earlier run that there is still something of."""
        spans = self._topics.spans_of(planned)
        ends = self._catalog.ends(spans)
        for tp, span in [*spans.items()]:
            if tp not in ends:
                del spans[tp]  # gone since it was looked at; the next look tells
            elif span.end > ends[tp]:
                text = f"{tp} ends at offset {ends[tp]}, the batch to be read again goes on to {span.end}"
                lose(f"{text}: records are gone", "leaves them out", strict=self._options.fail_on_data_loss)
                del spans[tp]
        return spans

    def _mark_left(self, planned: BatchOffset, kept: Mapping[TopicPartition, Span], held: Held) -> bool:
        """Tell the group what a batch that is run again leaves out, which the checkpoint can't be told any more.

        Its offset says to every later run that those partitions were read up to the batch's ends. Whoever has one now
        says so by a commit; until then the group's offset is this query's, and is committed again under the batch's
        number. False: the group has moved on meanwhile.

        A new owner's commit between the look and this one is set back: a coordinator takes any member's offset for any
        partition, and knows no "only if it is still so". That owner's next commit mends it; should it end before,
        records are read again, and none is lost. To leave the partitions of others alone would lose the records of an
        owner that ends before its first commit.
        """
        place = self._place
        if place is None:
            return True
        left: dict[TopicPartition, int] = {}
        for tp, found in self._topics.valid(place.committed([tp for tp in planned.spans if tp not in kept])).items():
            stamp = found.stamp if found is not None else None
            if found is None:
                left[tp] = planned.spans[tp].start
            elif stamp is not None and stamp.query == self.identity and stamp.batch < planned.batch:
                left[tp] = found.offset
        try:
            if left:
                place.commit(left, Maker(self.identity, planned.batch, held.generation, self._topics.of(left)))
        except (CommitFailedError, NotFoundError):
            return False
        return True

    def _begin(self, held: Held) -> bool:
        return self._place is None or self._place.begin(held)

    def _still_ours(self, planned: BatchOffset, held: Held) -> Mapping[TopicPartition, Span]:
        """The planned spans to read again: by default those of partitions that are held and no one else has read on."""
        which = self._options.planned_ranges
        if which == "all":
            return planned.spans
        if which == "none":
            return {}
        return {
            tp: span
            for tp, span in planned.spans.items()
            if tp in held.partitions and self._positions[tp] == span.start and not self._was_left(tp, planned)
        }

    def _was_left(self, tp: TopicPartition, planned: BatchOffset) -> bool:
        """Whether an earlier run that came back to this batch has left the partition to the group."""
        found = self._found.get(tp)
        return found is not None and self._own(tp) and found.stamp is not None and found.stamp.batch >= planned.batch

    def _own(self, tp: TopicPartition) -> bool:
        """Whether no one has committed for a partition since this query did."""
        found = self._found.get(tp)
        return found is None or (found.stamp is not None and found.stamp.query == self.identity)

    def _hold_surely(self) -> Held:
        timeout_ms = self._options.join_timeout_ms
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            held = self._hold(max(0.0, deadline - time.monotonic()) * 1000)
            if held is not None:
                return held
            if time.monotonic() >= deadline:
                raise TimedOutError(
                    f"the group {self._options.group_id} gave no assignment within {timeout_ms} ms (joinTimeoutMs)"
                )
            time.sleep(AGAIN_S)

    def _hold(self, wait_ms: float) -> Held | None:
        """What may be read now, with a position for each partition; None while that is being settled."""
        if self._options.group_id is None:
            held: Held | None = Held(self._all_partitions())
        else:
            if self._place is None:
                self._place = self._take_place()
            held = self._place.held(wait_ms)
        held = held and self._present(held)
        if held is not None and held != self._held:
            if not self._take(held):
                return None
            self._held = held
        return held

    def _present(self, held: Held) -> Held:
        """What there is of the partitions held; what was known of topics that are others now is forgotten."""
        present, void = self._topics.look({tp.topic for tp in held.partitions})
        if void:
            self._held = None
            for known in (self._done, self._positions, self._sizes):
                for tp in [tp for tp in known if tp.topic in void]:
                    del known[tp]
            later = {topic for topic in void if self._aimed.get(topic) != self._topics.ids.get(topic)}
            if self._targets is not None:
                self._targets = {tp: end for tp, end in self._targets.items() if tp.topic not in later}
        return Held(tuple(tp for tp in held.partitions if tp in present.partitions), held.generation)

    def _take_place(self) -> Place:
        self._look()  # a topic that does not exist is an error at once
        if self._options.assign is not None:
            return OffsetKeeper(self._options)
        return Membership(self._options, self._heard)

    def _all_partitions(self) -> tuple[TopicPartition, ...]:
        now = time.monotonic()
        if not self._every or now - self._refreshed_at > REFRESH_S:
            self._every, self._refreshed_at = self._look(), now
        return tuple(self._every)

    def _look(self) -> list[TopicPartition]:
        """Every partition that there is for the query and its group."""
        found = self._catalog.partitions(self._topics.known)
        if self._there is None:
            self._there = frozenset(found)
        return found

    def _take(self, held: Held) -> bool:
        """Find where to go on in each partition, and say so to the group. False: the group has moved on meanwhile."""
        place = self._place
        self._found = self._topics.valid(place.committed(held.partitions)) if place is not None else {}
        refuse_passing_over(self._options, self.identity, self._brought, self._found)
        known = self._positions if place is None else {}
        positions: dict[TopicPartition, int] = {}
        unknown: list[TopicPartition] = []
        for tp in held.partitions:
            at = known.get(tp)
            if at is None:
                at = resume_at(self.identity, self._found.get(tp), self._done.get(tp))
            if at is None:
                unknown.append(tp)
            else:
                positions[tp] = at
        there = () if self._restarted else self._there or ()
        first = first_positions(unknown, self._catalog, self._bound, again=self._topics.again, there=there)
        beginnings, ends = self._catalog.beginnings(held.partitions), self._catalog.ends(held.partitions)
        if any(tp not in known for known in (beginnings, ends, positions | first) for tp in held.partitions):
            return False  # a topic has gone since it was looked at
        refuse_beyond(first, beginnings, ends)
        positions = within(positions | first, beginnings, ends, self._catalog, self._options)
        every = self._held is None and self._options.assign is not None  # a group with members refuses it, now
        claims = {tp: at for tp, at in positions.items() if every or not self._claimed(tp, at)}
        if place is not None:
            try:
                place.commit(claims, Maker(self.identity, self._batch, held.generation, self._topics.of(positions)))
            except (CommitFailedError, NotFoundError):
                return False
        self._positions = positions
        self._brought.clear()
        self._topics.again -= {tp.topic for tp in positions}
        self._restarted = self._restarted or bool(positions)
        return True

    def _claimed(self, tp: TopicPartition, position: int) -> bool:
        """Whether the group's offset is this position, under this query's name: so that every owner leaves a trace."""
        found = self._found.get(tp)
        return found is not None and found.offset == position and self._own(tp)

    def report(self) -> dict[str, Any] | None:
        """Where the query is and how far its partitions go, for the progress that Spark shows."""
        if not self._ends:
            return None
        generation = self._held.generation if self._held else -1
        standing = self._place.standing() if self._place is not None else Standing()
        return lag_report(self._positions, self._ends, generation, self._options.group_id, standing)

    def close(self) -> None:
        """Leave the group; a batch that is known to be done, and whose commit was cut off, is committed first."""
        if self._ending.acquire(timeout=LAST_COMMIT_MS / 1000):
            try:
                if self._running is not None and self._known:
                    self._end_running(LAST_COMMIT_MS)
            except KafkaError as error:
                log.warning("a batch that is done was not committed: %s", error)
            finally:
                self._running = None
                self._ending.release()
        if self._place is not None:
            self._place.close()
        self._catalog.close()
