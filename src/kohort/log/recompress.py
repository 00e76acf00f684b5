"""Batches compressed anew, as a topic's `compression.type` wants them. Pure: any thread may call it."""

from __future__ import annotations

import struct

import crc32c

from kohort.errors import CorruptDataError
from kohort.log.config import COMPRESSIONS, LogConfig
from kohort.log.filesystem import ReadBuffer
from kohort.log.validator import Intake
from kohort.wire.batch import HEADER_SIZE, RECORDS_BYTES_MAX, parse_header
from kohort.wire.compression import compress, decompress

_LENGTH_AT, _LENGTH_OVERHEAD = 8, 12
_CRC_AT, _CRC_FROM = 17, 21
_CODEC_MASK = 7
_LZ4_DEFAULT = 9
"""Kafka's default level stands for the fast compressor, as no level does here."""


def compression_of(config: LogConfig) -> tuple[int, int | None]:
    """The codec of `compression.type`, which must name one, and its level; None is the codec's own."""
    codec = config.compression_type
    levels = {
        "gzip": None if config.compression_gzip_level < 0 else config.compression_gzip_level,
        "lz4": None if config.compression_lz4_level == _LZ4_DEFAULT else config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    return COMPRESSIONS[codec], levels.get(codec)


def prepared(name: str, batches: ReadBuffer, config: LogConfig, now_ms: int) -> bytes:
    """Validate the batches that a producer sent, and return them in the codec that the topic wants.

    Raises:
        KafkaError: any of it is not acceptable; then none of it is.
    """
    Intake(name, config).admit(batches, now_ms)
    return recompress(batches, config)


def is_as_wanted(batches: ReadBuffer, config: LogConfig) -> bool:
    """Whether nothing has to be compressed anew; what is no batch is found to be none where it is appended."""
    try:
        first = parse_header(batches)
    except CorruptDataError:
        return True
    return first.size >= len(batches) and first.compression == COMPRESSIONS[config.compression_type]


def recompress(batches: ReadBuffer, config: LogConfig) -> bytes:
    """Compress each batch that comes in another codec anew; all else of it stays, offsets and timestamps too.

    Args:
        batches: whole batches, back to back, that match their checksums.
        config: the topic's.

    Raises:
        CorruptDataError: a batch does not decompress, or to more than a reader would take.
    """
    codec, level = compression_of(config)
    view, parts, at = memoryview(batches), [], 0
    while at < len(view):
        header = parse_header(view, at)
        batch = view[at : at + header.size]
        at += header.size
        parts.append(bytes(batch) if header.compression == codec else _in_codec(batch, codec, level))
    return b"".join(parts)


def _in_codec(batch: memoryview, codec: int, level: int | None) -> bytearray:
    header = parse_header(batch)
    body: ReadBuffer = batch[HEADER_SIZE:]
    if header.compression:
        body = decompress(header.compression, body, RECORDS_BYTES_MAX)
    made = bytearray(batch[:HEADER_SIZE])
    made += compress(codec, body, level)
    struct.pack_into(">i", made, _LENGTH_AT, len(made) - _LENGTH_OVERHEAD)
    struct.pack_into(">h", made, _CRC_FROM, header.attributes & ~_CODEC_MASK | codec)
    struct.pack_into(">I", made, _CRC_AT, crc32c.crc32c(memoryview(made)[_CRC_FROM:]))
    return made
