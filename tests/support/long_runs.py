"""Tests that `make test` leaves out for their length: `tests/long_tests.txt` lists them, `make test-long` runs them."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

LIST = Path(__file__).resolve().parents[1] / "long_tests.txt"
IS_LONG = os.environ.get("KOHORT_LONG") == "1"
"""Whether this run is the long one."""


def examples(count: int) -> int:
    """How many examples a property is tried with: a third of them in `make test`."""
    return count if IS_LONG else count // 3


def patterns() -> list[str]:
    """Every line of the list that is not a comment."""
    return [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]


def skip_long(items: list[pytest.Item]) -> None:
    """Mark the long tests as skipped, unless this run is the long one."""
    if IS_LONG:
        return
    listed = patterns()
    by_file: dict[str, list[str]] = {}
    for pattern in listed:
        by_file.setdefault(pattern.partition("::")[0], []).append(pattern)
    for item in items:
        if any(fnmatchcase(item.nodeid, pattern) for pattern in by_file.get(item.nodeid.partition("::")[0], ())):
            item.add_marker(pytest.mark.skip(reason="a long one: make test-long"))
