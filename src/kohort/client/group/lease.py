"""How long a member may work without an answer from its coordinator. Pure.

The client's half of `kohort.io.processes`.
"""

from __future__ import annotations

from kohort.io.processes import answer_ms, beat_ms, owned_ms


class Lease:
    """One member's lease.

    Attributes:
        length_ms: None while none was told: then it never ends.
        heard_ms: when the last request that was answered was sent.
    """

    __slots__ = ("heard_ms", "length_ms")

    def __init__(self, length_ms: int | None = None) -> None:
        self.length_ms = length_ms
        self.heard_ms = float("-inf")

    def told(self, length_ms: int | None) -> None:
        """The broker's number.

        Of two the shorter one counts: what came with the longer may be over for the coordinator.
        """
        if length_ms is not None:
            self.length_ms = length_ms if self.length_ms is None else min(self.length_ms, length_ms)

    def renew(self, sent_ms: float) -> None:
        """A request that was sent then is answered, and not with a refusal."""
        self.heard_ms = max(self.heard_ms, sent_ms)

    @property
    def end_ms(self) -> float:
        """When it ends by this clock."""
        return float("inf") if self.length_ms is None else self.heard_ms + owned_ms(self.length_ms)

    def holds(self, now_ms: float) -> bool:
        """Whether the member owns what it was assigned."""
        return self.length_ms is None or now_ms < self.end_ms

    def beat_ms(self, interval_ms: float) -> float:
        """The time from one heartbeat to the next: the interval, or less where the lease needs it."""
        return interval_ms if self.length_ms is None else min(interval_ms, beat_ms(self.length_ms))

    def answer_ms(self, limit_ms: float) -> float:
        """How long to wait for a heartbeat's answer: the limit, or less where the lease needs it."""
        return limit_ms if self.length_ms is None else min(limit_ms, answer_ms(self.length_ms))
