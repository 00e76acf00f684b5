"""Calls of a consumer that its rebalance listener makes, and a close while another thread or task polls."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kohort import (
    Admin,
    AsyncConsumer,
    Broker,
    Consumer,
    HoldingListener,
    InvalidInputError,
    KafkaError,
    Producer,
    RebalanceListener,
    TopicPartition,
)
from tests.support.waiting import until

SETTINGS: Any = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 100, "auto_commit_interval_ms": 3_600_000}
RECORDS = 10


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Broker(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def topic(servers: str) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    with Producer(servers) as producer:
        for number in range(RECORDS):
            producer.send(name, str(number), partition=0)
    return name


def members_and_offset(servers: str, group: str) -> tuple[int, int]:
    """Return how many members a group has, and its committed offset."""
    with Admin(servers) as admin:
        (description,) = admin.describe_consumer_groups([group]).all().values()
        found = admin.list_consumer_group_offsets(group).all()
    offset = found.get(TopicPartition(group, 0))
    return len(description.members), -1 if offset is None else offset.offset


def test_listener_asks_for_positions(servers: str, topic: str) -> None:
    """The documentation of Java's ConsumerRebalanceListener stores offsets outside of Kafka in this way."""
    positions: list[int] = []

    class Storing(RebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            positions.extend(consumer.position(partition) for partition in partitions)

        on_partitions_revoked = on_partitions_assigned

    with Consumer(servers, group_id=topic, **SETTINGS) as consumer:
        consumer.subscribe([topic], listener=Storing())
        while not consumer.poll(1_000):
            pass
    assert positions == [0, RECORDS]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_listener_hears_of_no_loss_of_partitions_that_it_never_had(servers: str, topic: str, protocol: str) -> None:
    """The member joins and is put out again between two polls: a listener that commits would end the second."""
    lost: list[list[TopicPartition]] = []

    class Committing(RebalanceListener):
        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            lost.append(partitions)

    more: Any = {"group_protocol": protocol, "max_poll_interval_ms": 1_500}
    with Consumer(servers, group_id=topic, **SETTINGS | more) as consumer:
        consumer.subscribe([topic], listener=Committing())
        consumer.poll(0)
        member = consumer._core.membership
        assert member is not None
        until(lambda: member.revocation is not None and member.revocation.lost, "it is put out", 30)
        while not consumer.poll(1_000):
            pass
        assert lost == []
    assert lost == [[TopicPartition(topic, 0)]]


def test_asyncio_listener_asks_for_positions(servers: str, topic: str) -> None:
    positions: list[int] = []

    async def read() -> None:
        class Storing(RebalanceListener):
            async def on_partitions_assigned(  # type: ignore[override]
                self, partitions: list[TopicPartition]
            ) -> None:
                positions.extend([await consumer.position(partition) for partition in partitions])

            on_partitions_revoked = on_partitions_assigned  # type: ignore[assignment]

        async with AsyncConsumer(servers, group_id=topic, **SETTINGS) as consumer:
            consumer.subscribe([topic], listener=Storing())
            while not await consumer.poll(1_000):
                pass

    asyncio.run(read())
    assert positions == [0, RECORDS]


def test_holding_listener_that_has_nothing_in_hand_releases_at_once(servers: str, topic: str) -> None:
    released: list[bool] = []

    class Releasing(HoldingListener):
        def on_revocation_requested(self, partitions: list[TopicPartition]) -> None:
            released.append(first.release())

    first, second = (Consumer(servers, group_id=topic, **SETTINGS) for _ in range(2))
    with first, second:
        first.subscribe([topic], listener=Releasing())
        while not first.assignment():
            first.poll(100)
        second.subscribe([topic])

        def is_stable() -> bool:
            first.poll(20)
            second.poll(20)
            return bool(released) and len(first.assignment() | second.assignment()) == 1

        until(is_stable, "the partition has an owner again")
    assert released == [True]


def test_call_that_a_listener_can_not_make_says_why(servers: str, topic: str) -> None:
    refused: list[str] = []

    class Polling(RebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            with pytest.raises(InvalidInputError) as error:
                consumer.poll(0)
            refused.append(str(error.value))

    with Consumer(servers, group_id=topic, **SETTINGS) as consumer:
        consumer.subscribe([topic], listener=Polling())
        while not consumer.poll(1_000):
            pass
    assert len(refused) == 1 and "rebalance listener" in refused[0]


@pytest.mark.parametrize("iterates", [False, True], ids=["poll", "loop"])
def test_close_by_another_task_ends_a_poll_and_leaves_the_group(servers: str, topic: str, iterates: bool) -> None:
    async def read(consumer: AsyncConsumer, has_read: asyncio.Event) -> None:
        if iterates:
            read_records = 0
            async for _ in consumer:
                read_records += 1
                if read_records == RECORDS:
                    has_read.set()
            return
        while await consumer.poll(60_000):
            has_read.set()
        assert not await consumer.poll(60_000), "it waits for the close"
        with pytest.raises(KafkaError, match="closed"):
            await consumer.poll(60_000)

    async def run() -> None:
        consumer = AsyncConsumer(servers, group_id=topic, **SETTINGS)
        consumer.subscribe([topic])
        has_read = asyncio.Event()
        reading = asyncio.create_task(read(consumer, has_read))
        await has_read.wait()
        await asyncio.sleep(0.05)  # the next poll waits by now
        await asyncio.gather(consumer.close(), consumer.close())
        await reading

    asyncio.run(run())
    assert members_and_offset(servers, topic) == (0, RECORDS)


def test_listener_closes_an_asyncio_consumer(servers: str, topic: str) -> None:
    async def run() -> None:
        class Closing(RebalanceListener):
            async def on_partitions_assigned(  # type: ignore[override]
                self, partitions: list[TopicPartition]
            ) -> None:
                await consumer.close()

        consumer = AsyncConsumer(servers, group_id=topic, **SETTINGS)
        consumer.subscribe([topic], listener=Closing())
        async for _ in consumer:
            pass

    asyncio.run(run())
    assert members_and_offset(servers, topic)[0] == 0


def test_records_of_a_poll_that_a_close_interrupts_are_not_committed(servers: str, topic: str) -> None:
    """The poll is in its listener when another thread closes, and returns records that nobody has processed."""
    entered, go_on = threading.Event(), threading.Event()

    class Waiting(RebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            entered.set()
            assert go_on.wait(30)

    consumer = Consumer(servers, group_id=topic, **SETTINGS)
    consumer.subscribe([topic], listener=Waiting())
    returned: list[int] = []
    reading = threading.Thread(target=lambda: returned.append(len(consumer.poll(30_000))))
    reading.start()
    assert entered.wait(30)
    until(lambda: consumer.metrics.kept_records == RECORDS, "the records are fetched")
    closing = threading.Thread(target=consumer.close)
    closing.start()
    until(lambda: consumer._close_asked is not None, "the close waits for the poll")
    go_on.set()
    closing.join()
    reading.join()
    assert returned == [RECORDS]
    assert members_and_offset(servers, topic) == (0, 0), "the position before the poll"


def test_subscriptions_leave_nothing_behind(servers: str, topic: str) -> None:
    """A member that has left would be told of every refresh of the metadata, for as long as the consumer lives."""
    with Consumer(servers, group_id=topic, **SETTINGS) as consumer:
        before = len(consumer._client.cluster._listeners)
        for _ in range(3):
            consumer.subscribe([topic])
            consumer.poll(0)
            consumer.unsubscribe()
        until(lambda: len(consumer._client.cluster._listeners) <= before, "nobody listens any more")
