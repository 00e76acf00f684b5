"""Start offsets of partitions that no member of the region has read. Source: spec 5.4, 5.5, 5.12."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from kohort.client.consumer.consumer import Consumer
from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import InvalidInputError, OffsetError
from kohort.ids import TopicPartition
from kohort.region.consuming.after_snapshot import AfterSnapshot
from kohort.region.records import Part, Position


class StartKind(Enum):
    """The kinds of start positions, for partitions that the region has never read."""

    BEGINNING = "beginning"
    END = "end"
    COMMITTED = "committed"
    TIME = "time"
    AFTER = "after a snapshot"


@dataclass(frozen=True, slots=True)
class StartPosition:
    """The start position of partitions that the region has never read.

    Attributes:
        at: the kind of position.
        time_ms: for TIME, ms since the epoch.
        otherwise: for COMMITTED, the start where no offset is committed.
        offsets: for AFTER, the next offset of each partition that the snapshot has.
    """

    at: StartKind
    time_ms: int = 0
    otherwise: StartKind = StartKind.BEGINNING
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


def parse_start_option(option: str | int | AfterSnapshot, auto_offset_reset: str) -> StartPosition:
    """Return the start position for the option `start` of `Region.consumer`.

    Args:
        option: 'beginning', 'end', 'committed', ms since the epoch, or what `after` returns.
        auto_offset_reset: earliest or latest, for partitions without a committed offset.

    Raises:
        InvalidInputError: the value is an offset, or no valid start position.
    """
    after = StartKind.END if auto_offset_reset == "latest" else StartKind.BEGINNING
    if isinstance(option, AfterSnapshot):
        return StartPosition(StartKind.AFTER, offsets=option.offsets)
    if isinstance(option, int) and option >= 10**11:
        return StartPosition(StartKind.TIME, option)
    names = {kind.value: kind for kind in StartKind if kind not in (StartKind.TIME, StartKind.AFTER)}
    if option in names:
        return StartPosition(names[str(option)], otherwise=after)
    raise InvalidInputError(
        f"start={option!r}: say 'beginning', 'end', 'committed', a time in ms since the epoch, or after(table); "
        "an offset belongs to one partition, and which partitions a member reads is its group's choice"
    )


def look_up_start_offsets(
    consumer: Consumer, start: StartPosition, at_start_position: tuple[Part, ...], at_earliest: tuple[Part, ...]
) -> tuple[Position, ...]:
    """Look up the start offsets of partitions that the region has never read, and of all others of their topics.

    A partition without a start offset then counts as added later. Otherwise a second member's partitions would count so
    if the first member's start offsets were saved before the second one asked.

    Args:
        consumer: asks the brokers.
        start: the region's start position.
        at_start_position: partitions that begin there, as do all partitions of their topics.
        at_earliest: partitions that count as created after their group began to read. They begin at their earliest
            offset.

    Raises:
        KafkaError: the offsets can't be looked up now.
    """
    at_start_position = _with_all_of_their_topics(consumer, at_start_position)
    by_partition = {TopicPartition(part.topic, part.partition): part for part in (*at_start_position, *at_earliest)}
    wanted = [TopicPartition(part.topic, part.partition) for part in at_start_position]
    found = _find_offsets(consumer, start, wanted) if wanted else {}
    if at_earliest:
        begin = consumer.beginning_offsets([TopicPartition(part.topic, part.partition) for part in at_earliest])
        found.update({part: OffsetAndMetadata(offset) for part, offset in begin.items()})
    return tuple(
        Position(part.group, part.topic, part.topic_id, part.partition, found[at].offset, found[at].leader_epoch)
        for at, part in by_partition.items()
        if at in found
    )


def _with_all_of_their_topics(consumer: Consumer, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return these partitions and all others that their topics have now."""
    numbers = consumer.partitions_of({part.topic for part in parts}) if parts else {}
    there = {part._replace(partition=number) for part in parts for number in numbers.get(part.topic, ())}
    return tuple(sorted(there.union(parts)))


def _find_offsets(
    consumer: Consumer, start: StartPosition, wanted: list[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata]:
    if start.at is StartKind.COMMITTED:
        known = {part: at for part, at in consumer.committed(wanted).items() if at is not None}
        missing = [part for part in wanted if part not in known]
        return known | (_find_offsets(consumer, StartPosition(start.otherwise), missing) if missing else {})
    if start.at is StartKind.TIME:
        times = consumer.offsets_for_times(dict.fromkeys(wanted, start.time_ms))
        found = {part: at for part, at in times.items() if at is not None}
        there = {part: OffsetAndMetadata(at.offset, "", at.leader_epoch) for part, at in found.items()}
        missing = [part for part in wanted if part not in there]
        return there | (_find_offsets(consumer, StartPosition(StartKind.END), missing) if missing else {})
    if start.at is StartKind.AFTER:
        return _after_snapshot(consumer, start.offsets, wanted)
    ask = consumer.beginning_offsets if start.at is StartKind.BEGINNING else consumer.end_offsets
    return {part: OffsetAndMetadata(offset) for part, offset in ask(wanted).items()}


def _after_snapshot(
    consumer: Consumer, offsets: Mapping[TopicPartition, int], wanted: list[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets at which a snapshot ends; partitions added to its topics since begin at their earliest offset.

    Raises:
        OffsetError: the snapshot has nothing of a topic, or the log does not have the offset.
    """
    begins, ends = consumer.beginning_offsets(wanted), consumer.end_offsets(wanted)
    found = {}
    for part in wanted:
        if part.topic not in {known.topic for known in offsets}:
            raise OffsetError(
                f"the snapshot that the region starts after has no records of topic {part.topic}", partition=part
            )
        offset = offsets.get(part, begins[part])
        if not begins[part] <= offset <= ends[part]:
            raise OffsetError(
                f"the snapshot that the region starts after ends at offset {offset} of {part}, and the log has offsets "
                f"from {begins[part]} to {ends[part]}: records between were removed, or the topic is another one now",
                partition=part,
            )
        found[part] = OffsetAndMetadata(offset)
    return found
