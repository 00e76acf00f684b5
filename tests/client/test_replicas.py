"""Replicas of a real Apache Kafka: the consumer reads from a near one and notices a truncated log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from kohort import Admin, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.client.consumer.range_reader import RangeReader
from kohort.client.offsets import OffsetAndMetadata
from tests.support.apache_kafka import SOON_BACK, ApacheKafka
from tests.support.kafka_cluster import KafkaNode, three_nodes
from tests.support.maven import MavenUnavailable

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(400)]
PART = TopicPartition("replicated", 0)


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[KafkaNode]]:
    """Three brokers in racks of their own that let consumers read from the nearest replica."""
    try:
        with three_nodes() as nodes:
            yield nodes
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")


@pytest.fixture
def racks(nodes: list[KafkaNode]) -> str:
    return ",".join(node.bootstrap_servers for node in nodes)


def test_the_replica_in_the_consumers_rack_is_read_from(racks: str) -> None:
    with Admin(racks) as admin:
        admin.create_topics([NewTopic(PART.topic, 1, 3)]).all()
    _write(racks, 100)
    for rack in range(3):
        with Consumer(racks, auto_offset_reset="earliest", client_rack=f"rack-{rack}") as consumer:
            consumer.assign([PART])
            assert _read(consumer, 100) == list(range(100))
            state, metadata = consumer._core.partitions.state_of(PART), consumer._core.cluster.metadata
            read_from = metadata.leader(PART) if state.replica is None else state.replica
            assert metadata.brokers[read_from].rack == f"rack-{rack}"


def test_ranges_are_read_from_the_replica_in_the_readers_rack(nodes: list[KafkaNode], racks: str) -> None:
    """SPARK-46798, sarama #2076: a leader that names a nearer replica sends no records, however often it is asked."""
    place = TopicPartition("near", 0)
    with Admin(racks) as admin:
        admin.create_topics([NewTopic(place.topic, 1, 3)]).all()
    _write(racks, 100, place.topic)
    chosen: Any = {"columns": ("offset",), "default_api_timeout_ms": 30_000}
    for rack in range(3):
        with RangeReader(racks, client_rack=f"rack-{rack}", **chosen) as reader:
            assert _range(reader, 0, 100, place) == list(range(100))
            metadata = reader._client.cluster.metadata
            leader = metadata.leader(place)
            node, _ = reader._nearer.get(place, (leader, 0.0))
            assert metadata.brokers[node].rack == f"rack-{rack}"
    other = next(node for node in nodes if node.number + 1 != leader)
    with RangeReader(racks, client_rack=f"rack-{other.number}", **chosen) as reader:
        assert _range(reader, 0, 50, place) == list(range(50))
        other.kill()
        try:
            assert _range(reader, 50, 100, place) == list(range(50, 100)), "the leader has them too"
        finally:
            other.start()
            other.wait()


def test_offsets_and_ranges_are_found_where_the_leader_has_died(nodes: list[KafkaNode], racks: str) -> None:
    """From apache/kafka #7660, librdkafka #2363: nothing but the failed request tells that another broker leads."""
    place = TopicPartition("moved", 0)
    with Admin(racks) as admin:
        admin.create_topics([NewTopic(place.topic, 1, 3)]).all()
    _write(racks, 100, place.topic)
    chosen: Any = {"default_api_timeout_ms": 40_000}
    with (
        RangeReader(racks, columns=("offset",), **chosen) as reader,
        RangeReader(racks, **chosen) as catalog,
        Consumer(racks, **chosen) as consumer,
    ):
        assert _range(reader, 0, 50, place) == list(range(50))
        assert catalog.current_offsets({place: "latest"})[place].offset == 100
        assert consumer.end_offsets([place]) == {place: 100}
        leader = nodes[reader._client.cluster.metadata.leader(place) - 1]
        leader.kill()
        try:
            assert _range(reader, 50, 100, place) == list(range(50, 100))
            assert catalog.current_offsets({place: "latest"})[place].offset == 100
            assert consumer.end_offsets([place]) == {place: 100}
        finally:
            leader.start()
            leader.wait()


def test_a_position_of_a_leader_whose_records_were_cut_off_goes_back_to_where_histories_agree(
    caplog: pytest.LogCaptureFixture,
) -> None:
    try:
        kafka = ApacheKafka(SOON_BACK)
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")
    with kafka:
        servers = kafka.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topics([NewTopic(PART.topic, 1)]).all()
        _write(servers, 50)
        with Consumer(servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([PART])
            assert _read(consumer, 50)[-1] == 49
            first = _epoch(consumer)
        kafka.kill()
        kafka.start()
        _write(servers, 50)
        with Consumer(servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([PART])
            assert _read(consumer, 100)[-1] == 99
            assert _epoch(consumer) > first
            consumer.seek(PART, OffsetAndMetadata(80, "", first))
            assert _read(consumer, 50) == list(range(50, 100))
        assert "the leader's history ends at 50" in caplog.text


def _write(servers: str, count: int, topic: str = PART.topic) -> None:
    with Producer(servers, acks="all") as producer:
        for number in range(count):
            producer.send(topic, str(number))
        producer.flush(timeout_ms=100_000)


def _read(consumer: Consumer, count: int) -> list[int]:
    seen: list[int] = []
    deadline = time.monotonic() + 100
    while len(seen) < count and time.monotonic() < deadline:
        seen += [record.offset for record in consumer.poll(500, max_records=count - len(seen))]
    return seen


def _range(reader: RangeReader, start: int, end: int, place: TopicPartition) -> list[int]:
    return [offset for batch in reader.read(place, start, end) for offset in batch.column("offset").to_pylist()]


def _epoch(consumer: Consumer) -> int:
    position = consumer._core.partitions.state_of(PART).position
    assert position is not None
    return position.leader_epoch
