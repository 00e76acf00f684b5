"""Topics as the brokers of a real cluster tell them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kohort import AsyncAdmin, Broker, NewTopic
from kohort.broker.shards import GroupShards
from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.settings import ConnectionConfig
from kohort.cluster import topic_view
from kohort.cluster.topic_view import KafkaTopics, is_up
from kohort.errors import ErrorCode, KafkaError
from kohort.groups.effects import FindDeletedTopics
from kohort.groups.events import Event, TopicsChanged, TopicsDeleted
from kohort.wire.discovery import MetadataResponse
from kohort.zookeeper import free_ports

WAIT_S = 30.0
ENDS_S = 5.0


class Hearing(GroupShards):
    """No shards: what they would be told."""

    def __init__(self) -> None:
        super().__init__(lambda: 0, lambda index, term: pytest.fail("no shard begins here"))
        self.heard: list[Event] = []

    def queue_for_all_shards(self, event: Event) -> None:
        self.heard.append(event)

    @property
    def deleted(self) -> list[str]:
        """Topics that were told to be deleted."""
        return [name for event in self.heard if isinstance(event, TopicsDeleted) for name in event.topics]


@asynccontextmanager
async def topics_of(servers: str, **settings: int) -> AsyncIterator[tuple[KafkaTopics, Hearing]]:
    """Topics of a cluster, with what shards are told of them."""
    client = await AsyncClient.open(ConnectionConfig(bootstrap_servers=tuple(servers.split(",")), **settings))
    groups = Hearing()
    try:
        yield KafkaTopics(client, groups), groups
    finally:
        await client.close()


async def polled_until(topics: KafkaTopics, ready: Callable[[], bool]) -> None:
    """Ask until what was done at the cluster is seen."""
    async with asyncio.timeout(WAIT_S):
        while not ready():
            await topics.request_all_topics()


async def until(ready: Callable[[], bool]) -> None:
    """Let others run until it is so."""
    while not ready():  # noqa: ASYNC110  # what is waited for has no event
        await asyncio.sleep(0.01)


def test_topics_are_made_grow_and_are_made_again(servers: str) -> None:
    name = f"told-{uuid.uuid4().hex[:8]}"

    async def run() -> None:
        async with topics_of(servers) as (topics, groups), AsyncAdmin(servers) as admin:
            await topics.request_all_topics()
            assert topics.cluster_id
            assert [place.port for place in topics.brokers] == [int(servers.rpartition(":")[2])]
            (await admin.create_topics([NewTopic(name, 2)])).all()
            await polled_until(topics, lambda: name in topics.by_name)
            first = topics.by_name[name]
            assert first.partitions == 2
            assert topics.by_id[first.id] is first
            leader = topics.brokers[0].node_id
            assert [(number[0], number[2], number[3]) for number in topics.leaders(name, range(2))] == [
                (leader, [leader], [leader])
            ] * 2
            (await admin.create_partitions({name: 3})).all()
            await polled_until(topics, lambda: topics.by_name[name].partitions == 3)
            image = topics.topic_image()
            assert (image.topics[name].id, image.topics[name].partitions) == (first.id, 3)
            assert isinstance(groups.heard[-1], TopicsChanged)
            assert groups.heard[-1].image is image
            assert groups.deleted == []

            (await admin.delete_topics([name])).all()
            (await admin.create_topics([NewTopic(name, 1)])).all()
            await polled_until(topics, lambda: name in groups.deleted)
            await polled_until(topics, lambda: name in topics.by_name)
            assert topics.by_name[name].id != first.id
            assert topics.by_name[name].partitions == 1
            assert first.id not in topics.by_id

            (await admin.delete_topics([name])).all()
            await polled_until(topics, lambda: name not in topics.by_name)
            assert groups.deleted == [name, name]
            assert name not in {listed.name for listed in await admin.list_topics()}  # nobody made it by asking

    asyncio.run(run())


def test_positions_of_topics_that_are_not_there_are_looked_for(servers: str) -> None:
    there, gone = (f"told-{uuid.uuid4().hex[:8]}" for _ in range(2))

    async def run() -> None:
        async with topics_of(servers) as (topics, groups), AsyncAdmin(servers) as admin:
            (await admin.create_topics([NewTopic(there, 1)])).all()
            await polled_until(topics, lambda: there in topics.by_name)
            known, earlier = topics.by_name[there].id, uuid.uuid4()
            topics.find_deleted_topics(FindDeletedTopics({there: frozenset({known}), gone: frozenset({earlier})}))
            await polled_until(topics, lambda: gone in groups.deleted)
            assert groups.deleted == [gone]
            topics.find_deleted_topics(FindDeletedTopics({there: frozenset({known, earlier})}))
            await polled_until(topics, lambda: there in groups.deleted)
            assert topics.by_name[there].id == known

    asyncio.run(run())


def test_topics_that_are_named_before_the_next_poll_are_found(servers: str) -> None:
    name, nobody = f"told-{uuid.uuid4().hex[:8]}", f"nobody-{uuid.uuid4().hex[:8]}"

    async def run() -> None:
        async with topics_of(servers) as (topics, groups), AsyncAdmin(servers) as admin, asyncio.timeout(WAIT_S):
            await topics.request_all_topics()

            async def found(names: list[str], ids: list[uuid.UUID]) -> None:
                then = asyncio.Event()
                topics.request_topics(names, ids, then.set)
                await then.wait()

            (await admin.create_topics([NewTopic(name, 2)])).all()
            while name not in topics.by_name:
                await asyncio.gather(*(found([name, nobody], []) for _ in range(10)))
            assert nobody not in topics.by_name
            assert topics.polls == 1
            assert isinstance(groups.heard[-1], TopicsChanged)
            assert name in groups.heard[-1].image.topics
            asked = []
            topics.request_topics([nobody], [], lambda: asked.append(nobody))
            assert asked == [nobody]  # at once: it was missing a moment ago
            other = f"told-{uuid.uuid4().hex[:8]}"
            made = (await admin.create_topics([NewTopic(other, 1)])).result(other)
            while made.topic_id not in topics.by_id:
                await found([], [made.topic_id])
            assert nobody not in {listed.name for listed in await admin.list_topics()}
            await topics.close()

    asyncio.run(run())


@pytest.mark.parametrize(("requests_max", "lists"), [(3, 0), (2, 1)], ids=["by name", "by the list of all"])
def test_all_topics_of_a_request_are_found_where_they_are_more_than_one_question_names(
    monkeypatch: pytest.MonkeyPatch, requests_max: int, lists: int
) -> None:
    monkeypatch.setattr(topic_view, "ASKED_MAX", 2)
    monkeypatch.setattr(topic_view, "REQUESTS_MAX", requests_max)
    names = [f"told-{uuid.uuid4().hex[:8]}-{number}" for number in range(5)]

    async def run(servers: str) -> None:
        async with topics_of(servers) as (topics, _), AsyncAdmin(servers) as admin, asyncio.timeout(WAIT_S):
            (await admin.create_topics([NewTopic(name, 1) for name in names])).all()
            then = asyncio.Event()
            topics.request_topics(names, [], then.set)
            await then.wait()
            assert {*names} <= topics.by_name.keys()
            assert topics.polls == lists
            await topics.close()

    with Broker() as broker:
        asyncio.run(run(broker.bootstrap_servers))


def test_request_that_names_a_topic_is_served_when_kafka_is_silent() -> None:
    async def run() -> None:
        async with topics_of(f"127.0.0.1:{free_ports(1)[0]}") as (topics, _), asyncio.timeout(WAIT_S):
            then = asyncio.Event()
            topics.request_topics(["t"], [], then.set)
            await then.wait()
            await topics.close()

    asyncio.run(run())


def test_a_broker_that_does_not_know_itself_says_nothing() -> None:
    broker = MetadataResponse.MetadataResponseBroker
    assert is_up(2, MetadataResponse(brokers=[broker(node_id=1), broker(node_id=2)]))
    assert not is_up(2, MetadataResponse(brokers=[broker(node_id=1)]))
    assert not is_up(2, MetadataResponse())


def test_names_are_held_to_kafkas_rules() -> None:
    async def run() -> None:
        async with topics_of("127.0.0.1:1") as (topics, _):
            assert topics.invalid_name_error("flights") is None
            refused = topics.invalid_name_error("fl ights")
            assert refused is not None
            assert refused.code is ErrorCode.INVALID_TOPIC_EXCEPTION

    asyncio.run(run())


def test_a_cluster_that_is_not_there_is_reported_with_its_address() -> None:
    servers = f"127.0.0.1:{free_ports(1)[0]}"

    async def run() -> None:
        async with topics_of(servers) as (topics, groups):
            with pytest.raises(KafkaError, match=servers):
                await topics.request_all_topics()
            assert topics.polls == 0
            assert groups.heard == []

    asyncio.run(run())


def test_watch_continues_when_the_cluster_returns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_ports(1)[0]
    config = {"reconnect_backoff_max_ms": 100, "default_api_timeout_ms": 500, "request_timeout_ms": 500}

    async def run() -> None:
        async with topics_of(f"127.0.0.1:{port}", **config) as (topics, _):
            watching = asyncio.create_task(topics.poll_topics())
            async with asyncio.timeout(WAIT_S):
                await until(lambda: "metadata of Kafka's topics cannot be refreshed" in caplog.text)
                with Broker(tmp_path, listen=f"127.0.0.1:{port}"):
                    await until(lambda: topics.poll_topics_now() or topics.polls > 0)
                    await until(lambda: "metadata of Kafka's topics can be refreshed again" in caplog.text)
                    topics.poll_topics_now()
                    watching.cancel()  # in the same turn of the loop: it is not lost by that
                    await asyncio.wait([watching], timeout=ENDS_S)
                    assert watching.cancelled()

    with caplog.at_level("INFO", "kohort.cluster"):
        asyncio.run(run())
