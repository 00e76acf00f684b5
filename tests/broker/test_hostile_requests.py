"""Small requests that ask for much, and names that take much: each has a bound, and others are served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kohort import Broker
from kohort.broker import fetch_sessions
from kohort.broker.fetch_sessions import FetchedPartition, FetchSessions
from kohort.errors import ErrorCode
from kohort.wire.data import FetchRequest
from kohort.wire.discovery import DescribeConfigsRequest, MetadataRequest
from kohort.wire.framing import encode_request
from kohort.wire.groups import ConsumerGroupDescribeRequest, DescribeGroupsRequest
from kohort.wire.offsets import OffsetCommitRequest, OffsetFetchRequest
from kohort.wire.transactions import DescribeProducersRequest, DescribeTransactionsRequest, InitProducerIdRequest
from tests.broker.raw import RawClient, batch_of, create_topic, produce, resident_kib
from tests.support.waiting import until

LONG = 32_767
REPEATED = 1_000


def commit(client: RawClient, group: str, topic: str, partitions: int = 1) -> int:
    make = OffsetCommitRequest.OffsetCommitRequestTopic
    parts = [
        make.OffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in range(partitions)
    ]
    asked = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, topics=[make(name=topic, partitions=parts)]
    )
    return int(client.ask(asked, 8).topics[0].partitions[0].error_code)


GROUP = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="name", topics=None)
REQUESTS: list[tuple[Any, int]] = [
    (OffsetFetchRequest(groups=[GROUP] * REPEATED), 9),
    (DescribeGroupsRequest(groups=["name"] * REPEATED), 6),
    (ConsumerGroupDescribeRequest(group_ids=["name"] * REPEATED), 1),
    (DescribeTransactionsRequest(transactional_ids=["name"] * REPEATED), 0),
    (
        DescribeConfigsRequest(
            resources=[DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name="name")] * REPEATED
        ),
        4,
    ),
    (MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="name")] * REPEATED), 9),
    (
        DescribeProducersRequest(
            topics=[DescribeProducersRequest.TopicRequest(name="name", partition_indexes=[0] * REPEATED)]
        ),
        0,
    ),
]


@pytest.fixture(scope="module")
def wide(broker: Broker) -> str:
    """A topic and a group of 400 partitions, of one name."""
    with RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "name", 400)
        assert commit(client, "name", "name", 400) == 0
    return "name"


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(("request_of", "version"), REQUESTS, ids=[type(asked).__name__ for asked, _ in REQUESTS])
def test_a_name_that_a_request_repeats_is_answered_a_few_times(
    client: RawClient, request_of: Any, version: int
) -> None:
    """A group's name in 2.7 KB, again and again, asked for 180 MB and kept others waiting for 42 s."""
    client.sock.sendall(encode_request(request_of, version, 1, "hostile"))
    assert len(client.frame()) < 60_000


def test_a_request_of_more_elements_than_a_broker_has_things_ends_its_connection(broker: Broker) -> None:
    with RawClient(broker.bootstrap_servers) as hostile, RawClient(broker.bootstrap_servers) as client:
        hostile.send(DescribeGroupsRequest(groups=["g"] * 30_001), 5)
        assert hostile.closed()
        assert client.ask(MetadataRequest(topics=[])).brokers
        assert (
            len(client.ask(DescribeGroupsRequest(groups=[f"g{number}" for number in range(10_000)]), 5).groups)
            == 10_000
        )


def test_an_offset_fetch_names_a_bounded_number_of_groups(client: RawClient) -> None:
    make = OffsetFetchRequest.OffsetFetchRequestGroup
    many = [make(group_id=f"g{number}", topics=[]) for number in range(10_001)]
    assert {group.error_code for group in client.ask(OffsetFetchRequest(groups=many), 9).groups} == {
        ErrorCode.INVALID_REQUEST
    }
    assert {group.error_code for group in client.ask(OffsetFetchRequest(groups=many[1:]), 9).groups} == {0}


def test_long_names_of_groups_count_as_several(tmp_path: Path) -> None:
    config = {"group.coordinator.max.groups": 70, "offsets.topic.num.partitions": 1}
    with Broker(tmp_path / "data", config) as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        assert [commit(client, letter * LONG, "t") for letter in "abc"] == [0, 0, 0]
        assert commit(client, "d" * LONG, "t") != 0
        assert commit(client, "a" * LONG, "t") == 0, "a group that is there goes on"


def test_long_transactional_ids_have_a_common_bound(client: RawClient) -> None:
    def begin(name: str) -> int:
        return int(client.ask(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1_000), 5).error_code)

    errors = [begin(f"{number:05}" * (LONG // 5)) for number in range(320)]
    assert errors[300] == 0
    assert errors[-1] == ErrorCode.POLICY_VIOLATION
    assert begin("00007" * (LONG // 5)) == 0


def wanted(first: int, count: int) -> dict[fetch_sessions.Key, FetchedPartition]:
    keys = [("t", number) for number in range(first, first + count)]
    return {key: FetchedPartition(key, 0, 1, -1) for key in keys}


def test_fetch_sessions_bound_the_partitions_of_one_and_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 10)
    monkeypatch.setattr(fetch_sessions, "ALL_PARTITIONS_MAX", 25)
    sessions = FetchSessions(100)
    assert sessions.open(False, wanted(0, 11)) is None
    first, second = sessions.open(False, wanted(0, 6)), sessions.open(False, wanted(0, 9))
    assert first is not None and second is not None
    assert sessions.change_partitions(first, [("t", 0)], wanted(1, 9))
    assert len(first.partitions) == 9
    assert sessions.open(False, wanted(0, 8)) is None, "26 partitions in all"
    third = sessions.open(False, wanted(0, 7))
    assert third is not None
    assert not sessions.change_partitions(second, [], wanted(100, 1)), "the tenth is the 26th of all"
    assert sessions.get(second.id) is None and len(sessions) == 2
    assert not sessions.change_partitions(first, [], wanted(100, 2)), "an eleventh"
    assert sessions.open(False, wanted(0, 10)) is not None


def test_fetch_sessions_that_nobody_uses_make_room_for_partitions_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten requests for 100,000 partitions, of topics that need not exist, kept every other client without a session."""
    monkeypatch.setattr(fetch_sessions, "ALL_PARTITIONS_MAX", 25)
    sessions = FetchSessions(100)
    held, growing = sessions.open(False, wanted(0, 15)), sessions.open(False, wanted(0, 10))
    assert held is not None and growing is not None
    assert sessions.open(False, wanted(0, 1)) is None
    monkeypatch.setattr(fetch_sessions, "STALE_S", 0.0)
    assert sessions.get(growing.id) is growing
    assert sessions.change_partitions(growing, [], wanted(10, 10)), "the unused session makes room"
    assert sessions.get(held.id) is None and len(growing.partitions) == 20
    assert sessions.open(False, wanted(0, 6)) is not None, "and so does this one"
    assert len(sessions) == 1
    alone = sessions.open(False, wanted(0, 25))
    assert alone is not None
    assert not sessions.change_partitions(alone, [], wanted(25, 1)), "a session makes no room for itself"
    assert len(sessions) == 0


WAITING = 12


def fetches(broker: Broker) -> int:
    """Return the number of fetches that the broker has begun."""
    return int(broker.metrics()["requests"].get("Fetch", 0))


def test_fetches_that_wait_keep_little_of_their_requests(tmp_path: Path) -> None:
    """A connection's 500 fetches that each name a partition 100,000 times took 7 GB, for weeks if they asked for it."""
    part = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchRequest.FetchTopic(topic="t", partitions=[part] * 100_000)]
    asked = FetchRequest(max_wait_ms=2**31 - 1, min_bytes=1, max_bytes=1, session_epoch=-1, topics=topics)
    with Broker(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap_servers) as client, RawClient(broker.bootstrap_servers) as hostile:
            create_topic(client, "t")
            hostile.send(asked, 11)
            until(lambda: fetches(broker) == 1, "the first waits")
            before = resident_kib(broker)
            for _ in range(WAITING):
                hostile.send(asked, 11)
            until(lambda: fetches(broker) == 1 + WAITING, "all wait")
            assert resident_kib(broker) - before < WAITING * 4_000
            assert produce(client, "t", 0, batch_of(b"v")).error_code == 0
            for _ in range(1 + WAITING):
                assert hostile.receive().responses[0].partitions[0].records


def test_fetches_that_wait_for_many_partitions_count_toward_the_limit_of_their_connection(tmp_path: Path) -> None:
    partitions = [
        FetchRequest.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
        for number in range(1_000)
    ]
    topics = [FetchRequest.FetchTopic(topic="t", partitions=partitions)]
    asked = FetchRequest(max_wait_ms=2**31 - 1, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=topics)
    with Broker(tmp_path / "data", {"queued.max.response.bytes": 1 << 20}) as broker:
        with RawClient(broker.bootstrap_servers) as client, RawClient(broker.bootstrap_servers) as hostile:
            create_topic(client, "t", 1_000)
            for _ in range(10):
                hostile.send(asked, 11)
            until(lambda: fetches(broker) == 3, "as many wait as a connection may have")
            assert client.ask(MetadataRequest(topics=[])).brokers
            assert fetches(broker) == 3
            assert produce(client, "t", 7, batch_of(b"v")).error_code == 0
            for _ in range(10):
                assert any(part.records for part in hostile.receive().responses[0].partitions)
