"""The journal on three nodes of Apache Kafka, while the brokers that lead it are killed.

It takes a minute and three virtual machines, so it runs in `make test-cluster` only (`KOHORT_KAFKA_CLUSTER=1`).
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterator

import pytest

from kohort.cluster.journal.journal_partition import JournalSettings
from kohort.errors import FencedError
from tests.cluster.journals import Cluster, Holder, cluster, committed, groups_of
from tests.support.kafka_cluster import KafkaNode, three_nodes
from tests.support.maven import MavenUnavailable

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("KOHORT_KAFKA_CLUSTER") != "1", reason="runs where KOHORT_KAFKA_CLUSTER=1"),
]

ROUNDS = 3


@pytest.fixture(scope="module")
def three() -> Iterator[list[KafkaNode]]:
    try:
        with three_nodes() as nodes:
            yield nodes
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")


def _run(nodes: list[KafkaNode], test: object) -> None:
    async def main() -> None:
        servers = ",".join(node.bootstrap_servers for node in nodes)
        settings = JournalSettings(topic=f"__groups-{uuid.uuid4().hex[:8]}", partitions=3, coordinator=101)
        async with cluster(servers, settings) as opened:
            await test(opened)  # type: ignore[operator]

    asyncio.run(main())


async def _leader(opened: Cluster) -> int:
    link = await opened.client()
    found = await link.call(link.cluster.describe_topics([opened.settings.topic]))
    return found[opened.settings.topic].partitions[0].leader


async def _kill_leader(opened: Cluster, nodes: list[KafkaNode]) -> KafkaNode:
    leader = await _leader(opened)
    node = next(node for node in nodes if node.number + 1 == leader)
    node.kill()
    return node


class Writing:
    """Appends 0, 1, 2 … until that fails.

    Attributes:
        next: all before it are acknowledged.
        under_way: some are.
    """

    def __init__(self, holder: Holder, first: int) -> None:
        self._holder = holder
        self.next = first
        self._some = first + 50
        self.under_way = asyncio.Event()

    async def run(self) -> None:
        while True:
            await self._holder.append(committed(self.next))
            self.next += 1
            if self.next == self._some:
                self.under_way.set()


async def _back(node: KafkaNode) -> None:
    node.start()
    await asyncio.to_thread(node.wait)


def test_the_topic_has_three_replicas_and_two_in_sync(three: list[KafkaNode], caplog: pytest.LogCaptureFixture) -> None:
    async def test(opened: Cluster) -> None:
        link, topic = await opened.client(), await opened.topic()
        found = await link.call(link.cluster.describe_topics([topic.name]))
        assert [len(part.replicas) for part in found[topic.name].partitions.values()] == [3, 3, 3]
        assert "replicas" not in caplog.text

    _run(three, test)


def test_appends_go_through_a_killed_leader_once_and_in_order(three: list[KafkaNode]) -> None:
    async def test(opened: Cluster) -> None:
        holder = await opened.holder()
        await holder.load()
        sent = 0
        for _ in range(ROUNDS):
            killed: KafkaNode | None = None
            for number in range(300):
                if number == 100:
                    killed = await _kill_leader(opened, three)
                await holder.append(committed(sent))
                sent += 1
            assert killed is not None
            await _back(killed)
        assert holder.reasons == []
        fresh = await opened.holder()
        assert groups_of(await fresh.load()) == list(range(sent))

    _run(three, test)


def test_a_deposed_owner_is_refused_by_a_leader_that_never_heard_of_it(three: list[KafkaNode]) -> None:
    async def test(opened: Cluster) -> None:
        first, second = await opened.holder(), await opened.holder()
        await first.load()
        await first.append(committed(1))
        assert groups_of(await second.load()) == [1]
        killed = await _kill_leader(opened, three)
        with pytest.raises(FencedError):
            await first.append(committed(99))
        await second.append(committed(2))
        await _back(killed)
        assert groups_of(await (await opened.holder()).load()) == [1, 2]

    _run(three, test)


def test_a_take_over_while_the_leader_dies_misses_nothing(three: list[KafkaNode]) -> None:
    """One owner writes on while another takes over, and the leader is killed between."""

    async def test(opened: Cluster) -> None:
        before = await opened.holder()
        await before.load()
        sent = 0
        for _ in range(ROUNDS):
            writer = Writing(before, sent)
            writing = asyncio.create_task(writer.run())
            await writer.under_way.wait()
            after = await opened.holder()
            loading = asyncio.create_task(after.load())
            killed = await _kill_leader(opened, three)
            found = groups_of(await loading)
            with pytest.raises((FencedError, OSError)):
                await writing
            assert found[: writer.next] == list(range(writer.next))
            assert len(found) <= writer.next + 1
            sent, before = len(found), after
            await _back(killed)

    _run(three, test)
