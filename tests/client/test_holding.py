"""A consumer that lets partitions go when it says so, on our broker and on Apache Kafka, in both protocols."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kohort import Admin, AsyncConsumer, Broker, Consumer, HoldingListener, Producer, RebalanceListener, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.client.consumer.core import WakeupError
from kohort.client.group.member import GroupMember
from kohort.consumer_protocol import write_assignment
from kohort.errors import ErrorCode
from tests.broker.group_member import Member
from tests.broker.raw import RawClient
from tests.support.waiting import until

RECORDS = 400


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    config = {"group.initial.rebalance.delay.ms": "0", "group.consumer.min.session.timeout.ms": "1000"}
    with Broker(config=config) as broker:
        yield broker


@pytest.fixture(params=["own", pytest.param("apache", marks=pytest.mark.kafka)])
def servers(request: pytest.FixtureRequest) -> str:
    fixture = "own_broker" if request.param == "own" else "apache_kafka"
    return str(request.getfixturevalue(fixture).bootstrap_servers)


@pytest.fixture(params=["range", "cooperative-sticky", "consumer"])
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    how = (
        {"group_protocol": "consumer"}
        if request.param == "consumer"
        else {"partition_assignment_strategy": (request.param,), "heartbeat_interval_ms": 100}
    )
    return {
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "group_id": f"g-{uuid.uuid4().hex[:8]}",
        **how,
    }


@pytest.fixture
def topic(servers: str) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topics([NewTopic(name, 4)]).all()
        for number in range(RECORDS):
            producer.send(name, str(number), partition=number % 4)
    return name


class Held(HoldingListener):
    """Recorded callbacks, in order."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, set[TopicPartition]]] = []

    def on_revocation_requested(self, partitions: list[TopicPartition]) -> None:
        self.reported.append(("wanted", set(partitions)))

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.reported.append(("revoked", set(partitions)))

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.reported.append(("lost", set(partitions)))


class Reading:
    """A consumer, with what it has read."""

    def __init__(self, servers: str, topic: str, settings: dict[str, Any]) -> None:
        self.listener = Held()
        self.consumer = Consumer(servers, max_poll_records=7, **settings)
        self.consumer.subscribe([topic], listener=self.listener)
        self.read: list[tuple[TopicPartition, int]] = []

    def poll(self) -> list[tuple[TopicPartition, int]]:
        got = [(TopicPartition(record.topic, record.partition), record.offset) for record in self.consumer.poll(20)]
        self.read += got
        return got


@pytest.fixture
def pair(servers: str, topic: str, settings: dict[str, Any]) -> Iterator[tuple[Reading, Reading]]:
    """The first has all four partitions and has read something, the second has just come, the group wants some back."""
    first = Reading(servers, topic, settings)
    until(lambda: bool(first.poll()) and len(first.consumer.assignment()) == 4, "it reads all")
    second = Reading(servers, topic, settings)

    def wanted() -> bool:
        second.poll()
        first.poll()
        return bool(first.consumer.wanted())

    until(wanted, "the group wants partitions back")
    yield first, second
    for consumer in (first, second):
        consumer.consumer.close()


def test_what_is_wanted_is_held_until_it_is_released(pair: tuple[Reading, Reading]) -> None:
    first, second = pair
    held = first.consumer.wanted()
    assert first.listener.reported == [("wanted", held)]
    assert held <= first.consumer.assignment()
    before = first.consumer.positions()
    for _ in range(20):
        assert not [part for part, _ in first.poll() if part in held], "nothing of it is returned"
        second.poll()
    assert second.read == [] and not second.consumer.assignment() & held
    after = first.consumer.positions()
    assert {part: after[part] for part in held} == {part: before[part] for part in held}, "its position stays"
    first.consumer.resume(*held)
    assert held <= first.consumer.paused(), "it is not the application's to resume"
    first.consumer.commit(first.consumer.positions())
    assert first.consumer.group_metadata().member_id
    assert first.consumer.release() is True
    assert first.listener.reported == [("wanted", held), ("revoked", held)]
    assert first.consumer.release() is False

    def all_read() -> bool:
        first.poll()
        second.poll()
        return len(first.read) + len(second.read) >= RECORDS and bool(second.consumer.assignment())

    until(all_read, "both have read everything")
    assert len(set(first.read) | set(second.read)) == RECORDS == len(first.read) + len(second.read)
    assert not first.consumer.assignment() & second.consumer.assignment()


def test_a_close_lets_go_what_is_held(pair: tuple[Reading, Reading]) -> None:
    first, second = pair
    first.consumer.close()
    assert first.listener.reported[-1][0] == "revoked"
    until(lambda: bool(second.poll()) and len(second.consumer.assignment()) == 4, "the other has all")


def test_what_is_held_too_long_is_lost(own_broker: Broker) -> None:
    servers = own_broker.bootstrap_servers
    name = f"t-{uuid.uuid4().hex[:12]}"
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(name, 4)]).all()
    settings = {"group_id": name, "group_protocol": "consumer", "max_poll_interval_ms": 1500}
    first = Reading(servers, name, settings)
    until(lambda: first.poll() == [] and len(first.consumer.assignment()) == 4, "it has all")
    second = Reading(servers, name, settings)

    def lost() -> bool:
        first.poll()
        second.poll()
        return any(what == "lost" for what, _ in first.listener.reported)

    until(lost, "the coordinator's patience is over")
    assert first.listener.reported[0][0] == "wanted"
    assert first.consumer.release() is False
    assert "revoked" not in [what for what, _ in first.listener.reported]
    for consumer in (first, second):
        consumer.consumer.close()


def test_a_wakeup_loses_no_record(own_broker: Broker) -> None:
    servers = own_broker.bootstrap_servers
    name = f"t-{uuid.uuid4().hex[:12]}"
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topics([NewTopic(name, 1)]).all()
        for number in range(RECORDS):
            producer.send(name, str(number))
    over = threading.Event()
    read: list[int] = []
    with Consumer(servers, max_poll_records=3, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(name, 0)])

        def disturb() -> None:
            while not over.wait(0.0005):
                consumer.wakeup()

        disturbing = threading.Thread(target=disturb)
        disturbing.start()
        woken = 0
        while len(read) < RECORDS:
            try:
                read += [record.offset for record in consumer.poll(1000)]
            except WakeupError:
                woken += 1
        over.set()
        disturbing.join()
    assert read == list(range(RECORDS)) and woken


class RecordedAssignments(RebalanceListener):
    """Recorded assignments."""

    def __init__(self) -> None:
        self.assigned: set[TopicPartition] = set()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.assigned |= set(partitions)


def test_assignment_is_announced_also_when_the_group_rebalances_anew_before_the_poll(servers: str, topic: str) -> None:
    group, listener, client = f"g-{uuid.uuid4().hex[:8]}", RecordedAssignments(), RawClient(servers)
    everything = [TopicPartition(topic, number) for number in range(4)]
    leader = Member(client, group, topic, protocol="cooperative-sticky")
    settings = {"partition_assignment_strategy": ("cooperative-sticky",), "heartbeat_interval_ms": 100}
    with Consumer(servers, group_id=group, auto_offset_reset="earliest", **settings) as consumer:
        consumer.committed(everything)  # the coordinator is there
        leader.join()
        leader.sync()
        consumer.subscribe([topic], listener=listener)
        until(lambda: leader.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "it joins, without a poll")
        (follower,) = {member.member_id for member in leader.join().members} - {leader.id}
        leader.sync({follower: write_assignment(1, everything)})
        until(lambda: consumer.metrics.rebalances == 1, "it is given all")
        leader.join()  # it has joined anew as well, and waits for what the leader gives

        def gives() -> bool:
            consumer.poll(20)
            return len(consumer.assignment()) == 4

        until(gives, "it has what it was given")
        assert listener.assigned == consumer.assignment()
        leader.sync({follower: write_assignment(1, everything)})
    client.close()


def test_the_asynchronous_face_has_the_same(servers: str, topic: str, settings: dict[str, Any]) -> None:
    listener = Held()

    async def hold() -> set[TopicPartition]:
        async with AsyncConsumer(servers, **settings) as consumer:
            consumer.subscribe([topic], listener=listener)
            while len(consumer.assignment()) < 4:
                await consumer.poll(20)
            with GroupMember(servers, topics=[topic], **settings) as other:
                while not consumer.wanted():
                    await consumer.poll(20)
                held = consumer.wanted()
                assert await consumer.release() is True
                while not other.assignment().partitions:
                    await consumer.poll(20)
                assert other.group_metadata().member_id == other.assignment().member_id
        return held

    held = asyncio.run(hold())
    assert listener.reported[:2] == [("wanted", held), ("revoked", held)]
