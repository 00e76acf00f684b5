"""What rebalances cost a query. Pure: it is told the time."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from kohort.client.offsets import Rebalance

log = logging.getLogger("kohort.spark")

BATCHES_MOST = 16
"""Batches remembered: those that a rebalance can have met. None begins in one, but with what it has just looked up."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a query's progress says of its place in the group.

    Attributes:
        member_id: None where the query is no member, or not yet.
        rebalances: assignments received, the first one too, as Kafka's consumers count `rebalance-total`.
        standstill_ms: how long no batch could begin or run in the last of them; None before the first.
    """

    member_id: str | None = None
    rebalances: int = 0
    standstill_ms: float | None = None


class Rebalances:
    """Counts a query's rebalances, and how long each had it stand still.

    A rebalance lasts from when the group asks the member to give up or to join again, or puts it out, until it holds
    its next assignment: Kafka's `rebalance-latency`. While a batch runs it is no standstill: the batch goes on, and
    what the group wants waits for its end. What is left is the standstill.
    """

    def __init__(self, group: str) -> None:
        self.count = 0
        self.standstill_ms: float | None = None
        self._group = group
        self._batches: deque[tuple[float, float]] = deque(maxlen=BATCHES_MOST)

    def batch_began(self, now_ms: float) -> None:
        """From now on a batch runs."""
        self._batches.append((now_ms, float("inf")))

    def batch_ended(self, now_ms: float) -> None:
        """Does nothing where none is running."""
        if self._batches and now_ms < self._batches[-1][1]:
            self._batches[-1] = self._batches[-1][0], now_ms

    def take(self, ended: Iterable[Rebalance]) -> None:
        """Count rebalances, and say a word of each.

        Args:
            ended: since the last call, oldest first; times on the clock of the batches' (`time.monotonic`, in ms).
        """
        for one in ended:
            self.count, self.standstill_ms = one.number, self._standstill_ms(one)
            log.info(
                "group %s: rebalance %d of member %s is over, generation %d: %d partitions held, %d gained, %d lost; "
                "the query stood still for %.0f ms of %.0f",
                self._group,
                one.number,
                one.member_id,
                one.generation,
                one.held,
                one.gained,
                one.lost,
                self.standstill_ms,
                one.ended_ms - one.began_ms,
            )

    def _standstill_ms(self, one: Rebalance) -> float:
        busy_ms = sum(max(0.0, min(until, one.ended_ms) - max(since, one.began_ms)) for since, until in self._batches)
        return max(0.0, one.ended_ms - one.began_ms - busy_ms)
