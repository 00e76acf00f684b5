"""Lag as Apache Kafka's own command shows it, for the same groups: on Apache Kafka and on our broker."""

from __future__ import annotations

import uuid

import pytest

from kohort import Admin, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.lag import LagReader, PartitionLag
from tests.support.apache_kafka import KafkaTools
from tests.support.waiting import until

pytestmark = [pytest.mark.peer, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]
COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
COLUMNS = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID")


def printed(said: str) -> dict[tuple[str, str, str], tuple[str, ...]]:
    """The rows of Kafka's tables by group, topic and partition; each group has its own heading."""
    rows: dict[tuple[str, str, str], tuple[str, ...]] = {}
    columns: list[str] = []
    for line in said.splitlines():
        words = line.split()
        if words[:2] == ["GROUP", "TOPIC"]:
            columns = words
        elif columns and len(words) == len(columns):
            row = dict(zip(columns, words, strict=True))
            rows[row["GROUP"], row["TOPIC"], row["PARTITION"]] = tuple(row[name] for name in COLUMNS[3:])
    return rows


def shown(lag: PartitionLag) -> tuple[str, ...]:
    owner = lag.owner
    values = (lag.committed, lag.log_end, lag.lag, *((owner.member_id, owner.host, owner.client_id) if owner else ()))
    words = ["-" if value is None else str(value) for value in values]
    return tuple(words + ["-"] * (6 - len(words)))


def test_lag_is_what_kafkas_command_prints(servers: str, kafka_tools: KafkaTools) -> None:
    """With a member, without one, without an offset, and for a topic that the group left."""
    topic = f"alike-{uuid.uuid4().hex[:8]}"
    left, alive, stopped = f"{topic}-left", f"{topic}-alive", f"{topic}-stopped"
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Admin(servers) as admin, Producer(servers) as producer, LagReader(servers) as reader:
        admin.create_topics([NewTopic(topic, 2, 1), NewTopic(left, 1, 1)]).all()
        for name in (topic, left):
            for number in range(10):
                producer.send(name, b"%d" % number, partition=0)
        producer.flush()
        admin.alter_consumer_group_offsets(alive, {first: 4, TopicPartition(left, 0): 3}).all()
        admin.alter_consumer_group_offsets(stopped, {first: 7, second: 0}).all()
        with Consumer(servers, group_id=alive, client_id="reader", enable_auto_commit=False) as consumer:
            consumer.subscribe([topic])
            until(lambda: bool(consumer.poll(50) or consumer.assignment()), "the consumer has its partitions", 60)
            args = ("--bootstrap-server", servers, "--describe", "--all-groups")
            theirs = printed(kafka_tools.run(COMMAND, *args, timeout_s=180).stdout)
            report = reader.read()
    ours = {
        (name, lag.partition.topic, str(lag.partition.partition)): shown(lag)
        for name in (alive, stopped)
        for lag in report.groups[name].partitions
    }
    assert len(ours) == 5
    assert ours == {key: row for key, row in theirs.items() if key[0] in (alive, stopped)}
    causes = {lag.partition.topic: lag.cause for lag in report.groups[alive].partitions if lag.lag}
    assert causes == {topic: None, left: "abandoned"}, "which Kafka's command does not say"
