"""What the coordinator asks of topics: what changed between two images, and a number for what members read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from kohort.groups.events import TopicImage


class ImageChange(NamedTuple):
    """What differs between two images.

    Attributes:
        topics: names that came, went, or are not what they were.
        names_differ: some came or went, so that regular expressions may match others.
    """

    topics: frozenset[str]
    names_differ: bool

    @classmethod
    def between(cls, before: TopicImage, after: TopicImage) -> ImageChange:
        """What is new in the second."""
        changed = {name for name, topic in after.topics.items() if before.topics.get(name) != topic}
        changed.update(before.topics.keys() - after.topics.keys())
        return cls(frozenset(changed), before.topics.keys() != after.topics.keys())


def metadata_hash(image: TopicImage, names: Iterable[str]) -> int:
    """A number that changes when a subscribed topic appears, goes, grows, or moves between racks; signed 64 bit."""
    digest = hashlib.blake2b(digest_size=8)
    for name in names:
        topic = image.topics.get(name)
        if topic is not None:
            racks = "|".join(",".join(partition) for partition in topic.racks)
            digest.update(f"{name}\0{topic.id}\0{topic.partitions}\0{racks}\0".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)
