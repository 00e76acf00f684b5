"""A process that may be stopped and wake where it was."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from simulation.harness.world import Happening, World


class Life:
    """Gives one process its turns: none after its death, none while it is stopped; what came meanwhile waits.

    Attributes:
        alive: it has not died.
        paused: it is stopped (SIGSTOP).
    """

    def __init__(self, world: World, turned: Callable[[], None]) -> None:
        """`turned` is called after every turn."""
        self._world = world
        self._turned = turned
        self.alive = True
        self.paused = False
        self._asleep: list[Callable[[], None]] = []

    def turn(self, action: Callable[[], object]) -> None:
        """One turn, now or when it wakes."""
        if not self.alive:
            return
        if self.paused:
            self._asleep.append(partial(self.turn, action))
            return
        action()
        self._turned()

    def after(self, delay_ms: float, action: Callable[[], object]) -> Happening:
        """Take a turn after a delay."""
        return self._world.after(delay_ms, partial(self.turn, action))

    def pause(self) -> None:
        """Stand still."""
        self.paused = True

    def wake(self) -> None:
        """Go on with what waits, in its order."""
        if self.paused:
            self.paused = False
            asleep, self._asleep = self._asleep, []
            for action in asleep:
                action()

    def die(self) -> None:
        """Nothing more happens."""
        self.alive = False
        self._asleep.clear()
