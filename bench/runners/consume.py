"""Reads a topic from its beginning with one client: `python -m bench.runners.consume CLIENT SERVERS TOPIC COUNT`.

The clock runs from the first call that could return records, on a consumer that has its partitions, to the last record:
joining a group and fetching metadata are not what is compared. Every value is looked at.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
import uuid
from collections.abc import Callable

Timed = tuple[int, float]


def kohort_arrow(servers: str, topic: str, count: int) -> Timed:
    """Whole record batches; every column is there. Importing pyarrow is not on the clock."""
    import pyarrow  # noqa: F401

    with _kohort(servers, topic) as consumer:
        start = time.perf_counter()
        seen = size = 0
        while seen < count:
            batch = consumer.poll_arrow(timeout_ms=5000)
            if batch is None:
                break
            seen += batch.num_rows
            size += batch.column("value").nbytes
        return seen, time.perf_counter() - start


def kohort_records(servers: str, topic: str, count: int) -> Timed:
    """Record objects, `.value` of each looked at."""
    with _kohort(servers, topic, max_poll_records=5000) as consumer:
        start = time.perf_counter()
        seen = size = 0
        while seen < count:
            records = consumer.poll(timeout_ms=5000)
            if not records:
                break
            for record in records:
                size += len(record.value)
                seen += 1
        return seen, time.perf_counter() - start


def _kohort(servers, topic, **settings):  # type: ignore[no-untyped-def]
    from kohort import Consumer, TopicPartition

    consumer = Consumer(servers, auto_offset_reset="earliest", enable_auto_commit=False, **settings)
    consumer.assign([TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))])
    return consumer


def confluent_kafka(servers: str, topic: str, count: int) -> Timed:
    """Librdkafka by batches of 5000 messages."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    settings = {"bootstrap.servers": servers, "group.id": uuid.uuid4().hex, "enable.auto.commit": False}
    consumer = Consumer(settings)
    numbers = consumer.list_topics(topic).topics[topic].partitions
    start = time.perf_counter()
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
    seen = size = 0
    while seen < count:
        messages = consumer.consume(5000, 5.0)
        if not messages:
            break
        for message in messages:
            size += len(message.value())
        seen += len(messages)
    took = time.perf_counter() - start
    consumer.close()
    return seen, took


def kafka_python(servers: str, topic: str, count: int) -> Timed:
    """kafka-python's poll."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False)
    partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    start = time.perf_counter()
    seen = size = 0
    while seen < count:
        batches = consumer.poll(timeout_ms=5000, max_records=5000)
        if not batches:
            break
        for records in batches.values():
            for record in records:
                size += len(record.value)
            seen += len(records)
    took = time.perf_counter() - start
    consumer.close()
    return seen, took


def aiokafka(servers: str, topic: str, count: int) -> Timed:
    """Aiokafka's getmany."""

    async def read() -> Timed:
        from aiokafka import AIOKafkaConsumer

        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await consumer.start()
        start = time.perf_counter()
        seen = size = 0
        while seen < count:
            batches = await consumer.getmany(timeout_ms=5000, max_records=5000)
            if not batches:
                break
            for records in batches.values():
                for record in records:
                    size += len(record.value)
                seen += len(records)
        took = time.perf_counter() - start
        await consumer.stop()
        return seen, took

    return asyncio.run(read())


CLIENTS: dict[str, Callable[[str, str, int], Timed]] = {
    "kohort-arrow": kohort_arrow,
    "kohort-records": kohort_records,
    "confluent-kafka": confluent_kafka,
    "aiokafka": aiokafka,
    "kafka-python": kafka_python,
}


if __name__ == "__main__":
    client, servers, topic, count = sys.argv[1:]
    cpu = time.process_time()
    seen, took = CLIENTS[client](servers, topic, int(count))
    print(
        json.dumps(
            {
                "amount": seen,
                "seconds": took,
                "cpu_s": time.process_time() - cpu,
                "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )
