"""Validation of batches before they are appended, and assignment of their offsets."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import crc32c

from kohort.errors import CorruptDataError, ErrorCode, KafkaError, RecordsRefusedError, error_for
from kohort.log.config import RECORD_BYTES_UNLIMITED, LogConfig
from kohort.log.filesystem import ReadBuffer
from kohort.wire.batch import CONTROL, LOG_APPEND_TIME, BatchHeader, parse_header, patch
from kohort.wire.records import read_pairs, read_records, record_sizes

_PREFIX = struct.Struct(">qii")
_PREFIX_SIZE = 16
_LENGTH_OVERHEAD = 12
_CRC_FROM = 21
"""The checksum covers a batch from this position."""
_NO_KEY = "a compacted topic takes no record without a key"
INT64_MAX = 2**63 - 1
"""`message.timestamp.before.max.ms` without a limit."""
_PARTS_MAX = 512
"""The most buffers of one write, of which the kernel accepts 1,024. More are copied together first."""


class BatchValidator:
    """A validator of batches against one topic's settings. It is fast, because it checks every produced batch."""

    __slots__ = (
        "_ahead", "_append_time", "_behind", "_keys", "_largest", "_largest_record", "_looks_inside", "_name",
        "_unwanted",
    )  # fmt: skip

    def __init__(self, name: str, config: LogConfig) -> None:
        self._name = name
        self._largest = config.max_message_bytes
        self._append_time = config.log_append_time
        self._unwanted = CONTROL if config.log_append_time else CONTROL | LOG_APPEND_TIME
        self._ahead = config.message_timestamp_after_max_ms
        self._behind = config.message_timestamp_before_max_ms
        self._keys = config.compacts
        self._largest_record = config.max_decompressed_message_bytes
        self._looks_inside = self._keys or self._largest_record < RECORD_BYTES_UNLIMITED

    def validate(self, batches: ReadBuffer, now_ms: int) -> Sequence[BatchHeader]:
        """Validate the batches of a producer, and return their headers.

        Raises:
            KafkaError: a batch is invalid, so all are rejected.
        """
        header = parse_header(batches)
        _, length, _, _, crc, attributes, delta, first, latest, producer, epoch, sequence, count = header
        size = length + _LENGTH_OVERHEAD
        if size != len(batches):
            return self._validate_each(batches, now_ms)
        if crc32c.crc32c(memoryview(batches)[_CRC_FROM:]) != crc:
            raise self._corrupt("a batch does not match its checksum")
        if (
            size > self._largest
            or delta != count - 1
            or count <= 0
            or attributes & self._unwanted
            or (producer >= 0 and (sequence < 0 or epoch < 0))
        ):
            raise self._refusal(header)
        if not self._append_time and (
            latest > now_ms + self._ahead or first < now_ms - self._behind or self._behind != INT64_MAX
        ):
            self._check_times(batches, header, now_ms)
        if self._looks_inside:
            self._look_inside(batches, header)
        return (header,)

    def _look_inside(self, batch: ReadBuffer, header: BatchHeader) -> None:
        """Reject records without a key in a compacted topic, and records of a compressed batch that are too large."""
        limit = self._largest_record
        if header.compression and limit < RECORD_BYTES_UNLIMITED:
            sizes = enumerate(record_sizes(batch, header))
            wrong = [(i, f"{size} bytes (max.decompressed.message.bytes={limit})") for i, size in sizes if size > limit]
            self._refuse_records(ErrorCode.INVALID_RECORD, wrong, header.records_count)
        if self._keys:
            keys = enumerate(key for key, _, _ in read_pairs(batch, header))
            wrong = [(i, _NO_KEY) for i, key in keys if key is None]
            self._refuse_records(ErrorCode.INVALID_RECORD, wrong, header.records_count)

    def _validate_each(self, batches: ReadBuffer, now_ms: int) -> Sequence[BatchHeader]:
        view = memoryview(batches)
        headers: list[BatchHeader] = []
        at = 0
        for header in self.split(batches):
            headers += self.validate(view[at : at + header.size], now_ms)
            at += header.size
        return headers

    def split(self, batches: ReadBuffer) -> Sequence[BatchHeader]:
        """Return the headers of batches that lie back to back.

        Raises:
            CorruptDataError: the batches do not fill the buffer.
        """
        headers: list[BatchHeader] = []
        at, end = 0, len(batches)
        while at < end:
            header = parse_header(batches, at)
            if at + header.size > end:
                raise self._corrupt(f"a batch says {header.size} bytes, {end - at} are there")
            headers.append(header)
            at += header.size
        return headers

    def _refusal(self, header: BatchHeader) -> KafkaError:
        """Return the error of the check in `validate` that failed."""
        count = header.records_count
        if header.size > self._largest:
            text = f"a batch of {header.size} bytes, the limit (max.message.bytes) is {self._largest}"
            return self._error(ErrorCode.MESSAGE_TOO_LARGE, text)
        if count <= 0 or header.last_offset_delta != count - 1:
            text = f"a batch of {count} records ends at offset delta {header.last_offset_delta}"
            return self._error(ErrorCode.INVALID_RECORD, text)
        if header.attributes & self._unwanted:
            return self._error(ErrorCode.INVALID_RECORD, "a producer can't send control batches or append times")
        return self._error(ErrorCode.INVALID_RECORD, "an idempotent batch without sequence or epoch")

    def _check_times(self, batch: ReadBuffer, header: BatchHeader, now_ms: int) -> None:
        """Check the timestamp of each record, because the oldest may be anywhere.

        -1 means no timestamp, and is the only negative number that every topic accepts. Source: Kafka's LogValidator.


        Raises:
            RecordsRefusedError: some records are outside the topic's limits.
            KafkaError: the largest timestamp of the header is outside, but no record's.
        """
        oldest, newest = now_ms - self._behind, now_ms + self._ahead
        text = f"is outside what the topic accepts (message.timestamp.*.max.ms), {oldest} to {newest}"
        stamps = enumerate(record.timestamp for record in read_records(batch))
        wrong = [(i, f"timestamp {at} {text}") for i, at in stamps if at > newest or (at < oldest and at != -1)]
        self._refuse_records(ErrorCode.INVALID_TIMESTAMP, wrong, header.records_count)
        if header.max_timestamp > newest:
            raise self._error(ErrorCode.INVALID_TIMESTAMP, f"timestamp {header.max_timestamp} {text}")

    def _refuse_records(self, code: ErrorCode, wrong: Sequence[tuple[int, str]], count: int) -> None:
        """Raise RecordsRefusedError if any record is rejected."""
        if wrong:
            text = f"{self._name}: {len(wrong)} of {count} records were refused, the first: {wrong[0][1]}"
            raise RecordsRefusedError(text, code, dict(wrong))

    def _error(self, code: ErrorCode, text: str) -> KafkaError:
        return error_for(code, f"{self._name}: {text}")

    def _corrupt(self, text: str) -> KafkaError:
        return CorruptDataError(f"{self._name}: {text}")


def place(
    batches: ReadBuffer, headers: Sequence[BatchHeader], offset: int, epoch: int
) -> tuple[int, ReadBuffer | list[ReadBuffer]]:
    """Assign offsets and the leader epoch to batches, in place if the buffer is writable.

    Returns:
        The offset after the batches, and the buffers to write.
    """
    at = 0
    if type(batches) is not bytearray and memoryview(batches).readonly:
        if len(headers) <= _PARTS_MAX:
            return _place_around(memoryview(batches), headers, offset, epoch)
        batches = bytearray(batches)
    for header in headers:
        length = header.batch_length
        _PREFIX.pack_into(batches, at, offset, length, epoch)
        at += length + _LENGTH_OVERHEAD
        offset += header.last_offset_delta + 1
    return offset, batches


def _place_around(
    view: memoryview, headers: Sequence[BatchHeader], offset: int, epoch: int
) -> tuple[int, list[ReadBuffer]]:
    parts: list[ReadBuffer] = []
    at = 0
    for header in headers:
        end = at + header.size
        parts += (_PREFIX.pack(offset, header.batch_length, epoch), view[at + _PREFIX_SIZE : end])
        at = end
        offset += header.last_offset_delta + 1
    return offset, parts


def stamp(batches: ReadBuffer, now_ms: int) -> bytearray:
    """Return a copy of the batches with the broker's time as log append time."""
    stamped = bytearray(batches)
    view, at = memoryview(stamped), 0
    while at < len(stamped):
        header = parse_header(stamped, at)
        patch(view[at : at + header.size], 0, 0, now_ms)
        at += header.size
    return stamped
