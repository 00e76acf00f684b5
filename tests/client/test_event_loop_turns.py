"""Loops around asyncio calls that find their result ready: other tasks, and the client itself, run all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kohort import AsyncConsumer, AsyncProducer, Broker, Producer, TopicPartition

RECORDS = 4_000
WORK_S = 0.0001
"""The time of the synchronous work on each record."""


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Broker() as broker:
        with Producer(broker.bootstrap_servers) as producer:
            for number in range(RECORDS):
                producer.send("t", str(number), partition=0)
        yield broker.bootstrap_servers


def work() -> None:
    until_s = asyncio.get_running_loop().time() + WORK_S
    while asyncio.get_running_loop().time() < until_s:
        pass


class Turns:
    """Another task, which counts how often it runs."""

    def __init__(self) -> None:
        self.count = 0

    async def __aenter__(self) -> Turns:
        self._task = asyncio.create_task(self._run())
        await asyncio.sleep(0)
        return self

    async def _run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()


def test_polls_that_wait_for_nothing_return_records(servers: str) -> None:
    async def read() -> None:
        async with AsyncConsumer(servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            while not await consumer.poll(0):
                pass

    async def read_in_time() -> None:
        await asyncio.wait_for(read(), 60)  # its timer fires only if the loop runs

    asyncio.run(read_in_time())


@pytest.mark.parametrize("iterates", [False, True], ids=["poll", "loop"])
def test_consumer_with_records_in_hand_lets_other_tasks_run(servers: str, iterates: bool) -> None:
    async def read() -> int:
        async with AsyncConsumer(servers, auto_offset_reset="earliest", max_poll_records=100) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            await consumer.poll(60_000)  # the rest of the response is decoded by now
            count = 100
            async with Turns() as turns:
                if iterates:
                    async for _ in consumer:
                        work()
                        count += 1
                        if count == RECORDS:
                            return turns.count
                while count < RECORDS:
                    for _ in await consumer.poll(60_000):
                        work()
                        count += 1
                return turns.count

    assert asyncio.run(read()) >= 10


def test_producer_that_needs_no_wait_lets_other_tasks_run(servers: str) -> None:
    async def write() -> int:
        async with AsyncProducer(servers) as producer:
            await (await producer.send("t", b""))
            async with Turns() as turns:
                for _ in range(RECORDS):
                    work()
                    await producer.send("t", b"")
                return turns.count

    assert asyncio.run(write()) >= 5
