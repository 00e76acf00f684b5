"""Applications on kohort's own clients: seeds without a violation, and mutants that the checkers detect."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from simulation.clients.checkers import CHECKERS, ClientChecker, CommitChecker
from simulation.clients.mutants import CLIENT_MUTANTS, ClientMutant, CommitsOvertake
from simulation.clients.plan import answers_that_never_come, client_plan, given_up_while_others_wait
from simulation.clients.run import ClientRun
from simulation.harness.plan import Plan
from simulation.run import Result
from simulation.shrink import Shrinker

from simulation import __main__ as command_line

SEEDS = 60
PATIENCE = 200
SEEN_AT = {
    "CommitsOvertake": 39,
    "SendsBehindTheFirst": 21,
    "SendsAgainLast": 1,
    "LateOffsetUndoesSeek": 5,
    "ReadsOnAfterSeek": 5,
    "BeginsAtUnstableOffsets": 3,
}
"""Seeds that show a mutant: they are played first, then all the others."""
SHOWN_BY: dict[str, Callable[[int], Plan]] = {
    "NumbersAnewWhileSending": given_up_while_others_wait,
    "SaysNotDelivered": answers_that_never_come,
}
"""Plans for mutants that few seeds show."""


@pytest.mark.parametrize("start", range(0, SEEDS, 10))
def test_seeds_are_clean(start: int) -> None:
    for seed in range(start, start + 10):
        result = ClientRun(seed).play()
        assert result.failure is None, f"seed {seed}: {result.failure}"
        assert result.events >= 200


@pytest.mark.parametrize(("mutant", "checker"), CLIENT_MUTANTS.items(), ids=lambda kind: kind.__name__)
def test_mutant_is_killed_by_its_checker(mutant: type[ClientMutant], checker: type[ClientChecker]) -> None:
    first = SEEN_AT.get(mutant.__name__, 0)
    for seed in (*range(first, PATIENCE), *range(first)):
        plan = SHOWN_BY.get(mutant.__name__, client_plan)(seed)
        result = ClientRun(plan, mutant, (checker,)).play()
        if result.failure is not None:
            assert result.checker == checker.__name__, result.failure
            return
    pytest.fail(f"{mutant.__name__} survived {PATIENCE} seeds")


@pytest.mark.parametrize("mutant", SHOWN_BY)
def test_plan_that_shows_a_mutant_is_clean_without_it(mutant: str) -> None:
    for seed in range(5):
        assert ClientRun(SHOWN_BY[mutant](seed)).play().failure is None


def test_every_checker_has_a_mutant() -> None:
    assert {*CLIENT_MUTANTS.values()} == {*CHECKERS}


def test_seed_repeats_itself_in_any_process() -> None:
    program = (
        "from simulation.clients.run import ClientRun; r = ClientRun(3, tells=True).play(); "
        "print(r.events, r.virtual_ms, r.trace)"
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


def test_failing_plan_shrinks_and_its_command_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def play(plan: Plan) -> Result:
        return ClientRun(plan, CommitsOvertake, (CommitChecker,)).play()

    seed = SEEN_AT["CommitsOvertake"]
    plan = client_plan(seed)
    shrinker = Shrinker(plan, CommitChecker.__name__, play)
    small = shrinker.shrink()
    assert len(small.steps) < len(plan.steps)
    assert ClientRun(small, CommitsOvertake, (CommitChecker,)).play().checker == CommitChecker.__name__
    words = ["simulation", "--clients", "--start", str(seed), "--seeds", "1", "--jobs", "1", "--no-shrink"]
    monkeypatch.setattr(sys, "argv", [*words, "--mutant", "CommitsOvertake"])
    assert command_line.main() == 1
    reported = capsys.readouterr().out
    repeat = re.search(r"repeat with: python -m simulation (.*)", reported)
    assert repeat is not None
    monkeypatch.setattr(sys, "argv", ["simulation", *repeat[1].split()])
    assert command_line.main() == 1
    assert "CommitChecker" in capsys.readouterr().out
