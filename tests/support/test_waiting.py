"""A wait goes on while something moves, and says what moved last."""

from __future__ import annotations

import re

import pytest

from tests.support.waiting import LOOK_S, MOVES_S, until


def test_a_wait_that_nothing_moves_in_is_given_up() -> None:
    with pytest.raises(AssertionError, match=r"did not happen within 0\.1 s: rain$"):
        until(lambda: False, "rain", 0.1)
    with pytest.raises(AssertionError, match=re.escape("nothing has moved at all; now {'clouds': 0}")):
        until(lambda: False, "rain", 2 * MOVES_S, lambda: {"clouds": 0})


def test_what_moves_prolongs_a_wait_beyond_its_bound() -> None:
    looks = 0

    def looked() -> bool:
        nonlocal looks
        looks += 1
        return looks * LOOK_S > 6 * MOVES_S

    until(looked, "six times the bound is over", 2 * MOVES_S, lambda: {"looks": looks})


def test_the_last_move_is_reported() -> None:
    clouds = iter([0, 1, 2])
    with pytest.raises(AssertionError, match=r"last moved, \d+ s after the beginning, clouds: 1 -> 2; now"):
        until(lambda: False, "rain", 2 * MOVES_S, lambda: {"clouds": next(clouds, 2)})
