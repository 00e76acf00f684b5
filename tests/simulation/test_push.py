"""Push members in the simulation: seeds that must be clean, and mutants that must not survive. Source: spec 4."""

from __future__ import annotations

from functools import cache

import pytest
from simulation.property import Checker
from simulation.push_mutants import PUSH_MUTANTS
from simulation.push_plan import PUSH_CHECKERS, PushDraft
from simulation.recorder import RecordingMachine, Seen
from simulation.run import Run

from kohort.groups.machine import GroupMachine
from kohort.groups.transitions import CLASSIC, CONSUMER, PUSH, PUSH_GROUP

SEEDS = 90
SEEN = 60
PATIENCE = 300
SEEN_AT = {"CountsLeasesFromFrames": 22, "HalvesSessions": 8}


@pytest.mark.parametrize("start", range(0, SEEDS, 30))
def test_seeds_are_clean(start: int) -> None:
    for seed in range(start, start + 30):
        result = Run(PushDraft(seed).plan(), None, PUSH_CHECKERS).play()
        assert result.failure is None, f"seed {seed}: {result.failure}"


@cache
def seen() -> set[Seen]:
    """What groups went through in some runs."""
    found: dict[str, set[Seen]] = {PUSH: set(), CLASSIC: set(), CONSUMER: set(), "member": set()}
    recording = type("Recording", (RecordingMachine,), {"seen": found})
    for seed in range(SEEN):
        Run(PushDraft(seed).plan(), recording, (), shortest_ms=0).play()
    return found[PUSH]


def test_every_transition_is_in_its_table() -> None:
    known = {(each.state, each.event, each.to) for each in PUSH_GROUP}
    assert sorted(seen() - known) == []


def test_every_transition_of_the_table_is_seen_unless_it_is_rare() -> None:
    assert sorted({(each.state, each.event, each.to) for each in PUSH_GROUP if not each.rare} - seen()) == []


@pytest.mark.parametrize(("mutant", "checker"), PUSH_MUTANTS.items(), ids=lambda kind: kind.__name__)
def test_a_mutant_is_killed_by_its_checker(mutant: type[GroupMachine], checker: type[Checker]) -> None:
    first = SEEN_AT.get(mutant.__name__, 0)
    for seed in (*range(first, PATIENCE), *range(first)):
        result = Run(PushDraft(seed).plan(), mutant, (checker,)).play()
        if result.failure is not None:
            assert result.checker == checker.__name__
            return
    pytest.fail(f"{mutant.__name__} survived {PATIENCE} seeds")
