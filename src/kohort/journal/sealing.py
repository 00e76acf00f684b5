"""Encoding of group records into record batches, for every append of the journal.

Nearly all records are committed offsets, which a kernel encodes (`_offset_rows.pyx`). It declines those of transactions
and of old clients, and appends that are split. Where it was not built, runs of records that differ only in partition
and position are encoded a column at a time. Other records are encoded one by one. All ways give the same bytes.
"""

from __future__ import annotations

import contextlib
import importlib
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, Final, cast

from kohort.errors import InvalidInputError
from kohort.groups.records import OffsetCommitted, Record, TransactionMarked
from kohort.journal.codec import SharedBytes, append_started_record, encode_record, shared_offset_bytes
from kohort.log.markers import Marker, build_marker
from kohort.wire.batch import BatchOptions, parse_header, seal_batch, varint

BATCH_BYTES_MAX: Final = 1 << 20
"""Larger appends are split into several batches, because readers of the topic expect about this size."""
_RUN_MIN: Final = 4
"""Shorter runs are faster one by one."""
_TABLE: Final = 4096
_VARINTS: Final = [varint(number) for number in range(_TABLE)]
_NULL: Final = varint(-1)
_NO_TIME: Final = b"\0\0"
"""A record's attributes and its time relative to the batch's."""
_NO_HEADERS: Final = b"\0"
_RECORD_BYTES: Final = 16
"""The most bytes that a record takes beside its key and value."""
_POSITION_SIZE: Final = 12
"""The bytes of offset and leader epoch."""
PACK_OFFSETS: Callable[[list[OffsetCommitted], int, int], bytes | None] | None = None
"""The kernel: encodes records from a number on in so many bytes at most, or declines; None where it was not built."""
with contextlib.suppress(ImportError):
    PACK_OFFSETS = importlib.import_module("kohort.journal._offset_rows").pack_offsets
_GROUP: Final = itemgetter(0)
_TOPIC: Final = itemgetter(1)


def encode_append(records: Iterable[Record], now_ms: int) -> list[bytes | bytearray]:
    """Encode one append as batches, all at `now_ms`, in the records' order.

    Transactional offsets are in batches of their producer, and the end of a transaction is a marker. Large appends are
    split into several batches. Then a record before them holds the number of offsets that they span.
    """
    building = _Batches(now_ms, BATCH_BYTES_MAX)
    building.add_records(records)
    batches = building.finish_batches()
    if len(batches) > 1:
        span = sum(parse_header(batch).last_offset_delta + 1 for batch in batches)
        first = _Batches(now_ms, BATCH_BYTES_MAX)
        first.add_record(*append_started_record(span))
        batches[:0] = first.finish_batches()
    return batches


def encode_unbounded_batch(records: Iterable[Record]) -> tuple[bytes, int]:
    """Encode the records of one append as the body of one batch, of any size; return it with their count.

    Raises:
        InvalidInputError: some records belong to a transaction, and so into batches of their producer.
    """
    building = _Batches(0, sys.maxsize)
    building.add_records(records)
    return building.encode_without_header()


def encode_single_record(key: bytes, value: bytes | None) -> tuple[bytes, int]:
    """Encode a single record, such as a fence, as the body of a batch.

    Return it with the number of records, 1.
    """
    building = _Batches(0, BATCH_BYTES_MAX)
    building.add_record(key, value)
    return building.encode_without_header()


class _Batches:
    """The record batches of one append while they are built; the last one is still open."""

    def __init__(self, now_ms: int, bytes_max: int) -> None:
        self._now_ms = now_ms
        self._bytes_max = bytes_max
        self._done: list[bytes | bytearray] = []
        self._options: BatchOptions = {}
        self._parts: list[bytes] = []
        self._count = 0
        self._size = 0

    def continue_with(self, options: BatchOptions) -> None:
        """Complete the open batch and begin another, unless the next records belong into the open one."""
        if options != self._options:
            self._seal()
            self._options = options

    def _seal(self) -> None:
        if self._count:
            numbers = (self._count - 1, self._now_ms, self._now_ms)
            self._done.append(seal_batch(b"".join(self._parts), self._count, numbers, self._options))
            self._parts, self._count, self._size = [], 0, 0

    def finish_batches(self) -> list[bytes | bytearray]:
        """Complete the open batch, and return all batches of the append."""
        self._seal()
        return self._done

    def encode_without_header(self) -> tuple[bytes, int]:
        """Return the encoded records of the only batch, which has no header yet, and their number."""
        if self._done or self._options:
            raise InvalidInputError("records of a transaction can't be in one batch with others")
        return b"".join(self._parts), self._count

    def add_records(self, records: Iterable[Record]) -> None:
        """Add records of any kind to the batches, in their order."""
        for kind, run in groupby(records, type):
            if kind is OffsetCommitted:
                offsets = list(cast("Iterator[OffsetCommitted]", run))
                if not self._pack(offsets):
                    for _, of_group in groupby(offsets, _GROUP):
                        self.add_offsets(list(of_group))
            elif kind is TransactionMarked:
                self.add_markers(run)
            else:
                self.continue_with({})
                for record in run:
                    self.add_record(*encode_record(record))

    def add_record(self, key: bytes, value: bytes | None) -> None:
        """Add one record to the open batch."""
        key_size = len(key)
        value_size = len(value) if value is not None else 0
        if self._size + key_size + value_size > self._bytes_max:
            self._seal()
        delta, key_length = _varint(self._count), _varint(key_size)
        size = 3 + len(delta) + len(key_length) + key_size
        if value is None:
            size += 1
            tail: tuple[bytes, ...] = (_NULL, _NO_HEADERS)
        else:
            value_length = _varint(value_size)
            size += len(value_length) + value_size
            tail = (value_length, value, _NO_HEADERS)
        self._parts += (_varint(size), _NO_TIME, delta, key_length, key, *tail)
        self._size += size
        self._count += 1

    def add_markers(self, run: Iterable[Any]) -> None:
        """Add the ends of transactions, each as a separate batch."""
        self._seal()
        for marked in run:
            marker = Marker(marked.producer_id, marked.producer_epoch, marked.committed, 0)
            self._done.append(build_marker(marker, self._now_ms))

    def _pack(self, offsets: list[OffsetCommitted]) -> bool:
        """Add committed offsets by the compiled kernel; return whether it could encode them."""
        if PACK_OFFSETS is None or offsets[0].producer_id >= 0:
            return False
        self.continue_with({})
        found = PACK_OFFSETS(offsets, self._count, self._bytes_max - self._size)
        if found is None:
            return False
        self._parts.append(found)
        self._size += len(found)
        self._count += len(offsets)
        return True

    def add_offsets(self, run: Sequence[OffsetCommitted]) -> None:
        """Add committed offsets of one group to the open batch."""
        if len(run) >= _RUN_MIN:
            _, topics, partitions, offsets, epochs, *rest = zip(*run, strict=True)
            if topics.count(topics[0]) != len(run):
                for _, of_topic in groupby(run, _TOPIC):
                    self.add_offsets(list(of_topic))
                return
            shared = (
                shared_offset_bytes(run[0]) if all(column.count(column[0]) == len(run) for column in rest) else None
            )
            if shared is not None:
                self.continue_with(_options_of(run[0]))
                self._add_columns(shared, partitions, offsets, epochs)
                return
        for record in run:
            self.continue_with(_options_of(record))
            self.add_record(*encode_record(record))

    def _add_columns(
        self, shared: SharedBytes, partitions: Sequence[int], offsets: Sequence[int], epochs: Sequence[int]
    ) -> None:
        """Add records that differ only in partition, offset and leader epoch."""
        key, before, after = shared
        middle = _varint(len(key) + 4) + key
        before = _varint(len(before) + _POSITION_SIZE + len(after)) + before
        after += _NO_HEADERS
        fixed = len(_NO_TIME) + len(middle) + 4 + len(before) + _POSITION_SIZE + len(after)
        each = fixed + _RECORD_BYTES
        done, total = 0, len(partitions)
        while done < total:
            if self._size + each > self._bytes_max:
                self._seal()
            width, alike = _delta_width(self._count)
            stop = min(total, done + max(1, (self._bytes_max - self._size) // each), done + _TABLE, done + alike)
            head = _varint(fixed + width) + _NO_TIME
            pack = _packer(len(head), width, len(middle), len(before), len(after))
            chosen = slice(done, stop)
            columns = (partitions[chosen], repeat(before), offsets[chosen], epochs[chosen], repeat(after))
            self._parts += map(
                pack, repeat(head), _deltas(self._count, self._count + stop - done), repeat(middle), *columns
            )
            self._count += stop - done
            self._size += (stop - done) * each
            done = stop


@lru_cache(maxsize=1_000)
def _packer(head: int, delta: int, middle: int, before: int, after: int) -> Callable[..., bytes]:
    """Return a compiled function that packs one offset record; the arguments are sizes of its variable parts."""
    return struct.Struct(f">{head}s{delta}s{middle}si{before}sqi{after}s").pack


def _delta_width(number: int) -> tuple[int, int]:
    """Return how many bytes an offset delta takes as a varint, and how many deltas from it on take as many bytes."""
    width, end = 1, 64
    while number >= end:
        width, end = width + 1, end << 7
    return width, end - number


def _deltas(first: int, end: int) -> list[bytes]:
    return _VARINTS[first:end] if end <= _TABLE else list(map(varint, range(first, end)))


def _varint(number: int) -> bytes:
    return _VARINTS[number] if number < _TABLE else varint(number)


def _options_of(record: OffsetCommitted) -> BatchOptions:
    if record.producer_id < 0:
        return {}
    return {"producer_id": record.producer_id, "producer_epoch": record.producer_epoch, "transactional": True}
