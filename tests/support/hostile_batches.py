"""Record batches with a correct checksum that no reader can read: what a hostile or broken producer sends."""

from __future__ import annotations

import struct
from typing import Final

import cramjam
import crc32c

from kohort.wire.batch import varint
from kohort.wire.compression import CODECS, compress

BASE_MS: Final = 1_700_000_000_000
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CRC_FROM: Final = 21


def record(
    delta: int = 0,
    key: bytes | None = b"k",
    value: bytes | None = b"value",
    headers: bytes = b"\0",
    *,
    stamp: bytes = b"\0",
    more: int = 0,
) -> bytes:
    """One record; `headers` are the bytes of count and headers, `more` is added to the record's length."""
    parts = [b"\0", stamp, varint(delta)]
    for content in (key, value):
        parts += [b"\1"] if content is None else [varint(len(content)), content]
    body = b"".join([*parts, headers])
    return varint(len(body) + more) + body


def hostile_batch(
    body: bytes,
    count: int = 1,
    *,
    attributes: int = 0,
    last_delta: int | None = None,
    magic: int = 2,
    max_ms: int = BASE_MS,
) -> bytes:
    """A batch around `body`, with the checksum of what it is."""
    delta = count - 1 if last_delta is None else last_delta
    head = bytearray(
        _HEADER.pack(0, 49 + len(body), -1, magic, 0, attributes, delta, BASE_MS, max_ms, -1, -1, -1, count)
    )
    struct.pack_into(">I", head, 17, crc32c.crc32c(bytes(head[_CRC_FROM:]) + body))
    return bytes(head) + body


def packed(codec: str, body: bytes) -> bytes:
    """The records compressed."""
    return bytes(compress(CODECS[codec], body))


def bomb(codec: str, size: int, *, key: bytes | None = None) -> bytes:
    """A small batch with one record whose value is `size` zero bytes."""
    value = bytes(size)
    body = record(0, key, value)
    return hostile_batch(
        bytes(cramjam.zstd.compress(body)) if codec == "zstd" else packed(codec, body), 1, attributes=CODECS[codec]
    )


_TWO: Final = record(0) + record(1)
_LONG: Final = record(0, value=b"v" * 2_000) + record(1, value=b"w" * 2_000)


def _damaged(codec: str) -> bytes:
    data = bytearray(packed(codec, _LONG))
    middle = len(data) // 2
    data[middle : middle + 8] = bytes(byte ^ 0xA5 for byte in data[middle : middle + 8])
    return bytes(data)


HOSTILE: Final[dict[str, bytes]] = {
    "more records than there are": hostile_batch(_TWO, 3),
    "fewer records than there are": hostile_batch(_TWO, 1),
    "bytes after the last record": hostile_batch(_TWO + b"\0\0\0", 2),
    "more headers than there are": hostile_batch(record(0, headers=varint(3))),
    "a negative number of headers": hostile_batch(record(0, headers=varint(-1))),
    "a header name without bytes": hostile_batch(record(0, headers=varint(1) + varint(-1) + varint(-1))),
    "a header that runs past its record": hostile_batch(record(0, headers=varint(1) + varint(1) + b"h" + varint(90))),
    "a number of eleven bytes": hostile_batch(record(0, stamp=b"\xff" * 10 + b"\x01")),
    "a length of six bytes": hostile_batch(b"\xff\xff\xff\xff\xff\x01" + record(0)),
    "a negative record length": hostile_batch(varint(-5) + record(0)),
    "a record length past the batch": hostile_batch(record(0, more=1_000)),
    "a record length below its contents": hostile_batch(record(0, more=-3)),
    "a key length below -1": hostile_batch(varint(6) + b"\0\0\0" + varint(-2) + b"\1\0"),
    "a value that runs past its record": hostile_batch(varint(6) + b"\0\0\0\1" + varint(100) + b"\0"),
    "an offset delta out of order": hostile_batch(record(0) + record(7)),
    "codec 7": hostile_batch(_TWO, 2, attributes=7),
    "codec 5": hostile_batch(_TWO, 2, attributes=5),
    "damaged gzip": hostile_batch(_damaged("gzip"), 2, attributes=1),
    "no gzip at all": hostile_batch(b"no gzip at all", 2, attributes=1),
    "cut gzip": hostile_batch(packed("gzip", _LONG)[:-12], 2, attributes=1),
    "damaged snappy": hostile_batch(_damaged("snappy"), 2, attributes=2),
    "snappy that claims 2 GiB": hostile_batch(b"\xff\xff\xff\xff\x07" + b"\0" * 20, 2, attributes=2),
    "damaged lz4": hostile_batch(packed("lz4", _LONG)[:20] + b"\xff" * 9, 2, attributes=3),
    "damaged zstd": hostile_batch(_damaged("zstd"), 2, attributes=4),
    "cut zstd": hostile_batch(packed("zstd", _LONG)[:-5], 2, attributes=4),
    "compressed, with fewer records": hostile_batch(packed("zstd", _TWO), 3, attributes=4),
    "compressed, with more records": hostile_batch(packed("lz4", _TWO), 1, attributes=3),
    "compressed, with an offset delta out of order": hostile_batch(
        packed("zstd", record(0) + record(7)), 2, attributes=4
    ),
    "compressed, with a header count": hostile_batch(packed("gzip", record(0, headers=varint(3))), 1, attributes=1),
    "compressed, with bytes after the last": hostile_batch(packed("snappy", _TWO + b"xx"), 2, attributes=2),
    "no records": hostile_batch(b"", 0, last_delta=0),
    "a record count below 0": hostile_batch(_TWO, -1, last_delta=1),
    "a last offset delta that is not the count's": hostile_batch(_TWO, 2, last_delta=9),
    "a last offset delta below 0": hostile_batch(_TWO, 2, last_delta=-1),
    "a control batch": hostile_batch(_TWO, 2, attributes=0x20),
    "log append time": hostile_batch(_TWO, 2, attributes=0x08),
    "magic 0": hostile_batch(_TWO, 2, magic=0),
    "magic 1": hostile_batch(_TWO, 2, magic=1),
    "magic 3": hostile_batch(_TWO, 2, magic=3),
    "a maximum timestamp that no record has": hostile_batch(_TWO, 2, max_ms=BASE_MS + 1_000),
    "a maximum timestamp below the records'": hostile_batch(_TWO, 2, max_ms=BASE_MS - 1_000),
    "an unknown attribute": hostile_batch(_TWO, 2, attributes=0x4000),
    "a delete horizon": hostile_batch(_TWO, 2, attributes=0x40),
    "an empty key length run of records": hostile_batch(b"\0" * 2, 2),
    "linked lz4 blocks": hostile_batch(bytes.fromhex("04224d184040c0") + packed("lz4", _TWO)[7:], 2, attributes=3),
    "a wrong lz4 descriptor checksum": hostile_batch(
        packed("lz4", _TWO)[:6] + b"\0" + packed("lz4", _TWO)[7:], 2, attributes=3
    ),
    "bytes after gzip": hostile_batch(packed("gzip", _TWO) + b"zzz", 2, attributes=1),
    "bytes after zstd": hostile_batch(packed("zstd", _TWO) + b"zzz", 2, attributes=4),
    "bytes after lz4": hostile_batch(packed("lz4", _TWO) + b"zzz", 2, attributes=3),
}
"""Batches by what is wrong with them."""
