"""Faults to plant in the source, each with the property that must show it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import kohort.spark.source.group_offsets as place_module
import kohort.spark.source.readers as readers_module
from kohort.ids import TopicPartition
from kohort.spark.source.batch_offset import BatchOffset, CheckpointPosition, CommittedPosition, OffsetRange
from kohort.spark.source.bounds import ReadBound
from kohort.spark.source.catalog import TopicCatalog
from kohort.spark.source.group_offsets import GroupOffsets
from kohort.spark.source.membership import CommitOrigin, SourceMembership
from kohort.spark.source.offset_coordinator import AssignedPartitions
from kohort.spark.source.query import SourceQuery
from kohort.spark.source.readers import ReadTask


def commits_before_the_sink() -> None:
    """A batch is committed when it is planned."""
    plan = SourceQuery.plan_batch

    def planned(self: SourceQuery, start: BatchOffset, *, limited: bool) -> BatchOffset | None:
        batch = plan(self, start, limited=limited)
        if batch is not None:
            group = self._coordinator._group  # type: ignore[attr-defined]
            group.commit(batch.end_offsets(), CommitOrigin(self.identity, batch.batch, batch.generation, batch.ids))
        return batch

    SourceQuery.plan_batch = planned  # type: ignore[method-assign]


def commits_no_claims() -> None:
    """Where a partition starts is not told to the group."""
    GroupOffsets._claimed = lambda *_: True  # type: ignore[method-assign]


def resumes_at_the_checkpoint() -> None:
    """The checkpoint counts, whatever the group says."""

    def resume(_query: str, committed: CommittedPosition | None, reached: CheckpointPosition | None) -> int | None:
        return reached.offset if reached is not None else committed and committed.offset

    place_module.choose_start_offset = resume


def raises_by_anyones_checkpoint() -> None:
    """The checkpoint raises the group's offset, whoever committed it."""

    def resume(_query: str, committed: CommittedPosition | None, reached: CheckpointPosition | None) -> int | None:
        return max((mutant.offset for mutant in (committed, reached) if mutant is not None), default=None)

    place_module.choose_start_offset = resume


def raises_by_a_batch_that_was_left() -> None:
    """The checkpoint raises what its own query committed since."""

    def resume(query: str, committed: CommittedPosition | None, reached: CheckpointPosition | None) -> int | None:
        if committed is None or reached is None or committed.stamp is None or committed.stamp.query != query:
            one = committed or reached
            return one and one.offset
        return max(committed.offset, reached.offset)

    place_module.choose_start_offset = resume


def releases_inside_a_batch() -> None:
    """Release partitions inside a batch, as soon as the group asks for them."""
    begin = SourceMembership.begin_batch

    def begun(self: SourceMembership, held: AssignedPartitions) -> bool:
        done = begin(self, held)
        self._busy = False
        return done

    SourceMembership.begin_batch = begun  # type: ignore[method-assign]


def drops_a_partition_of_a_repeated_batch() -> None:
    """One partition of a batch that is run again is not read, and committed all the same."""
    replay = SourceQuery.ranges_to_replay

    def replayed(self: SourceQuery, start: BatchOffset, planned: BatchOffset) -> BatchOffset:
        again = self._running is None
        batch = replay(self, start, planned)
        full = [tp for tp, span in sorted(batch.spans.items()) if span.offset_count]
        if not again or not full:
            return batch
        kept = {tp: span for tp, span in batch.spans.items() if tp != full[0]}
        return BatchOffset(batch.query, batch.batch, batch.generation, kept)

    SourceQuery.ranges_to_replay = replayed  # type: ignore[method-assign]


def repeats_with_new_ends() -> None:
    """A batch that is run again reads as far as there are records now."""
    replay = SourceQuery.ranges_to_replay

    def replayed(self: SourceQuery, start: BatchOffset, planned: BatchOffset) -> BatchOffset:
        again = self._running is None
        batch = replay(self, start, planned)
        if not again:
            return batch
        ends = self._catalog.end_offsets(batch.spans)
        grown = {tp: OffsetRange(span.start, max(span.end, ends[tp])) for tp, span in batch.spans.items()}
        return BatchOffset(batch.query, batch.batch, batch.generation, grown)

    SourceQuery.ranges_to_replay = replayed  # type: ignore[method-assign]


def repeats_what_others_read() -> None:
    """A batch that is run again has all partitions that are held, whoever has gone on with them."""

    def still_ours(
        self: GroupOffsets, planned: BatchOffset, held: AssignedPartitions, which: str
    ) -> Mapping[TopicPartition, OffsetRange]:
        return {tp: span for tp, span in planned.spans.items() if tp in held.partitions}

    GroupOffsets._still_ours = still_ours  # type: ignore[method-assign]


def reads_again_what_was_left() -> None:
    """A batch that is run again has partitions that an earlier run left to the group."""
    GroupOffsets._is_unchanged = lambda *_: True  # type: ignore[method-assign]


def ends_on_an_overtaken_look() -> None:
    """Where the group has gone on during a look, the query is told that there is nothing new."""
    plan, begin = SourceQuery.plan_batch, GroupOffsets.begin_batch

    class Overtaken(Exception):
        pass

    def begun(self: GroupOffsets, held: AssignedPartitions, batch: int) -> bool:
        if not begin(self, held, batch):
            raise Overtaken
        return True

    def planned(self: SourceQuery, start: BatchOffset, *, limited: bool) -> BatchOffset | None:
        GroupOffsets.begin_batch = begun  # type: ignore[method-assign]
        try:
            return plan(self, start, limited=limited)
        except Overtaken:
            return None
        finally:
            GroupOffsets.begin_batch = begin  # type: ignore[method-assign]

    SourceQuery.plan_batch = planned  # type: ignore[method-assign]


def starts_new_partitions_at_their_ends() -> None:
    """Records of a partition that is new are passed over."""
    first = place_module.start_offsets_without_commit

    def positions(
        partitions: Iterable[TopicPartition],
        catalog: TopicCatalog,
        bound: ReadBound,
        *,
        again: Container[str],
        there: Container[TopicPartition],
    ) -> dict[TopicPartition, int]:
        wanted = list(partitions)
        new = catalog.end_offsets(tp for tp in wanted if tp not in there)
        return first((tp for tp in wanted if tp not in new), catalog, bound, again=again, there=there) | new

    place_module.start_offsets_without_commit = positions


def commits_nothing() -> None:
    """Finished batches are not told to the group."""
    commit = SourceMembership.commit

    def committed(self: SourceMembership, offsets: Any, maker: CommitOrigin, timeout_ms: float | None = None) -> None:
        if not self._busy:
            commit(self, offsets, maker, timeout_ms)

    SourceMembership.commit = committed  # type: ignore[method-assign]


def loses_the_last_task() -> None:
    """A batch of several tasks is read without its last."""
    cut = readers_module.plan_tasks

    def shorter(*arguments: Any, **named: Any) -> list[ReadTask]:
        tasks = cut(*arguments, **named)
        return tasks[:-1] if len(tasks) > 1 else tasks

    readers_module.plan_tasks = shorter


def reads_a_record_too_far() -> None:
    """The next batch begins one record after the end of the one before."""
    end_running = SourceQuery._end_running

    def ended(self: SourceQuery, timeout_ms: float | None = None) -> None:
        running = self._running
        end_running(self, timeout_ms)
        for tp, span in (running.spans if running is not None else {}).items():
            if span.offset_count and self._positions.get(tp) == span.end:
                self._positions[tp] = span.end + (1 if self._ends.get(tp, 0) > span.end else 0)

    SourceQuery._end_running = ended  # type: ignore[method-assign]


MUTANTS: dict[Callable[[], None], tuple[str, ...]] = {
    commits_before_the_sink: ("commits_follow_sinks",),
    commits_no_claims: ("starts_at_the_commit",),
    resumes_at_the_checkpoint: ("starts_at_the_commit", "commits_follow_sinks"),
    raises_by_anyones_checkpoint: ("commits_follow_sinks",),
    raises_by_a_batch_that_was_left: ("commits_follow_sinks", "nothing_lost"),
    releases_inside_a_batch: ("given_up_between_batches",),
    drops_a_partition_of_a_repeated_batch: ("commits_follow_sinks",),
    repeats_with_new_ends: ("rows_are_true",),
    repeats_what_others_read: ("replays_what_is_its_own",),
    reads_again_what_was_left: ("what_is_left_stays_left",),
    ends_on_an_overtaken_look: ("available_now_reads_what_it_holds",),
    starts_new_partitions_at_their_ends: ("commits_follow_sinks", "nothing_lost"),
    commits_nothing: ("starts_at_the_commit",),
    loses_the_last_task: ("finished_batches_are_whole",),
    reads_a_record_too_far: ("commits_follow_sinks",),
}
"""The faults, and the properties of which one must show each."""


def plant(name: str) -> None:
    """Plants the fault of this name in this process; none for the empty name.

    Raises:
        ValueError: there is none of this name.
    """
    if not name:
        return
    [mutant] = [entry for entry in MUTANTS if entry.__name__ == name]
    mutant()
