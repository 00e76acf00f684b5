"""The state of idempotent producers in a partition: their last batches and their open transactions.

Source: KIP-98, "Idempotent producer guarantees". Kafka remembers five batches, because its producers keep at most five
in flight.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from kohort.errors import ErrorCode, KafkaError, error_for
from kohort.log.filesystem import SYSTEM, FileSystem, file_mode, read_file, write_file
from kohort.wire.batch import BatchHeader
from kohort.wire.checksum import crc32c

BATCHES_KEPT = 5
_SEQUENCE_MASK = 0x7FFFFFFF
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hI")
_SNAPSHOT_COUNT = struct.Struct(">i")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


class ProducerBatch(NamedTuple):
    """The sequence numbers and offsets of one batch of a producer."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class PartitionProducer:
    """The state of one producer id in this partition.

    Attributes:
        seen_ms: the wall-clock time of its last append.
        begins_anew: whether a marker has raised the epoch, of which no batch is there yet: the first has sequence 0.
    """

    __slots__ = ("batches", "begins_anew", "coordinator_epoch", "epoch", "first_open_offset", "seen_ms")

    def __init__(self, epoch: int, seen_ms: int) -> None:
        self.epoch = epoch
        self.coordinator_epoch = -1
        self.first_open_offset = -1
        self.seen_ms = seen_ms
        self.begins_anew = False
        self.batches: deque[ProducerBatch] = deque(maxlen=BATCHES_KEPT)


class Producers:
    """The idempotent producers of one partition: their last batches and open transactions."""

    __slots__ = ("_limit", "_name", "by_id", "open_transactions")

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self.by_id: dict[int, PartitionProducer] = {}
        self.open_transactions: dict[int, int] = {}
        """Producer id to first offset. Ascending, because transactions are added when they start."""

    def check_batches(
        self, headers: Sequence[BatchHeader], *, sequences: bool, from_zero: bool = False
    ) -> ProducerBatch | None:
        """Check producer epochs and sequence numbers of batches before they are appended.

        Args:
            headers: the headers of one append, in order.
            sequences: whether to check sequence numbers, not only epochs.
            from_zero: whether a producer without a batch in the partition must begin with sequence 0. Else any number
                will do, because retention may have removed its batches.

        Returns:
            The batch in the log that the only batch of the append duplicates, or None.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE.
        """
        last: dict[int, tuple[int, int]] = {}
        for header in headers:
            producer_id = header.producer_id
            if producer_id < 0 or header.is_control:
                continue
            producer = self.by_id.get(producer_id)
            if producer is None and producer_id not in last:
                if sequences:
                    if from_zero and header.base_sequence != 0:
                        raise self._refuse_sequence(header, 0)
                    last[producer_id] = (header.producer_epoch, _last_sequence(header))
                continue
            if producer is not None:
                self._check_epoch(producer_id, producer, header)
                repeated = _find_duplicate(producer, header) if sequences and len(headers) == 1 else None
                if repeated is not None:
                    return repeated
            if sequences:
                self._check_sequence(header, producer, last.get(producer_id), from_zero)
                last[producer_id] = (header.producer_epoch, _last_sequence(header))
        return None

    def _check_epoch(self, producer_id: int, producer: PartitionProducer, header: BatchHeader) -> None:
        if header.producer_epoch < producer.epoch:
            raise self._refuse_batch(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {header.producer_epoch}, the partition saw {producer.epoch}",
            )
        if producer.first_open_offset >= 0 and not header.is_transactional:
            raise self._refuse_batch(
                ErrorCode.INVALID_TXN_STATE, f"producer {producer_id} wrote outside its open transaction"
            )

    def _check_sequence(
        self, header: BatchHeader, producer: PartitionProducer | None, last: tuple[int, int] | None, from_zero: bool
    ) -> None:
        if last is None:
            assert producer is not None
            known = producer.batches or producer.begins_anew or from_zero
            if not known and header.producer_epoch == producer.epoch:
                return
            last = (producer.epoch, producer.batches[-1].last_sequence if producer.batches else -1)
        epoch, last_sequence = last
        expected = 0 if header.producer_epoch != epoch else (last_sequence + 1) & _SEQUENCE_MASK
        if header.base_sequence != expected:
            raise self._refuse_sequence(header, expected)

    def _refuse_sequence(self, header: BatchHeader, expected: int) -> KafkaError:
        return self._refuse_batch(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} sent sequence {header.base_sequence}, expected {expected}",
        )

    def _refuse_batch(self, code: ErrorCode, text: str) -> KafkaError:
        return error_for(code, f"{self._name}: {text}")

    def record_batch(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Record that a data batch of a producer is in the log at `base_offset`."""
        producer_id = header.producer_id
        producer = self.by_id.get(producer_id)
        if producer is None:
            producer = self._add(producer_id, header.producer_epoch, now_ms)
        elif producer.epoch != header.producer_epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
        producer.seen_ms = now_ms
        producer.begins_anew = False
        if header.base_sequence >= 0:
            producer.batches.append(_written(header, base_offset))
        if header.is_transactional and producer.first_open_offset < 0:
            producer.first_open_offset = base_offset
            self.open_transactions[producer_id] = base_offset

    def _add(self, producer_id: int, epoch: int, now_ms: int) -> PartitionProducer:
        if len(self.by_id) >= self._limit:
            idle = [(p.seen_ms, i) for i, p in self.by_id.items() if p.first_open_offset < 0]
            if idle:
                del self.by_id[min(idle)[1]]
        producer = self.by_id[producer_id] = PartitionProducer(epoch, now_ms)
        return producer

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        """Check whether a transaction marker may be appended.

        Raises:
            FencedError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        producer = self.by_id.get(producer_id)
        if producer is None:
            return
        if epoch < producer.epoch:
            raise self._refuse_batch(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker for producer {producer_id} has epoch {epoch}, the partition saw {producer.epoch}",
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise self._refuse_batch(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of coordinator epoch {coordinator_epoch}, the partition saw {producer.coordinator_epoch}",
            )

    def record_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, now_ms: int) -> int:
        """Record that a transaction marker is in the log.

        Returns:
            The first offset of the transaction that it ends, -1 if it ends none.
        """
        producer = self.by_id.get(producer_id)
        if producer is None:
            producer = self._add(producer_id, epoch, now_ms)
        elif producer.epoch != epoch:
            producer.epoch, producer.begins_anew = epoch, True
            producer.batches.clear()
        producer.seen_ms = now_ms
        producer.coordinator_epoch = coordinator_epoch
        first = producer.first_open_offset
        producer.first_open_offset = -1
        self.open_transactions.pop(producer_id, None)
        return first

    def first_open_offset(self) -> int | None:
        """Return the start of the earliest open transaction, or None."""
        for offset in self.open_transactions.values():
            return offset
        return None

    def forget_idle(self, before_ms: int) -> int:
        """Forget producers that were idle since `before_ms`; return how many."""
        idle = [i for i, p in self.by_id.items() if p.seen_ms < before_ms and p.first_open_offset < 0]
        for producer_id in idle:
            del self.by_id[producer_id]
        return len(idle)

    def restore_batch(self, header: BatchHeader) -> None:
        """Restore an earlier batch of a producer at the log's opening: the snapshot has only the last batch of each."""
        producer = self.by_id.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch or not producer.batches:
            return
        last = producer.batches.pop()
        if header.last_offset < last.base_offset:
            producer.batches.append(_written(header, header.base_offset))
        producer.batches.append(last)

    def clear(self) -> None:
        self.by_id.clear()
        self.open_transactions.clear()

    def write_producer_snapshot(self, path: Path, fs: FileSystem = SYSTEM) -> None:
        """Write Kafka's producer snapshot: each producer's last batch and open transaction."""
        body = _SNAPSHOT_COUNT.pack(len(self.by_id)) + b"".join(self._snapshot_entries())
        data = _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c(body)) + body
        temporary = path.with_name(path.name + ".tmp")
        write_file(temporary, data, fs, sync=False, mode=file_mode(temporary))
        fs.replace(temporary, path)

    def _snapshot_entries(self) -> Iterable[bytes]:
        for producer_id, producer in self.by_id.items():
            last = producer.batches[-1] if producer.batches else ProducerBatch(-1, -1, 0, -1, -1)
            delta = last.last_offset - last.base_offset if producer.batches else 0
            yield _SNAPSHOT_ENTRY.pack(
                producer_id,
                producer.epoch,
                last.last_sequence,
                last.last_offset,
                delta,
                last.timestamp,
                producer.coordinator_epoch,
                producer.first_open_offset,
            )

    def load_producer_snapshot(self, path: Path, now_ms: int, fs: FileSystem = SYSTEM) -> bool:
        """Load a snapshot of the producers' state that `write_producer_snapshot` or Kafka wrote.

        Returns:
            False, with no producers, if the file is damaged.
        """
        self.clear()
        data = read_file(path, fs)
        body = data[_SNAPSHOT_HEAD.size :]
        size = len(body) - _SNAPSHOT_COUNT.size
        if size < 0 or _SNAPSHOT_HEAD.unpack_from(data) != (_SNAPSHOT_VERSION, crc32c(body)):
            return False
        if size != _SNAPSHOT_COUNT.unpack_from(body)[0] * _SNAPSHOT_ENTRY.size:
            return False
        opened = []
        for row in _SNAPSHOT_ENTRY.iter_unpack(body[_SNAPSHOT_COUNT.size :]):
            producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, first_open = row
            producer = self.by_id[producer_id] = PartitionProducer(epoch, now_ms)
            producer.coordinator_epoch = coordinator_epoch
            producer.first_open_offset = first_open
            if last_sequence >= 0:
                first_sequence = (last_sequence - delta) & _SEQUENCE_MASK
                producer.batches.append(
                    ProducerBatch(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp)
                )
            if first_open >= 0:
                opened.append((first_open, producer_id))
        self.open_transactions = {producer_id: first for first, producer_id in sorted(opened)}
        return True


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) & _SEQUENCE_MASK


def _written(header: BatchHeader, base_offset: int) -> ProducerBatch:
    last_offset = base_offset + header.last_offset_delta
    return ProducerBatch(header.base_sequence, _last_sequence(header), base_offset, last_offset, header.max_timestamp)


def _find_duplicate(producer: PartitionProducer, header: BatchHeader) -> ProducerBatch | None:
    if producer.epoch != header.producer_epoch:
        return None
    first = header.base_sequence
    for written in producer.batches:
        if written.first_sequence == first and written.last_sequence == _last_sequence(header):
            return written
    return None
