"""The producer for asyncio: what its face adds to the core that both producers share."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest

from kohort import AsyncProducer, Broker, Producer, TopicPartition
from kohort.broker.server.fault_kinds import Fault
from kohort.client.consumer.range_reader import RangeReader
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, TimedOutError


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    with Broker(config={"num.partitions": "2"}) as broker:
        yield broker


@pytest.fixture
def broker(own_broker: Broker) -> Iterator[Broker]:
    yield own_broker
    own_broker.faults.clear()


@pytest.fixture(params=["own", pytest.param("apache", marks=pytest.mark.kafka)])
def servers(request: pytest.FixtureRequest) -> str:
    fixture = "own_broker" if request.param == "own" else "apache_kafka"
    return str(request.getfixturevalue(fixture).bootstrap_servers)


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:10]}"


def values(servers: str, topic: str, **settings: object) -> list[bytes]:
    with RangeReader(servers, columns=("value",), **settings) as reader:
        rows = []
        for partition in [TopicPartition(topic, number) for number in reader.partitions_of([topic])[topic]]:
            end = reader.end_offsets([partition])[partition]
            rows += [row for batch in reader.read(partition, 0, end) for row in batch.column(0).to_pylist()]
        return rows


def test_records_and_tables_arrive(servers: str, topic: str) -> None:
    reported: list[object] = []

    async def main() -> None:
        async with AsyncProducer(servers, linger_ms=1) as producer:
            assert len(await producer.partitions_for(topic)) > 1
            sent = [
                await producer.send(topic, str(i), partition=0, on_delivery=lambda error, _: reported.append(error))
                for i in range(500)
            ]
            places = [await future for future in sent]
            assert [place.offset for place in places] == list(range(500))
            table = pa.table({"value": [str(i) for i in range(500, 900)]})
            assert sum(count for _, count in await (await producer.send_arrow(topic, table))) == 400
            await producer.send(topic, "900")
            await producer.flush()
            assert producer.metrics.records_sent == 901
            await producer.send(topic, "901")

    asyncio.run(main())
    assert sorted(map(int, values(servers, topic))) == list(range(902))
    assert reported == [None] * 500


def test_transactions(servers: str, topic: str) -> None:
    async def main() -> None:
        async with AsyncProducer(servers, transactional_id=topic) as producer:
            await producer.init_transactions()
            for number in range(4):
                await producer.begin_transaction()
                await producer.send(topic, str(number))
                await producer.send_offsets_to_transaction({TopicPartition(topic, 0): number}, topic)
                await (producer.abort_transaction() if number % 2 else producer.commit_transaction())

    asyncio.run(main())
    assert sorted(values(servers, topic, isolation_level="read_committed")) == [b"0", b"2"]


def test_other_tasks_run_while_the_memory_is_full(broker: Broker, topic: str) -> None:
    rule = broker.faults.add(Fault("Produce", "hold", times=None))

    async def main() -> None:
        settings = {"buffer_memory": 20_000, "max_block_ms": 400, "batch_size": 2000}
        async with AsyncProducer(broker.bootstrap_servers, **settings) as producer:
            sent = []

            async def fill() -> None:
                for i in range(10_000):
                    sent.append(await producer.send(topic, f"{i:01000}"))  # noqa: PERF401

            with pytest.raises(TimedOutError, match=r"buffer\.memory"):
                await fill()
            blocked = asyncio.create_task(producer.send(topic, bytes(5000)))
            await asyncio.sleep(0)  # one turn of the loop: the task has come as far as it can
            assert not blocked.done()
            await asyncio.to_thread(rule.remove)
            assert (await (await blocked)).offset >= 0
            for future in sent:
                await future

    asyncio.run(main())


def test_a_result_is_awaited_and_not_waited_for(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with AsyncProducer(broker.bootstrap_servers) as producer:
            delivery = await producer.send(topic, b"x", partition=0)
            with pytest.raises(InvalidInputError, match="await the delivery"):
                delivery.result()
            with pytest.raises(TimedOutError):
                delivery.result(timeout_ms=0)
            assert (await delivery).offset == 0
            assert delivery.result().offset == 0
            with pytest.raises(InvalidInputError, match="no partition 9"):
                await producer.send(topic, b"x", partition=9)
            with pytest.raises(TypeError):
                pickle.dumps(producer)
        with pytest.raises(KafkaError, match="closed"):
            await producer.send(topic, b"x")
        await producer.close()

    asyncio.run(main())


def test_a_failure_is_raised_where_it_is_awaited(broker: Broker, topic: str) -> None:
    broker.faults.add(Fault("Produce", "fail", error=ErrorCode.INVALID_RECORD))

    async def main() -> None:
        async with AsyncProducer(broker.bootstrap_servers) as producer:
            with pytest.raises(InvalidInputError):
                await (await producer.send(topic, b"x"))
            table = pa.table({"value": ["y"]})
            assert await (await producer.send_arrow(topic, table))

    asyncio.run(main())


def test_an_unreachable_broker_is_named() -> None:
    async def main() -> None:
        async with AsyncProducer("127.0.0.1:9", max_block_ms=5_000) as producer:
            with pytest.raises(TimedOutError, match=r"127\.0\.0\.1:9.*refused"):
                await producer.send("any", b"x")

    asyncio.run(main())


def test_a_cancelled_send_leaves_the_producer_usable(broker: Broker, topic: str) -> None:
    rule = broker.faults.add(Fault("Metadata", "hold", times=None))

    async def main() -> None:
        async with AsyncProducer(broker.bootstrap_servers) as producer:
            task = asyncio.create_task(producer.send(topic, b"never"))
            await asyncio.to_thread(rule.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(rule.remove)
            await (await producer.send(topic, b"once"))

    asyncio.run(main())
    assert values(broker.bootstrap_servers, topic) == [b"once"]


def test_both_faces_have_the_same_methods() -> None:
    def methods(face: type) -> dict[str, list[tuple[str, object]]]:
        return {
            name: [(parameter.name, parameter.default) for parameter in inspect.signature(value).parameters.values()]
            for name, value in vars(face).items()
            if not name.startswith("_") and inspect.isfunction(value)
        }

    assert methods(Producer) == methods(AsyncProducer)
    for face in (Producer, AsyncProducer):
        assert [name for name in methods(face) if not getattr(face, name).__doc__] == []
