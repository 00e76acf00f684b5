"""Doors over three real servers of ZooKeeper, while these are killed and come back.

It runs in `make test-cluster` only (`KOHORT_KAFKA_CLUSTER=1`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from kohort.cluster.zookeeper.nodes import EPOCH, TOPICS, Election
from kohort.errors import NotFoundError
from tests.cluster.coordination_services import ZooKeeperDoors, candidate, run, until
from tests.cluster.test_zookeeper_coordination import topic
from tests.support.zookeeper_ensemble import COUNT, Ensemble, ensemble

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("KOHORT_KAFKA_CLUSTER") != "1", reason="runs where KOHORT_KAFKA_CLUSTER=1"),
]


@pytest.fixture(scope="module")
def three() -> Iterator[Ensemble]:
    try:
        with ensemble() as servers:
            yield servers
    except NotFoundError as error:
        pytest.skip(f"ZooKeeper can't run here: {error}")


def test_each_server_killed_in_turn(three: Ensemble) -> None:
    """Candidates come and go, and topics are mirrored, with any one server down, and all agree again each time."""

    async def story(doors: ZooKeeperDoors) -> None:
        for number in (1, 2, 3):
            await doors.enter(candidate(number))
        await doors.agreed(1, 2, 3)
        for turn in range(COUNT):
            down = three.leader()
            await asyncio.to_thread(down.kill)
            await until(
                lambda: all(door.session.state.value == "connected" for door in doors.open.values()), "sessions stand"
            )
            elected = next(number for number, door in doors.open.items() if door.is_leader)
            placement = doors.open[elected].placement
            assert placement is not None
            gone = placement.candidate(elected)
            assert gone is not None
            await doors.end_without_leaving(elected)
            next(iter(doors.open.values())).suspect(gone)
            await doors.agreed(*doors.open)
            await doors.enter(candidate(elected))
            await doors.agreed(1, 2, 3)
            name = f"topic-{turn}"
            for door in doors.open.values():
                door.mirror_topics({name: topic(turn)})
            await until(lambda name=name: doors.look.get_children(doors.root + TOPICS) == [name], "the mirror")
            await asyncio.to_thread(three.restart, down.number)
            await asyncio.to_thread(three.wait)
        assert Election.from_bytes(doors.data(EPOCH)).epoch >= COUNT + 1

    run(ZooKeeperDoors(three.address), story)


def test_ensemble_without_a_majority(three: Ensemble) -> None:
    """The map is gone by for as long as nobody can be asked, and sessions that ended meanwhile are begun anew."""

    async def story(doors: ZooKeeperDoors) -> None:
        for number in (1, 2):
            await doors.enter(candidate(number))
        await doors.agreed(1, 2)
        before = doors.open[1].placement
        for number in (0, 1):
            await asyncio.to_thread(three.servers[number].kill)
        await until(
            lambda: all(door.session.state.value != "connected" for door in doors.open.values()), "nobody is there"
        )
        assert doors.open[1].placement == before == doors.open[2].placement
        for number in (0, 1):
            await asyncio.to_thread(three.restart, number)
        await asyncio.to_thread(three.wait)
        await doors.agreed(1, 2)
        await doors.enter(candidate(3))
        await doors.agreed(1, 2, 3)

    run(ZooKeeperDoors(three.address), story)
