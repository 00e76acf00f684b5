"""Fences: the record that a term begins with, and whose batches a journal holds.

Every term appends a fence under its producer epoch before it reads: from there on Kafka refuses all earlier epochs of
that producer id in this partition. Its key holds the producer id, so that compaction keeps the newest fence of every id
that ever wrote here: each of them must be fenced for good before somebody serves under another. The fence of "no
producer" (-1) is the first of all: written once, it keeps over how many partitions groups were spread.

Kafka's readers skip its key version as unknown, as they do the journal's other ones of our own (`journal.codec`).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kohort.cluster.journal.place import JournalPlace
from kohort.errors import CorruptDataError
from kohort.journal.codec import KeyValue
from kohort.wire.batch import BatchHeader
from kohort.wire.message import Message
from kohort.wire.schema import int16, int32, int64, string
from kohort.wire.schema import uuid as uuid_field

FENCE: Final = 10003
"""Key version; 10000 to 10002 are the journal's own other kinds."""
FIRST: Final = -1
"""In the place of a producer id: the fence that was written once."""
EPOCH_LAST: Final = 32_767
"""No owner is ever given this epoch (Kafka changes the producer id before): it fences an id for good."""

_SHORT = struct.Struct(">h")
_HEAD: Final = _SHORT.pack(FENCE)


class FenceKey(Message, key=10003, versions=(0, 0)):
    """Key of a fence."""

    producer_id: int = int64()


class FenceValue(Message, key=10003, versions=(0, 0)):
    """Which epoch began, whose it is, and over how many partitions of which topic groups are spread."""

    epoch: int = int16()
    coordinator: int = int32()
    incarnation: str = string()
    host: str = string()
    port: int = int32()
    partitions: int = int32()
    topic_id: uuid.UUID = uuid_field()


@dataclass(frozen=True, slots=True)
class Fence:
    """Who began a term, under which producer id and epoch."""

    producer_id: int
    epoch: int
    coordinator: int
    incarnation: str
    host: str
    port: int
    partitions: int
    topic_id: uuid.UUID

    def pair(self) -> KeyValue:
        """Its key and value."""
        value = FenceValue(
            epoch=self.epoch,
            coordinator=self.coordinator,
            incarnation=self.incarnation,
            host=self.host,
            port=self.port,
            partitions=self.partitions,
            topic_id=self.topic_id,
        )
        return _HEAD + FenceKey(producer_id=self.producer_id).encode(0), _SHORT.pack(0) + value.encode(0)


def fence_of(place: JournalPlace, producer_id: int, epoch: int) -> Fence:
    """This coordinator's fence."""
    mine, topic = place.settings, place.topic
    return Fence(
        producer_id, epoch, mine.coordinator, mine.incarnation, mine.host, mine.port, topic.partitions, topic.id
    )


def is_fence(key: bytes) -> bool:
    """Whether a record with this key is a fence."""
    return key[:2] == _HEAD


def read_fence(key: bytes, value: bytes | None) -> Fence:
    """A fence's record.

    Raises:
        CorruptDataError: it is none that can be read.
    """
    if value is None or len(value) < 2 or _SHORT.unpack_from(value)[0] != 0:
        raise CorruptDataError("a fence without a value that is known here")
    producer = FenceKey.decode(key[2:], 0)
    found = FenceValue.decode(value[2:], 0)
    return Fence(
        producer.producer_id,
        found.epoch,
        found.coordinator,
        found.incarnation,
        found.host,
        found.port,
        found.partitions,
        found.topic_id,
    )


Author = tuple[int, int]
"""A producer id and epoch; (-1, -1): a batch without."""


class Authors:
    """Whose batches a journal holds, as far as it was read, and which of them have a fence.

    A fence covers its own epoch and all before: the fences of those were replaced by it, and may be compacted away.

    Attributes:
        fences: the newest of each producer id.
        newest: the last one that was read, the first of all left out.
    """

    def __init__(self) -> None:
        self.fences: dict[int, Fence] = {}
        self.newest: Fence | None = None
        self._first_offsets: dict[Author, int] = {}

    def saw(self, header: BatchHeader) -> None:
        """A batch was read."""
        self._first_offsets.setdefault((header.producer_id, header.producer_epoch), header.base_offset)

    def take(self, fence: Fence) -> None:
        """A fence was read."""
        self.fences[fence.producer_id] = fence
        if fence.producer_id != FIRST:
            self.newest = fence

    def covered(self, author: Author) -> bool:
        """Whether a fence that was read covers an author."""
        fence = self.fences.get(author[0])
        return fence is not None and author[0] != FIRST and author[1] <= fence.epoch

    def foreign(self) -> dict[Author, int]:
        """Authors without a fence, with the offset of their first batch."""
        return {author: offset for author, offset in self._first_offsets.items() if not self.covered(author)}

    def unfinished(self, own: int) -> Iterator[Fence]:
        """Fences of other producer ids whose owners might write on."""
        for fence in list(self.fences.values()):
            if fence.producer_id not in (FIRST, own) and fence.epoch < EPOCH_LAST:
                yield fence
