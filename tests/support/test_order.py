"""Several workers are given long files first, and each file as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.order import LONG, ordered

ROOT = Path(__file__).resolve().parents[2]
FEW, MANY = "tests/support/test_order.py", "tests/support/test_waiting.py"


def test_files_that_take_long_are_there() -> None:
    assert [name for name in LONG if not (ROOT / name).is_file()] == []


def test_long_files_come_first_then_those_with_many_tests(request: pytest.FixtureRequest) -> None:
    def item(file: str, name: str) -> pytest.Item:
        made: pytest.Item = pytest.Function.from_parent(
            request.node.parent, name=name, callobj=test_files_that_take_long_are_there
        )
        made.__dict__["location"] = (file, 0, name)
        return made

    given = [item(FEW, "a"), item(MANY, "b"), item(LONG[1], "c"), item(MANY, "d"), item(LONG[0], "e")]
    assert [test.name for test in ordered(given)] == ["e", "c", "b", "d", "a"]
