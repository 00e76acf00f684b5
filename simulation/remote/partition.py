"""One partition of a topic in Kafka: batches, and the producers that its leader knows.

The behaviour of Kafka 4.3 was measured. An epoch is refused once a higher one of the same producer id *has written
here*, not when it was given out. A repeated batch is recognised by its sequence. A batch without a producer id is
always accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kohort.cluster.journal.fences import is_fence
from kohort.errors import ErrorCode
from kohort.groups.records import Record
from kohort.journal.codec import GroupRecordReader
from kohort.wire.batch import parse_header, patch_header
from kohort.wire.records import iter_key_values

REMEMBERED = 5
"""The number of batches that the leader remembers of each producer, to recognise repeated ones."""
SEQUENCES = 2**31


class Author(NamedTuple):
    """The writer of a batch."""

    producer_id: int
    epoch: int


@dataclass(frozen=True)
class Producer:
    """The leader's state of a producer id.

    Attributes:
        batches: first and last sequence and offset of the newest batches.
    """

    epoch: int
    batches: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Batch:
    """One batch in the log.

    Attributes:
        keys: the keys of its records.
        before: the state of its producer before it.
    """

    offset: int
    end: int
    author: Author
    data: bytes
    keys: frozenset[bytes]
    before: Producer | None


class Partition:
    """The log of one partition, whichever node leads it.

    Attributes:
        batches: all batches.
        end: the next offset.
        committed: records before this offset are on all replicas and stay.
        shown: records before this offset may be read; a new leader shows fewer at first.
        records: the committed records, decoded; a new list after a compaction.
        began_ms: when the first batch of each author was committed.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.batches: list[Batch] = []
        self.end = self.committed = self.shown = 0
        self.records: list[Record] = []
        self.began_ms: dict[Author, int] = {}
        self.producers: dict[int, Producer] = {}

    def append(self, data: bytes) -> tuple[ErrorCode, int]:
        """Append a batch; return an error, or its offset."""
        header = parse_header(memoryview(data))
        author = Author(header.producer_id, header.producer_epoch)
        first, count = header.base_sequence, header.records_count
        last = (first + count - 1) % SEQUENCES
        known = self.producers.get(author.producer_id)
        if author.producer_id >= 0 and known is not None:
            if author.epoch < known.epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if author.epoch == known.epoch:
                for batch in known.batches:
                    if batch[:2] == (first, last):
                        return ErrorCode.NONE, batch[2]
                if first != (known.batches[-1][1] + 1) % SEQUENCES:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            elif first != 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        offset = self.end
        laid = bytearray(data)
        patch_header(laid, offset, 0)
        keys = frozenset(bytes(key or b"") for key, _, _ in iter_key_values(memoryview(laid), header))
        self.batches.append(Batch(offset, offset + count, author, bytes(laid), keys, known))
        self.end += count
        if author.producer_id >= 0:
            older = known.batches if known is not None and known.epoch == author.epoch else ()
            self.producers[author.producer_id] = Producer(author.epoch, (*older, (first, last, offset))[-REMEMBERED:])
        return ErrorCode.NONE, offset

    def commit(self, end: int) -> None:
        """Mark everything before an offset as replicated."""
        fresh = [batch for batch in self.batches if self.committed <= batch.offset < end]
        for batch in fresh:
            self.began_ms.setdefault(batch.author, self._now_ms())
            self.records += decoded(batch)
        self.committed = max(self.committed, end)

    def lead_elsewhere(self, kept: int) -> None:
        """Change the leader; uncommitted records at and after the offset `kept` are lost."""
        while self.batches and self.batches[-1].offset >= max(self.committed, kept):
            lost = self.batches.pop()
            self.end = lost.offset
            if lost.author.producer_id < 0:
                continue
            if lost.before is None:
                del self.producers[lost.author.producer_id]
            else:
                self.producers[lost.author.producer_id] = lost.before
        self.commit(self.end)

    def compact(self, share: float) -> None:
        """Remove batches of the log's first part whose keys are all written again later."""
        until = int(self.committed * share)
        newest = {key: batch.offset for batch in self.batches if batch.end <= self.committed for key in batch.keys}
        self.batches = [
            batch
            for batch in self.batches
            if batch.end > until or any(newest[key] == batch.offset for key in batch.keys)
        ]
        self.records = [record for batch in self.batches if batch.end <= self.committed for record in decoded(batch)]

    def overtaken_ms(self, author: Author) -> int | None:
        """Return when a later epoch of the producer id was committed, None if there is none."""
        later = (
            at_ms
            for other, at_ms in self.began_ms.items()
            if other.producer_id == author.producer_id and other.epoch > author.epoch
        )
        return min(later, default=None)


def decoded(batch: Batch) -> list[Record]:
    """Decode the group records of a batch."""
    view, reader = memoryview(batch.data), GroupRecordReader()
    found = []
    for key, value, _ in iter_key_values(view, parse_header(view)):
        if key is not None and not is_fence(key):
            record = reader.read_offset(key, value, -1, -1) if key[:2] == b"\0\1" else reader.decode_record(key, value)
            if record is not None:
                found.append(record)
    return found
