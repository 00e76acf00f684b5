"""The codecs of record batches, with a limit on the decompressed size.

Decompression goes into buffers that grow up to a limit. A batch of a megabyte can claim to hold gigabytes, and the
reader must find that out before its memory is exhausted. The codecs release the interpreter lock, and large buffers
take no memory before they are written to, so that other threads go on.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

import cramjam

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.wire.schema import Buffer

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Names of the codecs (`compression.type`) and their numbers in a batch's attributes."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_LZ4_BLOCK = 64 * 1024
_LZ4_HEADER = bytes.fromhex("04224d18604082")
"""Frame with independent blocks of 64 KiB and no checksums: Kafka's reader takes no linked blocks."""
_LZ4_RAW = 0x8000_0000
_LZ4_SIZES = {0x40: 1 << 16, 0x50: 1 << 18, 0x60: 1 << 20, 0x70: 1 << 22}
"""Most bytes of a block by the frame's descriptor byte."""
_LZ4_INDEPENDENT = 0x20
_LZ4_CONTENT_SIZE = 0x08
_LZ4_DICTIONARY = 0x01
_UINT32 = 0xFFFF_FFFF
_GUESS_RATIO = 6
_GUESS_MIN = 4096
_MAPPED_MIN = 1 << 20
"""Larger buffers are mapped, and may as well be as large as the limit."""
_SNAPPY_RATIO_MAX = 32
"""Three bytes of a block stand for at most 64: a block that claims a larger size gets no memory."""


class CodecError(CorruptDataError):
    """The bytes do not decompress."""


class TooLargeError(CodecError):
    """The bytes decompress to more than the limit."""


class UnknownCodecError(CodecError):
    """The batch names an unknown codec."""


def decompress(codec: int, data: Buffer, limit: int, scratch: bytearray | None = None) -> memoryview:
    """Return the decompressed records of a batch.

    Args:
        codec: The number in the batch's attributes.
        data: The bytes after the batch header.
        limit: The maximum decompressed size in bytes.
        scratch: A buffer to reuse, because fresh pages cost more than the data written to them. The result may be a
            view of it, valid until the next call with this buffer.

    Raises:
        TooLargeError: the data decompresses to more than `limit` bytes.
        CodecError: the codec is unknown, or the data is damaged.
    """
    if codec == 1:
        return _grow(cramjam.gzip.decompress_into, data, limit, scratch)
    if codec == 2:
        return _snappy(memoryview(data), limit, scratch)
    if codec == 3:
        return _lz4(memoryview(data), limit, scratch)
    if codec == 4:
        return _grow(cramjam.zstd.decompress_into, data, limit, scratch)
    raise UnknownCodecError(f"codec {codec} is unknown")


def refuse_unreadable_for_kafka(codec: int, data: Buffer) -> None:
    """Refuse compressed bytes that `decompress` reads, but Kafka's own clients do not.

    Source: Apache Kafka's Lz4BlockInputStream: version 1, independent blocks, no dictionary, and the descriptor's
    checksum.

    Raises:
        CodecError: the bytes are such a frame.
    """
    if codec == 3:
        head = bytes(memoryview(data)[:15])
        _check_lz4_head(head if len(head) > 4 and head[4] & _LZ4_CONTENT_SIZE else head[:7])


@lru_cache(maxsize=64)
def _check_lz4_head(head: bytes) -> None:
    if len(head) < 7 or head[:4] != _LZ4_HEADER[:4]:
        raise CodecError("lz4: no frame")
    flags = head[4]
    end = 14 if flags & _LZ4_CONTENT_SIZE else 6
    if flags >> 6 != 1 or not flags & _LZ4_INDEPENDENT or flags & _LZ4_DICTIONARY:
        raise CodecError("lz4: a frame with linked blocks, a dictionary or another version")
    if len(head) <= end or head[end] != _short_xxh32(head[4:end]) >> 8 & 0xFF:
        raise CodecError("lz4: the frame's descriptor does not match its checksum")


def _short_xxh32(data: bytes) -> int:
    """Return the XXH32 hash (seed 0) of fewer than 16 bytes. Source: the xxHash specification."""
    value, at = 374_761_393 + len(data), 0
    while at + 4 <= len(data):
        value = value + int.from_bytes(data[at : at + 4], "little") * 3_266_489_917 & _UINT32
        value = (value << 17 | value >> 15) * 668_265_263 & _UINT32
        at += 4
    for byte in data[at:]:
        value = value + byte * 374_761_393 & _UINT32
        value = (value << 11 | value >> 21) * 2_654_435_761 & _UINT32
    value = (value ^ value >> 15) * 2_246_822_519 & _UINT32
    value = (value ^ value >> 13) * 3_266_489_917 & _UINT32
    return value ^ value >> 16


def _room(size: int) -> bytearray | mmap.mmap:
    """Return a buffer of this size; a large one takes memory only as it is written."""
    return bytearray(size) if size < _MAPPED_MIN else mmap.mmap(-1, size)


def _room_in(scratch: bytearray | None, size: int) -> memoryview:
    """Return a buffer of this size: a part of `scratch` if it is large enough, else new memory."""
    return memoryview(_room(size)) if scratch is None or size > len(scratch) else memoryview(scratch)[:size]


def _grow(decompress_into, data: Buffer, limit: int, scratch: bytearray | None) -> memoryview:  # type: ignore[no-untyped-def]
    guess = max(_GUESS_MIN, len(data) * _GUESS_RATIO)
    size = min(limit, guess if scratch is None or guess > len(scratch) else len(scratch))
    while True:
        out = _room_in(scratch, size)
        try:
            return out[: decompress_into(data, out)]
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):  # by text: cramjam has one class
                raise CodecError(str(error)) from None
            if size >= limit:
                raise TooLargeError(f"decompresses to more than {limit} bytes") from None
            size = limit if size >= _MAPPED_MIN else min(limit, size * 4)


def _lz4(data: memoryview, limit: int, scratch: bytearray | None) -> memoryview:
    """Decompress a frame of one block, the form of small batches.

    Frames of several blocks go to cramjam's frame decoder, whose set-up costs thirty times as much as one block.
    """
    block = _lz4_block(data)
    if block is None:
        return _grow(cramjam.lz4.decompress_into, data, limit, scratch)
    raw, start, size, block_max = block
    if raw:
        if size > limit:
            raise TooLargeError(f"decompresses to more than {limit} bytes")
        return data[start : start + size]
    capacity = min(limit, block_max, max(_GUESS_MIN, size * _GUESS_RATIO))
    while True:
        out = _room_in(scratch, capacity)
        try:
            written = cramjam.lz4.decompress_block_into(data[start : start + size], out, output_len=capacity)
        except cramjam.DecompressionError as error:
            if capacity >= min(limit, block_max):
                if capacity < block_max:
                    raise TooLargeError(f"decompresses to more than {limit} bytes") from None
                raise CodecError(str(error)) from None
            capacity = min(limit, block_max, capacity * 8)
        else:
            return out[:written]


def _lz4_block(data: memoryview) -> tuple[bool, int, int, int] | None:
    """Return the block of a frame that has exactly one, or None for other frames.

    The tuple is (stored uncompressed, start, size, most decompressed bytes).
    """
    if len(data) < 15 or data[:4] != _LZ4_HEADER[:4]:
        return None
    flags, sizes = data[4], data[5]
    block_max = _LZ4_SIZES.get(sizes)
    if flags >> 6 != 1 or flags & 0b11 or block_max is None:
        return None
    start = 11 + (8 if flags & 0b1000 else 0)
    if len(data) < start:
        return None
    (word,) = struct.unpack_from("<I", data, start - 4)
    size = word & ~_LZ4_RAW
    end = start + size + (4 if flags & 0b1_0000 else 0)
    rest = 4 + (4 if flags & 0b100 else 0)
    if not 0 < size <= block_max or len(data) != end + rest or bytes(data[end : end + 4]) != bytes(4):
        return None
    return bool(word & _LZ4_RAW), start, size, block_max


def _snappy(data: memoryview, limit: int, scratch: bytearray | None) -> memoryview:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        out = _room_in(scratch, _snappy_length(data, limit))
        return out[: _snappy_into(data, out)]
    total = sum(size for _, size in _xerial_blocks(data, limit))
    joined = _room_in(scratch, total)
    start = 0
    for block, size in _xerial_blocks(data, limit):
        if _snappy_into(block, joined[start : start + size]) != size:
            raise CodecError("snappy: a block is shorter than it states")
        start += size
    return joined


def _xerial_blocks(data: memoryview, limit: int) -> Iterator[tuple[memoryview, int]]:
    """Yield the blocks and the sizes that they state. A list of them can take fifty times the memory of the data."""
    at = len(_XERIAL_HEADER)
    while at < len(data):
        if at + 4 > len(data):
            raise CodecError("snappy: a block's length is cut")
        (length,) = struct.unpack_from(">i", data, at)
        at += 4
        if length < 0 or at + length > len(data):
            raise CodecError("snappy: a block runs past the batch")
        block = data[at : at + length]
        size = _snappy_length(block, limit)
        yield block, size
        limit -= size
        at += length


def _snappy_length(block: memoryview, limit: int) -> int:
    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise CodecError(str(error)) from None
    if size > len(block) * _SNAPPY_RATIO_MAX:
        raise CodecError(f"snappy: {len(block)} bytes can't hold the {size} that they state")
    if size > limit:
        raise TooLargeError(f"decompresses to more than {limit} bytes")
    return size


def _snappy_into(block: memoryview, out: memoryview) -> int:
    if not len(out):
        return 0
    try:
        written: int = cramjam.snappy.decompress_raw_into(block, out)
    except cramjam.DecompressionError as error:
        raise CodecError(str(error)) from None
    return written


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """Return the records compressed in the form that Kafka's own reader expects.

    Args:
        codec: The number in the batch's attributes, 0 to 4.
        data: The records.
        level: The codec's own level; None is its default. Snappy has none.
    """
    if codec == 0:
        return data
    if codec == 1:
        return memoryview(cramjam.gzip.compress(data, level=level))
    if codec == 2:
        return _compress_snappy(memoryview(data))
    if codec == 3:
        return _compress_lz4(memoryview(data), level)
    if codec == 4:
        return memoryview(cramjam.zstd.compress(data, level=3 if level is None else level))
    raise InvalidInputError(f"codec {codec} is unknown")


def _compress_snappy(data: memoryview) -> bytes:
    parts: list[Buffer] = [_XERIAL_HEADER]
    for at in range(0, len(data), _XERIAL_BLOCK):
        block = memoryview(cramjam.snappy.compress_raw(data[at : at + _XERIAL_BLOCK]))
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _compress_lz4(data: memoryview, level: int | None) -> bytes:
    mode: Literal["high_compression"] | None = None if level is None else "high_compression"
    parts: list[Buffer] = [_LZ4_HEADER]
    for at in range(0, len(data), _LZ4_BLOCK):
        raw = data[at : at + _LZ4_BLOCK]
        block = memoryview(cramjam.lz4.compress_block(raw, store_size=False, mode=mode, compression=level))
        if len(block) < len(raw):
            parts += (struct.pack("<I", len(block)), block)
        else:
            parts += (struct.pack("<I", len(raw) | _LZ4_RAW), raw)
    parts.append(b"\0\0\0\0")
    return b"".join(parts)
