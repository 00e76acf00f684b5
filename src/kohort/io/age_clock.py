"""The clock for what is deleted by age: a wall clock that is set forward makes nothing older for a while.

A wrong time server or a restored virtual machine can move the wall clock by years. Retention would then delete all
records within one round, and no later correction brings them back.
"""

from __future__ import annotations

from typing import Final

PATIENCE_MS: Final = 3_600_000
"""A time that the wall clock was set forward to counts after it has shown it for this long."""
TOLERANCE_MS: Final = 60_000
"""A smaller difference is drift, or a time server's adjustment, and counts at once."""


class AgeClock:
    """A clock for deletion by age. It follows the wall clock late when that is set forward, and at once when set back.

    Attributes:
        held_back_ms: by how much the wall clock is ahead of this one.
    """

    __slots__ = ("_ahead_ms", "_lasting_ms", "_since_ms", "held_back_ms")

    def __init__(self, wall_ms: int, mono_ms: int) -> None:
        """Begin with the time by the wall clock, and by a monotonic clock that counts system sleep, if there is one."""
        self._ahead_ms = wall_ms - mono_ms
        self._since_ms: int | None = None
        self._lasting_ms = 0
        self.held_back_ms = 0

    def now_ms(self, wall_ms: int, mono_ms: int) -> int:
        """Return the time in ms since 1970 from which the age of records, offsets and ids is counted.

        Call this regularly: the clock learns of steps of the wall clock by it.
        """
        step_ms = wall_ms - mono_ms - self._ahead_ms
        if step_ms > TOLERANCE_MS:
            if self._since_ms is None:
                self._since_ms, self._lasting_ms = mono_ms, step_ms
            self._lasting_ms = min(self._lasting_ms, step_ms)
            if mono_ms - self._since_ms >= PATIENCE_MS:
                self._ahead_ms += self._lasting_ms
                step_ms -= self._lasting_ms  # a further step, which has not lasted as long
                self._since_ms, self._lasting_ms = mono_ms, step_ms
            if step_ms > TOLERANCE_MS:
                self.held_back_ms = step_ms
                return wall_ms - step_ms
        self._ahead_ms += step_ms
        self._since_ms, self.held_back_ms = None, 0
        return wall_ms
