"""Recompression of batches as a topic's `compression.type` requires. Any thread may call these pure functions."""

from __future__ import annotations

import struct

from kohort.errors import CorruptDataError
from kohort.log.config import COMPRESSIONS, PRODUCER, LogConfig
from kohort.log.filesystem import ReadBuffer
from kohort.log.validator import BatchValidator, CheckedBatches
from kohort.wire.batch import HEADER_SIZE, RECORDS_BYTES_MAX, BatchHeader, parse_header
from kohort.wire.checksum import crc32c
from kohort.wire.compression import compress, decompress
from kohort.wire.schema import Buffer

_LENGTH_AT, _LENGTH_OVERHEAD = 8, 12
_CRC_AT, _CRC_FROM = 17, 21
_CODEC_MASK = 7
_LZ4_DEFAULT = 9
"""Kafka's default level means the fast compressor, which corresponds to no level here."""


def configured_compression(config: LogConfig) -> tuple[int, int | None]:
    """Return the codec of `compression.type`, which must name one, and its level; None: the codec's default."""
    codec = config.compression_type
    levels = {
        "gzip": None if config.compression_gzip_level < 0 else config.compression_gzip_level,
        "lz4": None if config.compression_lz4_level == _LZ4_DEFAULT else config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    return COMPRESSIONS[codec], levels.get(codec)


def validate_and_recompress(
    validator: BatchValidator, batches: ReadBuffer, config: LogConfig, now_ms: int
) -> CheckedBatches:
    """Validate the batches of a producer, and return them in the topic's codec.

    Raises:
        KafkaError: a batch is invalid, so all are rejected.
    """
    data, headers = validator.validate(batches, now_ms)
    if config.compression_type == PRODUCER or has_topic_codec(data, config):
        return data, headers
    recompressed = _recompress(data, config, validator)
    return recompressed, validator.split_headers(recompressed)


def has_topic_codec(batches: ReadBuffer, config: LogConfig) -> bool:
    """Return whether a single batch has the topic's codec already, so that it is not recompressed.

    Invalid data counts as such: the append rejects it later.
    """
    try:
        first = parse_header(batches)
    except CorruptDataError:
        return True
    return first.size >= len(batches) and first.compression == COMPRESSIONS[config.compression_type]


def _recompress(batches: ReadBuffer, config: LogConfig, validator: BatchValidator) -> bytes:
    """Recompress each batch with another codec. Everything else stays, including offsets and timestamps.

    A batch of two kilobytes can stand for a hundred megabytes. Each recompressed batch is therefore as small as a
    produced one has to be. All together have at most the size of one more than was sent.

    Raises:
        KafkaError: MESSAGE_TOO_LARGE: the batches are larger in the topic's codec.
        CorruptDataError: a batch does not decompress, or decompresses to more than a reader accepts.
    """
    codec, level = configured_compression(config)
    view, at = memoryview(batches), 0
    parts: list[Buffer] = []
    left = len(view) + config.max_message_bytes
    while at < len(view):
        header = parse_header(view, at)
        batch = view[at : at + header.size]
        at += header.size
        if header.compression == codec:
            parts.append(batch)
        else:
            body = _body_in_codec(batch, header, codec, level)
            size = HEADER_SIZE + len(body)
            validator.check_recompressed_size(size, left)
            parts.append(_with_body(batch, header, codec, body))
        left -= len(parts[-1])
    return b"".join(parts)


def _body_in_codec(batch: memoryview, header: BatchHeader, codec: int, level: int | None) -> Buffer:
    body: Buffer = batch[HEADER_SIZE:]
    if header.compression:
        body = decompress(header.compression, body, RECORDS_BYTES_MAX)
    return compress(codec, body, level)


def _with_body(batch: memoryview, header: BatchHeader, codec: int, body: Buffer) -> bytearray:
    made = bytearray(batch[:HEADER_SIZE])
    made += body
    struct.pack_into(">i", made, _LENGTH_AT, len(made) - _LENGTH_OVERHEAD)
    struct.pack_into(">h", made, _CRC_FROM, header.attributes & ~_CODEC_MASK | codec)
    struct.pack_into(">I", made, _CRC_AT, crc32c(memoryview(made)[_CRC_FROM:]))
    return made
