"""Segments of a log, whose batches are read by offset and by time."""

from __future__ import annotations

import contextlib
import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from kohort.errors import CorruptDataError, ErrorCode, NotFoundError
from kohort.log.continuity import (
    CHUNK,
    Epochs,
    IndexedPositions,
    LocatedBatch,
    SegmentRules,
    batches_are_continuous,
    scan_batches,
    sync_batches,
)
from kohort.log.cooperative import LoopBudget, Search, TooMuchForLoopError
from kohort.log.damage import DamagedError, LogDamage, UnverifiedBytes
from kohort.log.files import FileCache
from kohort.log.filesystem import ReadBuffer, remove_if_exists, write_all
from kohort.log.gaps import GapCount, damaged_by_index, missing_end_damage, replace_batch_by_damage
from kohort.log.index import OffsetIndex, TimeIndex, TransactionIndex
from kohort.log.results import FileRange, OpenFile, TimestampOffset
from kohort.wire.batch import HEADER_SIZE, RECORDS_BYTES_MAX, BatchHeader, CorruptBatchError, parse_header
from kohort.wire.compression import TooLargeError, decompress
from kohort.wire.record_walk import find_record
from kohort.wire.records import read_records

# -- The file and indexes of a segment: appends, and verification of what an earlier process wrote

_FLUSH_INDEX_BYTES = 1 << 20
_PINS_MAX = 500_000
"""Extra index entries that a compacted segment may have: 4 MB of index."""

log = logging.getLogger("kohort.log")


class SegmentFile:
    """A log file that begins at `base_offset`, and its indexes.

    Attributes:
        size: bytes of complete batches in the file.
        end_offset: the offset after the last record.
        max_timestamp: the largest timestamp, -1 when empty; `max_timestamp_offset` is the last offset of its batch.
        first_timestamp: the largest timestamp of the first batch, for rolling by time; -1 when empty.
        sealed: whether the offset index has not been read yet.
        hints: the positions of batches by offset, recorded by reads.
        unverified: the unverified bytes of an earlier process; None: everything is verified.
        gaps: whether offsets may be missing between batches, because the segment was compacted.
        epochs: the valid leader epochs of the batches.
        readable: whether the file can be opened.
        synced_size: the bytes at the beginning that this process, or a clean end before it, has fsynced.
    """

    __slots__ = (
        "_files",
        "_fs",
        "_interval",
        "_path",
        "_since_entry",
        "_since_flush",
        "_torn",
        "_unsure",
        "base_offset",
        "end_offset",
        "epochs",
        "file",
        "first_timestamp",
        "gaps",
        "gone",
        "hints",
        "index",
        "max_timestamp",
        "max_timestamp_offset",
        "readable",
        "sealed",
        "size",
        "synced_size",
        "time_index",
        "touched",
        "transactions",
        "unverified",
    )  # fmt: skip

    def __init__(self, folder: Path, base_offset: int, files: FileCache, index_interval_bytes: int) -> None:
        stem = f"{folder}{os.sep}{base_offset:020d}"
        self._path = stem + ".log"
        self._files = files
        self._fs = fs = files.fs
        self._interval = index_interval_bytes
        self.hints: dict[int, int] = {}
        self._since_entry = 0
        self._since_flush = 0
        self.gone: Exception | None = None
        self.sealed = False
        self.unverified: UnverifiedBytes | None = None
        self.gaps = False
        self.epochs = Epochs()
        self.readable = True
        self._torn = self._unsure = False
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size = self.synced_size = 0
        self.max_timestamp = -1
        self.max_timestamp_offset = -1
        self.first_timestamp = -1
        self.file: OpenFile | None = None
        self.touched = False
        self.index = OffsetIndex(stem + ".index", fs)
        self.time_index = TimeIndex(stem + ".timeindex", fs)
        self.transactions = TransactionIndex(stem + ".txnindex", fs)

    @property
    def path(self) -> Path:
        return Path(self._path)

    @path.setter
    def path(self, path: Path) -> None:
        self._path = str(path)

    def file_size(self) -> int:
        """Return the file's size, including bytes after the last complete batch.

        Raises:
            OSError: the file can't be read.
        """
        return self._fs.stat(self._path).st_size

    def last_written_ms(self) -> float:
        """Return when the file was last written to.

        Raises:
            OSError: the file can't be read.
        """
        return self._fs.stat(self._path).st_mtime * 1000

    def open(self) -> OpenFile:
        """Return the open file, and open it again if the cache has closed it.

        Raises:
            NotFoundError: the segment was deleted (UNKNOWN_TOPIC_OR_PARTITION).
            OSError: the file is missing, or is being replaced.
        """
        self.touched = True
        if self.gone is not None:
            raise self.gone
        return self.file or self._files.open(self, self._path)

    def append(
        self, data: ReadBuffer | list[ReadBuffer], size: int, headers: Sequence[BatchHeader], next_offset: int
    ) -> None:
        """Append complete batches with one write.

        Args:
            data: the bytes, `size` in all.
            headers: the batches' headers. Their base offsets are ignored: the first batch is at `end_offset`.
            next_offset: the offset after the last record.

        Raises:
            OSError: the write failed, and nothing of it remains in the file.
        """
        position, fs = self.size, self._fs
        self.touched = True
        fd = (self.file or self.open()).fd
        if self._torn:
            fs.ftruncate(fd, position)
            self._torn = False
        try:
            written = fs.pwritev(fd, data, position) if isinstance(data, list) else fs.pwrite(fd, data, position)
            if written != size:
                self._write_rest(fd, data, written, size)
        except BaseException:
            self._torn = True
            fs.ftruncate(fd, position)
            self._torn = False
            raise
        if len(headers) == 1:
            self._note(next_offset - 1, headers[0].max_timestamp, position, size)
        else:
            offset, at = self.end_offset, position
            for header in headers:
                offset += header.last_offset_delta + 1
                self._note(offset - 1, header.max_timestamp, at, header.size)
                at += header.size
        self.size = position + size
        self.end_offset = next_offset
        self._since_flush += size
        if self._since_flush >= _FLUSH_INDEX_BYTES:
            with contextlib.suppress(OSError):  # the records are in the log: the indexes catch up later, or on recovery
                self.flush_indexes()

    def _write_rest(self, fd: int, data: ReadBuffer | list[ReadBuffer], written: int, size: int) -> None:
        """Write the remaining bytes after a partial write."""
        rest = memoryview(b"".join(data) if isinstance(data, list) else data)[written:]
        write_all(fd, rest, self.size + size - len(rest), self._fs)

    def _note(self, last_offset: int, max_timestamp: int, position: int, size: int) -> None:
        """Record an appended batch: the largest timestamp, and index entries once per `index.interval.bytes`."""
        if max_timestamp > self.max_timestamp:
            if self.max_timestamp < 0:
                self.first_timestamp = max_timestamp
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._since_entry > self._interval:
            if not self.index.positions or self.index.positions[-1] < position:  # not beside a gap
                self.index.append(last_offset - self.base_offset, position)
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self._since_entry = 0
        self._since_entry += size

    def flush_indexes(self) -> None:
        """Write all index entries in memory to the index files."""
        self._since_flush = 0
        self.index.flush()
        self.time_index.flush()
        self.transactions.flush()
        if self.time_index.timestamps and not self.index.offsets:
            self.index.create_if_missing()

    def add_last_time_entry(self) -> None:
        """Add the last time index entry, which has the largest timestamp."""
        if self.sealed:
            return
        if self.max_timestamp >= 0:
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        self.flush_indexes()
        if self.gaps:  # the index is the only proof of gaps: a power loss must not take it
            self.sync_indexes()

    def headers(self, position: int, stop: int) -> Iterator[LocatedBatch]:
        """Yield the batch headers between two positions, which are batch boundaries, without verifying them."""
        if position + HEADER_SIZE > stop:
            return
        file = self.open()  # stays open while it is referenced here; the caller may pause between two headers
        chunk, chunk_at = b"", position
        while position + HEADER_SIZE <= stop:
            at = position - chunk_at
            if at + HEADER_SIZE > len(chunk):
                chunk, chunk_at, at = self._fs.pread(file.fd, min(CHUNK, stop - position), position), position, 0
            try:
                header = parse_header(chunk, at)
                if position + header.size > stop:
                    raise CorruptDataError(f"a batch of {header.size} bytes, {stop - position} are left")
            except CorruptDataError:
                self.rebuild_from_headers()
                damage = None if self.unverified is None else self.unverified.first_damage_from(position)
                if damage is None:
                    raise
                raise DamagedError(damage) from None
            yield LocatedBatch(position, header)
            position += header.size

    def segment_rules(self, limit: int | None) -> SegmentRules:
        """Return the rules by which batches are verified. `limit` is the offset after the last one; None: unknown."""
        least = 0
        if self.gaps and limit is not None:
            claim = self.time_index.last_entry_in_file()
            reached = self.base_offset if claim is None else self.base_offset + claim[1] + 1
            least = reached if reached <= limit else 0
        return SegmentRules(self.path, self.base_offset, limit, self.gaps, self.epochs, least)

    def verify_index_interval(self, offset: int) -> None:
        """Verify the range between index entries that contains an offset."""
        if self.sealed:
            self.load_sealed_index()
        for _ in range(2):  # a wrong index is rebuilt after the first attempt
            positions, offsets = self.index.positions, self.index.offsets
            entry = self.index.entry_at_or_before_offset(offset - self.base_offset)
            begin = positions[entry] if entry >= 0 else 0
            stop = positions[entry + 1] if entry + 1 < len(offsets) else self.size
            if self.verify_range(begin, stop):
                return

    def verify_range(self, begin: int, stop: int) -> bool:
        """Verify the bytes of an earlier process between two positions.

        Returns:
            False if the indexes were rebuilt.
        """
        unverified = self.unverified
        if unverified is None or begin > unverified.end:
            return True
        if self.sealed:
            self.load_sealed_index()
        positions = self.index.positions
        entry = self.index.entry_at_or_before_position(begin)
        begin = positions[entry] if entry >= 0 else 0
        following = bisect_left(positions, stop)
        pinned = following < len(positions) and positions[following] < unverified.end
        stop = positions[following] if pinned else unverified.end
        if unverified.is_verified(begin, stop):
            return True
        rules = self.segment_rules(self.end_offset if unverified.closed and not pinned else None)
        pins = IndexedPositions(self.index.offsets, positions)
        if not batches_are_continuous(self.open(), begin, stop, rules, pins, not pinned):
            self.rebuild_from_headers()
            return False
        unverified.add_verified(begin, stop)
        if unverified.is_all_verified:
            self.unverified = None
        return True

    def load_sealed_index(self) -> None:
        """Load a closed segment's offset index when it is first needed; rebuild it if it is missing or wrong."""
        self.sealed = False
        fits = self.index.load(self.size)
        if not fits or (not self.index.positions and (self.size > self._interval or self.gaps)):
            self.rebuild_from_headers()
            if not fits or self.index.positions:
                log.warning("[segment %s] offset index rebuilt: it was missing or wrong", self.name)

    @property
    def name(self) -> str:
        """The log file's name with its folder, for messages."""
        return f"{self.path.parent.name}/{self.path.name}"

    def rebuild_from_headers(self) -> None:
        """Read all headers to find damage, and rebuild both indexes."""
        size, end_offset, synced_size = self.size, self.end_offset, self.synced_size
        if self.sealed:
            self.sealed = False
            self.index.load(size)
        unverified = self.unverified = UnverifiedBytes(size, closed=True)
        rules, claim, file = self.segment_rules(end_offset), self.time_index.last_entry_in_file(), self.open()
        pins = IndexedPositions(self.index.offsets[:], self.index.positions[:])
        found = scan_batches(file, size, rules)
        blamed = damaged_by_index(found, pins, rules) if self.gaps and pins.positions else None
        self.index.reset()
        self.time_index.reset()
        self.rewind_to(0)
        findings = scan_batches(file, size, rules)
        if blamed is not None:
            findings = replace_batch_by_damage(findings, blamed, rules)
        unseen = GapCount(self.base_offset)
        last = self.index_batches(unseen.count_gaps(findings) if self.gaps else findings, -1, unverified)
        if self.gaps and last is None:
            if self.end_offset < end_offset:
                unseen.add_gap(end_offset)
            missing = missing_end_damage(rules, size, self.end_offset, claim, unseen.timestamps)
            unverified.damages += [] if missing is None else [missing]
        self.size, self.end_offset, self.synced_size = size, end_offset, synced_size
        self.add_last_time_entry()
        self.sync_indexes()
        unverified.add_verified(0, size)
        for damage in unverified.damages:
            log.error("damaged records, reads of them fail: %s", damage.describe())
        if unseen.count and not pins.positions:
            log.error("[segment %s] no index verifies the offsets beside gaps: %s", self.name, unseen.describe())
        if unverified.is_all_verified:
            self.unverified = None

    def rewind_to(self, position: int) -> None:
        """Reset the segment's end to `position`, that of the last index entry or 0, so that a scan can go on there."""
        relative = self.index.offsets[-1] if self.index.offsets else 0
        self.time_index.truncate_to_offset(relative + 1)
        self.size = position
        self.synced_size = min(self.synced_size, position)
        self.end_offset = self.base_offset
        self._since_entry = 0
        self.hints.clear()
        self.max_timestamp = self.max_timestamp_offset = self.first_timestamp = -1
        if self.time_index.timestamps:
            self.max_timestamp = self.time_index.timestamps[-1]
            self.max_timestamp_offset = self.base_offset + self.time_index.offsets[-1]
        if position:
            self.first_timestamp = self._timestamp_at_start()

    def _timestamp_at_start(self) -> int:
        try:
            return parse_header(self._fs.pread(self.open().fd, HEADER_SIZE, 0)).max_timestamp
        except CorruptDataError:
            return -1

    def index_batches(
        self, findings: Iterator[LocatedBatch | LogDamage], indexed: int, unverified: UnverifiedBytes
    ) -> LogDamage | None:
        """Index the batches that a scan found, and record its damage; return the last finding if that is damage.

        Args:
            indexed: the position of the first batch if the index has it already, else -1.
        """
        last: LogDamage | None = None
        before: LocatedBatch | None = None
        pins = 0
        for found in findings:
            if isinstance(found, LogDamage):
                unverified.damages.append(found)
                last, before = found, None
                continue
            header = found.header
            if self.gaps and header.base_offset > self.end_offset and pins < _PINS_MAX:
                pins += self._pin(before) + self._pin(found)
            last, before = None, found
            if found.position != indexed:
                self._note(header.last_offset, header.max_timestamp, found.position, header.size)
            else:
                self._since_entry = header.size
            self.size = found.end
            self.end_offset = header.last_offset + 1
        if self.gaps:
            self._pin(before)
        return last

    def _pin(self, batch: LocatedBatch | None) -> int:
        """Add an offset index entry for a batch next to a gap, unless it has one; return the number added, 0 or 1."""
        if batch is None or (self.index.positions and self.index.positions[-1] >= batch.position):
            return 0
        self.index.append(batch.header.last_offset - self.base_offset, batch.position)
        return 1

    def create_file(self) -> None:
        """Create an empty log file. The index files are created with their first entries."""
        self._files.open(self, self._path, os.O_CREAT)

    def sync(self) -> bool:
        """Fsync the log file if it can be opened, and the transaction index, which can't be rebuilt.

        Returns:
            Whether a file may have been created.

        Raises:
            OSError: the disk failed. The bytes are written again before the next attempt counts.
        """
        if self.readable:
            file, end, again, self._unsure = self.open(), self.size, self._unsure, True
            sync_batches(file, self.synced_size, end, again=again)
            self.synced_size, self._unsure = end, False
        return self.transactions.sync_file()

    def sync_indexes(self) -> None:
        """Fsync the indexes by offset and time of a segment that is no longer appended to.

        After a power loss they are taken as they are, where the records are on the disk. An index that lacks its end
        looks right, and retention by age would delete the records too early. Source: KAFKA-10207.
        """
        self.index.sync_file()
        self.time_index.sync_file()

    def close(self) -> None:
        """Write the index files and release the log file."""
        self.add_last_time_entry()
        self._files.release_file(self)

    def release_file(self, why: Exception | None = None) -> None:
        """Release the log file permanently: later users get `gone`, which is `why` or an error that it was deleted.

        Readers with an open file keep what they read.
        """
        self.gone = why or NotFoundError(f"{self.path} was deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._files.release_file(self)

    def delete(self) -> None:
        """Delete the files. Readers with an open file keep what they read. If the log file stays, nothing changes."""
        remove_if_exists(self.path.with_suffix(".log"), self._fs)
        self.release_file()
        for suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
            remove_if_exists(self.path.with_suffix(suffix), self._fs)


__all__ = ["LocatedBatch", "Segment"]

F = TypeVar("F")
_HINTS_MAX = 256
_LOOK_BYTES = 256 << 10


def find_by_time_in_batch(
    where: FileRange, header: BatchHeader, timestamp: int, offset: int, limit: int
) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record from `offset` on that is at or after `timestamp`, or None.

    Any thread may call this. The records may decompress to `limit` bytes.

    Raises:
        TooLargeError: they take more.
        CorruptDataError: the batch can't be read.
    """
    batch, start = where.bytes(), HEADER_SIZE
    if header.compression:
        body: ReadBuffer = decompress(header.compression, memoryview(batch)[HEADER_SIZE:], limit)
        start = 0
    else:
        body = batch
    try:
        return find_record(body, start, header, timestamp, offset)
    except CorruptBatchError as error:
        raise CorruptBatchError(f"the batch at offset {header.base_offset} can't be read: {error.message}") from None


def newest_timestamp_in_batch(where: FileRange, _: BatchHeader, offset: int, limit: int) -> int | None:
    """Return the largest timestamp of the records from `offset` on, None if there are none.

    Any thread may call this. The records may decompress to `limit` bytes.

    Raises:
        TooLargeError: they take more.
        CorruptDataError: the batch can't be read.
    """
    records = read_records(where.bytes(), limit)
    return max((record.timestamp for record in records if record.offset >= offset), default=None)


def _give_way() -> None:
    """Do nothing: as a job for another thread, it lets the event loop run between two pieces of a search."""


class Segment(SegmentFile):
    """The batches from `base_offset` on. Only the last segment of a log is appended to."""

    __slots__ = ()

    def read(self, offset: int, max_bytes: int, end_offset: int, min_one: bool) -> tuple[FileRange | None, int]:
        """Return complete batches from the one with `offset` to before `end_offset`, and the offset after them.

        In a compacted segment `offset` may be missing; the result then begins at the next batch. It ends before damage.

        Raises:
            DamagedError: `offset` is in a damaged range.
        """
        if self.unverified is None:
            try:
                return self._read(offset, max_bytes, end_offset, min_one)
            except DamagedError:
                pass  # damage in what this process wrote; the position is known now
        damage = self._first_damage(offset, max_bytes)
        if damage is None:
            return self._read(offset, max_bytes, end_offset, min_one)
        return self._read_to(damage, offset, max_bytes, end_offset, min_one)

    def _read(self, offset: int, max_bytes: int, end_offset: int, min_one: bool) -> tuple[FileRange | None, int]:
        start = self.hints.get(offset)
        if start is None:
            found = self.locate(offset)
            if found is None:
                return None, self.end_offset
            start = found.position
        if end_offset >= self.end_offset:
            end, next_offset = self.size, self.end_offset
        else:
            stop = self.locate(end_offset)
            end, next_offset = (stop.position, end_offset) if stop else (self.size, self.end_offset)
        if end - start > max_bytes:
            end, next_offset = self._cut(start, start + max_bytes, min_one)
        if end <= start:
            return None, offset
        if len(self.hints) >= _HINTS_MAX:
            self.hints.clear()
        self.hints[next_offset] = end
        return FileRange(self.open(), start, end - start), next_offset

    def _first_damage(self, offset: int, max_bytes: int) -> LogDamage | None:
        """Verify the range of a read, and return the first damage at or after `offset`.

        Raises:
            DamagedError: `offset` is in a damaged range.
        """
        found = self.locate(offset)
        start = self.size if found is None else found.position
        if found is not None:
            self.verify_range(start, min(self.size, max(start + max_bytes, found.end)))
        return None if self.unverified is None else self.unverified.first_damage_from(start)

    def _read_to(
        self, damage: LogDamage, offset: int, max_bytes: int, end_offset: int, min_one: bool
    ) -> tuple[FileRange | None, int]:
        """Read the complete batches before a damaged range."""
        found = self.locate(offset)
        if found is None:
            return None, self.end_offset
        start = found.position
        end, next_offset = damage.position, damage.first_offset
        if end_offset < next_offset:
            stop = self.locate(end_offset)
            if stop is not None:
                end, next_offset = stop.position, end_offset
        if end - start > max_bytes:
            end, next_offset = self._cut(start, start + max_bytes, min_one)
        if end <= start:
            return None, offset
        return FileRange(self.open(), start, end - start), next_offset

    def _cut(self, start: int, limit: int, min_one: bool) -> tuple[int, int]:
        """Return where the last complete batch between two positions ends, and the offset after that batch."""
        entry = self.index.entry_at_or_before_position(limit)
        scan_from = max(start, self.index.positions[entry]) if entry >= 0 else start
        end, next_offset = start, self.base_offset
        batches = self.headers(scan_from, self.size) if self.unverified is None else self.scan(scan_from)
        for batch in batches:
            if batch.end > limit:
                if batch.position == start and min_one:
                    return batch.end, batch.header.last_offset + 1
                return batch.position, batch.header.base_offset
            end, next_offset = batch.end, batch.header.last_offset + 1
        return end, next_offset

    def locate(self, offset: int) -> LocatedBatch | None:
        """Return the first batch whose last offset is at or after `offset`, or None.

        Raises:
            DamagedError: `offset` is in a damaged range.
        """
        for batch in self.undamaged_batches_from(offset):
            if self.unverified is not None and batch.header.base_offset > offset:
                self._refuse_offset(offset)
            return batch
        self._refuse_offset(offset)
        return None

    def _refuse_offset(self, offset: int) -> None:
        damage = None if self.unverified is None else self.unverified.damage_of(offset)
        if damage is not None:
            raise DamagedError(damage)

    def undamaged_batches_from(self, offset: int) -> Iterator[LocatedBatch]:
        """Yield the undamaged batches from the first that ends at or after `offset` on; skip damage."""
        if self.unverified is not None:
            self.verify_index_interval(offset)
        entry = self.index.entry_at_or_before_offset(offset - self.base_offset)
        for batch in self.scan(self.index.positions[entry] if entry >= 0 else 0, skip_damage=True):
            if batch.header.last_offset >= offset:
                yield batch

    def batch_boundary_before(self, position: int) -> int:
        """Return a batch boundary at or before `position`, at most an index interval and a batch before it."""
        if position <= 0:
            return 0
        self.verify_range(position, position)
        entry = self.index.entry_at_or_before_position(position)
        return self.index.positions[entry] if entry >= 0 else 0

    def scan(self, position: int, end: int | None = None, *, skip_damage: bool = False) -> Iterator[LocatedBatch]:
        """Yield the headers of the batches from `position` (a batch boundary) to `end`.

        Raises:
            DamagedError: there is damage, and `skip_damage` is False. The batches before it were yielded.
        """
        stop = self.size if end is None else end
        while self.unverified is not None and (position < stop or not self.size):
            until = min(stop, position + _LOOK_BYTES)
            self.verify_range(position, until)
            damage = None if self.unverified is None else self.unverified.first_damage_from(position)
            if damage is not None and damage.position <= until and (damage.position < stop or end is None):
                yield from self.headers(position, damage.position)
                if not skip_damage:
                    raise DamagedError(damage)
                position = damage.position + (damage.length or 0)
                if position >= stop:
                    return
                continue
            for batch in self.headers(position, stop):
                yield batch
                position = batch.end
                if position >= until:
                    break
            else:
                return
        yield from self.headers(position, stop)

    def batches_at_or_after(self, timestamp: int) -> Iterator[LocatedBatch]:
        """Yield batches that may have records at or after `timestamp`, in order.

        Raises:
            DamagedError: there is damage; the batches before it were yielded.
        """
        for batch in self.scan(self._start_by_time(timestamp)):
            if batch.header.max_timestamp >= timestamp:
                yield batch

    def _start_by_time(self, timestamp: int) -> int:
        """Return the position of a batch before which no record is at or after `timestamp`.

        The time index has no checksum: the batch of the entry that is used must have the entry's timestamp.
        """
        times = self.time_index
        if not self.sealed and not times.timestamps and not self.index.positions:
            return 0
        if not times.timestamps and not times.load():
            self.rebuild_from_headers()
        for _ in range(2):
            entry = times.entry_before_timestamp(timestamp)
            if entry is None:
                return 0
            first = self.locate(self.base_offset + entry[1])
            if first is not None and first.header.max_timestamp == entry[0]:
                return first.position
            self.rebuild_from_headers()
            log.warning("[segment %s] time index rebuilt: it was wrong", self.name)
        return 0

    def search_by_time(self, timestamp: int, offset: int, budget: LoopBudget | None) -> Search[TimestampOffset | None]:
        """Search the first record from `offset` on that is at or after `timestamp`.

        Batches that the budget does not cover are yielded as jobs. No budget covers everything.

        Raises:
            DamagedError: there is damage before it.
        """
        for batch in self.batches_at_or_after(timestamp) if self.max_timestamp >= timestamp else ():
            found = yield from self._search_batch(batch, find_by_time_in_batch, (timestamp, offset), budget)
            if found is not None:
                return TimestampOffset(*found, batch.header.partition_leader_epoch)
        return None

    def search_largest_timestamp(
        self, start: int, end: int, budget: LoopBudget | None
    ) -> Search[TimestampOffset | None]:
        """Search the first record with the largest timestamp among those from `start` to before `end`.

        Args:
            start: the log start offset: earlier records of this segment may have been deleted.
            end: the end of what the reader may see: this segment may have later records.
            budget: as in `search_by_time`.

        Raises:
            DamagedError: there is damage.
        """
        found = yield from self.search_by_time(self.max_timestamp, start, budget)
        if found is not None and found.offset < end:
            return found
        latest: LocatedBatch | None = None
        best, scanned, first = -1, 0, self.locate(start)
        for batch in () if first is None else self.scan(first.position):
            header = batch.header
            if header.base_offset >= end:
                break
            scanned += header.size
            if budget is not None and scanned >= _LOOK_BYTES:
                scanned = 0
                yield _give_way
            if header.base_offset >= start:
                if header.max_timestamp > best:
                    latest, best = batch, header.max_timestamp
                continue
            newest = yield from self._search_batch(batch, newest_timestamp_in_batch, (start,), budget)
            if newest is not None:
                latest, best = batch, newest
        if latest is None:
            return None
        found_there = yield from self._search_batch(latest, find_by_time_in_batch, (best, start), budget)
        return None if found_there is None else TimestampOffset(*found_there, latest.header.partition_leader_epoch)

    def _search_batch(
        self,
        batch: LocatedBatch,
        find: Callable[..., F],
        wanted: tuple[int, ...],
        budget: LoopBudget | None,
    ) -> Search[F]:
        job = partial(find, FileRange(self.open(), batch.position, batch.header.size), batch.header, *wanted)
        if budget is None:
            return job(RECORDS_BYTES_MAX)
        with contextlib.suppress(TooLargeError, TooMuchForLoopError):
            return job(budget.decompressed_bytes_max(batch.header.size, batch.header.compression))
        found: F = yield partial(job, RECORDS_BYTES_MAX)
        return found

    def has_lost_marker(self) -> bool:
        """Return whether compaction has removed the marker of the transaction index's first aborted transaction."""
        marker = self.transactions.entries[0].last_offset
        try:
            found = self.locate(marker)
        except DamagedError:
            return False
        return found is None or found.header.base_offset > marker

    def read_batch(self, batch: LocatedBatch) -> bytes:
        """Read one complete batch."""
        return FileRange(self.open(), batch.position, batch.header.size).bytes()

    def first_batch_timestamp_ms(self) -> int:
        """Return the largest timestamp of the segment's first batch, read if necessary; -1 if it has none."""
        if self.first_timestamp < 0 and self.size:
            first = next(self.scan(0, skip_damage=True), None)
            self.first_timestamp = first.header.max_timestamp if first else -1
        return self.first_timestamp

    def truncate_to(self, offset: int) -> None:
        """Remove the batch with `offset` and all later ones."""
        if (found := self.locate(offset)) is None:
            return
        if not self.time_index.timestamps and not self.time_index.load():
            self.rebuild_from_headers()
        self._fs.ftruncate(self.open().fd, found.position)
        self.index.truncate(self.index.entry_at_or_before_position(found.position - 1) + 1)
        start = self.index.positions[-1] if self.index.positions else 0
        self.rewind_to(start)
        if self.unverified is not None:
            self.unverified.truncate_at(found.position)
        indexed = start if self.index.positions else -1
        self.index_batches(self.headers(start, found.position), indexed, UnverifiedBytes(0))
        self.transactions.truncate_to_offset(self.end_offset)
        self.flush_indexes()
