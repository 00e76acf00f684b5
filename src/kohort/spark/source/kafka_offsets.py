"""The offsets in a checkpoint of Spark's own Kafka source, and their conversion to kohort's.

| file | content from Spark's Kafka source |
|---|---|
| `offsets/N`, a line for each source | `{"topic":{"0":10}}`: the end of batch N, the next offset of each partition |
| `sources/I/0` | a zero byte, `v1`, then the same form: the start of batch 0 |

A batch starts where the previous batch ended. A partition that the previous batch does not name is new, and Spark reads
it from offset 0.

A query that continues from such a checkpoint reads on at its offsets. It does not go back to a group that is behind.
The checkpoint belongs to this query, and the group may have had other members since.
"""

from __future__ import annotations

import json  # not msgspec: Spark has imported it already, and a task starts sooner
from collections.abc import Mapping
from typing import Any, Final

from kohort.errors import CorruptDataError
from kohort.ids import TopicPartition
from kohort.spark.source.batch_offset import BatchOffset, OffsetRange

FINISHED: Final = 1
"""The batch number that stands for everything Spark's source has read; kohort's first batch follows."""
_HEAD: Final = b"\x00v1\n"
_DIGITS_MAX: Final = 10
"""Digits of the largest partition number. Python refuses to convert more than 4,300."""


def is_kafka_offset(found: object) -> bool:
    """Return whether parsed JSON has the form of Spark's Kafka source: topics, each with offsets by partition number.

    `{}` has it too, for a pattern that has matched no topic yet. A topic may be named kohort; in kohort's own form that
    key has a number.
    """
    if not isinstance(found, dict):
        return False
    return all(
        isinstance(numbers, dict)
        and all(_is_number(number) and type(offset) is int and offset >= 0 for number, offset in numbers.items())
        for numbers in found.values()
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX


def parse_kafka_offset(found: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Return the offset of each partition in Spark's form."""
    return {
        TopicPartition(topic, int(number)): offset
        for topic, numbers in found.items()
        for number, offset in numbers.items()
    }


def format_kafka_offset(positions: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return positions in Spark's form, with topics and numbers in order; `startingOffsets` takes the same form."""
    topics: dict[str, dict[str, int]] = {}
    for partition in sorted(positions):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = positions[partition]
    return topics


def parse_initial_offsets(raw: bytes) -> dict[TopicPartition, int]:
    """Parse `sources/I/0`, in which Spark's Kafka source keeps a query's initial offsets.

    Raises:
        CorruptDataError: the bytes are not in the format of Spark's source.
    """
    text = raw.removeprefix(b"\x00")
    version, _, body = text.partition(b"\n")
    try:
        found = json.loads(body if version.startswith(b"v") else text)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"the initial offsets of Spark's Kafka source can't be read: {error}") from error
    if not is_kafka_offset(found):
        raise CorruptDataError(f"the initial offsets of Spark's Kafka source can't be read: {str(found)[:80]}")
    return parse_kafka_offset(found)


def encode_initial_offsets(positions: Mapping[TopicPartition, int]) -> bytes:
    """Encode initial offsets as the content of `sources/I/0` of Spark's Kafka source."""
    return _HEAD + json.dumps(format_kafka_offset(positions), separators=(",", ":")).encode()


def finished_kafka_batch(end: Mapping[str, Any], query: str) -> BatchOffset:
    """Convert the end offset of a finished batch of Spark's Kafka source to kohort's `BatchOffset`.

    Args:
        end: the end in Spark's form.
        query: the identity that this run has chosen for the query.
    """
    spans = {partition: OffsetRange(offset, offset) for partition, offset in parse_kafka_offset(end).items()}
    return BatchOffset(query, FINISHED, spans=spans, group="", from_kafka_source=True)


def unfinished_kafka_batch(
    start: Mapping[TopicPartition, int], end: Mapping[str, Any], query: str
) -> tuple[BatchOffset, BatchOffset]:
    """Convert an unfinished batch of Spark's Kafka source to kohort's form: the batch before it, and the batch.

    Args:
        start: where the batch starts; a partition that is missing here starts at 0.
        end: the end in Spark's form.
        query: the identity that this run has chosen for the query.
    """
    before = {partition: OffsetRange(offset, offset) for partition, offset in start.items()}
    spans = {
        partition: OffsetRange(start.get(partition, 0), offset) for partition, offset in parse_kafka_offset(end).items()
    }
    batch = BatchOffset(query, FINISHED, group="", from_kafka_source=True)
    return BatchOffset(query, 0, spans=before, group="", from_kafka_source=True), batch.with_ranges(spans)
