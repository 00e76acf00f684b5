"""Push members in the simulation: seeds that must be clean, and mutants that must not survive. Source: spec 4."""

from __future__ import annotations

import pytest
from simulation.property import Checker
from simulation.push_mutants import PUSH_MUTANTS
from simulation.push_plan import PUSH_CHECKERS, PushDraft
from simulation.run import Run

from kohort.groups.machine import GroupMachine

SEEDS = 90
PATIENCE = 300
SEEN_AT = {"CountsLeasesFromFrames": 22, "HalvesSessions": 8}


@pytest.mark.parametrize("start", range(0, SEEDS, 30))
def test_seeds_are_clean(start: int) -> None:
    for seed in range(start, start + 30):
        result = Run(PushDraft(seed).plan(), None, PUSH_CHECKERS).play()
        assert result.failure is None, f"seed {seed}: {result.failure}"


@pytest.mark.parametrize(("mutant", "checker"), PUSH_MUTANTS.items(), ids=lambda kind: kind.__name__)
def test_a_mutant_is_killed_by_its_checker(mutant: type[GroupMachine], checker: type[Checker]) -> None:
    first = SEEN_AT.get(mutant.__name__, 0)
    for seed in (*range(first, PATIENCE), *range(first)):
        result = Run(PushDraft(seed).plan(), mutant, (checker,)).play()
        if result.failure is not None:
            assert result.checker == checker.__name__
            return
    pytest.fail(f"{mutant.__name__} survived {PATIENCE} seeds")
