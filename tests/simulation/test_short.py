"""The short form of the simulation: seeds without a violation, and mutants that the checkers detect."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from simulation.checkers.group_checkers import ALL
from simulation.checkers.property import Checker
from simulation.harness.assigning import COOPERATIVE
from simulation.harness.habits import Habits
from simulation.harness.network import NetworkFaults
from simulation.harness.plan import Draft, Plan, Step
from simulation.mutants.disk_mutants import DiskMutant
from simulation.mutants.group_mutants import MUTANTS
from simulation.mutants.push_mutants import PUSH_MUTANTS
from simulation.run import FEWEST_EVENTS, SHORTEST_MS, Run

from kohort.coordinator.shard import Shard
from kohort.groups.config import GroupConfig
from kohort.groups.machine import GroupMachine
from tests.support.long_runs import IS_LONG

SEEDS = 300
PATIENCE = 1_000
MIXED = 74
"""A seed with push groups beside others."""
SEEN_AT = {
    "ForgetsEnds": 101,
    "ReplacesUnsynced": 76,
    "FetchesForAnyEpoch": 147,
    "ForgivesAnyEpoch": 636,
    "LeavesTracesOfGroups": 203,
    "HidesWhatIsGivenUp": 123,
    "TakesAnyTarget": 106,
    "CountsTwice": 97,
    "CallsFencedUnavailable": 147,
    "LooksAtNoTopicsAfterRestart": 21,
    "CountsLeasesFromAnswers": 105,
    "WakesTheAway": 365,
    "ForgetsAssignments": 46,
    "ExpiresFromCommits": 51,
    "NeverEndsRevocationsAfterRestart": 82,
    "LeasesIgnored": 19,
    "LetsReadsPass": 239,
    "CommitsAborted": 8,
    "ForgetsWhomItExcluded": 18,
    "NeverStopsRevocations": 18,
    "WatchesNoOneAfterRestart": 16,
    "ForgivesNoEpoch": 16,
    "SyncsInAnOlderEpoch": 28,
    "TakesEarlierTargets": 19,
    "TellsLeadersOfFewer": 19,
    "LoadsTheAwayAsBack": 21,
    "EmptiesTheAway": 12,
    "KeepsPositions": 7,
    "KeepsDivergedMachine": 11,
    "KeepsTornTail": 9,
    "HurriesJoiners": 8,
    "ForgetsThatItWaits": 6,
    "ForgetsParkedSyncs": 6,
    "ForgetsGenerations": 7,
    "DeletesOffsetsThatAreRead": 6,
    "MiscountsJoiners": 5,
    "PutsOutTheStatic": 4,
    "DeletesGroupsWithMembers": 4,
    "NeverEndsSessions": 3,
    "SyncsNoNames": 3,
    "ListsAllAsStable": 3,
    "LosesTheReturned": 2,
}
"""Seeds that soon show a mutant: they are played first, then all the others."""


def lost_while_work_is_under_way(seed: int) -> Plan:
    """Return a plan that reloads the shard while topics or a target are computed for a member with a pattern."""
    joins = {"name": "c1", "kind": "ConsumerMember", "habits": Habits("g0", ("t0",))}
    steps = (Step(0, 500, "start", joins), Step(1, 510 + seed % 160, "reload", {"away_ms": 0}))
    return Plan(seed, GroupConfig(initial_rebalance_delay_ms=0), {"t0": 3}, ("g0",), steps, 1_000)


def cut_off_for_a_session(seed: int) -> Plan:
    """Return a plan in which a member of kohort's own, without a lease, receives answers late and then nothing."""
    joins = {"name": "c1", "kind": "OwnClassicMember", "habits": Habits("g0", ("t0",))}
    bad = {"network": NetworkFaults(delay_ms=1_000), "disk_fails": 0.0, "disk_tears": 0.0}
    steps = (
        Step(0, 0, "start", joins),
        Step(1, 5_000, "faults", bad),
        Step(2, 12_000 + seed % 1_500, "cut_off", {"name": "c1", "duration_ms": 15_000}),
    )
    config = GroupConfig(initial_rebalance_delay_ms=0, notice_disconnects="off")
    return Plan(seed, config, {"t0": 3}, ("g0",), steps, 30_000)


def converted_while_a_member_gives_up(seed: int) -> Plan:
    """Return a plan in which a consumer-protocol member joins while a cooperative one still has to revoke."""
    habits = Habits("g0", ("t0",), (COOPERATIVE,), callback_ms=2_000)
    steps = (
        Step(0, 0, "start", {"name": "c1", "kind": "ClassicMember", "habits": habits}),
        Step(1, 5_000, "start", {"name": "c2", "kind": "ClassicMember", "habits": habits}),
        Step(2, 6_000 + 20 * (seed % 100), "start", {"name": "c3", "kind": "ConsumerMember", "habits": habits}),
    )
    return Plan(seed, GroupConfig(initial_rebalance_delay_ms=0), {"t0": 6}, ("g0",), steps, 20_000)


SHOWN_BY: dict[str, Callable[[int], Plan]] = {
    "BeginsTicketsAnew": lost_while_work_is_under_way,
    "TakesEarlierTargets": lost_while_work_is_under_way,
    "TakesEarlierTopics": lost_while_work_is_under_way,
    "IgnoresClaims": converted_while_a_member_gives_up,
    "CountsSessionsFromAnswers": cut_off_for_a_session,
}
"""Plans for mutants that few seeds show."""


@pytest.mark.parametrize("start", range(0, SEEDS, 10))
def test_seeds_are_clean(start: int) -> None:
    for seed in range(start, start + 10):
        result = Run(seed).play()
        assert result.failure is None, f"seed {seed}: {result.failure}"
        assert result.virtual_ms >= SHORTEST_MS
        assert result.events >= FEWEST_EVENTS


@pytest.mark.parametrize(("mutant", "checker"), MUTANTS.items(), ids=lambda kind: kind.__name__)
def test_a_mutant_is_killed_by_its_checker(
    mutant: type[GroupMachine | Shard | DiskMutant], checker: type[Checker]
) -> None:
    shown_by = SHOWN_BY.get(mutant.__name__, lambda seed: Draft(seed).plan())
    first = SEEN_AT.get(mutant.__name__, 0)
    for seed in (*range(first, PATIENCE), *range(first)):
        plan = shown_by(seed)
        result = Run(plan, mutant, (checker,)).play()
        if result.failure is not None:
            assert result.checker == checker.__name__
            assert Run(plan, mutant, (checker,), tells=True).play().trace
            return
    pytest.fail(f"{mutant.__name__} survived {PATIENCE} seeds")


def test_every_checker_has_a_mutant() -> None:
    assert {*MUTANTS.values(), *PUSH_MUTANTS.values()} == set(ALL)


@pytest.mark.parametrize(
    ("run", "seed"),
    [("simulation.run.Run", 7), ("simulation.run.Run", MIXED), ("simulation.remote.run.RemoteRun", 11)],
)
def test_a_seed_repeats_itself_in_any_process(run: str, seed: int) -> None:
    """Nothing depends on the order of a set of strings, which differs between processes."""
    module, _, name = run.rpartition(".")
    program = (
        f"from {module} import {name}; r = {name}({seed}, tells=True).play(); print(r.events, r.virtual_ms, r.trace)"
    )
    reported = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert reported[0] == reported[1]
    assert len(reported[0]) > 1_000


def test_the_mixed_seed_has_push_groups() -> None:
    assert "p0" in Draft(MIXED).plan().group_ids


def test_many_seeds_in_several_processes() -> None:
    words = [sys.executable, "-m", "simulation", "--seeds", "6", "--start", "3", "--jobs", "2"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert "seeds 3 to 8: 6 runs" in ended.stdout
    assert "0 failed" in ended.stdout


@pytest.mark.parametrize("mutant", SHOWN_BY)
def test_a_day_that_shows_a_mutant_is_clean_without_it(mutant: str) -> None:
    for seed in range(20 if IS_LONG else 5):
        assert Run(SHOWN_BY[mutant](seed)).play().failure is None
