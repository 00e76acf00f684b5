"""The push protocol at the broker's listener, spoken by a consumer that shares no code. Source: spec 4.3-4.7."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kohort import Admin, Broker
from kohort.ids import TopicPartition
from tests.broker.literal_consumer import (
    WAIT_S,
    LiteralConsumer,
    ask,
    coordinator,
    eventually,
    read_frame,
    text,
)
from tests.broker.raw import RawClient, create_topic

Start = Callable[..., LiteralConsumer]
SETTINGS = {"push.min.session.timeout.ms": 300}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("push"), SETTINGS) as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker, name: str) -> str:
    """A topic of six partitions."""
    with RawClient(broker.bootstrap_servers) as client:
        create_topic(client, name, 6)
    return name


@pytest.fixture
def start(broker: Broker, topic: str) -> Iterator[Start]:
    """Makes consumers of the group that is named as the topic, and closes them."""
    with ExitStack() as stack:

        def make(name: str, topic_count: str | None = None, **more: object) -> LiteralConsumer:
            count = f'{{"{topic}":1}}' if topic_count is None else topic_count
            consumer = LiteralConsumer(broker.bootstrap_servers, topic, name, count, **more)
            stack.callback(consumer.close)
            return consumer

        yield make


def address(broker: Broker) -> tuple[str, int]:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return host, int(port)


def started(count: int) -> Callable[[LiteralConsumer], bool]:
    return lambda each: each.fetching and len(each.registry) == count


def test_cluster_metadata_names_the_coordinator_by_two_bytes_or_for_a_group(broker: Broker) -> None:
    assert coordinator(*address(broker)) == (0, address(broker))
    assert coordinator(*address(broker), "g") == (0, address(broker))


def test_cluster_metadata_and_requests_of_kafka_share_a_connection(broker: Broker) -> None:
    from kohort.wire.discovery import MetadataRequest

    with RawClient(broker.bootstrap_servers) as client:
        assert client.ask(MetadataRequest(topics=[])).brokers
        assert ask(client.sock, b"\x50\x00")[:2] == b"\0\0"
        assert client.ask(MetadataRequest(topics=[])).brokers


def test_a_consumer_joins_is_pinged_stopped_started_and_killed(broker: Broker, topic: str, start: Start) -> None:
    a = start("a")
    assert a.error == 0
    a.until(started(6))
    assert a.asked == ["start"]
    assert set(a.registry.values()) == {0}
    a.read(4)
    a.until(lambda each: "ping" in each.asked)
    b = start("b")
    b.until(started(3))
    a.until(started(3))
    assert set(b.registry.values()) == {4}, "the last positions came before the start"
    assert not set(a.registry) & set(b.registry)
    with Admin(broker.bootstrap_servers) as admin:
        parts = [TopicPartition(topic, number) for number in range(6)]
        committed = admin.list_consumer_group_offsets(topic, parts)
        assert {value.offset for value in committed.values.values() if value is not None} == {4}
    b.silent = True
    a.until(started(6))
    b.until(lambda each: each.ended)


def test_a_killed_consumer_frees_its_partitions_after_its_session(start: Start) -> None:
    a = start("a", session_timeout_ms=1000)
    b = start("b", session_timeout_ms=1000)
    a.until(started(3))
    b.close()
    a.until(started(6))


def test_consumer_rejoins_under_its_id(start: Start) -> None:
    a, b = start("a"), start("b")
    a.until(started(3))
    b.until(started(3))
    had = set(b.registry)
    b.close()
    again = start("b")
    again.until(started(3))
    assert set(again.registry) == had
    assert again.asked == ["ping", "start"]
    assert a.asked.count("stop") == 1, "by the first registration of the other"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"session_timeout_ms": 299}, 26),
        ({"auto_offset_reset": "first"}, 42),
        ({"topic_count": "{"}, 42),
        ({"topic_count": "*1*("}, 42),
        ({"topic_count": "*" + "9" * 5_000 + "*t"}, 42),
        ({"topic_count": '{"\\ud800":1}'}, 42),
    ],
    ids=["session", "reset", "no JSON", "no pattern", "digits", "half a surrogate pair"],
)
def test_refused_registrations_get_an_error_and_are_closed(start: Start, more: dict[str, object], code: int) -> None:
    consumer = start("a", **more)
    assert consumer.error == code
    consumer.until(lambda each: each.ended)


def test_a_taken_id_is_refused_and_the_other_stays(start: Start) -> None:
    a = start("a")
    a.until(started(6))
    rival = start("a")
    assert rival.error == 82
    rival.until(lambda each: each.ended)
    assert a.fetching


def test_without_auto_commit_answers_to_pings_are_empty(start: Start) -> None:
    a = start("a", auto_commit=False, session_timeout_ms=600)
    a.until(lambda each: each.asked.count("ping") >= 3)
    assert a.fetching


def test_who_finds_starts_itself_is_started_without_offsets_and_none_is_written(
    broker: Broker, topic: str, start: Start
) -> None:
    a = start("a", auto_offset_reset="none", auto_commit=False)
    a.until(started(6))
    assert set(a.registry.values()) == {-1}
    parts = [TopicPartition(topic, number) for number in range(6)]
    with Admin(broker.bootstrap_servers) as admin:
        assert set(admin.list_consumer_group_offsets(topic, parts).all().values()) == {None}
        b = start("b")
        b.until(started(3))
        found = admin.list_consumer_group_offsets(topic, parts).all()
        assert sorted(-1 if position is None else position.offset for position in found.values()) == [
            -1,
            -1,
            -1,
            0,
            0,
            0,
        ]


def test_wildcards(broker: Broker, topic: str, start: Start) -> None:
    a = start("a", f"*1*{topic}.*")
    a.until(started(6))
    with RawClient(broker.bootstrap_servers) as client:
        create_topic(client, f"{topic}-more", 2)
    a.until(started(8))
    assert f"{topic}-more" in {name for name, _ in a.registry}


@pytest.mark.parametrize(
    "body",
    [
        b"\x50\x05",
        b"\x50\x02\0\0",
        b"\x7f\xff",
        b"\x50",
    ],
)
def test_other_frames_end_the_connection(broker: Broker, body: bytes) -> None:
    with socket.create_connection(address(broker), WAIT_S) as sock:
        sock.sendall(struct.pack(">i", len(body)) + body)
        assert sock.recv(1) == b""


@pytest.mark.parametrize("body", [b"\x50\x01", b"\x50\x01\0\x01g", b"\x50\x00\0\x05g"])
def test_malformed_requests_are_answered_where_they_can_be_and_closed(broker: Broker, body: bytes) -> None:
    with socket.create_connection(address(broker), WAIT_S) as sock:
        assert struct.unpack(">h", ask(sock, body)[:2]) == (42,)
        assert sock.recv(1) == b""


def test_an_answer_of_the_wrong_form_ends_the_connection_and_not_the_membership(broker: Broker, topic: str) -> None:
    with socket.create_connection(address(broker), WAIT_S) as sock:
        register = b"\x50\x01" + text(topic) + text("a") + text(f'{{"{topic}":1}}') + b"\x01" + text("largest")
        assert ask(sock, register + struct.pack(">i", 6000)) == b"\0\0"
        assert read_frame(sock)[:2] == b"\x50\x04"
        assert ask_nothing(sock, b"\0\0\0")
    with Admin(broker.bootstrap_servers) as admin:
        (described,) = admin.describe_consumer_groups([topic]).values.values()
        assert [member.member_id for member in described.members] == ["a"]


def ask_nothing(sock: socket.socket, body: bytes) -> bool:
    """Whether the connection ends on this frame."""
    sock.sendall(struct.pack(">i", len(body)) + body)
    return sock.recv(1) == b""


def test_groups_are_seen_by_administrators(broker: Broker, topic: str, start: Start) -> None:
    a = start("a")
    a.until(started(6))
    with Admin(broker.bootstrap_servers) as admin:
        listed = {group.group_id: group for group in admin.list_groups()}[topic]
        assert (listed.type, listed.protocol_type) == ("classic", "consumer")
        (described,) = admin.describe_consumer_groups([topic]).values.values()
        (member,) = described.members
        assert {part.partition for part in member.assignment} == set(range(6))
        eventually(lambda: broker.metrics()["rebalances"][topic]["protocol"] == "push")


def test_members_continue_after_the_broker_was_killed(tmp_path: Path) -> None:
    with Broker(tmp_path, SETTINGS) as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t", 4)
        a, b = (LiteralConsumer(broker.bootstrap_servers, "g", name, '{"t":1}') for name in "ab")
        a.until(started(2))
        b.until(started(2))
        had = set(a.registry)
        broker.kill()
    for consumer in (a, b):
        consumer.until(lambda one: one.ended)
        consumer.close()
    with Broker(tmp_path, SETTINGS) as broker:
        again = [LiteralConsumer(broker.bootstrap_servers, "g", name, '{"t":1}') for name in "ab"]
        for consumer in again:
            consumer.until(started(2))
            assert consumer.asked == ["ping", "start"], "nobody was stopped"
        assert set(again[0].registry) == had
        for consumer in again:
            consumer.close()
