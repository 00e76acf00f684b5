"""Days that show a fault which few seeds show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kohort.groups.config import GroupConfig
from simulation.network import Weather
from simulation.plan import MODERN, Plan, Step
from simulation.process import Habits
from simulation.remote.fleet import COORDINATORS

SERVING = COORDINATORS
QUICK = GroupConfig(
    initial_rebalance_delay_ms=0,
    consumer_session_timeout_ms=6_000,
    consumer_heartbeat_interval_ms=300,
    notice_disconnects="off",
)


def members(count: int, commit_ms: int) -> list[Step]:
    """Members that are heard often."""
    habits = Habits("g0", ("t0",), heartbeat_ms=300, commit_ms=commit_ms)
    return [
        Step(number, 100 * number, "start", {"name": f"c{number}", "kind": MODERN, "habits": habits})
        for number in range(count)
    ]


def day(seed: int, *more: tuple[int, str, dict[str, Any]], commit_ms: int = 5_000, heal_ms: int = 25_000) -> Plan:
    """Three members, and what else happens."""
    steps = members(3, commit_ms)
    steps += [Step(100 + number, at_ms, what, details) for number, (at_ms, what, details) in enumerate(more)]
    return Plan(seed, QUICK, {"t0": 6}, ("g0",), tuple(steps), heal_ms)


def two_that_disagree(seed: int) -> Plan:
    """The one that serves does not hear that its place is over, and goes on writing while another takes over."""
    return day(seed, (5_000, "cut_from_door", {"which": SERVING, "duration_ms": 15_000}), commit_ms=100)


def stopped_before_it_hears(seed: int) -> Plan:
    """The one that serves is stopped while an append is on its way, whose answer it finds when it wakes."""
    slow: dict[str, Any] = {"weather": Weather(300), "fails": 0.0, "late_ms": 600}
    stop = {"which": SERVING, "duration_ms": 12_000}
    return day(seed, (4_000, "kafka_weather", slow), (8_000 + 10 * (seed % 100), "stop", stop), commit_ms=100)


def left_behind(seed: int) -> Plan:
    """One member goes on asking the one that was overtaken, which writes nothing; the others have moved."""
    cut = {"which": SERVING, "duration_ms": 30_000}
    return day(
        seed,
        (3_000, "cut_from_door", cut),
        (11_000, "cut", {"name": "c1"}),
        (11_000, "cut", {"name": "c2"}),
        commit_ms=60_000,
        heal_ms=24_000,
    )


SHOWN_BY: dict[str, Callable[[int], Plan]] = {
    "ReadsBeforeItFences": two_that_disagree,
    "ReadsWithoutProof": left_behind,
    "TakesLateAnswersForProof": stopped_before_it_hears,
}
