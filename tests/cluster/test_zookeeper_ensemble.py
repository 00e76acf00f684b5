"""Services over three real servers of ZooKeeper, while these are killed and come back.

It runs in `make test-cluster` only (`KOHORT_KAFKA_CLUSTER=1`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from kohort.cluster.zookeeper.nodes import EPOCH, TOPICS, Election
from kohort.errors import NotFoundError
from tests.cluster.coordination_services import ZooKeeperServices, candidate, run, until
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

    async def story(services: ZooKeeperServices) -> None:
        for number in (1, 2, 3):
            await services.enter(candidate(number))
        await services.agreed(1, 2, 3)
        for turn in range(COUNT):
            down = three.leader()
            await asyncio.to_thread(down.kill)
            await until(
                lambda: all(service.session.state.value == "connected" for service in services.open.values()),
                "sessions stand",
            )
            elected = next(number for number, service in services.open.items() if service.is_leader)
            placement = services.open[elected].placement
            assert placement is not None
            gone = placement.candidate(elected)
            assert gone is not None
            await services.end_without_leaving(elected)
            next(iter(services.open.values())).remove_dead_candidate(gone)
            await services.agreed(*services.open)
            await services.enter(candidate(elected))
            await services.agreed(1, 2, 3)
            name = f"topic-{turn}"
            for service in services.open.values():
                service.mirror_topics({name: topic(turn)})
            await until(lambda name=name: services.look.get_children(services.root + TOPICS) == [name], "the mirror")
            await asyncio.to_thread(three.restart, down.number)
            await asyncio.to_thread(three.wait)
        assert Election.from_bytes(services.data(EPOCH)).epoch >= COUNT + 1

    run(ZooKeeperServices(three.address), story)


def test_ensemble_without_a_majority(three: Ensemble) -> None:
    """The map is gone by for as long as nobody can be asked, and sessions that ended meanwhile are begun anew."""

    async def story(services: ZooKeeperServices) -> None:
        for number in (1, 2):
            await services.enter(candidate(number))
        await services.agreed(1, 2)
        before = services.open[1].placement
        for number in (0, 1):
            await asyncio.to_thread(three.servers[number].kill)
        await until(
            lambda: all(service.session.state.value != "connected" for service in services.open.values()),
            "nobody is there",
        )
        assert services.open[1].placement == before == services.open[2].placement
        for number in (0, 1):
            await asyncio.to_thread(three.restart, number)
        await asyncio.to_thread(three.wait)
        await services.agreed(1, 2)
        await services.enter(candidate(3))
        await services.agreed(1, 2, 3)

    run(ZooKeeperServices(three.address), story)
