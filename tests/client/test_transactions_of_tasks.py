"""Transactions of an asyncio producer that several tasks use, and whose calls are cancelled."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import pytest

from kohort import Admin, AsyncProducer, Broker, Consumer, Fault, InvalidInputError, KafkaError, TopicPartition
from kohort.client.producer import transactions
from kohort.errors import TimedOutError


@pytest.fixture(scope="module")
def module_broker() -> Iterator[Broker]:
    with Broker(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


@pytest.fixture
def broker(module_broker: Broker) -> Iterator[Broker]:
    yield module_broker
    module_broker.faults.clear()


@pytest.fixture(params=[1, 2], ids=["version 1", "version 2"])
def topic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == 1:
        monkeypatch.setattr(transactions, "FEATURE", "a cluster without the feature")
    return f"t-{uuid.uuid4().hex[:10]}"


def committed_values(servers: str, topic: str, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    with Consumer(servers, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while len(values) < count:
            values += [record.value for record in consumer.poll(60_000)]
    return values


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_record_sent_while_the_transaction_ends_is_refused_and_harms_nothing(
    broker: Broker, topic: str, commits: bool
) -> None:
    """The record would be in no transaction: the coordinator would fence the producer for it."""

    async def write() -> None:
        async with AsyncProducer(broker.bootstrap_servers, transactional_id=topic) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send(topic, b"1", partition=0)
            ended = producer.commit_transaction() if commits else producer.abort_transaction()
            ending = asyncio.create_task(ended)
            for _ in range(2):  # the task begins, and so does the call in the client
                await asyncio.sleep(0)
            while not ending.done():
                with pytest.raises(InvalidInputError, match="not possible now"):
                    await producer.send(topic, b"late", partition=0)
                await asyncio.sleep(0.001)
            await ending
            await producer.begin_transaction()
            await producer.send(topic, b"2", partition=0)
            await producer.commit_transaction()

    asyncio.run(write())
    values = [b"1", b"2"] if commits else [b"2"]
    assert committed_values(broker.bootstrap_servers, topic, len(values)) == values


def test_transaction_whose_offsets_were_cancelled_can_not_be_committed(broker: Broker, topic: str) -> None:
    async def write() -> None:
        held = broker.faults.add(Fault("TxnOffsetCommit", "hold", times=None))
        async with AsyncProducer(broker.bootstrap_servers, transactional_id=topic) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send(topic, b"1", partition=0)
            offsets = {TopicPartition(topic, 0): 1}
            adding = asyncio.create_task(producer.send_offsets_to_transaction(offsets, topic))
            await asyncio.to_thread(held.wait)
            adding.cancel()
            await asyncio.wait([adding])
            broker.faults.clear()
            with pytest.raises(KafkaError, match="interrupted"):
                await producer.commit_transaction()
            await producer.abort_transaction()
            await producer.begin_transaction()
            await producer.send(topic, b"2", partition=0)
            await producer.send_offsets_to_transaction(offsets, topic)
            await producer.commit_transaction()

    asyncio.run(write())
    assert committed_values(broker.bootstrap_servers, topic, 1) == [b"2"]


def test_abort_waits_for_offsets_whose_call_was_cancelled(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """In version 1 the group's coordinator could take them after the end, and none would ever commit or abort them."""
    monkeypatch.setattr(transactions, "FEATURE", "a cluster without the feature")
    topic = f"t-{uuid.uuid4().hex[:10]}"

    async def write() -> None:
        held = broker.faults.add(Fault("TxnOffsetCommit", "hold", times=1))
        async with AsyncProducer(broker.bootstrap_servers, transactional_id=topic, max_block_ms=5_000) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send(topic, b"1", partition=0)
            adding = asyncio.create_task(producer.send_offsets_to_transaction({TopicPartition(topic, 0): 7}, topic))
            await asyncio.to_thread(held.wait)
            adding.cancel()
            await asyncio.wait([adding])
            with pytest.raises(TimedOutError, match="end it again"):
                await producer.abort_transaction()
            ending = asyncio.create_task(producer.abort_transaction())
            done, _ = await asyncio.wait([ending], timeout=0.3)
            assert not done
            held.release()
            await ending
            await producer.begin_transaction()
            await producer.send(topic, b"2", partition=0)
            await producer.commit_transaction()

    asyncio.run(write())
    with Admin(broker.bootstrap_servers) as admin:
        assert admin.list_consumer_group_offsets(topic).all() == {}


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_end_of_a_transaction_waits_for_offsets_that_another_task_adds(
    broker: Broker, topic: str, commits: bool
) -> None:
    """The coordinator would take offsets that come after the end into the next transaction."""

    async def write() -> None:
        held = broker.faults.add(Fault("TxnOffsetCommit", "hold", times=1))
        async with AsyncProducer(broker.bootstrap_servers, transactional_id=topic) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send(topic, b"1", partition=0)
            adding = asyncio.create_task(producer.send_offsets_to_transaction({TopicPartition(topic, 0): 7}, topic))
            await asyncio.to_thread(held.wait)
            ending = asyncio.create_task(producer.commit_transaction() if commits else producer.abort_transaction())
            done, _ = await asyncio.wait([ending], timeout=0.3)
            assert not done
            with pytest.raises(InvalidInputError, match="being ended"):
                await producer.send_offsets_to_transaction({TopicPartition(topic, 0): 8}, topic)
            held.release()
            await adding
            await ending
            await producer.begin_transaction()
            await producer.send(topic, b"2", partition=0)
            await producer.commit_transaction()

    asyncio.run(write())
    with Admin(broker.bootstrap_servers) as admin:
        committed = admin.list_consumer_group_offsets(topic).all() if commits else {}
        assert {part: at.offset for part, at in committed.items()} == ({TopicPartition(topic, 0): 7} if commits else {})


@pytest.mark.parametrize("call", ["close", "abort_transaction"])
def test_transaction_is_not_committed_without_records_that_another_task_drops(
    broker: Broker, topic: str, call: str
) -> None:
    """The commit waits for records on their way, and the other call drops those that wait."""

    async def write() -> None:
        producer = AsyncProducer(broker.bootstrap_servers, transactional_id=topic, batch_size=0, linger_ms=0)
        await producer.init_transactions()
        await producer.begin_transaction()
        held = broker.faults.add(Fault("Produce", "hold", times=1))
        first = await producer.send(topic, b"1", partition=0)
        await asyncio.to_thread(held.wait)
        second = await producer.send(topic, b"2", partition=0)
        committing = asyncio.create_task(producer.commit_transaction())
        await asyncio.sleep(0.1)
        dropping = asyncio.create_task(getattr(producer, call)())
        with pytest.raises(KafkaError):
            await second
        held.release()
        await first
        with pytest.raises(KafkaError):
            await committing
        await dropping
        if call == "close":
            producer = AsyncProducer(broker.bootstrap_servers, transactional_id=topic)
            await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send(topic, b"3", partition=0)
        await producer.commit_transaction()
        await producer.close()

    asyncio.run(write())
    assert committed_values(broker.bootstrap_servers, topic, 1) == [b"3"]
