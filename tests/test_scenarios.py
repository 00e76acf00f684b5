"""Every scenario of the table in README.md has a test of its name where the table says."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
NUMBERS = [*range(1, 17), 20, 21, 22]


def rows() -> dict[int, list[str]]:
    """Scenario number to the files that the table names."""
    found = re.findall(r"^\| (\d+) \|.*\| (`tests/.*`) \|$", (HERE / "README.md").read_text(), re.MULTILINE)
    return {int(number): re.findall(r"`(tests/[^`]+)`", files) for number, files in found}


def named(path: Path) -> set[int]:
    """Scenarios that a file's tests are named after."""
    return {int(number) for number in re.findall(r"^def test_scenario_(\d+)_", path.read_text(), re.MULTILINE)}


def test_every_scenario_has_a_row_and_every_row_its_tests() -> None:
    table = rows()
    assert sorted(table) == NUMBERS
    for number, files in table.items():
        for file in files:
            assert number in named(HERE.parent / file), f"{file} has no test_scenario_{number}_"


def test_no_scenario_is_tested_where_the_table_does_not_say_so() -> None:
    table = rows()
    for path in HERE.rglob("test_*.py"):
        file = path.relative_to(HERE.parent).as_posix()
        for number in named(path):
            assert file in table[number], f"{file} tests scenario {number}"
