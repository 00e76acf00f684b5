"""Topics as the coordinator compares them: partitions by topic id, the difference of two images, and their hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kohort.assignors import AssignableTopic
from kohort.groups.events import Topic, TopicImage
from kohort.groups.records import HeldPartitions, TopicPartitions
from kohort.ids import TopicId

TopicIdPartition = tuple[TopicId, int]
"""A partition by its topic's id."""

TopicIdPartitions = frozenset[TopicIdPartition]

NOTHING: TopicIdPartitions = frozenset()


def topic_id_partition_sort_key(pair: TopicIdPartition) -> tuple[int, int]:
    """Return a sort key for pairs: the order of the pairs themselves, but without comparing UUIDs in Python."""
    return pair[0].int, pair[1]


def unpack_partitions(partitions: Iterable[TopicPartitions | HeldPartitions]) -> TopicIdPartitions:
    """Convert a record's partitions by topic to a set of (topic id, partition number) pairs."""
    return frozenset([(entry.topic_id, number) for entry in partitions for number in entry.partitions])


def pack_partitions(pairs: Iterable[TopicIdPartition]) -> tuple[TopicPartitions, ...]:
    """Return a set of pairs in the form of records and replies: by topic id, ascending.

    Topics are found and sorted by the id's number. `uuid.UUID` compares and hashes in Python, which made 80 % of the
    time: 6 ms for a member of 1,600 topics, and the loop's thread packs the targets of a whole group.
    """
    ids: dict[int, TopicId] = {}
    numbers: dict[int, list[int]] = {}
    for topic_id, number in pairs:
        key = topic_id.int
        row = numbers.get(key)
        if row is None:
            ids[key], numbers[key] = topic_id, [number]
        else:
            row.append(number)
    return tuple([TopicPartitions(ids[key], tuple(sorted(numbers[key]))) for key in sorted(ids)])


class ImageChange(NamedTuple):
    """The difference between two topic images.

    Attributes:
        topics: the names of topics that were created, deleted or changed.
        names_differ: some topics were created or deleted, so that regular expressions may match others.
    """

    topics: frozenset[str]
    names_differ: bool

    @classmethod
    def between(cls, before: TopicImage, after: TopicImage) -> ImageChange:
        """Return the difference between the topic images `before` and `after`."""
        changed = {name for name, topic in after.topics.items() if before.topics.get(name) != topic}
        changed.update(before.topics.keys() - after.topics.keys())
        return cls(frozenset(changed), before.topics.keys() != after.topics.keys())


def metadata_hash(image: TopicImage, names: Iterable[str]) -> int:
    """Return a hash that changes if a subscribed topic appears, goes, grows, or moves between racks; signed 64 bit."""
    digest = hashlib.blake2b(digest_size=8)
    for name in names:
        topic = image.topics.get(name)
        if topic is not None:
            racks = "|".join(",".join(partition) for partition in topic.racks)
            digest.update(f"{name}\0{topic.id}\0{topic.partitions}\0{racks}\0".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)


def assignable_topic(topic: Topic, left: Sequence[int]) -> AssignableTopic:
    """Describe some partitions of a topic for the assignors, numbered from 0."""
    if not topic.racks:
        return AssignableTopic(len(left))
    return AssignableTopic(
        len(left), tuple(frozenset(topic.racks[number]) for number in left if number < len(topic.racks))
    )
