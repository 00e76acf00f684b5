"""Positions of a group in a copy of its topics in another cluster, found by the timestamps of records.

A copy keeps partitions, the order of records and their timestamps, and not offsets. The position there is never after
the record that the group would read next: no record is skipped, and some may be read again.

| in the group's cluster | in the other cluster |
|---|---|
| a record is unread | the first offset at or after its timestamp |
| nothing is unread | the first offset at or after the newest record's timestamp, which is read again |
| the partition has no record | the end |
| the copy is late, and has no such record yet | the end |

The ends of the other cluster are read first. So what is copied meanwhile is after them.

Two kinds of copies are refused, since a position there could be after unread records. With
`message.timestamp.type=LogAppendTime` a record has the time of the other cluster's clock, which may be before the
record's own. With another number of partitions a record may be in another one.

A copy may lack the next record, because it was compacted or deleted there, or because its transaction was aborted. Then
the position is that of the first later timestamp. That skips nothing if timestamps grow with offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kohort.client.admin.admin import Admin
from kohort.client.admin.values import ConfigResource, ResourceType
from kohort.errors import KafkaError, NotFoundError
from kohort.ids import TopicPartition
from kohort.lag.evaluation import PartitionLag
from kohort.lag.reading import LagReader

READS_MAX = 20
"""The most reads until the timestamps of all unread records are known: a read fetches a bounded number."""


@dataclass(frozen=True, slots=True)
class TranslatedOffset:
    """A group's offset in a partition, translated to another cluster that has a copy of the topic.

    Attributes:
        partition: The partition, of both clusters.
        committed: The group's committed offset in its own cluster.
        record_ms: The timestamp by which the offset was found; None: the partition has no record.
        new: The offset in the other cluster.
    """

    partition: TopicPartition
    committed: int
    record_ms: int | None
    new: int


def translate_offsets(
    reader: LagReader, source: Admin, target: Admin, group: str, wanted: Iterable[TopicPartition]
) -> tuple[list[TranslatedOffset], dict[TopicPartition, KafkaError]]:
    """Translate a group's committed offsets to another cluster that has copies of its topics, by record timestamps.

    Args:
        reader: Reads the group's cluster.
        source: A client of the same cluster.
        target: A client of the other cluster.
        group: The group.
        wanted: The partitions to translate.

    Returns:
        The translated offsets, and the error for each partition that can't be translated.

    Raises:
        KafkaError: The group does not exist, or a cluster can't be reached.
    """
    chosen = sorted(wanted)
    ends = target.list_offsets(dict.fromkeys(chosen, "latest"))
    errors = {tp: KafkaError(f"{tp}: in the other cluster: {error}") for tp, error in ends.errors.items()}
    refused = _refused_copies(source, target, {tp.topic for tp in chosen if tp in ends.values})
    errors |= {tp: KafkaError(f"{tp}: {refused[tp.topic]}") for tp in chosen if tp.topic in refused}
    committed: dict[TopicPartition, int] = {}
    times: dict[TopicPartition, int | None] = {}
    parts = _read_exactly(reader, group)
    for tp in chosen:
        if tp in errors:
            continue
        part = parts.get(tp)
        if part is None or part.committed is None:
            errors[tp] = NotFoundError(f"{tp}: group {group!r} has no committed offset there")
            continue
        try:
            committed[tp], times[tp] = part.committed, next_record_timestamp_ms(source, part)
        except KafkaError as error:
            errors[tp] = error
    listed = target.list_offsets({tp: at for tp, at in times.items() if at is not None})
    errors |= {tp: KafkaError(f"{tp}: in the other cluster: {error}") for tp, error in listed.errors.items()}
    translated = []
    for tp, at_ms in times.items():
        if tp in errors:
            continue
        first = listed.values.get(tp)
        end = ends.values[tp].offset
        new = end if first is None or first.offset < 0 else min(first.offset, end)
        translated.append(TranslatedOffset(tp, committed[tp], at_ms, new))
    return translated, errors


def _refused_copies(source: Admin, target: Admin, topics: Collection[str]) -> dict[str, str]:
    """Return the topics whose copies can't be searched by timestamp, each with the reason.

    Raises:
        KafkaError: A cluster can't be reached.
    """
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(topics)]
    here, there = source.describe_topics(topics), target.describe_topics(topics)
    properties = target.describe_configs(resources)
    refused: dict[str, str] = {}
    for resource in resources:
        topic = resource.name
        error = here.errors.get(topic) or there.errors.get(topic) or properties.errors.get(resource)
        if error is not None:
            refused[topic] = str(error)
            continue
        counts = len(here.values[topic].partitions), len(there.values[topic].partitions)
        times = properties.values[resource].get("message.timestamp.type")
        if counts[0] != counts[1]:
            refused[topic] = f"the topic has {counts[0]} partitions, and {counts[1]} in the other cluster"
        elif times is not None and times.value == "LogAppendTime":
            refused[topic] = (
                "the other cluster's topic has message.timestamp.type=LogAppendTime: its times say nothing about the "
                "records of this one"
            )
    return refused


def _read_exactly(reader: LagReader, group: str) -> Mapping[TopicPartition, PartitionLag]:
    """Read a group until the timestamps of its oldest unread records are known, or a read finds no more of them."""
    unknown: int | None = None
    for _ in range(READS_MAX):
        report = reader.read([group])
        if group in report.errors:
            raise report.errors[group]
        parts = {part.partition: part for part in report.groups[group].partitions if part.committed is not None}
        left = sum(not part.is_time_lag_exact for part in parts.values())
        if not left or left == unknown:
            break
        unknown = left
    return parts


def next_record_timestamp_ms(source: Admin, part: PartitionLag) -> int | None:
    """Return the timestamp in ms of the group's next unread record, else of the newest record; None: no record.

    Args:
        source: A client of the group's cluster.
        part: The group's position in a partition.

    Raises:
        KafkaError: The partition can't be read, or the record has no timestamp.
    """
    tp = part.partition
    if part.log_end is None:
        raise KafkaError(f"{tp}: {part.error}")
    if part.oldest_ms is not None and part.is_time_lag_exact:
        return part.oldest_ms
    if part.oldest_ms is not None or part.time_lag_ms != 0:
        raise KafkaError(f"{tp}: the record at offset {part.committed} has no timestamp, or could not be read")
    newest = source.list_offsets({tp: "max_timestamp"}).result(tp)
    return newest.timestamp if newest.offset >= 0 else None
