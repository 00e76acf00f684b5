"""Consumers of the push protocol, also beside a consumer that shares no code with them. Source: spec 4.10."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kohort import Admin, AsyncConsumer, Broker, Consumer, Producer
from kohort.client.group.member import GroupMember
from kohort.errors import CommitFailedError, InvalidInputError, KafkaError, OffsetError
from kohort.ids import TopicPartition
from tests.broker.literal_consumer import LiteralConsumer, eventually
from tests.broker.raw import RawClient, create_topic

SETTINGS = {"push.min.session.timeout.ms": 300}
WAIT_MS = 30_000
SESSION_MS = 3_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("push"), SETTINGS) as broker:
        yield broker


_names = iter(range(1000))


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic of four partitions with ten records each."""
    name = f"t{next(_names)}"
    with RawClient(broker.bootstrap_servers) as client:
        create_topic(client, name, 4)
    fill(broker, name, 0)
    return name


def fill(broker: Broker, topic: str, first: int) -> None:
    with Producer(broker.bootstrap_servers) as producer:
        for number in range(first, first + 10):
            for partition in range(4):
                producer.send(topic, f"{partition}-{number}".encode(), partition=partition)


Make = Callable[..., Consumer]


@pytest.fixture
def make(broker: Broker, topic: str) -> Iterator[Make]:
    with ExitStack() as stack:

        def consumer(**more: Any) -> Consumer:
            settings: dict[str, Any] = {
                "group_id": topic,
                "group_protocol": "push",
                "session_timeout_ms": SESSION_MS,
                "auto_offset_reset": "earliest",
                "auto_commit_interval_ms": 1,
            }
            made = stack.enter_context(Consumer(broker.bootstrap_servers, **(settings | more)))
            made.subscribe([topic])
            return made

        yield consumer


def read(consumer: Consumer, count: int) -> list[str]:
    """So many values."""
    found: list[str] = []

    def enough() -> bool:
        found.extend(record.value.decode() for record in consumer.poll(timeout_ms=100))
        return len(found) >= count

    eventually(enough)
    return found


def until_assigned(count: int, *consumers: Consumer) -> None:
    """All poll until each has so many partitions."""

    def settled() -> bool:
        for consumer in consumers:
            assert not consumer.poll(timeout_ms=20)
        return all(len(consumer.assignment()) == count for consumer in consumers)

    eventually(settled)


def test_consumer_reads_all_and_continues_where_it_was(broker: Broker, topic: str, make: Make) -> None:
    consumer = make()
    values = read(consumer, 40)
    assert sorted(values) == sorted({f"{partition}-{number}" for partition in range(4) for number in range(10)})
    consumer.close()
    fill(broker, topic, 10)
    assert sorted(read(make(), 40)) == sorted(f"{part}-{number}" for part in range(4) for number in range(10, 20))


def test_a_clean_hand_over_repeats_nothing(broker: Broker, topic: str, make: Make) -> None:
    first = make()
    read(first, 40)
    second = make()
    until_assigned(2, first, second)
    assert not set(first.assignment()) & set(second.assignment())
    fill(broker, topic, 10)
    values = read(first, 20) + read(second, 20)
    assert sorted(values) == sorted(f"{part}-{number}" for part in range(4) for number in range(10, 20))
    first.close()
    until_assigned(4, second)
    fill(broker, topic, 20)
    assert len(set(read(second, 40))) == 40


def test_pings_carry_what_was_worked_on(broker: Broker, topic: str, make: Make) -> None:
    consumer = make(session_timeout_ms=600)
    read(consumer, 40)
    with Admin(broker.bootstrap_servers) as admin:

        def committed() -> set[int]:
            consumer.poll(timeout_ms=20)
            parts = [TopicPartition(topic, number) for number in range(4)]
            found = admin.list_consumer_group_offsets(topic, parts).values.values()
            return {position.offset for position in found if position is not None}

        eventually(lambda: committed() == {10})


def test_commits_by_hand_are_taken_of_what_is_owned(topic: str, make: Make) -> None:
    consumer = make(enable_auto_commit=False)
    read(consumer, 40)
    consumer.commit()
    assert {position.offset for position in consumer.committed(consumer.assignment()).values() if position} == {10}
    other = make(enable_auto_commit=False)
    until_assigned(2, consumer, other)
    theirs = min(other.assignment())
    with pytest.raises(CommitFailedError):
        consumer.commit({theirs: 3})


def test_none_is_an_error_and_nothing_is_committed(broker: Broker, topic: str, make: Make) -> None:
    consumer = make(auto_offset_reset="none", session_timeout_ms=600)
    with pytest.raises(OffsetError, match="has committed no offset"):
        read(consumer, 1)
    parts = [TopicPartition(topic, number) for number in range(4)]
    for part in parts:
        consumer.seek(part, 7)
    assert len(read(consumer, 12)) == 12
    consumer.commit()
    assert {position.offset for position in consumer.committed(parts).values() if position} == {10}


def test_members_are_shown_with_their_client_id(broker: Broker, topic: str, make: Make) -> None:
    until_assigned(4, consumer := make(client_id="named", auto_offset_reset="latest"))
    with Admin(broker.bootstrap_servers) as admin:
        (member,) = admin.describe_consumer_groups([topic]).all()[topic].members
    assert member.client_id == "named"
    assert consumer.assignment()


def test_it_shares_a_group_with_one_that_is_written_from_the_text(broker: Broker, topic: str, make: Make) -> None:
    literal = LiteralConsumer(broker.bootstrap_servers, topic, "literal", f'{{"{topic}":1}}')
    literal.until(lambda each: len(each.registry) == 4)
    consumer = make()
    try:

        def shared() -> bool:
            consumer.poll(timeout_ms=20)
            return len(consumer.assignment()) == 2

        eventually(shared)
        literal.until(lambda each: each.fetching and len(each.registry) == 2)
        ours = {part.partition for part in consumer.assignment()}
        theirs = {int(part.rpartition("-")[2]) for _, part in literal.registry}
        assert ours | theirs == {0, 1, 2, 3}
    finally:
        literal.close()


def test_patterns(broker: Broker, topic: str, make: Make) -> None:
    consumer = make()
    consumer.unsubscribe()
    consumer.subscribe(pattern=f"^{topic}(-more)?$")
    read(consumer, 40)
    with RawClient(broker.bootstrap_servers) as client:
        create_topic(client, f"{topic}-more", 1)

    def found() -> bool:
        consumer.poll(timeout_ms=20)
        return TopicPartition(f"{topic}-more", 0) in consumer.assignment()

    eventually(found)


def test_a_member_holds_a_stop_until_it_releases(broker: Broker, topic: str) -> None:
    settings: dict[str, Any] = {"group_protocol": "push", "session_timeout_ms": 20_000, "topics": [topic]}
    with (
        GroupMember(broker.bootstrap_servers, topic, **settings) as first,
        ExitStack() as stack,
    ):
        assert len(first.wait_assignment(WAIT_MS).partitions) == 4
        second = stack.enter_context(GroupMember(broker.bootstrap_servers, topic, **settings))
        eventually(lambda: first.revocation() is not None)
        first.commit({TopicPartition(topic, number): 5 for number in range(4)})
        assert not second.assignment().partitions
        first.release()
        assert len(second.wait_assignment(WAIT_MS).partitions) == 2
        eventually(lambda: len(first.assignment().partitions) == 2)
        with pytest.raises(CommitFailedError):
            first.commit({second.assignment().partitions[0]: 7})


def test_the_other_face(broker: Broker, topic: str) -> None:
    async def run() -> list[bytes]:
        async with AsyncConsumer(
            broker.bootstrap_servers, group_id=topic, group_protocol="push", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe([topic])
            found: list[bytes] = []
            async with asyncio.timeout(WAIT_MS / 1000):
                while len(found) < 40:
                    found += [record.value for record in await consumer.poll(timeout_ms=100)]
            return found

    assert len(set(asyncio.run(run()))) == 40


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"auto_offset_reset": "by_duration:PT1H"}, "earliest, latest or none"),
        ({"group_instance_id": "i"}, "no static members"),
    ],
)
def test_settings_that_the_protocol_has_no_room_for(make: Make, more: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        make(**more)


def test_refusals_reach_the_application(topic: str, make: Make) -> None:
    with pytest.raises(KafkaError, match="INVALID_SESSION_TIMEOUT"):
        read(make(session_timeout_ms=200, heartbeat_interval_ms=50), 1)
    classic = make(group_protocol="classic", session_timeout_ms=6_000)
    read(classic, 40)
    with pytest.raises(KafkaError, match="INCONSISTENT_GROUP_PROTOCOL"):
        read(make(), 1)


def test_a_broker_that_does_not_speak_it_is_named(make: Make) -> None:
    """One that ends the connection at a request it does not know, as Apache Kafka does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=old_broker, args=(server,), daemon=True)
        thread.start()
        host, port = server.getsockname()
        with Consumer(f"{host}:{port}", group_id="g", group_protocol="push") as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(KafkaError, match="does not speak the push protocol"):
                read(consumer, 1)


def old_broker(server: socket.socket) -> None:
    """Answers ApiVersions, and ends the connection at anything else."""
    while True:
        try:
            sock, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=answer_once, args=(sock,), daemon=True).start()


def answer_once(sock: socket.socket) -> None:
    with sock:
        size = int.from_bytes(sock.recv(4), "big")
        request = sock.recv(size)
        body = request[4:8] + b"\0\0" + b"\x02" + b"\x00\x12\0\0\0\4\0" + b"\0\0\0\0" + b"\0"
        sock.sendall(len(body).to_bytes(4, "big") + body)
        sock.recv(4)


def test_a_bootstrap_broker_that_stands_still_is_passed_over(topic: str, make: Make, broker: Broker) -> None:
    """A process that was stopped takes connections, and answers nothing: all members waited for it half a minute."""
    with socket.create_server(("127.0.0.1", 0)) as still:
        host, port = still.getsockname()
        servers = f"{host}:{port},{broker.bootstrap_servers}"
        without_end = {"request_timeout_ms": 600_000, "socket_connection_setup_timeout_ms": 600_000}
        with Consumer(
            servers,
            group_id=topic,
            group_protocol="push",
            session_timeout_ms=SESSION_MS,
            auto_offset_reset="earliest",
            **without_end,
        ) as consumer:
            consumer.subscribe([topic])
            read(consumer, 40)


def test_when_no_bootstrap_broker_is_there_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
    with (
        caplog.at_level(logging.ERROR, "kohort.client"),
        Consumer(f"{host}:{port}", group_id="g", group_protocol="push") as consumer,
    ):
        consumer.subscribe(["t"])

        def reported() -> bool:
            consumer.poll(timeout_ms=20)
            return any("AllKnownBrokersNotAvailable" in record.getMessage() for record in caplog.records)

        eventually(reported)


def test_consumer_continues_with_what_it_has_when_the_broker_was_killed(tmp_path: Any, broker: Broker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    listen = f"127.0.0.1:{port}"
    events: list[str] = []
    with ExitStack() as stack:
        running = Broker(tmp_path, SETTINGS, listen=listen)
        with RawClient(running.bootstrap_servers) as client:
            create_topic(client, "t", 4)
        consumer = stack.enter_context(Consumer(listen, group_id="g", group_protocol="push", session_timeout_ms=20_000))
        consumer.subscribe(["t"])
        until_assigned(4, consumer)
        before = consumer.group_metadata().generation_id
        running.kill()
        running.close()
        running = stack.enter_context(Broker(tmp_path, SETTINGS, listen=listen))
        fill(running, "t", 0)
        events += read(consumer, 40)
        assert consumer.group_metadata().generation_id == before, "nothing was revoked"
