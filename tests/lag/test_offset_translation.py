"""`kohort groups clone --to`: a group goes on in a copy of its topics, skips nothing and repeats little."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kohort import Admin, Broker, Consumer, KafkaError, Producer, TopicPartition
from kohort.cli.app import run
from kohort.client.admin.values import NewTopic
from kohort.client.offsets import OffsetAndMetadata
from kohort.lag.evaluation import PartitionLag
from kohort.lag.offset_translation import next_record_timestamp_ms

START_MS = 1_750_000_000_000


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    config = {"log.retention.ms": -1, "group.initial.rebalance.delay.ms": 0}
    with Broker(config=config) as here, Broker(config=config) as there:
        yield here, there


def write(broker: Broker, topic: str, records: dict[int, int]) -> None:
    """Writes values with the times of their records, each in a batch of its own."""
    with Producer(broker.bootstrap_servers) as producer:
        for value, at_ms in records.items():
            producer.send(topic, b"%d" % value, partition=0, timestamp_ms=START_MS + at_ms)
            producer.flush()


def prepare(brokers: tuple[Broker, Broker], topic: str, records: dict[int, int], copied: int, before: int) -> None:
    """Makes the topic in both clusters; the copy has `before` older records first, and the first `copied` ones."""
    for broker in brokers:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(topic, 1, 1)]).all()
    write(brokers[0], topic, records)
    write(brokers[1], topic, {-1 - number: -1_000_000 - number for number in range(before)})
    write(brokers[1], topic, dict(list(records.items())[:copied]))


def commit(broker: Broker, group: str, topic: str, offset: int) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        offsets = {TopicPartition(topic, 0): OffsetAndMetadata(offset)}
        admin.alter_consumer_group_offsets(group, offsets).all()


def clone(brokers: tuple[Broker, Broker], group: str, *more: str) -> int:
    here, there = brokers
    servers = ("--bootstrap-server", here.bootstrap_servers, "--to", there.bootstrap_servers)
    return run(["groups", "clone", group, group, *servers, "--json", *more])


def values_from(broker: Broker, group: str, topic: str, until: int) -> list[int]:
    """The values that a member of the group reads in a cluster, up to one of them."""
    found: list[int] = []
    with Consumer(broker.bootstrap_servers, group_id=group, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        while until not in found:
            found += [int(record.value) for record in consumer.poll(200)]
    return found


STEADY = {number: 1_000 * number for number in range(10)}
EQUAL = {number: 1_000 * (number // 4) for number in range(10)}
DISORDERED = {0: 0, 1: 5_000, 2: 1_000, 3: 6_000, 4: 2_000, 5: 7_000, 6: 3_000, 7: 8_000, 8: 4_000, 9: 9_000}


@pytest.mark.parametrize(
    ("name", "records", "committed", "copied", "repeats"),
    [
        ("steady", STEADY, 4, 10, 0),
        ("equal-times", EQUAL, 6, 10, 2),
        ("disordered", DISORDERED, 6, 10, 5),
        ("all-read", STEADY, 10, 10, 1),
        ("late-copy", STEADY, 7, 5, 2),
        ("nothing-read", STEADY, 0, 10, 0),
    ],
)
def test_group_skips_no_record_in_the_copy(
    brokers: tuple[Broker, Broker],
    capsys: pytest.CaptureFixture[str],
    name: str,
    records: dict[int, int],
    committed: int,
    copied: int,
    repeats: int,
) -> None:
    topic = group = f"translated-{name}"
    prepare(brokers, topic, records, copied, before=3)
    commit(brokers[0], group, topic, committed)
    assert clone(brokers, group, "--execute") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["source_committed"], row["done"]) == (committed, True)
    write(brokers[1], topic, dict(list(records.items())[copied:]) | {10: 100_000})
    found = values_from(brokers[1], group, topic, 10)
    assert set(range(committed, 11)) <= set(found), "nothing is skipped"
    assert min(found) >= 0, "older records of the copy are not read"
    assert len(found) - len(range(committed, 11)) == repeats


def test_preview_changes_nothing(brokers: tuple[Broker, Broker], capsys: pytest.CaptureFixture[str]) -> None:
    topic = group = "translated-preview"
    prepare(brokers, topic, STEADY, 10, before=3)
    commit(brokers[0], group, topic, 4)
    assert clone(brokers, group) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["committed"], row["source_committed"], row["new"]) == (None, 4, 7)
    assert row["record_time"].startswith("2025-06-15")
    with Admin(brokers[1].bootstrap_servers) as admin:
        assert group not in {listed.group_id for listed in admin.list_groups()}


def test_partition_without_records_begins_at_the_copys_end(
    brokers: tuple[Broker, Broker], capsys: pytest.CaptureFixture[str]
) -> None:
    topic = group = "translated-empty"
    prepare(brokers, topic, {}, 0, before=3)
    commit(brokers[0], group, topic, 0)
    assert clone(brokers, group, "--execute") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["record_time"], row["new"]) == (None, 3)


def test_topic_that_the_other_cluster_lacks_is_an_error_and_others_are_set(
    brokers: tuple[Broker, Broker], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    group = "translated-partly"
    prepare(brokers, group, STEADY, 10, before=0)
    with Admin(brokers[0].bootstrap_servers) as admin:
        admin.create_topics([NewTopic("only-here", 1, 1)]).all()
    write(brokers[0], "only-here", {0: 0})
    commit(brokers[0], group, group, 4)
    commit(brokers[0], group, "only-here", 0)
    assert clone(brokers, group, "--execute") == 1
    said = capsys.readouterr()
    assert [(row["topic"], row["new"]) for row in json.loads(said.out)] == [(group, 4)]
    assert "only-here-0" in said.err and "other cluster" in said.err


def test_group_with_members_in_the_other_cluster_is_refused(
    brokers: tuple[Broker, Broker], capsys: pytest.CaptureFixture[str]
) -> None:
    topic = group = "translated-busy"
    prepare(brokers, topic, STEADY, 10, before=0)
    commit(brokers[0], group, topic, 4)
    with Consumer(brokers[1].bootstrap_servers, group_id=group) as consumer:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(50)
        assert clone(brokers, group, "--execute") == 1
    assert "member" in capsys.readouterr().err


def test_copy_that_has_its_own_timestamps_is_refused(
    brokers: tuple[Broker, Broker], capsys: pytest.CaptureFixture[str]
) -> None:
    """A producer's clock is ahead: by its records' times the copy would be read from after them."""
    topic = group = "translated-own-times"
    for broker, times in zip(brokers, ("CreateTime", "LogAppendTime"), strict=True):
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(topic, 1, 1, configs={"message.timestamp.type": times})]).all()
    ahead_ms = int(time.time() * 1000) + 600_000 - START_MS
    for broker in brokers:
        write(broker, topic, {number: ahead_ms + number for number in range(6)})
    commit(brokers[0], group, topic, 2)
    assert clone(brokers, group, "--execute") == 1
    said = capsys.readouterr()
    assert not said.out, "no offset is set"
    assert f"{topic}-0" in said.err and "message.timestamp.type=LogAppendTime" in said.err
    with Admin(brokers[1].bootstrap_servers) as admin:
        assert group not in {listed.group_id for listed in admin.list_groups()}


@pytest.mark.parametrize(("here", "there"), [(1, 2), (2, 1)], ids=["more", "fewer"])
def test_copy_with_another_number_of_partitions_is_refused(
    brokers: tuple[Broker, Broker], capsys: pytest.CaptureFixture[str], here: int, there: int
) -> None:
    topic = group = f"translated-{here}-{there}"
    for broker, count in zip(brokers, (here, there), strict=True):
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(topic, count, 1)]).all()
        write(broker, topic, STEADY)
    commit(brokers[0], group, topic, 4)
    assert clone(brokers, group, "--execute") == 1
    said = capsys.readouterr()
    assert not said.out, "no offset is set"
    assert f"{topic}-0" in said.err and "partition" in said.err


def test_unread_record_from_the_future_is_no_proof_that_nothing_is_unread(brokers: tuple[Broker, Broker]) -> None:
    """The record's age is 0. The newest record's time would be a position after it."""
    tp = TopicPartition("translated-future", 0)
    part = PartitionLag(tp, 3, "", None, 0, 9, START_MS, 0, is_time_lag_exact=False)
    with Admin(brokers[0].bootstrap_servers) as admin, pytest.raises(KafkaError, match="could not be read"):
        next_record_timestamp_ms(admin, part)


def test_other_cluster_needs_an_address_of_its_own(
    brokers: tuple[Broker, Broker], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A file without the address would leave it to the environment, which names the group's own cluster."""
    config = tmp_path / "other.properties"
    config.write_text("client.id=me\n")
    servers = ("--bootstrap-server", brokers[0].bootstrap_servers)
    assert run(["groups", "clone", "a", "b", *servers, "--to-config", str(config)]) == 2
    assert "--to" in capsys.readouterr().err
