"""How long a member may go on without an answer from its coordinator. Pure.

kohort's broker puts a member out soon after its connection has ended, long before its session would
(`kohort.groups.liveness.lost`). The member may live on behind the broken connection, and must have stopped by then. So
both know one number, the lease: the broker tells it to kohort's clients when they connect, and to no one else, so that
against other brokers nothing changes.

- The client's half: it owns what it was assigned until a lease has passed since it **sent** the last request that was
  answered. Then it hands nothing out; positions and partitions stay as they are. The next answer makes it go on, or
  tells it that it was put out.
- The coordinator's half: a member whose connection ended is put out no sooner than a lease after it **received** the
  last request. Whatever comes later is a sign of life, and the connection's end does not count any more.

A request is sent before it is received, and two clocks that run at one rate measure the same lease, so the client's
half ends first. Clocks do not run at quite one rate: a quartz is off by up to 0.01 %, and a clock that is being
corrected runs up to 0.05 % fast or slow (what Linux allows itself), so two differ by about 0.1 % at worst.
`CLOCK_MARGIN` is twenty times that, which also covers that clocks are read in whole ms. A clock that stands still, of a
virtual machine that is frozen, is beyond any margin: what such a member was handing out is fenced when it commits, not
before. Sleep of the whole machine is counted (`Runtime.elapsed_ms`). What was handed out before the lease ended is in
the application's hands.
"""

from __future__ import annotations

CLOCK_MARGIN = 0.02
_BEATS = 0.4
"""The share of a lease after which the next heartbeat goes: a second one has a chance to renew it too."""
_PATIENCE = 0.5
"""The share of a lease after which a heartbeat without an answer has failed: a new connection may do better in time."""


class Lease:
    """One member's lease.

    Attributes:
        length_ms: None while none was told: then it never ends.
        heard_ms: when the last request that was answered was sent.
    """

    __slots__ = ("heard_ms", "length_ms")

    def __init__(self, length_ms: float | None = None) -> None:
        self.length_ms = length_ms
        self.heard_ms = float("-inf")

    def told(self, length_ms: float | None) -> None:
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
        return float("inf") if self.length_ms is None else self.heard_ms + self.length_ms * (1 - CLOCK_MARGIN)

    def holds(self, now_ms: float) -> bool:
        """Whether the member owns what it was assigned."""
        return self.length_ms is None or now_ms < self.end_ms

    def beat_ms(self, interval_ms: float) -> float:
        """The time from one heartbeat to the next: the interval, or less where the lease needs it."""
        return interval_ms if self.length_ms is None else min(interval_ms, self.length_ms * _BEATS)

    def answer_ms(self, limit_ms: float) -> float:
        """How long to wait for a heartbeat's answer: the limit, or less where the lease needs it."""
        return limit_ms if self.length_ms is None else min(limit_ms, self.length_ms * _PATIENCE)
