"""Lease of a member: how long it may process without an answer from its coordinator. Pure.

The client's half of `kohort.io.processes`.
"""

from __future__ import annotations

from kohort.io.processes import answer_ms, beat_ms, owned_ms


class Lease:
    """One member's lease.

    Attributes:
        length_ms: The lease's length; None: the broker granted no lease, and the client works without a limit.
        heard_ms: When the last answered request was sent.
    """

    __slots__ = ("heard_ms", "length_ms")

    def __init__(self, length_ms: int | None = None) -> None:
        self.length_ms = length_ms
        self.heard_ms = float("-inf")

    def record_answer(self, length_ms: int | None) -> None:
        """Set the lease's length to the one that the broker granted.

        The shorter of two lengths counts: by that one, the coordinator may consider the lease over.
        """
        if length_ms is not None:
            self.length_ms = length_ms if self.length_ms is None else min(self.length_ms, length_ms)

    def renew(self, sent_ms: float) -> None:
        """Renew the lease from the time when an answered request was sent."""
        self.heard_ms = max(self.heard_ms, sent_ms)

    @property
    def end_ms(self) -> float:
        """Return the end of the lease by this process's clock."""
        return float("inf") if self.length_ms is None else self.heard_ms + owned_ms(self.length_ms)

    def holds(self, now_ms: float) -> bool:
        """Return whether the member owns its assignment."""
        return self.length_ms is None or now_ms < self.end_ms

    def beat_ms(self, interval_ms: float) -> float:
        """Return the time between heartbeats: the interval, or less if the lease needs it."""
        return interval_ms if self.length_ms is None else min(interval_ms, beat_ms(self.length_ms))

    def answer_ms(self, limit_ms: float) -> float:
        """Return the time limit for a heartbeat's response: the limit, or less if the lease needs it."""
        return limit_ms if self.length_ms is None else min(limit_ms, answer_ms(self.length_ms))
