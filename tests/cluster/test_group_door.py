"""Coordinators that are a group on Kafka: one map, and who is gone or in the way."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from kohort import Admin, Broker
from kohort.client.admin.values import Acl, AclOperation, AclResource
from kohort.client.settings import ConnectionConfig
from kohort.cluster.doors import group_door
from kohort.cluster.doors.group_door import GroupDoor
from kohort.cluster.doors.group_round import Given, Told
from kohort.cluster.doors.placement import Candidate
from kohort.errors import ErrorCode, KafkaError, NotAuthorizedError, TimedOutError
from kohort.zookeeper import free_port
from tests.cluster.doors import SHARDS, candidate, until
from tests.support.apache_kafka import SOON_BACK, ApacheKafka
from tests.support.maven import MavenUnavailable
from tests.support.secured_kafka import SecuredKafka

_GROUPS = itertools.count()


class Doors:
    """Doors of one group, closed at the end."""

    def __init__(self, servers: str) -> None:
        self.config = ConnectionConfig(bootstrap_servers=(servers,))
        self.group = f"placement-{next(_GROUPS)}"
        self.open: dict[int, GroupDoor] = {}

    async def enter(self, me: Candidate) -> GroupDoor:
        door = GroupDoor(self.config, self.group)
        await door.open(me, SHARDS)
        self.open[me.id] = door
        return door

    async def agreed(self, *ids: int) -> None:
        """All doors have one map, in which just these have shards."""

        def agree() -> bool:
            maps = {door.placement for door in self.open.values()}
            placement = maps.pop()
            offices = [number for number, door in self.open.items() if door.in_office]
            alike = not maps and placement is not None and set(placement.owners) == set(ids)
            return alike and placement is not None and offices == [placement.elected]

        await until(agree, f"one map for {ids}: {[door.placement for door in self.open.values()]}")

    async def end_without_leaving(self, number: int) -> None:
        """As a process ends that is killed."""
        client = self.open.pop(number)._client
        assert client is not None
        await client.close()


def run(servers: str, story: Callable[[Doors], Awaitable[None]]) -> None:
    async def play() -> None:
        doors = Doors(servers)
        try:
            await story(doors)
        finally:
            for door in doors.open.values():
                await door.close()

    asyncio.run(play())


def test_enter_suspect_retire(servers: str) -> None:
    """Three share the shards; a suspected one is out without its session, one that retires before it has left."""

    async def story(doors: Doors) -> None:
        for number in (1, 2, 3):
            await doors.enter(candidate(number))
        await doors.agreed(1, 2, 3)
        before = doors.open[1].placement
        assert before is not None
        two = before.candidate(2)
        assert two is not None
        await doors.end_without_leaving(2)
        doors.open[3].suspect(two)
        await doors.agreed(1, 3)
        after = doors.open[1].placement
        assert after is not None
        assert after.of(1) >= before.of(1)
        assert after.of(3) >= before.of(3)
        assert after.version > before.version
        retiring = doors.open.pop(1)
        await retiring.retire()
        assert retiring.placement is not None
        assert not retiring.placement.of(1)
        assert retiring.placement.of(3) == frozenset(range(SHARDS))
        await doors.agreed(3)

    run(servers, story)


def test_wrongly_suspected_comes_back(our_broker: object) -> None:
    """Who lives joins again, and has its shards again."""

    async def story(doors: Doors) -> None:
        one, two = candidate(1), candidate(2)
        await doors.enter(one)
        await doors.enter(two)
        await doors.agreed(1, 2)
        heard: list[object] = []
        doors.open[2].listen(lambda: heard.append(doors.open[2].placement))
        doors.open[2].suspect(one)
        await until(lambda: len(heard) >= 1, "another generation")
        await doors.agreed(1, 2)

    run(our_broker.bootstrap_servers, story)  # type: ignore[attr-defined]


def test_who_asks_is_told_no_map_from_before(our_broker: Broker) -> None:
    """Who was removed hears of it by the next heartbeat, which is far away here."""

    async def story(doors: Doors) -> None:
        two = candidate(2)
        first = await doors.enter(candidate(1))
        second = doors.open[2] = GroupDoor(doors.config, doors.group, heartbeat_ms=5_000)
        await second.open(two, SHARDS)
        await doors.agreed(1, 2)
        before = second.placement
        assert before is not None
        first.suspect(two)
        await until(lambda: first.placement != before, "a map after the suspicion")
        await asyncio.wait_for(second.ask(), 60)
        assert second.placement is not None
        assert second.placement.version > before.version

    run(our_broker.bootstrap_servers, story)


def test_suspicion_of_an_earlier_process_concerns_nobody(our_broker: object) -> None:
    """The process that has the id now is not removed for one that had it before."""

    async def story(doors: Doors) -> None:
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

    run(our_broker.bootstrap_servers, story)  # type: ignore[attr-defined]


def test_restarted_process_takes_its_place_at_once(servers: str) -> None:
    """At its address nobody else can be: the member that was killed is not waited for."""

    async def story(doors: Doors) -> None:
        await doors.enter(candidate(1))
        await doors.enter(candidate(2))
        await doors.agreed(1, 2)
        before = doors.open[1].placement
        await doors.end_without_leaving(2)
        again = candidate(2)
        await doors.enter(again)
        await doors.agreed(1, 2)
        after = doors.open[1].placement
        assert before is not None
        assert after is not None
        assert after.owners == before.owners
        assert after.candidate(2) == again

    run(servers, story)


def test_id_of_another(our_broker: object) -> None:
    """Who lives under the id keeps it, and the other one is told what to do."""

    async def story(doors: Doors) -> None:
        await doors.enter(candidate(1))
        with pytest.raises(KafkaError, match=r"the id 1 is taken by the coordinator at 127.0.0.1:9001; .* --id"):
            await doors.enter(candidate(1, port=9777))
        await doors.agreed(1)

    run(our_broker.bootstrap_servers, story)  # type: ignore[attr-defined]


def test_group_of_something_else(our_broker: object) -> None:
    """A group that consumers use is refused with what to do."""
    from kohort.client.group.member import GroupMember

    servers = our_broker.bootstrap_servers  # type: ignore[attr-defined]

    async def story(doors: Doors) -> None:
        with GroupMember(servers, doors.group, topics=["any"]) as member:
            await asyncio.to_thread(member.wait_assignment, 30_000)
            with pytest.raises(KafkaError, match="give the coordinators another group") as raised:
                await doors.enter(candidate(1))
            assert raised.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    run(servers, story)


def _forgotten_story() -> None:
    address = f"127.0.0.1:{free_port()}"
    config = {"group.initial.rebalance.delay.ms": 0}
    broker = Broker(listen=address, config=config)

    async def story(doors: Doors) -> None:
        nonlocal broker
        for number in (1, 2, 3):
            await doors.enter(candidate(number))
        await doors.agreed(1, 2, 3)
        for _ in range(3):  # generations that the group made again will not reach at once
            await doors.enter(candidate(4))
            await doors.open.pop(4).retire()
            await doors.agreed(1, 2, 3)
        before = doors.open[1].placement
        assert before is not None
        await asyncio.to_thread(broker.close)
        assert [door.placement for door in doors.open.values()] == [before] * 3
        broker = await asyncio.to_thread(Broker, listen=address)  # it holds a first join for 3 s, as Kafka does
        await until(lambda: doors.open[1]._generation < before.version, "another generation")
        await doors.agreed(1, 2, 3)
        after = doors.open[1].placement
        assert after is not None
        assert after.version < before.version, "a map that is gone counts for more than the one that is there"
        assert after.owners == before.owners

    try:
        run(address, story)
    finally:
        broker.close()


def test_group_that_kafka_forgot() -> None:
    """Its generations begin at 1 again: the lower version is what counts, and no shard moves."""
    _forgotten_story()


def test_planted_fault_higher_version_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who keeps the map with the higher version is seen."""
    take = GroupDoor._take

    def keeping(self: GroupDoor, gift: Given, told: Told, leads: bool) -> None:
        kept = self.placement
        take(self, gift, told, leads)
        if kept is not None and self.placement is not None and kept.version > self.placement.version:
            self.placement = replace(kept, elected=self.placement.elected)

    monkeypatch.setattr(GroupDoor, "_take", keeping)
    with pytest.raises(AssertionError, match="counts for more"):
        _forgotten_story()


@pytest.mark.kafka
def test_kafka_goes_and_comes() -> None:
    """While it is away all go on with the map they have; then it says the same again, and members come and go."""
    try:
        kafka = ApacheKafka(SOON_BACK)
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")

    async def story(doors: Doors) -> None:
        for number in (1, 2):
            await doors.enter(candidate(number))
        await doors.agreed(1, 2)
        before = doors.open[1].placement
        await asyncio.to_thread(kafka.kill)
        assert doors.open[1].placement == before == doors.open[2].placement
        kafka.start()  # it ends with the thread that starts it
        await doors.enter(candidate(3))
        await doors.agreed(1, 2, 3)

    with kafka:
        run(kafka.bootstrap_servers, story)


def test_open_when_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Says who did not, and may be tried again."""
    monkeypatch.setattr(group_door, "_OPEN_MS", 300)
    address = f"127.0.0.1:{free_port()}"

    async def story(doors: Doors) -> None:
        door = GroupDoor(doors.config, doors.group)
        for _ in range(2):
            with pytest.raises(TimedOutError, match=address):
                await door.open(candidate(1), SHARDS)

    run(address, story)


@pytest.mark.kafka
def test_rights_on_the_group(secured: SecuredKafka) -> None:
    """Who may not read and describe the group is told so; with these two rights alone it works, over SASL."""
    servers = f"127.0.0.1:{secured.ports['SASL']}"

    async def story(doors: Doors) -> None:
        doors.config = replace(
            doors.config, security_protocol="SASL_PLAINTEXT", sasl_username="bob", sasl_password="secret"
        )
        with pytest.raises(NotAuthorizedError, match=f"{doors.group}.*needs the rights to describe and to read it"):
            await doors.enter(candidate(1))
        with Admin(secured.bootstrap_servers) as admin:
            rights = [
                Acl("User:bob", operation, AclResource.GROUP, doors.group)
                for operation in (AclOperation.DESCRIBE, AclOperation.READ)
            ]
            await asyncio.to_thread(lambda: admin.create_acls(rights).all())
        door = await _with_patience(lambda: doors.enter(candidate(1)))
        await doors.enter(candidate(2))
        await doors.agreed(1, 2)
        assert door.placement is not None

    run(servers, story)


async def _with_patience(enter: Callable[[], Awaitable[GroupDoor]]) -> GroupDoor:
    """A broker knows of a right a moment after it was given."""
    for _ in range(100):
        try:
            return await enter()
        except NotAuthorizedError:
            await asyncio.sleep(0.1)
    return await enter()
