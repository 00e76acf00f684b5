"""The place of a query that keeps its own offsets: in its group, or, without one, in its checkpoint alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import replace

from kohort.errors import CommitFailedError, InvalidInputError, NotFoundError
from kohort.ids import TopicPartition
from kohort.spark.options import SourceOptions
from kohort.spark.source.batch_offset import BatchOffset, Committed, Reached, Span, resume_at
from kohort.spark.source.bounds import Bound, refuse_not_read, starting_bound
from kohort.spark.source.catalog import Catalog
from kohort.spark.source.data_loss import lose
from kohort.spark.source.membership import InGroup, Maker, Membership, OffsetKeeper, given_away
from kohort.spark.source.offset_coordinator import Again, Held, Replay
from kohort.spark.source.progress import Standing
from kohort.spark.source.topic_ids import Incarnations
from kohort.spark.source.topic_pattern import INTERNAL_TOPICS, topic_pattern

# -- A checkpoint that goes on in another group or with other topics: told, and refused where records would be left out
#
# The rule stays that a group's offset counts before a checkpoint's. In the query's own group nobody but members has
# moved it. Another group has a history of its own, which a query that brings its checkpoint along need not know of.

log = logging.getLogger("kohort.spark")


def moved_group(options: SourceOptions, before: BatchOffset) -> bool:
    """Whether a checkpoint's offset is of another group, or of none where there is one now."""
    return before.group is not None and before.group != (options.group_id or "")


def take_over(options: SourceOptions, start: BatchOffset, planned: BatchOffset | None) -> dict[TopicPartition, int]:
    """Tell the log of what has changed since a checkpoint was written.

    Args:
        options: of the query that goes on with it.
        start: the end of its last finished batch.
        planned: the batch after that, which was not finished.

    Returns:
        Where the checkpoint goes on, if it comes from another group; else nothing.
    """
    last = start if planned is None else planned
    if last.from_kafka_source:
        return _take_over_from_kafka_source(options, start, last)
    for text in changes(options, last):
        log.warning("%s", text)
    if not moved_group(options, last):
        return {}
    again = {} if planned is None else {tp: span.start for tp, span in planned.spans.items()}
    return start.ends() | again


def _take_over_from_kafka_source(
    options: SourceOptions, start: BatchOffset, last: BatchOffset
) -> dict[TopicPartition, int]:
    """Go on with a checkpoint of Spark's own Kafka source, which has to be of the very same topics.

    Raises:
        InvalidInputError: the options choose something else than the checkpoint has read.
    """
    read, chosen = sorted(last.spans), described(options)
    if options.assign is not None:
        fits = set(options.assigned()) == set(read)
    else:
        fits = all(chooses(options, partition.topic) for partition in read)
    if not fits:
        raise InvalidInputError(
            f"the checkpoint was written by Spark's Kafka source, which has read {', '.join(map(str, read))}; the "
            f"options of the query choose {chosen}. Choose the same, or use a fresh checkpointLocation"
        )
    to = f" and commits them to the group {options.group_id}" if options.group_id else ""
    log.warning(
        "the checkpoint was written by Spark's Kafka source: the query goes on at its offsets%s. To return to that "
        "source later, run `kohort spark checkpoint convert --to kafka`",
        to,
    )
    return start.ends() | {partition: span.start for partition, span in last.spans.items()}


def described(options: SourceOptions) -> str:
    """Return what a query's options choose, for a message."""
    if options.assign is not None:
        return f"assign={', '.join(map(str, sorted(options.assigned())))}"
    if options.subscribe_pattern is not None:
        return f"subscribePattern={options.subscribe_pattern}"
    return f"subscribe={','.join(options.subscribe or ())}"


def changes(options: SourceOptions, before: BatchOffset) -> list[str]:
    """What to tell of a checkpoint that others than these options have written.

    Args:
        options: of the query that goes on with it.
        before: its last offset.
    """
    told = []
    if moved_group(options, before):
        was = f"in the group {before.group}" if before.group else "in no group"
        now = f"in the group {options.group_id}" if options.group_id else "in no group"
        told.append(
            f"the checkpoint was written {was}, and the query is {now} now: it goes on where that group is, and where "
            "the checkpoint is for what the group has no offset for"
            if options.group_id
            else f"the checkpoint was written {was}, and the query is {now} now: it goes on where the checkpoint is"
        )
    known = sorted({tp.topic for tp in before.spans})
    left = [topic for topic in known if not chooses(options, topic)]
    if left:
        told.append(
            f"the checkpoint has read {', '.join(left)}, and the options of the query leave that out: it is not read "
            "any more"
        )
    if left == known and known:
        told.append(
            "the checkpoint is of other topics altogether: what the query reads now begins at the group's offsets, or "
            "at the topics' beginnings, and startingOffsets counts for fresh checkpoints alone"
        )
    return told


def chooses(options: SourceOptions, topic: str) -> bool:
    """Whether the options choose a topic."""
    if options.assign is not None:
        return topic in {tp.topic for tp in options.assigned()}
    if options.subscribe_pattern is not None:
        return topic_pattern(options.subscribe_pattern).finds(topic)
    return topic in (options.subscribe or ())


def refuse_passing_over(
    options: SourceOptions,
    query: str,
    checkpoint: Mapping[TopicPartition, int],
    found: Mapping[TopicPartition, Committed | None],
    *,
    otherwise: str,
) -> None:
    """A query that came to another group does not pass over what that group has read and it has not.

    Args:
        options: of the query.
        query: its identity.
        checkpoint: where the checkpoint goes on.
        found: the group's offsets.
        otherwise: the last way out that the error names.

    Raises:
        InvalidInputError: the group is further than the checkpoint, by others' commits.
    """
    for tp, at in sorted(checkpoint.items()):
        one = found.get(tp)
        if one is None or one.offset <= at or (one.stamp is not None and one.stamp.query == query):
            continue
        raise InvalidInputError(
            f"the checkpoint goes on at offset {at} of {tp}, and the group {options.group_id}, which it was not "
            f"written in, at {one.offset}: the records between them would be passed over. Use a fresh "
            "checkpointLocation to go on where the group is, or set the group's offsets back (kohort groups "
            f"reset-offsets), or {otherwise}"
        )


# -- Where a query starts in partitions, and whether there are records where it means to go on


def first_positions(
    partitions: Iterable[TopicPartition],
    catalog: Catalog,
    bound: Bound,
    *,
    again: Container[str],
    there: Collection[TopicPartition],
) -> dict[TopicPartition, int]:
    """Where partitions start that neither the group nor the checkpoint knows.

    Those that a fresh query finds start where the options say; later ones are new partitions, whose records are all
    new.

    Args:
        partitions: the unknown ones.
        catalog: asks the brokers.
        bound: where the options say that a query starts.
        again: topics that were deleted and made again.
        there: what a fresh query has found; nothing once it has had partitions.
    """
    wanted = list(partitions)
    new = [tp for tp in wanted if tp.topic in again or tp not in there]
    first = [tp for tp in wanted if tp not in set(new)]
    found = catalog.beginnings(new) if new else {}
    if not first:
        return found
    refuse_not_read("startingOffsets", bound, there)
    return found | (catalog.resolve(bound, first) if bound.kind != "committed" else catalog.without_commit(first))


def set_aside(options: SourceOptions, found: Mapping[TopicPartition, Committed | None]) -> str | None:
    """The note that a fresh query goes on at its group's offsets; None where there are none, or it asked for them.

    Args:
        options: of the query.
        found: the group's offsets, by each partition that the query holds.
    """
    bound = starting_bound(options, streaming=True)
    committed = sum(offset is not None for offset in found.values())
    if not committed or bound.kind == "committed":
        return None
    rest = "to none of them" if committed == len(found) else f"to the other {len(found) - committed} alone"
    topics = ", ".join(sorted({tp.topic for tp in found}))
    return (
        f"group {options.group_id} has committed offsets for {committed} of {len(found)} partitions of {topics}: "
        f"{_said_start(options)} applies {rest}. To read them again, use "
        f"a new group.id, or `kohort groups reset-offsets {options.group_id}` while the group has no members"
    )


def _said_start(options: SourceOptions) -> str:
    if options.starting_timestamp is not None:
        return f"startingTimestamp={options.starting_timestamp}"
    if options.starting_offsets_by_timestamp is not None:
        return "startingOffsetsByTimestamp"
    said = options.starting_offsets
    if said is None:
        return "startingOffsets=latest, the default,"
    return "startingOffsets" if said.lstrip().startswith("{") else f"startingOffsets={said}"


def refuse_beyond(
    first: Mapping[TopicPartition, int],
    beginnings: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> None:
    """Nothing is claimed for a start that the partition does not reach.

    Raises:
        InvalidInputError: the options ask for it.
    """
    for tp, at in first.items():
        if at > ends[tp]:
            raise InvalidInputError(
                f"startingOffsets asks for offset {at} of {tp}, which holds offsets {beginnings[tp]} to {ends[tp]}"
            )


def within(
    positions: Mapping[TopicPartition, int],
    beginnings: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    catalog: Catalog,
    options: SourceOptions,
) -> dict[TopicPartition, int]:
    """Positions that lie where there are records; others mean that records are gone.

    Raises:
        OffsetError: records are gone, and that is to end the query.
    """
    settled = dict(positions)
    beyond = {tp: at for tp, at in positions.items() if tp in ends and at > ends[tp]}
    if beyond:
        ends = {tp: end for tp, end in ends.items() if tp not in beyond} | catalog.ends_beyond(beyond)
    for tp, at in positions.items():
        if tp not in ends or beginnings.get(tp, 0) <= at <= ends[tp]:
            continue
        first = beginnings.get(tp)
        if first is None:
            first = catalog.beginnings([tp]).get(tp, 0)
        text = f"{tp} holds offsets {first} to {ends[tp]}, the query was at {at}: records are gone"
        if options.group_id is not None:
            text = f"{text} (kohort groups reset-offsets sets the group's offset anew while the query is down)"
        lose(text, f"goes on at {first}", strict=options.fail_on_data_loss)
        settled[tp] = first
    return settled


REFRESH_S = 5.0
"""How often a query without a group looks for new partitions."""


class GroupPlace:
    """Claims where partitions start, and commits what is done: as a member, or only as one who keeps offsets there.

    Without a group the query has every partition, and its checkpoint is all there is.
    """

    def __init__(self, options: SourceOptions, catalog: Catalog, heard: Callable[[], bool] = lambda: False) -> None:
        """Nothing is joined yet.

        Args:
            options: of the source.
            catalog: asks the brokers.
            heard: whether this process hears when a sink is done.
        """
        self._options, self._catalog, self._heard = options, catalog, heard
        self._bound = starting_bound(options, streaming=True)
        self._group: InGroup | None = None
        self._query = ""
        self._taken: Held | None = None  # what starts have been found for
        self._void: set[str] = set()  # topics that are others now: where the query was in them counts no more
        self._done: dict[TopicPartition, Reached] = {}  # what this query has finished, by its own knowledge
        self._found: Mapping[TopicPartition, Committed | None] = {}
        self._topics = Incarnations(catalog, strict=options.fail_on_data_loss)
        self._brought: dict[TopicPartition, int] = {}  # by the checkpoint, from another group or another source
        self._from_kafka_source = False  # Spark's own source wrote the checkpoint: it counts before a group
        self._resumed = False  # what the checkpoint says is known
        self._restarted = False  # or has had partitions: what is unknown from then on is new
        self._there: frozenset[TopicPartition] | None = None  # when the query started
        self._begun = 0  # the last batch that this run has begun
        self._every: list[TopicPartition] = []
        self._refreshed_at = 0.0
        self._noted = False

    def resume(self, start: BatchOffset) -> None:
        """Take over what the checkpoint says, once."""
        self._resume(start)

    def _resume(self, start: BatchOffset, planned: BatchOffset | None = None) -> None:
        """`planned` was not finished."""
        if self._resumed:
            return
        self._brought = take_over(self._options, start, planned)
        self._from_kafka_source = (start if planned is None else planned).from_kafka_source
        self._resumed = self._restarted = True
        self._done.update(start.reached())
        self._topics.remember(start)

    def hold(self, start: BatchOffset, at: Mapping[TopicPartition, int]) -> Held:
        """Wait until it is known what may be read now; give it with the start of each partition.

        Raises:
            TimedOutError: the group gives no assignment within `joinTimeoutMs`.
        """
        again = Again()
        while (held := self._settled(start, at)) is None:
            again.wait()
        return held

    def _settled(self, start: BatchOffset, at: Mapping[TopicPartition, int]) -> Held | None:
        """Settle what may be read now; None: what is held has changed meanwhile."""
        self._query, self._resumed = start.query, True
        held = self._present(self._held())
        known = {tp: position for tp, position in at.items() if tp.topic not in self._void}
        if held != self._taken:
            found = self._take(held, known, start.batch)
            if found is None:
                return None
            self._taken, known = held, found
            self._void.clear()
        return replace(held, starts=known, ids=self._topics.of(held.partitions))

    def _held(self) -> Held:
        if self._options.group_id is None:
            return Held(self._all_partitions())
        if self._group is None:
            self._group = self._join()
        return self._group.held()

    def _join(self) -> InGroup:
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

    def _present(self, held: Held) -> Held:
        """What there is of the partitions held; what was known of topics that are others now is forgotten."""
        if self._options.subscribe_pattern is not None:  # a coordinator finds Kafka's own topics by a pattern too
            wanted = tuple(tp for tp in held.partitions if tp.topic not in INTERNAL_TOPICS)
            held = Held(wanted, held.generation)
        present, void = self._topics.look({tp.topic for tp in held.partitions})
        if void:
            self._taken = None
            self._void |= void
            for tp in [tp for tp in self._done if tp.topic in void]:
                del self._done[tp]
        return Held(tuple(tp for tp in held.partitions if tp in present.partitions), held.generation)

    def _take(self, held: Held, known: Mapping[TopicPartition, int], batch: int) -> dict[TopicPartition, int] | None:
        """Find where to go on in each partition, and say so to the group. None: the group has moved on meanwhile."""
        group = self._group
        looked = sorted({*held.partitions, *self._brought})
        self._found = self._topics.valid(group.committed(looked)) if group is not None else {}
        otherwise = (
            "leave group.id out" if self._from_kafka_source else "name the group that the checkpoint was written in"
        )
        refuse_passing_over(self._options, self._query, self._brought, self._found, otherwise=otherwise)
        if not self._restarted and not self._noted:
            self._note_what_is_set_aside(held)
        positions: dict[TopicPartition, int] = {}
        unknown: list[TopicPartition] = []
        for tp in held.partitions:
            at = known.get(tp) if group is None else None
            if at is None and self._from_kafka_source:
                at = self._brought.get(tp)
            if at is None:
                at = resume_at(self._query, self._found.get(tp), self._done.get(tp))
            if at is None:
                unknown.append(tp)
            else:
                positions[tp] = at
        there = () if self._restarted else self._there or ()
        first = first_positions(unknown, self._catalog, self._bound, again=self._topics.again, there=there)
        beginnings, ends = self._catalog.beginnings(held.partitions), self._catalog.ends(held.partitions)
        if any(tp not in known for known in (beginnings, ends, positions | first) for tp in held.partitions):
            return None  # a topic has gone since it was looked at
        refuse_beyond(first, beginnings, ends)
        positions = within(positions | first, beginnings, ends, self._catalog, self._options)
        if not self._claim(held, positions | self._left_to_others(held), batch):
            return None
        self._brought.clear()
        self._topics.again -= {tp.topic for tp in positions}
        self._restarted = self._restarted or bool(positions)
        return positions

    def _left_to_others(self, held: Held) -> dict[TopicPartition, int]:
        """Return where the checkpoint goes on in partitions that other members have: it tells the group for them.

        Whoever has such a partition goes on at the group's offset, and knows nothing of this checkpoint.
        """
        if self._group is None:
            return {}
        others = [tp for tp in self._brought if tp not in held.partitions]
        left = {}
        for tp in self._catalog.beginnings(others) if others else ():
            found, at = self._found.get(tp), self._brought[tp]
            if found is None or (self._from_kafka_source and found.offset < at):
                left[tp] = at
        return left

    def _note_what_is_set_aside(self, held: Held) -> None:
        """Say once, of a fresh checkpoint, that the group's offsets count before `startingOffsets`."""
        note = set_aside(self._options, {tp: self._found.get(tp) for tp in held.partitions})
        self._noted = bool(held.partitions)
        if note is not None:
            log.warning("%s", note)

    def _claim(self, held: Held, positions: Mapping[TopicPartition, int], batch: int) -> bool:
        """Say to the group where the query goes on. False: it has moved on meanwhile."""
        if self._group is None:
            return True
        every = self._taken is None and self._options.assign is not None  # a group with members refuses it, now
        claims = {tp: at for tp, at in positions.items() if every or not self._claimed(tp, at)}
        try:
            self._group.commit(claims, Maker(self._query, batch, held.generation, self._topics.of(positions)))
        except (CommitFailedError, NotFoundError):
            return False
        return True

    def _claimed(self, tp: TopicPartition, position: int) -> bool:
        """Whether the group's offset is this position, under this query's name: so that every owner leaves a trace."""
        found = self._found.get(tp)
        return found is not None and found.offset == position and self._own(tp)

    def _own(self, tp: TopicPartition) -> bool:
        """Whether no one has committed for a partition since this query did."""
        found = self._found.get(tp)
        return found is None or (found.stamp is not None and found.stamp.query == self._query)

    def settle(
        self, held: Held, at: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Where to go on once the partitions' ends are known."""
        del held
        return within(at, {}, ends, self._catalog, self._options)

    def notes_start(self) -> bool:
        """Whether nobody but the checkpoint keeps where a fresh query started.

        A group does not either while there is nothing to commit an offset of, as with a pattern that matches nothing.
        """
        return (self._group is None or not self._there) and self._bound.kind != "earliest"

    def still(self, held: Held) -> bool:
        """Whether a look at what is held still counts; False if the group has moved on since `held`, or is about to."""
        return self._group is None or self._group.still(held)

    def begin(self, held: Held, batch: int) -> bool:
        """Start a batch: from now on nothing is given up. False if the group has moved on since `held`."""
        begun = self._group is None or self._group.begin(held)
        self._begun = batch if begun else self._begun
        return begun

    def read(self) -> bool:
        """Spark asks for the tasks of the batch that has begun. False: the batch was let go meanwhile."""
        return self._group is None or self._group.read()

    def finish(self, batch: BatchOffset, timeout_ms: float | None = None) -> None:
        """Commit the ends of a batch that is done; then what the group wants back is given up."""
        self._done.update(batch.reached())
        for tp in batch.spans:
            self._brought.pop(tp, None)
        if self._group is None:
            return
        try:
            self._commit(self._group, batch, timeout_ms)
        except CommitFailedError as error:
            self._group.end()
            self._taken = None
            self._lost(batch, error)
            return
        self._group.end()

    def _commit(self, group: InGroup, batch: BatchOffset, timeout_ms: float | None = None) -> None:
        """Commit a batch's ends; what is gone meanwhile is left out, and told by the next look."""
        ends = batch.ends()
        while ends:
            try:
                group.commit(ends, Maker(batch.query, batch.batch, batch.generation, batch.ids), timeout_ms)
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

    def _lost(self, batch: BatchOffset, error: CommitFailedError) -> None:
        text = given_away(batch.batch, error)
        if self._options.on_revocation_timeout == "fail":
            raise CommitFailedError(f"{text}; onRevocationTimeout=release goes on instead", error.code) from error
        log.warning("%s; going on without them: the others read them again", text)

    def replay(self, start: BatchOffset, planned: BatchOffset) -> Replay:
        """Take a batch again that an earlier run did not finish, and read of it what `plannedRanges` says.

        What is not read starts at the group's offset, here or wherever its owner is. So it is with a batch of this run
        that was let go before its tasks were asked for; nothing of it has been read, so partitions that are others' now
        are left to them whatever the option says.
        """
        self._query = planned.query
        here = planned.batch == self._begun
        self._resume(start, planned)
        another = self._topics.remember(planned)
        for tp in [tp for tp in self._done if tp.topic in another]:
            del self._done[tp]  # where the batch before ended is an offset of the earlier topic
        if self._options.group_id is None:
            self._present(Held(tuple(planned.spans)))
            readable = planned.of(self._readable(planned))
            return Replay(readable, readable)
        start = replace(start, query=planned.query)  # a first batch's start is made anew by each run
        at: Mapping[TopicPartition, int] = {}
        while True:
            held = self.hold(start, at)
            at = held.starts
            readable = planned.of(self._readable(planned))
            kept = self._still_ours(readable, held, "owned" if here else self._options.planned_ranges)
            if self._mark_left(readable, kept, held) and self.begin(held, planned.batch) and self.read():
                break
        ours = {
            tp: span
            for tp, span in kept.items()
            if tp in held.partitions and span.start <= at[tp] <= span.end  # else the group was set there
        }
        ids = self._topics.of(kept)
        released = sorted(set(readable.spans) - set(kept))
        if released:
            log.warning("batch %s: left to the group: %s", planned.batch, ", ".join(map(str, released)))
        return Replay(
            BatchOffset(planned.query, planned.batch, planned.generation, kept, ids, planned.group),
            BatchOffset(planned.query, planned.batch, held.generation, ours, ids),
            {**at, **{tp: span.end for tp, span in ours.items()}},
        )

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
        records are read again, and none is lost. One that pushes takes it only if it is still so. To leave the
        partitions of others alone would lose the records of an owner that ends before its first commit.
        """
        group = self._group
        if group is None:
            return True
        left: dict[TopicPartition, int] = {}
        for tp, found in self._topics.valid(group.committed([tp for tp in planned.spans if tp not in kept])).items():
            stamp = found.stamp if found is not None else None
            if found is None:
                left[tp] = planned.spans[tp].start
            elif stamp is not None and stamp.query == self._query and stamp.batch < planned.batch:
                left[tp] = found.offset
        try:
            if left:
                group.commit(left, Maker(self._query, planned.batch, held.generation, self._topics.of(left)))
        except (CommitFailedError, NotFoundError):
            return False
        return True

    def _still_ours(self, planned: BatchOffset, held: Held, which: str) -> Mapping[TopicPartition, Span]:
        """The planned spans to read again: by default those of partitions that are held, and that none has had since.

        Args:
            planned: the batch, as far as there is something of it.
            held: what is held now.
            which: as the option `plannedRanges` says.
        """
        if which == "all":
            return planned.spans
        if which == "none":
            return {}
        return {
            tp: span
            for tp, span in planned.spans.items()
            if tp in held.partitions and held.starts[tp] == span.start and self._untouched(tp, planned)
        }

    def _untouched(self, tp: TopicPartition, planned: BatchOffset) -> bool:
        """Whether the group's offset is the one that the batch was planned with, or there is none.

        One under the batch's number says that an earlier run came back to the batch, and left the partition to the
        group. One of another's says that it may have: that run had nothing to say once a new owner had claimed the
        partition. A sink that takes each batch once may have the batch without it by then, and would not take it now.
        """
        found = self._found.get(tp)
        if found is None:
            return True
        return found.stamp is not None and self._own(tp) and found.stamp.batch < planned.batch

    def standing(self) -> Standing:
        """What the progress says of it."""
        return Standing() if self._group is None else self._group.standing()

    def close(self) -> None:
        """Leave the group."""
        if self._group is not None:
            self._group.close()
