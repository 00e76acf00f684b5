"""Joins, leaves and crashes in one group, one after the other: how long until all have what they are to have.

Ten of the members are consumers of ours, the others are light ones of `bench.coordinator`. The one that crashes has
registered from a process of its own, which is killed: the coordinator hears its socket close, and the kernel's word.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench.coordinator import load
from bench.coordinator.load import Load
from bench.coordinator.members import Member
from bench.coordinator.real import RealMember, RealMembers
from kohort.broker.server.listener import raise_open_file_limit
from kohort.broker.serving import new_loop

REAL = 10
EVENTS = ("join", "leave", "crash")
_SETTLE_S = 4.5
"""A heartbeat interval and a half: sooner a classic group of ours can't tell all members at one moment."""


class Rounds:
    """The times of one group's events, in seconds, by event.

    Attributes:
        whole: until every partition is held and all members have what they are to have.
        kept: the longest downtime of a member that has after it what it had before.
        moved: the longest downtime of the others.
    """

    def __init__(self) -> None:
        self.whole: dict[str, list[float]] = {name: [] for name in EVENTS}
        self.kept: dict[str, list[float]] = {name: [] for name in EVENTS}
        self.moved: dict[str, list[float]] = {name: [] for name in EVENTS}

    def facts(self, event: str) -> dict[str, float]:
        """Return the results for one kind of event."""
        return {
            "median_ms": round(statistics.median(self.whole[event]) * 1e3, 1),
            "max_ms": round(max(self.whole[event]) * 1e3, 1),
            "keepers stand, max ms": round(max(self.kept[event]) * 1e3, 1),
            "others stand, max ms": round(max(self.moved[event]) * 1e3, 1),
        }

    def note(self, event: str, seconds: float, everyone: dict[Any, frozenset[int]]) -> None:
        """An event is over; `everyone` is what those who are still there had before."""
        self.whole[event].append(seconds)
        kept, moved = [0.0], [0.0]
        for member, had in everyone.items():
            still = member.downtimes_s if isinstance(member, RealMember) else member.heard.downtimes_s
            (kept if member.owned == had else moved).extend(still)
        self.kept[event].append(max(kept))
        self.moved[event].append(max(moved))


async def measure(options: argparse.Namespace, repeats: int) -> tuple[Rounds, dict[str, Any]]:
    """So many of each event, and what besides was seen.

    Args:
        options: of `bench.coordinator.load`; the members are one less than these when an event begins.
        repeats: how often.
    """
    options.partitions = options.partitions or max(100, options.members)
    options.members -= 1 + REAL
    running = await load.make_load(options)
    (group,) = running.groups
    book = running.books[group]
    rounds, chance = Rounds(), random.Random(1)
    try:
        async with RealMembers(running.plan, options.protocol, group, REAL, book) as real:
            started = time.monotonic()
            await running.until_reached(lambda: all(consumer.owned for consumer in real.members) and running.stable())
            facts: dict[str, Any] = {"join_all_s": round(time.monotonic() - started, 3)}
            for _ in range(repeats):
                await event(running, real, rounds, "join", lambda: _join(running, group, processes=False))
                leaving = running.groups[group].pop(chance.randrange(options.members))
                await event(running, real, rounds, "leave", leaving.leave)
                dying = await _join(running, group, processes=True)
                await running.until_stable()
                running.groups[group].remove(dying)
                await event(running, real, rounds, "crash", dying.crash)
            facts["overlaps"] = running.overlaps()
            facts.update({f"errors {name}": count for name, count in running.errors().items()})
    finally:
        await running.close()
        await running.drop_topic(options.bootstrap_server)
    return rounds, facts


async def _join(running: Load, group: str, *, processes: bool) -> Member:
    """One more; returns when it has a partition."""
    joiner = running.add(group, replace(running.plan, processes=processes))
    await running.until_reached(lambda: bool(joiner.owned))
    return joiner


async def event(running: Load, real: RealMembers, rounds: Rounds, name: str, happen: Callable[[], Any]) -> None:
    """One event after a pause."""
    await asyncio.sleep(_SETTLE_S)
    everyone: dict[Any, frozenset[int]] = {}
    for member in running.members():
        member.heard.downtimes_s.clear()
        everyone[member] = member.owned
    for real_member in real.members:
        real_member.downtimes_s.clear()
        everyone[real_member] = real_member.owned
    started = time.monotonic()
    await happen()
    await running.until_stable()
    rounds.note(name, time.monotonic() - started, everyone)


def run(options: argparse.Namespace, repeats: int) -> tuple[Rounds, dict[str, Any]]:
    """`measure` on a loop of its own."""
    raise_open_file_limit()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(measure(options, repeats))
