"""Coordination in the simulated ZooKeeper: a coordinator's suspicion of another takes effect before it stops."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

from simulation.harness.world import World
from simulation.remote.life import ProcessLife
from simulation.remote.loop import VirtualLoop, with_loop
from simulation.remote.zookeeper import VirtualSession, ZooKeeper

from kohort.cluster.coordination.placement import Candidate
from kohort.cluster.zookeeper import service as zookeeper_door
from kohort.cluster.zookeeper.nodes import COORDINATOR, IDS
from kohort.cluster.zookeeper.service import SESSION_MS, ZooKeeperCoordination


class Process:
    """A candidate's process, and its coordination service."""

    def __init__(self, world: World, zookeeper: ZooKeeper, number: int) -> None:
        self.world, self.zookeeper, self.number = world, zookeeper, number
        self.candidate = Candidate(number, f"{number}-1", f"10.0.1.{number}", 9_092)
        self.life = ProcessLife(world, lambda: None)
        self.loop = VirtualLoop(world, self.life)  # type: ignore[abstract]  # what it lacks is not called
        self.coordination = ZooKeeperCoordination("zookeeper:2181", SESSION_MS)
        session = VirtualSession(zookeeper, f"k{number}", self.life, self.loop, self.coordination._session_changed)
        self.coordination.session = session  # type: ignore[assignment]  # it stands for one
        self.coordination._mirror._session = session  # type: ignore[assignment]

    def do(self, action: Callable[[], object]) -> None:
        """Run an action as a turn of the process."""
        self.life.turn(lambda: with_loop(self.loop, action))

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        self.do(lambda: self.loop.create_task(work))


def entered() -> tuple[World, ZooKeeper, Process, Process]:
    """Return two candidates with their nodes; the first is the leader."""
    world = World(1)
    zookeeper = ZooKeeper(world)
    first, second = Process(world, zookeeper, 1), Process(world, zookeeper, 2)
    for coordinator in (first, second):
        coordinator.begin(coordinator.coordination.open(coordinator.candidate, 2))
        world.run_until(world.now_ms + 2_000)
    assert first.coordination.is_leader and second.coordination.placement == first.coordination.placement
    assert f"{IDS}/1" in zookeeper.nodes
    return world, zookeeper, first, second


def died(process: Process) -> None:
    """End a process without closing its session."""
    process.life.die()
    process.loop.die()


def _suspected_story() -> None:
    world, zookeeper, first, second = entered()
    died(first)

    async def suspect_and_stop() -> None:
        second.coordination.remove_dead_candidate(first.candidate)
        await second.coordination.close()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        second.begin(suspect_and_stop())
        world.run_until(world.now_ms + 1_000)
        gc.collect()
    assert [str(request.message) for request in caught if request.category is RuntimeWarning] == []
    assert f"{IDS}/2" not in zookeeper.nodes, "it has left"
    assert f"{IDS}/1" not in zookeeper.nodes, "what it had said of the other is lost"
    assert COORDINATOR not in zookeeper.nodes
    assert not second.loop._tasks and not second.loop.faults


def test_who_suspects_another_and_stops_in_the_same_turn_has_deposed_it() -> None:
    """Otherwise its shards wait for its session, and a shard that had not begun is never awaited."""
    _suspected_story()


def test_a_coordinator_that_stops_while_nothing_answers_does_not_wait_for_that() -> None:
    world, zookeeper, first, second = entered()
    died(first)
    zookeeper.cut_off["k2"] = world.now_ms + 60_000
    second.do(lambda: second.coordination.remove_dead_candidate(first.candidate))
    second.begin(second.coordination.close())
    world.run_until(world.now_ms + zookeeper_door._LAST_WORD_MS + 100)
    assert not second.loop._tasks and not second.loop.faults
