"""What goes from a member's event thread to the thread that processes: the queue, the permits, and what was submitted.

The queue is the drain buffer as well: during a cut nobody takes from it, and what is in it is submitted after. Source:
spec 5.2, 5.9.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from kohort.region.parts import Part
from kohort.region.records import Position

QUEUE_MAX_BYTES = 128 * 1024 * 1024
"""Equal to what the consumer itself keeps (`queued.max.bytes`): about a second of what a member can read."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Records that were fetched together.

    Attributes:
        ends: of each partition in it, the next offset.
        bytes: of the table, as Arrow counts them.
    """

    table: pa.Table
    ends: dict[Part, Position]
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", self.table.nbytes)


class Flow:
    """See the module's text. Any thread may call.

    Attributes:
        bytes: of the records in the queue, as Arrow counts them.
        dirty: something was left undone, and nothing since the last complete sequence can be contributed.
    """

    def __init__(self, most: int, at_once: int, bytes_max: int = QUEUE_MAX_BYTES) -> None:
        """Shut.

        Args:
            most: records in the queue.
            at_once: records that are taken together, about.
            bytes_max: of the records in the queue; a quarter of them is taken together. The last poll may exceed it.
        """
        self.most, self.at_once, self.bytes_max = most, at_once, bytes_max
        self._changed: Callable[[], None] = lambda: None
        self._lock = threading.Condition()
        self._queue: deque[Piece] = deque()
        self._records = self.bytes = 0
        self._open = self._ended = self._closing = False
        self._error: BaseException | None = None
        self._busy: Piece | None = None
        self._void = False
        self._next: dict[Part, Position] = {}
        self.submitted = 0
        self.dirty = False

    def on_change(self, changed: Callable[[], None]) -> None:
        """Have `changed` called, by the thread that processes, when it has taken or finished something."""
        self._changed = changed

    # -- the thread that processes

    def take(self) -> Piece | None:
        """The next piece, with a permit: what was taken before counts as submitted. None: the member has ended.

        Raises:
            BaseException: why it has ended.
        """
        self.finish()
        with self._lock:
            while self.would_wait():
                self._lock.wait()
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            before, self.dirty = self.dirty, True  # an interruption here leaves records in no place: all go back
            self._busy, self._void = self._gather(), False
            self._records -= self._busy.table.num_rows
            self.bytes -= self._busy.bytes
            piece, self.dirty = self._busy, before
        self._changed()  # there may be room again
        return piece

    def would_wait(self) -> bool:
        """Whether there is nothing to take now, and no end."""
        return not self._ended and not (self._open and self._queue and not self._closing)

    def _gather(self) -> Piece:
        pieces: list[Piece] = []
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
        ends = {part: end for piece in pieces for part, end in piece.ends.items()}
        return Piece(pa.concat_tables([piece.table for piece in pieces]), ends)

    def finish(self) -> None:
        """Give the permit back: what was taken is submitted, and its offsets are saved."""
        with self._lock:
            piece, self._busy = self._busy, None
            if piece is None:
                return
            if not self._void:
                self.submitted += piece.table.num_rows
                self._next.update({part: end for part, end in piece.ends.items() if part in self._next})
            self._lock.notify_all()
        self._changed()

    def put_back(self, *, dirty: bool) -> None:
        """Give the permit back for what was left undone: it is taken again.

        Args:
            dirty: what was submitted, or the application's state, may have something of it already.
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

    def give_no_more(self) -> None:
        """The application closes the member. Safe in a signal's handler: no lock is taken."""
        self._closing = True

    @property
    def in_hand(self) -> Piece | None:
        """The piece that was taken and is not finished; None without one."""
        return self._busy

    @property
    def error(self) -> BaseException | None:
        """Why the member has ended, if that was not the application's wish."""
        return self._error

    def wait_void(self, timeout_s: float) -> None:
        """Until what is submitted is thrown away, or some time has passed."""
        with self._lock:
            self._lock.wait_for(lambda: self.void, timeout_s)

    @property
    def void(self) -> bool:
        """What is submitted now is thrown away: all went back meanwhile."""
        return self._busy is None or self._void or self._ended

    # -- the event thread

    def open(self) -> None:
        """Give permits."""
        with self._lock:
            self._open = True
            self._lock.notify_all()

    def shut(self) -> None:
        """Give no permits any more."""
        with self._lock:
            self._open = False

    def is_idle(self) -> bool:
        """Nobody has a permit."""
        return self._busy is None

    def put(self, piece: Piece) -> None:
        """Queue what was fetched."""
        with self._lock:
            self._queue.append(piece)
            self._records += piece.table.num_rows
            self.bytes += piece.bytes
            self._lock.notify_all()

    def room(self) -> int:
        """For how many records there is room; 0 when their bytes are too many."""
        return max(0, self.most - self._records) if self.bytes < self.bytes_max else 0

    def queued(self, part: Part) -> bool:
        """Whether records of a partition are on their way."""
        with self._lock:
            return any(part in piece.ends for piece in self._all())

    def _all(self) -> Iterable[Piece]:
        return [*self._queue, self._busy] if self._busy is not None else list(self._queue)

    def clear(self) -> None:
        """Throw everything away, also what is being processed."""
        with self._lock:
            self._queue.clear()
            self._records, self.bytes, self._void = 0, 0, True
            self._lock.notify_all()

    def forget(self, parts: Iterable[Part] | None = None) -> None:
        """Of these partitions nothing more is to be submitted or saved; None: of all."""
        with self._lock:
            gone = set(self._next) if parts is None else set(parts)
            self.dirty = self.dirty and parts is not None
            for part in gone:
                self._next.pop(part, None)
            self._queue = deque(left for piece in self._queue if (left := _without(piece, gone)) is not None)
            self._records = sum(piece.table.num_rows for piece in self._queue)
            self.bytes = sum(piece.bytes for piece in self._queue)

    def begin(self, position: Position, part: Part) -> None:
        """A partition is read from here."""
        with self._lock:
            self._next[part] = position

    def next_offsets(self) -> dict[Part, Position]:
        """Of every partition, the offset after the last record that was submitted."""
        with self._lock:
            return dict(self._next)

    def end(self, error: BaseException | None = None) -> None:
        """The member is over; who takes is told why."""
        with self._lock:
            if not self._ended:
                self._ended, self._error, self._open = True, error, False
                self._lock.notify_all()

    def wait_idle(self, until_s: float) -> bool:
        """Until nobody has a permit."""
        with self._lock:
            return self._lock.wait_for(self.is_idle, max(0.0, until_s - time.monotonic()))


def _without(piece: Piece, gone: set[Part]) -> Piece | None:
    ends = {part: end for part, end in piece.ends.items() if part not in gone}
    if len(ends) == len(piece.ends):
        return piece
    if not ends:
        return None
    names = {(part.topic, part.partition) for part in ends}
    topics = piece.table.column("topic").to_pylist()
    partitions = piece.table.column("partition").to_pylist()
    kept = [(topic, number) in names for topic, number in zip(topics, partitions, strict=True)]
    return Piece(piece.table.filter(pa.array(kept)), ends)
