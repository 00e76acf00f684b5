"""One segment: a file of record batches with its indexes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kohort.errors import CorruptDataError, ErrorCode, NotFoundError
from kohort.log.files import FileCache
from kohort.log.index import OffsetIndex, TimeIndex, TransactionIndex
from kohort.log.results import FileRange, OpenFile, RecoveryReport
from kohort.wire.batch import HEADER_SIZE, BatchHeader, crc_ok, parse_header

_CHUNK = 16 << 10
_HINTS_MAX = 256
_FLUSH_INDEX_BYTES = 1 << 20

ReadBuffer = bytearray | memoryview | bytes


class Located(NamedTuple):
    """A batch's header and where the batch lies in the file."""

    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        return self.position + self.header.size


class Segment:
    """Batches from `base_offset` on. Only the last segment of a log is appended to.

    Attributes:
        size: bytes of whole batches in the file.
        end_offset: offset after the last record.
        max_timestamp: largest so far, -1 when empty; `max_timestamp_offset` is the last offset of its batch.
        first_timestamp: largest timestamp of the first batch, which rolling by time starts from; -1 when empty.
    """

    __slots__ = (
        "_files",
        "_gone",
        "_hints",
        "_interval",
        "_path",
        "_sealed",
        "_since_entry",
        "_since_flush",
        "_torn",
        "base_offset",
        "end_offset",
        "file",
        "first_timestamp",
        "index",
        "max_timestamp",
        "max_timestamp_offset",
        "size",
        "time_index",
        "touched",
        "transactions",
    )  # fmt: skip

    def __init__(self, folder: Path, base_offset: int, files: FileCache, index_interval_bytes: int) -> None:
        stem = f"{folder}{os.sep}{base_offset:020d}"
        self._path = stem + ".log"
        self._files = files
        self._interval = index_interval_bytes
        self._hints: dict[int, int] = {}
        self._since_entry = 0
        self._since_flush = 0
        self._gone = False
        self._sealed = False
        self._torn = False
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size = 0
        self.max_timestamp = -1
        self.max_timestamp_offset = -1
        self.first_timestamp = -1
        self.file: OpenFile | None = None
        self.touched = False
        self.index = OffsetIndex(stem + ".index")
        self.time_index = TimeIndex(stem + ".timeindex")
        self.transactions = TransactionIndex(stem + ".txnindex")

    @property
    def path(self) -> Path:
        return Path(self._path)

    def open(self) -> OpenFile:
        """The file, opened again if the cache took it back.

        Raises:
            NotFoundError: the segment was deleted (UNKNOWN_TOPIC_OR_PARTITION).
        """
        self.touched = True
        if self._gone:
            raise NotFoundError(f"{self.path} was deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self.file or self._files.open(self, self._path)

    def append(
        self, data: ReadBuffer | list[ReadBuffer], size: int, headers: Sequence[BatchHeader], next_offset: int
    ) -> None:
        """Write whole batches with one call.

        Args:
            data: what to write, `size` bytes in all.
            headers: of the batches in `data`; their base offsets don't count, the first is at `end_offset`.
            next_offset: offset after the last record.

        Raises:
            OSError: nothing of it remains in the file.
        """
        position = self.size
        self.touched = True
        fd = (self.file or self.open()).fd
        if self._torn:
            os.ftruncate(fd, position)
            self._torn = False
        try:
            written = os.pwritev(fd, data, position) if isinstance(data, list) else os.pwrite(fd, data, position)
            if written != size:
                self._write_rest(fd, data, written, size)
        except BaseException:
            self._torn = True
            os.ftruncate(fd, position)
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
        """The kernel took only a part: write the others."""
        rest = memoryview(b"".join(data) if isinstance(data, list) else data)[written:]
        while rest:
            count = os.pwrite(fd, rest, self.size + size - len(rest))
            rest = rest[count:]

    def _note(self, last_offset: int, max_timestamp: int, position: int, size: int) -> None:
        """Index the batch at `position` if the last entry is far enough behind."""
        if max_timestamp > self.max_timestamp:
            if self.max_timestamp < 0:
                self.first_timestamp = max_timestamp
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._since_entry > self._interval:
            self.index.append(last_offset - self.base_offset, position)
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self._since_entry = 0
        self._since_entry += size

    def flush_indexes(self) -> None:
        """Bring the index files up to the last entry."""
        self._since_flush = 0
        self.index.flush()
        self.time_index.flush()
        self.transactions.flush()
        if self.time_index.timestamps and not self.index.offsets:
            self.index.touch()

    def finish(self) -> None:
        """The last time index entry tells the largest timestamp."""
        if self._sealed:
            return
        if self.max_timestamp >= 0:
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        self.flush_indexes()

    def read(self, offset: int, max_bytes: int, end_offset: int, min_one: bool) -> tuple[FileRange | None, int]:
        """Whole batches from the one that holds `offset` to before `end_offset`; and the offset after them.

        A compacted segment may lack `offset`; then it is the next batch.
        """
        start = self._hints.get(offset)
        if self._sealed:
            self._load_sealed()
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
        if len(self._hints) >= _HINTS_MAX:
            self._hints.clear()
        self._hints[next_offset] = end
        return FileRange(self.open(), start, end - start), next_offset

    def _cut(self, start: int, limit: int, min_one: bool) -> tuple[int, int]:
        """Where the last whole batch between `start` and `limit` ends, and the offset after it."""
        entry = self.index.before_position(limit)
        scan_from = max(start, self.index.positions[entry]) if entry >= 0 else start
        end, next_offset = start, self.base_offset
        for batch in self.scan(scan_from):
            if batch.end > limit:
                if batch.position == start and min_one:
                    return batch.end, batch.header.last_offset + 1
                return batch.position, batch.header.base_offset
            end, next_offset = batch.end, batch.header.last_offset + 1
        return end, next_offset

    def locate(self, offset: int) -> Located | None:
        """The first batch whose last offset is at or after `offset`; None if there is none."""
        if self._sealed:
            self._load_sealed()
        entry = self.index.before_offset(offset - self.base_offset)
        position = 0
        if entry >= 0:
            position = self.index.positions[entry]
            first = next(self.scan(position), None)
            if first is None or first.header.last_offset - self.base_offset != self.index.offsets[entry]:
                self.rebuild_indexes()
                return self.locate(offset)
        for batch in self.scan(position):
            if batch.header.last_offset >= offset:
                return batch
        return None

    def boundary_before(self, position: int) -> int:
        """Where some batch begins, at or before `position`: at most an index interval and a batch before it."""
        if self._sealed:
            self._load_sealed()
        entry = self.index.before_position(position)
        return self.index.positions[entry] if entry >= 0 else 0

    def scan(self, position: int, end: int | None = None) -> Iterator[Located]:
        """Headers of the batches from `position` (a batch boundary) to `end`; stops at what is no batch."""
        stop = self.size if end is None else end
        if position + HEADER_SIZE > stop:
            return
        fd = self.open().fd
        chunk, chunk_at = b"", position
        while position + HEADER_SIZE <= stop:
            at = position - chunk_at
            if at + HEADER_SIZE > len(chunk):
                chunk, chunk_at, at = os.pread(fd, min(_CHUNK, stop - position), position), position, 0
                if len(chunk) < HEADER_SIZE:
                    return
            try:
                header = parse_header(chunk, at)
            except CorruptDataError:
                return
            if position + header.size > stop:
                return
            yield Located(position, header)
            position += header.size

    def batches_at_or_after(self, timestamp: int) -> Iterator[Located]:
        """Batches that may hold records at or after `timestamp`, in order."""
        if not self._sealed and not self.time_index.timestamps and not self.index.positions:
            start = 0
        else:
            if not self.time_index.timestamps:
                self.time_index.load()
            first = self.locate(self.base_offset + self.time_index.before(timestamp))
            start = first.position if first else 0
        for batch in self.scan(start):
            if batch.header.max_timestamp >= timestamp:
                yield batch

    def read_batch(self, batch: Located) -> bytes:
        """One whole batch."""
        return FileRange(self.open(), batch.position, batch.header.size).bytes()

    def begins_ms(self) -> int:
        """`first_timestamp`, also of a segment that was adopted."""
        if self.first_timestamp < 0 and self.size:
            first = next(self.scan(0), None)
            self.first_timestamp = first.header.max_timestamp if first else -1
        return self.first_timestamp

    def create(self) -> None:
        """Start an empty file; those of the indexes come with their first entries."""
        self._files.open(self, self._path, os.O_CREAT)

    def adopt(self, end_offset: int) -> RecoveryReport:
        """Take over a segment that is no longer appended to, without reading its indexes yet.

        Args:
            end_offset: where the next segment starts.
        """
        report = RecoveryReport()
        self.size = os.stat(self._path).st_size
        self.end_offset = end_offset
        last = self.time_index.last_in_file()
        if last is not None and self._has_batch(*last):
            self.max_timestamp, self.max_timestamp_offset = last[0], self.base_offset + last[1]
        elif self.size:
            report.rebuilt_indexes.append(self.path.with_suffix(".timeindex").name)
            self.rebuild_indexes()
        self._sealed = True
        if not self.transactions.load():
            report.rebuilt_indexes.append(self.path.with_suffix(".txnindex").name)
            self.transactions.reset()
        return report

    def _has_batch(self, timestamp: int, relative_offset: int) -> bool:
        """Whether a batch ends at this offset and has this largest timestamp."""
        offset = self.base_offset + relative_offset
        for batch in self.scan(max(0, self.index.position_in_file(relative_offset))):
            if batch.header.last_offset >= offset:
                return batch.header.last_offset == offset and batch.header.max_timestamp == timestamp
        return False

    def _load_sealed(self) -> None:
        """Read the index of an adopted segment when it is first needed."""
        self._sealed = False
        if not self.index.load(self.size) or not self._last_entry_fits(self.size):
            self.rebuild_indexes()

    def load(self, verify_offset: int | None) -> RecoveryReport:
        """Read the indexes and find the end: scan from the last index entry, cut off what is no whole batch.

        Args:
            verify_offset: scan and check CRCs from the batch that holds it, or from the last index entry if that is
                earlier. None: no CRC checks, the log was closed properly.
        """
        report = RecoveryReport()
        file_size = os.fstat(self.open().fd).st_size
        if not (self.index.load(file_size) and self.time_index.load() and self._last_entry_fits(file_size)):
            report.rebuilt_indexes.append(self.path.with_suffix(".index").name)
            self.index.reset()
            self.time_index.reset()
        if not self.transactions.load():
            report.rebuilt_indexes.append(self.path.with_suffix(".txnindex").name)
            self.transactions.reset()
        if verify_offset is not None:
            self.index.truncate(self.index.before_offset(verify_offset - self.base_offset) + 1)
        start = self.index.positions[-1] if self.index.positions else 0
        self._start_from(start)
        self._note_from(start, file_size, verify_offset is not None)
        report.scanned_bytes = self.size - start
        report.truncated_bytes = file_size - self.size
        if report.truncated_bytes:
            os.ftruncate(self.open().fd, self.size)
            self.transactions.truncate_to_offset(self.end_offset)
        if report.rebuilt_indexes:
            self.flush_indexes()
        return report

    def _last_entry_fits(self, file_size: int) -> bool:
        if not self.index.positions:
            return True
        last = next(self.scan(self.index.positions[-1], file_size), None)
        return last is not None and last.header.last_offset - self.base_offset == self.index.offsets[-1]

    def _start_from(self, position: int) -> None:
        """Set the end to the batch at `position`, which the last index entry (or the file's start) names."""
        relative = self.index.offsets[-1] if self.index.offsets else 0
        self.time_index.truncate_to_offset(relative + 1)
        self.size = position
        self.end_offset = self.base_offset
        self._since_entry = 0
        self._hints.clear()
        self.max_timestamp = self.max_timestamp_offset = self.first_timestamp = -1
        if self.time_index.timestamps:
            self.max_timestamp = self.time_index.timestamps[-1]
            self.max_timestamp_offset = self.base_offset + self.time_index.offsets[-1]
        if position:
            first = next(self.scan(0), None)
            self.first_timestamp = first.header.max_timestamp if first else -1

    def _note_from(self, position: int, end: int, check_crc: bool) -> None:
        """Take over the batches from `position`; stop before the first damaged one."""
        indexed = position if self.index.positions else -1
        for batch in self.scan(position, end):
            header = batch.header
            if header.base_offset < self.end_offset or header.last_offset_delta < 0:
                break
            if check_crc and not crc_ok(self.read_batch(batch), header):
                break
            if batch.position != indexed:
                self._note(header.last_offset, header.max_timestamp, batch.position, header.size)
            else:
                self._since_entry = header.size
            self.size = batch.end
            self.end_offset = header.last_offset + 1

    def rebuild_indexes(self) -> None:
        """Make both indexes again from the log."""
        end_offset, size = self.end_offset, self.size
        self.index.reset()
        self.time_index.reset()
        self._start_from(0)
        self._note_from(0, size, check_crc=False)
        if self.size != size:
            raise CorruptDataError(f"{self._path}: no record batch at byte {self.size} of {size}")
        self.end_offset = end_offset
        self.finish()

    def truncate_to(self, offset: int) -> None:
        """Throw away the batch that holds `offset` and all after it."""
        found = self.locate(offset)
        if found is None:
            return
        os.ftruncate(self.open().fd, found.position)
        self.index.truncate(self.index.before_position(found.position - 1) + 1)
        start = self.index.positions[-1] if self.index.positions else 0
        self._start_from(start)
        self._note_from(start, found.position, check_crc=False)
        self.transactions.truncate_to_offset(self.end_offset)
        self.flush_indexes()

    def sync(self) -> None:
        """Fsync the log file."""
        os.fsync(self.open().fd)

    def close(self) -> None:
        """Bring the index files up to date and let the file go."""
        self.finish()
        self._files.forget(self)

    def give_up(self) -> None:
        """Let the file go for good. Open readers keep what they read."""
        self._gone = True
        self._files.forget(self)

    def delete(self) -> None:
        """Remove the files. Open readers keep what they read."""
        self.give_up()
        for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
            self.path.with_suffix(suffix).unlink(missing_ok=True)
