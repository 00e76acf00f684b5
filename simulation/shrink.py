"""The reduction of a failing plan to a small one with the same failure: fewer steps, and a shorter fault phase.

Delta debugging drops ever smaller parts of the steps. It keeps each plan that still fails the same checker, until no
single step can be dropped. Source: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input" (2002).
"""

from __future__ import annotations

from collections.abc import Callable

from simulation.harness.plan import Plan
from simulation.run import Result

Player = Callable[[Plan], Result]
RUNS_MAX = 2_000
"""The maximum number of runs: a plan of 40 steps takes about 200."""
MARGIN_MS = 500
"""The minimum time between the last step and the end of the fault phase."""


class Shrinker:
    """The reduction of one failing plan.

    Attributes:
        runs: the number of plans that were played.
    """

    def __init__(self, plan: Plan, checker: str, play: Player) -> None:
        self.plan = plan
        self.checker = checker
        self.runs = 0
        self._play = play

    def shrink(self) -> Plan:
        """Return the smallest failing plan found."""
        while True:
            before = (len(self.plan.steps), self.plan.heal_ms)
            self._drop_steps()
            self._end_sooner()
            if (len(self.plan.steps), self.plan.heal_ms) == before or self.runs >= RUNS_MAX:
                return self.plan

    def _fails(self, plan: Plan) -> bool:
        """Return whether a plan fails the same checker; if so, continue with it."""
        if self.runs >= RUNS_MAX:
            return False
        self.runs += 1
        if self._play(plan).checker != self.checker:
            return False
        self.plan = plan
        return True

    def _drop_steps(self) -> None:
        parts = 2
        while (numbers := [step.number for step in self.plan.steps]) and self.runs < RUNS_MAX:
            parts = min(parts, len(numbers))
            size = -(-len(numbers) // parts)
            for start in range(0, len(numbers), size):
                rest = numbers[:start] + numbers[start + size :]
                if self._fails(self.plan.keep(rest)):
                    parts = max(parts - 1, 2)
                    break
            else:
                if parts == len(numbers):
                    return
                parts *= 2

    def _end_sooner(self) -> None:
        low = max((step.at_ms for step in self.plan.steps), default=0) + MARGIN_MS
        if low < self.plan.heal_ms and self._fails(self.plan.until(low)):
            return
        while self.plan.heal_ms - low > MARGIN_MS and self.runs < RUNS_MAX:
            middle = (low + self.plan.heal_ms) // 2
            if not self._fails(self.plan.until(middle)):
                low = middle
