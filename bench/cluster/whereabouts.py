"""The leader of a partition and the coordinator of a group, as the nodes report them."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from typing import TypeAlias

from bench.cluster.site import Site
from bench.coordinator.load import host_and_port
from bench.coordinator.wire import OWN_CLIENT, Link
from kohort.wire.discovery import MetadataRequest, MetadataResponse
from kohort.wire.groups import FindCoordinatorRequest

ANSWER_S = 1.0
"""The time after which a silent node is asked again."""

Address: TypeAlias = tuple[str, int]
Partition: TypeAlias = MetadataResponse.MetadataResponseTopic.MetadataResponsePartition


def new_group() -> str:
    """A name."""
    return f"bench-{uuid.uuid4().hex[:8]}"


async def found(asked: Address, group: str) -> Address | None:
    """Whom a node names as a group's coordinator."""
    with suppress(OSError, TimeoutError):
        link = await Link.open(*asked, "bench", OWN_CLIENT)
        with suppress(ConnectionError):
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
            answer = (await asyncio.wait_for(link.ask(request, 4), ANSWER_S)).coordinators[0]
            link.abort()
            return (answer.host, answer.port) if answer.error_code == 0 else None
    return None


async def partitions(asked: Address, topic: str) -> list[Partition]:
    """A topic's, as a node knows them; none: it does not answer."""
    with suppress(OSError, TimeoutError):
        link = await Link.open(*asked, "bench", OWN_CLIENT)
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
        answer = await asyncio.wait_for(link.ask(request, 12), ANSWER_S)
        link.abort()
        return list(answer.topics[0].partitions)
    return []


async def leader(asked: Address, topic: str, partition: int) -> int:
    """The node that leads a partition, as another node knows; -1: nobody."""
    for known in await partitions(asked, topic):
        if known.partition_index == partition and known.error_code == 0:
            return known.leader_id
    return -1


async def topic_of(site: Site) -> str:
    """A fresh topic of one partition, which the node that is asked leads."""
    asked, topic = host_and_port(site.kafka.bootstrap_servers), ""
    while True:
        topic = topic or await asyncio.to_thread(site.new_topic, 1)
        number = await leader(asked, topic, 0)
        if number < 0:
            await asyncio.sleep(ANSWER_S / 10)
        elif site.nodes[number - 1] is site.kafka:
            return topic
        else:
            topic = ""


async def group_of(site: Site) -> str:
    """A fresh group, which the node that is asked coordinates."""
    asked = host_and_port(site.kafka.bootstrap_servers)
    while True:
        group = new_group()
        at = await found(asked, group)
        if at == asked:
            return group
        if at is None:
            await asyncio.sleep(ANSWER_S / 10)
