"""Deadlines without operating system timers: a heap whose entries are corrected only when they surface.

A heartbeat moves its session's deadline later, which is one attribute write. The heap keeps the earlier entry; when it
surfaces, the timer is put back with its true time. So 5,000 members that heartbeat every 3 s cost one heap operation
for each session, not for each heartbeat.
"""

from __future__ import annotations

import enum
import heapq
from typing import Final


class Deadline(enum.Enum):
    """The purpose of a timer, which selects its handler."""

    SESSION = enum.auto()
    PENDING_MEMBER = enum.auto()
    JOIN_PHASE = enum.auto()
    SYNC_PHASE = enum.auto()
    REVOCATION = enum.auto()
    LONG_POLL = enum.auto()
    NOTIFICATION = enum.auto()
    SILENCE = enum.auto()
    EXPIRY = enum.auto()
    PING = enum.auto()
    ATTEMPT = enum.auto()
    BACKOFF = enum.auto()


class Timer:
    """A timer of one kind for one subject, such as a member, that can be moved and cancelled.

    Attributes:
        kind: the purpose, which selects the handler.
        group_id: the group concerned, or "".
        subject: the member id or request concerned.
        due_ms: the deadline by the monotonic clock; None if the timer does not run.
    """

    __slots__ = ("due_ms", "group_id", "kind", "queued_ms", "subject")

    def __init__(self, kind: Deadline, group_id: str = "", subject: str = "") -> None:
        self.kind = kind
        self.group_id = group_id
        self.subject = subject
        self.due_ms: int | None = None
        self.queued_ms: int | None = None

    def cancel(self) -> None:
        """Stop the timer; its heap entry is removed when it reaches the top of the heap."""
        self.due_ms = None


SWEEP_MIN: Final = 1_024
"""The heap has at least this many entries before those of cancelled timers are dropped."""


class Deadlines:
    """All running timers, the earliest first; equal times in the order in which they were set.

    A cancelled timer would lie in the heap until its time: half an hour for the session of a member that has left. So
    whenever the heap has doubled, its entries without a use are dropped.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = 0
        self._sweep_at = SWEEP_MIN

    def __len__(self) -> int:
        """Return the number of entries, of which some may be of cancelled timers."""
        return len(self._heap)

    def set_timer(self, timer: Timer, due_ms: int) -> None:
        """Set a timer to `due_ms`, whatever its deadline was before."""
        timer.due_ms = due_ms
        if timer.queued_ms is None or due_ms < timer.queued_ms:
            self._push(timer, due_ms)

    def next_ms(self) -> int | None:
        """Return a time not later than the earliest deadline; None if no timer runs."""
        heap = self._heap
        while heap:
            at, _, timer = heap[0]
            if at == timer.queued_ms and timer.due_ms is not None:
                return at
            heapq.heappop(heap)
            if at == timer.queued_ms:
                timer.queued_ms = None
        return None

    def pop_due(self, now_ms: int) -> Timer | None:
        """Stop and return the earliest timer that is due; None when no timer is due."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            at, _, timer = heapq.heappop(heap)
            if at != timer.queued_ms:
                continue
            timer.queued_ms = None
            if timer.due_ms is None:
                continue
            if timer.due_ms > now_ms:
                self._push(timer, timer.due_ms)
                continue
            timer.due_ms = None
            return timer
        return None

    def _push(self, timer: Timer, at: int) -> None:
        timer.queued_ms = at
        self._sequence += 1
        heapq.heappush(self._heap, (at, self._sequence, timer))
        if len(self._heap) >= self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        """Remove heap entries that no running timer uses: of cancelled timers, and outdated second entries."""
        kept = []
        for entry in self._heap:
            at, _, timer = entry
            if at != timer.queued_ms:
                continue
            if timer.due_ms is None:
                timer.queued_ms = None
            else:
                kept.append(entry)
        heapq.heapify(kept)
        self._heap[:] = kept
        self._sweep_at = max(SWEEP_MIN, 2 * len(kept))
