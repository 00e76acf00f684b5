"""The short way of `send` beside the long one: the same records in the same batches, and no record that is not its."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kohort import Admin, Broker, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.client.consumer.range_reader import RangeReader
from kohort.client.net.thread_driver import ClientClosedError
from kohort.client.producer.accumulator import Accumulator
from kohort.client.producer.batches import Delivery


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Broker(config={"num.partitions": "4"}) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, 4) for name in ("short", "long", "t")]).all()
        yield broker.bootstrap_servers


def held(producer: Producer) -> tuple[int, dict[TopicPartition, list[tuple[int, int]]]]:
    """Memory in use, and count and size of each batch of each queue, those that are open last."""
    accumulator = producer._core.accumulator
    with accumulator.lock:
        return accumulator.used, {
            partition: [(batch.count, batch.size) for batch in [*queue.waiting, queue.open] if batch is not None]
            for partition, queue in accumulator.queues.items()
        }


def appended_open(producer: Producer, *arguments: Any) -> Delivery | None:
    return producer._core.accumulator.append_open(*arguments)


def waiting(servers: str, **settings: Any) -> Producer:
    """A producer whose first batch of "t" is open for a minute."""
    producer = Producer(servers, linger_ms=60_000, **settings)
    if producer.config.transactional_id is not None:
        producer.init_transactions()
        producer.begin_transaction()
    producer.send("t", b"first")
    return producer


def test_short_way_fills_batches_as_the_long_way_does(servers: str) -> None:
    """Small batches, which close often, and keys, so that every partition has its own."""
    chosen = random.Random(4)
    records = [(b"%d" % chosen.randrange(30), chosen.randbytes(chosen.choice((0, 7, 90, 1500)))) for _ in range(2000)]
    taken = 0
    with Producer(servers, linger_ms=20, batch_size=1000) as producer:
        original = Accumulator.append_open

        def counted(accumulator: Accumulator, *arguments: Any) -> Delivery | None:
            nonlocal taken
            found = original(accumulator, *arguments)
            taken += found is not None
            return found

        producer._append_open = counted.__get__(producer._core.accumulator)  # type: ignore[method-assign]
        short = [producer.send("short", value, key) for key, value in records]
        producer._append_open = lambda *_: None  # type: ignore[method-assign, assignment]
        long = [producer.send("long", value, key) for key, value in records]
        places = [
            [(delivery.result().partition, delivery.result().offset) for delivery in sent] for sent in (short, long)
        ]
        assert producer._core.accumulator.used == 0
    assert places[0] == places[1]
    assert 500 < taken < 2000
    assert read(servers, "short") == read(servers, "long")


def read(servers: str, topic: str) -> list[tuple[bytes | None, bytes | None, int]]:
    with RangeReader(servers) as reader:
        rows: list[tuple[bytes | None, bytes | None, int]] = []
        for number in range(4):
            partition = TopicPartition(topic, number)
            for batch in reader.read(partition, 0, reader.end_offsets([partition])[partition]):
                rows += [(row["key"], row["value"], row["partition"]) for row in batch.to_pylist()]
        return rows


def test_short_way_counts_memory_as_the_long_way_does(servers: str) -> None:
    states = []
    for short in (True, False):
        with Producer(servers, linger_ms=60_000) as producer:
            if not short:
                producer._append_open = lambda *_: None  # type: ignore[method-assign, assignment]
            for number in range(300):
                producer.send("t", b"v" * number, b"k%d" % (number % 9))
            states.append(held(producer))
    assert states[0] == states[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("t", "text", None),
        ("t", None, b"tombstone"),
        ("t", bytearray(b"v"), None),
        ("t", b"v", "text"),
        ("t", b"v", memoryview(b"k")),
        ("unknown", b"v", None),
        ("unknown", b"v", b"k"),
        (["t"], b"v", None),
        (None, b"v", b"k"),
        ("t", b"v" * 2_000_000, None),
        ("t", b"v" * 600_000, None),
    ],
)
def test_short_way_leaves_other_records_alone(servers: str, arguments: tuple[Any, Any, Any]) -> None:
    with waiting(servers) as producer:
        before = held(producer)
        assert appended_open(producer, "t", b"v", None) is not None
        assert held(producer) != before
        before = held(producer)
        assert appended_open(producer, *arguments) is None
        assert held(producer) == before


@pytest.mark.parametrize(
    "settings",
    [
        {"value_serializer": bytes.upper},
        {"key_serializer": bytes.upper},
        {"partitioner": lambda *_: 0},
        {"transactional_id": "appending"},
        {"buffer_memory": 1024},
    ],
)
def test_short_way_is_closed_where_something_else_decides(servers: str, settings: dict[str, Any]) -> None:
    with waiting(servers, **settings) as producer:
        before = held(producer)
        assert appended_open(producer, "t", b"v" * 950, None) is None
        assert held(producer) == before
        if "transactional_id" in settings:
            producer.abort_transaction()


def test_short_way_refuses_as_the_long_way_does_after_the_close(servers: str) -> None:
    producer = waiting(servers)
    producer.close()
    assert appended_open(producer, "t", b"v", None) is None
    with pytest.raises(ClientClosedError):
        producer.send("t", b"v")


def test_short_way_loses_no_record_of_several_threads(servers: str) -> None:
    """Threads append while the sender takes batches away from them: counts and offsets fit together."""
    sent: list[list[Delivery]] = [[] for _ in range(4)]
    with Admin(servers) as admin:
        admin.create_topics([NewTopic("threads", 1)]).all()
    with Producer(servers, linger_ms=0, batch_size=2000) as producer:

        def run(number: int) -> None:
            sent[number] += [producer.send("threads", b"%d-%d" % (number, at)) for at in range(1500)]

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        offsets = [[delivery.result().offset for delivery in deliveries] for deliveries in sent]
    assert sorted(offset for row in offsets for offset in row) == list(range(6000))
    with RangeReader(servers) as reader:
        values = {
            row["offset"]: row["value"]
            for batch in reader.read(TopicPartition("threads", 0), 0, 6000)
            for row in batch.to_pylist()
        }
    for number, row in enumerate(offsets):
        assert [values[offset] for offset in row] == [b"%d-%d" % (number, at) for at in range(1500)]
