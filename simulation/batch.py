"""Many seeds in several processes. `__main__` cannot hold these functions: a spawned process could not import them."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from typing import Any

from simulation.clients.mutants import CLIENT_MUTANTS
from simulation.clients.plan import client_plan
from simulation.clients.run import ClientRun
from simulation.harness.plan import Draft, Plan
from simulation.mutants.group_mutants import MUTANTS
from simulation.remote.mutants import REMOTE_MUTANTS
from simulation.remote.run import RemoteRun, remote_plan
from simulation.run import Result, Run

GROUPS, REMOTE, CLIENTS = "", "remote", "clients"
"""The kinds of runs: one coordinator on a disk; several over Kafka; applications on kohort's own clients."""
Task = tuple[int, str, str]
"""Seed, mutant's name, and kind of run."""
EVERY_MUTANT = (*MUTANTS, *REMOTE_MUTANTS, *CLIENT_MUTANTS)
MUTANT_NAMES = [kind.__name__ for kind in EVERY_MUTANT]


def mutant_named(name: str) -> Any:
    """Return the mutant class with a name; None for the empty name."""
    return {kind.__name__: kind for kind in EVERY_MUTANT}.get(name)


def planned(seed: int, simulated: str) -> Plan:
    """Return the plan of a seed."""
    if simulated == CLIENTS:
        return client_plan(seed)
    return remote_plan(seed) if simulated == REMOTE else Draft(seed).plan()


def run_of(plan: Plan, mutant: Any, simulated: str, *, tells: bool = False) -> Run | ClientRun:
    """Create the run of a plan on the kind of system that `simulated` names: groups, clients or coordinators."""
    if simulated == CLIENTS:
        return ClientRun(plan, mutant, tells=tells)
    return (RemoteRun if simulated == REMOTE else Run)(plan, mutant, tells=tells)


def play(task: Task) -> Result:
    """Play one seed, in a process of its own or in this one."""
    seed, mutant, simulated = task
    return run_of(planned(seed, simulated), mutant_named(mutant), simulated).play()


def results(tasks: list[Task], jobs: int) -> Iterator[Result]:
    """Yield the results in the order of the tasks."""
    if jobs <= 1:
        yield from map(play, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap(play, tasks, chunksize=16)
