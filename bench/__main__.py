"""Runs benchmarks: `python -m bench [NAME…] [--rounds 3] [--scale 1] [--only TEXT] [--json] [--list]`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from rich.console import Console

from bench.harness import Options, show


def benchmarks() -> Iterator[tuple[str, ModuleType]]:
    """Yield the modules of this package that have figures, by name."""
    for found in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if found.name in ("harness", "__main__", "peers", "runners"):
            continue
        module = importlib.import_module(f"bench.{found.name}")
        if hasattr(module, "measurements"):
            yield found.name, module


def main() -> int:
    """Run the requested benchmarks; return 2 for an unknown name."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help="benchmarks; all when none is named")
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender runs")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the records of every run")
    parser.add_argument("--only", default="", help="only figures whose titles have this text")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--list", action="store_true", help="only name the benchmarks")
    asked = parser.parse_args()
    known = dict(benchmarks())
    unknown = [name for name in asked.names if name not in known]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(known)}")
    if asked.list:
        for name, module in known.items():
            print(f"{name:16}{(module.__doc__ or '').splitlines()[0]}")
        return 0
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each runner would compile this package, which an install has done
    options = Options(asked.rounds, asked.scale, asked.only)
    console, progress = Console(width=None if sys.stdout.isatty() else 140), Console(stderr=True)
    results = {}
    for name in asked.names or known:
        measurements = []
        for figure in known[name].measurements(options, progress):
            measurements.append(figure.to_json())
            if not asked.json:
                show(figure, console)
        results[name] = measurements
    if asked.json:
        machine = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}
        print(json.dumps({"machine": machine, "benchmarks": results}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
