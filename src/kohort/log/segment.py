"""One segment of a log: batches are read from its file by offset and by time."""

from __future__ import annotations

from collections.abc import Iterator

from kohort.log.chain import Located
from kohort.log.damage import Damage, DamagedError
from kohort.log.inherited import Inherited
from kohort.log.results import FileRange, TimestampOffset
from kohort.log.segment_file import SegmentFile
from kohort.wire.records import read_records

__all__ = ["Located", "Segment"]

_HINTS_MAX = 256
_LOOK_BYTES = 256 << 10


class Segment(SegmentFile):
    """Batches from `base_offset` on. Only the last segment of a log is appended to."""

    __slots__ = ()

    def read(self, offset: int, max_bytes: int, end_offset: int, min_one: bool) -> tuple[FileRange | None, int]:
        """Whole batches from the one that holds `offset` to before `end_offset`; and the offset after them.

        A compacted segment may lack `offset`; then it is the next batch. What lies before damage is returned.

        Raises:
            DamagedError: `offset` is among those that damage took.
        """
        if self.inherited is None:
            try:
                return self._read(offset, max_bytes, end_offset, min_one)
            except DamagedError:
                pass  # in what this process wrote; now it is known where
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

    def _first_damage(self, offset: int, max_bytes: int) -> Damage | None:
        """The first damage at `offset` or behind it, once what a read of so many bytes covers was looked through.

        Raises:
            DamagedError: it took `offset`.
        """
        found = self.locate(offset)
        start = self.size if found is None else found.position
        if found is not None:
            self.look(start, min(self.size, max(start + max_bytes, found.end)))
        return None if self.inherited is None else self.inherited.damage_from(start)

    def _read_to(
        self, damage: Damage, offset: int, max_bytes: int, end_offset: int, min_one: bool
    ) -> tuple[FileRange | None, int]:
        """Read what lies before some damage."""
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
        """Where the last whole batch between `start` and `limit` ends, and the offset after it."""
        entry = self.index.before_position(limit)
        scan_from = max(start, self.index.positions[entry]) if entry >= 0 else start
        end, next_offset = start, self.base_offset
        batches = self.headers(scan_from, self.size) if self.inherited is None else self.scan(scan_from)
        for batch in batches:
            if batch.end > limit:
                if batch.position == start and min_one:
                    return batch.end, batch.header.last_offset + 1
                return batch.position, batch.header.base_offset
            end, next_offset = batch.end, batch.header.last_offset + 1
        return end, next_offset

    def locate(self, offset: int) -> Located | None:
        """The first batch whose last offset is at or after `offset`; None if there is none.

        Raises:
            DamagedError: damage took `offset`.
        """
        for batch in self.sound_from(offset):
            if self.inherited is not None and batch.header.base_offset > offset:
                self._refuse(offset)
            return batch
        self._refuse(offset)
        return None

    def _refuse(self, offset: int) -> None:
        damage = None if self.inherited is None else self.inherited.damage_of(offset)
        if damage is not None:
            raise DamagedError(damage)

    def sound_from(self, offset: int) -> Iterator[Located]:
        """The batches from the first whose last offset is at or after `offset`; damage is stepped over."""
        if self.inherited is not None:
            self.look_at(offset)
        entry = self.index.before_offset(offset - self.base_offset)
        for batch in self.scan(self.index.positions[entry] if entry >= 0 else 0, skip=True):
            if batch.header.last_offset >= offset:
                yield batch

    def boundary_before(self, position: int) -> int:
        """Where some batch begins, at or before `position`: at most an index interval and a batch before it."""
        if position <= 0:
            return 0
        self.look(position, position)
        entry = self.index.before_position(position)
        return self.index.positions[entry] if entry >= 0 else 0

    def scan(self, position: int, end: int | None = None, *, skip: bool = False) -> Iterator[Located]:
        """Headers of the batches from `position` (a batch boundary) to `end`.

        Raises:
            DamagedError: the batches before it have come; unless damage is to be stepped over (`skip`).
        """
        stop = self.size if end is None else end
        while self.inherited is not None and (position < stop or not self.size):
            until = min(stop, position + _LOOK_BYTES)
            self.look(position, until)
            damage = None if self.inherited is None else self.inherited.damage_from(position)
            if damage is not None and damage.position <= until and (damage.position < stop or end is None):
                yield from self.headers(position, damage.position)
                if not skip:
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

    def batches_at_or_after(self, timestamp: int) -> Iterator[Located]:
        """Batches that may hold records at or after `timestamp`, in order. Raises DamagedError on the way."""
        if not self.sealed and not self.time_index.timestamps and not self.index.positions:
            start = 0
        else:
            if not self.time_index.timestamps and not self.time_index.load():
                self.look_through()
            first = self.locate(self.base_offset + self.time_index.before(timestamp))
            start = first.position if first else 0
        for batch in self.scan(start):
            if batch.header.max_timestamp >= timestamp:
                yield batch

    def record_at_or_after(self, timestamp: int, offset: int) -> TimestampOffset | None:
        """The first record from `offset` on at or after `timestamp`. Raises DamagedError."""
        for batch in self.batches_at_or_after(timestamp) if self.max_timestamp >= timestamp else ():
            for record in read_records(self.read_batch(batch)):
                if record.timestamp >= timestamp and record.offset >= offset:
                    return TimestampOffset(record.offset, record.timestamp, batch.header.partition_leader_epoch)
        return None

    def read_batch(self, batch: Located) -> bytes:
        """One whole batch."""
        return FileRange(self.open(), batch.position, batch.header.size).bytes()

    def begins_ms(self) -> int:
        """`first_timestamp`, also of a segment that was adopted."""
        if self.first_timestamp < 0 and self.size:
            first = next(self.scan(0, skip=True), None)
            self.first_timestamp = first.header.max_timestamp if first else -1
        return self.first_timestamp

    def truncate_to(self, offset: int) -> None:
        """Throw away the batch that holds `offset` and all after it."""
        found = self.locate(offset)
        if found is None:
            return
        if not self.time_index.timestamps and not self.time_index.load():
            self.look_through()
        self._fs.ftruncate(self.open().fd, found.position)
        self.index.truncate(self.index.before_position(found.position - 1) + 1)
        start = self.index.positions[-1] if self.index.positions else 0
        self.restart(start)
        if self.inherited is not None:
            self.inherited.cut(found.position)
        self.take_over(self.headers(start, found.position), start if self.index.positions else -1, Inherited(0))
        self.transactions.truncate_to_offset(self.end_offset)
        self.flush_indexes()
