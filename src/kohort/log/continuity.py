"""The continuity of a log file: each batch begins where the one before ended, in bytes and in offsets.

Base offset, length, leader epoch and magic of a batch are not covered by its checksum. Only the neighbours can verify
them: a flipped bit in one of these fields breaks the continuity at this batch or at the next one.
"""

from __future__ import annotations

import contextlib
import errno
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from kohort.errors import CorruptDataError
from kohort.log.damage import LogDamage
from kohort.log.filesystem import write_all
from kohort.log.results import OpenFile
from kohort.wire.batch import HEADER_SIZE, MAGIC, BatchHeader, has_valid_crc, parse_header
from kohort.wire.checksum import crc32c

CHUNK: Final = 16 << 10
_WINDOW: Final = 1 << 20
_LARGE: Final = CHUNK >> 3
"""From this batch size on, headers are read one by one."""
_FRONT: Final = struct.Struct(">qiibIhi")
_OVERHEAD: Final = 12
_LENGTH_MIN: Final = HEADER_SIZE - _OVERHEAD
_MAGIC_AT: Final = 16
_CRC_FROM: Final = 21
_COUNT: Final = struct.Struct(">i")
_COUNT_AT: Final = 57
_ANY_EPOCH: Final = 2**31 - 1
_SPAN_MAX: Final = 2**31 - 1
"""The most offsets of a segment, whose indexes count from its base offset in 32 bits."""
_FAR: Final = 2**63 - 1


class LocatedBatch(NamedTuple):
    """A batch's header and its position in the file."""

    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        return self.position + self.header.size


@dataclass(frozen=True, slots=True)
class Epochs:
    """The leader epochs that are valid for a batch, depending on its offset.

    Attributes:
        known: pairs of an epoch and its first offset, ascending; None: the epochs are not known.
        complete: whether no epoch after the last known one can have begun.
    """

    known: tuple[tuple[int, int], ...] | None = None
    complete: bool = False

    def epoch_bounds(self, offset: int) -> tuple[int, int, int]:
        """Return the lowest and highest epoch of a batch at `offset`, and the offset up to which they apply."""
        known = self.known
        if known is None:
            return -1, _ANY_EPOCH, _FAR
        if not known:
            return (0, 0, _FAR) if self.complete else (-1, _ANY_EPOCH, _FAR)
        number = bisect_right(known, offset, key=lambda entry: entry[1]) - 1
        until = known[number + 1][1] if number + 1 < len(known) else _FAR
        if number < 0:
            return -1, known[0][0], until
        low = known[number][0]
        return low, low if self.complete or until != _FAR else _ANY_EPOCH, until


@dataclass(frozen=True, slots=True)
class SegmentRules:
    """The rules for the batches of one segment.

    Attributes:
        path: the segment's log file.
        base_offset: the lowest base offset of a batch.
        limit: the offset after the segment; None: unknown.
        gaps: whether offsets may be missing between batches, because the segment was compacted.
        epochs: the valid leader epochs.
        least: the lowest end offset of the batches, according to the indexes.
    """

    path: Path
    base_offset: int
    limit: int | None
    gaps: bool
    epochs: Epochs
    least: int = 0


class IndexedPositions(NamedTuple):
    """Entries of the offset index: positions of batches, and their last offsets relative to the segment's base."""

    offsets: array[int]
    positions: array[int]


def batches_are_continuous(
    file: OpenFile, begin: int, stop: int, rules: SegmentRules, pins: IndexedPositions, whole_end: bool
) -> bool:
    """Check the batches from `begin` (0, or an entry of `pins`) to `stop` for continuity. Only headers are read.

    Args:
        whole_end: whether `stop` is the segment's end; otherwise it is an entry of `pins`.
    """
    offsets, positions = pins
    pread, fd = file.fs.pread, file.fd
    pin = bisect_right(positions, begin - 1)
    pin_at = positions[pin] if pin < len(positions) else _FAR
    base_offset, gaps = rules.base_offset, rules.gaps or begin > 0
    low, high, until = -1, _ANY_EPOCH, -1
    expected, epoch_before, position = base_offset, -1, begin
    chunk, chunk_at = b"", begin
    unpack, size, last = _FRONT.unpack_from, _FRONT.size, 0
    while position < stop or (position == stop and not whole_end):
        at = position - chunk_at
        if at + size > len(chunk):
            want = CHUNK if last < _LARGE else HEADER_SIZE
            chunk, chunk_at, at = pread(fd, want, position), position, 0
            if len(chunk) < size:
                return False
        base, length, epoch, magic, _, _, delta = unpack(chunk, at)
        if magic != MAGIC or length < _LENGTH_MIN or delta < 0 or base < expected or (base != expected and not gaps):
            return False
        if base >= until:
            low, high, until = rules.epochs.epoch_bounds(base)
        if not low <= epoch <= high or epoch < epoch_before:
            return False
        expected = base + delta + 1
        if position >= pin_at:
            if position > pin_at or offsets[pin] != expected - 1 - base_offset:
                return False
            pin += 1
            pin_at = positions[pin] if pin < len(positions) else _FAR
        if position == stop:
            return True
        epoch_before, gaps, last = epoch, rules.gaps, length
        position += length + _OVERHEAD
    if position != stop:
        return False
    limit = rules.limit
    return limit is None or expected == limit or (rules.gaps and rules.least <= expected < limit)


def scan_batches(
    file: OpenFile, size: int, rules: SegmentRules, begin: int = 0, *, crc: bool = False
) -> Iterator[LocatedBatch | LogDamage]:
    """Yield everything from `begin` to `size`, in order: valid batches, and the damaged ranges between them.

    Args:
        begin: where a batch begins. Unless it is 0, the offset there is not checked.
        crc: whether to verify all checksums; otherwise only to decide which of two batches is damaged.
    """
    return _Survey(file, size, rules, begin, crc).findings()


class _Survey:
    """A scan of one file. A batch is accepted once its successor fits, so that the right one of the two is reported."""

    def __init__(self, file: OpenFile, size: int, rules: SegmentRules, begin: int, crc: bool) -> None:
        self._pread = partial(file.fs.pread, file.fd)
        self.size = size
        self.rules = rules
        self.crc = crc
        self.position = begin
        self.expected: int | None = None if begin else rules.base_offset
        self.epoch = -1
        self.pending: LocatedBatch | None = None
        self.before = (self.expected, -1)
        self._chunk = b""
        self._chunk_at = begin

    def findings(self) -> Iterator[LocatedBatch | LogDamage]:
        while self.position < self.size:
            batch, fault = self._judge()
            if fault is None and batch is not None and self.crc and not self._crc_fits(batch):
                fault = "the checksum does not fit"
                if self.expected is None:
                    self.expected = batch.header.base_offset
            if fault is None:
                if self.pending is not None:
                    yield self.pending
                self._believe(batch)
                continue
            hint = batch.end if batch is not None else None
            if self.pending is not None and (blame := self._blame_pending(batch)) is not None:
                fault, hint = blame
                self._take_back()
            elif self.pending is not None:
                yield self.pending
            self.pending = None
            yield self._damage(fault, hint)
        yield from self._check_end()

    def _believe(self, batch: LocatedBatch | None) -> None:
        assert batch is not None
        self.before = (self.expected, self.epoch)
        self.pending = batch
        self.position = batch.end
        self.expected, self.epoch = batch.header.next_offset, batch.header.partition_leader_epoch

    def _take_back(self) -> None:
        """Discard the batch that was scanned last, because the following bytes show that it is the damaged one."""
        assert self.pending is not None
        self.position = self.pending.position
        self.expected, self.epoch = self.before

    def _check_end(self) -> Iterator[LocatedBatch | LogDamage]:
        limit = self.rules.limit
        expected = self.expected
        short = limit is not None and expected is not None and expected != limit and not self.rules.gaps
        if self.pending is not None:
            if short and not self._crc_fits(self.pending):
                fault = f"last offset {self.pending.header.last_offset}, and the next segment begins at {limit}"
                self._take_back()
                self.pending = None
                yield self._damage(fault, None)
                return
            yield self.pending
            self.pending = None
        if short and expected is not None and limit is not None and expected < limit:
            yield LogDamage(self.rules.path, self.size, 0, expected, limit, _torn_end_text(self.size, limit))

    def _read(self, position: int, length: int) -> bytes:
        at = position - self._chunk_at
        if at < 0 or at + length > len(self._chunk):
            self._chunk, self._chunk_at, at = self._pread(max(CHUNK, length), position), position, 0
        return self._chunk[at : at + length]

    def _crc_fits(self, batch: LocatedBatch | None) -> bool:
        if batch is None:
            return False
        data = self._pread(batch.header.size, batch.position)
        return has_valid_crc(data, batch.header)

    def _judge(self) -> tuple[LocatedBatch | None, str | None]:
        """Parse the batch at the current position; return it, and what is wrong with it or None."""
        left = self.size - self.position
        if left < HEADER_SIZE:
            return None, f"{left} bytes, fewer than a batch's header takes"
        try:
            header = parse_header(self._read(self.position, HEADER_SIZE))
        except CorruptDataError as error:
            return None, error.message.removesuffix(" at byte 0")
        if header.size > left:
            return None, f"a batch of {header.size} bytes where {left} are left"
        batch, base, expected = LocatedBatch(self.position, header), header.base_offset, self.expected
        epoch = header.partition_leader_epoch
        if header.last_offset_delta < 0:
            return batch, f"a last offset delta of {header.last_offset_delta}"
        if expected is not None and (base < expected or (base > expected and not self.rules.gaps)):
            return batch, f"base offset {base} where {expected} comes next"
        if base < self.rules.base_offset or header.last_offset - self.rules.base_offset > _SPAN_MAX:
            return batch, f"base offset {base} in a segment that begins at {self.rules.base_offset}"
        limit = self.rules.limit
        if limit is not None and header.next_offset > limit:
            return batch, f"last offset {header.last_offset}, and {limit} comes after all of the segment"
        low, high, _ = self.rules.epochs.epoch_bounds(base)
        if not max(low, self.epoch) <= epoch <= high:
            return batch, f"leader epoch {epoch} where it is {max(low, self.epoch)}"
        return batch, None

    def _blame_pending(self, batch: LocatedBatch | None) -> tuple[str, int] | None:
        """Decide whether the previous batch is the damaged one, now that its successor is known.

        Return its fault and where to continue; None if it is valid.
        """
        before = self.pending
        assert before is not None
        if not self.crc and not self._crc_fits(before):
            return "the checksum does not fit", self.position
        if batch is None or not self._crc_fits(batch):
            return None
        header, known, (expected, epoch) = batch.header, before.header, self.before
        if header.partition_leader_epoch < known.partition_leader_epoch:
            possible = (
                self.rules.epochs.epoch_bounds(header.base_offset)[0] <= header.partition_leader_epoch >= max(epoch, 0)
            )
            if possible and known.partition_leader_epoch > epoch:
                return f"leader epoch {known.partition_leader_epoch} where it is {epoch}", self.position
            return None
        base = header.base_offset
        moved = expected is None or known.base_offset > expected
        if moved and base < known.next_offset and (expected is None or base >= expected):
            follower = self._front(batch.end)
            certain = follower is None or follower[0] == header.next_offset
            fault = f"base offset {known.base_offset}, and the next batch begins at {base}"
            return fault, batch.position if certain else batch.end
        return None

    def _front(self, position: int) -> tuple[int, int, int, int, int, int, int] | None:
        """Return the first header fields of the batch at a position; None if too few bytes follow."""
        data = self._pread(_FRONT.size, position) if position + HEADER_SIZE <= self.size else b""
        return _FRONT.unpack(data) if len(data) == _FRONT.size else None

    def _damage(self, fault: str, hint: int | None) -> LogDamage:
        """Return the damage at the current position, and continue after it."""
        begin, first = self.position, self.expected
        if first is None:
            first = self.rules.base_offset
        found = self._readable_after(begin, first, hint)
        if found is None:
            self.position, length = self.size, self.size - begin
            self.expected = following = self.rules.limit
        else:
            self.position, length = found.position, found.position - begin
            self.expected = following = found.header.base_offset
        return LogDamage(self.rules.path, begin, length, first, following, fault)

    def _readable_after(self, begin: int, offset: int, hint: int | None) -> LocatedBatch | None:
        """Find the first valid batch after `begin` with `offset` or a later one. `hint` is a likely position."""
        if hint is not None and hint < self.size and (found := self._sound(hint, offset)) is not None:
            return found
        position = begin + 1
        while position + HEADER_SIZE <= self.size:
            data = self._pread(min(_WINDOW, self.size - position), position)
            at = data.find(MAGIC, _MAGIC_AT)
            while 0 <= at <= len(data) - (HEADER_SIZE - _MAGIC_AT):
                if (found := self._sound(position + at - _MAGIC_AT, offset)) is not None:
                    return found
                at = data.find(MAGIC, at + 1)
            if len(data) <= HEADER_SIZE:
                return None
            position += len(data) - HEADER_SIZE + 1
        return None

    def _sound(self, position: int, offset: int) -> LocatedBatch | None:
        """Return the batch at `position` if fields, checksum and successor are valid; None otherwise."""
        front = self._front(position)
        if front is None:
            return None
        base, length, epoch, magic, _, _, delta = front
        end, following = position + length + _OVERHEAD, base + delta + 1
        limit = self.rules.limit
        if magic != MAGIC or length < _LENGTH_MIN or delta < 0 or end > self.size or base < offset:
            return None
        if following - self.rules.base_offset > _SPAN_MAX or (limit is not None and following > limit):
            return None
        low, high, _ = self.rules.epochs.epoch_bounds(base)
        if not low <= epoch <= high:
            return None
        after = self._front(end)
        if after is not None and (after[0] == following) + (after[3] == MAGIC) + (0 < after[1] <= self.size - end) < 2:
            return None
        data = self._pread(end - position, position)
        header = parse_header(data)
        return LocatedBatch(position, header) if has_valid_crc(data, header) else None


def _torn_end_text(size: int, limit: int) -> str:
    what = f"the file ends after {size} bytes" if size else "the file is empty"
    return f"{what}, and the next segment begins at {limit}"


def complete_end(file: OpenFile, position: int, size: int, offset: int, *, whole_writes: bool) -> int | None:
    """Return the offset after the damaged batches at a file's end, or None if the end is a torn write.

    Args:
        offset: the expected offset at `position`.
        whole_writes: whether only the last write can be torn, by being too short, because the machine kept running.
    """
    found: int | None = None
    while position + HEADER_SIZE <= size:
        data = file.fs.pread(file.fd, size - position, position)
        _, length, _, _, crc, _, delta = _FRONT.unpack_from(data)
        claimed = length + _OVERHEAD if _LENGTH_MIN <= length <= len(data) - _OVERHEAD else None
        fits = [end for end in (claimed, len(data)) if end and crc32c(memoryview(data)[_CRC_FROM:end]) == crc]
        if fits:
            offset, position = offset + delta + 1, position + fits[0]
        elif whole_writes and claimed is not None:
            (count,) = _COUNT.unpack_from(data, _COUNT_AT)
            offset, position = offset + max(1, min(delta + 1, count)), position + claimed
        else:
            break
        found = offset
    return found


# -- After a flush that failed


def sync_batches(file: OpenFile, start: int, end: int, *, again: bool) -> None:
    """Fsync a file; after a failure, write the batches between two positions again.

    The kernel reports a failed write once, and takes the pages for clean from then on. The next fsync would succeed
    without writing them. Source: Rebello et al., "Can Applications Recover from fsync Failures?" (2020).

    Args:
        file: the file.
        start: where the bytes begin that no fsync has covered.
        end: where they end.
        again: write them again at first, because an earlier call failed.

    Raises:
        OSError: the disk failed, or the bytes are not those that were appended: some file systems bring the old ones
            back. The next call must have `again`.
    """
    if again:
        _write_again(file, start, end)
    try:
        file.fs.fsync(file.fd)
    except OSError:
        with contextlib.suppress(OSError):  # now, because this process may die before the next attempt
            _write_again(file, start, end)
        raise


def _write_again(file: OpenFile, start: int, end: int) -> None:
    fs, fd = file.fs, file.fd
    while start < end:
        try:
            header = parse_header(fs.pread(fd, HEADER_SIZE, start))
            batch = fs.pread(fd, header.size, start)
            if len(batch) < header.size or not has_valid_crc(batch, header):
                raise CorruptDataError("the checksum does not fit")
        except CorruptDataError as error:
            why = f"a flush failed, and the bytes from position {start} on are lost ({error}); restart the broker"
            raise OSError(errno.EIO, why) from None
        write_all(fd, batch, start, fs)
        start += header.size
