"""Validation of batches before they are appended, and assignment of their offsets."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from kohort.errors import CorruptDataError, ErrorCode, KafkaError, RecordsRefusedError, error_for
from kohort.log.config import DECOMPRESSED_RATIO, RATIO_NAME, RECORD_BYTES_UNLIMITED, LogConfig
from kohort.log.cooperative import LoopBudget, TooMuchForLoopError
from kohort.log.filesystem import ReadBuffer
from kohort.wire.batch import (
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    RECORDS_BYTES_MAX,
    BatchHeader,
    parse_header,
    patch_header,
)
from kohort.wire.checksum import crc32c
from kohort.wire.compression import (
    CodecError,
    TooLargeError,
    UnknownCodecError,
    decompress,
    refuse_unreadable_for_kafka,
)
from kohort.wire.record_walk import RecordRules, RejectedRecordReason, WrongRecord, invalid_record_error, walk_records

_PREFIX = struct.Struct(">qii")
_PREFIX_SIZE = 16
_LENGTH_OVERHEAD = 12
_CRC_FROM = 21
"""The checksum covers a batch from this position."""
_NO_KEY = "a compacted topic takes no record without a key"
INT64_MAX = 2**63 - 1
"""`message.timestamp.before.max.ms` without a limit."""
_MAX_TIMESTAMP_AT = 35
_CRC_AT = 17
_CODEC_MASK = 7
_SCRATCH_BYTES: Final = 2 << 20
"""Decompressed batches of most producers fit: they fill one megabyte."""
_threads = threading.local()
_JOURNALS: Final = ("__consumer_offsets", "__transaction_state")
"""Internal topics, which admin clients may write to. A coordinator reads them on the event loop, batch by batch."""
_DECOMPRESSED_MIN: Final = 1 << 20
"""The decompressed size that every batch may have, also where `max.message.bytes` is tiny."""
BATCHES_MAX: Final = 1_000
"""The most batches of one partition in a request. Kafka takes one. Each costs some microseconds of the event loop."""
_PARTS_MAX = 512
"""The most buffers of one write, of which the kernel accepts 1,024. More are copied together first."""


CheckedBatches: TypeAlias = tuple[ReadBuffer, Sequence[BatchHeader]]
"""Batches that a topic accepts, and their headers. A plain tuple: one is made for each produced batch."""


class BatchValidator:
    """A validator of batches against one topic's settings. It is fast, because it checks every produced batch.

    It never changes, so that any thread may use it.
    """

    __slots__ = (
        "_ahead", "_append_time", "_behind", "_decompressed_max", "_keys", "_largest", "_largest_record", "_name",
        "_ratio", "_unwanted",
    )  # fmt: skip

    def __init__(self, name: str, config: LogConfig, ratio: int = DECOMPRESSED_RATIO) -> None:
        """Create a validator.

        Args:
            name: the partition's, for error messages.
            config: the topic's settings.
            ratio: how many times `max.message.bytes` a batch may decompress to.
        """
        self._name = name
        self._largest = config.max_message_bytes
        self._append_time = config.uses_log_append_time
        self._unwanted = CONTROL if config.uses_log_append_time else CONTROL | LOG_APPEND_TIME
        self._ahead = config.message_timestamp_after_max_ms
        self._behind = config.message_timestamp_before_max_ms
        self._keys = config.uses_compaction
        self._largest_record = config.max_decompressed_message_bytes
        self._ratio = ratio
        self._decompressed_max = min(RECORDS_BYTES_MAX, max(_DECOMPRESSED_MIN, ratio * config.max_message_bytes))
        if name.rpartition("-")[0] in _JOURNALS:
            self._decompressed_max = _DECOMPRESSED_MIN

    def validate(self, batches: ReadBuffer, now_ms: int, budget: LoopBudget | None = None) -> CheckedBatches:
        """Validate the batches of a producer, and return them with their headers.

        Codec and framing of every record are checked too. The maximum timestamp of a header is corrected in a copy,
        as Kafka does, so that searches by time find the records.

        Args:
            batches: the batches, back to back.
            now_ms: the time of the broker.
            budget: what may be decompressed on the event loop; None: a thread that may take its time.

        Raises:
            KafkaError: a batch is invalid, so all are rejected.
            TooMuchForLoopError: the budget does not cover the batches.
        """
        header = parse_header(batches)
        _, length, _, _, crc, attributes, delta, _, latest, producer, epoch, sequence, count = header
        size = length + _LENGTH_OVERHEAD
        if size != len(batches):
            return self._validate_each(batches, now_ms, budget)
        codec = attributes & _CODEC_MASK
        limit = self._decompressed_max
        if budget is not None:
            limit = min(limit, budget.decompressed_bytes_max(size, codec))
        if crc32c(memoryview(batches)[_CRC_FROM:]) != crc:
            raise self._corrupt("a batch does not match its checksum")
        if (
            size > self._largest
            or delta != count - 1
            or count <= 0
            or attributes & self._unwanted
            or (producer >= 0 and (sequence < 0 or epoch < 0))
        ):
            raise self._refusal(header)
        rules = self._rules(codec, now_ms)
        if codec:
            found = walk_records(self._decompressed(batches, codec, limit), 0, header, rules)
        else:
            found = walk_records(batches, HEADER_SIZE, header, rules)
        status, index, newest, wrong_count, wrong = found
        if status:
            text = f"a batch of {count} records: {invalid_record_error(status, index).message}"
            raise self._error(ErrorCode.INVALID_RECORD, text)
        if wrong_count:
            raise self._refused_records(wrong_count, wrong or (), header, rules)
        if newest != latest and not self._append_time:
            return _with_max_timestamp(batches, newest)
        return batches, (header,)

    def _decompressed(self, batch: ReadBuffer, codec: int, limit: int) -> ReadBuffer:
        """Return the decompressed records of a batch, until the thread's next call."""
        packed = memoryview(batch)[HEADER_SIZE:]
        try:
            refuse_unreadable_for_kafka(codec, packed)
            return decompress(codec, packed, limit, _scratch())
        except TooLargeError:
            if limit < self._decompressed_max:
                raise TooMuchForLoopError from None
            raise self._too_large() from None
        except UnknownCodecError as error:
            raise self._error(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, error.message) from None
        except CodecError as error:
            raise self._error(ErrorCode.INVALID_RECORD, f"a batch does not decompress: {error.message}") from None

    def _rules(self, codec: int, now_ms: int) -> RecordRules:
        """Return the allowed timestamps, the largest record size, and whether keys are required, as of now.

        Timestamp -1 means none, which every topic accepts.
        """
        largest = self._largest_record if codec else RECORD_BYTES_UNLIMITED
        if self._append_time:
            return -INT64_MAX, INT64_MAX, largest, self._keys
        return now_ms - self._behind, min(INT64_MAX, now_ms + self._ahead), largest, self._keys

    def _refused_records(
        self, count: int, found: Sequence[WrongRecord], header: BatchHeader, rules: RecordRules
    ) -> RecordsRefusedError:
        """Return the error that names the records that the topic rejects."""
        oldest, newest, largest, _ = rules
        outside = f"is outside what the topic accepts (message.timestamp.*.max.ms), {oldest} to {newest}"
        words: dict[int, Callable[[int], str]] = {
            RejectedRecordReason.NO_KEY: lambda _: _NO_KEY,
            RejectedRecordReason.TIMESTAMP: lambda stamp: f"timestamp {stamp} {outside}",
            RejectedRecordReason.SIZE: lambda size: f"{size} bytes (max.decompressed.message.bytes={largest})",
        }
        wrong = {place: words[kind](number) for place, kind, number in found}
        times = any(kind == RejectedRecordReason.TIMESTAMP for _, kind, _ in found)
        code = ErrorCode.INVALID_TIMESTAMP if times else ErrorCode.INVALID_RECORD
        first = next(iter(wrong.values()))
        text = f"{self._name}: {count} of {header.records_count} records were refused, the first: {first}"
        return RecordsRefusedError(text, code, wrong)

    def _validate_each(self, batches: ReadBuffer, now_ms: int, budget: LoopBudget | None) -> CheckedBatches:
        view = memoryview(batches)
        headers: list[BatchHeader] = []
        parts: list[ReadBuffer] = []
        at, changed = 0, False
        for header in self.split_headers(batches, BATCHES_MAX):
            batch = view[at : at + header.size]
            data, found = self.validate(batch, now_ms, budget)
            headers += found
            parts.append(data)
            changed = changed or data is not batch
            at += header.size
        return bytearray().join(parts) if changed else batches, headers

    def split_headers(self, batches: ReadBuffer, most: int | None = None) -> Sequence[BatchHeader]:
        """Return the headers of batches that lie back to back.

        Args:
            batches: the batches.
            most: how many there may be; None: any number.

        Raises:
            CorruptDataError: the batches do not fill the buffer.
            InvalidInputError: INVALID_RECORD: there are more.
        """
        headers: list[BatchHeader] = []
        at, end = 0, len(batches)
        while at < end:
            header = parse_header(batches, at)
            if at + header.size > end:
                raise self._corrupt(f"a batch says {header.size} bytes, {end - at} are there")
            headers.append(header)
            at += header.size
            if len(headers) == most and at < end:
                raise self._error(ErrorCode.INVALID_RECORD, f"more than {most} batches in one request")
        return headers

    def check_recompressed_size(self, size: int, left: int) -> None:
        """Refuse a recompressed batch that exceeds `max.message.bytes`, or the bytes left for its request.

        Args:
            size: the bytes of the batch.
            left: the most bytes that this and the following batches of its request may have.

        Raises:
            InvalidInputError: MESSAGE_TOO_LARGE.
        """
        if size > self._largest or size > left:
            text = f"a batch of {size} bytes in the topic's codec, the limit (max.message.bytes) is {self._largest}"
            raise self._error(ErrorCode.MESSAGE_TOO_LARGE, text)

    def _refusal(self, header: BatchHeader) -> KafkaError:
        """Return the error for the header field that made `validate` reject a batch."""
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

    def _too_large(self) -> KafkaError:
        text = (
            f"a batch decompresses to more than {self._decompressed_max} bytes: {RATIO_NAME} ({self._ratio}) times "
            f"max.message.bytes ({self._largest}), at least {_DECOMPRESSED_MIN} and at most {RECORDS_BYTES_MAX}; "
            f"{_DECOMPRESSED_MIN} in internal topics"
        )
        return self._error(ErrorCode.MESSAGE_TOO_LARGE, text)

    def _error(self, code: ErrorCode, text: str) -> KafkaError:
        return error_for(code, f"{self._name}: {text}")

    def _corrupt(self, text: str) -> KafkaError:
        return CorruptDataError(f"{self._name}: {text}")


def _scratch() -> bytearray:
    """Return this thread's buffer of decompressed records, which are gone with the next batch."""
    found: bytearray | None = getattr(_threads, "scratch", None)
    if found is None:
        found = _threads.scratch = bytearray(_SCRATCH_BYTES)
    return found


def _with_max_timestamp(batch: ReadBuffer, max_ms: int) -> CheckedBatches:
    """Return a copy of one batch with this maximum timestamp."""
    fixed = bytearray(batch)
    struct.pack_into(">q", fixed, _MAX_TIMESTAMP_AT, max_ms)
    struct.pack_into(">I", fixed, _CRC_AT, crc32c(memoryview(fixed)[_CRC_FROM:]))
    return fixed, (parse_header(fixed),)


def assign_offsets(
    batches: ReadBuffer, headers: Sequence[BatchHeader], offset: int, epoch: int
) -> tuple[int, ReadBuffer | list[ReadBuffer]]:
    """Write the assigned offsets and leader epoch into the headers of batches, in place if the buffer is writable.

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


def with_append_time(batches: ReadBuffer, now_ms: int) -> bytearray:
    """Return a copy of the batches with the broker's time as log append time."""
    stamped = bytearray(batches)
    view, at = memoryview(stamped), 0
    while at < len(stamped):
        header = parse_header(stamped, at)
        patch_header(view[at : at + header.size], 0, 0, now_ms)
        at += header.size
    return stamped
