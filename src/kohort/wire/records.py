"""The records of one batch, read in one pass.

`iter_key_values` yields only keys, values and offsets, for readers of millions of records; `read_records` returns whole
records. `collect_keys` and `keep_latest` are the two passes of compaction. None of them checks the checksum
(`batch.has_valid_crc` does). Markers of control batches are returned like records.

Compaction walks in the kernel where that was built, 15 times as fast. Commits of offsets fill the coordinator's topic
with records that compaction reads twice, on the thread that serves all clients.

Source: Kafka documentation, "Record".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from kohort.wire.batch import (
    HEADER_SIZE,
    RECORDS_BYTES_MAX,
    BatchHeader,
    BatchRecord,
    CorruptBatchError,
    parse_header,
    reseal,
)
from kohort.wire.compression import decompress
from kohort.wire.record_walk import compiled
from kohort.wire.schema import Buffer

Pair: TypeAlias = tuple[bytes | None, bytes | None, int]
Kept: TypeAlias = tuple[bytearray, int, int]
"""Records of a batch that stay, their number, and their highest timestamp."""
COMPACTION: Any = compiled
"""The kernel with compaction's walks; None where it was not built."""
_NUMBER_BYTES_MAX = 10
"""The longest variable-length number, of 64 bits."""
_HEADER_BYTES_MIN = 2
_RECORD_BYTES_MIN = 7


def iter_key_values(batch: Buffer, header: BatchHeader, limit: int = RECORDS_BYTES_MAX) -> Iterator[Pair]:
    """Yield key, value and offset of each record of a whole batch.

    Raises:
        TooLargeError: a compressed batch decompresses to more than `limit` bytes.
        CorruptDataError: the records are not what the header says.
    """
    return ((key, value, offset) for key, value, offset, _, _, _ in _walk(_body(batch, header, limit), header))


def collect_keys(batch: Buffer, header: BatchHeader, last: dict[bytes, int], limit: int = RECORDS_BYTES_MAX) -> None:
    """Store the offset of the last record of each key in `last`.

    Raises:
        TooLargeError: the records decompress to more than `limit` bytes.
        CorruptDataError: they are not what the header says.
    """
    body = _body(batch, header, limit)
    if COMPACTION is None or not COMPACTION.collect_keys(body, header, last):
        collect_keys_in_python(body, header, last)


def collect_keys_in_python(body: bytes, header: BatchHeader, last: dict[bytes, int]) -> None:
    """Do the work of `collect_keys` in Python, for records that are already decompressed."""
    last.update((key, offset) for key, _, offset, _, _, _ in _walk(body, header) if key is not None)


def keep_latest(
    batch: bytes,
    header: BatchHeader,
    last: dict[bytes, int],
    drop_tombstones: bool,
    limit: int = RECORDS_BYTES_MAX,
) -> bytes:
    """Return a batch with only the records that compaction keeps, their bytes unchanged; empty if none remain.

    Offsets, sequences and other header fields stay, except for the maximum timestamp.

    Args:
        batch: one whole batch.
        header: its header.
        last: by key, the offset of the last record. An earlier record is left out, as is one without a key.
        drop_tombstones: leave out records without a value too.
        limit: most bytes that compressed records may decompress to.

    Raises:
        TooLargeError: they decompress to more.
        CorruptDataError: the records are not what the header says.
    """
    body = _body(batch, header, limit)
    found: Kept | None = None
    if COMPACTION is not None:
        found = COMPACTION.keep_latest(body, header, last, drop_tombstones)
    kept, count, latest = found or keep_latest_in_python(body, header, last, drop_tombstones)
    if count == header.records_count:
        return batch
    return reseal(header, kept, count, header.max_timestamp if header.is_log_append_time else latest) if count else b""


def keep_latest_in_python(body: bytes, header: BatchHeader, last: dict[bytes, int], drop_tombstones: bool) -> Kept:
    """Return those of a batch's decompressed records that compaction keeps, with their number and highest timestamp."""
    kept = bytearray()
    at = count = 0
    latest = -1
    for key, value, offset, timestamp_at, _, stop in _walk(body, header):
        if key is not None and last.get(key, -1) <= offset and not (drop_tombstones and value is None):
            kept += memoryview(body)[at:stop]
            count += 1
            latest = max(latest, header.base_timestamp + _signed(_number(body, timestamp_at)[0]))
        at = stop
    return kept, count, latest


def read_records(batch: Buffer, limit: int = RECORDS_BYTES_MAX) -> list[BatchRecord]:
    """Return every record of one batch, keys and values as bytes.

    Args:
        batch: one batch; bytes after it are ignored.
        limit: most bytes that the records may decompress to.

    Raises:
        CorruptDataError: the batch is cut or damaged, or decompresses to more than `limit`.
    """
    header = parse_header(batch)
    body = _body(batch, header, limit)
    stop, stamped, base = 0, header.is_log_append_time, header.base_timestamp
    records = []
    try:
        for key, value, offset, timestamp_at, headers_at, stop in _walk(body, header):  # looked at below
            timestamp = header.max_timestamp if stamped else base + _signed(_number(body, timestamp_at)[0])
            records.append(BatchRecord(offset, timestamp, key, value, _headers(body, headers_at, stop)))
    except IndexError as error:
        raise CorruptBatchError(f"a record is cut or damaged: {error}") from error
    if stop != len(body):
        raise CorruptBatchError(f"{len(body) - stop} bytes after the last record")
    return records


def _body(batch: Buffer, header: BatchHeader, limit: int = RECORDS_BYTES_MAX) -> bytes:
    """Return the decompressed records.

    Raises:
        TooLargeError: they decompress to more than `limit` bytes.
        CorruptDataError: they do not decompress, or can't be as many as the header says.
    """
    if header.size > len(batch):
        raise CorruptBatchError(f"a batch of {header.size} bytes, {len(batch)} are there")
    body: Buffer = memoryview(batch)[HEADER_SIZE : header.size]
    if header.compression:
        body = decompress(header.compression, body, limit)
    count = header.records_count
    if count < 0 or count * _RECORD_BYTES_MIN > len(body):
        raise CorruptBatchError(f"{count} records in {len(body)} bytes")
    return bytes(body)


def _walk(body: bytes, header: BatchHeader) -> Iterator[tuple[bytes | None, bytes | None, int, int, int, int]]:
    """Yield key, value, offset, and the positions of timestamp, headers and end, of each record.

    Numbers of one byte, which nearly all are, are read in line.
    """
    base, at, end = header.base_offset, 0, len(body)
    try:
        for _ in range(header.records_count):
            size = body[at]
            at += 1
            if size > 127:
                size, at = _number(body, at - 1)
            stop = at + (size >> 1)
            at += 1
            timestamp_at = at
            while body[at] > 127:
                at += 1
            at += 1
            delta = body[at]
            at += 1
            if delta > 127:
                delta, at = _number(body, at - 1)
            length = body[at]
            at += 1
            if length > 127:
                length, at = _number(body, at - 1)
            key = None
            if not length & 1:
                key = body[at : at + (length >> 1)]
                at += length >> 1
            elif length != 1:
                raise CorruptBatchError(f"a key of length {_signed(length)}")
            length = body[at]
            at += 1
            if length > 127:
                length, at = _number(body, at - 1)
            value = None
            if not length & 1:
                value = body[at : at + (length >> 1)]
                at += length >> 1
            elif length != 1:
                raise CorruptBatchError(f"a value of length {_signed(length)}")
            if at >= stop or stop > end or size & 1 or delta & 1:
                raise CorruptBatchError(f"a record reaches past its length in the batch at offset {base}")
            yield key, value, base + (delta >> 1), timestamp_at, at, stop
            at = stop
    except IndexError as error:
        raise CorruptBatchError(f"the batch at offset {base} has fewer records than it says") from error


def decode_header_name(raw: bytes) -> str:
    """Decode a record header's name; if it is not UTF-8, every byte above 0x7F becomes a question mark."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return bytes(byte if byte < 0x80 else 0x3F for byte in raw).decode()


def _headers(body: bytes, at: int, stop: int) -> list[tuple[str, bytes | None]]:
    raw, at = _number(body, at)
    count = _signed(raw)
    if count < 0 or count * _HEADER_BYTES_MIN > stop - at:
        raise CorruptBatchError(f"{count} headers in {stop - at} bytes")
    headers = []
    for _ in range(count):
        name, at = _blob(body, at, stop)
        if name is None:
            raise CorruptBatchError("a header without a name")
        content, at = _blob(body, at, stop)
        headers.append((decode_header_name(name), content))
    if at != stop:
        raise CorruptBatchError("a record's length does not match its contents")
    return headers


def _blob(body: bytes, at: int, stop: int) -> tuple[bytes | None, int]:
    raw, at = _number(body, at)
    length = _signed(raw)
    if length == -1:
        return None, at
    if length < 0 or at + length > stop:
        raise CorruptBatchError(f"a header of {length} bytes where {stop - at} are left")
    return body[at : at + length], at + length


def _number(body: bytes, at: int) -> tuple[int, int]:
    """Return a variable-length number, still in zigzag, and the position after it."""
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift >= 7 * _NUMBER_BYTES_MAX:
            raise CorruptBatchError("a variable-length number is too long")


def _signed(zigzag: int) -> int:
    return (zigzag >> 1) ^ -(zigzag & 1)
