"""docs/frameworks.md is what was seen, and says when."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from frameworks.__main__ import FRAMEWORKS
from frameworks.page import PAGE, kept_outcomes, page, record_outcomes


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
