"""Plays many histories: `make spark-histories RUNS=5000`.

`python -m tests.spark.histories [--runs 200] [--start 0] [--jobs 8] [--json]`, or one: `--seed 17 [--folder F]`, which
tells its story. The seed decides the plan. Threads and processes carry it out differently in each run, so a failure may
need several: `--seed 17 --runs 20`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tests.spark.histories.history import Outcome, Place, place, play
from tests.spark.histories.mutants import MUTANTS
from tests.spark.histories.plan import draw
from tests.spark.histories.tale import tale

FAILURES_MOST = 20
"""After so many failed histories the rest is not played."""
LINE_S = 30.0
"""Without a terminal, a line of progress this often."""


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.histories", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="how many histories (default 200)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="this seed alone, --runs times (once when not given)")
    parser.add_argument("--jobs", type=int, default=8, help="histories at a time (default 8); most of each is waiting")
    parser.add_argument(
        "--mutant", default="", choices=["", *(mutant.__name__ for mutant in MUTANTS)], help="plant a fault"
    )
    parser.add_argument("--folder", type=Path, help="where failed histories stay (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def outcomes(seeds: list[int], jobs: int, mutant: str, folder: Path) -> Iterator[Outcome]:
    """The histories as they end, several at a time."""
    mine = threading.local()

    with place() as make, ThreadPoolExecutor(jobs) as threads:

        def one(turn: int, seed: int) -> Outcome:
            where: Place | None = getattr(mine, "place", None)
            if where is None:
                where = mine.place = make()
            return play(seed, where, mutant, folder / f"{seed}-{turn}")

        left = list(enumerate(seeds))[::-1]
        under_way: set[Future[Outcome]] = set()
        try:
            while left or under_way:
                while left and len(under_way) < jobs:
                    under_way.add(threads.submit(one, *left.pop()))
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            for future in under_way:
                future.cancel()


@contextmanager
def kept(folder: Path | None) -> Iterator[Path]:
    """A folder for what failed; it stays when something is in it."""
    where = folder or Path(tempfile.mkdtemp(prefix="kohort-histories-"))
    where.mkdir(parents=True, exist_ok=True)
    yield where
    if folder is None and not any(where.iterdir()):
        where.rmdir()


def explained(outcome: Outcome, mutant: str) -> str:
    """A failed history: what contradicts what, how to play it again, where its files are."""
    again = f"python -m tests.spark.histories --seed {outcome.seed} --runs 20"
    lines = [f"seed {outcome.seed}: {len(outcome.violations)} violations in {outcome.folder}", *outcome.violations[:6]]
    return "\n  ".join([*lines, f"again: {again}{f' --mutant {mutant}' if mutant else ''}"])


def main() -> int:
    """Plays what was asked for; 1 when a property was violated."""
    asked = parsed()
    alone = asked.seed is not None
    seeds = [asked.seed] * (asked.runs if "--runs" in sys.argv else 1) if alone else []
    seeds = seeds or list(range(asked.start, asked.start + asked.runs))
    failed: list[Outcome] = []
    metrics: Counter[str] = Counter()
    count, began = 0, time.monotonic()
    said = began
    console = Console(stderr=True)
    columns = (
        TextColumn("histories"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with kept(asked.folder) as folder, Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("histories", total=len(seeds), failed=0)
        try:
            for outcome in outcomes(seeds, asked.jobs, asked.mutant, folder):
                count += 1
                metrics.update(outcome.metrics)
                if outcome.violations:
                    failed.append(outcome)
                    progress.console.print(explained(outcome, asked.mutant), highlight=False, markup=False)
                if alone and len(seeds) == 1:
                    print(draw(asked.seed), *tale(Path(outcome.folder)), sep="\n")
                if not outcome.violations:
                    shutil.rmtree(outcome.folder)
                progress.update(bar, advance=1, failed=len(failed))
                if not console.is_terminal and time.monotonic() - said >= LINE_S:
                    said = time.monotonic()
                    print(f"{count}/{len(seeds)}, {len(failed)} failed, {said - began:.0f} s", file=sys.stderr)
                if len(failed) >= FAILURES_MOST:
                    break
        except KeyboardInterrupt:
            print(f"go on with --start {asked.start + count}", file=sys.stderr)
    seconds = time.monotonic() - began
    reported = {
        "histories": count,
        "seeds": [seeds[0], seeds[-1]],
        "seconds": round(seconds, 1),
        "per minute": round(count * 60 / seconds, 1),
        **metrics,
        "failed": {str(run.seed): run.violations for run in failed},
    }
    if asked.json:
        print(json.dumps(reported))
    else:
        print(*(f"{name}: {value}" for name, value in reported.items() if name != "failed"), sep=", ")
        print(f"{len(failed)} failed{': ' if failed else ''}{', '.join(str(run.seed) for run in failed)}")
    return 1 if failed or count < len(seeds) else 0


if __name__ == "__main__":
    sys.exit(main())
