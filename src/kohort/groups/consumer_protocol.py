"""The "consumer" protocol type's bytes inside classic members: subscriptions read, assignments read and written.

For offsets, a subscription is read as version 0 whatever version it names, and bytes after the topics are ignored.
Source: spec 1.4 (KIP-496, "Proposed Changes"). A classic member of a consumer group (KIP-848) is read in full:

    Subscription: int16 version, [string] topics, bytes user data, 1+: [string, [int32]] owned, 2+: int32 generation,
                  3+: nullable string rack
    Assignment:   int16 version, [string, [int32]] partitions, bytes user data
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from kohort.ids import TopicPartition

CONSUMER_PROTOCOL_TYPE = "consumer"
NEWEST_VERSION = 3

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class MalformedError(ValueError):
    """The bytes are not what they should be."""


class Subscription(NamedTuple):
    """What a classic consumer says of itself."""

    version: int
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    rack: str | None = None
    generation: int = -1


class _Reader:
    """Reads on from a position, never past the end."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0

    def number(self, kind: struct.Struct) -> int:
        end = self.at + kind.size
        if end > len(self.raw):
            raise MalformedError
        (value,) = kind.unpack_from(self.raw, self.at)
        self.at = end
        return int(value)

    def count(self, smallest: int) -> int:
        """The length of an array whose elements take at least `smallest` bytes."""
        count = self.number(_INT32)
        if count < 0 or count > (len(self.raw) - self.at) // smallest:
            raise MalformedError
        return count

    def take(self, length: int) -> bytes:
        if length < 0 or self.at + length > len(self.raw):
            raise MalformedError
        self.at += length
        return self.raw[self.at - length : self.at]

    def text(self) -> str:
        return self.take(self.number(_INT16)).decode()

    def topics(self) -> tuple[str, ...]:
        return tuple(self.text() for _ in range(self.count(2)))

    def partitions(self) -> tuple[TopicPartition, ...]:
        found = []
        for _ in range(self.count(6)):
            topic = self.text()
            found += [TopicPartition(topic, self.number(_INT32)) for _ in range(self.count(4))]
        return tuple(found)

    def skip_bytes(self) -> None:
        length = self.number(_INT32)
        if length > 0:
            self.take(length)


def read_topics(metadata: bytes) -> tuple[str, ...] | None:
    """The subscribed topic names in the order given, or None when the bytes are no subscription."""
    reader = _Reader(metadata)
    try:
        reader.number(_INT16)
        return reader.topics()
    except ValueError:
        return None


def read_subscription(metadata: bytes) -> Subscription | None:
    """A subscription in full, or None when the bytes are none; what its version lacks is empty."""
    reader = _Reader(metadata)
    try:
        version = reader.number(_INT16)
        topics = reader.topics()
        reader.skip_bytes()
        owned = reader.partitions() if version >= 1 else ()
        generation = reader.number(_INT32) if version >= 2 else -1
        length = reader.number(_INT16) if version >= 3 else -1
        rack = reader.take(length).decode() if length >= 0 else None
    except ValueError:
        return None
    return Subscription(version, topics, owned, rack, generation)


def read_assignment(assignment: bytes) -> tuple[TopicPartition, ...] | None:
    """The partitions of an assignment; none in empty bytes, None when the bytes are no assignment."""
    if not assignment:
        return ()
    reader = _Reader(assignment)
    try:
        reader.number(_INT16)
        return reader.partitions()
    except ValueError:
        return None


def write_assignment(version: int, partitions: Iterable[TopicPartition]) -> bytes:
    """An assignment for a member whose subscription has this version, without user data."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    parts = [_INT16.pack(min(max(version, 0), NEWEST_VERSION)), _INT32.pack(len(topics))]
    for topic, numbers in topics.items():
        raw = topic.encode()
        parts.append(_INT16.pack(len(raw)) + raw + _INT32.pack(len(numbers)))
        parts += [_INT32.pack(number) for number in numbers]
    parts.append(_INT32.pack(-1))
    return b"".join(parts)
