"""Coordination by a group on Kafka: its own behaviour. Promises of every service are in test_coordination.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from kohort import Admin, Broker
from kohort.client.admin.values import Acl, AclOperation, AclResource
from kohort.cluster.coordination.group_round import JoinMetadata, LeaderAssignment
from kohort.cluster.coordination.group_service import GroupCoordination
from kohort.errors import ErrorCode, KafkaError, NotAuthorizedError
from kohort.zookeeper import free_port
from tests.cluster.coordination_services import GroupServices, candidate, run, until
from tests.support.secured_kafka import SecuredKafka


def test_request_gets_no_map_from_before(our_broker: Broker) -> None:
    """A removed member learns of it by its next heartbeat, which is far away here."""

    async def story(services: GroupServices) -> None:
        two = candidate(2)
        first = await services.enter(candidate(1))
        services.heartbeat_ms = 5_000
        second = await services.enter(two)
        await services.agreed(1, 2)
        before = second.placement
        assert before is not None
        first.remove_dead_candidate(two)
        await until(lambda: first.placement != before, "a map after the suspicion")
        await asyncio.wait_for(second.refresh_placement(), 60)
        assert second.placement is not None
        assert second.placement.version > before.version

    run(GroupServices(our_broker.bootstrap_servers), story)


def test_group_of_something_else(our_broker: object) -> None:
    """A group that consumers use is refused with what to do."""
    from kohort.client.group.member import GroupMember

    servers = our_broker.bootstrap_servers  # type: ignore[attr-defined]

    async def story(services: GroupServices) -> None:
        with GroupMember(servers, services.group, topics=["any"]) as member:
            await asyncio.to_thread(member.wait_assignment, 30_000)
            with pytest.raises(KafkaError, match="give the coordinators another group") as raised:
                await services.enter(candidate(1))
            assert raised.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    run(GroupServices(servers), story)


def _forgotten_story() -> None:
    address = f"127.0.0.1:{free_port()}"
    config = {"group.initial.rebalance.delay.ms": 0}
    broker = Broker(listen=address, config=config)

    async def story(services: GroupServices) -> None:
        nonlocal broker
        for number in (1, 2, 3):
            await services.enter(candidate(number))
        await services.agreed(1, 2, 3)
        for _ in range(3):  # generations that the group made again will not reach at once
            await services.enter(candidate(4))
            await services.open.pop(4).hand_over_and_leave()
            await services.agreed(1, 2, 3)
        before = services.open[1].placement
        assert before is not None
        await asyncio.to_thread(broker.close)
        assert [service.placement for service in services.open.values()] == [before] * 3
        broker = await asyncio.to_thread(Broker, listen=address)  # it holds a first join for 3 s, as Kafka does
        await until(lambda: services.open[1]._generation < before.version, "another generation")
        await services.agreed(1, 2, 3)
        after = services.open[1].placement
        assert after is not None
        assert after.version < before.version, "a map that is gone counts for more than the one that is there"
        assert after.owners == before.owners

    try:
        run(GroupServices(address), story)
    finally:
        broker.close()


def test_group_that_kafka_forgot() -> None:
    """The group's generations restart at 1: the lower version counts, and no shard moves."""
    _forgotten_story()


def test_planted_fault_higher_version_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check detects a candidate that keeps the placement with the higher version."""
    take = GroupCoordination._adopt_placement

    def keeping(self: GroupCoordination, gift: LeaderAssignment, reported: JoinMetadata, leads: bool) -> None:
        kept = self.placement
        take(self, gift, reported, leads)
        if kept is not None and self.placement is not None and kept.version > self.placement.version:
            self.placement = replace(kept, elected=self.placement.elected)

    monkeypatch.setattr(GroupCoordination, "_adopt_placement", keeping)
    with pytest.raises(AssertionError, match="counts for more"):
        _forgotten_story()


@pytest.mark.kafka
def test_rights_on_the_group(secured: SecuredKafka) -> None:
    """A client that may not read and describe the group gets an error; these two rights suffice, over SASL."""
    servers = f"127.0.0.1:{secured.ports['SASL']}"

    async def story(services: GroupServices) -> None:
        services.config = replace(
            services.config, security_protocol="SASL_PLAINTEXT", sasl_username="bob", sasl_password="secret"
        )
        with pytest.raises(NotAuthorizedError, match=f"{services.group}.*needs the rights to describe and to read it"):
            await services.enter(candidate(1))
        with Admin(secured.bootstrap_servers) as admin:
            rights = [
                Acl("User:bob", operation, AclResource.GROUP, services.group)
                for operation in (AclOperation.DESCRIBE, AclOperation.READ)
            ]
            await asyncio.to_thread(lambda: admin.create_acls(rights).all())
        service = await _with_retries(lambda: services.enter(candidate(1)))
        await services.enter(candidate(2))
        await services.agreed(1, 2)
        assert service.placement is not None

    run(GroupServices(servers), story)


async def _with_retries(enter: Callable[[], Awaitable[GroupCoordination]]) -> GroupCoordination:
    """A broker knows of a right a moment after it was given."""
    for _ in range(100):
        try:
            return await enter()
        except NotAuthorizedError:
            await asyncio.sleep(0.1)
    return await enter()
