"""Retention: what of a partition is deleted by age, size and log start, and which closed segments are flushed."""

from __future__ import annotations

import logging

from kohort.log.partition import PartitionLog

_log = logging.getLogger("kohort.log")

_SETTLE_MS = 60_000
"""Closed segments are fsynced this long after their last write, when the kernel has already written them."""


def delete_old_segments(log: PartitionLog, now_ms: int) -> int:
    """Delete old segments by age, size and log start; return how many.

    A segment is deleted only if all of it is below the last stable offset. The last segment is rolled first when it is
    old.

    Raises:
        OSError: the disk failed. Where it is full, the older segments are deleted, which makes room for the roll.
    """
    count = _before_start(log)
    if log.config.uses_deletion:
        count = max(count, _aged_segments(log, now_ms), _too_many_bytes(log))
    stable = log.last_stable_offset
    while count and log.segments[count - 1].end_offset > stable:
        count -= 1
    if count == len(log.segments):
        if not log.active.size:
            count -= 1
        else:
            try:
                log.roll()
            except OSError:
                log.delete_first_segments(len(log.segments) - 1)
                raise
    if count:
        log.delete_first_segments(count)
    return count


def _before_start(log: PartitionLog) -> int:
    count = 0
    for segment in log.segments[:-1]:
        if segment.end_offset > log.log_start_offset:
            break
        count += 1
    return count


def _aged_segments(log: PartitionLog, now_ms: int) -> int:
    limit = log.config.retention_ms
    if limit < 0:
        return 0
    count = 0
    for number, segment in enumerate(log.segments):
        if not segment.size:  # compaction left nothing of it, or it is new: records after it may be old
            continue
        latest = segment.max_timestamp
        if latest < 0:
            latest = int(segment.last_written_ms())
        if latest - now_ms > limit:
            text = "%s: a record is stamped %.1f h ahead of the clock: nothing from it on is deleted by age until then"
            _log.warning(text, segment.name, (latest - now_ms) / 3_600_000)
        if now_ms - latest <= limit:
            break
        count = number + 1
    return count


def _too_many_bytes(log: PartitionLog) -> int:
    limit = log.config.retention_bytes
    if limit < 0:
        return 0
    spare = log.size_bytes() - limit
    count = 0
    for segment in log.segments:
        spare -= segment.size
        if spare < 0:
            break
        count += 1
    return count


def roll_for_compaction(log: PartitionLog, now_ms: int) -> None:
    """Roll the last segment if it delays compaction beyond `max.compaction.lag.ms`."""
    first = log.active.first_timestamp
    if log.config.uses_compaction and 0 <= first < now_ms - log.config.max_compaction_lag_ms:
        log.roll()


def flush_idle_segments(log: PartitionLog, now_ms: int) -> None:
    """Fsync closed segments that were not written to for a while, so that recovery need not verify them."""
    for segment in log.segments[:-1]:
        if segment.end_offset <= log.flushed_offset:
            continue
        if now_ms - segment.last_written_ms() < _SETTLE_MS:
            return
        log.flush(segment.end_offset)
