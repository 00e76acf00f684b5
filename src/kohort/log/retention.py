"""Which whole segments of a partition go, and which are forced to the disk."""

from __future__ import annotations

from kohort.log.partition import PartitionLog

_SETTLE_MS = 60_000
"""Closed segments are fsynced this long after their last write: the kernel has written them by itself then."""


def enforce(log: PartitionLog, now_ms: int) -> int:
    """Delete whole old segments by age, size and log start; returns how many.

    A segment goes only when all of it is below the last stable offset. The last one is closed first when it has aged.
    """
    count = _before_start(log)
    if log.config.deletes:
        count = max(count, _aged(log, now_ms), _too_many_bytes(log))
    stable = log.last_stable_offset
    while count and log.segments[count - 1].end_offset > stable:
        count -= 1
    if count == len(log.segments):
        if not log.active.size:
            count -= 1
        else:
            log.roll()
    if count:
        log.drop_segments(count)
    return count


def _before_start(log: PartitionLog) -> int:
    count = 0
    for segment in log.segments[:-1]:
        if segment.end_offset > log.log_start_offset:
            break
        count += 1
    return count


def _aged(log: PartitionLog, now_ms: int) -> int:
    limit = log.config.retention_ms
    if limit < 0:
        return 0
    count = 0
    for segment in log.segments:
        if not segment.size:
            break
        latest = segment.max_timestamp
        if latest < 0:
            latest = int(segment.written_ms())
        if now_ms - latest <= limit:
            break
        count += 1
    return count


def _too_many_bytes(log: PartitionLog) -> int:
    limit = log.config.retention_bytes
    if limit < 0:
        return 0
    spare = log.size_bytes() - limit
    count = 0
    for segment in log.segments[:-1]:
        spare -= segment.size
        if spare < 0:
            break
        count += 1
    return count


def close_for_compaction(log: PartitionLog, now_ms: int) -> None:
    """Close the last segment when it holds back what `max.compaction.lag.ms` wants compacted."""
    first = log.active.first_timestamp
    if log.config.compacts and 0 <= first < now_ms - log.config.max_compaction_lag_ms:
        log.roll()


def flush_settled(log: PartitionLog, now_ms: int) -> None:
    """Fsync closed segments that were written a while ago, so that a power loss costs no check of them."""
    for segment in log.segments[:-1]:
        if segment.end_offset <= log.flushed_offset:
            continue
        if now_ms - segment.written_ms() < _SETTLE_MS:
            return
        log.flush(segment.end_offset)
