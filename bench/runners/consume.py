"""Read a topic from its beginning with one client: `python -m bench.runners.consume CLIENT SERVERS TOPIC COUNT`.

The clock runs from the first call that could return records to the last record, on a consumer that has its partitions.
Joining a group and fetching metadata are not compared. Every value is read.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kohort.columns import extent
from kohort.wire import framing
from kohort.wire.data import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from kohort import Consumer

Timed = tuple[int, float]
_PARTITION_BYTES = 1024 * 1024
_FETCH_BYTES = 50 * 1024 * 1024
_BY_NAME = 12


def raw_receive(servers: str, topic: str, count: int) -> Timed:
    """Receive the bytes into one buffer without decoding them.

    A blocking socket; requests are made beforehand but for their offsets.

    Of each answer the headers of batches are walked, since the next request follows from them.
    """
    with _kohort(servers, topic) as consumer:
        positions = dict.fromkeys((part.partition for part in consumer.assignment()), 0)
    host, port = servers.split(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = memoryview(bytearray(_FETCH_BYTES))
        start = time.perf_counter()
        seen = 0
        while seen < count:
            sock.sendall(framing.encode_request(_fetch_request(topic, positions), _BY_NAME, 1, "raw"))
            got = 0
            for part in _partitions_in(_receive_frame(sock, buffer)):
                records = extent(part.records) if part.records else None
                if records is not None and records.records:
                    positions[part.partition_index] = records.next_offset
                    got += records.records
            if not got:
                break
            seen += got
        return seen, time.perf_counter() - start


def _fetch_request(topic: str, positions: dict[int, int]) -> FetchRequest:
    of_topic = FetchRequest.FetchTopic
    parts = [
        of_topic.FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=_PARTITION_BYTES)
        for number, offset in positions.items()
    ]
    topics = [of_topic(topic=topic, partitions=parts)]
    return FetchRequest(max_wait_ms=5000, min_bytes=1, max_bytes=_FETCH_BYTES, isolation_level=0, topics=topics)


def _receive_frame(sock: socket.socket, buffer: memoryview) -> memoryview:
    size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
    have = 0
    while have < size:
        have += sock.recv_into(buffer[have:size], 0, socket.MSG_WAITALL)
    return buffer[:size]


def _partitions_in(frame: memoryview) -> Iterator[Any]:
    _, answer = framing.decode_response(FetchResponse, _BY_NAME, frame)
    return (part for response in answer.responses for part in response.partitions)


def kohort_arrow(servers: str, topic: str, count: int, **settings: Any) -> Timed:
    """Whole record batches; every column is there. Importing pyarrow is not on the clock."""
    import pyarrow  # noqa: F401

    with _kohort(servers, topic, **settings) as consumer:
        start = time.perf_counter()
        seen = size = 0
        while seen < count:
            batch = consumer.poll_arrow(timeout_ms=5000)
            if batch is None:
                break
            seen += batch.num_rows
            size += batch.column("value").nbytes
        return seen, time.perf_counter() - start


def kohort_arrow_4(servers: str, topic: str, count: int) -> Timed:
    """Whole record batches of four columns."""
    return kohort_arrow(servers, topic, count, columns=("value", "partition", "offset", "timestamp"))


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
                size += len(record.value or b"")
                seen += 1
        return seen, time.perf_counter() - start


def _kohort(servers: str, topic: str, **settings: Any) -> AbstractContextManager[Consumer]:
    from kohort import Consumer, TopicPartition

    consumer = Consumer(servers, auto_offset_reset="earliest", enable_auto_commit=False, **settings)
    consumer.assign([TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))])
    return consumer


def confluent_kafka(servers: str, topic: str, count: int) -> Timed:
    """Read with librdkafka by batches of 5000 messages.

    Its queue fills long before the application has emptied it. By default it then pauses fetching for a second
    (`fetch.queue.backoff.ms`). The application waits for most of that second: a sixth of the rate. A short pause suits
    a faster consumer.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 5,
        }
    )
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


def _most_resident_mb() -> float:
    """Return the peak memory of this program alone: getrusage also counts the process before exec."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


CLIENTS: dict[str, Callable[[str, str, int], Timed]] = {
    "raw-receive": raw_receive,
    "kohort-arrow": kohort_arrow,
    "kohort-arrow-4": kohort_arrow_4,
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
                "rss_mb": _most_resident_mb(),
            }
        )
    )
