"""Promises of every coordination service to coordinators: a real ZooKeeper, and a group on Kafka."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from kohort.cluster.coordination import group_service
from kohort.cluster.zookeeper import service as zookeeper_door
from kohort.errors import KafkaError, TimedOutError
from kohort.zookeeper import ZooKeeper, free_port
from tests.cluster.coordination_services import (
    SHARDS,
    AnyServices,
    GroupServices,
    ZooKeeperServices,
    candidate,
    run,
    until,
)
from tests.support.apache_kafka import SOON_BACK, ApacheKafka
from tests.support.maven import MavenUnavailable

APACHE = pytest.param("apache", marks=pytest.mark.kafka)


def services_at(request: pytest.FixtureRequest) -> AnyServices:
    """Of the place that is asked for."""
    if request.param == "zookeeper":
        return ZooKeeperServices(request.getfixturevalue("zookeeper").address)
    broker = request.getfixturevalue("our_broker" if request.param == "kohort" else "apache_kafka")
    return GroupServices(broker.bootstrap_servers)


@pytest.fixture(params=["zookeeper", "kohort"])
def services(request: pytest.FixtureRequest) -> AnyServices:
    return services_at(request)


@pytest.fixture(params=["zookeeper", "kohort", APACHE])
def all_services(request: pytest.FixtureRequest) -> AnyServices:
    """On Apache Kafka too."""
    return services_at(request)


def test_enter_suspect_retire(all_services: AnyServices) -> None:
    """Three share the shards; a suspected one is out without its session, one that retires before it has left."""

    async def suspected(services: AnyServices, number: int) -> None:
        before = next(iter(services.open.values())).placement
        assert before is not None
        gone = before.candidate(number)
        assert gone is not None
        await services.end_without_leaving(number)
        *_, last = services.open.values()
        last.remove_dead_candidate(gone)
        await services.agreed(*services.open)
        after = last.placement
        assert after is not None
        assert all(after.shards_of(other) >= before.shards_of(other) for other in services.open)
        assert after.version > before.version

    async def story(services: AnyServices) -> None:
        for number in (1, 2, 3):
            await services.enter(candidate(number))
        await services.agreed(1, 2, 3)
        elected = next(number for number, service in services.open.items() if service.is_leader)
        other = next(number for number in services.open if number != elected)
        await suspected(services, other)
        await services.enter(candidate(other))
        await services.agreed(1, 2, 3)
        await suspected(services, elected)
        elected = next(number for number, service in services.open.items() if service.is_leader)
        retiring = services.open.pop(elected)
        (left,) = services.open
        await retiring.hand_over_and_leave()
        assert retiring.placement is not None
        assert not retiring.placement.shards_of(elected)
        assert retiring.placement.shards_of(left) == frozenset(range(SHARDS))
        await services.agreed(left)

    run(all_services, story)


def test_wrongly_suspected_coordinator_returns(services: AnyServices) -> None:
    """A living candidate gets its place and its shards back, the leader as well."""

    async def story(services: AnyServices) -> None:
        one, two = candidate(1), candidate(2)
        await services.enter(one)
        await services.enter(two)
        await services.agreed(1, 2)
        for other, suspected in ((2, one), (1, two)):
            is_back = services.returns(suspected.id)
            services.open[other].remove_dead_candidate(suspected)
            await until(is_back, "it was removed, and is there again")
            await services.agreed(1, 2)

    run(services, story)


def test_suspicion_of_an_earlier_process_concerns_nobody(services: AnyServices) -> None:
    """The process that has the id now is not removed for one that had it before."""

    async def story(services: AnyServices) -> None:
        await services.enter(candidate(1))
        await services.enter(candidate(2))
        await services.agreed(1, 2)
        before = services.open[1].placement
        services.open[2].remove_dead_candidate(candidate(1))
        await services.enter(candidate(3))
        await services.agreed(1, 2, 3)
        after = services.open[1].placement
        assert before is not None
        assert after is not None
        assert after.version == before.version + 1

    run(services, story)


def test_restarted_process_takes_its_place_at_once(all_services: AnyServices) -> None:
    """At its address nobody else can be: the session of the one before is not waited for."""

    async def story(services: AnyServices) -> None:
        await services.enter(candidate(1))
        await services.enter(candidate(2))
        await services.agreed(1, 2)
        before = services.open[1].placement
        await services.end_without_leaving(2)
        again = candidate(2)
        await services.enter(again)
        await until(
            lambda: again in getattr(services.open[1].placement, "candidates", ()), "a map with the new process"
        )
        await services.agreed(1, 2)
        after = services.open[1].placement
        assert before is not None
        assert after is not None
        assert after.owners == before.owners

    run(all_services, story)


def test_id_of_another(services: AnyServices) -> None:
    """The living owner of the id keeps it, and the other candidate learns what to do."""

    async def story(services: AnyServices) -> None:
        await services.enter(candidate(1))
        with pytest.raises(KafkaError, match=r"the id 1 is taken by the coordinator at 127.0.0.1:9001; .* --id"):
            await services.enter(candidate(1, port=9777))
        await services.agreed(1)

    run(services, story)


class Server(Protocol):
    """One that goes and comes."""

    def kill(self) -> None: ...
    def start(self) -> None: ...


class OneZooKeeper:
    """A server of one test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.start()

    def start(self) -> None:
        self.server = ZooKeeper("127.0.0.1", self.port, self.folder)

    def kill(self) -> None:
        self.server.kill()


@pytest.fixture(params=["zookeeper", APACHE])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, AnyServices]]:
    """With services that are looked for there."""
    if request.param == "zookeeper":
        zookeeper = OneZooKeeper(tmp_path / "zookeeper")
        yield zookeeper, ZooKeeperServices(f"127.0.0.1:{zookeeper.port}")
        zookeeper.server.close()
        return
    try:
        kafka = ApacheKafka(SOON_BACK)
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")
    with kafka:
        yield kafka, GroupServices(kafka.bootstrap_servers)


def test_server_goes_and_comes(server: tuple[Server, AnyServices]) -> None:
    """While it is away all go on with the map they have; then it says the same again, and candidates come and go."""
    place, services = server

    async def story(services: AnyServices) -> None:
        await services.enter(candidate(1))
        await services.enter(candidate(2))
        await services.agreed(1, 2)
        before = services.open[1].placement
        await asyncio.to_thread(place.kill)
        await until(lambda: not any(services.reaches(service) for service in services.open.values()), "it is away")
        assert services.open[1].placement == before == services.open[2].placement
        await asyncio.to_thread(place.start)
        await until(lambda: all(services.reaches(service) for service in services.open.values()), "it is back")
        await services.enter(candidate(3))
        await services.agreed(1, 2, 3)

    run(services, story)


@pytest.mark.parametrize("kind", [ZooKeeperServices, GroupServices])
def test_nobody_there(kind: type[AnyServices], monkeypatch: pytest.MonkeyPatch) -> None:
    """Says where it looked, and may be tried again."""
    monkeypatch.setattr(zookeeper_door, "_REACH_MS", 500)
    monkeypatch.setattr(group_service, "_OPEN_MS", 300)
    service, address = kind(server := f"127.0.0.1:{free_port()}").service(), re.escape(server)

    async def play() -> None:
        for _ in range(2):
            with pytest.raises(TimedOutError, match=rf"{address} did not answer within|can be reached .{address}: "):
                await service.open(candidate(1), SHARDS)

    asyncio.run(play())
