"""Play many seeds: each is a fault phase, a healing phase, and a check that every group is stable again.

An interrupted run prints how to continue. A failure is printed with its seed, the commit and the command that repeats
it. It is shrunk to a small plan that still fails the same checker.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from simulation.batch import CLIENTS, GROUPS, MUTANT_NAMES, REMOTE, mutant_named, planned, results, run_of
from simulation.harness.plan import Plan
from simulation.run import Result
from simulation.shrink import Shrinker

FAILURES_MAX = 5
"""Stop playing further seeds after this number of failures."""
LINE_S = 30.0
"""The interval of progress lines when standard error is no terminal."""


def commit() -> str:
    """Return the commit under test, with a plus sign if its files were changed since."""
    folder = Path(__file__).parent
    asked = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    reported = subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=False)
    return reported.stdout.strip() or "unknown"


@dataclass
class Tally:
    """The totals of the runs so far.

    Attributes:
        fewest: events of the smallest run.
        shortest_ms: virtual time of the shortest run.
    """

    runs: int = 0
    events: int = 0
    virtual_ms: int = 0
    fewest: int = sys.maxsize
    shortest_ms: int = sys.maxsize
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def add(self, result: Result) -> None:
        """Count one run."""
        self.runs += 1
        self.events += result.events
        self.virtual_ms += result.virtual_ms
        self.faults += result.faults
        if result.failure is not None:
            self.failed.append(result.seed)
        else:
            self.fewest = min(self.fewest, result.events)
            self.shortest_ms = min(self.shortest_ms, result.virtual_ms)

    def line(self, total: int) -> str:
        """Return a line of progress."""
        seconds = time.monotonic() - self.began
        left = seconds / max(self.runs, 1) * (total - self.runs)
        hours = self.virtual_ms / 3_600_000
        return (
            f"{self.runs}/{total} runs, {len(self.failed)} failed, {self.events} events, {hours:.1f} virtual hours, "
            f"{seconds:.0f} s, about {left:.0f} s left"
        )

    def summary(self, start: int) -> str:
        """Return the summary at the end."""
        seconds = time.monotonic() - self.began
        hours = self.virtual_ms / 3_600_000
        faults = ", ".join(f"{count} {what}" for what, count in self.faults.most_common())
        last = start + self.runs - 1
        smallest = (
            ""
            if self.fewest == sys.maxsize
            else f", at least {self.fewest} events and {self.shortest_ms / 1000:.0f} virtual s each"
        )
        return (
            f"commit {commit()}, seeds {start} to {last}: {self.runs} runs, {self.events} events, {hours:.1f} virtual "
            f"hours{smallest}, in {seconds:.0f} s\nsteps: {faults}\n"
            f"{len(self.failed)} failed{': ' if self.failed else ''}{', '.join(map(str, self.failed))}"
        )


def command(plan: Plan, options: argparse.Namespace) -> str:
    """Return the command that repeats a plan."""
    words = ["python -m simulation", *([f"--{options.simulated}"] if options.simulated else []), f"--seed {plan.seed}"]
    if plan.kept is not None:
        words.append(f"--keep {','.join(map(str, plan.kept))}")
    if plan.heal_ms != planned(plan.seed, options.simulated).heal_ms:
        words.append(f"--heal-ms {plan.heal_ms}")
    if options.mutant:
        words.append(f"--mutant {options.mutant}")
    return " ".join(words)


def explain(plan: Plan, options: argparse.Namespace) -> None:
    """Print a failed plan: the command that repeats it, and the trace of the smallest plan with the same failure."""
    mutant = mutant_named(options.mutant)
    first = run_of(plan, mutant, options.simulated).play()
    print(f"seed {plan.seed} at commit {commit()}: {first.failure}\nrepeat with: {command(plan, options)}", flush=True)
    if options.shrink and first.checker is not None:
        shrinker = Shrinker(plan, first.checker, lambda smaller: run_of(smaller, mutant, options.simulated).play())
        before, plan = len(plan.steps), shrinker.shrink()
        print(f"shrunk from {before} to {len(plan.steps)} steps in {shrinker.runs} runs: {command(plan, options)}")
    reported = run_of(plan, mutant, options.simulated, tells=True).play()
    print("\n".join(["the plan:", *map(str, plan.steps), "what happened:", *reported.trace[-options.trace :]]))
    print(f"{reported.failure}\n", flush=True)


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds (default 200)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--jobs", type=int, default=0, help="processes (default: one for each core)")
    parser.add_argument("--mutant", default="", choices=["", *MUTANT_NAMES])
    parser.set_defaults(simulated=GROUPS)
    for name, text in (
        (REMOTE, "several coordinators over Kafka and ZooKeeper"),
        (CLIENTS, "applications on our own consumers and producers"),
    ):
        parser.add_argument(f"--{name}", dest="simulated", action="store_const", const=name, help=text)
    parser.add_argument("--trace", type=int, default=60, help="lines of a failed run's story (default 60)")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help="leave failed plans as they are")
    parser.add_argument("--seed", type=int, help="play and tell this one seed only")
    parser.add_argument("--keep", help="with --seed: only these steps of its plan, by number, separated by commas")
    parser.add_argument("--heal-ms", type=int, help="with --seed: end the faults then")
    return parser.parse_args()


def play_one(options: argparse.Namespace) -> int:
    """Play one seed and print its trace; return 1 if it failed."""
    plan = planned(options.seed, options.simulated)
    if options.keep is not None:
        plan = plan.keep(int(number) for number in options.keep.split(",") if number)
    if options.heal_ms is not None:
        plan = plan.until(options.heal_ms)
    result = run_of(plan, mutant_named(options.mutant), options.simulated, tells=True).play()
    print("\n".join(["the plan:", *map(str, plan.steps), "what happened:", *result.trace[-options.trace :]]))
    print(f"{result.events} events, {result.virtual_ms / 1000:.1f} virtual s: {result.failure or 'clean'}")
    return 1 if result.failure else 0


def play_all(options: argparse.Namespace) -> int:
    """Play many seeds; return 1 if one failed."""
    total = options.seeds
    tasks = [(seed, options.mutant, options.simulated) for seed in range(options.start, options.start + total)]
    jobs = options.jobs or os.cpu_count() or 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the other processes end with this one
    tally, console = Tally(), Console(stderr=True)
    columns = (
        TextColumn("simulation"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    interrupted = False
    said = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("simulation", total=total, failed=0)
        try:
            for result in results(tasks, jobs):
                tally.add(result)
                if result.failure is not None:
                    explain(planned(result.seed, options.simulated), options)
                progress.update(bar, advance=1, failed=len(tally.failed))
                if not console.is_terminal and time.monotonic() - said >= LINE_S:
                    said = time.monotonic()
                    print(tally.line(total), flush=True)
                if len(tally.failed) >= FAILURES_MAX:
                    break
        except KeyboardInterrupt:
            interrupted = True
    print(tally.summary(options.start))
    if interrupted:
        left = total - tally.runs
        words = f"python -m simulation --{options.simulated}" if options.simulated else "python -m simulation"
        print(f"go on with: {words} --start {options.start + tally.runs} --seeds {left} --jobs {jobs}")
    return 1 if tally.failed or interrupted else 0


def main() -> int:
    """Play the requested seeds; return 1 if one failed or was left out."""
    options = parsed()
    return play_all(options) if options.seed is None else play_one(options)


if __name__ == "__main__":
    sys.exit(main())
