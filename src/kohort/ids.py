"""The identifiers that every layer shares, under the names Kafka gives them."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

GroupId: TypeAlias = str
MemberId: TypeAlias = str
Generation: TypeAlias = int
Offset: TypeAlias = int


class TopicPartition(NamedTuple):
    """One partition of one topic; sorts by topic, then partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
