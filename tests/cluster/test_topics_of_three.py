"""Topics as three brokers tell them, one of which comes and goes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import pytest

from kohort import AsyncAdmin, NewTopic
from kohort.errors import KafkaError
from tests.cluster.test_kafka_topics import topics_of
from tests.support.kafka_cluster import KafkaNode, three_nodes
from tests.support.maven import MavenUnavailable

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]
WAIT_S = 180.0
RACKS = ("rack-0", "rack-1", "rack-2")


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[KafkaNode]]:
    try:
        with three_nodes() as started:
            yield started
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")


def test_a_broker_that_comes_and_goes_takes_no_topic_away_and_brings_none_back(nodes: list[KafkaNode]) -> None:
    kept, gone = (f"{what}-{uuid.uuid4().hex[:8]}" for what in ("kept", "gone"))
    servers = ",".join(node.bootstrap_servers for node in nodes)

    async def run() -> None:
        async with topics_of(servers) as (topics, groups), AsyncAdmin(servers) as admin, asyncio.timeout(WAIT_S):

            async def poll() -> None:
                try:
                    await topics.request_all_topics()
                except KafkaError:
                    await asyncio.sleep(0.1)

            (await admin.create_topics([NewTopic(kept, 2), NewTopic(gone, 1)])).all()
            while not {kept, gone} <= topics.by_name.keys():
                await poll()
            assert topics.topic_image().topics[kept].racks == (RACKS, RACKS)
            nodes[0].kill()
            while len(topics.brokers) != 2:
                await poll()
            assert topics.topic_image().topics[kept].racks == (RACKS, RACKS)  # its rack is known, and it has not moved
            (await admin.delete_topics([gone])).all()
            while gone in topics.by_name:
                await poll()
            assert groups.deleted == [gone]
            nodes[0].start()
            for _ in range(20):
                await poll()
            await asyncio.to_thread(nodes[0].wait)
            while len(topics.brokers) != 3:
                await poll()
            for _ in range(6):  # each of them twice
                await poll()
            assert gone not in topics.by_name
            assert kept in topics.by_name
            assert groups.deleted == [gone]

    asyncio.run(run())
