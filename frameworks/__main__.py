"""Run frameworks on a broker: `python -m frameworks [NAME…] [--broker kohort|kafka|both] [--seed N] [--json]`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from tests.support.maven import MavenUnavailable

from frameworks.brokers import KafkaProcess, KohortProcess, start_broker
from frameworks.builds import FrameworkUnavailable
from frameworks.connect import ConnectSink, ConnectSource
from frameworks.flink import Flink
from frameworks.framework import Framework
from frameworks.go_frameworks import GO_FRAMEWORKS
from frameworks.group_programs import GROUP_PROGRAMS
from frameworks.java_frameworks import (
    CamelKafka,
    KafkaStreams,
    KafkaStreamsUpgrade,
    ParallelConsumer,
    ReactorKafka,
    SpringKafka,
    SpringKafkaNextProtocol,
)
from frameworks.javascript_frameworks import JAVASCRIPT_FRAMEWORKS
from frameworks.kafka_tools import KAFKA_TOOLS
from frameworks.karapace import Karapace
from frameworks.mirror import MirrorMaker
from frameworks.page import main as write_page
from frameworks.page import record_failure, record_outcomes
from frameworks.python_frameworks import (
    AiokafkaProgram,
    ConfluentProgram,
    FastStreamAiokafka,
    FastStreamConfluent,
    Faust,
    QuixStreams,
)
from frameworks.run import FrameworkStuck, Outcome, run_framework
from kohort.errors import KafkaError

FRAMEWORKS: tuple[type[Framework], ...] = (
    KafkaStreams,
    KafkaStreamsUpgrade,
    ConnectSource,
    ConnectSink,
    MirrorMaker,
    Flink,
    SpringKafka,
    SpringKafkaNextProtocol,
    ParallelConsumer,
    ReactorKafka,
    CamelKafka,
    *KAFKA_TOOLS,
    *GO_FRAMEWORKS,
    *JAVASCRIPT_FRAMEWORKS,
    *GROUP_PROGRAMS,
    FastStreamAiokafka,
    FastStreamConfluent,
    QuixStreams,
    Faust,
    AiokafkaProgram,
    ConfluentProgram,
    Karapace,
)
BROKERS = {"kohort": ("kohort",), "kafka": ("kafka",), "both": ("kohort", "kafka")}
BROKER_NAMES = {"kohort": KohortProcess.name, "kafka": KafkaProcess.name}


def main() -> int:
    """Run what is asked for; return 1 if a record went wrong or a run got stuck, 2 for an unknown name."""
    known = {framework.name: framework for framework in FRAMEWORKS}
    parser = argparse.ArgumentParser(prog="python -m frameworks", description=__doc__)
    parser.add_argument("names", nargs="*", help="frameworks; all when none is named")
    parser.add_argument("--broker", choices=BROKERS, default="both", help="where they run")
    parser.add_argument("--records", type=int, default=4000, help="how many records each run produces")
    parser.add_argument(
        "--kills", type=int, default=6, help="how many processes are killed, a third of them the broker"
    )
    parser.add_argument("--seed", type=int, default=1, help="decides who is killed when, and for how long")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--page", action="store_true", help="keep the outcomes, and write docs/frameworks.md")
    parser.add_argument("--keep", action="store_true", help="keep the folders with the logs")
    parser.add_argument("--list", action="store_true", help="only name the frameworks")
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in known]
    if unknown:
        parser.error(f"there is no framework {unknown[0]!r}; there are {', '.join(known)}")
    if asked.list:
        for name, framework in known.items():
            print(f"{name:22}{framework.title} {framework.version}")
        return 0
    console = Console(stderr=True)
    outcomes, failures = [], []
    for name in asked.names or known:
        for broker in BROKERS[asked.broker]:
            try:
                outcomes.append(run_once(known[name](), broker, asked, console))
                if asked.page:
                    record_outcomes(outcomes[-1:])
                    write_page([])
            except (FrameworkUnavailable, MavenUnavailable) as error:
                console.print(f"{name} on {broker}: not here: {error}", highlight=False, markup=False)
            except (FrameworkStuck, KafkaError) as error:
                failures.append(f"{name} on {broker}: {error}")
                if asked.page:
                    record_failure(name, BROKER_NAMES[broker], "stuck")
                console.print(failures[-1], highlight=False, markup=False)
    if asked.json:
        print(json.dumps({"outcomes": [outcome.to_json() for outcome in outcomes], "stuck": failures}, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(table_of(outcomes))
    return 1 if failures or any(outcome.faults for outcome in outcomes) else 0


def run_once(framework: Framework, broker: str, asked: argparse.Namespace, console: Console) -> Outcome:
    """Run one framework on one broker of its own, in a folder that is deleted in the end."""

    def say(line: str) -> None:
        console.print(f"[dim]{framework.name} on {broker}: {line}[/dim]", highlight=False)

    folder = Path(tempfile.mkdtemp(prefix=f"kohort-frameworks-{framework.name}-"))
    try:
        say(f"seed {asked.seed}, {asked.records} records, {asked.kills} kills" + (f", {folder}" if asked.keep else ""))
        server = start_broker(broker, folder)
        try:
            outcome = run_framework(
                framework, server, folder, records=asked.records, kills=asked.kills, seed=asked.seed, say=say
            )
        finally:
            server.close()
        outcome.date = datetime.now(UTC).date().isoformat()
        return outcome
    finally:
        if not asked.keep:
            shutil.rmtree(folder, ignore_errors=True)


def table_of(outcomes: list[Outcome]) -> Table:
    """Return the outcomes as a table for the terminal."""
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    table = Table(title=f"What runs on it ({machine})", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("framework", "broker", "promise", "killed"):
        table.add_column(column)
    for column in ("records", "lost", "repeated", "out of order", "seconds", "broker's processor s", "peak MiB"):
        table.add_column(column, justify="right")
    table.add_column("")
    for outcome in outcomes:
        account = outcome.account
        table.add_row(
            f"{outcome.title} {outcome.version}",
            outcome.broker,
            "exactly once" if outcome.exactly_once else "at least once",
            f"{outcome.kills['members']} members, {outcome.kills['broker']} brokers; ended {outcome.ended}",
            *(f"{number:,}" for number in (account.produced, account.lost, account.repeated, account.out_of_order)),
            f"{outcome.seconds:.0f}",
            f"{outcome.broker_processor_s:.1f}",
            f"{outcome.broker_peak_mib:.0f}",
            ", ".join(outcome.faults) or "ok",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
