"""The identifiers that every layer shares, under the names Kafka gives them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

GroupId: TypeAlias = str
MemberId: TypeAlias = str
Generation: TypeAlias = int
Offset: TypeAlias = int
TopicId: TypeAlias = uuid.UUID

NO_TOPIC_ID: TopicId = uuid.UUID(int=0)
"""What stands for "no topic id" on the wire."""


class TopicPartition(NamedTuple):
    """One partition of one topic; sorts by topic, then partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, both sorted."""
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return found
