"""Virtual time, and chance."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Final


class ViolatedError(Exception):
    """A property does not hold."""


HELD_MAX: Final = 6
"""So many may be held within one another. Otherwise some histories would never come to the end of their bad time."""


class Clock:
    """Virtual time: what is to happen, in order."""

    def __init__(self, seed: int) -> None:
        self.now_ms = self._depth = 0
        self.chance = random.Random(seed)
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._late: dict[int, Callable[[], None]] = {}
        self.story: list[str] = []

    def after(self, delay_ms: int, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now_ms + delay_ms, next(self._count), do))

    def log(self, text: str) -> None:
        self.story.append(f"{self.now_ms / 1000:8.3f} {text}")

    def run(self, until_ms: int) -> None:
        """Let time pass; also within something that happens, which is held meanwhile."""
        self._depth += 1
        try:
            while self._due and self._due[0][0] <= until_ms:
                self.now_ms, _, do = heapq.heappop(self._due)
                do()
        finally:
            self._depth -= 1
        self.now_ms = max(self.now_ms, until_ms)

    def after_late(self, delay_ms: int, do: Callable[[], None]) -> None:
        """Do something after a time, or when `bring_late` is called before that."""
        number = next(self._count)
        self._late[number] = do
        self.after(delay_ms, lambda: self._bring(number))

    def _bring(self, number: int) -> None:
        do = self._late.pop(number, None)
        if do is not None:
            do()

    def bring_late(self) -> None:
        """Do now what was to come late."""
        for number in list(self._late):
            self._bring(number)

    def may_hold(self) -> bool:
        """Return whether one more may be held, while time passes."""
        return self._depth <= HELD_MAX
