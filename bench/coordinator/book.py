"""The partitions that the clients of one group hold, by their own account: downtime and overlaps."""

from __future__ import annotations

import time
from typing import Any


class Book:
    """The partitions of one group.

    Attributes:
        holders: partition to the member that would process it.
        still: how long partitions that changed hands stood still, in seconds.
        overlaps: how often a member took a partition that another still held.
    """

    def __init__(self) -> None:
        self.holders: dict[int, Any] = {}
        self.still: list[float] = []
        self.overlaps = 0
        self._released: dict[int, tuple[float, Any]] = {}

    def take(self, member: Any, partitions: frozenset[int]) -> None:
        """A member begins to process these."""
        now = time.monotonic()
        for partition in partitions:
            holder = self.holders.get(partition)
            if holder is member:
                continue
            if holder is not None:
                self.overlaps += 1
            self.holders[partition] = member
            released = self._released.pop(partition, None)
            if released is not None and released[1] is not member:
                self.still.append(now - released[0])

    def release(self, member: Any, partitions: frozenset[int]) -> None:
        """A member stops to process these, or is gone."""
        now = time.monotonic()
        for partition in partitions:
            if self.holders.get(partition) is member:
                del self.holders[partition]
                self._released[partition] = (now, member)
