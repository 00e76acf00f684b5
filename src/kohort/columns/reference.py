"""The decoder in plain Python: the reference for the kernel, and its replacement where it could not be built.

The code is written for reading: one record at a time, each rule where it applies. The kernel has the same rules in the
same order, so that damaged input gives the same rows and the same `Damage` in both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from kohort.columns.record import Record
from kohort.columns.shapes import (
    INT64_MAX,
    BytesLike,
    Damage,
    DamageKind,
    DecodeOptions,
    Extent,
    Header,
    RecordSet,
    RowRange,
    row_limit,
)
from kohort.wire.checksum import crc32c
from kohort.wire.compression import CodecError, TooLargeError, decompress
from kohort.wire.records import decode_header_name

HEADER = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base and maximum timestamp, producer id
and epoch, base sequence, count of records."""

OVERHEAD = 12
"""Bytes of base offset and length, which the length does not count."""
CRC_START = 21
MAGIC_AT = 16
LEGACY_LENGTH_MIN = 14
RECORD_BYTES_MIN = 7
"""Length, attributes, two deltas, key length, value length and header count, a byte each."""
BASE_OFFSET_MAX = INT64_MAX - 2**32

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
ABORT_MARKER = 0

_ROW_BYTES, _HEADER_BYTES = 36, 8
"""The bytes that the compiled decoder's columns take: numbers and ends of a row, ends of a header."""
_PER_MS = {"ms": 1, "us": 1000}


class RecordSetDamagedError(Exception):
    """The damage that ends a record set; never leaves this module."""

    def __init__(self, kind: DamageKind) -> None:
        self.kind = kind


@dataclass(slots=True)
class ScannedBatch:
    """One record batch: the fields of its header, and all its bytes (`whole`), whose records are not decoded yet."""

    base_offset: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    count: int
    whole: memoryview

    @property
    def control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def body(self) -> memoryview:
        return self.whole[HEADER.size :]


class Reader:
    """A reader of varints and bytes from one record, never past its end."""

    __slots__ = ("at", "buffer", "end")

    def __init__(self, buffer: memoryview, at: int, end: int) -> None:
        self.buffer = buffer
        self.at = at
        self.end = end

    def varint(self, bits: int = 32) -> int:
        value = shift = 0
        while True:
            if self.at >= self.end:
                raise RecordSetDamagedError(DamageKind.RECORD)
            byte = self.buffer[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if value >> bits:
                raise RecordSetDamagedError(DamageKind.RECORD)
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            if shift >= bits:
                raise RecordSetDamagedError(DamageKind.RECORD)

    def take(self, length: int) -> memoryview:
        if length < 0 or length > self.end - self.at:
            raise RecordSetDamagedError(DamageKind.RECORD)
        self.at += length
        return self.buffer[self.at - length : self.at]

    def nullable(self) -> bytes | None:
        length = self.varint()
        return None if length == -1 else bytes(self.take(length))


@dataclass(slots=True)
class RowColumns:
    """The block of this decoder: one list per column."""

    topic: list[str] = field(default_factory=list)
    partition: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    timestamp: list[int] = field(default_factory=list)
    timestamp_type: list[int] = field(default_factory=list)
    key: list[bytes | None] = field(default_factory=list)
    value: list[bytes | None] = field(default_factory=list)
    headers: list[tuple[Header, ...]] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    unit: str = "ms"

    def lists(self) -> tuple[list[Any], ...]:
        return (
            self.topic,
            self.partition,
            self.offsets,
            self.timestamp,
            self.timestamp_type,
            self.key,
            self.value,
            self.headers,
        )

    def truncate_rows(self, length: int) -> None:
        """Remove the rows from `length` on."""
        for column in self.lists():
            del column[length:]

    @property
    def nbytes(self) -> int:
        headers = [header for row in self.headers for header in row] if "headers" in self.columns else []
        columns = [column for name, column in (("key", self.key), ("value", self.value)) if name in self.columns]
        contents = [*chain(*columns), *(content for _, content in headers)]
        sizes = sum(len(content) for content in contents if content is not None)
        names = sum(len(name.encode()) for name, _ in headers)
        return sizes + names + _ROW_BYTES * len(self.offsets) + _HEADER_BYTES * len(headers)

    def offset(self, row: int) -> int:
        return self.offsets[row]

    def records(self, start: int, stop: int) -> list[Record]:
        return list(self.iter_records(start, stop))

    def iter_records(self, start: int, stop: int) -> Iterator[Record]:
        has = set(self.columns)
        return (
            Record(
                self.topic[row],
                self.partition[row],
                self.offsets[row],
                _scaled(self.timestamp[row], self.unit) // _PER_MS[self.unit] if "timestamp" in has else -1,
                self.key[row] if "key" in has else None,
                self.value[row] if "value" in has else None,
                self.headers[row] if "headers" in has else (),
                self.timestamp_type[row] if "timestampType" in has else 0,
            )
            for row in range(start, stop)
        )

    def arrow_arrays(self, options: DecodeOptions) -> list[Any]:
        import pyarrow as pa

        from kohort.columns.arrow import schema

        columns: dict[str, list[Any]] = {
            "key": self.key,
            "value": self.value,
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offsets,
            "timestamp": [_scaled(ms, options.timestamp_unit) for ms in self.timestamp],
            "timestampType": self.timestamp_type,
            "headers": [[{"key": name, "value": content} for name, content in row] or None for row in self.headers],
        }
        return [pa.array(columns[field.name], type=field.type) for field in schema(options)]


def _scaled(ms: int, unit: str) -> int:
    if unit == "ms":
        return ms
    most = INT64_MAX // 1000
    return max(-most, min(most, ms)) * 1000


def _wrapped(value: int) -> int:
    """Wrap a number to a signed 64-bit integer, like an overflow in the compiled decoder."""
    return (value + 2**63) % 2**64 - 2**63


class DecodeLimits:
    """The rows and bytes that a decode may still produce; `spent` is set when a batch or record would exceed them."""

    def __init__(self, sets: Sequence[RecordSet], options: DecodeOptions) -> None:
        self.rows = row_limit(sets, options)
        self.bytes = options.max_bytes
        self.any = False
        self.spent = False

    def allows_decoding(self, size: int) -> bool:
        """Return whether a batch of this many decompressed bytes may still be decoded."""
        if self.any and size > self.bytes:
            self.spent = True
            return False
        self.any = True
        self.bytes -= min(size, self.bytes)
        return True


class RecordSetDecoder:
    """The decoder of one record set, the fetched bytes of a partition. It appends the records to the rows."""

    def __init__(self, given: RecordSet, options: DecodeOptions, rows: RowColumns, limits: DecodeLimits) -> None:
        self.given = given
        self.options = options
        self.rows = rows
        self.limits = limits
        self.end = INT64_MAX if given.end_offset is None else given.end_offset
        self.next_offset = given.first_offset
        self._epochs: list[int] = []
        self.incomplete = False
        self.damage: Damage | None = None
        self._aborted = sorted(given.aborted, key=lambda entry: entry[1])
        self._aborting: set[int] = set()
        self._last_delta = -1

    def run(self) -> RowRange:
        start = len(self.rows.offsets)
        for batch in self._batches():
            if not self._decode(batch):
                break
        return RowRange(
            start,
            len(self.rows.offsets),
            self.next_offset,
            self._epochs[-1] if self._epochs else -1,
            not self.limits.spent,
            self.incomplete,
            self.damage,
            len(set(self._epochs)) <= 1,
        )

    def _batches(self) -> Iterator[ScannedBatch]:
        """Yield the batches up to the first damaged header or incomplete batch."""
        view = memoryview(self.given.buffer).cast("B")
        at = 0
        while at < len(view):
            left = len(view) - at
            if left <= MAGIC_AT:
                self.incomplete = True
                return
            base, length = struct.unpack_from(">qi", view, at)
            if length < LEGACY_LENGTH_MIN:
                return self._damaged(DamageKind.HEADER, base, base)
            magic = view[at + MAGIC_AT]
            if magic < 2:
                return self._damaged(DamageKind.OLD_FORMAT, base, base)
            if magic > 2 or length < HEADER.size - OVERHEAD:
                return self._damaged(DamageKind.HEADER, base, base)
            if length > left - OVERHEAD:
                self.incomplete = True
                return
            whole = view[at : at + OVERHEAD + length]
            (_, _, epoch, _, crc, attributes, delta, first_ms, max_ms, producer, _, _, count) = HEADER.unpack_from(
                whole
            )
            if not 0 <= base <= BASE_OFFSET_MAX or delta < 0 or count < 0:
                return self._damaged(DamageKind.HEADER, base, base)
            yield ScannedBatch(base, epoch, crc, attributes, base + delta, first_ms, max_ms, producer, count, whole)
            at += OVERHEAD + length

    def _decode(self, batch: ScannedBatch) -> bool:
        """Decode one batch; return False if the record set's decoding ends with it.

        That is at the end offset, at a limit of rows or bytes, or at a damaged batch.
        """
        if batch.base_offset >= self.end:
            self.next_offset = max(self.next_offset, self.end)
            return False
        if self.limits.spent or self.limits.rows == 0:
            self.limits.spent = True
            return False
        dropped = self._dropped(batch)
        if batch.last_offset >= self.given.first_offset and not dropped:
            start = len(self.rows.offsets)
            try:
                going_on = self._records(batch)
            except RecordSetDamagedError as damaged:
                self.rows.truncate_rows(start)
                self._damaged(damaged.kind, batch.base_offset, batch.last_offset)
                return False
            if not going_on:
                return False
        if batch.last_offset >= self.given.first_offset:
            self._epochs.append(batch.leader_epoch)
        self.next_offset = max(self.next_offset, min(batch.last_offset + 1, self.end))
        return True

    def _dropped(self, batch: ScannedBatch) -> bool:
        """Return whether no record of a batch is returned: a control batch, or with read_committed an aborted one."""
        if not self.options.read_committed:
            return batch.control
        while self._aborted and self._aborted[0][1] <= batch.last_offset:
            self._aborting.add(self._aborted.pop(0)[0])
        if batch.control:
            if _control_type(batch) == ABORT_MARKER:
                self._aborting.discard(batch.producer_id)
            return True
        return bool(batch.attributes & TRANSACTIONAL) and batch.producer_id in self._aborting

    def _records(self, batch: ScannedBatch) -> bool:
        """Append a batch's records to the rows; return False when a limit or the end offset was reached."""
        if self.options.check_crcs and crc32c(batch.whole[CRC_START:]) != batch.crc:
            raise RecordSetDamagedError(DamageKind.CRC)
        body = self._body(batch)
        if batch.count > len(body) // RECORD_BYTES_MIN:
            raise RecordSetDamagedError(DamageKind.RECORD)
        if not self.limits.allows_decoding(len(body)):
            return False
        start = len(self.rows.offsets)
        room = self.limits.rows
        at, self._last_delta = 0, -1
        for _ in range(batch.count):
            at, state = self._record(batch, body, at, room - (len(self.rows.offsets) - start))
            if state is not None:
                self.limits.rows -= len(self.rows.offsets) - start
                return self._stopped(batch, state)
        if at != len(body):
            raise RecordSetDamagedError(DamageKind.RECORD)
        self.limits.rows -= len(self.rows.offsets) - start
        return True

    def _stopped(self, batch: ScannedBatch, state: int) -> bool:
        self._epochs.append(batch.leader_epoch)
        if state < 0:
            self.next_offset = max(self.next_offset, self.end)
        else:
            self.next_offset = max(self.next_offset, state)
            self.limits.spent = True
        return False

    def _body(self, batch: ScannedBatch) -> memoryview:
        codec = batch.attributes & CODEC_MASK
        if codec == 0:
            return batch.body
        try:
            return decompress(codec, batch.body, self.options.max_batch_bytes)
        except TooLargeError:
            raise RecordSetDamagedError(DamageKind.TOO_LARGE) from None
        except CodecError:
            raise RecordSetDamagedError(DamageKind.CODEC) from None

    def _record(self, batch: ScannedBatch, body: memoryview, at: int, room: int) -> tuple[int, int | None]:
        """Decode the record at position `at` of a batch's body, and append its fields to the columns.

        Returns:
            The start of the next record, and a state. None: continue. -1: this record is at or after the end offset.
            Else the offset of this record, for which the limits have no room.
        """
        reader = Reader(body, at, len(body))
        length = reader.varint()
        if not 0 <= length <= len(body) - reader.at:
            raise RecordSetDamagedError(DamageKind.RECORD)
        end = reader.at + length
        reader.end = end
        reader.take(1)
        stamp = reader.varint(64)
        delta = reader.varint()
        if not self._last_delta < delta <= batch.last_offset - batch.base_offset:
            raise RecordSetDamagedError(DamageKind.RECORD)
        self._last_delta = delta
        offset = batch.base_offset + delta
        if offset < self.given.first_offset:
            return end, None
        if offset >= self.end:
            return end, -1
        if room == 0:
            return end, offset
        key = reader.nullable()
        value = reader.nullable()
        headers = _headers(reader)
        if reader.at != end:
            raise RecordSetDamagedError(DamageKind.RECORD)
        appended = bool(batch.attributes & LOG_APPEND_TIME)
        rows = self.rows
        rows.topic.append(self.given.topic)
        rows.partition.append(self.given.partition)
        rows.offsets.append(offset)
        rows.timestamp.append(batch.max_timestamp if appended else _wrapped(batch.base_timestamp + stamp))
        rows.timestamp_type.append(int(appended))
        rows.key.append(key)
        rows.value.append(value)
        rows.headers.append(headers)
        return end, None

    def _damaged(self, kind: DamageKind, base: int, last: int) -> None:
        stated = 0 <= base <= BASE_OFFSET_MAX and kind is not DamageKind.HEADER
        offset = max(base, self.next_offset) if stated else self.next_offset
        self.damage = Damage(kind, offset, (max(last, offset) if stated else offset) + 1)


def _control_type(batch: ScannedBatch) -> int:
    """Return the type in a control record's key; -1 if there is none."""
    try:
        reader = Reader(batch.body, 0, len(batch.body))
        reader.varint()
        reader.take(1)
        reader.varint(64)
        reader.varint()
        key = reader.nullable()
    except RecordSetDamagedError:
        return -1
    return -1 if key is None or len(key) < 4 else int.from_bytes(key[2:4], "big", signed=True)


def _headers(reader: Reader) -> tuple[Header, ...]:
    count = reader.varint()
    if not 0 <= count <= (reader.end - reader.at) // 2:
        raise RecordSetDamagedError(DamageKind.RECORD)
    headers = []
    for _ in range(count):
        name = reader.take(reader.varint())
        headers.append((decode_header_name(bytes(name)), reader.nullable()))
    return tuple(headers)


def decode_block(sets: Sequence[RecordSet], options: DecodeOptions) -> tuple[list[RowRange], RowColumns]:
    """Decode as `kohort.columns.decode` does; return its two parts."""
    rows = RowColumns(columns=options.columns, unit=options.timestamp_unit)
    limits = DecodeLimits(sets, options)
    return [RecordSetDecoder(given, options, rows, limits).run() for given in sets], rows


def extent(buffer: BytesLike) -> Extent:
    """Read the batch headers of a record set, without decoding, up to the first invalid one."""
    at, end, next_offset, records, epoch = 0, len(buffer), -1, 0, -1
    while at + HEADER.size <= end:
        fields = HEADER.unpack_from(buffer, at)
        base, length, delta, count = fields[0], fields[1], fields[6], fields[-1]
        if length < HEADER.size - OVERHEAD or at + OVERHEAD + length > end:
            break
        if not 0 <= base <= BASE_OFFSET_MAX or delta < 0 or count < 0:
            break
        next_offset, epoch = base + delta + 1, fields[2]
        records += count
        at += OVERHEAD + length
    return Extent(next_offset, records, epoch)
