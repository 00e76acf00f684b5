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
from tests.cluster.coordination_services import SHARDS, AnyDoors, GroupDoors, ZooKeeperDoors, candidate, run, until
from tests.support.apache_kafka import SOON_BACK, ApacheKafka
from tests.support.maven import MavenUnavailable

APACHE = pytest.param("apache", marks=pytest.mark.kafka)


def doors_at(request: pytest.FixtureRequest) -> AnyDoors:
    """Of the place that is asked for."""
    if request.param == "zookeeper":
        return ZooKeeperDoors(request.getfixturevalue("zookeeper").address)
    broker = request.getfixturevalue("our_broker" if request.param == "kohort" else "apache_kafka")
    return GroupDoors(broker.bootstrap_servers)


@pytest.fixture(params=["zookeeper", "kohort"])
def doors(request: pytest.FixtureRequest) -> AnyDoors:
    return doors_at(request)


@pytest.fixture(params=["zookeeper", "kohort", APACHE])
def all_doors(request: pytest.FixtureRequest) -> AnyDoors:
    """On Apache Kafka too."""
    return doors_at(request)


def test_enter_suspect_retire(all_doors: AnyDoors) -> None:
    """Three share the shards; a suspected one is out without its session, one that retires before it has left."""

    async def suspected(doors: AnyDoors, number: int) -> None:
        before = next(iter(doors.open.values())).placement
        assert before is not None
        gone = before.candidate(number)
        assert gone is not None
        await doors.end_without_leaving(number)
        *_, last = doors.open.values()
        last.suspect(gone)
        await doors.agreed(*doors.open)
        after = last.placement
        assert after is not None
        assert all(after.of(other) >= before.of(other) for other in doors.open)
        assert after.version > before.version

    async def story(doors: AnyDoors) -> None:
        for number in (1, 2, 3):
            await doors.enter(candidate(number))
        await doors.agreed(1, 2, 3)
        elected = next(number for number, door in doors.open.items() if door.is_leader)
        other = next(number for number in doors.open if number != elected)
        await suspected(doors, other)
        await doors.enter(candidate(other))
        await doors.agreed(1, 2, 3)
        await suspected(doors, elected)
        elected = next(number for number, door in doors.open.items() if door.is_leader)
        retiring = doors.open.pop(elected)
        (left,) = doors.open
        await retiring.retire()
        assert retiring.placement is not None
        assert not retiring.placement.of(elected)
        assert retiring.placement.of(left) == frozenset(range(SHARDS))
        await doors.agreed(left)

    run(all_doors, story)


def test_wrongly_suspected_coordinator_returns(doors: AnyDoors) -> None:
    """A living candidate gets its place and its shards back, the leader as well."""

    async def story(doors: AnyDoors) -> None:
        one, two = candidate(1), candidate(2)
        await doors.enter(one)
        await doors.enter(two)
        await doors.agreed(1, 2)
        for other, suspected in ((2, one), (1, two)):
            is_back = doors.comes_back(suspected.id)
            doors.open[other].suspect(suspected)
            await until(is_back, "it was removed, and is there again")
            await doors.agreed(1, 2)

    run(doors, story)


def test_suspicion_of_an_earlier_process_concerns_nobody(doors: AnyDoors) -> None:
    """The process that has the id now is not removed for one that had it before."""

    async def story(doors: AnyDoors) -> None:
        await doors.enter(candidate(1))
        await doors.enter(candidate(2))
        await doors.agreed(1, 2)
        before = doors.open[1].placement
        doors.open[2].suspect(candidate(1))
        await doors.enter(candidate(3))
        await doors.agreed(1, 2, 3)
        after = doors.open[1].placement
        assert before is not None
        assert after is not None
        assert after.version == before.version + 1

    run(doors, story)


def test_restarted_process_takes_its_place_at_once(all_doors: AnyDoors) -> None:
    """At its address nobody else can be: the session of the one before is not waited for."""

    async def story(doors: AnyDoors) -> None:
        await doors.enter(candidate(1))
        await doors.enter(candidate(2))
        await doors.agreed(1, 2)
        before = doors.open[1].placement
        await doors.end_without_leaving(2)
        again = candidate(2)
        await doors.enter(again)
        await until(lambda: again in getattr(doors.open[1].placement, "candidates", ()), "a map with the new process")
        await doors.agreed(1, 2)
        after = doors.open[1].placement
        assert before is not None
        assert after is not None
        assert after.owners == before.owners

    run(all_doors, story)


def test_id_of_another(doors: AnyDoors) -> None:
    """The living owner of the id keeps it, and the other candidate learns what to do."""

    async def story(doors: AnyDoors) -> None:
        await doors.enter(candidate(1))
        with pytest.raises(KafkaError, match=r"the id 1 is taken by the coordinator at 127.0.0.1:9001; .* --id"):
            await doors.enter(candidate(1, port=9777))
        await doors.agreed(1)

    run(doors, story)


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
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, AnyDoors]]:
    """With doors that are looked for there."""
    if request.param == "zookeeper":
        zookeeper = OneZooKeeper(tmp_path / "zookeeper")
        yield zookeeper, ZooKeeperDoors(f"127.0.0.1:{zookeeper.port}")
        zookeeper.server.close()
        return
    try:
        kafka = ApacheKafka(SOON_BACK)
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")
    with kafka:
        yield kafka, GroupDoors(kafka.bootstrap_servers)


def test_server_goes_and_comes(server: tuple[Server, AnyDoors]) -> None:
    """While it is away all go on with the map they have; then it says the same again, and candidates come and go."""
    place, doors = server

    async def story(doors: AnyDoors) -> None:
        await doors.enter(candidate(1))
        await doors.enter(candidate(2))
        await doors.agreed(1, 2)
        before = doors.open[1].placement
        await asyncio.to_thread(place.kill)
        await until(lambda: not any(doors.reaches(door) for door in doors.open.values()), "it is away")
        assert doors.open[1].placement == before == doors.open[2].placement
        await asyncio.to_thread(place.start)
        await until(lambda: all(doors.reaches(door) for door in doors.open.values()), "it is back")
        await doors.enter(candidate(3))
        await doors.agreed(1, 2, 3)

    run(doors, story)


@pytest.mark.parametrize("kind", [ZooKeeperDoors, GroupDoors])
def test_nobody_there(kind: type[AnyDoors], monkeypatch: pytest.MonkeyPatch) -> None:
    """Says where it looked, and may be tried again."""
    monkeypatch.setattr(zookeeper_door, "_REACH_MS", 500)
    monkeypatch.setattr(group_service, "_OPEN_MS", 300)
    door, address = kind(server := f"127.0.0.1:{free_port()}").door(), re.escape(server)

    async def play() -> None:
        for _ in range(2):
            with pytest.raises(TimedOutError, match=rf"{address} did not answer within|can be reached .{address}: "):
                await door.open(candidate(1), SHARDS)

    asyncio.run(play())
