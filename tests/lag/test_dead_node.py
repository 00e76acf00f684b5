"""Lag of a cluster of three real brokers, one of which is dead: on the page and in the reader, and when it is back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.lag.test_exporter import Samples, begin, page
from tests.support.kafka_cluster import KafkaNode, three_nodes
from tests.support.maven import MavenUnavailable
from tests.support.processes import Start
from tests.support.waiting import until

from kohort import Admin, Producer, TopicPartition
from kohort.client.admin.values import NewTopic

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]
GROUPS = [f"g-{number}" for number in range(6)]
PARTITIONS = 6
EVERY = [TopicPartition("t", number) for number in range(PARTITIONS)]
LAG, SUM = "kafka_consumergroup_group_lag", "kafka_consumergroup_group_sum_lag"
STATUS = "kohort_consumergroup_partition_status"


@pytest.fixture
def three() -> Iterator[list[KafkaNode]]:
    try:
        with three_nodes() as nodes:
            yield nodes
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")


def test_dead_broker_leaves_the_lag_of_the_others_and_says_what_is_missing(
    start: Start, three: list[KafkaNode]
) -> None:
    """Kminion #253: no metric at all while one broker stops or starts."""
    servers = ",".join(node.bootstrap_servers for node in three)
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topics([NewTopic("t", PARTITIONS, 1)]).all()
        for partition in EVERY:
            for _ in range(10):
                producer.send("t", b"x", partition=partition.partition)
        producer.flush()
        for group in GROUPS:
            admin.alter_consumer_group_offsets(group, dict.fromkeys(EVERY, 3)).all()
        leaders = {number: part.leader for number, part in admin.describe_topics(["t"]).result("t").partitions.items()}
    dead = {number for number, leader in leaders.items() if leader == 1}
    assert 0 < len(dead) < PARTITIONS
    address = begin(start, "--servers", f"c={servers}")

    def lags(found: Samples, group: str) -> dict[int, float]:
        places = {number: (LAG, ("c", group, "t", str(number), "", "", "")) for number in range(PARTITIONS)}
        return {number: found[place] for number, place in places.items() if place in found}

    def is_whole() -> bool:
        found = page(address)
        return all(lags(found, group) == dict.fromkeys(range(PARTITIONS), 7.0) for group in GROUPS)

    def has_the_others() -> bool:
        found = page(address)
        return found["kohort_exporter_up", ("c",)] == 1 and all(
            lags(found, group) == dict.fromkeys(set(range(PARTITIONS)) - dead, 7.0)
            and found[SUM, ("c", group)] == 7 * (PARTITIONS - len(dead))
            and found["kohort_consumergroup_status", ("c", group)] == 4
            and all(found[STATUS, ("c", group, "t", str(number), "unavailable")] == 4 for number in dead)
            for group in GROUPS
        )

    until(is_whole, "all is read", 120)
    three[0].kill()
    until(has_the_others, "the others' partitions are read, of every group, and the rest is said to be missing", 120)
    three[0].start()
    until(is_whole, "all is read again", 180)
