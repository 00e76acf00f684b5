"""Runs suites of other projects against our broker: `python -m tests.peers.suites [NAMES] [--json]` (`make suites`)."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.peers.peers import PeerUnavailable
from tests.peers.suites.run import Outcome, run
from tests.peers.suites.suites import SUITES, Suite


def main() -> int:
    """Runs the suites that are named, or all; 1 when a test failed that should not."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers.suites", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *SUITES], help="which suites; all when none is named")
    parser.add_argument("--short", action="store_true", help="what make test runs of them")
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args()
    results = [_result(SUITES[name], short=asked.short) for name in asked.names or SUITES]
    if asked.json:
        print(json.dumps(results))
    else:
        _show(results)
    return 1 if any(result.get("unexpected") or not result.get("whole", True) for result in results) else 0


def _result(suite: Suite, *, short: bool) -> dict[str, Any]:
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(suite.name, total=None)
        try:
            outcome = run(suite, lambda test: progress.update(task, description=f"{suite.name}: {test}"), short=short)
        except PeerUnavailable as error:
            return {"suite": suite.name, "version": suite.version, "unavailable": str(error)}
    return {"suite": suite.name, "version": suite.version, **_counts(outcome)}


def _counts(outcome: Outcome) -> dict[str, Any]:
    return {
        "passed": len(outcome.passed),
        "skipped": len(outcome.skipped),
        "expected": {name: why for name, why in outcome.suite.expected.items() if name in outcome.failed},
        "left_out": dict(outcome.suite.left_out),
        "unexpected": outcome.unexpected,
        "whole": outcome.whole,
    }


def _show(results: list[dict[str, Any]]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 150)
    table = Table("suite", "version", "passed", "failed", "fail as expected, or can't run", "skipped by itself")
    for result in results:
        if "unavailable" in result:
            table.add_row(result["suite"], result["version"], "-", "-", result["unavailable"], "-")
            continue
        reasons = "\n".join(f"{name}: {why}" for name, why in {**result["expected"], **result["left_out"]}.items())
        failed = str(len(result["unexpected"])) + ("" if result["whole"] else ", and did not end")
        table.add_row(
            result["suite"], result["version"], str(result["passed"]), failed, reasons, str(result["skipped"])
        )
    console.print(table)
    for result in results:
        for name, said in result.get("unexpected", {}).items():
            console.print(f"[red]{result['suite']}: {name}[/red]")
            console.print("\n".join(said), markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
