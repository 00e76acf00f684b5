"""docs/frameworks.md is what was seen, and says when."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from frameworks.__main__ import FRAMEWORKS
from frameworks.page import PAGE, kept_outcomes, page, record_failure, record_outcomes
from frameworks.run import Outcome


def test_tables_are_those_of_the_outcomes() -> None:
    current = PAGE.read_text(encoding="utf-8")
    assert page(current, kept_outcomes()) == current, "make docs"
    changed = [replace(outcome, seconds=outcome.seconds + 9) for outcome in kept_outcomes()]
    assert page(current, changed) != current


def test_every_row_is_of_a_framework_that_can_be_repeated_and_without_a_fault() -> None:
    known = {framework.name for framework in FRAMEWORKS}
    for outcome in kept_outcomes():
        assert outcome.framework in known
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", outcome.date)
        assert outcome.faults == []
        assert outcome.clean_seeds[-1] == outcome.seed
        assert outcome.kills["members"] > 0
        assert outcome.kills["broker"] > 0


def test_later_outcome_replaces_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.json"
    first, second, *_ = kept_outcomes()
    record_outcomes([first, second], path)
    record_outcomes([replace(first, seed=99)], path)
    assert sorted((found.broker, found.seed == 99) for found in kept_outcomes(path)) == sorted(
        [(first.broker, True), (second.broker, False)]
    )


def test_clean_runs_in_a_row_are_counted_until_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.json"
    clean = replace(kept_outcomes()[0], clean_seeds=[])

    def record(run: Outcome) -> list[int]:
        record_outcomes([run], path)
        return kept_outcomes(path)[0].clean_seeds

    assert record(replace(clean, seed=1)) == [1]
    assert record(replace(clean, seed=2)) == [1, 2]
    assert "| 2 (1, 2) |" in page(PAGE.read_text(encoding="utf-8"), kept_outcomes(path))
    assert record(replace(clean, seed=3, faults=["1 lost"])) == []
    assert record(replace(clean, seed=4)) == [4]
    assert record(replace(clean, seed=5, version="of another day")) == [5]


def test_failed_run_ends_the_clean_runs_and_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.json"
    first = kept_outcomes()[0]
    record_failure(first.framework, first.broker, "stuck", path)
    assert not path.exists()
    record_outcomes([first], path)
    record_failure(first.framework, first.broker, "stuck", path)
    (kept,) = kept_outcomes(path)
    assert (kept.clean_seeds, kept.faults) == ([], ["stuck"])
