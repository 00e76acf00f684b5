"""Attempts of aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from attempts import run_attempts


def in_loop(attempt: Callable[[str, str], Awaitable[None]]) -> Callable[[str, str], None]:
    """Run a coroutine function on a loop of its own, for 90 s at most."""
    return lambda address, topic: asyncio.run(asyncio.wait_for(attempt(address, topic), 90))


async def produce(address: str, topic: str, **settings: Any) -> None:
    """Send one record, and wait for its end."""
    producer = AIOKafkaProducer(bootstrap_servers=address, **settings)
    try:
        await producer.start()
        await producer.send_and_wait(topic, b"1")
    finally:
        await producer.stop()


async def produce_idempotent(address: str, topic: str) -> None:
    """Send one record with `enable_idempotence`."""
    await produce(address, topic, enable_idempotence=True)


async def transaction(address: str, topic: str) -> None:
    """Begin with transactions."""
    producer = AIOKafkaProducer(bootstrap_servers=address, transactional_id="copier")
    try:
        await producer.start()
        await producer.begin_transaction()
    finally:
        await producer.stop()


async def consume(address: str, topic: str) -> None:
    """Join a group, and poll until something is said."""
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=address, group_id="payments")
    try:
        await consumer.start()
        await consumer.getone()
    finally:
        await consumer.stop()


async def consume_assigned(address: str, topic: str) -> None:
    """Read a partition without a group; only the log says why nothing comes."""
    consumer = AIOKafkaConsumer(bootstrap_servers=address, group_id=None, auto_offset_reset="earliest")
    try:
        await consumer.start()
        consumer.assign([TopicPartition(topic, 0)])
        await asyncio.wait_for(consumer.getone(), 10)
    finally:
        await consumer.stop()


async def commit(address: str, topic: str) -> None:
    """Commit an offset of a group without members."""
    consumer = AIOKafkaConsumer(bootstrap_servers=address, group_id="payments", enable_auto_commit=False)
    try:
        await consumer.start()
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.commit({TopicPartition(topic, 0): 1})
    finally:
        await consumer.stop()


def admin_attempt(ask: Callable[[AIOKafkaAdminClient], Awaitable[Any]]) -> Callable[[str, str], None]:
    """Ask an admin client; its answer is raised, because aiokafka returns errors in responses."""

    async def attempt(address: str, topic: str) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=address)
        try:
            await admin.start()
            raise LookupError(await ask(admin))
        finally:
            await admin.close()

    return in_loop(attempt)


run_attempts(
    {
        "produce": in_loop(produce),
        "produce_idempotent": in_loop(produce_idempotent),
        "transaction": in_loop(transaction),
        "consume": in_loop(consume),
        "consume_assigned": in_loop(consume_assigned),
        "commit": in_loop(commit),
        "create_topic": admin_attempt(lambda admin: admin.create_topics([NewTopic("new", 1, 1)])),
        "list_topics": admin_attempt(lambda admin: admin.list_topics()),
        "describe_cluster": admin_attempt(lambda admin: admin.describe_cluster()),
        "list_groups": admin_attempt(lambda admin: admin.list_consumer_groups()),
        "describe_group": admin_attempt(lambda admin: admin.describe_consumer_groups(["payments"])),
    }
)
