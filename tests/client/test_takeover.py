"""A member that crashed or was cut off: others take over long before its session ends, and never beside it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from kohort import Admin, AsyncConsumer, Broker, Consumer, Producer, TopicPartition
from kohort.broker.server.fault_kinds import Fault
from kohort.client.admin.values import NewTopic
from kohort.client.group.member import GroupMember
from kohort.io.processes import own_identity
from tests.support.waiting import until

PARTITIONS = 4
SESSION_MS = 60_000
"""What the test would have to wait for if no closed connection were noticed: longer than it waits."""
MEMBER = """
import sys
from kohort import Consumer
servers, group, protocol, session_ms = sys.argv[1:5]
with Consumer(servers, group_id=group, group_protocol=protocol, session_timeout_ms=int(session_ms)) as consumer:
    consumer.subscribe(["numbers"])
    told = set()
    while True:
        consumer.poll(timeout_ms=100)
        if (held := consumer.assignment()) != told:
            told = held
            print(len(held), flush=True)
"""


@pytest.fixture(scope="module")
def module_broker() -> Iterator[Broker]:
    config = {"group.initial.rebalance.delay.ms": 0, "group.consumer.session.timeout.ms": SESSION_MS}
    with Broker(config=config) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("numbers", PARTITIONS)])
        yield broker


@pytest.fixture
def broker(module_broker: Broker) -> Iterator[Broker]:
    yield module_broker
    module_broker.faults.clear()


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


@dataclass
class Reader:
    """A consumer on a thread of its own, and when it was handed records of which partition."""

    broker: Broker
    group: str
    protocol: str
    name: str
    way: str = "poll"
    handed: list[tuple[float, TopicPartition]] = field(default_factory=list)
    held: set[TopicPartition] = field(default_factory=set)
    lapses: int = 0

    def __enter__(self) -> Reader:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name=self.name)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _settings(self) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "group_protocol": self.protocol,
            "client_id": self.name,
            "session_timeout_ms": SESSION_MS,
            "auto_commit_interval_ms": 200,
            "auto_offset_reset": "earliest",
            "partition_assignment_strategy": "cooperative-sticky",
        }

    def _read(self) -> None:
        if self.way == "async for":
            asyncio.run(self._read_async())
            return
        with Consumer(self.broker.bootstrap_servers, **self._settings()) as consumer:
            consumer.subscribe(["numbers"])
            while not self._ended.is_set():
                for record in consumer if self.way == "for" else consumer.poll(timeout_ms=50):
                    if self._take(record, consumer):
                        break
                self._look(consumer)

    async def _read_async(self) -> None:
        async with AsyncConsumer(self.broker.bootstrap_servers, **self._settings()) as consumer:
            consumer.subscribe(["numbers"])
            async for record in consumer:
                self._look(consumer)
                if self._take(record, consumer):
                    break

    def _take(self, record: Any, consumer: Any) -> bool:
        self.handed.append((time.monotonic(), TopicPartition(record.topic, record.partition)))
        if self.way != "poll":
            self._look(consumer)
        return self._ended.is_set()

    def _look(self, consumer: Any) -> None:
        self.held, self.lapses = consumer.assignment(), consumer.metrics.lapses

    def last(self, partition: TopicPartition, before: float = float("inf")) -> float:
        """When it was last handed a record of a partition; 0: never."""
        return max((at for at, of in self.handed if of == partition and at < before), default=0.0)

    def first(self, partition: TopicPartition, after: float) -> float:
        """When it was first handed one since then."""
        return min((at for at, of in self.handed if of == partition and at > after), default=0.0)


@pytest.fixture
def flow(broker: Broker) -> Iterator[None]:
    """Records that come in steadily, in every partition."""
    ended = threading.Event()

    def produce() -> None:
        with Producer(broker.bootstrap_servers, linger_ms=0) as producer:
            while not ended.wait(0.02):
                for number in range(PARTITIONS):
                    producer.send("numbers", value=b"x", partition=number)

    thread = threading.Thread(target=produce, name="flow")
    thread.start()
    yield
    ended.set()
    thread.join()


def test_what_a_killed_process_held_is_taken_over_long_before_its_session_ends(
    broker: Broker, group: str, protocol: str, flow: None
) -> None:
    with Reader(broker, group, protocol, "survivor") as survivor:
        until(lambda: len(survivor.held) == PARTITIONS, "the survivor holds everything")
        command = [sys.executable, "-c", MEMBER, broker.bootstrap_servers, group, protocol, str(SESSION_MS)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
            try:
                assert victim.stdout is not None
                while int(victim.stdout.readline()) != PARTITIONS // 2:
                    pass
                until(lambda: len(survivor.held) == PARTITIONS // 2, "both hold a half")
                lost = {TopicPartition("numbers", number) for number in range(PARTITIONS)} - survivor.held
            finally:
                victim.kill()
            killed = time.monotonic()
            until(lambda: len(survivor.held) == PARTITIONS, "the survivor took over", SESSION_MS / 2_000)
        until(lambda: all(survivor.first(partition, killed) for partition in lost), "it is handed what the victim held")
        assert survivor.lapses == 0


@pytest.mark.skipif(not own_identity(), reason="processes have no names here: /proc is needed")
def test_what_a_killed_process_of_this_machine_held_is_taken_over_before_its_lease_ends(protocol: str) -> None:
    settings = {"group_id": "g", "group_protocol": protocol, "session_timeout_ms": SESSION_MS}
    config = {
        "group.initial.rebalance.delay.ms": 0,
        "group.consumer.session.timeout.ms": SESSION_MS,
        "group.disconnect.lease.ms": SESSION_MS,
    }
    with Broker(config=config) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("numbers", PARTITIONS)]).all()
        command = [sys.executable, "-c", MEMBER, broker.bootstrap_servers, "g", protocol, str(SESSION_MS)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
            try:
                assert victim.stdout is not None
                while int(victim.stdout.readline()) != PARTITIONS:
                    pass
            finally:
                victim.kill()
        with Consumer(broker.bootstrap_servers, **settings) as survivor:  # type: ignore[arg-type]
            survivor.subscribe(["numbers"])
            until(
                lambda: survivor.poll(50) is not None and len(survivor.assignment()) == PARTITIONS, "it has everything"
            )


def test_a_member_that_is_cut_off_from_its_coordinator_hands_out_nothing_when_others_do(
    broker: Broker, group: str, protocol: str, flow: None
) -> None:
    """Fetches go on, so only the lease stops the member. Later it is a normal member again."""
    everything = {TopicPartition("numbers", number) for number in range(PARTITIONS)}
    with Reader(broker, group, protocol, "staying") as staying, Reader(broker, group, protocol, "cut-off") as cut:
        until(lambda: len(staying.held) == len(cut.held) == PARTITIONS // 2, "both hold a half")
        contested = set(cut.held)
        until(lambda: all(cut.last(partition) for partition in contested), "it is handed records")
        for api in ("Heartbeat", "ConsumerGroupHeartbeat", "JoinGroup", "OffsetCommit"):
            broker.faults.add(Fault(api, "close", client_id="cut-off", times=None))
        began = time.monotonic()
        until(lambda: staying.held == everything, "the other took over", SESSION_MS / 2_000)
        until(
            lambda: all(staying.first(partition, began) for partition in contested), "the other is handed its records"
        )
        assert cut.lapses == 1 and cut.held == contested
        for partition in contested:
            assert began < cut.last(partition) < staying.first(partition, began)
        broker.faults.clear()
        until(lambda: len(staying.held) == len(cut.held) == PARTITIONS // 2, "both hold a half again")
        since = time.monotonic()
        until(lambda: all(cut.first(partition, since) for partition in cut.held), "it is handed records again")


@pytest.mark.parametrize(("way", "protocol"), [("poll", "classic"), ("for", "consumer"), ("async for", "classic")])
def test_a_pause_shorter_than_its_session_only_pauses_a_member_whose_connection_stays(
    broker: Broker, group: str, way: str, protocol: str, flow: None
) -> None:
    with Reader(broker, group, protocol, "paused", way) as reader:
        until(lambda: len(reader.held) == PARTITIONS, "it holds everything")
        for api in ("Heartbeat", "ConsumerGroupHeartbeat", "OffsetCommit"):
            broker.faults.add(Fault(api, "drop", client_id="paused", times=None))
        until(lambda: is_quiet(reader), "it is handed nothing")
        assert len(reader.held) == PARTITIONS
        quiet_since = time.monotonic()
        broker.faults.clear()
        until(lambda: all(reader.first(partition, quiet_since) for partition in reader.held), "it goes on")
        until(lambda: reader.lapses >= 1, "and it was counted")


def is_quiet(reader: Reader) -> bool:
    """Whether it is handed nothing, of records that come fifty times a second."""
    return bool(reader.handed) and reader.handed[-1][0] < time.monotonic() - 1


def test_a_member_that_does_not_read_waits_for_its_coordinator_to_answer(
    broker: Broker, group: str, protocol: str
) -> None:
    settings: dict[str, Any] = {"client_id": "planner", "group_protocol": protocol, "session_timeout_ms": SESSION_MS}
    with GroupMember(broker.bootstrap_servers, group, topics=["numbers"], **settings) as member:
        assert len(member.wait_assignment(20_000).partitions) == PARTITIONS
        assert member.owns()
        for api in ("Heartbeat", "ConsumerGroupHeartbeat"):
            broker.faults.add(Fault(api, "hold", client_id="planner", times=None))
        until(lambda: not member.owns(), "its lease is out")
        assert len(member.assignment().partitions) == PARTITIONS and member.revocation() is None
        broker.faults.clear()
        member.wait_assignment(20_000)
        assert member.owns()


def test_members_keep_their_ids_when_it_was_the_broker_that_was_silent(
    protocol: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The members released their partitions by their own clocks.

    A stopped coordinator has evicted nobody and must not wait for them. The logs of both sides say which side was
    silent.
    """
    config = {"group.initial.rebalance.delay.ms": 0, "group.consumer.session.timeout.ms": SESSION_MS}
    settings: dict[str, Any] = {"group_id": "g", "group_protocol": protocol, "session_timeout_ms": 6_000}
    with Broker(config=config) as broker, contextlib.ExitStack() as open_ones:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("numbers", PARTITIONS)]).all()
        members = []
        for _ in range(2):
            members.append(Consumer(broker.bootstrap_servers, **settings))
            open_ones.enter_context(members[-1]).subscribe(["numbers"])

        def each_holds(count: int) -> bool:
            for member in members:
                member.poll(timeout_ms=20)
            return all(len(member.assignment()) == count for member in members)

        until(lambda: each_holds(PARTITIONS // 2), "both hold a half")
        names = [member.group_metadata().member_id for member in members]
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            until(lambda: each_holds(0), "both let go")
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        until(lambda: each_holds(PARTITIONS // 2), "both hold a half again")
        assert [member.group_metadata().member_id for member in members] == names
        with Admin(broker.bootstrap_servers) as admin:
            described = admin.describe_consumer_groups(["g"]).result("g").members
        assert sorted(member.member_id for member in described) == sorted(names)
    reported = [record.getMessage() for record in caplog.records if "lost its partitions" in record.getMessage()]
    assert len(reported) == 2
    assert all("the last answered request was sent" in text and "was paused" not in text for text in reported)
    assert "event loop was blocked for at least" in capfd.readouterr().err
