"""The journal's topic: made as it must be, and refused where a setting is weaker than groups need."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kohort import Admin
from kohort.client.admin.values import (
    Acl,
    AclFilter,
    AclOperation,
    AclResource,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kohort.cluster.journal.journal_partition import JournalRefused, JournalSettings, JournalTopic, JournalUnavailable
from kohort.cluster.journal.kafka_journal import KafkaJournal
from kohort.cluster.journal.topic import journal_topic
from kohort.errors import NotAuthorizedError, TimedOutError
from kohort.wire.discovery import DescribeConfigsResponse, MetadataResponse
from tests.client.virtual import PARK, VirtualCluster
from tests.cluster.journals import Holder, client, committed
from tests.support.apache_kafka import ApacheKafka
from tests.support.secured_kafka import SecuredKafka
from tests.support.waiting import until

HOUR_MS = 3_600_000


def named(**chosen: Any) -> JournalSettings:
    return JournalSettings(**{"topic": f"__groups-{uuid.uuid4().hex[:8]}", "partitions": 3, **chosen})


def ask(servers: str, settings: JournalSettings, **connection: Any) -> JournalTopic:
    async def main() -> JournalTopic:
        async with client(servers, **connection) as link:
            return await link.call(journal_topic(link.cluster, settings))

    return asyncio.run(main())


@pytest.mark.kafka
def test_it_is_made_once_with_what_it_needs(apache_kafka: ApacheKafka, caplog: pytest.LogCaptureFixture) -> None:
    settings = named()
    made = ask(apache_kafka.bootstrap_servers, settings)
    assert (made.name, made.partitions) == (settings.topic, 3)
    assert "has only 1 replicas, because the cluster has only 1 brokers" in caplog.text
    assert ask(apache_kafka.bootstrap_servers, replace(settings, partitions=50)) == made
    with Admin(apache_kafka.bootstrap_servers) as admin:
        resource = ConfigResource(ResourceType.TOPIC, settings.topic)
        entries = admin.describe_configs([resource]).result(resource)
    assert {key: entries[key].value for key in ("cleanup.policy", "message.timestamp.type", "max.message.bytes")} == {
        "cleanup.policy": "compact",
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(32 << 20),
    }


@pytest.fixture(scope="module")
def existing(apache_kafka: ApacheKafka) -> JournalSettings:
    settings = named()
    ask(apache_kafka.bootstrap_servers, settings)
    return settings


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("key", "weak", "needed"),
    [
        ("cleanup.policy", "delete", "compact"),
        ("cleanup.policy", "compact,delete", "compact"),
        ("unclean.leader.election.enable", "true", "false"),
        ("message.timestamp.type", "CreateTime", "LogAppendTime"),
        ("max.message.bytes", "1000000", str(32 << 20)),
        ("segment.bytes", str(16 << 20), str(32 << 20)),
    ],
)
def test_a_weaker_setting_is_refused_with_what_to_change(
    apache_kafka: ApacheKafka, existing: JournalSettings, key: str, weak: str, needed: str
) -> None:
    servers = apache_kafka.bootstrap_servers
    resource = ConfigResource(ResourceType.TOPIC, existing.topic)
    with Admin(servers) as admin:
        before = admin.describe_configs([resource]).result(resource)[key].value
        admin.incremental_alter_configs({resource: {key: weak}}).all()
        until(lambda: admin.describe_configs([resource]).result(resource)[key].value == weak, "it is weak")
        with pytest.raises(JournalRefused) as refused:
            ask(servers, existing)
        assert f"{key}={weak} must be {needed}" in str(refused.value)
        assert f"kafka-configs --alter --topic {existing.topic} --add-config {key}={needed}" in str(refused.value)
        admin.incremental_alter_configs({resource: {key: before}}).all()
        until(lambda: admin.describe_configs([resource]).result(resource)[key].value == before, "it is as before")


@pytest.mark.kafka
def test_a_broker_that_forgets_producers_early_is_refused(apache_kafka: ApacheKafka, existing: JournalSettings) -> None:
    servers, key = apache_kafka.bootstrap_servers, "producer.id.expiration.ms"
    everywhere = ConfigResource(ResourceType.BROKER, "")
    broker = ConfigResource(ResourceType.BROKER, "1")

    def value(admin: Admin) -> str | None:
        return admin.describe_configs([broker]).result(broker)[key].value

    with Admin(servers) as admin:
        try:
            admin.incremental_alter_configs({everywhere: {key: str(HOUR_MS - 1)}}).all()
            until(lambda: value(admin) == str(HOUR_MS - 1), "it is set")
            with pytest.raises(JournalRefused, match=rf"broker 1 has {key}={HOUR_MS - 1}.*must be {HOUR_MS} or more"):
                ask(servers, existing)
        finally:
            admin.incremental_alter_configs({everywhere: {key: None}}).all()
            until(lambda: value(admin) != str(HOUR_MS - 1), "it is as before")


def test_a_broker_that_forgets_transactional_ids_early_is_refused() -> None:
    virtual = VirtualCluster(topics={"__groups": 1})

    def configs(message: Any, _: int) -> Any:
        asked = message.resources[0]
        result = DescribeConfigsResponse.DescribeConfigsResult
        entry = result.DescribeConfigsResourceResult
        values = {"cleanup.policy": "compact"} if asked.resource_type == 2 else {}
        values |= {"transactional.id.expiration.ms": str(47 * HOUR_MS)} if asked.resource_type == 4 else {}
        found = [entry(name=name, value=value) for name, value in values.items()]
        return DescribeConfigsResponse(
            results=[result(resource_type=asked.resource_type, resource_name=asked.resource_name, configs=found)]
        )

    virtual.handlers["DescribeConfigs"] = configs
    settings = JournalSettings(topic="__groups", partitions=1)
    with pytest.raises(JournalRefused, match=r"broker 1 has transactional\.id\.expiration\.ms.*172800000 or more"):
        virtual.call(journal_topic(virtual.cluster, settings))


def test_a_broker_that_stands_still_is_not_waited_for_once_the_cluster_has_lost_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A coordinator that was started while one of three slept came up a minute later."""
    virtual = VirtualCluster(topics={"__groups": 1})
    metadata, beside = virtual.handlers["Metadata"], [2]

    def with_another(message: Any, version: int) -> Any:
        answer = metadata(message, version)
        for node in beside:
            broker = MetadataResponse.MetadataResponseBroker(node_id=node, host="127.0.0.1", port=9_000 + node)
            answer.brokers.append(broker)
        return answer

    def configs(message: Any, _: int) -> Any:
        asked = message.resources[0]
        if asked.resource_name == "2":
            return PARK
        result = DescribeConfigsResponse.DescribeConfigsResult(
            resource_type=asked.resource_type, resource_name=asked.resource_name, configs=[]
        )
        return DescribeConfigsResponse(results=[result])

    virtual.handlers |= {"Metadata": with_another, "DescribeConfigs": configs}
    settings = JournalSettings(topic="__groups", partitions=1, replication_factor=1)
    task = virtual.runtime.spawn(journal_topic(virtual.cluster, settings))
    virtual.run(5_000)
    assert not task.done
    beside.clear()
    virtual.finish(task, 10_000)
    assert "broker 2 has left the cluster" in caplog.text


def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(TimedOutError, match="127.0.0.1:1"):
        ask("127.0.0.1:1", named(), default_api_timeout_ms=1_000)


# -- rights


@pytest.fixture
def admin(secured: SecuredKafka) -> Iterator[Admin]:
    servers, chosen = secured.client("SASL")
    with Admin(servers, **chosen) as admin:
        yield admin
        admin.delete_acls([AclFilter(principal="User:bob")])
        until(lambda: not admin.describe_acls(AclFilter(principal="User:bob")), "the rules are gone")


def _allow(admin: Admin, kind: AclResource, name: str, *operations: AclOperation) -> None:
    acls = [Acl("User:bob", operation, kind, name) for operation in operations]
    admin.create_acls(acls).all()
    until(lambda: set(acls) <= set(admin.describe_acls()), "the rules are in force")


@pytest.mark.kafka
def test_each_right_that_is_missing_is_named(secured: SecuredKafka, admin: Admin) -> None:
    """Bob has no rights, and is given one after the other, as the errors say."""
    settings = named(partitions=1)
    servers, login = secured.client("SASL", sasl_username="bob")
    name = settings.topic

    def refused(words: str) -> None:
        with pytest.raises(NotAuthorizedError, match=words):
            ask(servers, settings, **login)

    refused(f"DESCRIBE on topic {name}|CREATE on topic {name}")
    _allow(admin, AclResource.TOPIC, name, AclOperation.DESCRIBE)
    refused(f"CREATE on topic {name}")
    _allow(admin, AclResource.TOPIC, name, AclOperation.CREATE)
    refused(f"DESCRIBE_CONFIGS on topic {name}")
    _allow(admin, AclResource.TOPIC, name, AclOperation.DESCRIBE_CONFIGS)
    refused("DESCRIBE_CONFIGS on the cluster")
    _allow(admin, AclResource.CLUSTER, "kafka-cluster", AclOperation.DESCRIBE_CONFIGS)
    topic = ask(servers, settings, **login)

    async def main() -> None:
        async with client(servers, **login) as link:
            holder = Holder(KafkaJournal(link, topic, 0, settings))

            async def no_right(words: str) -> None:
                with pytest.raises(JournalUnavailable, match=f"{words}.*needs READ, WRITE.*transactional ids"):
                    await holder.load()

            await no_right("no producer epoch of transactional id")
            _allow(admin, AclResource.TRANSACTIONAL_ID, f"{name}-0", AclOperation.WRITE, AclOperation.DESCRIBE)
            await no_right("an append was refused")
            _allow(admin, AclResource.TOPIC, name, AclOperation.WRITE)
            await no_right("can't be read")
            _allow(admin, AclResource.TOPIC, name, AclOperation.READ)
            assert await holder.load() == []
            await holder.append(committed(1))

    asyncio.run(main())


@pytest.mark.kafka
def test_a_topic_that_was_made_with_less_is_named_in_one_go(apache_kafka: ApacheKafka) -> None:
    settings = named()
    with Admin(apache_kafka.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(settings.topic, 3, 1)]).all()
    with pytest.raises(JournalRefused) as refused:
        ask(apache_kafka.bootstrap_servers, settings)
    for key in ("cleanup.policy", "message.timestamp.type", "max.message.bytes"):
        assert f"{key}=" in str(refused.value)
    change = refused.value.message.rpartition("--add-config ")[2]
    changes = dict(word.split("=") for word in change.split(","))
    with Admin(apache_kafka.bootstrap_servers) as admin:
        resource = ConfigResource(ResourceType.TOPIC, settings.topic)
        admin.incremental_alter_configs({resource: changes}).all()
        until(
            lambda: admin.describe_configs([resource]).result(resource)["cleanup.policy"].value == "compact", "changed"
        )
    assert ask(apache_kafka.bootstrap_servers, settings).partitions == 3
