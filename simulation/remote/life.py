"""A process that may be stopped, and resumes where it was."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from simulation.harness.world import ScheduledCall, World


class ProcessLife:
    """The turns of one process: none after its death or while it is stopped; postponed turns run when it resumes.

    Attributes:
        alive: it has not crashed.
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
        """Run an action now, or when the process resumes."""
        if not self.alive:
            return
        if self.paused:
            self._asleep.append(partial(self.turn, action))
            return
        action()
        self._turned()

    def after(self, delay_ms: float, action: Callable[[], object]) -> ScheduledCall:
        """Run an action after a delay."""
        return self._world.after(delay_ms, partial(self.turn, action))

    def pause(self) -> None:
        """Stop the process."""
        self.paused = True

    def wake(self) -> None:
        """Resume: run the postponed actions in their order."""
        if self.paused:
            self.paused = False
            asleep, self._asleep = self._asleep, []
            for action in asleep:
                action()

    def die(self) -> None:
        """End the process: no action runs any more."""
        self.alive = False
        self._asleep.clear()
