"""The records of one batch, read in one pass.

`read_pairs` yields only keys, values and offsets, for readers of millions of records; `read_records` returns whole
records. Neither checks the checksum (`batch.crc_ok` does). Markers of control batches are returned like records.

Source: Kafka documentation, "Record".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

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
from kohort.wire.schema import Buffer

Pair: TypeAlias = tuple[bytes | None, bytes | None, int]
_NUMBER_BYTES_MAX = 10
"""The longest variable-length number, of 64 bits."""
_HEADER_BYTES_MIN = 2
_RECORD_BYTES_MIN = 7


def read_pairs(batch: Buffer, header: BatchHeader, limit: int = RECORDS_BYTES_MAX) -> Iterator[Pair]:
    """Yield key, value and offset of each record of a whole batch.

    Raises:
        TooLargeError: a compressed batch decompresses to more than `limit` bytes.
        CorruptDataError: the records are not what the header says.
    """
    return ((key, value, offset) for key, value, offset, _, _, _ in _walk(_body(batch, header, limit), header))


def filter_records(
    batch: bytes,
    header: BatchHeader,
    keeps: Callable[[bytes | None, bytes | None, int], bool],
    limit: int = RECORDS_BYTES_MAX,
) -> bytes:
    """Return a batch with only some of its records, their bytes unchanged; empty if none remain.

    Offsets, sequences and other header fields stay, except for the maximum timestamp.

    Args:
        batch: one whole batch.
        header: its header.
        keeps: decides about key, value and offset of each record.
        limit: most bytes that compressed records may decompress to.

    Raises:
        TooLargeError: they decompress to more.
        CorruptDataError: the records are not what the header says.
    """
    body = _body(batch, header, limit)
    kept = bytearray()
    at = count = 0
    latest = -1
    for key, value, offset, timestamp_at, _, stop in _walk(body, header):
        if keeps(key, value, offset):
            kept += memoryview(body)[at:stop]
            count += 1
            latest = max(latest, header.base_timestamp + _signed(_number(body, timestamp_at)[0]))
        at = stop
    if count == header.records_count:
        return batch
    return reseal(header, kept, count, header.max_timestamp if header.is_log_append_time else latest) if count else b""


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
    except (IndexError, UnicodeDecodeError) as error:
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
        headers.append((name.decode(), content))
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
