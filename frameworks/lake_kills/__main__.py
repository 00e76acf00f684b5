"""Kill, pause or remove the workers of programs that write a topic into a table, and account for every record.

`python -m frameworks.lake_kills [NAME…] [--minutes 3] [--kinds kill,pause,leave] [--seed N] [--json]`
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from tests.support.maven import MavenUnavailable

from frameworks.brokers import start_broker
from frameworks.builds import FrameworkUnavailable
from frameworks.framework import Site
from frameworks.lake_kills.trial import AWAY_S, LakeOutcome, TrialPlan, WriterStuck, run_trial
from frameworks.lake_kills.writers import WRITERS, LakeWriter


def main() -> int:
    """Run the writers that are asked for; return 1 if kohort lost or doubled a record, or a writer was stuck."""
    known = {writer.name: writer for writer in WRITERS}
    parser = argparse.ArgumentParser(prog="python -m frameworks.lake_kills", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"writers, all when none is named: {', '.join(known)}")
    parser.add_argument("--broker", choices=("kohort", "kafka"), default="kafka", help="where the topic is")
    parser.add_argument(
        "--minutes", type=float, default=3.0, help="how long records are produced and workers disturbed"
    )
    parser.add_argument("--every", type=float, default=8.0, help="mean seconds between two faults")
    parser.add_argument(
        "--kinds", default="kill", help=f"kinds of faults with commas between them: {', '.join(AWAY_S)}"
    )
    parser.add_argument("--rate", type=int, default=200, help="records a second")
    parser.add_argument("--seed", type=int, default=1, help="decides whom a fault hits when, and for how long")
    parser.add_argument("--others", action="store_true", help="others append to the table, and compact it (Iceberg)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--keep", action="store_true", help="keep the folders with the tables and logs")
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in known]
    if unknown:
        parser.error(f"there is no writer {unknown[0]!r}; there are {', '.join(known)}")
    for kind in asked.kinds.split(","):
        if kind not in AWAY_S:
            parser.error(f"there is no fault {kind!r}; there are {', '.join(AWAY_S)}")
    console = Console(stderr=True)
    outcomes, failures = [], []
    for name in asked.names or known:

        def say(line: str, *, name: str = name) -> None:
            console.print(f"{name}: {line}", style="dim", highlight=False, markup=False)

        try:
            outcomes.append(run_one(known[name](), asked, say))
        except (FrameworkUnavailable, MavenUnavailable) as error:
            say(f"not here: {error}")
        except WriterStuck as error:
            failures.append(f"{name}: {error}")
            say(str(error))
    if asked.json:
        print(json.dumps({"outcomes": [outcome.to_json() for outcome in outcomes], "stuck": failures}, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(table_of(outcomes))
    ours = [outcome for outcome in outcomes if outcome.writer.startswith("kohort")]
    return 1 if failures or any(not found.account.is_exact or found.half_looks for found in ours) else 0


def run_one(writer: LakeWriter, asked: argparse.Namespace, say: Callable[[str], None]) -> LakeOutcome:
    """Run one writer on a broker of its own, in a folder that is deleted in the end."""
    folder = Path(tempfile.mkdtemp(prefix=f"kohort-lake-kills-{writer.name}-"))
    if asked.keep:
        say(f"folder {folder}")
    try:
        broker = start_broker(asked.broker, folder)
        try:
            return run_trial(
                writer,
                broker,
                Site(broker.bootstrap_servers, folder),
                TrialPlan(
                    asked.seed,
                    asked.minutes * 60,
                    asked.every,
                    asked.rate,
                    others=asked.others,
                    kinds=asked.kinds.split(","),
                ),
                say,
            )
        finally:
            broker.close()
    finally:
        if not asked.keep:
            shutil.rmtree(folder, ignore_errors=True)


def table_of(outcomes: list[LakeOutcome]) -> Table:
    """Return the outcomes as a table for the terminal."""
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    table = Table(title=f"Workers killed while they write ({machine})", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("writer", "broker"):
        table.add_column(column)
    for column in ("seed", "acknowledged", "lost", "doubled", "unknown", "rows", "foreign", "half seen"):
        table.add_column(column, justify="right")
    for column in ("snapshots", "killed", "paused", "left", "ended"):
        table.add_column(column, justify="right")
    for column in ("a worker's MiB", "behind s"):
        table.add_column(column, justify="right")
    for outcome in outcomes:
        found = outcome.account
        numbers = (
            outcome.seed, found.acknowledged, found.lost, found.doubled, found.unknown, found.rows,
        )  # fmt: skip
        table.add_row(
            f"{outcome.title} {outcome.version}",
            f"{outcome.broker} {outcome.broker_version}",
            *(f"{number:,}" for number in numbers),
            f"{found.foreign_faults} of {found.foreign}",
            f"{outcome.half_looks} of {outcome.looks}",
            *(
                str(number)
                for number in (outcome.snapshots, outcome.kills, outcome.pauses, outcome.leaves, outcome.ended)
            ),
            f"{outcome.worker_mib:.0f}",
            "never" if outcome.behind_s is None else f"{outcome.behind_s:.0f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
