"""Deadlines without operating system timers: a heap whose entries are corrected only when they surface.

A heartbeat moves its session's deadline later, which is one attribute write. The heap keeps the earlier entry; when it
surfaces, the timer is put back with its true time. So 5,000 members that heartbeat every 3 s cost one heap operation
for each session, not for each heartbeat.
"""

from __future__ import annotations

import enum
import heapq


class Deadline(enum.Enum):
    """The purpose of a timer."""

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
    """A deadline that can be moved and cancelled.

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
        """Stop the timer; its heap entry is dropped when it surfaces."""
        self.due_ms = None


class Deadlines:
    """All running timers, the earliest first; equal times in the order in which they were set."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = 0

    def set(self, timer: Timer, due_ms: int) -> None:
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
        """The earliest timer whose time has come, stopped; None when there is none."""
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
