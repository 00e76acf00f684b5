"""Record batches (magic 2): the header, the checksum, patching in place, and plain writing of records.

`kohort.wire.records` reads them.

Layout of the header, big-endian, 61 bytes:

    0 base offset i64 | 8 batch length i32 | 12 leader epoch i32 | 16 magic i8 | 17 CRC-32C u32 | 21 attributes i16
    23 last offset delta i32 | 27 base timestamp i64 | 35 max timestamp i64 | 43 producer id i64 | 51 producer epoch i16
    53 base sequence i32 | 57 records i32

The batch length counts from byte 12. The checksum covers everything from byte 21, so base offset and leader epoch may
be patched without computing it again. Attributes: bits 0-2 codec, 3 log append time, 4 transactional, 5 control, 6 the
base timestamp is a delete horizon. Message sets of magic 0 and 1 are recognised and refused.

Source: Kafka documentation, "Message format"; KIP-98; KIP-534.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypedDict, Unpack

from kohort.errors import CorruptDataError, ErrorCode, InvalidInputError
from kohort.wire.checksum import crc32c
from kohort.wire.compression import CODECS, compress
from kohort.wire.schema import Buffer

HEADER_SIZE: Final = 61
MAGIC: Final = 2
RECORDS_BYTES_MAX: Final = 256 * 1024 * 1024
"""The maximum size of a decompressed batch: bounds the memory that a small batch can cost its reader."""

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_UNCHECKED: Final = struct.Struct(">qiibI")
_CHECKED: Final = struct.Struct(">hiqqqhii")
"""The parts of the header before and behind the checksum, which covers the second."""
_unpack_header: Final = _HEADER.unpack_from
_LENGTH_OFFSET: Final = 12
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21
_MAX_TIMESTAMP_AT: Final = 35
_OLD_OVERHEAD: Final = 14
"""Bytes that follow offset and length in the smallest message of magic 0."""

LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20


class CorruptBatchError(CorruptDataError):
    """A record batch that is cut, damaged or impossible."""


class BatchHeader(NamedTuple):
    """The header of one batch, field by field as on the wire."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes."""
        return self.batch_length + _LENGTH_OFFSET

    @property
    def last_offset(self) -> int:
        """The offset of the last record, whether or not compaction kept it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, which wraps at 2^31; -1 for a producer without sequences."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFF_FFFF

    @property
    def compression(self) -> int:
        """The number of the codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & 7

    @property
    def is_log_append_time(self) -> bool:
        """Whether every record's timestamp is `max_timestamp`."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds markers instead of records for users."""
        return bool(self.attributes & CONTROL)


_new_header: Final[Callable[[type[BatchHeader], tuple[int, ...]], BatchHeader]] = tuple.__new__
"""`BatchHeader._make` without its Python call: every batch read or written passes here."""


class BatchRecord(NamedTuple):
    """One record as it is put into a batch or read from one, without topic and partition.

    Attributes:
        offset: of the record; ignored when a batch is built without `keep_offsets`.
        timestamp: milliseconds since 1970, or -1.
        key: or None.
        value: or None for a tombstone.
        headers: name and value pairs, in order; names may repeat.
    """

    offset: int
    timestamp: int
    key: Buffer | None
    value: Buffer | None
    headers: Sequence[tuple[str, Buffer | None]] = ()


class BatchOptions(TypedDict, total=False):
    """The optional keyword arguments of `build_batch` and `seal_batch`.

    Attributes:
        base_offset: of the first record; 0 for a batch that a broker will patch.
        compression: none, gzip, snappy, lz4 or zstd.
        level: the codec's own level.
        leader_epoch: of the partition's leader; -1 unknown.
        producer_id: of an idempotent producer, else -1.
        producer_epoch: of an idempotent producer, else -1.
        base_sequence: sequence number of the first record; -1 without an idempotent producer.
        transactional: whether the batch is part of a transaction.
        control: whether the batch holds control markers.
        timestamp_type: 0 set by the producer, 1 log append time.
        keep_offsets: take the records' own offsets, which must rise, instead of counting from `base_offset`.
    """

    base_offset: int
    compression: str
    level: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: bool
    timestamp_type: int
    keep_offsets: bool


def parse_header(buf: Buffer, offset: int = 0) -> BatchHeader:
    """Return the header at `offset`; the batch itself need not be complete.

    Raises:
        CorruptBatchError: fewer than 61 bytes are left, or the batch length is impossible (code
            UNSUPPORTED_FOR_MESSAGE_FORMAT for a message of magic 0 or 1).
    """
    try:
        header = _new_header(BatchHeader, _unpack_header(buf, offset))
    except struct.error:
        _check_magic(buf, offset)
        raise CorruptBatchError(f"a batch header needs {HEADER_SIZE} bytes, {len(buf) - offset} are left") from None
    if header[3] != MAGIC:
        _check_magic(buf, offset)
    if header[1] < HEADER_SIZE - _LENGTH_OFFSET:
        raise CorruptBatchError(f"a batch length of {header[1]} at byte {offset}")
    return header


def _check_magic(buf: Buffer, offset: int) -> None:
    """Raise CorruptBatchError unless the batch at `offset` has magic 2, or is too short to show its magic."""
    if len(buf) - offset <= _MAGIC_AT or (magic := buf[offset + _MAGIC_AT]) == MAGIC:
        return
    if magic < MAGIC:
        text = f"a message set of magic {magic}, which producers before 0.11 sent"
        raise CorruptBatchError(text, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    raise CorruptBatchError(f"magic {magic} at byte {offset}")


def iter_headers(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the start and the header of each batch; the last batch may not be cut.

    Raises:
        CorruptBatchError: the bytes are no batch, or a batch reaches past the end.
    """
    position, end = 0, len(buf)
    while position < end:
        header = parse_header(buf, position)
        stop = position + header.size
        if stop > end:
            raise CorruptBatchError(f"a batch of {header.size} bytes at byte {position} of {end}")
        yield position, header
        position = stop


def has_valid_crc(buf: Buffer, header: BatchHeader, offset: int = 0) -> bool:
    """Return whether the batch at `offset` has the checksum of its header; False for an incomplete batch."""
    stop = offset + header.size
    if stop > len(buf):
        return False
    return crc32c(memoryview(buf)[offset + _ATTRIBUTES_AT : stop]) == header.crc


def patch_header(
    batch: bytearray | memoryview,
    base_offset: int,
    leader_epoch: int,
    max_timestamp: int | None = None,
) -> None:
    """Set a batch's base offset and leader epoch, in place.

    Args:
        batch: one whole batch, writable.
        base_offset: of its first record.
        leader_epoch: of the partition's leader.
        max_timestamp: the log append time (ms) where the topic keeps it: marks the batch and renews the checksum.
    """
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, 12, leader_epoch)
    if max_timestamp is None:
        return
    (attributes,) = struct.unpack_from(">h", batch, _ATTRIBUTES_AT)
    struct.pack_into(">h", batch, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    struct.pack_into(">q", batch, _MAX_TIMESTAMP_AT, max_timestamp)
    struct.pack_into(">I", batch, _CRC_AT, crc32c(memoryview(batch)[_ATTRIBUTES_AT:]))


def build_batch(batch: Iterable[BatchRecord], **options: Unpack[BatchOptions]) -> bytes:
    """Return a batch of records with its checksum; `BatchOptions` lists the keywords.

    Raises:
        InvalidInputError: no records, or an unknown codec.
    """
    records = list(batch)
    if not records:
        raise InvalidInputError("a batch without records")
    keep = options.get("keep_offsets", False)
    base_offset = records[0].offset if keep else options.get("base_offset", 0)
    base_timestamp = records[0].timestamp
    body = bytearray()
    last_delta, max_timestamp = -1, -1
    for record in records:
        delta = record.offset - base_offset if keep else last_delta + 1
        if delta <= last_delta:
            raise InvalidInputError("the offsets of a batch's records must rise")
        last_delta = delta
        max_timestamp = max(max_timestamp, record.timestamp)
        append_record(body, delta, record.timestamp - base_timestamp, record)
    options["base_offset"] = base_offset
    numbers = (last_delta, base_timestamp, max_timestamp)
    return seal_batch(body, len(records), numbers, options)


def seal_batch(body: Buffer, count: int, numbers: tuple[int, int, int], options: BatchOptions) -> bytes:
    """Compress encoded records and put the header before them.

    Args:
        body: `count` records as `append_record` writes them.
        count: the number of records.
        numbers: last offset delta, base timestamp, max timestamp.
        options: the optional fields; without `base_offset` it is 0.
    """
    name = options.get("compression", "none")
    codec = CODECS.get(name)
    if codec is None:
        raise InvalidInputError(f"compression {name!r}: one of {', '.join(CODECS)}")
    payload = compress(codec, body, options.get("level"))
    attributes = codec
    attributes |= LOG_APPEND_TIME if options.get("timestamp_type", 0) else 0
    attributes |= TRANSACTIONAL if options.get("transactional", False) else 0
    attributes |= CONTROL if options.get("control", False) else 0
    checked = _CHECKED.pack(
        attributes,
        *numbers,
        options.get("producer_id", -1),
        options.get("producer_epoch", -1),
        options.get("base_sequence", -1),
        count,
    )
    length = HEADER_SIZE - _LENGTH_OFFSET + len(payload)
    head = _UNCHECKED.pack(
        options.get("base_offset", 0),
        length,
        options.get("leader_epoch", -1),
        MAGIC,
        crc32c(payload, crc32c(checked)),
    )
    return b"".join((head, checked, payload))


def reseal(header: BatchHeader, body: Buffer, count: int, max_timestamp: int) -> bytes:
    """Return a new batch with these records, and the other header fields of an existing batch.

    Args:
        header: the header of the existing batch.
        body: `count` records, with offsets and timestamps relative to that header.
        count: the number of records.
        max_timestamp: the highest timestamp of the records (ms).
    """
    payload = compress(header.compression, body)
    head = bytearray(
        _HEADER.pack(
            *header._replace(
                batch_length=HEADER_SIZE - _LENGTH_OFFSET + len(payload),
                crc=0,
                max_timestamp=max_timestamp,
                records_count=count,
            )
        )
    )
    struct.pack_into(">I", head, _CRC_AT, crc32c(payload, crc32c(head[_ATTRIBUTES_AT:])))
    return b"".join((head, payload))


def varint(value: int) -> bytes:
    """Return a signed variable-length number: zigzag, seven bits a byte."""
    zigzag = value << 1 if value >= 0 else (-value << 1) - 1
    if zigzag < 128:
        return _VARINTS[zigzag]
    out = bytearray()
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


_VARINTS: Final = [bytes((value,)) for value in range(128)]
_NULL: Final = _VARINTS[1]


def append_record(body: bytearray, offset_delta: int, timestamp_delta: int, record: BatchRecord) -> None:
    """Append one record in its binary form."""
    _, _, key, value, headers = record
    parts: list[Buffer] = [b"\0", varint(timestamp_delta), varint(offset_delta)]
    parts += (_NULL,) if key is None else (varint(len(key)), key)
    parts += (_NULL,) if value is None else (varint(len(value)), value)
    parts.append(varint(len(headers)))
    for name, content in headers:
        raw = name.encode()
        parts += (varint(len(raw)), raw)
        parts += (_NULL,) if content is None else (varint(len(content)), content)
    encoded = b"".join(parts)
    body += varint(len(encoded))
    body += encoded
