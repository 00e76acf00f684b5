"""Clients that come and go: whatever their face and their end, no object, thread or descriptor of theirs stays."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kohort import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Broker, Consumer, Producer, TopicPartition
from kohort.client.consumer.core import ConsumerCore
from kohort.client.net.cluster import Cluster
from kohort.client.net.runtime import Runtime, Task
from kohort.client.producer.core import ProducerCore
from kohort.errors import KafkaError
from tests.support.waiting import until

LIVES = 4
COUNTED = (Cluster, Runtime, ConsumerCore, ProducerCore, Task)
PROTOCOLS = ("classic", "consumer", "push")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with (
        Broker(config={"group.initial.rebalance.delay.ms": "0"}) as broker,
        Producer(broker.bootstrap_servers) as first,
    ):
        first.send("t", b"1").result()
        yield broker


class LeftEarlyError(Exception):
    """An application's exception."""


def end(client: Any, how: str) -> None:
    """Close a client in one of the ways."""
    if how == "in time":
        client.close()
    elif how == "out of time":
        client.close(timeout_ms=1)
    elif how == "by exception":
        with contextlib.suppress(LeftEarlyError), client:
            raise LeftEarlyError
    elif how == "collected after an error":
        for _ in range(3):
            with contextlib.suppress(KafkaError):
                client.commit({TopicPartition("t", 0): 1}, timeout_ms=0.01)


async def end_async(client: Any, how: str) -> None:
    """Close a client of asyncio in one of the ways."""
    if how == "in time":
        await client.close()
    elif how == "out of time":
        await client.close(timeout_ms=1)
    elif how == "by exception":
        with contextlib.suppress(LeftEarlyError):
            async with client:
                raise LeftEarlyError


def consumer(protocol: str) -> Callable[[str, str], None]:
    def live(servers: str, how: str) -> None:
        client = Consumer(servers, group_id=f"{protocol}-{how}", group_protocol=protocol, auto_offset_reset="earliest")
        client.subscribe(["t"])
        client.poll(300)
        end(client, how)

    return live


def async_consumer(protocol: str) -> Callable[[str, str], None]:
    async def live(servers: str, how: str) -> None:
        client = AsyncConsumer(servers, group_id=f"async-{protocol}-{how}", group_protocol=protocol)
        client.subscribe(["t"])
        await client.poll(300)
        await end_async(client, how)

    return lambda servers, how: asyncio.run(live(servers, how))


def reader(servers: str, how: str) -> None:
    client = Consumer(servers, auto_offset_reset="earliest")
    client.assign([TopicPartition("t", 0)])
    client.poll(300)
    end(client, how)


def producer(servers: str, how: str) -> None:
    client = Producer(servers)
    client.send("t", b"2").result()
    client.send("t", b"3")
    end(client, how)


def transactional(servers: str, how: str) -> None:
    client = Producer(servers, transactional_id=f"tx-{how}")
    client.init_transactions()
    client.begin_transaction()
    client.send("t", b"4")
    end(client, how)


def async_producer(servers: str, how: str) -> None:
    async def live() -> None:
        client = AsyncProducer(servers)
        await (await client.send("t", b"2"))
        await client.send("t", b"3")
        await end_async(client, how)

    asyncio.run(live())


def admin(servers: str, how: str) -> None:
    client = Admin(servers)
    client.list_topics()
    end(client, how)


def async_admin(servers: str, how: str) -> None:
    async def live() -> None:
        client = AsyncAdmin(servers)
        await client.list_topics()
        await end_async(client, how)

    asyncio.run(live())


THREADED: dict[str, Callable[[str, str], None]] = {
    **{f"Consumer {protocol}": consumer(protocol) for protocol in PROTOCOLS},
    "Consumer assigned": reader,
    "Producer": producer,
    "Producer transactional": transactional,
    "Admin": admin,
}
OF_ASYNCIO: dict[str, Callable[[str, str], None]] = {
    **{f"AsyncConsumer {protocol}": async_consumer(protocol) for protocol in PROTOCOLS},
    "AsyncProducer": async_producer,
    "AsyncAdmin": async_admin,
}
ENDS = ("in time", "out of time", "by exception")
CASES = [
    *((face, how) for face in (*THREADED, *OF_ASYNCIO) for how in ENDS if "Admin" not in face or how != "out of time"),
    *((face, "collected") for face in THREADED),
    *((face, "collected after an error") for face in THREADED if face.startswith("Consumer")),
]


def counted() -> dict[str, int]:
    """Count what there is of clients now."""
    gc.collect()
    found = {kind.__name__: 0 for kind in COUNTED}
    for thing in gc.get_objects():
        if type(thing) in COUNTED:
            found[type(thing).__name__] += 1
    found["threads"] = sum(thread.name.startswith("kohort") for thread in threading.enumerate())
    found["descriptors"] = len(list(Path(f"/proc/{os.getpid()}/fd").iterdir()))
    return found


@pytest.mark.parametrize(("face", "how"), CASES)
def test_nothing_of_a_client_stays(broker: Broker, face: str, how: str) -> None:
    live = {**THREADED, **OF_ASYNCIO}[face]
    live(broker.bootstrap_servers, how)
    before: dict[str, int] = {}

    def still() -> bool:
        nonlocal before
        last, before = before, counted()
        return last == before

    until(still, "the first life is over", 30)
    for _ in range(LIVES):
        live(broker.bootstrap_servers, how)
    until(lambda: all(count <= before[what] for what, count in counted().items()), "nothing stays", 30)
