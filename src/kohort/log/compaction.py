"""Compaction: only the last record of each key is kept.

The closed segments are read once for keys that are new since the last compaction. They are read a second time to write
the remaining records into new files, which merge small neighbours. Closed segments do not change, so appends and reads
continue in between. `finish` replaces the old files by the new ones.

A batch of some kilobytes may stand for a hundred megabytes of records. Batches that are larger than a step are worked
through in another thread, where the caller has one (`OffLoop`), while the steps wait.

Source: Kafka documentation, "Log Compaction".
"""

from __future__ import annotations

import contextlib
import errno
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Self, TypeAlias

from kohort.log.damage import DamagedError, LogDamage
from kohort.log.filesystem import write_all
from kohort.log.partition import PartitionLog
from kohort.log.recovery import finish_compaction_swap
from kohort.log.results import OpenFile
from kohort.log.segment import LocatedBatch, Segment
from kohort.wire.batch import RECORDS_BYTES_MAX, BatchHeader, has_valid_crc, parse_header
from kohort.wire.compression import TooLargeError
from kohort.wire.records import collect_keys, keep_latest

_STEP_BYTES = 128 << 10
_KEYS_MAX = 5_000_000
"""The most keys of one run, at about 100 bytes each. A run with more keys compacts only the older part."""


OffLoop: TypeAlias = Callable[[Callable[[], None]], "Future[None]"]
"""A function that runs a job in another thread."""


class Compaction:
    """One compaction of one partition: run `steps()` to its end, then `finish()`.

    Raises:
        OSError: the disk still prevents the completion of an earlier compaction.
    """

    def __init__(self, log: PartitionLog, now_ms: int, off_loop: OffLoop | None = None) -> None:
        """Prepare a compaction. `off_loop` runs the work on large batches elsewhere; None: it is done in the steps."""
        self._off_loop = off_loop
        log.finish_interrupted_change()  # completes an earlier replacement of segments, which this run reads
        self._log = log
        self._fs = log.files.fs
        self._now_ms = now_ms
        self._tombstones_before_ms = now_ms - log.config.delete_retention_ms
        self._cleaned, self._cuts = log.cleaned_offset, log.cuts
        self._settled = log.compacted_offset_at(self._tombstones_before_ms)
        self._segments = _cleanable(log, now_ms)
        self._upto = self._segments[-1].end_offset if self._segments else 0
        self._end = log.end_offset if not log.active.size else -1  # of the log's last batch, if the run may reach it
        self._last: dict[bytes, int] = {}
        self._marked_later: set[int] = set()  # producers of new records whose transaction marker is not in the run
        self._unended: set[int] = set()  # producers of kept records whose transaction marker must be kept too
        self._swaps: list[tuple[Path, list[Segment]]] = []
        self._aborted = _by_producer(log.segments)  # of all segments: a marker may be in a later one

    @classmethod
    def compaction_if_due(cls, log: PartitionLog, now_ms: int, off_loop: OffLoop | None = None) -> Self | None:
        """Return a compaction of the partition if it needs one by its settings, else None."""
        if not log.config.uses_compaction:
            return None
        run = cls(log, now_ms, off_loop)
        dirty = [s for s in run._segments if s.end_offset > log.cleaned_offset and s.size]
        if not dirty:
            return None
        share = sum(s.size for s in dirty) / sum(s.size for s in run._segments)
        overdue = dirty[0].first_batch_timestamp_ms() < now_ms - log.config.max_compaction_lag_ms
        return run if overdue or share >= log.config.min_cleanable_dirty_ratio else None

    def steps(self) -> Iterator[bool]:
        """Run in steps of some milliseconds. They end early if the log was truncated, which invalidates the run.

        A step yields whether it waits for another thread, so that the next one has nothing to do for a while.
        """
        for waits in self._work():
            yield waits
            if self._log.cuts != self._cuts:
                return

    def _work(self) -> Iterator[bool]:
        yield from self._collect_keys()
        for segment in self._segments:  # otherwise a power loss could take both a record and its replacement
            if segment.end_offset > self._log.flushed_offset:
                self._log.flush(segment.end_offset)
                yield False
        if self._marked_later:
            self._log.flush()
            yield False
        for group in self._groups():
            yield from self._rewrite(group)

    def _collect_keys(self) -> Iterator[bool]:
        done = 0
        for segment in self._segments:
            if segment.end_offset <= self._cleaned:
                continue
            for batch in segment.scan(0):
                header = batch.header
                if header.is_control:
                    self._marked_later.discard(header.producer_id)
                    continue
                if self._is_aborted(header):
                    continue
                if header.is_transactional:
                    self._marked_later.add(header.producer_id)
                yield from self._run(header, partial(self._collect_batch, _sound(segment, batch)))
                done += header.size
                if done >= _STEP_BYTES:
                    done = 0
                    yield False
            if len(self._last) > _KEYS_MAX:
                self._upto = segment.end_offset
                self._segments = [s for s in self._segments if s.end_offset <= self._upto]
                return

    def _collect_batch(self, data: bytes, limit: int) -> None:
        collect_keys(data, parse_header(data), self._last, limit)

    def _run(self, header: BatchHeader, job: Callable[[int], None]) -> Iterator[bool]:
        """Run `job`, with a limit on decompressed bytes, on one batch: here if the batch is small, else by `off_loop`.

        Yield True while another thread works on the batch.
        """
        if self._off_loop is None:
            job(RECORDS_BYTES_MAX)
            return
        if header.size <= _STEP_BYTES:
            try:
                job(_STEP_BYTES)
            except TooLargeError:
                pass
            else:
                return
        running = self._off_loop(partial(job, RECORDS_BYTES_MAX))
        while not running.done():
            yield True
        running.result()

    def _is_aborted(self, header: BatchHeader) -> bool:
        if not header.is_transactional:
            return False
        firsts, lasts = self._aborted.get(header.producer_id, ((), ()))
        found = bisect_right(firsts, header.base_offset) - 1
        return found >= 0 and header.base_offset <= lasts[found]

    def _groups(self) -> Iterator[list[Segment]]:
        """Yield groups of neighbouring segments, each group small enough to be merged into one segment."""
        group: list[Segment] = []
        size = 0
        for segment in self._segments:
            too_long = group and segment.end_offset - group[0].base_offset >= 2**31
            if group and (size + segment.size > self._log.config.segment_bytes or too_long):
                yield group
                group, size = [], 0
            group.append(segment)
            size += segment.size
        if group:
            yield group

    def _rewrite(self, group: list[Segment]) -> Iterator[bool]:
        """Write the remaining records of some segments to a new file."""
        name = f"{group[0].base_offset:020d}-{group[-1].end_offset:020d}.log.swap"
        path = self._log.path / (name + ".cleaned")
        done = 0
        fs = self._fs
        out, at = OpenFile(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, fs), 0
        self._swaps.append((path, group))
        kept: list[bytes] = []
        for segment in group:
            for batch in segment.scan(0):
                if not self._is_aborted(batch.header):
                    yield from self._keep(_sound(segment, batch), batch.header, kept)
                done += batch.header.size
                if done >= _STEP_BYTES:
                    at += write_all(out.fd, b"".join(kept), at, fs)
                    kept, done = [], 0
                    yield False
        write_all(out.fd, b"".join(kept), at, fs)
        fs.fsync(out.fd)

    def _keep(self, data: bytes, header: BatchHeader, kept: list[bytes]) -> Iterator[bool]:
        """Append the records of a batch that compaction keeps to `kept`.

        The log's last batch stays as it is, because a reader up to the end offset waits for a batch that ends there.
        Source: KAFKA-17076.
        """
        if header.next_offset == self._end:
            kept.append(data)
            return
        old = header.base_offset < self._settled and header.max_timestamp < self._tombstones_before_ms
        if not header.is_control:
            yield from self._run(header, partial(self._filter, data, header, kept, old))
            return
        needed = header.producer_id in self._unended
        self._unended.discard(header.producer_id)
        if needed or not old:
            kept.append(data)

    def _filter(self, data: bytes, header: BatchHeader, kept: list[bytes], old: bool, limit: int) -> None:
        remaining = keep_latest(data, header, self._last, old, limit)
        if remaining and header.is_transactional:
            self._unended.add(header.producer_id)
        kept.append(remaining)

    def finish(self) -> int:
        """Put the new files in place, unless the log was truncated in the meantime; return the bytes saved.

        Raises:
            OSError: the disk failed; `PartitionLog.finish_interrupted_change` completes the replacement.
        """
        log = self._log
        log.finish_interrupted_change()
        log.sync_folder_names()  # without the next segment, the gaps of a compacted one would count as damage
        before = log.size_bytes()
        if log.cuts != self._cuts:  # truncation may have removed newer values
            self.discard()
            return 0
        for cleaned, group in self._swaps:
            swap = cleaned.with_suffix("")
            log.forget_index_checksums(group)
            self._fs.replace(cleaned, swap)
            log.unfinished = partial(_put_in_place, log, swap, group)
            log.finish_interrupted_change()
        log.record_compacted_offset(self._upto, self._now_ms)
        return before - log.size_bytes()

    def discard(self) -> None:
        """Remove the new files of a run that failed before `finish`."""
        for cleaned, _ in self._swaps:
            with contextlib.suppress(OSError):  # gone, or left to the next start
                self._fs.unlink(cleaned)


def _put_in_place(log: PartitionLog, swap: Path, group: list[Segment]) -> None:
    """Replace segments by the compacted file. May be called again after an OSError, and then continues.

    The segments can't be read until it has succeeded, because some of their files may be gone. The new segment has no
    transaction index: none of its records is aborted, and the marker of an entry may be gone. Readers would skip the
    producer's later records as aborted until they meet that marker. Source: KAFKA-5196.
    """
    for segment in group:
        segment.release_file(OSError(errno.EIO, "a compacted file could not take its place yet", str(segment.path)))
    merged = finish_compaction_swap(log.path, swap, log.files, log.config)
    for segment in group:
        if segment.base_offset != merged.base_offset:
            segment.transactions.reset()
    first = log.segments.index(group[0])
    log.replace_segments([*log.segments[:first], merged, *log.segments[first + len(group) :]])
    log.unfinished = None
    for segment in group:
        segment.release_file()


def _sound(segment: Segment, batch: LocatedBatch) -> bytes:
    """Read a batch for compaction, and verify its checksum.

    Raises:
        DamagedError: the checksum does not match. A new checksum would hide that.
    """
    data, header = segment.read_batch(batch), batch.header
    if has_valid_crc(data, header):
        return data
    raise DamagedError(
        LogDamage(
            segment.path,
            batch.position,
            header.size,
            header.base_offset,
            header.next_offset,
            "the checksum does not fit",
        )
    )


def _by_producer(segments: list[Segment]) -> dict[int, tuple[list[int], list[int]]]:
    """Return the first and last offsets of each producer's aborted transactions, in the order of the log."""
    found: dict[int, tuple[list[int], list[int]]] = {}
    for segment in segments:
        for entry in segment.transactions.entries:
            firsts, lasts = found.setdefault(entry.producer_id, ([], []))
            firsts.append(entry.first_offset)
            lasts.append(entry.last_offset)
    return found


def _cleanable(log: PartitionLog, now_ms: int) -> list[Segment]:
    """Return the closed segments that may be compacted.

    They end before the first open transaction and are older than `min.compaction.lag.ms`.
    """
    stable, newest = log.last_stable_offset, now_ms - log.config.min_compaction_lag_ms
    found: list[Segment] = []
    for segment in log.segments[:-1]:
        if segment.end_offset > stable or (log.config.min_compaction_lag_ms and segment.max_timestamp > newest):
            break
        found.append(segment)
    return found


def compact_now(log: PartitionLog, now_ms: int) -> int:
    """Run a complete compaction, whatever the dirty ratio; return the bytes saved."""
    run = Compaction(log, now_ms)
    for _ in run.steps():
        pass
    return run.finish()
