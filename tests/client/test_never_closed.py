"""Asyncio clients that nobody closes: collected while the loop runs, or left when it ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kohort import Admin, AsyncConsumer, AsyncProducer, Broker, NewTopic, TopicPartition

LATER: Any = {"linger_ms": 60_000, "delivery_timeout_ms": 120_000}


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Broker(config={"group.initial.rebalance.delay.ms": "0", "num.partitions": "1"}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def end_offset(servers: str, topic: str) -> int:
    part = TopicPartition(topic, 0)
    with Admin(servers) as admin:
        return admin.list_offsets({part: "latest"}).all()[part].offset


def members(servers: str, group: str) -> int:
    with Admin(servers) as admin:
        return len(admin.describe_consumer_groups([group]).all()[group].members)


def test_collected_producer_delivers_its_records(servers: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    async def send() -> None:
        producer = AsyncProducer(servers, **LATER)
        delivery = await producer.send(topic, b"1")
        del producer
        gc.collect()
        await delivery

    asyncio.run(send())
    assert end_offset(servers, topic) == 1 and "never closed" not in caplog.text


def test_collected_consumer_leaves_its_group(servers: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    async def read() -> None:
        consumer = AsyncConsumer(servers, group_id=topic, auto_offset_reset="earliest")
        consumer.subscribe([topic])
        while not consumer.assignment():
            await consumer.poll(100)
        client = consumer._client
        del consumer
        gc.collect()
        assert client._leaving is not None
        await asyncio.wait([client._leaving])

    with Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, 1)]).all()
    asyncio.run(read())
    assert members(servers, topic) == 0 and "never closed" not in caplog.text


def test_log_says_which_records_are_lost_with_the_loop(
    servers: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def send() -> None:
        producer = AsyncProducer(servers, **LATER)
        for _ in range(2):
            await producer.send(topic, b"1")

    with caplog.at_level(logging.WARNING, "kohort.client"):
        asyncio.run(send())
        gc.collect()
    assert "never closed: 2 records were not delivered" in caplog.text


PROGRAM = """
import asyncio, sys
from kohort import AsyncConsumer, AsyncProducer

kept = []

async def main(servers, topic):
    producer = AsyncProducer(servers, linger_ms=60_000, delivery_timeout_ms=120_000)
    consumer = AsyncConsumer(servers, group_id=topic)
    kept.extend([producer, consumer])
    await producer.send(topic, b"1")
    consumer.subscribe([topic])
    while not consumer.assignment():
        await consumer.poll(100)

asyncio.run(main(*sys.argv[1:]))
"""


def test_program_that_ends_says_what_it_left(servers: str, topic: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, servers, topic], capture_output=True, text=True, timeout=60, check=True
    )
    assert "never closed: 1 record was not delivered" in done.stderr
    assert f"never closed: its partitions of group {topic!r} wait" in done.stderr
    assert "Traceback" not in done.stderr and "destroyed" not in done.stderr


def test_closed_clients_say_nothing(servers: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> None:
        async with AsyncProducer(servers, **LATER) as producer, AsyncConsumer(servers, group_id=topic) as consumer:
            await producer.send(topic, b"1")
            consumer.subscribe([topic])
            await consumer.poll(100)

    asyncio.run(use())
    gc.collect()
    assert "never closed" not in caplog.text
