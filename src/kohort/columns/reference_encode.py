"""The encoder in plain Python: the reference for the compiled one, and its replacement if that was not built."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from kohort.columns.shapes import BytesLike, HeadersLike
from kohort.errors import InvalidInputError
from kohort.wire.batch import HEADER_SIZE, BatchRecord, append_record, seal_batch, varint
from kohort.wire.compression import CODECS

_NAMES = {number: name for name, number in CODECS.items()}
_MIXER = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFF_FFFF
RECORD_BYTES_MAX = 2**31 - 1


def encode_headers(headers: HeadersLike) -> bytes:
    """Encode a record's headers as in Kafka's record format: their number, then names and values, with varint sizes."""
    parts: list[BytesLike] = [varint(len(headers))]
    for name, content in headers:
        raw = name.encode()
        parts += (varint(len(raw)), raw)
        parts += (varint(-1),) if content is None else (varint(len(content)), content)
    return b"".join(parts)


class Chunk:
    """A record batch that is being filled, until `seal` encodes it.

    Attributes:
        count: The number of records.
        size: The batch's bytes with its header, before compression.
        base_timestamp: The first record's timestamp, in milliseconds.
        max_timestamp: The highest timestamp, in milliseconds.
    """

    def __init__(self, limit: int) -> None:
        self.count = 0
        self.size = HEADER_SIZE
        self.base_timestamp = 0
        self.max_timestamp = 0
        self._limit = limit
        self._body = bytearray()

    def append(self, timestamp: int, key: BytesLike | None, value: BytesLike | None, headers: HeadersLike) -> bool:
        """Append a record; False when the batch is full. A first record is taken whatever its size."""
        base = self.base_timestamp if self.count else timestamp
        record = bytearray()
        append_record(record, self.count, timestamp - base, BatchRecord(0, timestamp, key, value, headers))
        size = self.size + len(record)
        if self.count and size > self._limit:
            return False
        if size > RECORD_BYTES_MAX:
            raise InvalidInputError("a record of more than 2 GiB")
        self.max_timestamp = max(self.max_timestamp, timestamp) if self.count else timestamp
        self.base_timestamp = base
        self._body += record
        self.size = size
        self.count += 1
        return True

    def seal(
        self, codec: int, level: int | None, producer_id: int, producer_epoch: int, sequence: int, transactional: bool
    ) -> memoryview:
        """Return the finished batch, writable. Nothing can be appended any more."""
        if self.count == 0:
            raise InvalidInputError("a batch without records")
        numbers = (self.count - 1, self.base_timestamp, self.max_timestamp)
        sealed = seal_batch(
            self._body,
            self.count,
            numbers,
            {
                "compression": _NAMES[codec],
                "producer_id": producer_id,
                "producer_epoch": producer_epoch,
                "base_sequence": sequence,
                "transactional": transactional,
                **({} if level is None else {"level": level}),
            },
        )
        return memoryview(bytearray(sealed))


def murmur2(data: BytesLike) -> int:
    """Return Kafka's hash of a key, unsigned."""
    size = len(data)
    state = (_SEED ^ size) & _MASK
    whole = size - size % 4
    for (word,) in struct.iter_unpack("<I", bytes(data[:whole])):
        value = word * _MIXER & _MASK
        value ^= value >> 24
        state = (state * _MIXER & _MASK) ^ (value * _MIXER & _MASK)
    rest = bytes(data[whole:])
    if rest:
        state = (state ^ int.from_bytes(rest, "little")) * _MIXER & _MASK
    state ^= state >> 13
    state = state * _MIXER & _MASK
    return state ^ state >> 15


def encode_rows(
    rows: dict[str, list[Any]], count: int, pick_sticky: Callable[[], int], now: int, limit: int
) -> list[tuple[int, Chunk]]:
    """Encode rows to record batches by partition: the plain-Python twin of the compiled `encode_columns`.

    Args:
        rows: Lists "key", "value", "headers", "timestamp" (ms) and "partition"; a missing list means null or the
            default.
        count: Partitions of the topic.
        pick_sticky: Returns the partition of rows without a key; called again after each full batch of that one.
        now: The timestamp, in ms, of rows without one.
        limit: Bytes of a batch.
    """
    found: list[tuple[int, Chunk]] = []
    chunks = [Chunk(limit) for _ in range(count)]
    sticky = pick_sticky()
    length = len(next(iter(rows.values()))) if rows else 0
    for row in range(length):
        at = {name: column[row] for name, column in rows.items()}
        key = at.get("key")
        placed = True
        while placed:
            if "partition" in at:
                partition = at["partition"]
            else:
                partition = sticky if key is None else (murmur2(key) & 0x7FFFFFFF) % count
            if partition is None or not 0 <= partition < count:
                raise InvalidInputError(f"row {row}: no such partition; the topic has {count}")
            stamp = at.get("timestamp", now)
            placed = not chunks[partition].append(stamp, key, at.get("value"), at.get("headers") or ())
            if placed:
                found.append((partition, chunks[partition]))
                chunks[partition] = Chunk(limit)
                if partition == sticky:
                    sticky = pick_sticky()
    found += [(partition, chunk) for partition, chunk in enumerate(chunks) if chunk.count]
    return found
