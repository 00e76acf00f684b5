"""The broker's machine dies with records that were read already.

Their readers find out, and miss none of what comes after.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kohort import Admin, Broker, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.errors import ErrorCode, OffsetError
from kohort.log.checkpoints import RECOVERY_POINTS
from kohort.log.folder import CLEAN, LOCK
from tests.broker.raw import RawClient, fetch_request
from tests.support.waiting import until

TOPIC = TopicPartition("t", 0)
KEPT, LOST, LATER = 10, 5, 8
AT_ONCE = {"group.initial.rebalance.delay.ms": 0}
SETTINGS = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}


def lose_power(data: Path, size: int) -> None:
    """Leave a folder as a machine does that had flushed nothing and lost all of the partition beyond these bytes."""
    (data / CLEAN).unlink()
    (data / LOCK).write_text("1 another-boot\n")
    (data / RECOVERY_POINTS).unlink()
    os.truncate(data / "t-0" / "00000000000000000000.log", size)


def send(broker: Broker, count: int, what: str) -> None:
    with Producer(broker.bootstrap_servers) as producer:
        for number in range(count):
            producer.send("t", value=f"{what} {number}".encode(), partition=0).result()


def read(consumer: Consumer, count: int) -> list[str]:
    found: list[str] = []

    def enough() -> bool:
        found.extend(bytes(record.value).decode() for record in consumer.poll(timeout_ms=100))
        return len(found) >= count

    until(enough, f"{count} records are read")
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of a broker that has lost what a group has read and committed, and has other records now."""
    data = tmp_path / "data"
    with Broker(data_dir=data, config=AT_ONCE) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("t", 1)]).all()
        send(broker, KEPT, "kept")
        size = (data / "t-0" / "00000000000000000000.log").stat().st_size
        send(broker, LOST, "lost")
        with Consumer(broker.bootstrap_servers, **SETTINGS) as consumer:  # type: ignore[arg-type]
            consumer.subscribe(["t"])
            assert len(read(consumer, KEPT + LOST)) == KEPT + LOST
            consumer.commit()
    lose_power(data, size)
    return data


def test_a_group_continues_with_the_records_that_took_the_place_of_those_it_had_read(data: Path) -> None:
    with Broker(data_dir=data, config=AT_ONCE) as broker:
        send(broker, LATER, "later")
        with Consumer(broker.bootstrap_servers, **SETTINGS) as consumer:  # type: ignore[arg-type]
            consumer.subscribe(["t"])
            assert read(consumer, LATER) == [f"later {number}" for number in range(LATER)]


def test_a_consumer_that_may_not_choose_gets_an_error(data: Path) -> None:
    with Broker(data_dir=data, config=AT_ONCE) as broker:
        send(broker, LATER, "later")
        settings = SETTINGS | {"auto_offset_reset": "none"}
        with Consumer(broker.bootstrap_servers, **settings) as consumer:  # type: ignore[arg-type]
            consumer.subscribe(["t"])
            with pytest.raises(OffsetError, match="truncated"):
                until(lambda: bool(consumer.poll(timeout_ms=100)), "it is told")


def test_a_fetch_says_where_histories_part(data: Path) -> None:
    wanted = {  # what is read next, and the epoch of what was read last: the error, and where histories part
        (KEPT, 0): (ErrorCode.NONE, -1),
        (KEPT + 1, 0): (ErrorCode.NONE, KEPT),
        (KEPT + 1, 1): (ErrorCode.NONE, -1),
        (KEPT, 2): (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        (KEPT + LATER, 0): (ErrorCode.NONE, KEPT),
        (KEPT + LATER, -1): (ErrorCode.NONE, -1),
    }
    with Broker(data_dir=data, config=AT_ONCE) as broker:
        send(broker, LATER, "later")
        with RawClient(broker.bootstrap_servers) as client:
            for (offset, epoch), (error, diverges_at) in wanted.items():
                request = fetch_request("t", 0, offset, max_wait_ms=0)
                request.topics[0].partitions[0].last_fetched_epoch = epoch
                part = client.ask(request, 12).responses[0].partitions[0]
                assert (part.error_code, part.diverging_epoch.end_offset) == (error, diverges_at)
                assert bool(part.records) is (not error and diverges_at < 0 and offset < KEPT + LATER)


def test_what_a_killed_broker_wrote_is_all_there_and_no_epoch_begins(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("t", 1)]).all()
        send(broker, KEPT, "kept")
    (tmp_path / "data" / CLEAN).unlink()
    with Broker(data_dir=tmp_path / "data") as broker, RawClient(broker.bootstrap_servers) as client:
        request = fetch_request("t", 0, KEPT, max_wait_ms=0)
        request.topics[0].partitions[0].last_fetched_epoch = 0
        assert client.ask(request, 12).responses[0].partitions[0].diverging_epoch.end_offset == -1
