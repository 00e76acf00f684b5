"""The short form of the histories: seeds that must be clean, and faults in the source that must not survive."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count
from pathlib import Path

import pytest
from tests.spark.histories.check import CHECKS
from tests.spark.histories.history import Outcome, Place, place, play
from tests.spark.histories.mutants import (
    MUTANTS,
    commits_before_the_sink,
    commits_no_claims,
    reads_a_record_too_far,
)
from tests.support.long_runs import IS_LONG

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]
"""The pipes of Spark's gateway in the tests before are collected, and warned of, while these run."""

SEEDS = 40 if IS_LONG else 6
AT_ONCE = 8
PATIENCE = 60
SEEN_AT = {
    "resumes_at_the_checkpoint": 5,
    "releases_inside_a_batch": 27,
    "raises_by_a_batch_that_was_left": 11,
    "raises_by_anyones_checkpoint": 11,
    "drops_a_partition_of_a_repeated_batch": 7,
    "starts_new_partitions_at_their_ends": 7,
    "repeats_with_new_ends": 7,
    "repeats_what_others_read": 5,
    "reads_again_what_was_left": 13,
    "ends_on_an_overtaken_look": 47,
    "loses_the_last_task": 5,
}
"""Seeds whose plan shows a fault, though not each time: looked at first, then the others."""
TRIES = 6


QUICKLY_SEEN = (
    commits_before_the_sink,
    commits_no_claims,
    reads_a_record_too_far,
)


class Stage:
    """Plays histories, several at a time."""

    def __init__(self, threads: ThreadPoolExecutor, make: object, folder: Path) -> None:
        self.threads, self._make, self._folder = threads, make, folder
        self._mine = threading.local()
        self._count = count()

    def play(self, seed: int, mutant: str = "") -> Outcome:
        where: Place | None = getattr(self._mine, "place", None)
        if where is None:
            where = self._mine.place = self._make()  # type: ignore[operator]
        return play(seed, where, mutant, self._folder / f"{mutant}-{seed}-{next(self._count)}")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with place() as make, ThreadPoolExecutor(AT_ONCE) as threads:
        yield Stage(threads, make, tmp_path_factory.mktemp("histories"))


def test_histories_are_clean(stage: Stage) -> None:
    for outcome in stage.threads.map(stage.play, range(SEEDS)):
        assert not outcome.violations, f"seed {outcome.seed} in {outcome.folder}: {outcome.violations[:5]}"
        assert outcome.metrics["records"] > 0


def survives(stage: Stage, mutant: str, properties: tuple[str, ...]) -> str:
    """Nothing when one of the properties shows the fault; else what was seen."""
    first = SEEN_AT.get(mutant, 0)
    seen: set[str] = set()
    for seed in chain((first,) * TRIES, range(PATIENCE)):
        found = {text.partition(":")[0] for text in stage.play(seed, mutant).violations}
        if found & set(properties):
            return ""
        seen |= found
    return f"{mutant} survived {PATIENCE} histories; they showed {seen or 'nothing'}"


def test_faults_are_shown_by_their_property(stage: Stage) -> None:
    """A few that nearly every history shows; all with KOHORT_MUTANTS=all, which takes minutes."""
    every = os.environ.get("KOHORT_MUTANTS") == "all"
    hunts = [
        stage.threads.submit(survives, stage, mutant.__name__, properties)
        for mutant, properties in MUTANTS.items()
        if every or mutant in QUICKLY_SEEN
    ]
    assert [survived for hunt in hunts if (survived := hunt.result())] == []


def test_every_fault_can_be_planted() -> None:
    """One that can't ends each run before it begins: such histories show nothing. In a process of its own."""
    child = "from tests.spark.histories.mutants import MUTANTS, plant\nfor one in MUTANTS: plant(one.__name__)"
    planted = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=False)
    assert planted.returncode == 0, planted.stderr


def test_every_property_of_a_mutant_is_one_that_is_checked() -> None:
    assert set(chain.from_iterable(MUTANTS.values())) <= {check.__name__ for check in CHECKS}
