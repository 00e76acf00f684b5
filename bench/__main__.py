"""Runs benchmarks: `python -m bench [NAME…] [--rounds 3] [--scale 1] [--only TEXT] [--minutes 60] [--report]`.

With `--minutes` each benchmark is a process of its own that ends in time, with all that it started. One that hangs or
fails costs its own figures, and no others.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from rich.console import Console
from tests.support.apache_kafka import kafka_jars
from tests.support.maven import MavenUnavailable

from bench import report
from bench.harness import ENDS_AT_S, FIGURE_LIMIT_S, NotHere, Options, show, time_is_over

NO_BENCHMARKS = ("__main__", "goals", "harness", "machine", "peers", "plot", "report", "runners")
WEIGHTS = {
    "cluster": 3.0,
    "coordinator": 4.0,
    "growth": 3.0,
    "lake": 4.0,
    "push": 2.0,
    "region_spark": 2.0,
    "spark": 2.0,
    "state": 3.0,
}
"""The share of the time of a benchmark with more or slower figures than others, which have 1."""
NIGHTLY = report.ROOT / "bench" / "results" / "nightly.json"
_ENDING_S = 60.0
"""How long a stopped benchmark may take to end; `tests.support.supervise` kills what is left of it after 30 s."""


_RUN_SHARE = 0.8
_OVER = "the time was over before all figures were measured"


def benchmarks() -> Iterator[tuple[str, ModuleType]]:
    """Yield the modules of this package that have figures, by name."""
    for found in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if found.name in NO_BENCHMARKS:
            continue
        module = importlib.import_module(f"bench.{found.name}")
        if hasattr(module, "measurements"):
            yield found.name, module


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help="benchmarks; all when none is named")
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender runs")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the records of every run")
    parser.add_argument("--only", default="", help="only figures whose titles have this text")
    parser.add_argument("--minutes", type=float, help="the most time for everything together")
    parser.add_argument("--figure-s", type=float, default=float("inf"), help="no round begins that would end later")
    parser.add_argument("--report", action="store_true", help="keep the figures and write docs/performance.md")
    parser.add_argument("--nightly", action="store_true", help="compare with the kept figures; 1 if something was lost")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--list", action="store_true", help="only name the benchmarks")
    parser.add_argument("--ends-in", type=float, default=float("inf"), help="seconds after which no run begins")
    parser.add_argument("--into", type=Path, help="write the figures of one benchmark into this file as they come")
    return parser


def main() -> int:
    """Run the requested benchmarks; return 2 for an unknown name, 1 for a loss or a benchmark that failed."""
    parser = arguments()
    asked = parser.parse_args()
    known = dict(benchmarks())
    unknown = [name for name in asked.names if name not in known]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(known)}")
    if asked.list:
        for name, module in known.items():
            print(f"{name:18}{(module.__doc__ or '').splitlines()[0]}")
        return 0
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each runner would compile this package, which an install has done
    names = asked.names or list(known)
    FIGURE_LIMIT_S.set(asked.figure_s)
    ENDS_AT_S.set(time.monotonic() + asked.ends_in)
    taken: report.Report = {}
    runs = _bounded(names, asked) if asked.minutes else _here(names, known, asked)
    for name, figures in runs:
        taken[name] = figures
        for note in figures["notes"]:
            print(f"{name}: {note}", file=sys.stderr)
        if asked.report:
            report.save(report.merged(report.load(), {name: figures}))
            report.write_page(report.load())
    if asked.json:
        print(json.dumps(taken, indent=2))
    failed = any(note.startswith("failed") for figures in taken.values() for note in figures["notes"])
    return max(int(failed), _compare_nightly(taken) if asked.nightly else 0)


def _compare_nightly(taken: report.Report) -> int:
    """Keep the night's figures, and name what was lost; return 1 if a loss counts."""
    report.save(taken, NIGHTLY)
    before = report.load()
    losses = list(report.losses(before, taken))
    for line in report.not_repeated(before, taken):
        print(f"not measured: {line}")
    for line, counts in losses:
        print(f"{'LOST' if counts else 'maybe lost'}: {line}")
    print(f"{len(losses)} rows lost more than {report.LOST_SHARE:.0%}; the figures are in {NIGHTLY}")
    return int(any(counts for _, counts in losses))


# -- In this process


def _here(
    names: Sequence[str], known: dict[str, ModuleType], asked: argparse.Namespace
) -> Iterator[tuple[str, report.Taken]]:
    """Run benchmarks one after the other."""
    for name in names:
        yield name, measured(known[name], asked, asked.into)


def measured(module: ModuleType, asked: argparse.Namespace, into: Path | None) -> report.Taken:
    """Run one benchmark and show its figures. What it lacks on this machine becomes a note."""
    options = Options(asked.rounds, asked.scale, asked.only)
    console, progress = Console(width=None if sys.stdout.isatty() else 140), Console(stderr=True)
    taken: report.Taken = {"whole": False, "notes": _missing_peers(), "figures": []}

    def keep() -> None:
        if into is not None:
            into.write_text(json.dumps(taken))

    keep()
    try:
        for figure in module.measurements(options, progress):
            taken["figures"].append(report.stamped(figure.to_json(), options))
            keep()
            if not asked.json:
                show(figure, console)
            if time_is_over():
                taken["notes"].append(_OVER)
                break
    except (NotHere, MavenUnavailable, ModuleNotFoundError) as error:
        taken["notes"].append(f"skipped: {error}")
    taken["whole"] = not asked.only and _OVER not in taken["notes"]
    keep()
    return taken


def _missing_peers() -> list[str]:
    """Return a note if Apache Kafka can't run here."""
    try:
        kafka_jars()
    except MavenUnavailable as error:
        return [f"without Apache Kafka, so its rows and figures are missing: {error}"]
    return []


# -- In processes that end in time


def _bounded(names: Sequence[str], asked: argparse.Namespace) -> Iterator[tuple[str, report.Taken]]:
    """Run each benchmark in a process. What it does not need of its share of the time is left to later ones."""
    ends_s = time.monotonic() + asked.minutes * 60
    weights = [WEIGHTS.get(name, 1.0) for name in names]
    with tempfile.TemporaryDirectory(prefix="kohort-bench-report-") as folder:
        for index, name in enumerate(names):
            left_s = max(0.0, ends_s - time.monotonic())
            limit_s = left_s * weights[index] / sum(weights[index:])
            print(f"-- {name}: at most {limit_s / 60:.1f} minutes", file=sys.stderr, flush=True)
            yield name, run_bounded(name, _arguments_of(asked), Path(folder) / name, limit_s)


def _arguments_of(asked: argparse.Namespace) -> list[str]:
    more = ["--json"] if asked.json else []
    return [
        *("--rounds", str(asked.rounds), "--scale", str(asked.scale), "--only", asked.only),
        *("--figure-s", str(asked.figure_s), *more),
    ]


def run_bounded(name: str, more: Sequence[str], into: Path, limit_s: float) -> report.Taken:
    """Run one benchmark for at most so long; return the figures that it had by then, and why it has no more.

    Args:
        name: the benchmark.
        more: the options for it.
        into: a file for its figures.
        limit_s: when it is interrupted. What it started is killed 30 s later. The last fifth of it is for the run that
            has begun, so that a figure is usually complete.
    """
    command = [sys.executable, "-m", "tests.support.supervise", sys.executable, "-m", "bench", name]
    process = subprocess.Popen(
        [*command, *more, "--into", str(into), "--ends-in", str(limit_s * _RUN_SHARE)],
        stdout=subprocess.DEVNULL if "--json" in more else None,
    )
    note = ""
    try:
        if process.wait(max(1.0, limit_s)):
            note = f"failed: it ended with {process.returncode}"
    except subprocess.TimeoutExpired:
        note = f"stopped after {limit_s / 60:.1f} minutes, in the middle of a run"
    finally:
        _end(process)
    nothing: report.Taken = {"whole": False, "notes": [], "figures": []}
    taken: report.Taken = json.loads(into.read_text()) if into.exists() else nothing
    if note:
        taken = {**taken, "whole": False, "notes": [*taken["notes"], note]}
    return taken


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that may have ended: ask, wait, kill."""
    process.terminate()
    try:
        process.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_ENDING_S)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
