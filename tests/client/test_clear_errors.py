"""Errors of a consumer that cannot read on, against real brokers: poisoned records, missing rights, absent topics."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from kohort import Admin, Broker, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.client.consumer.range_reader import RangeReader
from kohort.errors import CorruptDataError, ErrorCode, NotAuthorizedError, TimedOutError
from tests.support.apache_kafka import ApacheKafka
from tests.support.secured_kafka import SecuredKafka

_POISONED = 5
_COUNT = 10


@pytest.fixture(params=["own", pytest.param("apache", marks=pytest.mark.kafka)])
def poisoned(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, TopicPartition]:
    """A partition of ten records, each a batch, one of which was damaged on the broker's disk."""
    topic = f"poisoned-{uuid.uuid4().hex[:8]}"
    if request.param == "own":
        broker = request.getfixturevalue("kohort_broker_factory")(data_dir=tmp_path / "data")
        servers, data = broker.bootstrap_servers, tmp_path / "data"
    else:
        kafka: ApacheKafka = request.getfixturevalue("apache_kafka")
        servers, data = kafka.bootstrap_servers, kafka.log_dir
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, 1)]).all()
    with Producer(servers) as producer:
        for number in range(_COUNT):
            producer.send(topic, f"value-{number}")
            producer.flush(timeout_ms=30_000)
    (segment,) = data.rglob(f"{topic}-0/*.log")
    with segment.open("r+b") as file:
        file.seek(segment.read_bytes().index(f"value-{_POISONED}".encode()))
        file.write(b"X")
    return servers, TopicPartition(topic, 0)


def test_a_poisoned_record_is_named_with_the_way_past_it(poisoned: tuple[str, TopicPartition]) -> None:
    servers, part = poisoned
    with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([part])
        assert _read(consumer, _POISONED) == list(range(_POISONED))
        for _ in range(2):
            with pytest.raises(CorruptDataError) as caught:
                consumer.poll(10_000)
            assert f"{part}: the batch at offset {_POISONED} can't be read" in str(caught.value)
            assert f"seek to {_POISONED + 1} to step over it" in str(caught.value)
            assert consumer.position(part) == _POISONED
        consumer.seek(part, _POISONED + 1)
        assert _read(consumer, _COUNT - _POISONED - 1) == list(range(_POISONED + 1, _COUNT))


def test_a_range_with_a_poisoned_record_gives_what_is_before_it(poisoned: tuple[str, TopicPartition]) -> None:
    servers, part = poisoned
    seen: list[int] = []
    with RangeReader(servers, columns=["offset"]) as reader:
        with pytest.raises(CorruptDataError, match=f"seek to {_POISONED + 1} to step over it"):
            seen.extend(batch.num_rows for batch in reader.read(part, 0, _COUNT))
        assert sum(seen) == _POISONED
        assert sum(batch.num_rows for batch in reader.read(part, _POISONED + 1, _COUNT)) == _COUNT - _POISONED - 1


@pytest.mark.kafka
def test_rights_that_are_missing_are_named(secured: SecuredKafka) -> None:
    topic = f"theirs-{uuid.uuid4().hex[:8]}"
    with Admin(secured.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 1)]).all()
    servers, chosen = secured.client("SASL", sasl_mechanism="PLAIN", sasl_username="bob", sasl_password="secret")
    with Consumer(servers, auto_offset_reset="earliest", **chosen) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(NotAuthorizedError, match=topic) as caught:
            consumer.poll(30_000)
        assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with Consumer(servers, group_id="their-group", **chosen) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(NotAuthorizedError, match="their-group") as caught:
            consumer.poll(30_000)
        assert caught.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_a_topic_that_is_not_there_is_named(kohort_broker_factory: Callable[..., Broker]) -> None:
    broker = kohort_broker_factory({"auto.create.topics.enable": "false"})
    with Consumer(broker.bootstrap_servers, default_api_timeout_ms=4000) as consumer:
        assert consumer.partitions_for_topic("nowhere") == set()
        with pytest.raises(TimedOutError, match="nowhere-0") as caught:
            consumer.end_offsets([TopicPartition("nowhere", 0)])
        assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name in str(caught.value)


def _read(consumer: Consumer, count: int) -> list[int]:
    seen: list[int] = []
    deadline = time.monotonic() + 60
    while len(seen) < count and time.monotonic() < deadline:
        seen += [record.offset for record in consumer.poll(500)]
    return seen
