"""The consumer against the embedded broker, and against a real Apache Kafka where one can be had."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from kohort import Admin, AsyncConsumer, Broker, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.client.consumer.core import WakeupError
from kohort.client.consumer.range_reader import RangeReader
from kohort.client.group.member import GroupMember
from kohort.client.offsets import OffsetAndMetadata, RebalanceListener
from kohort.errors import CommitFailedError, InvalidInputError, KafkaError, OffsetError, TimedOutError
from tests.support.waiting import until

QUICK = {"heartbeat_interval_ms": 200, "auto_offset_reset": "earliest", "metadata_max_age_ms": 500}


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    config = {"num.partitions": "4", "group.initial.rebalance.delay.ms": "50", "auto.create.topics.enable": "false"}
    with Broker(config=config) as broker:
        yield broker


@pytest.fixture(params=["own", pytest.param("apache", marks=pytest.mark.kafka)])
def servers(request: pytest.FixtureRequest) -> str:
    if request.param == "own":
        return str(request.getfixturevalue("own_broker").bootstrap_servers)
    return str(request.getfixturevalue("apache_kafka").bootstrap_servers)


@pytest.fixture
def topic(servers: str) -> str:
    """A fresh topic of four partitions."""
    return make_topic(servers, f"t-{uuid.uuid4().hex[:12]}")


def make_topic(servers: str, name: str, partitions: int = 4) -> str:
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(name, partitions)]).all()
    return name


def fill(servers: str, topic: str, count: int, start: int = 0, partitions: int = 4) -> None:
    with Producer(servers) as producer:
        for number in range(start, start + count):
            producer.send(topic, str(number), partition=number % partitions)
        producer.flush(timeout_ms=30_000)


def read_all(consumer: Consumer, count: int, timeout_s: float = 30) -> list[tuple[int, int, bytes]]:
    seen: list[tuple[int, int, bytes]] = []
    deadline = time.monotonic() + timeout_s
    while len(seen) < count and time.monotonic() < deadline:
        seen += [(record.partition, record.offset, record.value) for record in consumer.poll(200)]
    return seen


def committed_offset(admin: Admin, group: str, partition: TopicPartition) -> int | None:
    value = admin.list_consumer_group_offsets(group).values.get(partition)
    return None if value is None else value.offset


class Log(RebalanceListener):
    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("assigned", [part.partition for part in partitions]))

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("revoked", [part.partition for part in partitions]))

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("lost", [part.partition for part in partitions]))


def test_a_group_of_one_reads_everything_once_in_order(servers: str, topic: str) -> None:
    fill(servers, topic, 2000)
    with Consumer(servers, group_id=topic, max_poll_records=300, **QUICK) as consumer:
        consumer.subscribe([topic])
        seen = read_all(consumer, 2000)
        assert sorted(int(value) for _, _, value in seen) == list(range(2000))
        for number in range(4):
            assert [offset for partition, offset, _ in seen if partition == number] == list(range(500))
        assert consumer.lag(TopicPartition(topic, 0)) == 0


def test_a_poll_returns_no_more_than_its_bound_and_positions_follow(servers: str, topic: str) -> None:
    fill(servers, topic, 1000)
    with Consumer(servers, max_poll_records=7, **QUICK) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        first = consumer.poll(5000)
        assert 0 < len(first) <= 7
        assert consumer.position(partition) == len(first)
        assert len(consumer.poll(5000, max_records=100)) <= 100


def test_two_members_share_and_the_rest_takes_over_from_the_commits(servers: str, topic: str) -> None:
    fill(servers, topic, 400)
    log = Log()
    with Consumer(servers, group_id=topic, **QUICK) as first, Consumer(servers, group_id=topic, **QUICK) as second:
        first.subscribe([topic], listener=log)
        assert len(read_all(first, 400)) == 400
        second.subscribe([topic])
        with ThreadPoolExecutor() as pool:
            both = [pool.submit(poll_until_share, consumer, 2) for consumer in (first, second)]
            assert [len(future.result(30)) for future in both] == [2, 2]
        assert second.assignment().isdisjoint(first.assignment())
        fill(servers, topic, 400, start=400)
        with ThreadPoolExecutor() as pool:
            both_read = [pool.submit(read_all, consumer, 200) for consumer in (first, second)]
            values = sorted(int(value) for future in both_read for _, _, value in future.result(30))
        assert values == list(range(400, 800))
        second.close()
        until(lambda: first.poll(100) is not None and len(first.assignment()) == 4, "the first takes over")
        fill(servers, topic, 40, start=800)
        assert sorted(int(value) for _, _, value in read_all(first, 40)) == list(range(800, 840))
    assert log.events[:3] == [("assigned", [0, 1, 2, 3]), ("revoked", [0, 1, 2, 3]), ("assigned", log.events[2][1])]


def poll_until_share(consumer: Consumer, share: int) -> set[TopicPartition]:
    deadline = time.monotonic() + 20
    while len(consumer.assignment()) != share and time.monotonic() < deadline:
        consumer.poll(100)
    return consumer.assignment()


def test_cooperative_members_keep_what_does_not_move(servers: str, topic: str) -> None:
    log = Log()
    settings = {"group_id": topic, "partition_assignment_strategy": "cooperative-sticky", **QUICK}
    with Consumer(servers, **settings) as first, Consumer(servers, **settings) as second:
        first.subscribe([topic], listener=log)
        assert len(poll_until_share(first, 4)) == 4
        second.subscribe([topic])
        with ThreadPoolExecutor() as pool:
            both = [pool.submit(poll_until_share, consumer, 2) for consumer in (first, second)]
            assert [len(future.result(30)) for future in both] == [2, 2]
        kinds = [(kind, len(numbers)) for kind, numbers in log.events if numbers]
        assert kinds[:2] == [("assigned", 4), ("revoked", 2)]


def test_a_group_whose_coordinator_assigns(servers: str, topic: str) -> None:
    fill(servers, topic, 400)
    log = Log()
    settings = {"group_id": topic, "group_protocol": "consumer", **QUICK}
    with Consumer(servers, **settings) as first:
        first.subscribe([topic], listener=log)
        assert len(read_all(first, 400)) == 400
        with Consumer(servers, **settings) as second:
            second.subscribe(pattern=f"^{topic}$")
            with ThreadPoolExecutor() as pool:
                both = [pool.submit(poll_until_share, consumer, 2) for consumer in (first, second)]
                assert [len(future.result(30)) for future in both] == [2, 2]
            assert second.assignment().isdisjoint(first.assignment())
            first.commit()
        assert len(poll_until_share(first, 4)) == 4
        fill(servers, topic, 40, start=400)
        assert sorted(int(value) for _, _, value in read_all(first, 40)) == list(range(400, 440))
    kinds = [(kind, len(numbers)) for kind, numbers in log.events if numbers]
    assert kinds == [("assigned", 4), ("revoked", 2), ("assigned", 2), ("revoked", 4)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_changed_kind_of_subscription_replaces_the_earlier_one(servers: str, topic: str, protocol: str) -> None:
    other = make_topic(servers, f"{topic}-other", 2)

    def topics_of(consumer: Consumer) -> set[str]:
        consumer.poll(50)
        return {part.topic for part in consumer.assignment()}

    with Consumer(servers, group_id=topic, group_protocol=protocol, **QUICK) as consumer:
        consumer.subscribe([topic])
        until(lambda: topics_of(consumer) == {topic}, "the named topic is assigned")
        consumer.subscribe(pattern=f"^{other}$")
        until(lambda: topics_of(consumer) == {other}, "only the matching topic is assigned")
        consumer.subscribe([topic])
        until(lambda: topics_of(consumer) == {topic}, "only the named topic is assigned")


def test_search_by_time_finds_only_committed_records_when_asked(servers: str) -> None:
    partition = TopicPartition(make_topic(servers, f"t-{uuid.uuid4().hex[:12]}", 1), 0)
    with Producer(servers, transactional_id=partition.topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(partition.topic, b"open", partition=0, timestamp_ms=5_000)
        producer.flush()
        with Consumer(servers, isolation_level="read_committed") as consumer:
            assert consumer.offsets_for_times({partition: 0}) == {partition: None}
            with Consumer(servers) as other:
                found = other.offsets_for_times({partition: 0})[partition]
                assert found is not None and found.offset == 0
            producer.commit_transaction()
            until(lambda: consumer.offsets_for_times({partition: 0})[partition], "the record is committed")
            found = consumer.offsets_for_times({partition: 0})[partition]
            assert found is not None and (found.offset, found.timestamp) == (0, 5_000)


def test_only_committed_records_are_read_when_asked(servers: str) -> None:
    topic = make_topic(servers, f"t-{uuid.uuid4().hex[:12]}", 1)
    with Producer(servers, transactional_id=topic) as producer:
        producer.init_transactions()
        for lot, ending in enumerate(
            (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction)
        ):
            producer.begin_transaction()
            for number in range(10):
                producer.send(topic, f"{lot}-{number}", partition=0)
            producer.flush(timeout_ms=30_000)
            ending()
    with Consumer(servers, isolation_level="read_committed", **QUICK) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert {value[:1] for _, _, value in read_all(consumer, 20)} == {b"0", b"2"}
        assert len(consumer.poll(100)) == 0
        assert (
            consumer.position(TopicPartition(topic, 0))
            == consumer.end_offsets([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
        )
    with Consumer(servers, **QUICK) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert len(read_all(consumer, 30)) == 30


def test_commits_of_all_kinds_are_read_back(servers: str, topic: str) -> None:
    fill(servers, topic, 100)
    parts = [TopicPartition(topic, number) for number in range(4)]
    done = threading.Event()
    reported: list[KafkaError | None] = []
    with Consumer(servers, group_id=topic, enable_auto_commit=False, **QUICK) as consumer:
        consumer.subscribe([topic])
        read_all(consumer, 100)
        assert consumer.committed(parts) == dict.fromkeys(parts)
        consumer.commit()
        assert [value.offset for value in consumer.committed(parts).values() if value] == [25] * 4
        consumer.commit({parts[0]: OffsetAndMetadata(7, "why")})
        found = consumer.committed([parts[0]])[parts[0]]
        assert found is not None and (found.offset, found.metadata) == (7, "why")
        consumer.commit_async({parts[0]: 8})
        consumer.commit_async({parts[0]: 9}, lambda offsets, error: (reported.append(error), done.set()))
        assert done.wait(10) and reported == [None]
        found = consumer.committed([parts[0]])[parts[0]]
        assert found is not None and found.offset == 9


def test_auto_commit_covers_what_was_returned_and_no_more(servers: str, topic: str) -> None:
    fill(servers, topic, 400)
    partition = TopicPartition(topic, 0)
    with Consumer(servers, group_id=topic, max_poll_records=10, **QUICK) as consumer:
        consumer.subscribe([topic])
        returned = 0
        while not returned:
            returned = len(consumer.poll(200))
    with Consumer(servers, group_id=topic, **QUICK) as consumer:
        found = consumer.committed([TopicPartition(topic, number) for number in range(4)])
        assert sum(value.offset for value in found.values() if value is not None) == returned
        assert partition in found


@pytest.mark.parametrize("way", ["poll", "loop"])
@pytest.mark.parametrize("interval_ms", [1, 1_000])
def test_auto_commit_continues_while_a_poll_waits(servers: str, topic: str, interval_ms: int, way: str) -> None:
    """The last record is committed without another one (confluent-kafka-dotnet #31)."""
    fill(servers, topic, 1, partitions=1)
    partition, read = TopicPartition(topic, 0), threading.Event()
    settings = {"group_id": topic, "auto_commit_interval_ms": interval_ms, **QUICK}

    def read_one_and_wait(consumer: Consumer) -> None:
        with contextlib.suppress(WakeupError):
            while way == "poll":
                if len(consumer.poll(600_000)):
                    read.set()
            for _ in consumer:
                read.set()

    with Consumer(servers, **settings) as consumer, Admin(servers) as admin, ThreadPoolExecutor() as pool:
        consumer.subscribe([topic])
        waiting = pool.submit(read_one_and_wait, consumer)
        try:
            assert read.wait(30)
            until(lambda: committed_offset(admin, topic, partition) == 1, "the record is committed")
        finally:
            consumer.wakeup()
        waiting.result(30)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_waiting_poll_keeps_its_member_longer_than_the_poll_interval(
    servers: str, topic: str, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic without records for max.poll.interval.ms costs no membership (confluent-kafka-python #629)."""
    settings = {"group_id": topic, "group_protocol": protocol, "max_poll_interval_ms": 1_500, **QUICK}
    if protocol == "classic":
        settings["session_timeout_ms"] = 6_000
    log = Log()
    with Consumer(servers, **settings) as consumer:
        consumer.subscribe([topic], listener=log)
        poll_until_share(consumer, 4)
        assert len(consumer.poll(5_000)) == 0
        assert len(consumer.assignment()) == 4
        assert "max.poll.interval.ms" not in caplog.text
        assert {kind for kind, _ in log.events} == {"assigned"}


def test_iteration_commits_only_records_that_were_given_out(servers: str, topic: str) -> None:
    fill(servers, topic, 400)
    with Consumer(servers, group_id=topic, **QUICK) as consumer:
        consumer.subscribe([topic])
        first = []
        for record in consumer:
            first.append(record)
            if len(first) == 33:
                break
        again = read_all(consumer, 400 - 33)
        assert len({(record.partition, record.offset) for record in first} | {(p, o) for p, o, _ in again}) == 400
        assert len(again) == 400 - 33


def test_seeking_in_every_way(servers: str, topic: str) -> None:
    fill(servers, topic, 400)
    partition = TopicPartition(topic, 1)
    with Consumer(servers, **QUICK) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 90)
        assert [record.offset for record in consumer.poll(5000)] == list(range(90, 100))
        consumer.seek_to_beginning(partition)
        assert consumer.position(partition) == 0
        consumer.seek_to_end(partition)
        assert consumer.position(partition) == 100
        found = consumer.offsets_for_times({partition: 0})[partition]
        assert found is not None and found.offset == 0
        assert consumer.offsets_for_times({partition: 2**60})[partition] is None
        consumer.seek_to_times({partition: 0})
        assert next(iter(consumer.poll(5000))).offset == 0
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 100}


def test_paused_partitions_give_nothing_and_lose_nothing(servers: str, topic: str) -> None:
    fill(servers, topic, 400)
    parts = [TopicPartition(topic, number) for number in range(4)]
    with Consumer(servers, max_poll_records=50, **QUICK) as consumer:
        consumer.assign(parts)
        consumer.poll(5000)
        consumer.pause(*parts[:3])
        before = {part: consumer.position(part) for part in parts}
        seen = read_all(consumer, 100 - before[parts[3]], timeout_s=10)
        assert {number for number, _, _ in seen} <= {3}
        assert consumer.paused() == set(parts[:3])
        consumer.resume(*parts[:3])
        rest = read_all(consumer, 300 - sum(before[part] for part in parts[:3]))
        assert len(rest) == 300 - sum(before[part] for part in parts[:3])


def test_arrow_batches_hold_the_same_records(servers: str, topic: str) -> None:
    fill(servers, topic, 1000)
    with Consumer(servers, **QUICK) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(4)])
        rows: list[dict[str, object]] = []
        while len(rows) < 1000:
            batch = consumer.poll_arrow(5000, max_records=333)
            assert batch is not None and batch.num_rows <= 333
            rows += batch.to_pylist()
        values = [int(str(row["value"], "ascii")) for row in rows]  # type: ignore[call-overload]
        assert sorted(values) == list(range(1000))
        names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
        assert list(rows[0]) == names
        assert consumer.poll_arrow(50) is None


def test_a_new_topic_that_matches_the_pattern_is_taken_in(servers: str, topic: str) -> None:
    with Consumer(servers, group_id=topic, **QUICK) as consumer:
        consumer.subscribe(pattern=f"^{topic}")
        poll_until_share(consumer, 4)
        make_topic(servers, f"{topic}-more", 2)
        assert len(poll_until_share(consumer, 6)) == 6


def test_partitions_that_are_added_are_taken_in(servers: str, topic: str) -> None:
    with Consumer(servers, group_id=topic, **QUICK) as consumer:
        consumer.subscribe([topic])
        poll_until_share(consumer, 4)
        with Admin(servers) as admin:
            admin.create_partitions({topic: 6}).all()
        assert len(poll_until_share(consumer, 6)) == 6


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_static_member_that_restarts_moves_nothing(servers: str, topic: str, protocol: str) -> None:
    settings = {"group_id": topic, "group_protocol": protocol, "session_timeout_ms": 10_000, **QUICK}
    settings["enable_auto_commit"] = False  # a commit on closing would release the heartbeat that is held
    log = Log()
    with Consumer(servers, group_instance_id="one", **settings) as first:
        first.subscribe([topic], listener=log)
        second = Consumer(servers, group_instance_id="two", **settings)
        second.subscribe([topic])
        with ThreadPoolExecutor() as pool:
            both = [pool.submit(poll_until_share, consumer, 2) for consumer in (first, second)]
            shares = [future.result(30) for future in both]
        with Admin(servers) as admin:
            until(lambda: admin.describe_consumer_groups([topic]).all()[topic].state == "Stable", "both have settled")
            for consumer in (first, second):  # until a heartbeat is held, where they are
                consumer.poll(500)
            second.close()
            events = len(log.events)
            first.poll(1000)  # while the broker hears that the connections of the other have ended
            members = admin.describe_consumer_groups([topic]).all()[topic].members
        (away,) = [member for member in members if member.group_instance_id == "two"]
        assert away.epoch == (None if protocol == "classic" else -2)
        assert set(away.assignment or ()) == shares[1]
        with Consumer(servers, group_instance_id="two", **settings) as again:
            again.subscribe([topic])
            assert poll_until_share(again, 2) == shares[1]
            first.poll(1000)
        assert len(log.events) == events


def test_a_consumer_that_does_not_poll_is_evicted_and_gets_an_error(servers: str, topic: str) -> None:
    log = Log()
    settings = {"group_id": topic, "max_poll_interval_ms": 1000, "session_timeout_ms": 6000, **QUICK}
    with Consumer(servers, **settings) as slow, Consumer(servers, **settings) as other:
        slow.subscribe([topic], listener=log)
        poll_until_share(slow, 4)
        other.subscribe([topic])
        assert len(poll_until_share(other, 4)) == 4
        with pytest.raises(CommitFailedError):
            slow.commit({TopicPartition(topic, 0): 1})
        slow.poll(100)
        assert ("lost", [0, 1, 2, 3]) in log.events


def test_wakeup_ends_a_poll_from_another_thread(servers: str, topic: str) -> None:
    with Consumer(servers, group_id=topic, **QUICK) as consumer:
        consumer.subscribe([topic])
        threading.Timer(0.3, consumer.wakeup).start()
        with pytest.raises(WakeupError):
            consumer.poll(30_000)
        assert len(consumer.poll(10)) == 0


def test_reset_policies(servers: str, topic: str) -> None:
    fill(servers, topic, 40)
    partition = TopicPartition(topic, 0)
    with Consumer(servers, auto_offset_reset="latest") as consumer:
        consumer.assign([partition])
        assert consumer.position(partition) == 10
    for duration in ("PT1H", "P36500D"):  # the second begins before 1970
        with Consumer(servers, auto_offset_reset=f"by_duration:{duration}") as consumer:
            consumer.assign([partition])
            assert consumer.position(partition) == 0
    with Consumer(servers, group_id=topic, auto_offset_reset="none") as consumer:
        consumer.assign([partition])
        with pytest.raises(OffsetError, match="seek to go on"):
            consumer.poll(5000)
        consumer.seek(partition, 3)
        assert next(iter(consumer.poll(5000))).offset == 3
        consumer.seek(partition, 10_000)
        with pytest.raises(OffsetError, match="out of range"):
            consumer.poll(5000)
    with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 10_000)
        assert next(iter(consumer.poll(5000))).offset == 0


def test_reading_waits_for_a_topic_that_does_not_exist_yet(servers: str) -> None:
    name = f"later-{uuid.uuid4().hex[:8]}"
    with Consumer(servers, allow_auto_create_topics=False, retry_backoff_ms=20, **QUICK) as consumer:
        consumer.assign([TopicPartition(name, 0)])
        assert len(consumer.poll(300)) == 0
        make_topic(servers, name, 1)
        fill(servers, name, 5, partitions=1)
        assert len(read_all(consumer, 5)) == 5


def test_a_member_without_reading_delays_the_rebalance_until_it_lets_go(servers: str, topic: str) -> None:
    parts = tuple(TopicPartition(topic, number) for number in range(4))
    with (
        GroupMember(servers, topic, topics=[topic], heartbeat_interval_ms=200) as first,
        ExitStack() as later,
    ):
        until(lambda: first.assignment().partitions == parts, "it holds all")  # Kafka may assign none at first
        held = first.assignment()
        second = later.enter_context(GroupMember(servers, topic, topics=[topic], heartbeat_interval_ms=200))
        until(lambda: first.revocation() is not None, "the group wants partitions back")
        with pytest.raises(TimedOutError):
            second.wait_assignment(600)
        first.commit({parts[0]: OffsetAndMetadata(5, "batch 1")}, generation=held.generation)
        first.release()
        after = first.wait_assignment(20_000, after_generation=held.generation)
        other = second.wait_assignment(20_000)
        assert sorted(after.partitions + other.partitions) == list(parts)
        with pytest.raises(CommitFailedError):
            first.commit({parts[0]: 6}, generation=held.generation)
        found = second.committed([parts[0]])[parts[0]]
        assert found is not None and (found.offset, found.metadata) == (5, "batch 1")


IMPATIENT: dict[str, Any] = {"default_api_timeout_ms": 1_500, "fetch_max_wait_ms": 50}
"""A reader that soon gives up waiting for records."""


async def _nothing() -> None:
    """Return the result of a fetch whose offset is out of range."""


def test_ranges_are_read_exactly(servers: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for start in range(0, 4000, 400):
        fill(servers, topic, 400, start)
    partition = TopicPartition(topic, 2)
    with RangeReader(servers, fetch_bytes=4096, columns=("value", "offset")) as reader:
        batches = list(reader.read(partition, 17, 901))
        assert len(batches) > 2
        offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
        assert offsets == list(range(17, 901))
        assert list(reader.read(partition, 5, 5)) == []
        with monkeypatch.context() as patched:  # a leader that stood still wakes, and does not have it
            answers, attempt = iter([None, None]), RangeReader._attempt
            patched.setattr(RangeReader, "_attempt", lambda *asked: attempt(*asked) if next(answers, 1) else _nothing())
            assert sum(batch.num_rows for batch in reader.read(partition, 17, 901)) == 884
        with Admin(servers) as admin:
            admin.delete_records({partition: 100}).all()
        with pytest.raises(OffsetError, match="holds 100 to 1000"):
            list(reader.read(partition, 50, 200))
        rest = [batch.num_rows for batch in reader.read(partition, 50, 200, fail_on_data_loss=False)]
        assert sum(rest) == 100


def test_a_range_behind_the_end_of_a_truncated_log_is_an_error_or_passed_over(
    servers: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SPARK-26267: records that an unclean election took end a query or are passed over, as it has chosen."""
    fill(servers, topic, 40)
    partition = TopicPartition(topic, 2)
    with RangeReader(servers, columns=("offset",)) as reader:
        with pytest.raises(OffsetError, match=r"offsets 50 to 90 .*holds 0 to 10"):
            list(reader.read(partition, 50, 90))
        assert list(reader.read(partition, 50, 90, fail_on_data_loss=False)) == []
        assert "records lost: " in caplog.text
        with pytest.raises(OffsetError, match=r"offsets 50 to 90 .*holds 0 to 10"):
            list(reader.read_batches(partition, 50, 90))


def test_a_range_within_which_a_log_was_truncated_is_read_up_to_there_if_losses_are_no_error(
    servers: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch that was planned before an unclean election ended its query, whenever it was tried again."""
    fill(servers, topic, 40)
    partition = TopicPartition(topic, 2)
    with RangeReader(servers, columns=("offset",), **IMPATIENT) as reader:
        found = reader.read(partition, 5, 90, fail_on_data_loss=False)
        assert [offset for batch in found for offset in batch.column("offset").to_pylist()] == list(range(5, 10))
        assert "offsets 10 to 90 were asked for, the partition ends at 10; continuing at offset 90" in caplog.text
        assert list(reader.read(partition, 10, 90, fail_on_data_loss=False)) == []
        with pytest.raises(TimedOutError, match="no data at offset 10"):
            list(reader.read(partition, 5, 90))


def test_records_of_an_open_transaction_are_not_taken_for_truncated(servers: str, topic: str) -> None:
    fill(servers, topic, 40)
    partition = TopicPartition(topic, 2)
    with (
        Producer(servers, transactional_id=topic) as producer,
        RangeReader(servers, columns=("offset",), isolation_level="read_committed", **IMPATIENT) as reader,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=2)
        producer.flush()
        with pytest.raises(TimedOutError, match="no data at offset 10"):
            list(reader.read(partition, 5, 11, fail_on_data_loss=False))
        producer.abort_transaction()


def test_asyncio_reads_the_same(servers: str, topic: str) -> None:
    fill(servers, topic, 500)

    async def read() -> tuple[list[int], int]:
        async with AsyncConsumer(servers, group_id=topic, **QUICK) as consumer:
            consumer.subscribe([topic])
            values: list[int] = []
            async for record in consumer:
                values.append(int(record.value))
                if len(values) == 500:
                    break
            await consumer.commit()
            found = await consumer.committed([TopicPartition(topic, 0)])
            value = found[TopicPartition(topic, 0)]
            return values, value.offset if value is not None else -1

    values, committed = asyncio.run(read())
    assert sorted(values) == list(range(500)) and committed == 125


def test_closing_leaves_the_group_at_once(servers: str, topic: str) -> None:
    consumer = Consumer(servers, group_id=topic, **QUICK)
    consumer.subscribe([topic])
    poll_until_share(consumer, 4)
    started = time.monotonic()
    consumer.close()
    consumer.close()
    assert time.monotonic() - started < 2
    with Admin(servers) as admin:
        assert len(admin.describe_consumer_groups([topic]).result(topic).members) == 0
    with pytest.raises(KafkaError, match="closed"):
        consumer.poll(10)


def test_wrong_use_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"max_poll_record; did you mean max_poll_records"):
        Consumer("127.0.0.1:9092", max_poll_record=5)
    with pytest.raises(InvalidInputError, match="auto.offset.reset|auto_offset_reset"):
        Consumer("127.0.0.1:9092", auto_offset_reset="sometime")
    with (
        pytest.raises(InvalidInputError, match="assignor 'best'"),
        Consumer("127.0.0.1:1", group_id="g", partition_assignment_strategy="best") as consumer,
    ):
        consumer.subscribe(["a"])
    with Consumer("127.0.0.1:1") as consumer:
        with pytest.raises(InvalidInputError, match=r"subscribe or assign"):
            consumer.poll(1)
        with pytest.raises(InvalidInputError, match=r"group\.id"):
            consumer.subscribe(["a"])
        with pytest.raises(InvalidInputError, match=r"list of str"):
            Consumer("127.0.0.1:1", group_id="g").subscribe("a")


def test_an_unreachable_broker_is_named() -> None:
    with Consumer("127.0.0.1:1,no-such-host.invalid:9092", default_api_timeout_ms=5_000) as consumer:
        with pytest.raises(TimedOutError) as caught:
            consumer.end_offsets([TopicPartition("a", 0)])
    assert "127.0.0.1:1: connection refused" in str(caught.value)
    assert "no-such-host.invalid:9092: the name can't be resolved" in str(caught.value)


def test_a_forked_child_and_a_pickle_are_refused(own_broker: Broker) -> None:
    servers = own_broker.bootstrap_servers
    topic = make_topic(servers, f"fork-{uuid.uuid4().hex[:8]}")
    with Consumer(servers, **QUICK) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.poll(100)
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(consumer)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                consumer.poll(100)
                said = "nothing"
            except KafkaError as error:
                said = str(error)
            os.write(writer, said.encode())
            os._exit(0)
        os.close(writer)
        assert "made before a fork" in os.read(reader, 1000).decode()
        os.close(reader)
        os.waitpid(child, 0)
        consumer.poll(100)


@pytest.mark.parametrize("way", ["collected", "the interpreter ends"])
def test_a_consumer_that_nobody_closed_leaves_its_group(own_broker: Broker, way: str) -> None:
    servers = own_broker.bootstrap_servers
    topic = make_topic(servers, f"left-{uuid.uuid4().hex[:8]}")
    code = f"""
from kohort import Consumer
def use():
    consumer = Consumer({servers!r}, group_id={topic!r}, heartbeat_interval_ms=200)
    consumer.subscribe([{topic!r}])
    while not consumer.assignment():
        consumer.poll(100)
    return consumer
"""
    if way == "collected":
        space: dict[str, object] = {}
        exec(code, space)
        space["use"]()  # type: ignore[operator]
    else:
        subprocess.run([sys.executable, "-c", code + "kept = use()"], check=True, timeout=60)
    with Admin(servers) as admin:
        group = admin.describe_consumer_groups([topic]).result(topic)
        assert len(group.members) == 0 and group.state == "Empty"
