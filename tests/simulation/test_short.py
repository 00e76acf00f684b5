"""The short form of the simulation: seeds that must be clean, and mutants that must not survive."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from simulation.checkers import ALL
from simulation.disk_mutants import DiskMutant
from simulation.mutants import MUTANTS
from simulation.property import Checker
from simulation.run import FEWEST_EVENTS, SHORTEST_MS, Run

from kohort.coordinator.shard import Shard
from kohort.groups.machine import GroupMachine

SEEDS = 300
PATIENCE = 1_000
SEEN_AT = {
    "ForgetsEnds": 111,
    "ReplacesUnsynced": 59,
    "FetchesForAnyEpoch": 147,
    "ForgivesAnyEpoch": 133,
    "LeavesTracesOfGroups": 171,
    "HidesWhatIsGivenUp": 123,
    "TakesAnyTarget": 106,
    "CountsTwice": 97,
    "CallsFencedUnavailable": 78,
    "LooksAtNoTopicsAfterRestart": 62,
}
"""The seeds that showed those that few seeds show: looked at first, then all the others."""


@pytest.mark.parametrize("start", range(0, SEEDS, 50))
def test_seeds_are_clean(start: int) -> None:
    for seed in range(start, start + 50):
        result = Run(seed).play()
        assert result.failure is None, f"seed {seed}: {result.failure}"
        assert result.virtual_ms >= SHORTEST_MS
        assert result.events >= FEWEST_EVENTS


@pytest.mark.parametrize(("mutant", "checker"), MUTANTS.items(), ids=lambda kind: kind.__name__)
def test_a_mutant_is_killed_by_its_checker(
    mutant: type[GroupMachine | Shard | DiskMutant], checker: type[Checker]
) -> None:
    first = SEEN_AT.get(mutant.__name__, 0)
    for seed in (*range(first, PATIENCE), *range(first)):
        result = Run(seed, mutant, (checker,)).play()
        if result.failure is not None:
            assert result.checker == checker.__name__
            assert Run(seed, mutant, (checker,), tells=True).play().trace
            return
    pytest.fail(f"{mutant.__name__} survived {PATIENCE} seeds")


def test_every_checker_has_a_mutant() -> None:
    assert set(MUTANTS.values()) == set(ALL)


def test_a_seed_repeats_itself_in_any_process() -> None:
    """Nothing depends on the order of a set of strings, which differs between processes."""
    program = "from simulation.run import Run; r = Run(7, tells=True).play(); print(r.events, r.virtual_ms, r.trace)"
    told = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert len(told[0]) > 1_000


def test_many_seeds_in_several_processes() -> None:
    words = [sys.executable, "-m", "simulation", "--seeds", "20", "--start", "3", "--jobs", "2"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert "seeds 3 to 22: 20 runs" in ended.stdout
    assert "0 failed" in ended.stdout
