"""The bytes of the "consumer" protocol type in classic groups: subscriptions and assignments, read and written.

For offsets, a subscription is read as version 0 whatever version it names, and bytes after the topics are ignored.
Source: spec 1.4 (KIP-496, "Proposed Changes"). Every other reader reads a subscription in full. Bytes after a version's
known fields are ignored, so that newer versions are read as far as they are known. Source: spec 3.2-3.6, 3.13; KIP-429,
KIP-792.

    Subscription: int16 version, [string] topics, bytes user data, 1+: [string, [int32]] owned, 2+: int32 generation,
                  3+: nullable string rack
    Assignment:   int16 version, [string, [int32]] partitions, bytes user data
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from kohort.ids import TopicPartition, by_topic

CONSUMER_PROTOCOL_TYPE = "consumer"
NEWEST_VERSION = 3

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class MalformedError(ValueError):
    """Bytes that do not have the expected form."""


class ConsumerProtocolSubscription(NamedTuple):
    """The subscription of a classic consumer."""

    version: int
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    rack: str | None = None
    generation: int = -1
    user_data: bytes | None = None


class ConsumerProtocolAssignment(NamedTuple):
    """The assignment of a classic consumer, from the leader or a coordinator."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = None


class _FieldReader:
    """A reader that moves on from a position, never past the end."""

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
        """Return the length of an array whose elements take at least `smallest` bytes."""
        count = self.number(_INT32)
        if count < 0 or count > (len(self.raw) - self.at) // smallest:
            raise MalformedError
        return count

    def take(self, length: int) -> bytes:
        if length < 0 or self.at + length > len(self.raw):
            raise MalformedError
        self.at += length
        return self.raw[self.at - length : self.at]

    def read_text(self) -> str:
        return self.take(self.number(_INT16)).decode()

    def read_topics(self) -> tuple[str, ...]:
        return tuple(self.read_text() for _ in range(self.count(2)))

    def partitions(self) -> tuple[TopicPartition, ...]:
        found = []
        for _ in range(self.count(6)):
            topic = self.read_text()
            found += [TopicPartition(topic, self.number(_INT32)) for _ in range(self.count(4))]
        return tuple(found)

    def data(self) -> bytes | None:
        length = self.number(_INT32)
        return None if length < 0 else self.take(length)


def read_topics(metadata: bytes) -> tuple[str, ...] | None:
    """Return the subscribed topic names in the order given, or None when the bytes are no subscription."""
    reader = _FieldReader(metadata)
    try:
        reader.number(_INT16)
        return reader.read_topics()
    except ValueError:
        return None


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription | None:
    """Return a subscription in full, or None for other bytes; fields that its version lacks are empty."""
    reader = _FieldReader(metadata)
    try:
        version = reader.number(_INT16)
        if version < 0:
            return None
        topics = reader.read_topics()
        user_data = reader.data()
        owned = reader.partitions() if version >= 1 else ()
        generation = reader.number(_INT32) if version >= 2 else -1
        length = reader.number(_INT16) if version >= 3 else -1
        rack = reader.take(length).decode() if length >= 0 else None
    except ValueError:
        return None
    return ConsumerProtocolSubscription(version, topics, owned, rack, generation, user_data)


def read_assignment(assignment: bytes) -> ConsumerProtocolAssignment | None:
    """Decode an assignment; empty bytes are an empty assignment. Return None for bytes that can't be decoded."""
    if not assignment:
        return ConsumerProtocolAssignment()
    reader = _FieldReader(assignment)
    try:
        if reader.number(_INT16) < 0:
            return None
        return ConsumerProtocolAssignment(reader.partitions(), reader.data())
    except ValueError:
        return None


def write_subscription(subscription: ConsumerProtocolSubscription) -> bytes:
    """Return a subscription's bytes, with the fields of its version."""
    version = min(subscription.version, NEWEST_VERSION)
    parts = [_INT16.pack(version), _INT32.pack(len(subscription.topics))]
    parts += map(_decode_text, subscription.topics)
    parts.append(_data(subscription.user_data))
    if version >= 1:
        parts.append(_partitions(subscription.owned))
    if version >= 2:
        parts.append(_INT32.pack(subscription.generation))
    if version >= 3:
        parts.append(_INT16.pack(-1) if subscription.rack is None else _decode_text(subscription.rack))
    return b"".join(parts)


def write_assignment(version: int, partitions: Iterable[TopicPartition], user_data: bytes | None = None) -> bytes:
    """Return an assignment's bytes for a member whose subscription has this version."""
    return b"".join((_INT16.pack(min(max(version, 0), NEWEST_VERSION)), _partitions(partitions), _data(user_data)))


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    topics = by_topic(partitions)
    parts = [_INT32.pack(len(topics))]
    for topic, numbers in topics.items():
        parts += (_decode_text(topic), _INT32.pack(len(numbers)))
        parts += map(_INT32.pack, numbers)
    return b"".join(parts)


def _decode_text(text: str) -> bytes:
    raw = text.encode()
    return _INT16.pack(len(raw)) + raw


def _data(data: bytes | None) -> bytes:
    return _INT32.pack(-1) if data is None else _INT32.pack(len(data)) + data
