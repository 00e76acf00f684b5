"""Groups that Kafka's own coordinator has kept move to ours, with real clients on a real Kafka."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

import pytest

from kohort import Admin, Consumer, KafkaError, NewTopic, Producer, TopicPartition
from kohort.errors import ErrorCode, InvalidInputError
from tests.cluster.running import CoordinatorProcess
from tests.support.apache_kafka import ApacheKafka

pytestmark = pytest.mark.kafka
WAIT_MS = 60_000
RECORDS = 20


def own_place() -> list[str]:
    """A journal and a group of coordinators of a test's own, as settings."""
    name = uuid.uuid4().hex[:8]
    settings = {
        "journal.topic": f"__kohort_{name}",
        "placement.group": f"coordinators-{name}",
        "journal.partitions": "2",
        "journal.replication.factor": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture
def coordinator(apache_kafka: ApacheKafka) -> Iterator[CoordinatorProcess]:
    """A coordinator over the whole run's Kafka."""
    with CoordinatorProcess(apache_kafka.bootstrap_servers, *own_place()) as process:
        yield process


@pytest.fixture
def topic(apache_kafka: ApacheKafka) -> str:
    """A topic with records in it."""
    name = f"moved-{uuid.uuid4().hex[:8]}"
    with Admin(apache_kafka.bootstrap_servers) as admin, Producer(apache_kafka.bootstrap_servers) as producer:
        admin.create_topics([NewTopic(name, 1)]).all()
        for number in range(RECORDS):
            producer.send(name, str(number).encode())
        producer.flush()
    return name


def read(servers: str, group: str, topic: str, count: int, protocol: str = "classic") -> list[int]:
    """The next records of a group, which are committed."""
    found: list[int] = []
    with Consumer(
        servers,
        group_id=group,
        group_protocol=protocol,
        auto_offset_reset="latest",  # what starts anew sees nothing, and the test does not end
        max_poll_records=count,
        enable_auto_commit=False,
    ) as consumer:
        consumer.subscribe([topic])
        while len(found) < count:
            found += [int(record.value or b"") for record in consumer.poll(timeout_ms=WAIT_MS)]
        consumer.commit()
    return found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_continues_where_it_was(
    apache_kafka: ApacheKafka, coordinator: CoordinatorProcess, topic: str, protocol: str
) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    kafka = apache_kafka.bootstrap_servers
    with Admin(kafka) as admin:
        admin.alter_consumer_group_offsets(group, {TopicPartition(topic, 0): 0}).all()
    assert read(kafka, group, topic, 5, protocol) == [0, 1, 2, 3, 4]
    assert read(coordinator.address, group, topic, 5, protocol) == [5, 6, 7, 8, 9]
    with Admin(kafka) as there, Admin(coordinator.address) as here:
        at = TopicPartition(topic, 0)
        assert there.list_consumer_group_offsets(group).result(at).offset == 5
        assert here.list_consumer_group_offsets(group).result(at).offset == 10
    assert "imported with 1 offsets" in coordinator.log


def test_a_group_with_members_at_kafka_is_refused_until_they_leave(
    apache_kafka: ApacheKafka, coordinator: CoordinatorProcess, topic: str
) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    kafka = apache_kafka.bootstrap_servers
    with Consumer(kafka, group_id=group, auto_offset_reset="earliest", max_poll_records=3) as old:
        old.subscribe([topic])
        seen: list[int] = []
        while not seen:
            seen = [int(record.value or b"") for record in old.poll(timeout_ms=WAIT_MS)]
        old.commit()
        with Consumer(coordinator.address, group_id=group) as new:
            new.subscribe([topic])
            with pytest.raises(KafkaError) as refused:
                new.poll(timeout_ms=WAIT_MS)
            assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
        with Admin(coordinator.address) as admin:
            assert group not in {listed.group_id for listed in admin.list_groups()}
    assert "at Kafka's own coordinator" in coordinator.log
    left = len(seen)
    found: list[int] = []
    while not found:  # for a moment it still counts that there were members
        with contextlib.suppress(InvalidInputError):
            found = read(coordinator.address, group, topic, 3)
    assert found == [left, left + 1, left + 2]


def test_a_group_that_was_deleted_here_stays_deleted(
    apache_kafka: ApacheKafka, coordinator: CoordinatorProcess, topic: str
) -> None:
    group, at = f"g-{uuid.uuid4().hex[:8]}", TopicPartition(topic, 0)
    with Admin(apache_kafka.bootstrap_servers) as there, Admin(coordinator.address) as here:
        there.alter_consumer_group_offsets(group, {at: 7}).all()
        assert here.list_consumer_group_offsets(group).result(at).offset == 7
        here.delete_consumer_groups([group]).all()
        assert here.list_consumer_group_offsets(group).values == {}
        assert there.list_consumer_group_offsets(group).result(at).offset == 7


def test_a_topic_that_is_made_again_has_no_offsets_of_the_earlier_one(
    apache_kafka: ApacheKafka, coordinator: CoordinatorProcess, topic: str
) -> None:
    group, at = f"g-{uuid.uuid4().hex[:8]}", TopicPartition(topic, 0)
    with Admin(apache_kafka.bootstrap_servers) as there, Admin(coordinator.address) as here:
        here.alter_consumer_group_offsets(group, {at: 7}).all()
        assert here.list_consumer_group_offsets(group).result(at).offset == 7
        there.delete_topics([topic]).all()
        there.create_topics([NewTopic(topic, 1)]).all()
        while here.list_consumer_group_offsets(group).values:
            pass
        here.alter_consumer_group_offsets(group, {at: 1}).all()
        assert here.list_consumer_group_offsets(group).result(at).offset == 1


def test_a_topic_that_is_made_again_while_no_coordinator_runs_has_no_offsets_either(apache_kafka: ApacheKafka) -> None:
    first, again, kept = (f"{what}-{uuid.uuid4().hex[:8]}" for what in ("first", "again", "kept"))
    group, settings = f"g-{uuid.uuid4().hex[:8]}", own_place()
    at = {name: TopicPartition(name, 0) for name in (first, again, kept)}
    with Admin(apache_kafka.bootstrap_servers) as there:
        there.create_topics([NewTopic(name, 1) for name in at]).all()
        with CoordinatorProcess(apache_kafka.bootstrap_servers, *settings) as process:
            with Admin(process.address) as here:
                here.alter_consumer_group_offsets(group, dict.fromkeys(at.values(), 7)).all()
            process.kill()
        there.delete_topics([first, again]).all()
        there.create_topics([NewTopic(again, 1)]).all()
        with CoordinatorProcess(apache_kafka.bootstrap_servers, *settings) as process, Admin(process.address) as here:
            found = here.list_consumer_group_offsets(group)
            while found.errors or found.values.keys() != {at[kept]}:  # an earlier topic's is held back, then it goes
                assert again not in {value.topic for value in found.values}
                found = here.list_consumer_group_offsets(group)
            assert found.result(at[kept]).offset == 7
