"""Virtual time, and chance."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable


class ViolatedError(Exception):
    """A property does not hold."""


class Clock:
    """Virtual time: what is to happen, in order."""

    def __init__(self, seed: int) -> None:
        self.now_ms = 0
        self.chance = random.Random(seed)
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self.story: list[str] = []

    def after(self, delay_ms: int, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now_ms + delay_ms, next(self._count), do))

    def log(self, text: str) -> None:
        self.story.append(f"{self.now_ms / 1000:8.3f} {text}")

    def run(self, until_ms: int) -> None:
        """Let time pass; also within something that happens, which is held meanwhile."""
        while self._due and self._due[0][0] <= until_ms:
            self.now_ms, _, do = heapq.heappop(self._due)
            do()
        self.now_ms = max(self.now_ms, until_ms)
