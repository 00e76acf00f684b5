"""Partitions as the coordinator compares and keeps them: sets of a topic's id and a number."""

from __future__ import annotations

from collections.abc import Iterable

from kohort.groups.records import HeldPartitions, TopicPartitions
from kohort.ids import TopicId

Pair = tuple[TopicId, int]
"""One partition by its topic's id."""

Pairs = frozenset[Pair]

NOTHING: Pairs = frozenset()


def unpack(partitions: Iterable[TopicPartitions | HeldPartitions]) -> Pairs:
    """Partitions as a set."""
    return frozenset((entry.topic_id, number) for entry in partitions for number in entry.partitions)


def pack(pairs: Iterable[Pair]) -> tuple[TopicPartitions, ...]:
    """A set of partitions as records and replies have it: by topic id, ascending."""
    topics: dict[TopicId, list[int]] = {}
    for topic_id, number in sorted(pairs):
        topics.setdefault(topic_id, []).append(number)
    return tuple(TopicPartitions(topic_id, tuple(numbers)) for topic_id, numbers in topics.items())
