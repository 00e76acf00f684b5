"""Builds record batches for the tests, honest ones and others, independently of what the package writes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

from kohort.wire.compression import CODECS, compress


def varint(number: int) -> bytes:
    value = (number << 1) ^ (number >> 63)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def nullable(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


@dataclass
class Made:
    """One record to be: offset and time relative to the batch's."""

    delta: int
    value: bytes | None = b""
    key: bytes | None = None
    stamp: int = 0
    headers: Sequence[tuple[bytes, bytes | None]] = ()

    def encode(self) -> bytes:
        body = b"\0" + varint(self.stamp) + varint(self.delta) + nullable(self.key) + nullable(self.value)
        body += varint(len(self.headers))
        for name, content in self.headers:
            body += varint(len(name)) + name + nullable(content)
        return varint(len(body)) + body


@dataclass
class BatchMade:
    """One batch to be."""

    records: list[Made]
    base_offset: int = 0
    last_delta: int | None = None
    codec: str = "none"
    base_timestamp: int = 1_700_000_000_000
    max_timestamp: int = 1_700_000_009_999
    append_time: bool = False
    producer_id: int = -1
    transactional: bool = False
    control: bool = False
    leader_epoch: int = 0
    extra: dict[str, int] = field(default_factory=dict)

    @property
    def next_offset(self) -> int:
        return self.base_offset + self._last_delta() + 1

    def _last_delta(self) -> int:
        if self.last_delta is not None:
            return self.last_delta
        return self.records[-1].delta if self.records else 0

    def encode(self) -> bytes:
        attributes = CODECS[self.codec] | self.append_time << 3 | self.transactional << 4 | self.control << 5
        body = bytes(compress(CODECS[self.codec], b"".join(record.encode() for record in self.records)))
        checked = (
            struct.pack(
                ">hiqqqhii",
                attributes,
                self._last_delta(),
                self.base_timestamp,
                self.max_timestamp,
                self.producer_id,
                0,
                -1,
                self.extra.get("count", len(self.records)),
            )
            + body
        )
        head = struct.pack(">qiibI", self.base_offset, len(checked) + 9, self.leader_epoch, 2, crc32c(checked))
        return head + checked


def marker(base_offset: int, producer_id: int, *, commit: bool) -> BatchMade:
    """The control batch that ends a transaction."""
    key = struct.pack(">hh", 0, 1 if commit else 0)
    record = Made(0, struct.pack(">hi", 0, 0), key)
    return BatchMade([record], base_offset, producer_id=producer_id, transactional=True, control=True)
