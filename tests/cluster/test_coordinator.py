"""Coordinators over a real Apache Kafka, as processes, and our clients on them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from kohort import Admin, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from tests.cluster.running import CoordinatorProcess
from tests.support.apache_kafka import ApacheKafka
from tests.support.waiting import until

pytestmark = pytest.mark.kafka

QUICK = ("--set", "group.initial.rebalance.delay.ms=0", "--set", "journal.partitions=4")


class Place:
    """A topic, a journal and a placement group of the test's own."""

    def __init__(self, kafka: ApacheKafka) -> None:
        self.kafka = kafka
        name = uuid.uuid4().hex[:8]
        self.topic, self.group = f"flights-{name}", f"group-{name}"
        self.settings = (
            *QUICK, "--set", f"journal.topic=__groups-{name}", "--set", f"placement.group=__coordinators-{name}",
        )  # fmt: skip
        with Admin(kafka.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(self.topic, 4)]).all()

    def start(self, *args: str) -> CoordinatorProcess:
        return CoordinatorProcess(self.kafka.bootstrap_servers, *self.settings, *args)

    def produce(self, count: int) -> None:
        with Producer(self.kafka.bootstrap_servers) as producer:
            for number in range(count):
                producer.send(self.topic, str(number).encode(), partition=number % 4)

    def parts(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, number) for number in range(4)]


@pytest.fixture
def place(apache_kafka: ApacheKafka) -> Place:
    return Place(apache_kafka)


@pytest.fixture
def one(place: Place) -> Iterator[CoordinatorProcess]:
    with place.start() as process:
        yield process


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_reads_and_commits_and_goes_on_where_it_was(
    place: Place, one: CoordinatorProcess, protocol: str
) -> None:
    place.produce(40)
    settings = {"group_id": place.group, "group_protocol": protocol, "auto_offset_reset": "earliest"}
    with Consumer(one.address, **settings) as consumer:
        consumer.subscribe([place.topic])
        seen = 0

        def read() -> bool:
            nonlocal seen
            seen += len(list(consumer.poll(timeout_ms=200)))
            return seen == 40

        until(read, "all records are read", 60)
        consumer.commit()
        assert sum(offset.offset for offset in consumer.committed(place.parts()).values() if offset) == 40
    with Admin(one.address) as admin:
        assert place.group in {group.group_id for group in admin.list_groups()}
        assert admin.describe_consumer_groups([place.group]).result(place.group).state == "Empty"
    with Admin(place.kafka.bootstrap_servers) as admin:
        assert place.group not in {group.group_id for group in admin.list_groups()}
