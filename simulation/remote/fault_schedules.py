"""Fault schedules that show faults which few seeds show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kohort.groups.config import GroupConfig
from simulation.harness.habits import Habits
from simulation.harness.network import NetworkFaults
from simulation.harness.plan import MODERN, Plan, Step
from simulation.harness.push_steps import LITERAL

SERVING = Plan.coordinators
"""The number that stands for whichever coordinator has the shard: one more than there are."""
QUICK = GroupConfig(
    initial_rebalance_delay_ms=0,
    consumer_session_timeout_ms=6_000,
    consumer_heartbeat_interval_ms=300,
    notice_disconnects="off",
)


def members(count: int, commit_ms: int) -> list[Step]:
    """Return the steps that start members with frequent heartbeats."""
    habits = Habits("g0", ("t0",), heartbeat_ms=300, commit_ms=commit_ms)
    return [
        Step(number, 100 * number, "start", {"name": f"c{number}", "kind": MODERN, "habits": habits})
        for number in range(count)
    ]


def fault_schedule(
    seed: int, *more: tuple[int, str, dict[str, Any]], commit_ms: int = 5_000, heal_ms: int = 25_000
) -> Plan:
    """Return a plan with three members and these other steps."""
    steps = members(3, commit_ms)
    steps += [Step(100 + number, at_ms, what, details) for number, (at_ms, what, details) in enumerate(more)]
    return Plan(seed, QUICK, {"t0": 6}, ("g0",), tuple(steps), heal_ms)


def two_that_disagree(seed: int) -> Plan:
    """Return a plan in which the owner misses a new placement, and writes on while another coordinator takes over."""
    return fault_schedule(seed, (5_000, "cut_from_zookeeper", {"which": SERVING, "duration_ms": 15_000}), commit_ms=100)


def stopped_before_it_hears(seed: int) -> Plan:
    """Return a plan in which the owner's process is stopped during an append and reads its answer on resuming."""
    slow: dict[str, Any] = {"network": NetworkFaults(300), "fails": 0.0, "late_ms": 600}
    stop = {"which": SERVING, "duration_ms": 12_000}
    return fault_schedule(seed, (4_000, "kafka_faults", slow), (8_000 + 10 * (seed % 100), "stop", stop), commit_ms=100)


def left_behind(seed: int) -> Plan:
    """Return a plan in which one member stays connected to a replaced, idle coordinator; the others have moved."""
    cut = {"which": SERVING, "duration_ms": 30_000}
    return fault_schedule(
        seed,
        (3_000, "cut_from_zookeeper", cut),
        (11_000, "cut", {"name": "c1"}),
        (11_000, "cut", {"name": "c2"}),
        commit_ms=60_000,
        heal_ms=24_000,
    )


def pushed_by_the_one_left_behind(seed: int) -> Plan:
    """Return a plan in which a replaced coordinator still pings one push consumer, while topics grow."""
    habits = Habits("g0", ("t0",), session_timeout_ms=6_000, callback_ms=2_000, keeps_lease=True, auto_commit=False)
    habits = replace(habits, commit_ms=60_000, commits_on_revocation=False)
    steps: list[Step] = [
        Step(number, 100 * number, "start", {"name": f"p{number}", "kind": LITERAL, "habits": habits})
        for number in range(3)
    ]
    faults: tuple[tuple[int, str, dict[str, Any]], ...] = (
        (6_000, "cut_from_zookeeper", {"which": SERVING, "duration_ms": 30_000}),
        (14_000, "cut", {"name": "p1"}),
        (14_000, "cut", {"name": "p2"}),
        (15_000 + 10 * (seed % 300), "grow", {"topic": "t0"}),
    )
    steps += [Step(10 + number, *fault) for number, fault in enumerate(faults)]
    return Plan(seed, QUICK, {"t0": 6}, ("g0",), tuple(steps), 30_000)


def stopped_by_the_one_left_behind(seed: int) -> Plan:
    """Return a plan in which a replaced coordinator's last Ping arrives late, and its answer calls for a Stop."""
    slow = Habits("g0", ("t0",), session_timeout_ms=18_000, callback_ms=90_000, keeps_lease=True, auto_commit=False)
    slow = replace(slow, commit_ms=90_000, commits_on_revocation=False)
    late_ms = 14_000 + 50 * (seed % 60)
    faults: tuple[tuple[int, str, dict[str, Any]], ...] = (
        (0, "start", {"name": "p0", "kind": LITERAL, "habits": slow}),
        (6_000, "cut_from_zookeeper", {"which": SERVING, "duration_ms": 60_000}),
        (late_ms - 5_000, "half_open", {"name": "p0", "duration_ms": 5_000, "up": False}),
        (late_ms - 1_000, "grow", {"topic": "t0"}),
        (20_000, "start", {"name": "p1", "kind": LITERAL, "habits": Habits("g0", ("t0",))}),
    )
    steps = tuple(Step(number, *fault) for number, fault in enumerate(faults))
    return Plan(seed, QUICK, {"t0": 6}, ("g0",), steps, 45_000)


SHOWN_BY: dict[str, Callable[[int], Plan]] = {
    "ReadsBeforeItFences": two_that_disagree,
    "ReadsWithoutProof": left_behind,
    "TakesLateAnswersForProof": stopped_before_it_hears,
    "PushesWithoutProof": pushed_by_the_one_left_behind,
    "StopsWithoutProof": stopped_by_the_one_left_behind,
}
