"""Keys and values of a batch's records, nothing else: what the journal and compaction need of millions of records."""

from __future__ import annotations

from collections.abc import Iterator

from kohort.errors import CorruptDataError
from kohort.wire.batch import HEADER_SIZE, RECORDS_BYTES_MAX, BatchHeader
from kohort.wire.compression import decompress
from kohort.wire.schema import Buffer

Pair = tuple[bytes | None, bytes | None, int]


def read_pairs(batch: Buffer, header: BatchHeader) -> Iterator[Pair]:
    """Key, value and offset of each record of a whole batch whose CRC is right.

    Raises:
        CorruptDataError: the records are not what the header says.
    """
    view: Buffer = memoryview(batch)[HEADER_SIZE : header.size]
    if header.compression:
        view = decompress(header.compression, view, RECORDS_BYTES_MAX)
    body = bytes(view)
    base, at, end = header.base_offset, 0, len(body)
    try:
        for _ in range(header.records_count):
            size = body[at]
            at += 1
            if size > 127:
                size, at = _varint(body, at - 1)
            stop = at + (size >> 1)
            at += 1
            while body[at] > 127:
                at += 1
            at += 1
            delta = body[at]
            at += 1
            if delta > 127:
                delta, at = _varint(body, at - 1)
            length = body[at]
            at += 1
            if length > 127:
                length, at = _varint(body, at - 1)
            key = None
            if not length & 1:
                key = body[at : at + (length >> 1)]
                at += length >> 1
            length = body[at]
            at += 1
            if length > 127:
                length, at = _varint(body, at - 1)
            value = None
            if not length & 1:
                value = body[at : at + (length >> 1)]
                at += length >> 1
            if at >= stop or stop > end:
                raise CorruptDataError(f"a record reaches past its length in the batch at offset {base}")
            at = stop
            yield key, value, base + (delta >> 1)
    except IndexError as error:
        raise CorruptDataError(f"the batch at offset {base} has fewer records than it says") from error


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A number still in zigzag, and where it ends."""
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
