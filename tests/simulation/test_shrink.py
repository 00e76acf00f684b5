"""A failing plan is shrunk to a small one with the same failure, and the printed command repeats it."""

from __future__ import annotations

import re
import sys

import pytest
from simulation.checkers.group_checkers import LivenessChecker
from simulation.harness.plan import Draft, Plan
from simulation.mutants.group_mutants import NeverEndsSessions
from simulation.run import Result, Run
from simulation.shrink import Shrinker

from simulation import __main__ as command_line


def play(plan: Plan) -> Result:
    return Run(plan, NeverEndsSessions, (LivenessChecker,)).play()


def failing() -> Plan:
    plans = (Draft(seed).plan() for seed in range(100))
    return next(plan for plan in plans if len(plan.steps) > 12 and play(plan).failure is not None)


def test_a_member_that_never_expires_needs_two_who_start_and_one_that_crashes() -> None:
    plan = failing()
    shrinker = Shrinker(plan, LivenessChecker.__name__, play)
    small = shrinker.shrink()
    assert play(small).checker == LivenessChecker.__name__
    kinds = [step.what for step in small.steps]
    assert len(kinds) <= 5 < len(plan.steps)
    assert "start" in kinds
    assert small.heal_ms < plan.heal_ms
    for step in small.steps:
        rest = [other.number for other in small.steps if other is not step]
        assert play(small.keep(rest)).checker != LivenessChecker.__name__


def test_a_shrunk_plan_is_a_plan_of_its_seed_with_steps_left_out() -> None:
    plan = failing()
    small = Shrinker(plan, LivenessChecker.__name__, play).shrink()
    again = Draft(plan.seed).plan().keep(small.kept or ()).until(small.heal_ms)
    assert again == small


def test_a_failure_is_printed_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = failing().seed
    words = ["simulation", "--start", str(seed), "--seeds", "1", "--jobs", "1", "--mutant", "NeverEndsSessions"]
    monkeypatch.setattr(sys, "argv", words)
    assert command_line.main() == 1
    reported = capsys.readouterr().out
    found = re.search(rf"seed {seed} at commit \w+\+?: (\w+Checker):", reported)
    assert found is not None
    repeat = next(line for line in reported.splitlines() if line.startswith("shrunk")).split("python -m simulation ")[1]
    monkeypatch.setattr(sys, "argv", ["simulation", *repeat.split()])
    assert command_line.main() == 1
    assert found[1] in capsys.readouterr().out
