"""The offsets of a query that keeps its own: in its group, or, without a group, only in its checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import replace

from kohort.errors import CommitFailedError, InvalidInputError, NotFoundError
from kohort.ids import TopicPartition
from kohort.spark.options import SourceOptions
from kohort.spark.source.batch_offset import (
    BatchOffset,
    CheckpointPosition,
    CommittedPosition,
    OffsetRange,
    choose_start_offset,
)
from kohort.spark.source.bounds import ReadBound, refuse_partitions_not_read, starting_bound
from kohort.spark.source.catalog import TopicCatalog, report_lost_records
from kohort.spark.source.checkpoint_takeover import chooses_topic, refuse_skipping_records, take_over
from kohort.spark.source.membership import (
    CommitOrigin,
    GroupParticipation,
    NonMemberClient,
    SourceMembership,
    partitions_lost_text,
)
from kohort.spark.source.offset_coordinator import AssignedPartitions, AssignmentRetry, ReplayedBatch
from kohort.spark.source.progress import MemberProgress
from kohort.spark.source.topic_ids import TopicIds
from kohort.spark.topic_pattern import INTERNAL_TOPICS

log = logging.getLogger("kohort.spark")

# -- Starting offsets, and their check against the log


def start_offsets_without_commit(
    partitions: Iterable[TopicPartition],
    catalog: TopicCatalog,
    bound: ReadBound,
    *,
    again: Container[str],
    there: Collection[TopicPartition],
) -> dict[TopicPartition, int]:
    """Return the start offsets of partitions without an offset in the group or the checkpoint.

    Partitions that exist when a query without a checkpoint starts, begin where the options say. Later ones are new, and
    start at the beginning.

    Args:
        partitions: partitions without an offset.
        catalog: looks up offsets.
        bound: the start from the options.
        again: topics that were deleted and re-created, which also start at the beginning.
        there: the partitions that existed when a query without a checkpoint started; empty for a query with one, and
            once the query has had partitions.
    """
    wanted = list(partitions)
    new = [tp for tp in wanted if tp.topic in again or tp not in there]
    first = [tp for tp in wanted if tp not in set(new)]
    found = catalog.beginning_offsets(new) if new else {}
    if not first:
        return found
    refuse_partitions_not_read("startingOffsets", bound, there)
    return found | (
        catalog.resolve_bound(bound, first) if bound.kind != "committed" else catalog.default_start_offsets(first)
    )


def ignored_start_note(options: SourceOptions, found: Mapping[TopicPartition, CommittedPosition | None]) -> str | None:
    """Return a note for the log that the group's committed offsets take precedence over `startingOffsets`.

    None if the group has none, or the query starts at `committed` anyway. For a query without a checkpoint.

    Args:
        options: the options of the query.
        found: the group's offsets of all partitions that the query owns.
    """
    bound = starting_bound(options, streaming=True)
    committed = sum(offset is not None for offset in found.values())
    if not committed or bound.kind == "committed":
        return None
    topics = ", ".join(sorted({tp.topic for tp in found}))
    return (
        f"group {options.group_id} has committed offsets for {_share(committed, len(found))} of {topics} that this "
        f"query owns: {_start_option(options)} applies {_rest(len(found) - committed)}. To read them again, use a new "
        f"group.id, or `kohort groups reset-offsets {options.group_id}` while the group has no members"
    )


def _share(count: int, owned: int) -> str:
    if count < owned:
        return f"{count} of the {owned} partitions"
    return "the one partition" if owned == 1 else f"all {owned} partitions"


def _rest(count: int) -> str:
    if not count:
        return "to no partition"
    return "to the other one alone" if count == 1 else f"to the other {count} alone"


def _start_option(options: SourceOptions) -> str:
    if options.starting_timestamp is not None:
        return f"startingTimestamp={options.starting_timestamp}"
    if options.starting_offsets_by_timestamp is not None:
        return "startingOffsetsByTimestamp"
    start = options.starting_offsets
    if start is None:
        return "startingOffsets=latest, the default,"
    return "startingOffsets" if start.lstrip().startswith("{") else f"startingOffsets={start}"


def check_starts_in_log(
    first: Mapping[TopicPartition, int],
    beginnings: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    catalog: TopicCatalog,
    options: SourceOptions,
) -> dict[TopicPartition, int]:
    """Return a query's start offsets, after checking that none is beyond its partition's end.

    With failOnDataLoss=false, such a start is moved to the end, as in Spark's own source.

    Args:
        first: the starting offsets that the options ask for.
        beginnings: the first offsets.
        ends: the end offsets.
        catalog: looks up the ends again where a start is beyond them.
        options: the options of the query.

    Raises:
        InvalidInputError: the options ask for an offset beyond the end, and lost records are an error.
    """
    if not options.fail_on_data_loss:
        ends = {**ends, **catalog.confirm_end_offsets(first, {tp: ends[tp] for tp in first})}
    starts = dict(first)
    for tp, at in first.items():
        if at <= ends[tp]:
            continue
        text = f"startingOffsets asks for offset {at} of {tp}, which holds offsets {beginnings[tp]} to {ends[tp]}"
        if options.fail_on_data_loss:
            raise InvalidInputError(f"{text}; failOnDataLoss=false starts at its end")
        starts[tp] = ends[tp]
        report_lost_records(text, f"starts at {ends[tp]}", strict=False)
    return starts


def move_positions_into_logs(
    positions: Mapping[TopicPartition, int],
    beginnings: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    catalog: TopicCatalog,
    options: SourceOptions,
    *,
    same: Container[str],
) -> dict[TopicPartition, int]:
    """Move positions that are outside their partition's log into it, and report the lost records that this means.

    A position beyond the end moves to the end if the topic is the same: its log was truncated, and the rest has been
    read. If it may be another topic of the same name, the position moves to the beginning.

    Args:
        positions: where reading is to continue.
        beginnings: the first offsets; those that are missing are looked up where they are needed.
        ends: the end offsets.
        catalog: looks up offsets.
        options: the options of the query.
        same: topics to which the positions are known to belong, by their ids.

    Raises:
        OffsetError: records are lost, and failOnDataLoss ends the query.
    """
    settled = dict(positions)
    ends = catalog.confirm_end_offsets(positions, ends)
    for tp, at in positions.items():
        if tp not in ends or beginnings.get(tp, 0) <= at <= ends[tp]:
            continue
        first = beginnings.get(tp)
        if first is None:
            first = catalog.beginning_offsets([tp]).get(tp, 0)
        text = f"{tp} holds offsets {first} to {ends[tp]}, the query was at {at}: records are gone"
        if options.group_id is not None:
            text = f"{text} (kohort groups reset-offsets sets the group's offset anew while the query is down)"
        settled[tp] = ends[tp] if at > ends[tp] and tp.topic in same else first
        report_lost_records(text, f"goes on at {settled[tp]}", strict=options.fail_on_data_loss)
    return settled


PARTITIONS_REFRESH_S = 5.0
"""Interval at which a query without a group looks for new partitions."""


class GroupOffsets:
    """The offset coordinator of a query that keeps its offsets in a group and in its checkpoint.

    The query is a member of the group, or with `assign` only commits there. It commits the start of new partitions, and
    the ends of completed batches. Without a group it has all partitions, and only the checkpoint keeps offsets.
    """

    def __init__(
        self, options: SourceOptions, catalog: TopicCatalog, heard: Callable[[], bool] = lambda: False
    ) -> None:
        """Set up the offsets; the query joins its group with the first `wait_assigned_partitions`.

        Args:
            options: the options of the source.
            catalog: looks up partitions and offsets.
            heard: whether the driver program now reports to this process when a sink has completed a batch.
        """
        self._options, self._catalog, self._heard = options, catalog, heard
        self._bound = starting_bound(options, streaming=True)
        self._group: GroupParticipation | None = None
        self._query = ""
        self._taken: AssignedPartitions | None = None  # the partitions whose starts are known
        self._void: set[str] = set()  # re-created topics, whose positions no longer count
        self._done: dict[TopicPartition, CheckpointPosition] = {}  # offsets that this query has completed itself
        self._found: Mapping[TopicPartition, CommittedPosition | None] = {}
        self._topics = TopicIds(catalog, strict=options.fail_on_data_loss)
        self._brought: dict[TopicPartition, int] = {}  # the checkpoint's positions, from another group or source
        self._from_kafka_source = False  # Spark's own source wrote the checkpoint, which precedes a group
        self._resumed = False  # the checkpoint has been read
        self._restarted = False  # or has had partitions: partitions found later are new
        self._there: frozenset[TopicPartition] | None = None  # partitions at the query's start
        self._begun = 0  # the last batch of this run
        self._repeated: BatchOffset | None = None  # the batch that is being repeated
        self._every: list[TopicPartition] = []
        self._refreshed_at = 0.0
        self._noted = False

    def resume_from_checkpoint(self, start: BatchOffset) -> None:
        """Continue from the positions in the checkpoint. Later calls do nothing."""
        self._resume(start)

    def _resume(self, start: BatchOffset, planned: BatchOffset | None = None) -> None:
        """Take positions and topic ids from the checkpoint, once; `planned` is its unfinished batch, if it has one."""
        if self._resumed:
            return
        self._brought = {
            tp: at
            for tp, at in take_over(self._options, start, planned).items()
            if chooses_topic(self._options, tp.topic)
        }
        self._from_kafka_source = (start if planned is None else planned).from_kafka_source
        self._resumed = self._restarted = True
        self._done.update(start.checkpoint_positions())
        self._topics.remember_topic_ids(start)

    def wait_assigned_partitions(
        self, previous: BatchOffset, positions: Mapping[TopicPartition, int]
    ) -> AssignedPartitions:
        """Wait until the partitions to read are known; return them with the start of each.

        Raises:
            TimedOutError: the group gives no assignment within `joinTimeoutMs`.
        """
        again = AssignmentRetry()
        while (held := self._try_hold(previous, positions)) is None:
            again.wait_and_warn()
        return held

    def _try_hold(self, start: BatchOffset, at: Mapping[TopicPartition, int]) -> AssignedPartitions | None:
        """Return the partitions to read now with their start offsets.

        None if the group rebalanced meanwhile, or a topic was deleted.
        """
        self._query, self._resumed = start.query, True
        held = self._present(self._assigned())
        known = {tp: position for tp, position in at.items() if tp.topic not in self._void}
        if held != self._taken:
            found = self._find_positions(held, known, start.batch)
            if found is None:
                return None
            self._taken, known = held, found
            self._void.clear()
        return replace(held, starts=known, ids=self._topics.topic_ids_of(held.partitions))

    def _assigned(self) -> AssignedPartitions:
        if self._options.group_id is None:
            return AssignedPartitions(self._all_partitions())
        if self._group is None:
            self._group = self._join()
        return self._group.wait_assigned_partitions()

    def _join(self) -> GroupParticipation:
        self._look()  # a missing topic is an error before joining
        if self._options.assign is not None:
            return NonMemberClient(self._options)
        return SourceMembership(self._options, self._heard)

    def _all_partitions(self) -> tuple[TopicPartition, ...]:
        now = time.monotonic()
        if not self._every or now - self._refreshed_at > PARTITIONS_REFRESH_S:
            self._every, self._refreshed_at = self._look(), now
        return tuple(self._every)

    def _look(self) -> list[TopicPartition]:
        """Look up all existing partitions of the topics that the query's options choose."""
        found = self._catalog.partitions(self._topics.known_topics)
        if self._there is None:
            self._there = frozenset(found)
        return found

    def _present(self, held: AssignedPartitions) -> AssignedPartitions:
        """Return the owned partitions that exist, and forget positions in re-created topics."""
        if self._options.subscribe_pattern is not None:  # a coordinator matches Kafka's internal topics too
            wanted = tuple(tp for tp in held.partitions if tp.topic not in INTERNAL_TOPICS)
            held = AssignedPartitions(wanted, held.generation)
        present, void = self._topics.look_up_topics({tp.topic for tp in held.partitions})
        if void:
            self._taken = None
            self._void |= void
            for tp in [tp for tp in self._done if tp.topic in void]:
                del self._done[tp]
            for tp in [tp for tp in self._brought if tp.topic in void]:
                del self._brought[tp]
        return AssignedPartitions(tuple(tp for tp in held.partitions if tp in present.partitions), held.generation)

    def _find_positions(
        self, held: AssignedPartitions, known: Mapping[TopicPartition, int], batch: int
    ) -> dict[TopicPartition, int] | None:
        """Determine the start offset of each owned partition, and commit new ones to the group.

        Args:
            held: the assignment.
            known: the query's positions.
            batch: the number of the previous batch.

        Returns:
            The start offsets; None if the group has rebalanced meanwhile, or a topic was deleted.

        Raises:
            InvalidInputError: the new group's offsets are ahead of the checkpoint, or a start is beyond the log's end.
            OffsetError: records are lost, and failOnDataLoss ends the query.
        """
        group = self._group
        looked = sorted({*held.partitions, *self._brought})
        self._found = self._topics.drop_recreated_offsets(group.committed_offsets(looked)) if group is not None else {}
        otherwise = (
            "leave group.id out" if self._from_kafka_source else "name the group that the checkpoint was written in"
        )
        refuse_skipping_records(self._options, self._query, self._brought, self._found, otherwise=otherwise)
        if not self._restarted and not self._noted:
            self._log_ignored_start(held)
        positions: dict[TopicPartition, int] = {}
        unknown: list[TopicPartition] = []
        for tp in held.partitions:
            at = known.get(tp) if group is None else None
            if at is None and self._from_kafka_source:
                at = self._brought.get(tp)
            if at is None:
                at = choose_start_offset(self._query, self._found.get(tp), self._done.get(tp))
            if at is None:
                unknown.append(tp)
            else:
                positions[tp] = at
        there = () if self._restarted else self._there or ()
        first = start_offsets_without_commit(unknown, self._catalog, self._bound, again=self._topics.again, there=there)
        beginnings, ends = self._catalog.beginning_offsets(held.partitions), self._catalog.end_offsets(held.partitions)
        if any(tp not in known for known in (beginnings, ends, positions | first) for tp in held.partitions):
            return None  # a topic was deleted meanwhile
        first = check_starts_in_log(first, beginnings, ends, self._catalog, self._options)
        positions = move_positions_into_logs(
            positions | first, beginnings, ends, self._catalog, self._options, same=self._topics.certain
        )
        if not self._claim(held, positions | self._positions_of_others(held), batch):
            return None
        self._brought.clear()
        self._topics.mark_positions_valid({tp.topic for tp in positions})
        self._restarted = self._restarted or bool(positions)
        return positions

    def _positions_of_others(self, held: AssignedPartitions) -> dict[TopicPartition, int]:
        """Return positions of another group's or Spark's checkpoint in partitions that other members own.

        They are committed to the group, because these owners do not know this checkpoint.
        """
        if self._group is None:
            return {}
        others = [tp for tp in self._brought if tp not in held.partitions]
        left = {}
        for tp in self._catalog.beginning_offsets(others) if others else ():
            found, at = self._found.get(tp), self._brought[tp]
            if found is None or (self._from_kafka_source and found.offset < at):
                left[tp] = at
        return left

    def _log_ignored_start(self, held: AssignedPartitions) -> None:
        """Log once for a fresh checkpoint that the group's offsets take precedence over `startingOffsets`."""
        note = ignored_start_note(self._options, {tp: self._found.get(tp) for tp in held.partitions})
        self._noted = bool(held.partitions)
        if note is not None:
            log.warning("the group's committed offsets take precedence over startingOffsets: %s", note)

    def _claim(self, held: AssignedPartitions, positions: Mapping[TopicPartition, int], batch: int) -> bool:
        """Commit the query's start offsets to the group, unless this query has committed them already.

        Return False if the group has rebalanced meanwhile, or a topic was deleted.
        """
        if self._group is None:
            return True
        every = self._taken is None and self._options.assign is not None  # so that a group with members refuses it now
        claims = {tp: at for tp, at in positions.items() if every or not self._claimed(tp, at)}
        left = {tp: at for tp, at in claims.items() if self._is_left(tp)}
        rest = {tp: at for tp, at in claims.items() if tp not in left}
        ids = self._topics.topic_ids_of(positions)
        try:
            if left and self._repeated is not None:
                self._group.commit(left, CommitOrigin(self._query, self._repeated.batch, held.generation, ids))
            if rest or not left:
                self._group.commit(rest, CommitOrigin(self._query, batch, held.generation, ids))
        except (CommitFailedError, NotFoundError):
            return False
        return True

    def _is_left(self, tp: TopicPartition) -> bool:
        """Return whether a batch that is read again leaves out this partition: other members may have had it since.

        The partition's start offset is then committed under that batch's number. The lower number of the batch before
        would hide that another client has committed since: from this run after a rebalance, and from later runs.
        """
        planned = self._repeated
        return planned is not None and tp in planned.spans and not self._is_unchanged(tp, planned)

    def _claimed(self, tp: TopicPartition, position: int) -> bool:
        """Return whether this query itself committed this position as the partition's committed offset."""
        found = self._found.get(tp)
        return found is not None and found.offset == position and self._own(tp)

    def _own(self, tp: TopicPartition) -> bool:
        """Return whether this query made the last commit in a partition, or nobody has committed there."""
        found = self._found.get(tp)
        return found is None or (found.stamp is not None and found.stamp.query == self._query)

    def move_into_logs(
        self, held: AssignedPartitions, at: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the positions `at`, with those outside their partition's log moved into it.

        The first offsets are looked up only for a query that skips lost records and limits its batches. It could
        otherwise plan batch after batch of records that retention has removed. For other queries the tasks notice that.

        Raises:
            OffsetError: records are lost, and failOnDataLoss ends the query.
        """
        del held
        options = self._options
        is_bounded = options.max_offsets_per_trigger is not None or options.max_bytes_per_trigger is not None
        behind = [tp for tp, position in at.items() if position < ends.get(tp, 0)]
        looks = is_bounded and not options.fail_on_data_loss and behind
        beginnings = self._catalog.beginning_offsets(behind) if looks else {}
        return move_positions_into_logs(at, beginnings, ends, self._catalog, options, same=self._topics.certain)

    def needs_start_in_checkpoint(self) -> bool:
        """Return whether only the checkpoint stores where a new query starts, so that an empty batch has to save it.

        True without a group, or if there is no partition yet to commit. False for `earliest`, which needs no storage.
        """
        return (self._group is None or not self._there) and self._bound.kind != "earliest"

    def is_assignment_current(self, held: AssignedPartitions) -> bool:
        """Return whether the assignment is still valid; False if the group has rebalanced since, or is about to."""
        return self._group is None or self._group.is_assignment_current(held)

    def owns_whole_assignment(self, expected: Collection[TopicPartition]) -> bool:
        """Return whether the query owns all partitions that the group gives it, and waits for no other member.

        Args:
            expected: all partitions that a complete assignment of the group must contain.
        """
        return self._group is None or self._group.owns_whole_assignment(expected)

    def begin_batch(self, held: AssignedPartitions, batch: int) -> bool:
        """Begin a batch: until it ends, no partition is released.

        Return False if the group has rebalanced since `held`.
        """
        begun = self._group is None or self._group.begin_batch(held)
        self._begun = batch if begun else self._begun
        return begun

    def keep_batch_for_reading(self) -> bool:
        """Keep the batch, since Spark asks for its tasks; return False if the batch was abandoned before."""
        return self._group is None or self._group.keep_batch_for_reading()

    def finish_batch(self, batch: BatchOffset, timeout_ms: float | None = None) -> None:
        """Commit the ends of a completed batch, then release revoked partitions."""
        self._done.update(batch.checkpoint_positions())
        for tp in batch.spans:
            self._brought.pop(tp, None)
        if self._group is None:
            return
        try:
            self._commit(self._group, batch, timeout_ms)
        except CommitFailedError as error:
            self._group.end_batch()
            self._taken = None
            self._lost(batch, error)
            return
        self._group.end_batch()

    def _commit(self, group: GroupParticipation, batch: BatchOffset, timeout_ms: float | None = None) -> None:
        """Commit a batch's ends without partitions that were deleted meanwhile, which the next check reports."""
        ends = batch.end_offsets()
        while ends:
            try:
                group.commit(ends, CommitOrigin(batch.query, batch.batch, batch.generation, batch.ids), timeout_ms)
                return
            except NotFoundError:
                now = self._catalog.describe_existing({tp.topic for tp in ends})
                there = {
                    tp: end
                    for tp, end in ends.items()
                    if tp in now.partitions and now.ids.get(tp.topic) == batch.ids.get(tp.topic)
                }
                if there == ends:
                    raise
                ends = there

    def _lost(self, batch: BatchOffset, error: CommitFailedError) -> None:
        text = partitions_lost_text(batch.batch, error)
        if self._options.on_revocation_timeout == "fail":
            raise CommitFailedError(f"{text}; onRevocationTimeout=release goes on instead", error.code) from error
        log.warning(
            "partitions lost: %s; the query continues without them: their new owners read the batch's records again",
            text,
        )

    def replay_batch(self, start: BatchOffset, planned: BatchOffset) -> ReplayedBatch:
        """Begin again a batch that was planned and not finished; `plannedRanges` chooses which ranges are read again.

        Partitions of the other ranges continue at the group's offset, at whichever member owns them. The option does
        not apply to a batch of this run that was abandoned unread: only owned partitions of it are read.
        """
        self._query = planned.query
        here = planned.batch == self._begun
        self._resume(start, planned)
        another = self._topics.remember_topic_ids(planned)
        for tp in [tp for tp in self._done if tp.topic in another]:
            del self._done[tp]  # the previous batch ended in the deleted topic
        if self._options.group_id is None:
            self._present(AssignedPartitions(tuple(planned.spans)))
            readable = planned.with_ranges(self._readable(planned))
            return ReplayedBatch(readable, readable)
        self._taken = None  # the starts are looked up again, even if the assignment is the same
        start = replace(start, query=planned.query)  # each run makes a new start for a first batch
        self._repeated = planned
        try:
            held, readable, kept = self._share_batch(start, planned, here=here)
        finally:
            self._repeated = None
        at = held.starts
        ours = {
            tp: span
            for tp, span in kept.items()
            if tp in held.partitions and span.start <= at[tp] <= span.end  # otherwise the group's offset was set
        }
        ids = self._topics.topic_ids_of(kept)
        released = sorted(set(readable.spans) - set(kept))
        if released:
            log.warning(
                "batch %s repeated without partitions %s, which continue from the group's committed offsets",
                planned.batch,
                ", ".join(map(str, released)),
            )
        return ReplayedBatch(
            BatchOffset(planned.query, planned.batch, planned.generation, kept, ids, planned.group),
            BatchOffset(planned.query, planned.batch, held.generation, ours, ids),
            {**at, **{tp: span.end for tp, span in ours.items()}},
        )

    def _share_batch(
        self, start: BatchOffset, planned: BatchOffset, *, here: bool
    ) -> tuple[AssignedPartitions, BatchOffset, Mapping[TopicPartition, OffsetRange]]:
        """Begin again a planned batch of a query in a group, once the assignment does not change meanwhile.

        Args:
            start: the previous batch.
            planned: the batch.
            here: whether this run planned it.

        Returns:
            The assignment, the batch with the ranges that still exist, and those ranges that are read again.
        """
        at: Mapping[TopicPartition, int] = {}
        while True:
            held = self.wait_assigned_partitions(start, at)
            at = held.starts
            readable = planned.with_ranges(self._readable(planned))
            kept = self._still_ours(readable, held, "owned" if here else self._options.planned_ranges)
            if (
                self._mark_left(planned.with_ranges(self._topics.ranges_of_same_topics(planned)), kept, held)
                and self.begin_batch(held, planned.batch)
                and self.keep_batch_for_reading()
            ):
                return held, readable, kept

    def _readable(self, planned: BatchOffset) -> dict[TopicPartition, OffsetRange]:
        """Return the ranges of a planned batch whose topic and records still exist; report those that are lost."""
        spans = self._topics.ranges_of_same_topics(planned)
        ends = self._catalog.confirm_end_offsets(
            {tp: span.end for tp, span in spans.items()}, self._catalog.end_offsets(spans)
        )
        for tp, span in [*spans.items()]:
            if tp not in ends:
                del spans[tp]  # deleted meanwhile; the next check reports it
            elif span.end > ends[tp]:
                text = f"{tp} ends at offset {ends[tp]}, the batch to be read again goes on to {span.end}"
                report_lost_records(
                    f"{text}: records are gone", "leaves them out", strict=self._options.fail_on_data_loss
                )
                del spans[tp]
        return spans

    def _mark_left(
        self, planned: BatchOffset, kept: Mapping[TopicPartition, OffsetRange], held: AssignedPartitions
    ) -> bool:
        """Commit again the group's offsets of partitions that a repeated batch leaves out, under the batch's number.

        By its checkpoint, a later run would take these partitions as read up to the batch's ends. The stamp of this
        commit, or a new owner's commit, shows that they were not. Return False if the group has rebalanced meanwhile,
        or a topic was deleted.

        A new owner's commit between the lookup and this commit is overwritten: a coordinator accepts any member's
        offset for any partition, without compare-and-set. The owner's next commit repairs it. If the owner ends first,
        records are read again, and none is lost. A push coordinator does compare and set. Leaving these partitions
        alone would lose the records of an owner that ends before its first commit.
        """
        group = self._group
        if group is None:
            return True
        left: dict[TopicPartition, int] = {}
        for tp, found in self._topics.drop_recreated_offsets(
            group.committed_offsets([tp for tp in planned.spans if tp not in kept])
        ).items():
            stamp = found.stamp if found is not None else None
            if found is None:
                left[tp] = planned.spans[tp].start
            elif stamp is not None and stamp.query == self._query and stamp.batch < planned.batch:
                left[tp] = found.offset
        try:
            if left:
                group.commit(
                    left, CommitOrigin(self._query, planned.batch, held.generation, self._topics.topic_ids_of(left))
                )
        except (CommitFailedError, NotFoundError):
            return False
        return True

    def _still_ours(
        self, planned: BatchOffset, held: AssignedPartitions, which: str
    ) -> Mapping[TopicPartition, OffsetRange]:
        """Return the ranges of a planned batch to read again.

        Args:
            planned: the batch, as far as its records still exist.
            held: the partitions owned now.
            which: the value of `plannedRanges`: "all", "none", or "owned": those of owned partitions that no other
                member has had since.
        """
        if which == "all":
            return planned.spans
        if which == "none":
            return {}
        return {
            tp: span
            for tp, span in planned.spans.items()
            if tp in held.partitions and held.starts[tp] == span.start and self._is_unchanged(tp, planned)
        }

    def _is_unchanged(self, tp: TopicPartition, planned: BatchOffset) -> bool:
        """Return whether the group has no offset of a partition, or one that this query committed before the batch.

        An offset under the batch's own number shows that an earlier run read the batch again without this partition.
        Another client's offset means that this is possible. A sink that ignores a batch number it has seen would then
        miss the partition's records.
        """
        found = self._found.get(tp)
        if found is None:
            return True
        return found.stamp is not None and self._own(tp) and found.stamp.batch < planned.batch

    def member_progress(self) -> MemberProgress:
        """Return the member's state for the query's progress."""
        return MemberProgress() if self._group is None else self._group.member_progress()

    def close(self) -> None:
        """Leave the group."""
        if self._group is not None:
            self._group.close()
