"""Many seeds in several processes. Not in `__main__`, whose functions another process can't find."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from typing import Any

from simulation.mutants import MUTANTS
from simulation.run import Result, Run

Task = tuple[int, str]


def mutant_named(name: str) -> Any:
    """The mutant, None for the empty name."""
    return {kind.__name__: kind for kind in MUTANTS}.get(name)


def play(task: Task) -> Result:
    """One seed, in a process of its own or in this one."""
    seed, mutant = task
    return Run(seed, mutant_named(mutant)).play()


def results(tasks: list[Task], jobs: int) -> Iterator[Result]:
    """The results, in the order of the tasks."""
    if jobs <= 1:
        yield from map(play, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap(play, tasks, chunksize=16)
