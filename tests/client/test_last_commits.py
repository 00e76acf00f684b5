"""Commits in the background that are still under way when partitions are given up."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kohort import (
    Admin,
    AsyncConsumer,
    Broker,
    CommitFailedError,
    Consumer,
    Fault,
    KafkaError,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    RebalanceListener,
    TopicPartition,
)
from kohort.client.consumer import core
from tests.support.waiting import until

PROTOCOLS = ({"group_protocol": "classic"}, {"group_protocol": "consumer"})


class Committing(RebalanceListener):
    """Commits offset 7 of each partition that is revoked, in the background."""

    def __init__(self, consumer: Consumer | AsyncConsumer) -> None:
        self.consumer = consumer
        self.errors: list[KafkaError | None] = []

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.consumer.commit_async(dict.fromkeys(partitions, 7), lambda _, error: self.errors.append(error))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


@pytest.fixture(params=PROTOCOLS, ids=lambda kind: kind["group_protocol"])
def settings(request: pytest.FixtureRequest, broker: Broker) -> dict[str, Any]:
    """The settings of a member whose next commit takes a while to reach the coordinator."""
    broker.faults.clear()
    broker.faults.add(Fault("OffsetCommit", "delay", delay_ms=300))
    own = {"group_id": f"g-{uuid.uuid4().hex[:8]}", "enable_auto_commit": False}
    return {"bootstrap_servers": broker.bootstrap_servers, **own, **request.param}


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, 2)]).all()
    return name


def committed(settings: dict[str, Any]) -> dict[TopicPartition, int]:
    with Admin(settings["bootstrap_servers"]) as admin:
        known = admin.list_consumer_group_offsets(settings["group_id"]).all()
    return {partition: offset.offset for partition, offset in known.items() if offset is not None}


def joined(consumer: Consumer, partitions: int) -> None:
    until(lambda: consumer.poll(50) is not None and len(consumer.assignment()) == partitions, "an assignment")


def test_commit_before_a_close_reaches_the_coordinator_before_the_leave(settings: dict[str, Any], topic: str) -> None:
    errors: list[KafkaError | None] = []
    with Consumer(**settings) as consumer:
        consumer.subscribe([topic])
        joined(consumer, 2)
        consumer.commit_async({TopicPartition(topic, 0): 4}, lambda _, error: errors.append(error))
    assert errors == [None]
    assert committed(settings) == {TopicPartition(topic, 0): 4}


@pytest.mark.parametrize("end", [Consumer.close, Consumer.unsubscribe])
def test_commit_of_a_listener_counts_when_the_consumer_leaves(settings: dict[str, Any], topic: str, end: Any) -> None:
    with Consumer(**settings) as consumer:
        listener = Committing(consumer)
        consumer.subscribe([topic], listener=listener)
        joined(consumer, 2)
        end(consumer)
        assert listener.errors == [None]
    assert set(committed(settings).values()) == {7}


def test_commit_of_a_listener_counts_when_an_asyncio_consumer_closes(settings: dict[str, Any], topic: str) -> None:
    async def main() -> list[KafkaError | None]:
        async with AsyncConsumer(**settings) as consumer:
            listener = Committing(consumer)
            consumer.subscribe([topic], listener=listener)
            while not consumer.assignment():
                await consumer.poll(50)
        return listener.errors

    assert asyncio.run(main()) == [None]
    assert set(committed(settings).values()) == {7}


def test_next_owner_begins_where_the_listener_of_the_former_committed(settings: dict[str, Any], topic: str) -> None:
    fast: dict[str, Any] = {} if settings["group_protocol"] == "consumer" else {"heartbeat_interval_ms": 200}
    with Consumer(**settings, **fast) as first, Consumer(**settings, **fast) as second:
        listener = Committing(first)
        first.subscribe([topic], listener=listener)
        joined(first, 2)
        first.commit({TopicPartition(topic, number): OffsetAndMetadata(1) for number in (0, 1)})
        second.subscribe([topic])
        until(lambda: [first.poll(50), second.poll(50)] and len(second.assignment()) == 1, "one partition each")
        assert listener.errors == [None]
        (moved,) = second.assignment()
        assert second.committed([moved])[moved] == OffsetAndMetadata(7)


def test_poll_that_is_cancelled_while_a_commit_is_under_way_keeps_no_partition(
    settings: dict[str, Any], topic: str, broker: Broker
) -> None:
    fast: dict[str, Any] = {} if settings["group_protocol"] == "consumer" else {"heartbeat_interval_ms": 200}
    broker.faults.clear()
    broker.faults.add(Fault("OffsetCommit", "delay", delay_ms=1500))

    async def main() -> int:
        cancelled = 0
        async with AsyncConsumer(**settings, **fast) as first, AsyncConsumer(**settings, **fast) as second:
            first.subscribe([topic], listener=Committing(first))
            while len(first.assignment()) < 2:
                await first.poll(50)
            second.subscribe([topic])
            while len(second.assignment()) != 1:
                for consumer, timeout_ms in ((first, 200), (second, 20)):
                    try:
                        await asyncio.wait_for(consumer.poll(timeout_ms), 0.3)
                    except TimeoutError:
                        cancelled += consumer is first
        return cancelled

    assert asyncio.run(asyncio.wait_for(main(), 60)) > 0


def test_commit_that_waits_for_another_is_not_sent_after_the_partitions_are_given_up(
    settings: dict[str, Any], topic: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "LAST_COMMIT_MS", 300)
    broker.faults.clear()
    broker.faults.add(Fault("OffsetCommit", "delay", delay_ms=1500))
    errors: list[KafkaError | None] = []
    with Consumer(**settings) as consumer:
        consumer.subscribe([topic])
        joined(consumer, 2)
        for offset in (1, 2):
            consumer.commit_async({TopicPartition(topic, 0): offset}, lambda _, error: errors.append(error))
        consumer.unsubscribe()
        until(lambda: len(errors) == 2, "both commits have an outcome")
    assert isinstance(errors[1], CommitFailedError)
    assert "given up" in str(errors[1])
    assert committed(settings).get(TopicPartition(topic, 0)) != 2


@pytest.mark.parametrize("by", ["assign", "unsubscribe"])
def test_positions_of_partitions_assigned_by_hand_are_committed_when_they_are_given_up(
    broker: Broker, topic: str, by: str
) -> None:
    """Without that, their next reader gets everything since the last auto commit again."""
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Producer(broker.bootstrap_servers) as producer:
        for number in range(5):
            producer.send(topic, b"%d" % number, partition=0)
    settings = {"bootstrap_servers": broker.bootstrap_servers, "group_id": f"g-{uuid.uuid4().hex[:8]}"}
    with Consumer(**settings, auto_offset_reset="earliest", auto_commit_interval_ms=600_000) as consumer:
        consumer.assign([first])
        until(lambda: consumer.poll(100) is not None and consumer.position(first) == 5, "all records")
        if by == "assign":
            consumer.assign([second])
        else:
            consumer.unsubscribe()
        until(lambda: committed(settings) == {first: 5}, "a commit")
