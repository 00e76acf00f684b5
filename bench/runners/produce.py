"""Writes records with one client: `python -m bench.runners.produce CLIENT SERVERS TOPIC COUNT SIZE`.

The clock runs from the first record handed over to the last one acknowledged. Keys are left out.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

Timed = tuple[int, float]


def kohort_send(servers: str, topic: str, count: int, size: int, **settings: Any) -> Timed:
    """One call for each record."""
    from kohort import Producer

    value = b"x" * size
    with Producer(servers, **settings) as producer:
        producer.partitions_for(topic)
        start = time.perf_counter()
        for _ in range(count):
            producer.send(topic, value)
        producer.flush()
        return count, time.perf_counter() - start


def kohort_small_batches(servers: str, topic: str, count: int, size: int) -> Timed:
    """One call for each record, of which five fit into a batch."""
    return kohort_send(servers, topic, count, size, batch_size=100 + 5 * (size + 10))


def kohort_async_send(servers: str, topic: str, count: int, size: int) -> Timed:
    """One awaited call for each record."""

    async def write() -> Timed:
        from kohort import AsyncProducer

        value = b"x" * size
        async with AsyncProducer(servers) as producer:
            await producer.partitions_for(topic)
            start = time.perf_counter()
            for _ in range(count):
                await producer.send(topic, value)
            await producer.flush()
            return count, time.perf_counter() - start

    return asyncio.run(write())


def kohort_send_arrow(servers: str, topic: str, count: int, size: int, connections: int = 2) -> Timed:
    """Arrow batches of 100,000 rows."""
    import pyarrow as pa

    from kohort import Producer

    rows = 100_000
    batch = pa.record_batch({"value": pa.array([b"x" * size] * min(rows, count), pa.binary())})
    with Producer(servers, connections_per_broker=connections) as producer:
        producer.partitions_for(topic)
        start = time.perf_counter()
        sent = 0
        while sent < count:
            part = batch.slice(0, min(len(batch), count - sent))
            producer.send_arrow(topic, part)
            sent += len(part)
        producer.flush()
        return sent, time.perf_counter() - start


def confluent_kafka(servers: str, topic: str, count: int, size: int) -> Timed:
    """librdkafka, its queue polled when it is full."""
    from confluent_kafka import Producer

    value = b"x" * size
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 500_000})
    producer.list_topics(topic)
    start = time.perf_counter()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush()
    return count, time.perf_counter() - start


def kafka_python(servers: str, topic: str, count: int, size: int) -> Timed:
    """kafka-python's send."""
    from kafka import KafkaProducer

    value = b"x" * size
    producer = KafkaProducer(bootstrap_servers=servers)
    producer.partitions_for(topic)
    start = time.perf_counter()
    for _ in range(count):
        producer.send(topic, value)
    producer.flush()
    took = time.perf_counter() - start
    producer.close()
    return count, took


def aiokafka(servers: str, topic: str, count: int, size: int) -> Timed:
    """Aiokafka's send."""

    async def write() -> Timed:
        from aiokafka import AIOKafkaProducer

        value = b"x" * size
        producer = AIOKafkaProducer(bootstrap_servers=servers)
        await producer.start()
        await producer.partitions_for(topic)
        start = time.perf_counter()
        for _ in range(count):
            await producer.send(topic, value)
        await producer.flush()
        took = time.perf_counter() - start
        await producer.stop()
        return count, took

    return asyncio.run(write())


CLIENTS: dict[str, Callable[[str, str, int, int], Timed]] = {
    "kohort-send": kohort_send,
    "kohort-small-batches": kohort_small_batches,
    "kohort-async-send": kohort_async_send,
    "kohort-send-arrow": kohort_send_arrow,
    "kohort-send-arrow-1": partial(kohort_send_arrow, connections=1),
    "confluent-kafka": confluent_kafka,
    "aiokafka": aiokafka,
    "kafka-python": kafka_python,
}


if __name__ == "__main__":
    client, servers, topic, count, size = sys.argv[1:]
    cpu = time.process_time()
    done, took = CLIENTS[client](servers, topic, int(count), int(size))
    print(
        json.dumps(
            {
                "amount": done,
                "seconds": took,
                "cpu_s": time.process_time() - cpu,
                "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )
