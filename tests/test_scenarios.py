"""Every scenario of the table in README.md has a test of its name where the table says, or names the part that brings it."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
NUMBERS = range(1, 23)
COMES_WITH = {18: "consistent region"}
"""Scenarios of parts that are not there yet, and the part."""


def rows() -> dict[int, str]:
    """Scenario number to where the table says that it is tested."""
    found = re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", (HERE / "README.md").read_text(), re.MULTILINE)
    return {int(number): where for number, where in found}


def files(where: str) -> list[str]:
    """The files that a row names."""
    return re.findall(r"`(tests/[^`]+)`", where)


def named(path: Path) -> set[int]:
    """Scenarios that a file's tests are named after."""
    return {int(number) for number in re.findall(r"^def test_scenario_(\d+)_", path.read_text(), re.MULTILINE)}


def test_every_scenario_has_a_row() -> None:
    assert sorted(rows()) == list(NUMBERS)


def test_every_row_has_its_tests_or_names_the_part_that_brings_them() -> None:
    for number, where in rows().items():
        part = COMES_WITH.get(number)
        assert bool(files(where)) is (part is None), f"scenario {number}: {where}"
        assert part is None or where == f"comes with the {part}"
        for file in files(where):
            path = HERE.parent / file
            if path.parent.is_dir():  # the folder comes with its part
                assert number in named(path), f"{file} has no test_scenario_{number}_"


def test_no_scenario_is_tested_where_the_table_does_not_say_so() -> None:
    table = rows()
    for path in HERE.rglob("test_*.py"):
        file = path.relative_to(HERE.parent).as_posix()
        for number in named(path):
            assert file in files(table[number]), f"{file} tests scenario {number}"
