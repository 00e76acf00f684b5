"""Opening of segments that an earlier process wrote: finds their end, and damage that shows at once.

Damage stays in place, and reads of it fail. Only a torn end is truncated. It consists of bytes at
the very end, without readable batches after them, from a write that the last owner can't have completed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from kohort.errors import CorruptDataError
from kohort.log.continuity import IndexedPositions, scan_batches
from kohort.log.damage import LogDamage, UnverifiedBytes
from kohort.log.gaps import damaged_by_index, replace_batch_by_damage
from kohort.log.results import OpenFile, RecoveryReport
from kohort.log.segment import Segment
from kohort.wire.batch import HEADER_SIZE, parse_header

UNUSABLE = (PermissionError, FileNotFoundError, IsADirectoryError, NotADirectoryError)


def open_sealed_segment(segment: Segment, end_offset: int) -> RecoveryReport:
    """Open a closed segment quickly: its offset index is loaded, and its batches are verified, only when needed.

    Args:
        end_offset: the base offset of the next segment.
    """
    report = RecoveryReport()
    segment.end_offset = end_offset
    try:
        segment.size = segment.file_size()
        segment.open()
    except UNUSABLE as error:
        mark_unreadable(segment, error, report)
        return report
    segment.unverified = UnverifiedBytes(segment.size, closed=True)
    segment.sealed = True
    last = segment.time_index.last_entry_in_file()
    if last is not None and _has_batch(segment, *last):
        segment.max_timestamp, segment.max_timestamp_offset = last[0], segment.base_offset + last[1]
    elif segment.size:
        report.rebuilt_indexes.append(segment.path.with_suffix(".timeindex").name)
        segment.rebuild_from_headers()
    _load_transactions(segment, report)
    return report


def mark_unreadable(segment: Segment, error: OSError, report: RecoveryReport) -> None:
    """Mark a segment as unreadable because its file can't be opened; the rest of the log stays readable."""
    reason = f"the file can't be opened ({error.strerror})"
    damage = LogDamage(segment.path, 0, segment.size or None, segment.base_offset, segment.end_offset, reason)
    segment.readable = False
    segment.unverified = UnverifiedBytes(segment.size, closed=True)
    segment.unverified.damages.append(damage)
    segment.unverified.add_verified(0, segment.size)
    report.damages.append(damage)


def _load_transactions(segment: Segment, report: RecoveryReport) -> None:
    if not segment.transactions.load():
        report.rebuilt_indexes.append(segment.path.with_suffix(".txnindex").name)
        segment.transactions.reset()


def _has_batch(segment: Segment, timestamp: int, relative_offset: int) -> bool:
    """Return whether a batch ends at this offset and has this largest timestamp, as a time index entry says."""
    offset = segment.base_offset + relative_offset
    position = max(0, segment.index.position_in_file(relative_offset))
    file = segment.open()
    rules = segment.segment_rules(None)
    for found in scan_batches(file, segment.size, rules, position):
        if isinstance(found, LogDamage):
            return False
        if found.header.last_offset >= offset:
            return found.header.last_offset == offset and found.header.max_timestamp == timestamp
    return False


class LoadedSegment(NamedTuple):
    """The result of `load_segment`: what was found, and whether the file has a torn end.

    Attributes:
        report: the damage, the bytes that were read, and the indexes that were rebuilt.
        has_torn_end: whether the file ends in bytes that are no batch, without readable batches after them. The segment
            then ends before them (`size`, `end_offset`).
    """

    report: RecoveryReport
    has_torn_end: bool


def load_segment(
    segment: Segment, verify_from_offset: int | None, next_base_offset: int | None = None, *, crc: bool = True
) -> LoadedSegment:
    """Open a segment by reading it from its last index entry on. The log file stays unchanged, also after a torn end.

    Args:
        verify_from_offset: read from the batch with this offset if that is earlier. None: the log was closed cleanly.
        next_base_offset: the base offset of the next segment; None: this is the last one.
        crc: whether to verify the checksums.

    Raises:
        OSError: the file can't be opened.
    """
    report = RecoveryReport()
    file = segment.open()
    file_size = file.size()
    index, times = segment.index, segment.time_index
    rules, blamed = segment.segment_rules(next_base_offset), None
    loaded = index.load(file_size) and times.load()
    if loaded and segment.gaps and next_base_offset is not None and index.positions:
        pins = IndexedPositions(index.offsets[:], index.positions[:])
        blamed = damaged_by_index(scan_batches(file, file_size, rules), pins, rules)
    timed = bool(times.timestamps) or not index.positions  # without it, a search by time would pass over batches
    if not loaded or not timed or not _last_entry_fits(segment, file):
        report.rebuilt_indexes.append(segment.path.with_suffix(".index").name)
        index.reset()
        times.reset()
    _load_transactions(segment, report)
    if verify_from_offset is not None:
        drop = index.truncate_for_rewrite if segment.gaps and next_base_offset is not None else index.truncate
        drop(index.entry_at_or_before_offset(verify_from_offset - segment.base_offset) + 1)
    start = index.positions[-1] if index.positions else 0
    segment.rewind_to(start)
    unverified = UnverifiedBytes(file_size, closed=next_base_offset is not None)
    findings = scan_batches(file, file_size, rules, start, crc=crc)
    if blamed is not None and blamed >= start:
        findings = replace_batch_by_damage(findings, blamed, rules)
    last = segment.index_batches(findings, start if index.positions else -1, unverified)
    if start and unverified.damages and unverified.damages[0].position == start:
        index.reset()  # the expected offset there follows from the earlier batches
        times.reset()
        segment.rewind_to(start := 0)
        unverified = UnverifiedBytes(file_size, closed=next_base_offset is not None)
        findings = scan_batches(file, file_size, rules, crc=crc)
        last = segment.index_batches(
            findings if blamed is None else replace_batch_by_damage(findings, blamed, rules), -1, unverified
        )
    if last is not None:
        segment.size, segment.end_offset = last.position, last.first_offset
    report.scanned_bytes = file_size - start
    unverified.add_verified(start, file_size)
    segment.unverified = None if unverified.is_all_verified else unverified
    report.damages = unverified.damages.copy()
    if report.rebuilt_indexes:
        segment.flush_indexes()
    return LoadedSegment(report, last is not None)


def _last_entry_fits(segment: Segment, file: OpenFile) -> bool:
    if not segment.index.positions:
        return True
    data = file.fs.pread(file.fd, HEADER_SIZE, segment.index.positions[-1])
    try:
        header = parse_header(data)
    except CorruptDataError:
        return False
    return header.last_offset - segment.base_offset == segment.index.offsets[-1]


def truncate_torn_end(segment: Segment, report: RecoveryReport) -> None:
    """Truncate a torn end that `load_segment` found."""
    file = segment.open()
    report.truncated_bytes += file.size() - segment.size
    file.fs.ftruncate(file.fd, segment.size)
    segment.transactions.truncate_to_offset(segment.end_offset)
    report.damages = [
        damage for damage in report.damages if damage.path != segment.path or damage.position < segment.size
    ]
    if segment.unverified is not None:
        segment.unverified.truncate_at(segment.size)
        if segment.unverified.is_all_verified:
            segment.unverified = None


def record_damaged_end(segment: Segment, end_offset: int, report: RecoveryReport) -> None:
    """Record the end of a segment's file as damage.

    It is not truncated, because records up to `end_offset` are known to have existed.
    """
    size = segment.open().size()
    unverified = segment.unverified
    found = unverified.damages[-1] if unverified is not None and segment.size < size else None
    reason = f"the file ends here, the log went on to offset {end_offset}"
    ending = LogDamage(segment.path, segment.size, size - segment.size, segment.end_offset, end_offset, reason)
    if found is not None:
        ending = replace(found, next_offset=end_offset)
        report.damages.remove(found)
    damages = [] if unverified is None else [damage for damage in unverified.damages if damage is not found]
    segment.unverified = UnverifiedBytes(size, closed=True)
    segment.unverified.damages = [*damages, ending]
    if segment.index.positions:
        segment.unverified.add_verified(segment.index.positions[-1], size)
    else:
        segment.unverified.add_verified(0, size)
    segment.size, segment.end_offset = size, end_offset
    report.damages.append(ending)
