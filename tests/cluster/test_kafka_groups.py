"""Groups of a real Kafka's own coordinator, as they are read before they are served here."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kohort import AsyncAdmin, AsyncConsumer, AsyncProducer, NewTopic, TopicPartition
from kohort.broker.shards import GroupShards
from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.settings import ConnectionConfig
from kohort.cluster.host import KafkaGroups
from kohort.errors import ErrorCode
from kohort.groups.effects import CoordinatorMeter, CounterIncreased, ImportGroupOffsets
from kohort.groups.events import Event, GroupImported, OffsetToCommit
from kohort.zookeeper import free_ports

WAIT_S = 60.0
TICKET = 42
RESERVED = "the-coordinators"


class Known(GroupShards):
    """No shards, and the groups that they would have."""

    def __init__(self, *names: str) -> None:
        super().__init__(lambda: 0, lambda index, term: pytest.fail("no shard begins here"))
        self.names = set(names)

    def has_group(self, group: str) -> bool:
        return group in self.names


@asynccontextmanager
async def groups_at(servers: str) -> AsyncIterator[KafkaGroups]:
    """Kafka's groups, asked over a client of their own."""
    client = await AsyncClient.open(ConnectionConfig(bootstrap_servers=(servers,), default_api_timeout_ms=2_000))
    groups = KafkaGroups(client, {RESERVED})
    try:
        yield groups
    finally:
        await groups.close()
        await client.close()


async def asked(groups: KafkaGroups, group: str) -> GroupImported:
    """Return the state of a group."""
    found: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
    groups.import_offsets(ImportGroupOffsets(group, TICKET), found.set_result)
    async with asyncio.timeout(WAIT_S):
        answer = await found
    assert isinstance(answer, GroupImported)
    assert (answer.group_id, answer.ticket) == (group, TICKET)
    return answer


def fresh(what: str) -> str:
    """A name of this test's own."""
    return f"{what}-{uuid.uuid4().hex[:8]}"


@asynccontextmanager
async def topic_at(servers: str) -> AsyncIterator[tuple[AsyncAdmin, str]]:
    """A topic with two partitions that the group coordinators know; Kafka's learn of it a moment after its creation."""
    topic = fresh("moved")
    async with AsyncAdmin(servers) as admin:
        (await admin.create_topics([NewTopic(topic, 2)])).all()
        async with asyncio.timeout(WAIT_S):
            while True:
                if not (await admin.alter_consumer_group_offsets(fresh("g"), {TopicPartition(topic, 1): 0})).errors:
                    break
                await asyncio.sleep(0.02)
        yield admin, topic


def test_offsets_of_a_group_without_members_are_found(servers: str) -> None:
    async def run() -> None:
        async with topic_at(servers) as (admin, topic), groups_at(servers) as groups:
            group = fresh("g")
            (await admin.alter_consumer_group_offsets(group, {TopicPartition(topic, 0): 0})).all()
            found = await asked(groups, group)
            assert found.error is ErrorCode.NONE
            assert found.offsets == (OffsetToCommit(topic, 0, 0),)
            assert (await asked(groups, fresh("nobody"))).offsets == ()
            coordinators = groups._client.cluster._coordinators
            assert not coordinators._found
            assert not coordinators._lookups  # nothing is kept of names that somebody makes up

    asyncio.run(run())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_are_named_until_they_have_left_and_their_last_commits_count(servers: str, protocol: str) -> None:
    async def run() -> None:
        async with topic_at(servers) as (_, topic), groups_at(servers) as groups:
            group = fresh("g")
            async with AsyncProducer(servers) as producer:
                for number in range(5):
                    await producer.send(topic, b"x", partition=number % 2)
                await producer.flush()
            consumer = AsyncConsumer(
                servers, group_id=group, group_protocol=protocol, client_id="mover", auto_offset_reset="earliest"
            )
            consumer.subscribe([topic])
            seen = 0
            async with asyncio.timeout(WAIT_S):
                while seen < 5:
                    seen += len(list(await consumer.poll(timeout_ms=500)))
            there = await asked(groups, group)
            assert there.error is ErrorCode.NON_EMPTY_GROUP
            assert "it has 1 member at Kafka's own coordinator (mover at 127.0.0.1)" in there.text
            assert there.offsets == ()
            known, counted = Known(group), []
            await groups.warn_of_other_members(known, counted.append)
            await groups.warn_of_other_members(known, counted.append)
            assert counted == [CounterIncreased(CoordinatorMeter.MEMBERS_ELSEWHERE, 1)]
            await consumer.close()
            left = await asked(groups, group)
            assert left.error is ErrorCode.NONE
            assert sorted((offset.topic, offset.partition, offset.offset) for offset in left.offsets) == [
                (topic, 0, 3),
                (topic, 1, 2),
            ]
            await groups.warn_of_other_members(known, counted.append)
            assert len(counted) == 1

    asyncio.run(run())


def test_offsets_that_a_transaction_may_still_change_are_waited_for(servers: str) -> None:
    async def run() -> None:
        async with topic_at(servers) as (admin, topic), groups_at(servers) as groups:
            group = fresh("g")
            (await admin.alter_consumer_group_offsets(group, {TopicPartition(topic, 0): 1})).all()
            async with AsyncProducer(servers, transactional_id=fresh("tx")) as producer:
                await producer.init_transactions()
                await producer.begin_transaction()
                await producer.send_offsets_to_transaction({TopicPartition(topic, 0): 2}, group)
                waits = await asked(groups, group)
                assert waits.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                assert waits.offsets == ()
                await producer.commit_transaction()
                async with asyncio.timeout(WAIT_S):
                    while (found := await asked(groups, group)).error is not ErrorCode.NONE:
                        pass
            assert [offset.offset for offset in found.offsets] == [2]

    asyncio.run(run())


def test_a_coordinator_that_is_not_there_gives_no_answer() -> None:
    async def run() -> None:
        async with groups_at(f"127.0.0.1:{free_ports(1)[0]}") as groups:
            found = await asked(groups, "g")
            assert found.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert "127.0.0.1" in found.text

    asyncio.run(run())


def test_the_group_by_which_the_coordinators_find_each_other_is_theirs() -> None:
    async def run() -> None:
        async with groups_at("127.0.0.1:1") as groups:
            found = await asked(groups, RESERVED)
            assert found.error is ErrorCode.INVALID_GROUP_ID
            assert "another name" in found.text

    asyncio.run(run())
