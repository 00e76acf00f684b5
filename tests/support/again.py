"""Run the tests in several processes, and the few that fail once more alone: `python -m tests.support.again ARGS …`.

Two cores run five workers with Kafka, ZooKeeper and Spark in each. A client of another project that waits for the
processor longer than it allows fails there, and so does a race of kohort's. The second run names every test that failed
beside others. Such a test is a fault until its cause is known. More than `AGAIN_MAX` failures are not looked at again.

The results of the first run are kept in `RESULTS`, from which `make verify FROM=build/tests.xml` writes a page.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.verify import commit

AGAIN_MAX = 6
"""Failures that a busy machine may explain; more of them have another cause."""
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
RESULTS = Path("build/tests.xml")
FAILED = 1
"""Pytest's exit code when tests ran and some failed."""


def failed_tests() -> list[str]:
    """The node ids that pytest noted in its last run."""
    return sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []


def main(arguments: list[str]) -> int:
    """Run pytest; the exit code of the second run when there is one."""
    LAST_FAILED.unlink(missing_ok=True)
    pytest = [sys.executable, "-m", "pytest"]
    results = [f"--junitxml={RESULTS}", "-o", "junit_family=xunit1", "-o", f"junit_suite_name={commit()}"]
    code = subprocess.call([*pytest, *results, *arguments])
    failed = failed_tests()
    if code != FAILED or not 0 < len(failed) <= AGAIN_MAX or not all("::" in test for test in failed):
        return code
    print(f"\n{len(failed)} tests failed beside others and run once more, alone:", *failed, sep="\n  ", flush=True)
    again = subprocess.call([*pytest, "-v", *failed])
    if again == 0:
        print("\nThey passed alone. Find out why they failed beside others:", *failed, sep="\n  ", flush=True)
    return again


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
