"""The downtime that rebalances cause a query. Pure: callers pass the time."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from kohort.client.offsets import Rebalance

log = logging.getLogger("kohort.spark")

BATCHES_MAX = 16
"""Most batches remembered: more than can overlap one rebalance, because no batch begins in one, except with partitions
just looked up.
"""


@dataclass(frozen=True, slots=True)
class MemberProgress:
    """A query's group membership, for its progress.

    Attributes:
        member_id: the member id; None if the query is not a member, or not yet.
        rebalances: the number of assignments received, including the first, as in Kafka's `rebalance-total`.
        downtime_ms: how long no batch could begin or run in the last rebalance; None before the first.
    """

    member_id: str | None = None
    rebalances: int = 0
    downtime_ms: float | None = None


class Rebalances:
    """The number of a query's rebalances, and the downtime of the last one.

    A rebalance begins when the group asks the member to release partitions or to rejoin, or removes it. It ends with
    the member's next assignment: Kafka's `rebalance-latency`. While a batch runs there is no downtime: the batch
    continues, and revocations wait for its end. The rest is downtime.
    """

    def __init__(self, group: str) -> None:
        self.count = 0
        self.downtime_ms: float | None = None
        self._group = group
        self._batches: deque[tuple[float, float]] = deque(maxlen=BATCHES_MAX)

    def batch_began(self, now_ms: float) -> None:
        """Record that a batch runs from now on: it keeps a rebalance from causing downtime."""
        self._batches.append((now_ms, float("inf")))

    def batch_ended(self, now_ms: float) -> None:
        """Record that the running batch has ended; do nothing if none is running."""
        if self._batches and now_ms < self._batches[-1][1]:
            self._batches[-1] = self._batches[-1][0], now_ms

    def record_rebalances(self, ended: Iterable[Rebalance]) -> None:
        """Count the member's rebalances, and log each with its downtime.

        Args:
            ended: the rebalances since the last call, oldest first; times on the clock of the batches
                (`time.monotonic`, in ms).
        """
        for rebalance in ended:
            self.count, self.downtime_ms = rebalance.number, self._downtime_ms(rebalance)
            log.info(
                "[group %s][member %s] rebalance %d completed, generation %d: %d partitions owned, %d gained, %d lost; "
                "downtime %.0f ms of %.0f",
                self._group,
                rebalance.member_id,
                rebalance.number,
                rebalance.generation,
                rebalance.held,
                rebalance.gained,
                rebalance.lost,
                self.downtime_ms,
                rebalance.ended_ms - rebalance.began_ms,
            )

    def _downtime_ms(self, rebalance: Rebalance) -> float:
        busy_ms = sum(
            max(0.0, min(until, rebalance.ended_ms) - max(since, rebalance.began_ms)) for since, until in self._batches
        )
        return max(0.0, rebalance.ended_ms - rebalance.began_ms - busy_ms)
