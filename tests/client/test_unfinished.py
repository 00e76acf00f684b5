"""Auto commit and the ways out of a loop: an offset is not committed before its record is finished."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from kohort import Admin, AsyncConsumer, Broker, Consumer, Producer, TopicPartition
from kohort.client.consumer import commits
from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import KafkaError
from tests.support.waiting import until

SETTINGS: Any = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 100, "auto_commit_interval_ms": 3_600_000}
RECORDS, HANDED_OUT = 30, 12
"""The loop is left with the twelfth record in hand."""


class LeftError(Exception):
    """The application leaves its loop."""


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Broker(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def topic(servers: str) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    with Producer(servers) as producer:
        for number in range(RECORDS):
            producer.send(name, str(number), partition=0)
    return name


def committed(servers: str, group: str) -> int:
    with Consumer(servers, group_id=group) as consumer:
        found = consumer.committed([TopicPartition(group, 0)])[TopicPartition(group, 0)]
    return -1 if found is None else found.offset


def loop(consumer: Consumer, leave: Callable[[], object]) -> int:
    """Iterate, and leave with the twelfth record in hand; gives how many were handed out."""
    handed_out = 0
    for _ in consumer:
        handed_out += 1
        if handed_out == HANDED_OUT:
            leave()
    return handed_out


def poll(consumer: Consumer, leave: Callable[[], object]) -> int:
    """Poll five records at a time, and leave while the third five are processed."""
    handed_out = 0
    while True:
        for _ in consumer.poll(200, max_records=5):
            handed_out += 1
            if handed_out == HANDED_OUT:
                leave()


Read = Callable[[Consumer, Callable[[], object]], int]


def read_in_a_block(servers: str, topic: str, reads: Read, leave: Callable[[], object]) -> None:
    with Consumer(servers, group_id=topic, **SETTINGS) as consumer:
        consumer.subscribe([topic])
        reads(consumer, leave)


def read_assigned(servers: str, place: TopicPartition, reads: Read) -> None:
    with Consumer(servers, group_id=place.topic, **SETTINGS) as consumer:
        consumer.assign([place])
        reads(consumer, raise_left)


def raise_left() -> None:
    raise LeftError("in the loop")


@pytest.mark.parametrize(("reads", "expected"), [(loop, HANDED_OUT - 1), (poll, 10)])
@pytest.mark.parametrize("way", ["raises", "is interrupted", "exits in its handler"])
def test_exception_that_leaves_the_block_does_not_commit_what_was_not_finished(
    servers: str, topic: str, reads: Read, expected: int, way: str
) -> None:
    number = signal.SIGTERM if way == "exits in its handler" else signal.SIGINT
    handler: Any = (lambda *_: sys.exit(0)) if number == signal.SIGTERM else signal.default_int_handler
    before = signal.signal(number, handler)
    leave = raise_left if way == "raises" else lambda: signal.raise_signal(number)
    try:
        with pytest.raises((LeftError, KeyboardInterrupt, SystemExit)):
            read_in_a_block(servers, topic, reads, leave)
    finally:
        signal.signal(number, before)
    assert committed(servers, topic) == expected


@pytest.mark.parametrize("who", ["the handler", "another thread"])
def test_close_in_the_middle_of_a_loop_does_not_commit_the_record_in_hand(servers: str, topic: str, who: str) -> None:
    with Consumer(servers, group_id=topic, **SETTINGS) as consumer:
        consumer.subscribe([topic])

        def close() -> None:
            if who == "the handler":
                before = signal.signal(signal.SIGTERM, lambda *_: consumer.close())
                signal.raise_signal(signal.SIGTERM)
                signal.signal(signal.SIGTERM, before)
            else:
                thread = threading.Thread(target=consumer.close)
                thread.start()
                thread.join(60)

        assert loop(consumer, close) == HANDED_OUT, "the loop ends by itself"
    assert committed(servers, topic) == HANDED_OUT - 1


def test_loop_over_partitions_assigned_by_hand_ends_when_the_consumer_closes(servers: str, topic: str) -> None:
    with Consumer(servers, **SETTINGS) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert loop(consumer, consumer.close) == HANDED_OUT, "the records of the poll that follow are not handed out"


def test_loop_that_is_left_by_break_has_finished_its_record(servers: str, topic: str) -> None:
    with Consumer(servers, group_id=topic, **SETTINGS) as consumer:
        consumer.subscribe([topic])
        with suppress(LeftError):
            loop(consumer, raise_left)
    assert committed(servers, topic) == HANDED_OUT


@pytest.mark.parametrize("way", ["seek", "seek_to_beginning", "another assignment"])
def test_records_read_again_after_a_commit_beyond_them_are_not_committed_unfinished(
    servers: str, topic: str, way: str
) -> None:
    """From aiokafka #1046: a seek back to records that failed; an earlier commit beyond them does not finish them."""
    place = TopicPartition(topic, 0)

    def read(consumer: Consumer, leave: Callable[[], object]) -> int:
        while consumer.position(place) < RECORDS:
            consumer.poll(200)
        consumer.commit()
        if way == "another assignment":
            consumer.assign([])
            with Admin(servers) as admin:
                admin.alter_consumer_group_offsets(topic, {place: OffsetAndMetadata(2)}).all()
            consumer.assign([place])
        elif way == "seek":
            consumer.seek(place, 2)
        else:
            consumer.seek_to_beginning(place)
        return poll(consumer, leave)

    start = 0 if way == "seek_to_beginning" else 2
    with pytest.raises(LeftError):
        read_assigned(servers, place, read)
    assert committed(servers, topic) == start + 10


def test_offset_that_the_application_has_committed_is_not_taken_back(servers: str, topic: str) -> None:
    def read(consumer: Consumer, leave: Callable[[], object]) -> int:
        return loop(consumer, lambda: (consumer.commit(), leave()))

    with pytest.raises(LeftError):
        read_in_a_block(servers, topic, read, raise_left)
    assert committed(servers, topic) == HANDED_OUT


def commit_each_record(consumer: Consumer, leave: Callable[[], object]) -> int:
    """Iterate, and commit each record when it is finished."""
    handed_out = 0
    for _ in consumer:
        handed_out += 1
        if handed_out == HANDED_OUT:
            leave()
        consumer.commit()
    return handed_out


def commit_each_record_of_a_poll(consumer: Consumer, leave: Callable[[], object]) -> int:
    """Poll five records at a time, and commit each record when it is finished."""
    handed_out = 0
    while True:
        for record in consumer.poll(200, max_records=5):
            handed_out += 1
            if handed_out == HANDED_OUT:
                leave()
            consumer.commit({TopicPartition(record.topic, record.partition): record.offset + 1})


def commit_each_poll(consumer: Consumer, leave: Callable[[], object]) -> int:
    """Poll five records at a time, and commit them when all are finished, as auto commit does in the next poll."""
    handed_out = 0
    while True:
        for _ in consumer.poll(200, max_records=5):
            handed_out += 1
            if handed_out == HANDED_OUT:
                leave()
        consumer.commit()


@pytest.mark.parametrize(
    ("reads", "expected"),
    [(commit_each_record, HANDED_OUT - 1), (commit_each_record_of_a_poll, HANDED_OUT - 1), (commit_each_poll, 10)],
    ids=["each record of a loop", "each record of a poll", "each poll"],
)
def test_a_commit_of_the_records_before_does_not_finish_the_one_in_hand(
    servers: str, topic: str, reads: Read, expected: int
) -> None:
    with pytest.raises(LeftError):
        read_in_a_block(servers, topic, reads, raise_left)
    assert committed(servers, topic) == expected


def test_records_that_were_committed_before_a_seek_beyond_them_stay_finished(servers: str, topic: str) -> None:
    place = TopicPartition(topic, 0)

    def read(consumer: Consumer, leave: Callable[[], object]) -> int:
        while not consumer.poll(200, max_records=5):
            pass
        consumer.commit()
        consumer.seek(place, 20)
        leave()
        return 0

    with pytest.raises(LeftError):
        read_assigned(servers, place, read)
    assert committed(servers, topic) == 20


@pytest.mark.parametrize("iterates", [True, False])
def test_close_in_a_handler_that_interrupts_a_poll_ends_it(servers: str, topic: str, iterates: bool) -> None:
    """Neither is the poll left waiting, nor does the handler fail."""
    with Consumer(servers, group_id=topic, **SETTINGS) as consumer:
        consumer.subscribe([topic])
        before = signal.signal(signal.SIGTERM, lambda *_: consumer.close())
        seen = 0

        def end_when_it_waits() -> None:
            until(lambda: seen == RECORDS and consumer._user_thread is not None, "it waits for more")
            os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=end_when_it_waits)
        thread.start()
        try:
            if iterates:
                for _ in consumer:
                    seen += 1
            else:
                while not consumer._client.closed:
                    seen += len(consumer.poll(60_000))
        finally:
            signal.signal(signal.SIGTERM, before)
            thread.join(60)
        with pytest.raises(KafkaError, match="closed"):
            consumer.poll(0)
    assert committed(servers, topic) == RECORDS


def test_forked_child_does_not_close_its_parents_consumer(servers: str, topic: str) -> None:
    with Consumer(servers, group_id=topic, **SETTINGS) as consumer:
        consumer.subscribe([topic])

        def fork() -> None:
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    with consumer:
                        pass
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            raise_left()

        with suppress(LeftError):
            loop(consumer, fork)
        assert committed(servers, topic) == -1
    assert committed(servers, topic) == HANDED_OUT


@pytest.mark.parametrize(("iterates", "expected"), [(True, HANDED_OUT - 1), (False, 10)])
@pytest.mark.parametrize("way", ["raises", "is cancelled"])
def test_async_consumer_does_not_commit_what_was_not_finished(
    servers: str, topic: str, iterates: bool, expected: int, way: str
) -> None:
    async def leave() -> None:
        if way == "raises":
            raise_left()
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async def read() -> None:
        handed_out = 0
        async with AsyncConsumer(servers, group_id=topic, **SETTINGS) as consumer:
            consumer.subscribe([topic])
            if iterates:
                async for _ in consumer:
                    handed_out += 1
                    if handed_out == HANDED_OUT:
                        await leave()
            while True:
                for _ in await consumer.poll(200, max_records=5):
                    handed_out += 1
                    if handed_out == HANDED_OUT:
                        await leave()

    with pytest.raises((LeftError, asyncio.CancelledError)):
        asyncio.run(read())
    assert committed(servers, topic) == expected


# -- a record that nobody has seen


class DeserializerError(Exception):
    """The schema registry is away."""


def refuse_the_twelfth(raw: bytes | None) -> bytes | None:
    if raw == str(HANDED_OUT - 1).encode():
        raise DeserializerError
    return raw


def test_a_record_whose_deserializer_raises_is_not_committed(servers: str, topic: str) -> None:
    def read() -> None:
        with Consumer(servers, group_id=topic, value_deserializer=refuse_the_twelfth, **SETTINGS) as consumer:
            consumer.subscribe([topic])
            for _ in consumer:
                pass

    with pytest.raises(DeserializerError) as raised:
        read()
    (note,) = raised.value.__notes__
    assert f"The value of the record at offset {HANDED_OUT - 1} of {topic}-0" in note
    assert committed(servers, topic) == HANDED_OUT - 1


def test_an_asyncio_consumer_commits_no_record_whose_deserializer_raises(servers: str, topic: str) -> None:
    async def read() -> None:
        async with AsyncConsumer(
            servers, group_id=topic, value_deserializer=refuse_the_twelfth, **SETTINGS
        ) as consumer:
            consumer.subscribe([topic])
            async for _ in consumer:
                pass

    with pytest.raises(DeserializerError):
        asyncio.run(read())
    assert committed(servers, topic) == HANDED_OUT - 1


@pytest.mark.parametrize("by", ["another task", "the loop"])
def test_an_asyncio_consumer_that_another_task_closes_does_not_commit_the_record_in_hand(
    servers: str, topic: str, by: str
) -> None:
    async def read() -> None:
        consumer = AsyncConsumer(servers, group_id=topic, **SETTINGS)
        consumer.subscribe([topic])
        handed_out = 0
        async for _ in consumer:
            handed_out += 1
            if handed_out == HANDED_OUT:
                closing = consumer.close()
                await (asyncio.create_task(closing) if by == "another task" else closing)
                break

    asyncio.run(read())
    assert committed(servers, topic) == (HANDED_OUT - 1 if by == "another task" else HANDED_OUT)


def test_a_close_by_another_thread_ends_a_poll_and_leaves_the_group(servers: str, topic: str) -> None:
    consumer = Consumer(servers, group_id=topic, **SETTINGS)
    consumer.subscribe([topic])
    while not consumer.poll(1000):
        pass
    closer = threading.Timer(0.2, consumer.close)
    closer.start()
    with suppress(KafkaError):  # the poll after the one that was ended finds the consumer closed
        while True:
            consumer.poll(60_000)
    closer.join()
    with Admin(servers) as admin:
        (group,) = admin.describe_consumer_groups([topic]).all().values()
    assert group.members == ()
    assert committed(servers, topic) == RECORDS


def test_offset_that_does_not_move_is_committed_again_before_it_expires(
    servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From librdkafka #1372: nothing came for two days, and a restart read everything again. No member here."""
    monkeypatch.setattr(commits, "RECOMMIT_MS", 0)
    place = TopicPartition(topic, 0)
    chosen = SETTINGS | {"auto_commit_interval_ms": 50}
    with Consumer(servers, group_id=topic, **chosen) as consumer, Admin(servers) as admin:
        consumer.assign([place])

        def is_committed() -> bool:
            consumer.poll(20)
            return committed(servers, topic) == RECORDS

        until(is_committed, "all records are committed", 60)
        admin.delete_consumer_group_offsets(topic, [place]).all()
        until(is_committed, "the offset is committed again", 60)
