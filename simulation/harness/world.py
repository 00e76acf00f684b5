"""Virtual time and randomness: every event of a run is a call by the world."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from kohort.ids import TopicId

WALL_START_MS = 1_700_000_000_000


class Chance(random.Random):
    """A random stream, faster than `randint`."""

    def upto(self, most: int) -> int:
        """Draw an integer from 0 to `most`, both included."""
        return int(self.random() * (most + 1))

    def likely(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random() < probability


class ScheduledCall:
    """A scheduled call.

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
    """One run's clock and its random streams.

    Each actor draws from a stream of its own, so a plan with one step less leaves the other actors' draws unchanged.

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
        self._queue: list[tuple[int, int, ScheduledCall]] = []
        self._order = 0

    def stream(self, name: str) -> Chance:
        """Return the random stream of one actor, the same in every run of this seed."""
        return Chance(f"{self.seed}/{name}")

    @property
    def wall_ms(self) -> int:
        """Return the virtual wall clock."""
        return WALL_START_MS + self.now_ms + self.skew_ms

    def after(self, delay_ms: float, action: Callable[[], None]) -> ScheduledCall:
        """Call `action` after `delay_ms`."""
        at_ms = self.now_ms + (int(delay_ms) if delay_ms > 0 else 0)
        happening = ScheduledCall(at_ms, action)
        self._order += 1
        heapq.heappush(self._queue, (at_ms, self._order, happening))
        return happening

    def run_until(self, end_ms: int) -> None:
        """Run all events until `end_ms`."""
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
        """Add a line to the trace."""
        if self.tells:
            self.trace.append(f"{self.now_ms / 1000:9.3f} {text}")
            if len(self.trace) > self.TRACE_LINES:
                del self.trace[: self.TRACE_LINES // 2]
