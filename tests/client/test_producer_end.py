"""The end of a producer: no delivery stays open, whichever way it ends, and callbacks may close their client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from kohort import AsyncProducer, Broker, Consumer, Fault, KafkaError, Producer, TopicPartition
from tests.support.waiting import until


@pytest.fixture(scope="module")
def module_broker() -> Iterator[Broker]:
    with Broker(config={"num.partitions": "2"}) as broker:
        with Producer(broker.bootstrap_servers) as producer:
            producer.send("t", b"").result()
        yield broker


@pytest.fixture
def broker(module_broker: Broker) -> Iterator[Broker]:
    yield module_broker
    module_broker.faults.clear()


def test_close_fails_the_records_of_requests_without_an_answer(broker: Broker) -> None:
    held = broker.faults.add(Fault("Produce", "hold", times=None))
    producer = Producer(broker.bootstrap_servers)
    errors: list[KafkaError | None] = []
    delivery = producer.send("t", b"", on_delivery=lambda error, _: errors.append(error))
    held.wait()
    producer.close(timeout_ms=100)
    with pytest.raises(KafkaError, match="may have been written: the producer is closed"):
        delivery.result(timeout_ms=0)
    assert len(errors) == 1 and errors[0] is not None


@pytest.mark.parametrize("cancelled", [False, True], ids=["timeout", "cancelled"])
def test_close_of_an_asyncio_producer_ends_the_wait_for_its_deliveries(broker: Broker, cancelled: bool) -> None:
    held = broker.faults.add(Fault("Produce", "hold", times=None))

    async def write() -> None:
        producer = AsyncProducer(broker.bootstrap_servers)
        delivery = asyncio.ensure_future(await producer.send("t", b""))
        await asyncio.to_thread(held.wait)
        if cancelled:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.close(), 0.1)
        else:
            await producer.close(timeout_ms=100)
        with pytest.raises(KafkaError, match="may have been written: the producer is closed"):
            await asyncio.wait_for(delivery, 30)

    asyncio.run(write())


def test_close_in_a_callback_delivers_the_rest(broker: Broker) -> None:
    producer = Producer(broker.bootstrap_servers, linger_ms=60_000)
    producer.send("t", b"", partition=0, on_delivery=lambda *_: producer.close())
    rest = producer.send("t", b"", partition=1)
    producer.send("t", b"x" * 500_000, partition=0)  # fits no batch with the first, which is sent alone
    assert rest.result(timeout_ms=30_000).offset >= 0
    until(lambda: producer._client.closed, "the producer closes")
    with pytest.raises(KafkaError, match="closed"):
        producer.send("t", b"")


def test_close_in_the_callback_of_a_commit_is_the_next_polls(broker: Broker) -> None:
    consumer = Consumer(broker.bootstrap_servers, group_id="g", enable_auto_commit=False)
    consumer.assign([TopicPartition("t", 0)])
    called = threading.Event()

    def close(*_: object) -> None:
        consumer.close()
        called.set()

    consumer.commit_async({TopicPartition("t", 0): 1}, close)
    assert called.wait(30)
    assert not consumer._client.closed
    assert not consumer.poll(60_000)
    assert consumer._client.closed
