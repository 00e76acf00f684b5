"""Partitions as a region identifies them: by group, topic id and number. A recreated topic is a different one."""

from __future__ import annotations

from typing import NamedTuple

from kohort.ids import NO_TOPIC_ID, TopicId
from kohort.region.records import Initial, Position, Span


class Part(NamedTuple):
    """One partition that a group of the region reads.

    Attributes:
        topic_id: NO_TOPIC_ID if the broker reports none.
    """

    group: str
    topic: str
    partition: int
    topic_id: TopicId = NO_TOPIC_ID

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def part_of(given: Position | Span | Initial) -> Part:
    """Return the partition of a position, a span or an initial offset."""
    return Part(given.group, given.topic, given.partition, given.topic_id)
