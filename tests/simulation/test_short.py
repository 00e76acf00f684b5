"""The short form of the simulation: seeds that must be clean, and mutants that must not survive."""

from __future__ import annotations

import pytest
from simulation.checkers import ALL, Checker
from simulation.mutants import MUTANTS
from simulation.run import Run

from kohort.groups.machine import GroupMachine

SEEDS = 120
PATIENCE = 60


@pytest.mark.parametrize("start", range(0, SEEDS, 20))
def test_seeds_are_clean(start: int) -> None:
    for seed in range(start, start + 20):
        result = Run(seed).play()
        assert result.failure is None, f"seed {seed}: {result.failure}"
        assert result.virtual_ms > 100_000


@pytest.mark.parametrize(("mutant", "checker"), MUTANTS.items(), ids=lambda kind: kind.__name__)
def test_a_mutant_is_killed_by_its_checker(mutant: type[GroupMachine], checker: type[Checker]) -> None:
    for seed in range(PATIENCE):
        result = Run(seed, mutant, (checker,)).play()
        if result.failure is not None:
            assert result.checker == checker.__name__
            assert result.trace
            return
    pytest.fail(f"{mutant.__name__} survived {PATIENCE} seeds")


def test_every_checker_has_a_mutant() -> None:
    assert set(MUTANTS.values()) == set(ALL)


def test_a_seed_repeats_itself() -> None:
    first, second = Run(7).play(), Run(7).play()
    assert (first.events, first.virtual_ms) == (second.events, second.virtual_ms)
