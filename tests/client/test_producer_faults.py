"""The producer when answers fail, are lost or never come: nothing lost, nothing twice, nothing out of order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from kohort import Admin, AsyncProducer, Broker, Producer, TopicPartition
from kohort.broker.server.fault_kinds import Fault
from kohort.client.admin.values import NewTopic
from kohort.client.consumer.range_reader import RangeReader
from kohort.client.producer.batches import Batch, PartitionQueue, UnseenFailures
from kohort.columns.encode import Chunk
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, TimedOutError


@pytest.fixture(scope="module")
def module_broker() -> Iterator[Broker]:
    with Broker(config={"num.partitions": "1"}) as broker:
        yield broker


@pytest.fixture
def broker(module_broker: Broker) -> Iterator[Broker]:
    yield module_broker
    module_broker.faults.clear()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


def values(broker: Broker, topic: str, number: int = 0) -> list[int]:
    partition = TopicPartition(topic, number)
    with RangeReader(broker.bootstrap_servers, columns=("value",)) as reader:
        end = reader.end_offsets([partition])[partition]
        return [int(value) for batch in reader.read(partition, 0, end) for value in batch.column(0).to_pylist()]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("Produce", "close", skip=1),
        Fault("Produce", "close_after", skip=1),
        Fault("Produce", "close_after", skip=2, times=3),
        Fault("Produce", "drop_reply", skip=1),
        Fault("Produce", "drop", skip=2),
        Fault("Produce", "fail", error=ErrorCode.NOT_LEADER_OR_FOLLOWER, skip=1, times=2),
        Fault("Produce", "fail", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        Fault("Produce", "drop"),
        Fault("Produce", "fail", error=ErrorCode.UNKNOWN_PRODUCER_ID, skip=1),
        Fault("Produce", "fail", error=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, skip=3),
        Fault("InitProducerId", "fail", error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=2),
        Fault("Metadata", "close", skip=1),
    ],
    ids=lambda fault: f"{fault.api} {fault.action} {fault.error}",
)
def test_once_and_in_order(broker: Broker, topic: str, fault: Fault) -> None:
    broker.faults.add(fault)
    settings = {"batch_size": 300, "linger_ms": 0, "request_timeout_ms": 700, "delivery_timeout_ms": 20_000}
    with Producer(broker.bootstrap_servers, **settings) as producer:
        sent = [producer.send(topic, str(i)) for i in range(400)]
        producer.flush(timeout_ms=30_000)
        offsets = [future.result(timeout_ms=0).offset for future in sent]
    assert values(broker, topic) == list(range(400))
    assert offsets == list(range(400))


@pytest.mark.parametrize("action", ["", "close", "close_after", "drop_reply"])
def test_partitions_are_spread_over_connections(broker: Broker, topic: str, action: str) -> None:
    """Each partition stays on one of them, so that its order is kept."""
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 6)])
    before = broker.metrics()["connections"]
    if action:
        broker.faults.add(Fault("Produce", action, skip=4, times=3))
    settings = {"batch_size": 300, "linger_ms": 0, "request_timeout_ms": 700, "delivery_timeout_ms": 20_000}
    with Producer(broker.bootstrap_servers, connections_per_broker=3, **settings) as producer:
        for i in range(1_200):
            producer.send(topic, str(i), partition=i % 6)
        producer.flush(timeout_ms=30_000)
        assert broker.metrics()["connections"] - before in (3, 4)  # the first look at metadata may have had its own
    assert [values(broker, topic, number) for number in range(6)] == [list(range(n, 1_200, 6)) for n in range(6)]


def test_broker_killed_and_restarted(topic: str) -> None:
    with (
        Broker(config={"num.partitions": "1"}) as broker,
        Producer(broker.bootstrap_servers, batch_size=300) as producer,
    ):
        sent = [producer.send(topic, str(i)) for i in range(200)]
        sent[0].result(timeout_ms=20_000)
        broker.kill()
        sent += [producer.send(topic, str(i)) for i in range(200, 400)]
        broker.restart()
        producer.flush(timeout_ms=30_000)
        assert [future.exception(timeout_ms=0) for future in sent] == [None] * 400
        assert values(broker, topic) == list(range(400))


def test_a_refused_batch_fails_alone(broker: Broker, topic: str) -> None:
    """After a batch that the broker refuses for good the others still arrive, once and in order."""
    broker.faults.add(Fault("Produce", "fail", error=ErrorCode.INVALID_RECORD, skip=1))
    with Producer(broker.bootstrap_servers, batch_size=300, linger_ms=0) as producer:
        sent = [producer.send(topic, str(i)) for i in range(400)]
        producer.flush(timeout_ms=30_000)
        failed = [i for i, future in enumerate(sent) if future.exception(timeout_ms=0) is not None]
        assert failed
        assert isinstance(sent[failed[0]].exception(timeout_ms=0), InvalidInputError)
        assert producer.send(topic, "400").exception(timeout_ms=20_000) is None
    assert values(broker, topic) == [i for i in range(401) if i not in failed]


def test_a_batch_too_large_for_the_topic_is_split(broker: Broker, topic: str) -> None:
    """The broker takes less than the producer gathers.

    Halves go until they fit, with the same records in the same order.
    """
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 1, configs={"max.message.bytes": "2000"})]).all()
    reported: list[int] = []
    with Producer(broker.bootstrap_servers, batch_size=9000, linger_ms=50) as producer:
        sent = [
            producer.send(
                topic, f"{i:050}", on_delivery=lambda error, where: reported.append(-1 if error else where.offset)
            )
            for i in range(400)
        ]
        alone = producer.send(topic, f"{0:03000}")
        table = producer.send_arrow(topic, pa.record_batch({"value": [f"{i:050}" for i in range(400, 600)]}))
        producer.flush(timeout_ms=30_000)
        assert [future.result(timeout_ms=0).offset for future in sent] == list(range(400)) == reported
        assert isinstance(alone.exception(timeout_ms=0), InvalidInputError)
        assert sum(count for _, count in table.result(timeout_ms=0)) == 200
        split = producer.metrics.retries
        assert split > 0
        for i in range(600, 1000):
            producer.send(topic, f"{i:050}")
        producer.send_arrow(topic, pa.record_batch({"value": [f"{i:050}" for i in range(1000, 1200)]}))
        producer.flush(timeout_ms=30_000)
        assert producer.metrics.retries == split  # the producer has learned what the topic takes
    assert values(broker, topic) == list(range(1200))


def test_delivery_timeout(broker: Broker, topic: str) -> None:
    rule = broker.faults.add(Fault("Produce", "drop", times=None))
    settings = {"request_timeout_ms": 150, "delivery_timeout_ms": 500, "linger_ms": 0}
    with Producer(broker.bootstrap_servers, **settings) as producer:
        late = producer.send(topic, "0")
        error = late.exception(timeout_ms=10_000)
        assert isinstance(error, TimedOutError)
        assert "not known to be delivered within 500 ms, may have been written: " in str(error)
        assert str(error).count("[REQUEST_TIMED_OUT]") == 1
        rule.remove()
        assert producer.send(topic, "1").result(timeout_ms=20_000).offset >= 0
    assert values(broker, topic)[-1] == 1


def test_last_attempt_that_ends_after_the_delivery_timeout_names_that_timeout(broker: Broker, topic: str) -> None:
    """The error names the time that ended it, and each code once."""
    broker.faults.add(Fault("Produce", "drop", times=None))
    settings = {"request_timeout_ms": 500, "delivery_timeout_ms": 500, "linger_ms": 0}
    with Producer(broker.bootstrap_servers, **settings) as producer:
        error = producer.send(topic, "0").exception(timeout_ms=10_000)
    assert "not known to be delivered within 500 ms, may have been written: broker 1 (" in str(error)
    assert str(error).count("[REQUEST_TIMED_OUT]") == 1


def test_memory_is_bounded(broker: Broker, topic: str) -> None:
    """send() blocks when the memory is full, gives up with a clear error, and goes on when there is room."""
    rule = broker.faults.add(Fault("Produce", "hold", times=None))
    settings = {"buffer_memory": 20_000, "max_block_ms": 300, "batch_size": 2000}
    with Producer(broker.bootstrap_servers, **settings) as producer:
        sent = []

        def fill() -> None:
            for i in range(10_000):
                sent.append(producer.send(topic, f"{i:01000}"))  # noqa: PERF401

        with pytest.raises(TimedOutError, match=r"buffer\.memory"):
            fill()
        assert 10 < len(sent) <= 20
        rule.remove()
        producer.flush(timeout_ms=20_000)
        assert producer.send(topic, "99").result(timeout_ms=20_000).offset == len(sent)
    assert values(broker, topic) == [*range(len(sent)), 99]


def test_rows_of_a_batch_larger_than_the_memory_wait_until_nothing_else_does(broker: Broker, topic: str) -> None:
    """The first such batch was taken, and the one after it refused as too large while that waited."""
    rows = pa.record_batch({"value": [f"{i:01000}" for i in range(100)]})
    with Producer(broker.bootstrap_servers, buffer_memory=20_000, batch_size=40_000) as producer:
        sent = producer.send_arrow(topic, rows).result(timeout_ms=20_000)
    assert len(sent) > 1 and sum(count for _, count in sent) == 100
    assert values(broker, topic) == list(range(100))


def test_fatal_refusal_of_a_producer_id(broker: Broker, topic: str) -> None:
    broker.faults.add(Fault("InitProducerId", "fail", error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, times=None))
    with Producer(broker.bootstrap_servers) as producer:
        error = producer.send(topic, "0").exception(timeout_ms=10_000)
        assert error is not None
        assert error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        with pytest.raises(KafkaError):
            producer.send(topic, "1")


class NoOne:
    """A sender that never sends a batch."""

    lock = threading.Condition()
    unseen = UnseenFailures()

    def undelivered_reason(self, batch: Batch) -> str:
        return "it is never sent"


def test_a_batch_is_first_when_nothing_sent_before_it_is_unsettled() -> None:
    """A gap before the first of its partition has no innocent cause.

    It must be numbered anew, not sent again for ever.
    """
    partition = TopicPartition("t", 0)
    batches = [Batch(partition, Chunk(1000), NoOne(), 0.0) for _ in range(3)]
    for number, batch in enumerate(batches):
        batch.sequence, batch.attempts = number * 10, 1
    queue = PartitionQueue(partition)
    queue.in_flight = batches[1:]
    queue.put_back(batches[0])
    queue.mended = True
    assert queue.is_first(batches[0])
    assert not queue.is_first(batches[1])
    queue.waiting.clear()
    assert queue.is_first(batches[1]) and not queue.is_first(batches[2])


REFUSED = Fault("Produce", "fail", error=ErrorCode.TOPIC_AUTHORIZATION_FAILED, times=None)


def leave(broker: Broker, send: Callable[[Producer], None], **settings: Any) -> None:
    with Producer(broker.bootstrap_servers, **settings) as producer:
        send(producer)


def test_leaving_the_block_raises_what_nobody_asked_about(broker: Broker, topic: str) -> None:
    broker.faults.add(REFUSED)

    def send_many(producer: Producer) -> None:
        for number in range(300):
            producer.send(topic, str(number))

    def send_table(producer: Producer) -> None:
        producer.send_arrow(topic, pa.record_batch({"value": ["a", "b"]}))

    with pytest.raises(KafkaError, match="300 records were not delivered, and nothing asked"):
        leave(broker, send_many)
    with pytest.raises(KafkaError, match="2 records were not delivered"):
        leave(broker, send_table)


def test_leaving_the_asynchronous_block_raises_what_nobody_asked_about(broker: Broker, topic: str) -> None:
    broker.faults.add(REFUSED)

    async def run(*, asks: bool) -> None:
        async with AsyncProducer(broker.bootstrap_servers) as producer:
            delivery = await producer.send(topic, "0")
            if asks:
                with pytest.raises(KafkaError):
                    await delivery

    asyncio.run(run(asks=True))
    with pytest.raises(KafkaError, match="1 record was not delivered"):
        asyncio.run(run(asks=False))


def test_leaving_the_block_raises_nothing_that_was_asked_about(broker: Broker, topic: str) -> None:
    broker.faults.add(REFUSED)
    reported: list[KafkaError | None] = []
    with Producer(broker.bootstrap_servers, linger_ms=50) as producer:
        looked = producer.send(topic, "0")
        producer.send(topic, "1", on_delivery=lambda error, _: reported.append(error))
        producer.send(topic, "2").add_done_callback(lambda delivery: reported.append(delivery.exception()))
        table = producer.send_arrow(topic, pa.record_batch({"value": ["a", "b"]}))
        assert looked.exception() is not None
        with pytest.raises(KafkaError):
            table.result()
    assert len(reported) == 2
    assert None not in reported


def test_undelivered_records_replace_no_exception_and_close_warns(
    broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.faults.add(REFUSED)

    def fail(producer: Producer) -> None:
        producer.send(topic, "0")
        producer.flush()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave(broker, fail)
    assert "1 record was not delivered" in caplog.text
    caplog.clear()
    producer = Producer(broker.bootstrap_servers)
    producer.send(topic, "0")
    producer.close()
    assert "1 record was not delivered" in caplog.text


def test_leaving_the_block_counts_records_of_batches_that_were_split(broker: Broker, topic: str) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(f"{topic}-small", 1, configs={"max.message.bytes": "300"})]).all()

    def send(producer: Producer) -> None:
        for number in range(20):
            producer.send(f"{topic}-small", str(number))
        producer.send(f"{topic}-small", "x" * 1000)

    with pytest.raises(KafkaError, match="1 record was not delivered"):
        leave(broker, send, linger_ms=100)
