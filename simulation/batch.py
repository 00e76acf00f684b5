"""Many seeds in several processes. Not in `__main__`, whose functions another process can't find."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from typing import Any

from simulation.mutants import MUTANTS
from simulation.plan import Draft, Plan
from simulation.remote.mutants import REMOTE_MUTANTS
from simulation.remote.run import RemoteRun, remote_plan
from simulation.run import Result, Run

Task = tuple[int, str, bool]
"""Seed, mutant by name, and whether there are several coordinators over Kafka."""
MUTANT_NAMES = [kind.__name__ for kind in (*MUTANTS, *REMOTE_MUTANTS)]


def mutant_named(name: str) -> Any:
    """The mutant, None for the empty name."""
    return {kind.__name__: kind for kind in (*MUTANTS, *REMOTE_MUTANTS)}.get(name)


def planned(seed: int, *, remote: bool) -> Plan:
    """What a seed stands for."""
    return remote_plan(seed) if remote else Draft(seed).plan()


def run_of(plan: Plan, mutant: Any, *, remote: bool, tells: bool = False) -> Run:
    """The world of a plan: with one coordinator on a disk, or several over Kafka."""
    return (RemoteRun if remote else Run)(plan, mutant, tells=tells)


def play(task: Task) -> Result:
    """One seed, in a process of its own or in this one."""
    seed, mutant, remote = task
    return run_of(planned(seed, remote=remote), mutant_named(mutant), remote=remote).play()


def results(tasks: list[Task], jobs: int) -> Iterator[Result]:
    """The results, in the order of the tasks."""
    if jobs <= 1:
        yield from map(play, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap(play, tasks, chunksize=16)
