"""Run many seeds: `python -m simulation --seeds 1000 [--start 0] [--jobs 2] [--mutant NAME] [--trace 60]`."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from simulation.mutants import MUTANTS
from simulation.run import Result, Run

Task = tuple[int, str]


def play(task: Task) -> Result:
    """One seed, in a process of its own or in this one."""
    seed, mutant = task
    by_name = {kind.__name__: kind for kind in MUTANTS}
    return Run(seed, by_name.get(mutant)).play()


def results(tasks: list[Task], jobs: int) -> Iterator[Result]:
    """The results as they come."""
    if jobs <= 1:
        yield from map(play, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(play, tasks, chunksize=8)


def main() -> int:
    """Play the seeds asked for; 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds (default 200)")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--mutant", default="", choices=["", *(kind.__name__ for kind in MUTANTS)])
    parser.add_argument("--trace", type=int, default=60, help="lines of a failed run's story")
    options = parser.parse_args()
    console = Console(stderr=True)
    tasks = [(seed, options.mutant) for seed in range(options.start, options.start + options.seeds)]
    events = virtual_ms = 0
    failed: list[Result] = []
    began = time.monotonic()
    columns = (
        TextColumn("simulation"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("simulation", total=len(tasks), failed=0)
        for result in results(tasks, options.jobs):
            events += result.events
            virtual_ms += result.virtual_ms
            if result.failure is not None:
                failed.append(result)
            progress.update(bar, advance=1, failed=len(failed))
    seconds = time.monotonic() - began
    for result in sorted(failed, key=lambda result: result.seed)[:5]:
        mutant = f" --mutant {options.mutant}" if options.mutant else ""
        print("\n".join(result.trace[-options.trace :]))
        print(f"seed {result.seed}: {result.failure}")
        print(f"repeat with: python -m simulation --start {result.seed} --seeds 1{mutant}")
    hours = virtual_ms / 3_600_000
    print(f"{len(tasks)} runs, {events} events, {hours:.1f} virtual hours in {seconds:.0f} s, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
