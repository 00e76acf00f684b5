"""Several coordinators over a simulated Kafka and ZooKeeper: seeds without a violation, and mutants."""

from __future__ import annotations

import subprocess
import sys

import pytest
from simulation.checkers.group_checkers import OwnershipChecker
from simulation.checkers.property import Checker
from simulation.harness.plan import Plan
from simulation.mutants.disk_mutants import DiskMutant
from simulation.remote.fault_schedules import SHOWN_BY, left_behind
from simulation.remote.mutants import REMOTE_MUTANTS, HeartbeatsWithoutProof
from simulation.remote.run import OURS, REMOTE, RemoteRun, remote_plan

from tests.support.long_runs import IS_LONG

SEEDS = 60
PATIENCE = 200
SEEN_AT = {
    "EndsSessionsEarly": 4,
    "TakesEarlierNodesForItsOwn": 1,
    "TakesTimeoutsForSuccess": 6,
    "WritesHalves": 12,
    "HeartbeatsWithoutProof": 30,
    "PushesWithoutProof": 4,
}
"""Seeds that show a mutant: they are played first."""
DAY_MS = 30_000


def shown(mutant: str, seed: int) -> Plan:
    return SHOWN_BY[mutant](seed) if mutant in SHOWN_BY else remote_plan(seed)


@pytest.mark.parametrize("start", range(0, SEEDS, 5))
def test_seeds_are_clean(start: int) -> None:
    for seed in range(start, start + 5):
        result = RemoteRun(seed).play()
        assert result.failure is None, f"seed {seed}: {result.failure}"


@pytest.mark.parametrize(("mutant", "checker"), REMOTE_MUTANTS.items(), ids=lambda kind: kind.__name__)
def test_a_mutant_is_killed_by_its_checker(mutant: type[DiskMutant], checker: type[Checker]) -> None:
    first = SEEN_AT.get(mutant.__name__, 0)
    for seed in (*range(first, PATIENCE), *range(first)):
        result = RemoteRun(shown(mutant.__name__, seed), mutant, (checker,), shortest_ms=DAY_MS).play()
        if result.failure is not None:
            assert result.checker == checker.__name__, result.failure
            return
    pytest.fail(f"{mutant.__name__} survived {PATIENCE} seeds")


def test_each_checker_of_these_runs_has_a_mutant() -> None:
    assert set(OURS) <= set(REMOTE_MUTANTS.values()) <= set(REMOTE)


def test_without_proof_two_members_own_one_partition() -> None:
    """Two clients hold one partition: the replaced coordinator keeps the first alive; the second was assigned it."""
    plans = map(left_behind, range(PATIENCE))
    found = (RemoteRun(plan, HeartbeatsWithoutProof, (OwnershipChecker,), shortest_ms=DAY_MS).play() for plan in plans)
    assert next((result.checker for result in found if result.failure is not None), None) == "OwnershipChecker"


@pytest.mark.parametrize("day", SHOWN_BY.values())
def test_a_day_that_shows_a_mutant_is_clean_without_it(day: object) -> None:
    assert callable(day)
    for seed in range(2 if IS_LONG else 1):
        assert RemoteRun(day(seed)).play().failure is None


def test_coordinators_take_over_and_answer_while_they_are_overtaken() -> None:
    """Terms begin, appends are rejected and answers leave late: otherwise the checkers would check nothing."""
    terms = late = 0
    overtaken: set[int] = set()
    for seed in range(10):
        run = RemoteRun(left_behind(seed), shortest_ms=DAY_MS)
        answered = run.checkers.on_overtaken

        def count(*args: object) -> None:
            nonlocal late
            late += 1
            answered(*args)  # type: ignore[arg-type]  # noqa: B023  # called within this run

        run.checkers.on_overtaken = count  # type: ignore[assignment,method-assign]
        assert run.play().failure is None
        terms += len(run.fleet.kafka.partition.began_ms)
        if any(coordinator.ownership.fences for coordinator in run.fleet.coordinators):
            overtaken.add(seed)
    assert terms > 15
    assert len(overtaken) > 3
    assert late > 10


def test_the_command_plays_them() -> None:
    words = [sys.executable, "-m", "simulation", "--remote", "--seeds", "2", "--start", "3", "--jobs", "1"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert "seeds 3 to 4: 2 runs" in ended.stdout
