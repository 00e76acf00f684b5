"""Fences: the record that begins each term, and the producers whose batches a journal holds.

Every term appends a fence under its producer epoch before it reads. From there on Kafka refuses all earlier epochs of
that producer id in this partition. The fence's key holds the producer id, so compaction keeps the newest fence of each
id that ever wrote here. Each of these ids must be fenced for good before a coordinator serves under another id.

The fence of "no producer" (-1) is the first of all. It is written once, and records over how many partitions groups are
spread.

Kafka's readers skip the fence's key version as unknown, as they skip kohort's other record kinds (`journal.codec`).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kohort.cluster.journal.journal_partition import JournalPartition
from kohort.errors import CorruptDataError
from kohort.journal.codec import KeyValue
from kohort.wire.batch import BatchHeader
from kohort.wire.message import Message
from kohort.wire.schema import int16, int32, int64, string
from kohort.wire.schema import uuid as uuid_field

FENCE: Final = 10003
"""Key version of a fence; 10000 to 10002 are the journal's other record kinds."""
FIRST: Final = -1
"""The producer id in the key of the first fence, which is written once."""
EPOCH_LAST: Final = 32_767
"""The epoch that fences a producer id for good: Kafka changes the id before any owner gets this epoch."""

_SHORT = struct.Struct(">h")
_HEAD: Final = _SHORT.pack(FENCE)


class FenceKey(Message, key=10003, versions=(0, 0)):
    """The key of a fence record."""

    producer_id: int = int64()


class FenceValue(Message, key=10003, versions=(0, 0)):
    """Value of a fence: the epoch, its owner, and the topic and partition count over which groups are spread."""

    epoch: int = int16()
    coordinator: int = int32()
    incarnation: str = string()
    host: str = string()
    port: int = int32()
    partitions: int = int32()
    topic_id: uuid.UUID = uuid_field()


@dataclass(frozen=True, slots=True)
class Fence:
    """The beginning of a term: its producer id and epoch, its coordinator, and the topic that groups hash to."""

    producer_id: int
    epoch: int
    coordinator: int
    incarnation: str
    host: str
    port: int
    partitions: int
    topic_id: uuid.UUID

    def encoded(self) -> KeyValue:
        """Return the fence's encoded key and value."""
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


def make_fence(place: JournalPartition, producer_id: int, epoch: int) -> Fence:
    """Return this coordinator's fence for a producer id and epoch."""
    mine, topic = place.settings, place.topic
    return Fence(
        producer_id, epoch, mine.coordinator, mine.incarnation, mine.host, mine.port, topic.partitions, topic.id
    )


def is_fence(key: bytes) -> bool:
    """Return whether a record with this key is a fence."""
    return key[:2] == _HEAD


def read_fence(key: bytes, value: bytes | None) -> Fence:
    """Decode a fence from a record's key and value.

    Raises:
        CorruptDataError: the value's version is unknown, or it can't be decoded.
    """
    if value is None or len(value) < 2 or _SHORT.unpack_from(value)[0] != 0:
        raise CorruptDataError("a fence without a value that is known here")
    producer = FenceKey.decode(key[2:], 0)
    decoded = FenceValue.decode(value[2:], 0)
    return Fence(
        producer.producer_id,
        decoded.epoch,
        decoded.coordinator,
        decoded.incarnation,
        decoded.host,
        decoded.port,
        decoded.partitions,
        decoded.topic_id,
    )


Author = tuple[int, int]
"""A producer id and epoch; (-1, -1) for a batch without."""


class JournalProducers:
    """The producers whose batches were read from the journal so far, and the fences that prove which are coordinators.

    A fence proves its own epoch and all earlier ones, whose fences it replaces: compaction may have removed them.

    Attributes:
        fences: the newest fence of each producer id.
        newest: the fence that was read last, not counting the first of all.
    """

    def __init__(self) -> None:
        self.fences: dict[int, Fence] = {}
        self.newest: Fence | None = None
        self._first_offsets: dict[Author, int] = {}

    def record_batch(self, header: BatchHeader) -> None:
        """Record the producer of a batch that was read."""
        self._first_offsets.setdefault((header.producer_id, header.producer_epoch), header.base_offset)

    def record_fence(self, fence: Fence) -> None:
        """Record a fence that was read."""
        self.fences[fence.producer_id] = fence
        if fence.producer_id != FIRST:
            self.newest = fence

    def is_coordinator(self, author: Author) -> bool:
        """Return whether a fence of this producer id, at this epoch or a later one, proves that a coordinator wrote."""
        fence = self.fences.get(author[0])
        return fence is not None and author[0] != FIRST and author[1] <= fence.epoch

    def producers_without_fence(self) -> dict[Author, int]:
        """Return the producers that no fence proves to be coordinators, each with the offset of its first batch."""
        return {author: offset for author, offset in self._first_offsets.items() if not self.is_coordinator(author)}

    def fences_that_may_write(self, own: int) -> Iterator[Fence]:
        """Yield the newest fence of each other producer id that has epochs left: such a producer could still write.

        `own` is the producer id to leave out.
        """
        for fence in list(self.fences.values()):
            if fence.producer_id not in (FIRST, own) and fence.epoch < EPOCH_LAST:
                yield fence
