"""The walk over a batch's records that checks their framing and skips their bytes.

A producer's batch with a correct checksum may still hold records that no reader can read: wrong counts and lengths,
numbers that are too long. Such a batch would stop every reader of its partition, so it is refused.

The walk is compiled (`_record_walk.pyx`). Where the kernel was not built, the functions of `PythonRecordWalk` replace
it. They give the same results, but take about a hundred times as long.

Source: Kafka documentation, "Record"; Apache Kafka's `DefaultRecord.readFrom` and `LogValidator`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, TypeAlias

from kohort.errors import ErrorCode
from kohort.wire.batch import BatchHeader, CorruptBatchError
from kohort.wire.schema import Buffer

WRONG_RECORDS_MAX: Final = 1_000
"""The most records that one check names. Their number is exact; a batch may hold a million."""
_RECORD_BYTES_MIN: Final = 7
"""Length, attributes, two deltas, key length, value length and header count, a byte each."""
_LOG_APPEND_TIME: Final = 0x08
_INT64: Final = 2**64

FAULTS: Final = (
    "",
    "the batch has fewer bytes than its number of records needs",
    "its length is not that of a record in this batch",
    "one of its numbers is too long",
    "its offset does not follow the record before it",
    "its key runs past its end",
    "its value runs past its end",
    "its headers run past its end",
    "its length does not match its contents",
    "bytes follow the last record",
)
"""Faults of a record's framing, by the status of the walk; 0 is good."""
_GOOD, _COUNT, _LENGTH, _NUMBER, _DELTA, _KEY, _VALUE, _HEADER, _REST, _AFTER = range(len(FAULTS))


class RejectedRecordReason(IntEnum):
    """The reasons why a topic rejects a record that is well-formed: no key, timestamp, or size."""

    NO_KEY = 1
    """The record has no key, and the topic is compacted."""
    TIMESTAMP = 2
    """The timestamp is outside the topic's limits."""
    SIZE = 3
    """The record is larger than `max.decompressed.message.bytes`."""


WrongRecord: TypeAlias = tuple[int, int, int]
"""A record that a topic rejects: its index in the batch, the `RejectedRecordReason`, and the timestamp or the size."""
WalkResult: TypeAlias = tuple[int, int, int, int, Sequence[WrongRecord] | None]
"""The result of `walk_records`: status (0 is good, `invalid_record_error` describes others), index of the bad record,
highest timestamp (ms, at least -1), number of records that the topic rejects, and the first of them.
"""
RecordRules: TypeAlias = tuple[int, int, int, bool]
"""The records that a topic accepts: the lowest timestamp (ms; -1, no timestamp, is always accepted), the highest
timestamp, the most bytes of one record, and whether every record needs a key.
"""


class PythonRecordWalk:
    """The walk in plain Python, one record at a time."""

    __slots__ = ("at", "body", "delta", "end", "keyed", "size", "stamp")

    def __init__(self, data: Buffer, start: int) -> None:
        self.body = memoryview(data)
        self.at = start
        self.end = len(self.body)
        self.delta = self.size = self.stamp = 0
        self.keyed = False

    def holds(self, count: int) -> bool:
        """Return whether the remaining bytes can hold this number of records of the smallest size."""
        return count <= (self.end - self.at) // _RECORD_BYTES_MIN

    def next_record(self) -> int:
        """Read one record's numbers, skip its bytes, and return a status."""
        size = self._read_varint(self.end)
        if size is None or not _RECORD_BYTES_MIN - 1 <= size <= self.end - self.at:
            return _LENGTH
        stop = self.at + size
        self.size = size
        self.at += 1
        stamp, delta = self._read_varint(stop, 64), self._read_varint(stop)
        if stamp is None or delta is None:
            return _NUMBER
        self.stamp, self.delta = stamp, delta
        length = self._skip(stop)
        if length is None:
            return _KEY
        self.keyed = length >= 0
        if self._skip(stop) is None:
            return _VALUE
        if not self._skip_headers(stop):
            return _HEADER
        return _GOOD if self.at == stop else _REST

    def _skip(self, stop: int, least: int = -1) -> int | None:
        """Skip a length-prefixed key, value or header part; return its length, or None if that is impossible."""
        length = self._read_varint(stop)
        if length is None or not least <= length <= stop - self.at:
            return None
        self.at += max(0, length)
        return length

    def _skip_headers(self, stop: int) -> bool:
        count = self._read_varint(stop)
        if count is None or not 0 <= count <= (stop - self.at) // 2:
            return False
        return all(self._skip(stop, 0) is not None and self._skip(stop) is not None for _ in range(count))

    def _read_varint(self, stop: int, bits: int = 32) -> int | None:
        value = shift = 0
        while self.at < stop:
            byte = self.body[self.at]
            value |= (byte & 0x7F) << shift
            if value >> bits or (byte > 0x7F and shift + 7 >= bits):
                return None
            self.at += 1
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
        return None


def _wrapped(value: int) -> int:
    """Return a number as 64-bit arithmetic leaves it."""
    return (value + _INT64 // 2) % _INT64 - _INT64 // 2


def walk_records_in_python(data: Buffer, start: int, header: BatchHeader, rules: RecordRules) -> WalkResult:
    """Check a batch's records in plain Python, with the arguments and result of `walk_records`."""
    walk, latest, count = PythonRecordWalk(data, start), -1, header.records_count
    oldest, newest, largest, keyed = rules
    wrong: list[tuple[int, int, int]] = []
    if not walk.holds(count):
        return _COUNT, 0, latest, 0, wrong
    for index in range(count):
        status = walk.next_record()
        if status or walk.delta != index:
            return status or _DELTA, index, latest, len(wrong), wrong[:WRONG_RECORDS_MAX]
        stamp = _wrapped(header.base_timestamp + walk.stamp)
        latest = max(latest, stamp)
        if keyed and not walk.keyed:
            wrong.append((index, RejectedRecordReason.NO_KEY, 0))
        elif stamp > newest or (stamp < oldest and stamp != -1):
            wrong.append((index, RejectedRecordReason.TIMESTAMP, stamp))
        elif walk.size > largest:
            wrong.append((index, RejectedRecordReason.SIZE, walk.size))
    status = _GOOD if walk.at == walk.end else _AFTER
    return status, max(0, count), latest, len(wrong), wrong[:WRONG_RECORDS_MAX]


def find_record_in_python(
    data: Buffer, start: int, header: BatchHeader, timestamp: int, offset: int
) -> tuple[int, int, int, int]:
    """Find a record by time in plain Python, as `find_record` does.

    Return status, index, offset (-1: none) and timestamp.
    """
    walk, count = PythonRecordWalk(data, start), header.records_count
    least = max(0, offset - header.base_offset)
    if not walk.holds(count):
        return _COUNT, 0, -1, -1
    for index in range(count):
        status = walk.next_record()
        if status:
            return status, index, -1, -1
        appended = header.attributes & _LOG_APPEND_TIME
        stamp = header.max_timestamp if appended else _wrapped(header.base_timestamp + walk.stamp)
        if stamp >= timestamp and walk.delta >= least:
            return _GOOD, index, header.base_offset + walk.delta, stamp
    return _GOOD, max(0, count), -1, -1


walk_records: Callable[[Buffer, int, BatchHeader, RecordRules], WalkResult] = walk_records_in_python
"""Check the framing of every record of a producer's batch, and each record against a topic's rules.

The arguments are the decompressed records to the end of the buffer, where they begin in it, the batch's header, and
the rules.
"""
_find: Callable[[Buffer, int, BatchHeader, int, int], tuple[int, int, int, int]] = find_record_in_python
compiled: Any = None
"""The kernel; None where it was not built."""
try:
    compiled = importlib.import_module("kohort.wire._record_walk")
except ImportError:
    COMPILED = False
else:
    COMPILED = True
    walk_records, _find = compiled.walk_records, compiled.find_record


def find_record(data: Buffer, start: int, header: BatchHeader, timestamp: int, offset: int) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record from `offset` on that is at or after `timestamp` (ms), or None.

    Raises:
        CorruptBatchError: the records before it are not what their lengths say.
    """
    status, index, found, stamp = _find(data, start, header, timestamp, offset)
    if status:
        raise invalid_record_error(status, index)
    return None if found < 0 else (found, stamp)


def invalid_record_error(status: int, index: int) -> CorruptBatchError:
    """Return the INVALID_RECORD error for a status of the walk other than 0 (good)."""
    where = "" if status in (_COUNT, _AFTER) else f"record {index}: "
    return CorruptBatchError(f"{where}{FAULTS[status]}", ErrorCode.INVALID_RECORD)
