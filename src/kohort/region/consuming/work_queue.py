"""The queue from a member's event thread to its application's thread, with backpressure and read offsets.

The queue is the drain buffer as well. During a checkpoint nobody takes from it, and its records are submitted
afterwards. Source: spec 5.2, 5.9.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from kohort.io.platforms import SIGNAL_CHECK_S
from kohort.region.records import Part, Position

QUEUE_MAX_BYTES = 128 * 1024 * 1024
"""Equal to the consumer's own limit (`queued.max.bytes`): about a second of what a member can read."""

SMALL_TABLE_BYTES = 32 * 1024
SMALL_TABLES = 64
"""Number of small tables after which they are merged into one. A table takes 9 KB beside its rows, for the buffers and
objects of its columns. Without merging, the records of a slow topic would take a hundred times what is counted."""


def merge_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Copy tables of one schema into one table, so that the buffers of the old tables can be freed."""
    return pa.concat_tables(tables).combine_chunks()


@dataclass(frozen=True, slots=True)
class FetchedTable:
    """A table of records between the consumer and the application, with the offsets at which it ends.

    Attributes:
        ends: the next offset of each partition in it.
        bytes: the size of the table, as Arrow counts it.
    """

    table: pa.Table
    ends: dict[Part, Position]
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", self.table.nbytes)


class RecordQueue:
    """The queue of fetched records between a member's consumer and its application. Any thread may call its methods.

    Attributes:
        bytes: the size of the queued records, as Arrow counts it.
        dirty: submitted rows or the application's state may have part of an abandoned table. The member can't
            contribute to a checkpoint before a reset.
    """

    def __init__(self, most: int, at_once: int, bytes_max: int = QUEUE_MAX_BYTES) -> None:
        """Create a closed queue, which gives out no table until `open_for_application`.

        Args:
            most: the maximum number of queued records.
            at_once: the approximate number of records that are taken together.
            bytes_max: the maximum size of the queued records; a quarter of it is taken together. The last poll may
                exceed it.
        """
        self.most, self.at_once, self.bytes_max = most, at_once, bytes_max
        self._changed: Callable[[], None] = lambda: None
        self._lock = threading.Condition()
        self._queue: deque[FetchedTable] = deque()
        self._records = self.bytes = self._small = 0  # the last `_small` pieces are small
        self._open = self._ended = self._closing = False
        self._error: BaseException | None = None
        self._busy: FetchedTable | None = None
        self._void = False
        self._next: dict[Part, Position] = {}
        self.submitted = 0
        self.dirty = False

    def set_change_callback(self, callback: Callable[[], None]) -> None:
        """Set the callback for when the application's thread has taken or finished a table."""
        self._changed = callback

    # -- the application's thread

    def take_table(self) -> FetchedTable | None:
        """Wait for the next table and return it; return None when the member has ended.

        The table taken before counts as submitted.

        Raises:
            BaseException: the error with which the member has ended.
        """
        self.finish_table()
        with self._lock:
            while self.take_would_wait():
                self._lock.wait(SIGNAL_CHECK_S)
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            before, self.dirty = self.dirty, True  # an interruption here loses records: the region resets
            self._busy, self._void = self._gather(), False
            self._records -= self._busy.table.num_rows
            self.bytes -= self._busy.bytes
            piece, self.dirty = self._busy, before
        self._changed()  # there may be room again
        return piece

    def take_would_wait(self) -> bool:
        """Return whether `take_table` would wait: there is no table to take, and the member has not ended."""
        return not self._ended and not (self._open and self._queue and not self._closing)

    def _gather(self) -> FetchedTable:
        pieces: list[FetchedTable] = []
        records = size = 0
        while self._queue and (
            not pieces
            or (
                records + self._queue[0].table.num_rows <= self.at_once
                and size + self._queue[0].bytes <= self.bytes_max // 4
            )
        ):
            pieces.append(self._queue.popleft())
            records += pieces[-1].table.num_rows
            size += pieces[-1].bytes
        if len(pieces) == 1:
            return pieces[0]
        return FetchedTable(pa.concat_tables([piece.table for piece in pieces]), _ends_of(pieces))

    def finish_table(self) -> None:
        """Count the table in progress as submitted, and advance the next offsets of its partitions.

        A table that a reset has discarded does not count.
        """
        with self._lock:
            piece, self._busy = self._busy, None
            if piece is None:
                return
            if not self._void:
                self.submitted += piece.table.num_rows
                self._next.update({part: end for part, end in piece.ends.items() if part in self._next})
            self._lock.notify_all()
        self._changed()

    def put_back_table(self, *, dirty: bool) -> None:
        """Put a table that the application abandoned back at the head of the queue, unless a reset has discarded it.

        Args:
            dirty: submitted rows, or the application's state, may contain part of the table.
        """
        with self._lock:
            piece = self._busy
            if piece is None:
                return
            if not self._void:
                self.dirty = self.dirty or dirty
                self._queue.appendleft(piece)
                self._records += piece.table.num_rows
                self.bytes += piece.bytes
            self._busy = None
            self._lock.notify_all()
        self._changed()

    def stop_delivery(self) -> None:
        """Stop giving out tables, because the application closes the member.

        This takes no lock: a signal handler may call it.
        """
        self._closing = True

    @property
    def current_table(self) -> FetchedTable | None:
        """The table that was taken and is not finished; None if there is no such table."""
        return self._busy

    @property
    def error(self) -> BaseException | None:
        """The error with which the member has ended; None if the application asked for it."""
        return self._error

    def wait_until_discarded(self, timeout_s: float) -> None:
        """Wait until a reset or the member's end discards submitted rows, or the timeout has passed."""
        with self._lock:
            self._lock.wait_for(lambda: self.discards_rows, timeout_s)

    @property
    def discards_rows(self) -> bool:
        """Whether rows are discarded: no table is in progress, a reset has discarded it, or the member has ended."""
        return self._busy is None or self._void or self._ended

    # -- the event thread

    def open_for_application(self) -> None:
        """Open the queue: the application may take tables."""
        with self._lock:
            self._open = True
            self._lock.notify_all()

    def close_for_application(self) -> None:
        """Close the queue: the application gets no more tables until `open_for_application`."""
        with self._lock:
            self._open = False

    def is_idle(self) -> bool:
        """Return whether no table is in progress."""
        return self._busy is None

    def add_fetched(self, fetched: FetchedTable) -> None:
        """Queue fetched records for the application."""
        with self._lock:
            before = min(self._small, len(self._queue))
            self._queue.append(fetched)
            self._records += fetched.table.num_rows
            self.bytes += fetched.bytes
            self._small = before + 1 if fetched.bytes < SMALL_TABLE_BYTES else 0
            if self._small >= SMALL_TABLES:
                self._merge_small()
            self._lock.notify_all()

    def _merge_small(self) -> None:
        """Merge the small tables at the queue's end into one, unless they have more records than one `take_table`."""
        pieces = [self._queue[at] for at in range(-self._small, 0)]
        if sum(piece.table.num_rows for piece in pieces) <= self.at_once:
            merged = FetchedTable(merge_tables([piece.table for piece in pieces]), _ends_of(pieces))
            for _ in pieces:
                self._queue.pop()
            self._queue.append(merged)
            self.bytes += merged.bytes - sum(piece.bytes for piece in pieces)
        self._small = int(self._queue[-1].bytes < SMALL_TABLE_BYTES)

    def free_record_count(self) -> int:
        """Return how many more records the queue takes; 0 when their number or size has reached the limit."""
        return max(0, self.most - self._records) if self.bytes < self.bytes_max else 0

    def has_records_of(self, part: Part) -> bool:
        """Return whether the queue or the table in progress has records of a partition."""
        with self._lock:
            return any(part in piece.ends for piece in self._all())

    def _all(self) -> Iterable[FetchedTable]:
        return [*self._queue, self._busy] if self._busy is not None else list(self._queue)

    def discard_all_records(self) -> None:
        """Discard all queued records, and the rows of the table that the application is processing."""
        with self._lock:
            self._queue.clear()
            self._records, self.bytes, self._void = 0, 0, True
            self._lock.notify_all()

    def discard_partitions(self, parts: Iterable[Part] | None = None) -> None:
        """Discard the queued records and next offsets of these partitions; None: of all partitions."""
        with self._lock:
            gone = set(self._next) if parts is None else set(parts)
            self.dirty = self.dirty and parts is not None
            for part in gone:
                self._next.pop(part, None)
            self._queue = deque(left for piece in self._queue if (left := _without(piece, gone)) is not None)
            self._small = 0
            self._records = sum(piece.table.num_rows for piece in self._queue)
            self.bytes = sum(piece.bytes for piece in self._queue)

    def set_start_offset(self, position: Position, part: Part) -> None:
        """Record the offset at which reading of a partition begins."""
        with self._lock:
            self._next[part] = position

    def next_offsets(self) -> dict[Part, Position]:
        """Return the offset after the last submitted record of each partition."""
        with self._lock:
            return dict(self._next)

    def end_queue(self, error: BaseException | None = None) -> None:
        """End the queue for good, even with tables in it: `take_table` raises the error, else returns None."""
        with self._lock:
            if not self._ended:
                self._ended, self._error, self._open = True, error, False
                self._lock.notify_all()


def _ends_of(pieces: Iterable[FetchedTable]) -> dict[Part, Position]:
    return {part: end for piece in pieces for part, end in piece.ends.items()}


def _without(piece: FetchedTable, gone: set[Part]) -> FetchedTable | None:
    ends = {part: end for part, end in piece.ends.items() if part not in gone}
    if len(ends) == len(piece.ends):
        return piece
    if not ends:
        return None
    names = {(part.topic, part.partition) for part in ends}
    topics = piece.table.column("topic").to_pylist()
    partitions = piece.table.column("partition").to_pylist()
    pairs = enumerate(zip(topics, partitions, strict=True))
    kept = array("q", [row for row, pair in pairs if pair in names])
    # Not `pa.array`, which imports pandas where it is installed: 45 MB.
    rows = pa.Array.from_buffers(pa.int64(), len(kept), [None, pa.py_buffer(kept)])
    return FetchedTable(piece.table.take(rows), ends)
