"""docs/who-wins.md: each line has a test that is there; and each check notices what it is there for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.documentation import who_wins_page
from tests.documentation.spec_page import ROOT
from tests.documentation.who_wins_page import OWN, PAGE, lines

TEXT = PAGE.read_text(encoding="utf-8")


def test_each_line_names_tests_that_are_there() -> None:
    assert len(lines(TEXT)) > 30
    assert who_wins_page.unproved(TEXT) == []


def test_each_test_of_the_page_is_in_a_line() -> None:
    assert who_wins_page.untold(TEXT) == []


def test_each_test_that_is_named_is_collected() -> None:
    named = who_wins_page.named(TEXT)
    files = sorted({name.partition("::")[0] for name in named})
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-p", "no:cacheprovider", *files]
    found = subprocess.run(collect, cwd=ROOT, capture_output=True, text=True, check=False)
    collected = {line.partition("[")[0] for line in found.stdout.splitlines()}
    assert named - collected == set(), found.stdout[-2_000:] + found.stderr[-2_000:]


@pytest.mark.parametrize(
    ("check", "old", "new", "complaint"),
    [
        (who_wins_page.unproved, f"`{OWN}::test_committed_needs_a_group`", f"`{OWN}::test_renamed`", "no test_renamed"),
        (who_wins_page.unproved, "`tests/spark/test_changed.py::", "`tests/spark/test_gone.py::", "there is no tests/"),
        (who_wins_page.unproved, f"`{OWN}::test_a_reset_while_members_run_is_refused`", "none", "names no test"),
        (who_wins_page.unproved, "| the reset |", "| |", "a cell is missing"),
        (who_wins_page.unproved, "| 7 | As before", "| 8 | As before", "not numbered"),
        (who_wins_page.unproved, f"| 1 | `{OWN}", f"| 99 | `{OWN}", "a line that is not there"),
        (who_wins_page.untold, "test_committed_needs_a_group", "test_renamed", "test_committed_needs_a_group"),
    ],
)
def test_a_page_that_is_not_true_is_noticed(
    check: Callable[[str], list[str]], old: str, new: str, complaint: str
) -> None:
    assert old in TEXT
    assert complaint in "\n".join(check(TEXT.replace(old, new, 1)))
