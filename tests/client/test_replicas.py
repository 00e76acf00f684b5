"""Replicas of a real Apache Kafka: the consumer reads from a near one and notices a truncated log."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kohort import Admin, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.client.offsets import OffsetAndMetadata
from tests.support.apache_kafka import SOON_BACK, ApacheKafka
from tests.support.kafka_cluster import three_nodes
from tests.support.maven import MavenUnavailable

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(400)]
PART = TopicPartition("replicated", 0)


@pytest.fixture
def racks() -> Iterator[str]:
    """Three brokers in racks of their own that let consumers read from the nearest replica."""
    try:
        with three_nodes() as nodes:
            yield ",".join(node.bootstrap_servers for node in nodes)
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")


def test_the_replica_in_the_consumers_rack_is_read_from(racks: str) -> None:
    with Admin(racks) as admin:
        admin.create_topics([NewTopic(PART.topic, 1, 3)]).all()
    _write(racks, 100)
    for rack in range(3):
        with Consumer(racks, auto_offset_reset="earliest", client_rack=f"rack-{rack}") as consumer:
            consumer.assign([PART])
            assert _read(consumer, 100) == list(range(100))
            state, metadata = consumer._core.partitions.of(PART), consumer._core.cluster.metadata
            read_from = metadata.leader(PART) if state.replica is None else state.replica
            assert metadata.brokers[read_from].rack == f"rack-{rack}"


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


def _write(servers: str, count: int) -> None:
    with Producer(servers, acks="all") as producer:
        for number in range(count):
            producer.send(PART.topic, str(number))
        producer.flush(timeout_ms=100_000)


def _read(consumer: Consumer, count: int) -> list[int]:
    seen: list[int] = []
    deadline = time.monotonic() + 100
    while len(seen) < count and time.monotonic() < deadline:
        seen += [record.offset for record in consumer.poll(500, max_records=count - len(seen))]
    return seen


def _epoch(consumer: Consumer) -> int:
    position = consumer._core.partitions.of(PART).position
    assert position is not None
    return position.leader_epoch
