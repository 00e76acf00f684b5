"""The expectations tell apart what they must: state of the time that was given up changes what a query gives."""

from __future__ import annotations

import pytest
from tests.spark.region.oracle import OPERATORS, Timeline, expected
from tests.spark.region.runs import PLAN


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("version", range(PLAN.back + 3, PLAN.given_up + 2))
def test_a_snapshot_of_the_time_given_up_shows_in_the_last_run(name: str, version: int) -> None:
    """A store that loads it has the rows of the first run up to there, and those of the second after it."""
    right, first = Timeline((PLAN.back, PLAN.again)), Timeline()
    batches = [(first if number < version else right).batch(number) for number in range(PLAN.last_of_all + 1)]
    wrong = [sorted(rows) for rows in OPERATORS[name].expected(batches)]
    shown = slice(PLAN.again + 1, None)
    assert wrong[shown] != expected(OPERATORS[name], right, PLAN.last_of_all + 1)[shown]
