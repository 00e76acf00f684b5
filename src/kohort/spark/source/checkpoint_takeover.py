"""Checkpoints that another group, or Spark's own source, has written: taken over, or refused if records would be lost.

A group's offset still takes precedence over a checkpoint's. In the query's own group, only members have moved the
offset. Another group has a separate history, which a query that brings its checkpoint along may not know.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.spark.options import SourceOptions
from kohort.spark.source.batch_offset import (
    BatchOffset,
    CommittedPosition,
)
from kohort.spark.topic_pattern import parse_topic_pattern

log = logging.getLogger("kohort.spark")


def has_changed_group(options: SourceOptions, before: BatchOffset) -> bool:
    """Return whether the query's `group.id` differs from the one in its checkpoint; no group differs from any.

    False if the checkpoint is old and does not name its group.
    """
    return before.group is not None and before.group != (options.group_id or "")


def take_over(options: SourceOptions, start: BatchOffset, planned: BatchOffset | None) -> dict[TopicPartition, int]:
    """Log which options have changed since a checkpoint was written, and return its positions if the group has too.

    Args:
        options: the options of the query that continues from the checkpoint.
        start: the end of its last finished batch.
        planned: the batch after that, which was planned and not finished; None: there is none.

    Returns:
        The positions at which the checkpoint continues, if it was written for another group or by Spark's own source;
        otherwise none: `choose_start_offset` decides between group and checkpoint.

    Raises:
        InvalidInputError: Spark's own source wrote the checkpoint, and has read other topics or partitions.
    """
    last = start if planned is None else planned
    if last.from_kafka_source:
        return _take_over_from_kafka_source(options, start, last)
    for text in changed_option_warnings(options, last):
        log.warning("the options of the query differ from those of its checkpoint: %s", text)
    if not has_changed_group(options, last):
        return {}
    again = {} if planned is None else {tp: span.start for tp, span in planned.spans.items()}
    return start.end_offsets() | again


def _take_over_from_kafka_source(
    options: SourceOptions, start: BatchOffset, last: BatchOffset
) -> dict[TopicPartition, int]:
    """Continue from a checkpoint of Spark's own Kafka source, which must have read the topics that the options choose.

    Raises:
        InvalidInputError: the options choose other topics or partitions.
    """
    read, chosen = sorted(last.spans), chosen_topics_text(options)
    if options.assign is not None:
        fits = set(options.assigned_partitions()) == set(read)
    else:
        fits = all(chooses_topic(options, partition.topic) for partition in read)
    if not fits:
        raise InvalidInputError(
            f"the checkpoint was written by Spark's Kafka source, which has read {', '.join(map(str, read))}; the "
            f"options of the query choose {chosen}. Choose the same, or use a fresh checkpointLocation"
        )
    to = f" and commits them to the group {options.group_id}" if options.group_id else ""
    log.warning(
        "the checkpoint was written by Spark's Kafka source: the query continues from its offsets%s. To return to that "
        "source later, run `kohort spark checkpoint convert --to kafka`",
        to,
    )
    return start.end_offsets() | {partition: span.start for partition, span in last.spans.items()}


def chosen_topics_text(options: SourceOptions) -> str:
    """Return the topics that a query's options choose, for a message."""
    if options.assign is not None:
        return f"assign={', '.join(map(str, sorted(options.assigned_partitions())))}"
    if options.subscribe_pattern is not None:
        return f"subscribePattern={options.subscribe_pattern}"
    return f"subscribe={','.join(options.subscribe or ())}"


def changed_option_warnings(options: SourceOptions, before: BatchOffset) -> list[str]:
    """Return a warning for each option that differs from those with which a checkpoint was written.

    Args:
        options: the options of the query that continues from it.
        before: its last offset.
    """
    warnings = []
    if has_changed_group(options, before):
        was = f"in the group {before.group}" if before.group else "in no group"
        now = f"in the group {options.group_id}" if options.group_id else "in no group"
        warnings.append(
            f"the checkpoint was written {was}, and the query is {now} now: it continues from the offsets of that "
            "group, and from the checkpoint where the group has no offset"
            if options.group_id
            else f"the checkpoint was written {was}, and the query is {now} now: it continues from the checkpoint"
        )
    known = sorted({tp.topic for tp in before.spans})
    left = [topic for topic in known if not chooses_topic(options, topic)]
    if left:
        warnings.append(
            f"the checkpoint has read {', '.join(left)}, which the options of the query leave out: it is not read any "
            "more"
        )
    if left == known and known:
        warnings.append(
            "the checkpoint has read none of the query's topics: the query begins at the group's offsets, or at the "
            "topics' beginnings, since startingOffsets applies to new checkpoints only"
        )
    return warnings


def chooses_topic(options: SourceOptions, topic: str) -> bool:
    """Return whether the options choose a topic."""
    if options.assign is not None:
        return topic in {tp.topic for tp in options.assigned_partitions()}
    if options.subscribe_pattern is not None:
        return parse_topic_pattern(options.subscribe_pattern).matches_topic(topic)
    return topic in (options.subscribe or ())


def refuse_skipping_records(
    options: SourceOptions,
    query: str,
    checkpoint: Mapping[TopicPartition, int],
    found: Mapping[TopicPartition, CommittedPosition | None],
    *,
    otherwise: str,
) -> None:
    """Refuse a query whose group has changed, if the new group's offsets are ahead of the checkpoint.

    The query has not read the records in between, and would skip them.

    Args:
        options: the options of the query.
        query: its identity.
        checkpoint: where the checkpoint continues.
        found: the new group's committed offsets.
        otherwise: the last of the remedies in the error text.

    Raises:
        InvalidInputError: other clients' commits in the group are ahead of the checkpoint.
    """
    for tp, at in sorted(checkpoint.items()):
        commit = found.get(tp)
        if commit is None or commit.offset <= at or (commit.stamp is not None and commit.stamp.query == query):
            continue
        raise InvalidInputError(
            f"the checkpoint goes on at offset {at} of {tp}, and the group {options.group_id}, which it was not "
            f"written in, at {commit.offset}: the records between them would be passed over. Use a fresh "
            "checkpointLocation to go on where the group is, or set the group's offsets back (kohort groups "
            f"reset-offsets), or {otherwise}"
        )
