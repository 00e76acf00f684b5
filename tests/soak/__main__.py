"""Run a soak: `python -m tests.soak [--minutes 10] [--fault-s 60] [--seed 1] [--picture FILE] [--json]`."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from tests.soak.picture import drawing
from tests.soak.run import Report, Soak


def main() -> int:
    """Run it; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long records are produced")
    parser.add_argument("--fault-s", type=float, default=60.0, help="seconds between two faults")
    parser.add_argument("--rate", type=float, default=100.0, help="records per second")
    parser.add_argument("--seed", type=int, default=1, help="decides what befalls whom")
    parser.add_argument("--without-spark", action="store_true", help="leave the Spark query out")
    parser.add_argument("--folder", type=Path, help="keep logs and data here")
    parser.add_argument("--picture", type=Path, help="draw the memory over time into this SVG file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args()
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="kohort-soak-") as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        soak = Soak(folder, seed=asked.seed, rate=asked.rate, spark=not asked.without_spark, say=say)
        report = soak.run(minutes=asked.minutes, fault_s=asked.fault_s)
    if asked.picture:
        asked.picture.write_text(drawing(report))
    if asked.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        show(report, Console(width=None if sys.stdout.isatty() else 140))
    return 1 if report.violations else 0


def show(report: Report, console: Console) -> None:
    """Print the accounts, the memory and what broke a promise."""
    machine = f"Python {platform.python_version()}, seed {report.seed}, {report.seconds:.0f} s"
    table = Table(title=f"Records ({machine})", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("output")
    for column in ("produced", "lost", "repeated", "out of order"):
        table.add_column(column, justify="right")
    for name, account in report.accounts.items():
        numbers = (account.produced, account.lost, account.repeated, account.out_of_order)
        table.add_row(name, *(f"{number:,}" for number in numbers))
    console.print(table)
    table = Table(title="Processes", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("part", "faults", "ended by itself"):
        table.add_column(column)
    for column in ("MiB, second quarter", "last half", "at most"):
        table.add_column(column, justify="right")
    for name, memory in report.memory.items():
        faults = [
            f"{word.split(': ')[1]} {n}" for word, n in sorted(report.faults.items()) if word.startswith(f"{name}:")
        ]
        ended = report.ended.get(name, [])
        table.add_row(name, ", ".join(faults), str(len(ended) or ""), *(f"{mib:.0f}" for mib in memory))
    console.print(table)
    for name, reasons in report.ended.items():
        for reason in reasons:
            console.print(f"{name} ended by itself: {reason}", highlight=False, markup=False)
    answered = ", ".join(f"{name} {number}" for name, number in sorted(report.answered.items()))
    console.print(f"Pages answered: {answered}", highlight=False)
    for violation in report.violations or ["No promise was broken."]:
        console.print(violation, highlight=False, markup=False)


if __name__ == "__main__":
    sys.exit(main())
