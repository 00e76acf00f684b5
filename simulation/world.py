"""Virtual time and chance: everything that happens, happens because the world calls it."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

WALL_START_MS = 1_700_000_000_000


@dataclass(order=True)
class Happening:
    """Something that will be called at a time, unless cancelled."""

    at_ms: int
    order: int
    action: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        """It will not happen."""
        self.cancelled = True


class World:
    """One run's clock and its source of chance.

    Attributes:
        now_ms: virtual monotonic time.
        skew_ms: what a jump of the wall clock has added.
        trace: the last lines of what happened, for a failure's story.
    """

    TRACE_LINES = 400

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.now_ms = 0
        self.skew_ms = 0
        self.happened = 0
        self.trace: list[str] = []
        self._queue: list[Happening] = []
        self._order = 0

    @property
    def wall_ms(self) -> int:
        """Virtual wall clock."""
        return WALL_START_MS + self.now_ms + self.skew_ms

    def after(self, delay_ms: float, action: Callable[[], None]) -> Happening:
        """Call `action` in `delay_ms`."""
        self._order += 1
        happening = Happening(self.now_ms + max(int(delay_ms), 0), self._order, action)
        heapq.heappush(self._queue, happening)
        return happening

    def run_until(self, end_ms: int) -> None:
        """Let everything happen until `end_ms`."""
        while self._queue and self._queue[0].at_ms <= end_ms:
            happening = heapq.heappop(self._queue)
            if happening.cancelled:
                continue
            self.now_ms = happening.at_ms
            self.happened += 1
            happening.action()
        self.now_ms = end_ms

    def tell(self, text: str) -> None:
        """Keep a line of the story."""
        self.trace.append(f"{self.now_ms / 1000:9.3f} {text}")
        if len(self.trace) > self.TRACE_LINES:
            del self.trace[: self.TRACE_LINES // 2]

    def likely(self, probability: float) -> bool:
        """True with this probability."""
        return self.chance.random() < probability
