"""Topics that can't exist, or are not there: said at once, and topics beside them are read."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kohort import Admin, Broker, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.errors import ErrorCode, InvalidInputError
from tests.support.waiting import until

PROTOCOLS = ["classic", "consumer"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config={"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"}) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("there", 1)]).all()
        with Producer(broker.bootstrap_servers) as producer:
            producer.send("there", b"1").result()
        yield broker


@pytest.mark.parametrize("name", ["a b", ".", "ä", "x" * 250])
def test_name_that_is_not_allowed_raises_at_once(broker: Broker, name: str) -> None:
    with Consumer(broker.bootstrap_servers, group_id="names") as consumer:
        for call in (
            lambda: consumer.subscribe(["there", name]),
            lambda: consumer.assign([TopicPartition(name, 0)]),
        ):
            with pytest.raises(InvalidInputError, match="is not allowed: 1 to 249 of letters") as caught:
                call()
            assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert consumer.assignment() == set()
        consumer.subscribe(["there"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_subscribed_topic_that_is_not_there_warns_once_and_others_flow(
    broker: Broker, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kohort.client")
    name = f"missing-{protocol}"
    settings = {"auto_offset_reset": "earliest", "metadata_max_age_ms": 300}
    with Consumer(broker.bootstrap_servers, group_id=name, group_protocol=protocol, **settings) as consumer:
        consumer.subscribe(["there", name])
        seen: list[bytes | None] = []
        until(lambda: bool(seen.extend(record.value for record in consumer.poll(300)) or seen), "the topic flows", 30)
        before = consumer._client.cluster.metadata.updates
        until(lambda: consumer.poll(50) is not None and consumer._client.cluster.metadata.updates > before + 3, "", 30)
        assert caplog.text.count(f"topic '{name}' does not exist") == 1
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name, 1)]).all()
        with Producer(broker.bootstrap_servers) as producer:
            producer.send(name, b"2").result()
        until(lambda: any(record.topic == name for record in consumer.poll(300)), "the new topic is read", 30)
        assert f"topic '{name}' is available now" in caplog.text


@pytest.mark.parametrize("group", [None, "by-hand"])
def test_assigned_partition_that_is_not_there_warns_and_others_flow(
    broker: Broker, group: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {} if group is None else {"group_id": group}
    with Consumer(broker.bootstrap_servers, auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign([TopicPartition("gone", 0), TopicPartition("there", 0), TopicPartition("there", 9)])
        until(lambda: bool(consumer.poll(300)), "the partition that is there flows", 30)
        assert caplog.text.count("topic 'gone' does not exist") == 1
        assert (
            caplog.text.count(
                "there-9 does not exist, so nothing is read from it; retrying: topic 'there' has 1 partitions"
            )
            == 1
        )
