"""docs/who-wins.md held to the tests: each line names tests that are there, and all tests of the page are in a line."""

from __future__ import annotations

import re

from tests.documentation.spec_page import ROOT, cells, names_in, tests_of

PAGE = ROOT / "docs" / "who-wins.md"
OWN = "tests/spark/test_who_wins.py"
"""What is tested for this page alone."""
HEAD = ["situation", "who wins", "why, and how to get the other", "tests"]


def lines(text: str) -> list[list[str]]:
    """The cells of each line of the page's tables, without their heads."""
    rows = [cells(line) for line in re.findall(r"^\|.*$", text, re.MULTILINE)]
    return [row for row in rows if row != HEAD and set("".join(row)) != {"-"}]


def unproved(text: str) -> list[str]:
    """Lines that do not have all cells, or name no test, or one that is not collected."""
    found = []
    for row in lines(text):
        if len(row) != len(HEAD) or not all(row):
            found.append(f"{row[0]}: a cell is missing")
            continue
        named = tests_of(row[-1])
        if not named:
            found.append(f"{row[0]}: names no test")
        for file, test in named:
            if not (ROOT / file).is_file():
                found.append(f"{row[0]}: there is no {file}")
            elif not test.startswith("test_") or test not in names_in(file):
                found.append(f"{row[0]}: {file} has no {test}")
    return found


def untold(text: str) -> list[str]:
    """Tests that are there for the page, and in none of its lines."""
    told = {test for row in lines(text) for file, test in tests_of(row[-1]) if file == OWN}
    return sorted(name for name in names_in(OWN) if name.startswith("test_") and name not in told)


def named(text: str) -> set[str]:
    """The tests of all lines, as pytest writes them."""
    return {f"{file}::{test}" for row in lines(text) for file, test in tests_of(row[-1])}
