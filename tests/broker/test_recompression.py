"""Topics with a `compression.type` of their own: batches are compressed anew, in order, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kohort import Broker, Producer
from kohort.errors import ErrorCode
from kohort.wire.batch import BatchRecord, build_batch, iter_headers
from kohort.wire.data import FetchRequest, ProduceRequest
from kohort.wire.discovery import CreateTopicsRequest
from kohort.wire.records import read_records
from tests.broker.raw import RawClient
from tests.support.hostile_batches import bomb

AT = 1_700_000_000_000
ZSTD = 4


@pytest.fixture
def client() -> Iterator[RawClient]:
    """A connection to a broker whose topic `packed` wants zstd, and `plain` what comes."""
    with Broker() as broker, RawClient(broker.bootstrap_servers) as connected:
        topic, config = CreateTopicsRequest.CreatableTopic, CreateTopicsRequest.CreatableTopicConfig
        wanted = {"packed": {"compression.type": "zstd", "max.message.bytes": "250000"}, "plain": {}}
        topics = [
            topic(
                name=name,
                num_partitions=2,
                replication_factor=1,
                configs=[config(name=key, value=value) for key, value in configs.items()],
            )
            for name, configs in wanted.items()
        ]
        assert not any(made.error_code for made in connected.ask(CreateTopicsRequest(topics=topics), 7).topics)
        yield connected


def batch(value: bytes, count: int = 1, **facts: Any) -> bytes:
    return build_batch([BatchRecord(0, AT + n, b"k", value, [("h", b"1")]) for n in range(count)], **facts)


def producing(topic: str, *parts: tuple[int, bytes], **fields: Any) -> ProduceRequest:
    data = [ProduceRequest.PartitionProduceData(index=index, records=records) for index, records in parts]
    named = [ProduceRequest.TopicProduceData(name=topic, partition_data=data)]
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=named, **fields)


def errors(answer: Any) -> list[tuple[int, int]]:
    """Error and base offset of each partition, in the answer's order."""
    return [(part.error_code, part.base_offset) for topic in answer.responses for part in topic.partition_responses]


def fetched(client: RawClient, topic: str, partition: int = 0) -> bytes:
    part = FetchRequest.FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
    asked = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[FetchRequest.FetchTopic(topic=topic, partitions=[part])]
    )
    return bytes(client.ask(asked, 12).responses[0].partitions[0].records)


def test_batches_are_small_on_the_disk_and_their_records_the_same(client: RawClient) -> None:
    sent = batch(b"x" * 100_000, 2, producer_id=5, producer_epoch=0, base_sequence=0)
    assert errors(client.ask(producing("packed", (0, sent)), 9)) == [(0, 0)]
    found = fetched(client, "packed")
    assert len(found) < 300 < len(sent)
    ((_, header),) = iter_headers(found)
    assert (header.compression, header.producer_id, header.base_sequence) == (ZSTD, 5, 0)
    assert read_records(found) == read_records(sent)
    assert errors(client.ask(producing("packed", (0, sent)), 9)) == [(0, 0)], "a repetition is known as one"
    assert fetched(client, "packed") == found


def test_topic_without_a_codec_keeps_batches_as_they_come(client: RawClient) -> None:
    sent = batch(b"x" * 1000, compression="gzip")
    client.ask(producing("plain", (0, sent)), 9)
    assert fetched(client, "plain")[21:] == sent[21:]


def test_requests_that_are_on_their_way_at_once_keep_their_order(client: RawClient) -> None:
    """Large and small batches, some as wanted already: a thread is done with the small ones first."""
    who = {"producer_id": 6, "producer_epoch": 0}
    sizes = [200_000 if number % 3 == 0 else 10 for number in range(30)]
    for number, size in enumerate(sizes):
        codec = "zstd" if number % 5 == 4 else "none"
        sent = batch(b"%d" % (number % 10) * size, base_sequence=number, compression=codec, **who)
        client.send(producing("packed", (0, sent), (1, batch(b"b"))), 9)
    answers = [errors(client.receive()) for _ in sizes]
    assert answers == [[(0, number), (0, number)] for number in range(len(sizes))]
    lengths = [len(record.value or b"") for record in every_record(fetched(client, "packed"))]
    assert lengths == sizes


def every_record(batches: bytes) -> list[BatchRecord]:
    return [record for at, _ in iter_headers(batches) for record in read_records(batches[at:])]


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (batch(b"x" * 251_000), ErrorCode.MESSAGE_TOO_LARGE),
        (batch(b"x")[:-1] + b"!", ErrorCode.CORRUPT_MESSAGE),
        (batch(b"x", control=True), ErrorCode.INVALID_RECORD),
    ],
    ids=["too large before it is compressed", "checksum", "control"],
)
def test_batches_that_a_topic_refuses_are_refused_before_they_are_compressed(
    client: RawClient, sent: bytes, error: ErrorCode
) -> None:
    answer = client.ask(producing("packed", (0, sent), (1, batch(b"good"))), 9)
    assert errors(answer) == [(error, -1), (0, 0)]


def test_batches_that_are_too_large_in_the_topic_s_codec_are_refused(client: RawClient) -> None:
    """Two kilobytes of zstd would otherwise write 60 MiB, and a request of many of them without end."""
    setting = CreateTopicsRequest.CreatableTopicConfig(name="compression.type", value="uncompressed")
    topic = CreateTopicsRequest.CreatableTopic(name="bare", num_partitions=1, replication_factor=1, configs=[setting])
    client.ask(CreateTopicsRequest(topics=[topic]), 7)
    large, small = bomb("zstd", 60 << 20), bomb("zstd", 900_000)
    assert errors(client.ask(producing("bare", (0, large)), 9)) == [(ErrorCode.MESSAGE_TOO_LARGE, -1)]
    assert errors(client.ask(producing("bare", (0, small * 100)), 9)) == [(ErrorCode.MESSAGE_TOO_LARGE, -1)]
    assert errors(client.ask(producing("bare", (0, small)), 9)) == [(0, 0)], "nothing of the others was written"


def test_transactional_batches_stay_transactional() -> None:
    with Broker(config={"compression.type": "lz4"}) as broker:
        with Producer(broker.bootstrap_servers, transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("made", value="v" * 1000)
            producer.commit_transaction()
        with RawClient(broker.bootstrap_servers) as reader:
            first, marker = (header for _, header in iter_headers(fetched(reader, "made")))
    assert (first.compression, first.is_transactional, marker.is_control) == (3, True, True)
