"""Fetch: long polls, limits, and incremental sessions."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from kohort import Broker
from kohort.broker.purgatory import WAIT_S_MAX, Purgatory, WaitingFetch
from kohort.broker.shards import java_hash
from kohort.broker.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kohort.errors import ErrorCode
from kohort.wire.data import DeleteRecordsRequest, FetchRequest
from kohort.wire.discovery import DeleteTopicsRequest, MetadataRequest
from kohort.wire.offsets import OffsetCommitRequest
from kohort.wire.transactions import EndTxnRequest, InitProducerIdRequest
from tests.broker.raw import (
    RawClient,
    batch_of,
    create_topic,
    end_offset,
    fetch,
    fetch_request,
    produce,
    produce_request,
    topic_id,
)
from tests.support.waiting import until


def test_a_fetch_waits_for_data(broker: Broker, client: RawClient, topic: str) -> None:
    with RawClient(broker.bootstrap_servers) as reader:
        reader.send(fetch_request(topic, 0, 0, max_wait_ms=20_000), 12)
        produce(client, topic, 0, batch_of(b"x"))
        started = time.monotonic()
        part = reader.receive().responses[0].partitions[0]
        assert time.monotonic() - started < 10
        assert part.high_watermark == 1
        assert b"x" in bytes(part.records)


@pytest.mark.parametrize("internal", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
def test_a_fetch_of_an_internal_topic_ends_when_a_coordinator_appends(
    broker: Broker, client: RawClient, topic: str, internal: str
) -> None:
    """Programs that follow the committed offsets, such as kminion, wait there; the fetch outlasts the connection."""

    def write() -> None:
        if internal == TRANSACTIONS_TOPIC:
            init = InitProducerIdRequest(transactional_id=topic, transaction_timeout_ms=60_000)
            until(lambda: client.ask(init, 4).error_code == 0, "the transactional id has a producer id")
            return
        part = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
        topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[part])]
        commit = OffsetCommitRequest(group_id=topic, topics=topics)
        until(lambda: client.ask(commit, 8).topics[0].partitions[0].error_code == 0, "the offset is committed")

    write()
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=internal)])
    count = len(client.ask(asked, 9).topics[0].partitions)
    index = java_hash(topic) % count
    end = end_offset(client, internal, index)
    with RawClient(broker.bootstrap_servers) as reader:
        reader.send(fetch_request(internal, index, end, max_wait_ms=600_000), 12)
        client.ask(asked, 9)  # the broker has taken the fetch when it answers a later request
        write()
        part = reader.receive().responses[0].partitions[0]
    assert part.error_code == 0
    assert topic.encode() in bytes(part.records)


def test_a_fetch_waits_for_min_bytes_and_not_for_ever(broker: Broker, client: RawClient, topic: str) -> None:
    produce(client, topic, 0, batch_of(b"x"))
    started = time.monotonic()
    assert fetch(client, topic, 0, 0, max_wait_ms=300, min_bytes=10_000).high_watermark == 1
    assert time.monotonic() - started >= 0.29
    with RawClient(broker.bootstrap_servers) as reader:
        reader.send(fetch_request(topic, 0, 0, max_wait_ms=20_000, min_bytes=1000), 12)
        for _ in range(10):
            produce(client, topic, 0, batch_of(b"y" * 100))
        assert len(reader.receive().responses[0].partitions[0].records) >= 1000


@pytest.mark.parametrize(
    ("min_bytes", "max_bytes", "partition_max"),
    [
        pytest.param(5_000, 50_000, 5_000, id="the partition's limit"),
        pytest.param(5_000, 5_000, 50_000, id="the response's limit"),
        pytest.param(9_000, 5_000, 50_000, id="less than the response may have"),
        pytest.param(9_000, 50_000, 5_000, id="less than the only partition may have"),
    ],
)
def test_fetch_does_not_wait_behind_its_own_limits(
    client: RawClient, topic: str, min_bytes: int, max_bytes: int, partition_max: int
) -> None:
    """Whole batches fill a limit only nearly; there is more than asked for. The socket's time is that of the test."""
    for _ in range(20):
        produce(client, topic, 0, batch_of(bytes(700)))
    request = fetch_request(topic, 0, 0, max_wait_ms=600_000, min_bytes=min_bytes, max_bytes=max_bytes)
    request.topics[0].partitions[0].partition_max_bytes = partition_max
    part = client.ask(request, 12).responses[0].partitions[0]
    assert 4_000 < len(part.records) <= 5_000


@pytest.mark.parametrize("commit", [True, False])
def test_fetch_of_committed_records_waits_for_the_end_of_the_transaction(
    broker: Broker, client: RawClient, topic: str, commit: bool
) -> None:
    """Appends of the open transaction bring no empty responses."""
    init = client.ask(InitProducerIdRequest(transactional_id=topic, transaction_timeout_ms=60_000), 4)
    who = {"producer_id": init.producer_id, "producer_epoch": init.producer_epoch}

    def send(sequence: int) -> None:
        data = batch_of(b"x" * 100, base_sequence=sequence, transactional=True, **who)
        request = produce_request(topic, 0, data, transactional_id=topic)
        assert client.ask(request, 12).responses[0].partition_responses[0].error_code == 0

    send(0)
    with RawClient(broker.bootstrap_servers) as reader:
        reader.send(fetch_request(topic, 0, 0, max_wait_ms=600_000, isolation_level=1), 12)
        for sequence in range(1, 6):
            send(sequence)
        end = EndTxnRequest(transactional_id=topic, committed=commit, **who)
        assert client.ask(end, 5).error_code == 0
        part = reader.receive().responses[0].partitions[0]
    assert part.last_stable_offset == 7
    assert bytes(part.records).count(b"x" * 100) == 6


def test_fetch_of_committed_records_waits_for_min_bytes(broker: Broker, client: RawClient, topic: str) -> None:
    with RawClient(broker.bootstrap_servers) as reader:
        reader.send(fetch_request(topic, 0, 0, max_wait_ms=600_000, min_bytes=1000, isolation_level=1), 12)
        for _ in range(10):
            produce(client, topic, 0, batch_of(b"y" * 100))
        assert len(reader.receive().responses[0].partitions[0].records) >= 1000


def test_marker_ends_the_wait_of_a_fetch_for_what_is_in_the_log_already(
    broker: Broker, client: RawClient, topic: str
) -> None:
    """The marker has 78 bytes, far fewer than are waited for."""
    init = client.ask(InitProducerIdRequest(transactional_id=topic, transaction_timeout_ms=60_000), 4)
    who = {"producer_id": init.producer_id, "producer_epoch": init.producer_epoch}
    data = batch_of(b"x" * 2_000, base_sequence=0, transactional=True, **who)
    produced = client.ask(produce_request(topic, 0, data, transactional_id=topic), 12)
    assert produced.responses[0].partition_responses[0].error_code == 0
    with RawClient(broker.bootstrap_servers) as reader:
        reader.send(fetch_request(topic, 0, 0, max_wait_ms=600_000, min_bytes=1000, isolation_level=1), 12)
        assert client.ask(EndTxnRequest(transactional_id=topic, committed=True, **who), 5).error_code == 0
        assert len(reader.receive().responses[0].partitions[0].records) >= 2_000


def test_fetch_does_not_wait_at_the_end_of_a_segment(client: RawClient, name: str) -> None:
    create_topic(client, name, segment_bytes="2000")
    for _ in range(10):
        produce(client, name, 0, batch_of(bytes(700)))
    part = client.ask(fetch_request(name, 0, 0, max_wait_ms=600_000, min_bytes=5_000), 12).responses[0].partitions[0]
    assert 0 < len(part.records) <= 2_000


def test_fetch_waits_for_partitions_that_may_still_bring_enough(broker: Broker, client: RawClient, name: str) -> None:
    create_topic(client, name, 2)
    for _ in range(20):
        produce(client, name, 0, batch_of(bytes(700)))
    request = fetch_request(name, 0, 0, max_wait_ms=600_000, min_bytes=7_000)
    request.topics[0].partitions[0].partition_max_bytes = 5_000
    quiet = FetchRequest.FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=5_000)
    request.topics[0].partitions.append(quiet)
    with RawClient(broker.bootstrap_servers) as reader:
        reader.send(request, 12)
        for _ in range(3):
            produce(client, name, 1, batch_of(bytes(700)))
        both = reader.receive().responses[0].partitions
    assert [part.partition_index for part in both if len(part.records)] == [0, 1]


def test_a_deleted_topic_ends_the_wait(broker: Broker, client: RawClient, topic: str) -> None:
    with RawClient(broker.bootstrap_servers) as reader:
        reader.send(fetch_request(topic, 0, 0, max_wait_ms=20_000), 12)
        client.ask(DeleteTopicsRequest(topic_names=[topic]), 5)
        assert reader.receive().responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_out_of_range_and_deleted_records(client: RawClient, topic: str) -> None:
    for _ in range(3):
        produce(client, topic, 0, batch_of(b"x"))
    assert fetch(client, topic, 0, 4).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetch(client, topic, 0, 3, max_wait_ms=0).error_code == 0
    part = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=2)
    asked = DeleteRecordsRequest(topics=[DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[part])])
    assert client.ask(asked).topics[0].partitions[0].low_watermark == 2
    assert fetch(client, topic, 0, 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert end_offset(client, topic, 0, -2) == 2


def test_max_bytes_bounds_the_answer_but_one_batch_always_fits(client: RawClient, name: str) -> None:
    create_topic(client, name, 2)
    for index in range(2):
        for _ in range(20):
            produce(client, name, index, batch_of(b"x" * 10_000))
    parts = [
        FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in range(2)
    ]
    asked = FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=50_000, topics=[FetchRequest.FetchTopic(topic=name, partitions=parts)]
    )
    sizes = [len(part.records) for part in client.ask(asked, 12).responses[0].partitions]
    assert 30_000 < sum(sizes) <= 50_000
    asked.max_bytes = 10
    sizes = [len(part.records) for part in client.ask(asked, 12).responses[0].partitions]
    assert sizes[0] > 10_000
    assert sizes[1] == 0


def test_large_answers_arrive_whole(client: RawClient, topic: str) -> None:
    sent = [batch_of(bytes([index]) * 200_000) for index in range(40)]
    for batch in sent:
        produce(client, topic, 0, batch)
    answer = fetch(client, topic, 0, 0)
    offset, seen = 0, 0
    while offset < 40:
        assert answer.error_code == 0
        data = bytes(answer.records)
        count = len(data) // len(sent[0])
        for index in range(count):
            assert data.count(bytes([offset + index]) * 200_000) == 1
        seen += count
        offset += count
        answer = fetch(client, topic, 0, offset, max_wait_ms=0)
    assert seen == 40


def session_fetch(client: RawClient, session: int, epoch: int, *parts: tuple[Any, int, int], **fields: Any) -> Any:
    topics = [
        FetchRequest.FetchTopic(
            topic_id=topic,
            partitions=[FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)],
        )
        for topic, index, offset in parts
    ]
    values: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **fields}
    return client.ask(FetchRequest(session_id=session, session_epoch=epoch, topics=topics, **values), 17)


def test_an_incremental_session(client: RawClient, name: str) -> None:
    create_topic(client, name, 3)
    topic = topic_id(client, name)
    opened = session_fetch(client, 0, 0, (topic, 0, 0), (topic, 1, 0), (topic, 2, 0))
    session = opened.session_id
    assert session != 0
    assert sum(len(response.partitions) for response in opened.responses) == 3
    assert session_fetch(client, session, 1).responses == []
    produce(client, name, 1, batch_of(b"x"))
    news = session_fetch(client, session, 2)
    assert [part.partition_index for response in news.responses for part in response.partitions] == [1]
    assert session_fetch(client, session, 3, (topic, 1, 1)).responses == []
    produce(client, name, 2, batch_of(b"y"))
    forgotten = [FetchRequest.ForgottenTopic(topic_id=topic, partitions=[2])]
    assert session_fetch(client, session, 4, forgotten_topics_data=forgotten).responses == []
    assert session_fetch(client, session, 9).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    closed = session_fetch(client, session, -1)
    assert (closed.error_code, closed.session_id) == (0, 0)
    assert session_fetch(client, session, 5).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_full_answer_leaves_the_rest_of_its_session_to_the_next(client: RawClient, name: str) -> None:
    """Partitions that did not fit, and what is to be told of them, come first in the fetch after it."""
    create_topic(client, name, 6)
    topic = topic_id(client, name)
    session = session_fetch(client, 0, 0, *((topic, number, 0) for number in range(6))).session_id
    for number in range(5):
        produce(client, name, number, batch_of(b"x" * 400))
    asked = [(topic, 5, 7)]  # beyond its end
    epoch, served, errors = 1, [], []
    while len(served) < 5 and epoch < 20:
        answer = session_fetch(client, session, epoch, *asked, max_bytes=1000)
        parts = [part for response in answer.responses for part in response.partitions]
        brought = [part.partition_index for part in parts if part.records]
        assert 1 <= len(brought) <= 2
        served += brought
        errors += [(part.partition_index, part.error_code) for part in parts if part.error_code]
        asked = [(topic, number, 1) for number in brought]
        epoch += 1
    assert served == [0, 1, 2, 3, 4]
    assert errors[:1] == [(5, ErrorCode.OFFSET_OUT_OF_RANGE)]
    assert epoch == 4


def test_an_unknown_topic_id(client: RawClient, topic: str) -> None:
    import uuid

    answer = session_fetch(client, 0, -1, (uuid.uuid4(), 0, 0))
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(("wanted_s", "until_s"), [(5.0, 5.0), (2**31 / 1000, WAIT_S_MAX)], ids=["seconds", "weeks"])
def test_fetch_waits_for_a_bounded_time(wanted_s: float, until_s: float) -> None:
    """The end of a connection that is full of waiting fetches is noticed when they are answered."""
    loop = asyncio.new_event_loop()
    try:
        purgatory, wait = Purgatory(loop), WaitingFetch([], 1, lambda: None)
        before = loop.time()
        purgatory.add(wait, wanted_s)
        assert wait.timer is not None
        assert before + until_s <= wait.timer.when() <= loop.time() + until_s
    finally:
        loop.close()
