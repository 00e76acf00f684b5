"""The lease: one number of ms that the broker tells kohort's clients, and how both sides divide it. Pure.

A member may live on behind a broken connection, and is evicted long before its session ends (`groups.liveness.lost`).
So it must have stopped by then, and both know the lease. The broker tells it when they connect, and to no one else:
against other brokers nothing changes.

- The client's half (`client.group.lease`): it owns what it was assigned until a lease has passed since it **sent**
  the last request that was answered. Then it hands nothing out; positions and partitions stay as they are. The next
  answer makes it go on, or tells it that it was evicted.
- The coordinator's half: a member whose connection ended is evicted no sooner than a lease after it **received** the
  last request. Whatever comes later is a sign of life, and the connection's end does not count any more.

A request is sent before it is received, and two clocks that run at one rate measure the same lease, so the client's
half ends first. Clocks do not run at quite one rate: a quartz is off by up to 0.01 %, and a clock that is being
corrected runs up to 0.05 % fast or slow (what Linux allows itself), so two differ by about 0.1 % at worst.
`CLOCK_MARGIN` is twenty times that, which also covers that clocks are read in whole ms. A clock that stands still, of
a virtual machine that is frozen, is beyond any margin: what such a member was handing out is fenced when it commits,
not before. Sleep of the whole machine is counted (`Runtime.elapsed_ms`). What was handed out before the lease ended
is in the application's hands.
"""

from __future__ import annotations

CLOCK_MARGIN = 0.02


def owned_ms(lease_ms: float) -> float:
    """How long after the last answered request was sent a member owns what it was assigned, by its own clock."""
    return lease_ms * (1 - CLOCK_MARGIN)


def beat_ms(lease_ms: int) -> int:
    """At which interval a client sends heartbeats, unless told to more often: a second one can renew the lease too."""
    return lease_ms * 2 // 5


def answer_ms(lease_ms: int) -> int:
    """After which time a heartbeat without an answer has failed: a new connection may do better in time."""
    return lease_ms // 2


def hold_max_ms(lease_ms: int) -> int:
    """How long the answer to a heartbeat may be held back.

    Of two held answers the second comes up to twice as long after the first one's request was sent: with three eighths
    a quarter of the lease is left for the way there and back.
    """
    return lease_ms * 3 // 8
