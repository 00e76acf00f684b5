"""Topic images: the difference between two of them, and a hash of the topics that members read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kohort.assignors import AssignableTopic
from kohort.groups.events import Topic, TopicImage


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
        """Return what has changed from `before` to `after`."""
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


def topic_info(topic: Topic, left: Sequence[int]) -> AssignableTopic:
    """Describe some partitions of a topic for the assignors, numbered from 0."""
    if not topic.racks:
        return AssignableTopic(len(left))
    return AssignableTopic(
        len(left), tuple(frozenset(topic.racks[number]) for number in left if number < len(topic.racks))
    )
