"""Sets of partitions as pairs of topic id and number, in which the coordinator compares and keeps partitions."""

from __future__ import annotations

from collections.abc import Iterable

from kohort.groups.records import HeldPartitions, TopicPartitions
from kohort.ids import TopicId

Pair = tuple[TopicId, int]
"""A partition by its topic's id."""

Pairs = frozenset[Pair]

NOTHING: Pairs = frozenset()


def unpack(partitions: Iterable[TopicPartitions | HeldPartitions]) -> Pairs:
    """Return partitions as a set of pairs."""
    return frozenset((entry.topic_id, number) for entry in partitions for number in entry.partitions)


def pack(pairs: Iterable[Pair]) -> tuple[TopicPartitions, ...]:
    """Return a set of pairs in the form of records and replies: by topic id, ascending."""
    topics: dict[TopicId, list[int]] = {}
    for topic_id, number in sorted(pairs):
        topics.setdefault(topic_id, []).append(number)
    return tuple(TopicPartitions(topic_id, tuple(numbers)) for topic_id, numbers in topics.items())
