"""A broker whose disk is full.

Clients get errors that they retry, nothing acknowledged is lost, and it goes on when there is room.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from kohort import Admin, Broker, Consumer, Producer
from kohort.client.admin.values import NewTopic
from kohort.errors import ErrorCode, KafkaError, TimedOutError
from kohort.ids import TopicPartition
from kohort.wire.offsets import OffsetFetchRequest
from tests.broker.group_member import Member, committed
from tests.broker.raw import RawClient, batch_of, create_topic, end_offset, produce
from tests.support.tiny_disk import fill, tiny_disk

SETTINGS = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}
WAIT_S = 60.0
RETRIED = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}

Fill: TypeAlias = Callable[[Broker, Path], AbstractContextManager[None]]


@contextmanager
def small_files(broker: Broker, folder: Path) -> Iterator[None]:
    """No file of the broker can grow any more; the one that is written takes a part of the next write."""
    (journal,) = (folder / "__consumer_offsets-0").glob("*.log")
    hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (journal.stat().st_size + 10, hard))
    yield
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def full_disk(broker: Broker, folder: Path) -> Iterator[None]:
    """Nothing is left of the disk: what is written last takes a part of it."""
    ballast = folder / "ballast"
    fill(ballast)
    yield
    ballast.unlink()


@pytest.fixture(name="tiny_disk")
def a_tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with tiny_disk(tmp_path, "2m") as folder:
        yield folder


def play(folder: Path, fill: Fill) -> None:
    """Commit while there is room, while there is none, and again; look at what a crash leaves."""
    with Broker(folder, SETTINGS) as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        member = Member(client, "g", "t")
        member.join()
        member.sync({member.id: b"all"})
        assert member.commit("t", 0, 1) == ErrorCode.NONE
        acknowledged, refusals = 1, 0
        with fill(broker, folder):
            until = time.monotonic() + WAIT_S
            while refusals < 2:
                assert time.monotonic() < until
                error = ErrorCode.of(member.commit("t", 0, acknowledged + 1))
                assert error in {ErrorCode.NONE, *RETRIED}
                if error:
                    refusals += 1
                    assert member.heartbeat() == ErrorCode.NONE, "as Kafka while it loads"
                else:
                    acknowledged += 1
                assert committed_when_served(client) == acknowledged
        until = time.monotonic() + WAIT_S
        while member.commit("t", 0, acknowledged + 10) != ErrorCode.NONE:
            assert time.monotonic() < until
            committed_when_served(client)
        assert committed(client, "g", "t") == acknowledged + 10
        assert member.heartbeat() == ErrorCode.NONE
        broker.kill()
        broker.restart()
        with RawClient(broker.bootstrap_servers) as other:
            assert committed_when_served(other) == acknowledged + 10


def committed_when_served(client: RawClient) -> int:
    """Return the committed offsets once the coordinator has loaded again."""
    wanted = OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    asked = OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=[wanted])])
    until = time.monotonic() + WAIT_S
    while (answer := client.ask(asked, 9).groups[0]).error_code:
        assert ErrorCode.of(answer.error_code) in RETRIED
        assert time.monotonic() < until
        time.sleep(0.02)
    return int(answer.topics[0].partitions[0].committed_offset)


def test_files_that_can_t_grow_lose_nothing_acknowledged(tmp_path: Path) -> None:
    play(tmp_path, small_files)


def test_a_full_disk_loses_nothing_acknowledged(tiny_disk: Path) -> None:
    play(tiny_disk, full_disk)


def test_records_and_transactions_are_there_once_after_a_full_disk(tiny_disk: Path) -> None:
    """Producers retry until there is room; retention of another topic goes on meanwhile."""
    small = {"segment.bytes": "20000"}
    with Broker(tiny_disk / "data", SETTINGS | {"log.retention.check.interval.ms": 100}) as broker:
        servers = broker.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topics([NewTopic("t", 1, configs=small), NewTopic("x", 1, configs=small)]).all()
        sent, committed_values = list[bytes](), list[bytes]()
        with Producer(servers, retry_backoff_ms=50) as producer, Producer(servers, transactional_id="x") as exact:
            exact.init_transactions()
            for round_ in range(3):
                with full_disk(broker, tiny_disk):
                    futures = [producer.send("t", b"%d-%d" % (round_, n) + bytes(3_000)) for n in range(10)]
                    exact.begin_transaction()
                    exact.send("x", b"%d" % round_ + bytes(9_000))
                    with pytest.raises(TimedOutError):
                        futures[-1].result(timeout_ms=300)
                sent += [b"%d-%d" % (round_, n) for n in range(10)]
                committed_values.append(b"%d" % round_)
                for future in futures:
                    future.result(timeout_ms=WAIT_S * 1000)
                exact.commit_transaction()
        broker.kill()
        broker.restart()
        for topic, values in (("t", sent), ("x", committed_values)):
            with Consumer(servers, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
                consumer.assign([TopicPartition(topic, 0)])
                found = list[bytes]()
                until = time.monotonic() + WAIT_S
                while len(found) < len(values):
                    assert time.monotonic() < until, found
                    found += [bytes(record.value or b"").rstrip(b"\0") for record in consumer.poll(200)]
            assert found == values


@pytest.mark.parametrize("end", ["killed", "closed"])
def test_broker_starts_again_on_a_full_disk(end: str, tiny_disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tiny_disk / "data"
    broker = Broker(folder, SETTINGS)
    with RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        for number in range(5):
            assert produce(client, "t", 0, batch_of(b"%d" % number)).error_code == 0
    with full_disk(broker, tiny_disk):
        if end == "killed":
            broker.kill()
        broker.close()
        with Broker(folder, SETTINGS) as again, RawClient(again.bootstrap_servers) as client:
            assert end_offset(client, "t", 0) == 5
    with Broker(folder, SETTINGS) as again, RawClient(again.bootstrap_servers) as client:
        assert end_offset(client, "t", 0) == 5
        assert produce(client, "t", 0, batch_of(b"5")).base_offset == 5
    assert "Traceback" not in capfd.readouterr().err


def test_new_broker_on_a_full_disk_says_what_to_do(tiny_disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tiny_disk / "data").mkdir()
    ballast = tiny_disk / "ballast"
    fill(ballast)
    with pytest.raises(KafkaError, match=r"data.*No space left on device.*make room on its file system"):
        Broker(tiny_disk / "data", SETTINGS)
    command = [sys.executable, "-m", "kohort", "broker", "--data", str(tiny_disk / "data"), "--listen", "127.0.0.1:0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert ended.returncode == 1
    assert "make room on its file system" in ended.stderr
    assert "Traceback" not in ended.stderr + capfd.readouterr().err
    ballast.unlink()
    with Broker(tiny_disk / "data", SETTINGS) as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        assert produce(client, "t", 0, batch_of(b"0")).base_offset == 0
