"""A real Kafka with access rules: what may not be seen is not gone, and a right that is missing is named."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from kohort import AsyncAdmin, NewTopic
from kohort.client.admin.values import Acl, AclFilter, AclOperation, AclResource
from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.settings import ConnectionConfig, client_config
from kohort.cluster.host import KafkaGroups
from kohort.cluster.topic_view import KafkaTopics
from kohort.errors import ErrorCode
from tests.cluster.test_kafka_groups import asked
from tests.cluster.test_kafka_topics import WAIT_S, Hearing
from tests.support.secured_kafka import SecuredKafka

pytestmark = pytest.mark.kafka
BOB = "User:bob"


async def as_bob(secured: SecuredKafka) -> AsyncClient:
    """A client that may do what rules allow."""
    servers, settings = secured.client("SASL", sasl_mechanism="PLAIN")
    return AsyncClient(client_config(ConnectionConfig, servers, {**settings, "sasl_username": "bob"}))


def test_a_topic_stays_when_the_right_to_see_it_goes(secured: SecuredKafka, caplog: pytest.LogCaptureFixture) -> None:
    name = f"hidden-{uuid.uuid4().hex[:8]}"
    rule = Acl(BOB, AclOperation.DESCRIBE, AclResource.TOPIC, name)

    async def run() -> None:
        client, groups = await as_bob(secured), Hearing()
        topics = KafkaTopics(client, groups)
        try:
            async with AsyncAdmin(secured.bootstrap_servers) as admin, asyncio.timeout(WAIT_S):
                (await admin.create_topics([NewTopic(name, 1)])).all()
                (await admin.create_acls([rule])).all()
                while name not in topics.by_name:
                    await topics.request_all_topics()
                (await admin.delete_acls([AclFilter(BOB, resource_name=name)])).all()
                while "are hidden from this coordinator" not in caplog.text:
                    await topics.request_all_topics()
                for _ in range(5):
                    await topics.request_all_topics()
                assert name in topics.by_name
                assert name in topics.topic_image().topics
                (await admin.create_acls([rule])).all()
                (await admin.delete_topics([name])).all()
                assert groups.deleted == []
                while name in topics.by_name:
                    await topics.request_all_topics()
                assert groups.deleted == [name]
        finally:
            await client.close()

    with caplog.at_level("WARNING", "kohort.cluster"):
        asyncio.run(run())


def test_a_group_that_kafka_does_not_show_is_refused_with_the_right_that_is_missing(secured: SecuredKafka) -> None:
    async def run() -> None:
        client = await as_bob(secured)
        groups = KafkaGroups(client)
        try:
            found = await asked(groups, f"g-{uuid.uuid4().hex[:8]}")
            assert found.error is ErrorCode.GROUP_AUTHORIZATION_FAILED
            assert "READ and DESCRIBE" in found.text
        finally:
            await groups.close()
            await client.close()

    asyncio.run(run())
