"""A broker whose clients send bombs and damaged batches goes on serving the others, and its readers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kohort import Broker, Consumer
from kohort.errors import ErrorCode
from kohort.ids import TopicPartition
from kohort.log import BATCHES_MAX, LoopBudget, TooMuchForLoopError
from kohort.wire.batch import BatchRecord, build_batch
from kohort.wire.compression import CODECS
from kohort.wire.data import ListOffsetsRequest, ProduceRequest
from kohort.wire.discovery import MetadataRequest
from tests.broker.raw import RawClient, create_topic, fetch, produce, produce_request
from tests.support.hostile_batches import BASE_MS, HOSTILE, bomb, hostile_batch, record

BOMBS = 10
BOMB_BYTES = 60 << 20
"""Below 128 times `max.message.bytes`; as zstd it takes about 2 KB."""
LARGE_BYTES = 1_500_000


@pytest.fixture
def other(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers, "other") as client:
        yield client


def bombs(topic: str) -> ProduceRequest:
    return produce_request(topic, 0, bomb("zstd", BOMB_BYTES, key=b"k"))


def served_between(attacker: RawClient, count: int, other: RawClient) -> int:
    """How many requests of another client are answered before the last of the attacker's."""
    served = 0
    attacker.sock.setblocking(False)
    received = bytearray()
    try:
        while frames(received) < count:
            other.ask(MetadataRequest(topics=[]))
            served += 1
            try:
                received += attacker.sock.recv(1 << 20)
            except BlockingIOError:
                continue
    finally:
        attacker.sock.setblocking(True)
    return served


def frames(received: bytearray) -> int:
    at = count = 0
    while at + 4 <= len(received):
        at += 4 + int.from_bytes(received[at : at + 4], "big")
        count += at <= len(received)
    return count


@pytest.mark.timeout(300)
def test_bombs_into_a_compacted_topic_do_not_stop_other_clients(client: RawClient, other: RawClient, name: str) -> None:
    create_topic(client, name, cleanup_policy="compact")
    request = bombs(name)
    for _ in range(BOMBS):
        client.send(request, 11)
    assert served_between(client, BOMBS, other) > 2 * BOMBS


@pytest.mark.timeout(300)
def test_searches_by_time_in_a_bomb_do_not_stop_other_clients(client: RawClient, other: RawClient, topic: str) -> None:
    assert client.ask(bombs(topic), 11).responses[0].partition_responses[0].error_code == 0
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=BASE_MS)
    asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])
    request = ListOffsetsRequest(replica_id=-1, topics=[asked])
    assert client.ask(request, 7).topics[0].partitions[0].offset == 0
    for _ in range(BOMBS):
        client.send(request, 7)
    assert served_between(client, BOMBS, other) > 2 * BOMBS


def test_many_bombs_in_one_request_are_answered_in_its_order(client: RawClient, name: str) -> None:
    create_topic(client, name, 8)
    small = bomb("zstd", 20 << 20)
    parts = [
        ProduceRequest.PartitionProduceData(index=index, records=HOSTILE["codec 7"] if index == 3 else small)
        for index in range(8)
    ]
    data = [ProduceRequest.TopicProduceData(name=name, partition_data=parts)]
    answer = client.ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data), 11)
    found = [(part.index, part.error_code, part.base_offset) for part in answer.responses[0].partition_responses]
    refused = (3, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, -1)
    assert found == [refused if index == 3 else (index, 0, 0) for index in range(8)]


def test_a_request_has_a_bounded_number_of_batches_for_a_partition(client: RawClient, topic: str) -> None:
    """A request of the largest size would hold the event loop for seconds: it has room for a million of them."""
    single = hostile_batch(record(0))
    refused = produce(client, topic, 0, single * (BATCHES_MAX + 1))
    assert (refused.error_code, refused.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert produce(client, topic, 0, single * BATCHES_MAX).base_offset == 0
    assert produce(client, topic, 0, single).base_offset == BATCHES_MAX


def test_many_small_batches_are_checked_by_a_thread() -> None:
    budget, size, count = LoopBudget(), len(hostile_batch(record(0))), 0
    with contextlib.suppress(TooMuchForLoopError):
        while count < 100_000:
            budget.decompressed_bytes_max(size, 0)
            count += 1
    assert 1_000 < count < 10_000


def test_hostile_batches_leave_a_partition_readable(client: RawClient, broker: Broker, topic: str) -> None:
    for records in HOSTILE.values():
        produce(client, topic, 0, records)
    good = build_batch([BatchRecord(0, BASE_MS, b"k", b"the end")])
    end = produce(client, topic, 0, good).base_offset + 1
    with Consumer(broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        values: list[Any] = []
        while not values or values[-1] != b"the end":
            values += [found.value for found in consumer.poll(1_000)]
    assert len(values) == end


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "none"])
def test_large_good_batches_are_stored_as_they_came(client: RawClient, topic: str, codec: str) -> None:
    """Too large for the loop: a worker thread checks them."""
    value = json.dumps([{"number": number, "text": f"text {number % 97}"} for number in range(11_000)]).encode()
    batch = build_batch([BatchRecord(0, BASE_MS, None, value) for _ in range(4)], compression=codec)
    assert len(value) * 4 > LARGE_BYTES > len(batch)
    assert produce(client, topic, 0, batch).base_offset == 0
    assert bytes(fetch(client, topic, 0, 0).records)[16:] == batch[16:]


def test_ratio_is_a_setting_of_the_broker(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", {"max.decompressed.batch.ratio": 2}) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            create_topic(client, "t")
            assert produce(client, "t", 0, bomb("gzip", 2_000_000)).error_code == 0
            refused = produce(client, "t", 0, bomb("gzip", 2_200_000))
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "max.decompressed.batch.ratio (2)" in refused.error_message
