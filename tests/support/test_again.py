"""A test that fails beside others runs once more alone, and one that fails twice fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import os, pathlib, pytest

def test_good(): pass

def test_busy():
    assert "PYTEST_XDIST_WORKER" not in os.environ, "fails beside others only"

@pytest.mark.parametrize("number", range(int(os.environ["BAD"])))
def test_bad(number):
    pathlib.Path("runs").open("a").write(f"{number}\\n")
    assert False
"""


@pytest.mark.parametrize(
    ("bad", "code", "runs"), [(0, 0, 0), (2, 1, 4), (6, 1, 6)], ids=["busy", "twice", "too many to look again"]
)
def test_failures_run_once_more(tmp_path: Path, bad: int, code: int, runs: int) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.again", "-q", "-n", "2", "-p", "no:kohort", "test_some.py"],
        check=False,
        cwd=tmp_path,
        env={**outside, "PYTHONPATH": str(ROOT), "BAD": str(bad)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    seen = tmp_path / "runs"
    assert (len(seen.read_text().splitlines()) if seen.exists() else 0) == runs
    assert ("test_some.py::test_busy" in ran.stdout.partition("They passed alone")[2]) == (bad == 0)
