"""Virtual time and chance: everything that happens, happens because the world calls it."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from kohort.ids import TopicId

WALL_START_MS = 1_700_000_000_000


class Chance(random.Random):
    """A stream of chance, cheaper to draw from than `randint`."""

    def upto(self, most: int) -> int:
        """A whole number from 0 to `most`, both possible."""
        return int(self.random() * (most + 1))

    def likely(self, probability: float) -> bool:
        """True with this probability."""
        return self.random() < probability


class Happening:
    """Something that will be called at a time, unless cancelled.

    Attributes:
        action: None once it has been called or cancelled.
    """

    __slots__ = ("action", "at_ms")

    def __init__(self, at_ms: int, action: Callable[[], None]) -> None:
        self.at_ms = at_ms
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Cancel the call."""
        self.action = None


class World:
    """One run's clock and its sources of chance.

    Each actor draws from a stream of its own, so that a plan with a step less leaves the others' luck as it was.

    Attributes:
        now_ms: virtual monotonic time.
        skew_ms: the sum of the wall clock's jumps.
        happened: the number of events so far.
        topic_ids: the topics that exist, with their ids.
        trace: the last lines of the trace, for a failure's report; empty unless `tells`.
    """

    TRACE_LINES = 400

    def __init__(self, seed: int, *, tells: bool = False) -> None:
        self.seed = seed
        self.now_ms = 0
        self.skew_ms = 0
        self.happened = 0
        self.tells = tells
        self.topic_ids: dict[str, TopicId] = {}
        self.trace: list[str] = []
        self._queue: list[tuple[int, int, Happening]] = []
        self._order = 0

    def stream(self, name: str) -> Chance:
        """The chance of one actor, the same in every run of this seed."""
        return Chance(f"{self.seed}/{name}")

    @property
    def wall_ms(self) -> int:
        """Virtual wall clock."""
        return WALL_START_MS + self.now_ms + self.skew_ms

    def after(self, delay_ms: float, action: Callable[[], None]) -> Happening:
        """Call `action` in `delay_ms`."""
        at_ms = self.now_ms + (int(delay_ms) if delay_ms > 0 else 0)
        happening = Happening(at_ms, action)
        self._order += 1
        heapq.heappush(self._queue, (at_ms, self._order, happening))
        return happening

    def run_until(self, end_ms: int) -> None:
        """Let everything happen until `end_ms`."""
        queue, pop = self._queue, heapq.heappop
        while queue and queue[0][0] <= end_ms:
            at_ms, _, happening = pop(queue)
            action = happening.action
            if action is not None:
                happening.action = None
                self.now_ms = at_ms
                self.happened += 1
                action()
        self.now_ms = max(self.now_ms, end_ms)

    def log(self, text: str) -> None:
        """Keep a line of the story."""
        if self.tells:
            self.trace.append(f"{self.now_ms / 1000:9.3f} {text}")
            if len(self.trace) > self.TRACE_LINES:
                del self.trace[: self.TRACE_LINES // 2]
