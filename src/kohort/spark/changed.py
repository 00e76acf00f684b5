"""A checkpoint that goes on in another group or with other topics: told, and refused where records would be left out.

The rule stays that a group's offset counts before a checkpoint's. In the query's own group nobody but members has moved
it. Another group has a history of its own, which a query that brings its checkpoint along need not know of.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.spark.batch_offset import BatchOffset, Committed
from kohort.spark.options import SourceOptions
from kohort.spark.topic_pattern import topic_pattern

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
