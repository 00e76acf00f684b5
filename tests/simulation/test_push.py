"""Push members in the simulation: seeds without a violation, and mutants that the checkers detect. Source: spec 4."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache

import pytest
from simulation.checkers.property import Checker
from simulation.harness.habits import Habits
from simulation.harness.plan import Draft, Plan, PushDraft, Step
from simulation.harness.push_steps import LITERAL, OTHERS, OWN
from simulation.harness.recorder import RecordingMachine, Seen, transitions
from simulation.mutants.push_mutants import PUSH_MUTANTS
from simulation.run import Run

from kohort.groups.config import GroupConfig
from kohort.groups.machine import GroupMachine
from kohort.groups.push.group import PushGroup

SEEDS = 240
SEEN = 60
PATIENCE = 300
RARE: set[Seen] = {
    ("PreparingRebalance", "ConnectionLost", "Stable"),
    ("PreparingRebalance", "LeaveGroup", "Stable"),
    ("PreparingRebalance", "timer SESSION", "Stable"),
    ("Stable", "PushConsumerAnswered", "PreparingRebalance"),
    ("Stable", "OwnerNodesDeleted", "PreparingRebalance"),
    ("Stable", "timer BACKOFF", "PreparingRebalance"),
}
"""Transitions of the table that occur in few runs."""
SEEN_AT = {
    "CountsLeasesFromFrames": 13,
    "ForgetsStopsThatAreOut": 45,
    "RenewsByRetries": 155,
    "CallsRepeatsFirst": 101,
    "FreesAtDisconnects": 19,
    "AnswersBeforeRelease": 1,
    "FindsForWhoFinds": 4,
    "StartsWhoFindsAtTheBegin": 4,
    "HalvesSessions": 4,
}


def stopped_late_and_for_nothing(seed: int) -> Plan:
    """Return a plan in which a consumer answers a Stop after the member that needed it has gone: all is kept."""
    slow = Habits("g0", ("t0",), session_timeout_ms=8_000, callback_ms=12_000, keeps_lease=True)
    steps = (
        Step(0, 0, "start", {"name": "p1", "kind": LITERAL, "habits": slow}),
        Step(1, 4_000, "half_open", {"name": "p1", "duration_ms": 4_500, "up": False}),
        Step(2, 4_000, "start", {"name": "p2", "kind": LITERAL, "habits": Habits("g0", ("t0",))}),
        Step(3, 5_000, "remove", {"name": "p2"}),
        Step(4, 5_000, "crash", {"name": "p2"}),
        Step(5, 8_000, "cut", {"name": "p1"}),
    )
    return Plan(seed, GroupConfig(), {"t0": 4}, ("g0",), steps, 19_000)


SHOWN_BY: dict[str, Callable[[int], Plan]] = {"ForgetsStopsThatAreOut": stopped_late_and_for_nothing}


@pytest.mark.parametrize("start", range(0, SEEDS, 10))
def test_seeds_are_clean(start: int) -> None:
    for seed in range(start, start + 10):
        result = Run(PushDraft(seed).plan()).play()
        assert result.failure is None, f"seed {seed}: {result.failure}"


@cache
def seen() -> set[Seen]:
    """Return the transitions of groups in some runs."""
    found: defaultdict[str, set[Seen]] = defaultdict(set)
    recording = type("Recording", (RecordingMachine,), {"seen": found})
    for seed in range(SEEN):
        Run(PushDraft(seed).plan(), recording, (), shortest_ms=0).play()
    return found[PushGroup.name]


def test_every_transition_is_in_its_table() -> None:
    assert sorted(seen() - transitions(PushGroup.table)) == []


def test_every_transition_of_the_table_is_seen_unless_it_is_rare() -> None:
    assert transitions(PushGroup.table) - seen() <= RARE


@pytest.mark.parametrize(("mutant", "checker"), PUSH_MUTANTS.items(), ids=lambda kind: kind.__name__)
def test_a_mutant_is_killed_by_its_checker(mutant: type[GroupMachine], checker: type[Checker]) -> None:
    first = SEEN_AT.get(mutant.__name__, 0)
    planned = SHOWN_BY.get(mutant.__name__, lambda seed: PushDraft(seed).plan())
    for seed in (*range(first, PATIENCE), *range(first)):
        result = Run(planned(seed), mutant, (checker,)).play()
        if result.failure is not None:
            assert result.checker == checker.__name__
            return
    pytest.fail(f"{mutant.__name__} survived {PATIENCE} seeds")


def test_a_day_that_shows_a_mutant_is_clean_without_it() -> None:
    for seed in range(40, 60):
        assert Run(stopped_late_and_for_nothing(seed)).play().failure is None


def test_plans_have_push_groups_beside_others_and_visitors_both_ways() -> None:
    plans = [Draft(seed).plan() for seed in range(SEEDS)]
    mixed = [plan for plan in plans if "p0" in plan.group_ids]
    assert 0.2 < len(mixed) / SEEDS < 0.4
    assert all("g0" in plan.group_ids for plan in mixed)
    steps = [step for plan in mixed for step in plan.steps]
    visits = {(step.details["kind"], step.details["habits"].group_id[0]) for step in steps if step.what == "visit"}
    assert visits == {(OWN, "g"), (LITERAL, "g"), *((kind, "p") for kind in OTHERS)}
    assert {step.details["up"] for step in steps if step.what == "half_open"} == {True, False}
    assert {"freeze", "remove", "transact", "hostile"} <= {step.what for step in steps}
    started = [step.details["habits"] for step in steps if step.what == "start"]
    assert any(habits.never_stops for habits in started)
    assert {step.details["kind"] for step in steps if step.what == "start" and step.details["habits"].finds_starts} == {
        OWN,
        LITERAL,
    }
    ids = Counter((habits.group_id, habits.consumer_id) for habits in started if habits.consumer_id)
    assert max(ids.values()) > 1
