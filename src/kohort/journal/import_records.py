"""Records of groups that were imported as bytes: a key version of our own, which Kafka's readers skip as unknown."""

from __future__ import annotations

from typing import Any

from kohort.groups.records import OffsetsImported
from kohort.wire.message import Message
from kohort.wire.schema import int32, int64, string


class OffsetsImportedKey(Message, key=10002, versions=(0, 0)):
    """Key of a group that was taken over from an earlier coordinator."""

    group: str = string()


class OffsetsImportedValue(Message, key=10002, versions=(0, 0)):
    """When it was, and how many offsets it had."""

    timestamp: int = int64()
    offsets: int = int32()


def value(record: OffsetsImported) -> OffsetsImportedValue:
    """That it was."""
    return OffsetsImportedValue(timestamp=record.imported_ms, offsets=record.offsets)


def read(fields: tuple[Any, ...], data: bytes, version: int) -> OffsetsImported:
    """A record of these bytes."""
    found = OffsetsImportedValue.decode(data, version)
    return OffsetsImported(fields[0], found.timestamp, found.offsets)
