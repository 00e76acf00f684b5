"""docs/who-wins.md held to the tests: each line names tests that are there, and all tests of the page are in a line."""

from __future__ import annotations

from tests.documentation.spec_page import ROOT, cells, names_in, tests_of

PAGE = ROOT / "docs" / "who-wins.md"
OWN = "tests/spark/test_who_wins.py"
"""What is tested for this page alone."""
HEAD = ["", "situation", "who wins", "why, and how to get the other"]
TESTS_HEAD = ["line", "tests"]


def _rows(text: str, head: list[str]) -> list[list[str]]:
    """The cells of the rows of each table with this head."""
    found: list[list[str]] = []
    current: list[str] = []
    for line in text.splitlines():
        row = cells(line) if line.startswith("|") else []
        if not current or not row:
            current = row
        elif current == head and set("".join(row)) != {"-"}:
            found.append(row)
    return found


def lines(text: str) -> list[list[str]]:
    """The cells of each numbered line of the page."""
    return _rows(text, HEAD)


def _tests_by_line(text: str) -> dict[str, list[tuple[str, str]]]:
    """The (file, test) pairs of each line, by its number."""
    return {row[0]: tests_of(row[-1]) for row in _rows(text, TESTS_HEAD)}


def unproved(text: str) -> list[str]:
    """Lines that do not have all cells, or name no test, or one that is not collected; and tests of no line."""
    found = []
    rows, by_line = lines(text), _tests_by_line(text)
    if [row[0] for row in rows] != [str(number + 1) for number in range(len(rows))]:
        found.append("the lines are not numbered from 1 on")
    for row in rows:
        if len(row) != len(HEAD) or not all(row):
            found.append(f"{row[0]}: a cell is missing")
        if not by_line.get(row[0]):
            found.append(f"{row[0]}: names no test")
    for number, named_tests in by_line.items():
        if number not in {row[0] for row in rows}:
            found.append(f"{number}: tests of a line that is not there")
        for file, test in named_tests:
            if not (ROOT / file).is_file():
                found.append(f"{number}: there is no {file}")
            elif not test.startswith("test_") or test not in names_in(file):
                found.append(f"{number}: {file} has no {test}")
    return found


def untold(text: str) -> list[str]:
    """Tests that are there for the page, and in none of its lines."""
    told = {test for tests in _tests_by_line(text).values() for file, test in tests if file == OWN}
    return sorted(name for name in names_in(OWN) if name.startswith("test_") and name not in told)


def named(text: str) -> set[str]:
    """The tests of all lines, as pytest writes them."""
    return {f"{file}::{test}" for tests in _tests_by_line(text).values() for file, test in tests}
