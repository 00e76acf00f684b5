"""One partition's log as Kafka keeps it: batches, producers' sequence numbers, transactions and their markers."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import Enum

from kohort.errors import ErrorCode
from kohort.wire.batch import BatchRecord, build_batch, parse_header, patch_header
from kohort.wire.records import read_records

REMEMBERED = 5
"""The number of batches that the broker remembers of each producer, to recognise repeated ones."""
SEQUENCES = 2**31
ABORT, COMMIT = b"\x00\x00\x00\x00", b"\x00\x00\x00\x01"
"""Keys of transaction markers: version and type."""


class Fate(Enum):
    """Outcome of a batch's transaction."""

    PLAIN = "in no transaction"
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    MARKER = "the end of one"


@dataclass(slots=True)
class StoredBatch:
    """One batch in the log."""

    offset: int
    values: list[str]
    data: bytes
    producer_id: int
    epoch: int
    sequence: int
    fate: Fate

    @property
    def end(self) -> int:
        """The offset after its last record."""
        return self.offset + len(self.values)


@dataclass(slots=True)
class ProducerEntry:
    """A producer's state at the leader: its epoch, and first sequence, last sequence and offset of its batches."""

    epoch: int
    batches: list[tuple[int, int, int]] = field(default_factory=list)


class PartitionModel:
    """The log of one partition; every leader has all of it.

    Attributes:
        end: the next offset.
        open: the first offset of each open transaction, by producer id.
        aborted: producer id, first offset and the marker's offset of each aborted transaction.
        leader: the leading node, -1 while there is none.
    """

    def __init__(self, leader: int) -> None:
        self.batches: list[StoredBatch] = []
        self.end = 0
        self.leader = leader
        self.leader_epoch = 0
        self.open: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int]] = []
        self._producers: dict[int, ProducerEntry] = {}
        self._offsets: list[int] = []

    @property
    def last_stable(self) -> int:
        """The offset before which every transaction has ended."""
        return min(self.open.values(), default=self.end)

    def append(self, data: bytes) -> tuple[ErrorCode, int, StoredBatch | None]:
        """Append a batch; return an error or its offset, and the batch if it is new."""
        header = parse_header(memoryview(data))
        producer_id, epoch = header.producer_id, header.producer_epoch
        first, last = header.base_sequence, header.last_sequence
        known = self._producers.get(producer_id)
        if producer_id >= 0 and known is not None:
            if epoch < known.epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1, None
            if epoch == known.epoch:
                for batch in known.batches:
                    if batch[:2] == (first, last):
                        return ErrorCode.NONE, batch[2], None
                if known.batches and first != (known.batches[-1][1] + 1) % SEQUENCES:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, None
            elif first != 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, None
        fate = Fate.OPEN if header.is_transactional else Fate.PLAIN
        values = [bytes(record.value or b"").decode() for record in read_records(data)]
        stored = self._store(data, values, producer_id, epoch, first, fate)
        if fate is Fate.OPEN:
            self.open.setdefault(producer_id, stored.offset)
        if producer_id >= 0:
            entry = known if known is not None and known.epoch == epoch else ProducerEntry(epoch)
            entry.batches = [*entry.batches, (first, last, stored.offset)][-REMEMBERED:]
            self._producers[producer_id] = entry
        return ErrorCode.NONE, stored.offset, stored

    def end_transaction(self, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Write a producer's transaction marker into this partition."""
        record = BatchRecord(0, 0, COMMIT if commit else ABORT, b"\x00\x00\x00\x00\x00\x00")
        data = build_batch([record], producer_id=producer_id, producer_epoch=epoch, transactional=True, control=True)
        marker = self._store(data, [""], producer_id, epoch, -1, Fate.MARKER)
        first = self.open.pop(producer_id, None)
        if first is not None:
            for batch in self.batches:
                if batch.producer_id == producer_id and batch.fate is Fate.OPEN:
                    batch.fate = Fate.COMMITTED if commit else Fate.ABORTED
            if not commit:
                self.aborted.append((producer_id, first, marker.offset))
        entry = self._producers.get(producer_id)
        if entry is None or epoch > entry.epoch:
            self._producers[producer_id] = ProducerEntry(epoch)

    def _store(
        self, data: bytes, values: list[str], producer_id: int, epoch: int, sequence: int, fate: Fate
    ) -> StoredBatch:
        laid = bytearray(data)
        patch_header(laid, self.end, self.leader_epoch)
        stored = StoredBatch(self.end, values, bytes(laid), producer_id, epoch, sequence, fate)
        self.batches.append(stored)
        self._offsets.append(stored.offset)
        self.end = stored.end
        return stored

    # Reading.

    def read(self, at: int, size: int, *, committed: bool) -> bytes:
        """Return complete batches of about `size` bytes from the one that holds an offset."""
        stop, data = self.last_stable if committed else self.end, b""
        for batch in self.batches[max(0, bisect_right(self._offsets, at) - 1) :]:
            if batch.end > at and batch.end <= stop and len(data) < size:
                data += batch.data
            elif data:
                break
        return data

    def value_at(self, offset: int) -> str | None:
        """Return the record at an offset, None if applications see none there."""
        index = bisect_right(self._offsets, offset) - 1
        if index < 0 or self.batches[index].end <= offset or self.batches[index].fate is Fate.MARKER:
            return None
        return self.batches[index].values[offset - self.batches[index].offset]

    def next_visible(self, offset: int, *, committed: bool) -> int | None:
        """Return the first offset from here on that an application must see, None if it has seen all."""
        for batch in self.batches[max(0, bisect_right(self._offsets, offset) - 1) :]:
            if batch.end <= offset or batch.fate is Fate.MARKER:
                continue
            if committed and batch.end > self.last_stable:
                return None
            if not committed or batch.fate is not Fate.ABORTED:
                return max(offset, batch.offset)
        return None
