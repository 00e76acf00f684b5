"""Lag that can be trusted: `max(0, end - max(committed, start))`, with the end read after the commit."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from tests.support.waiting import until

from kohort import Admin, Broker, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import ErrorCode, error_for
from kohort.lag import LagReader, LagStatus, PartitionLag
from kohort.lag.reading import LagReading


@pytest.fixture
def admin(servers: str) -> Iterator[Admin]:
    with Admin(servers) as admin:
        yield admin


@pytest.fixture
def reader(servers: str) -> Iterator[LagReader]:
    with LagReader(servers) as reader:
        yield reader


@pytest.fixture
def topic(admin: Admin) -> str:
    """A topic with one partition and 20 records."""
    name = f"lag-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, 1, 1)]).all()
    return name


@pytest.fixture
def filled(servers: str, topic: str) -> TopicPartition:
    fill(servers, topic, 20)
    return TopicPartition(topic, 0)


def fill(servers: str, topic: str, count: int) -> None:
    with Producer(servers) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=0)
        producer.flush()


def commit(admin: Admin, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    admin.alter_consumer_group_offsets(group, {key: OffsetAndMetadata(offset) for key, offset in offsets.items()}).all()


def group_lag(reader: LagReader, group: str) -> tuple[PartitionLag, ...]:
    report = reader.read([group])
    assert not report.failures
    return report.groups[group].partitions


def only(lags: tuple[PartitionLag, ...]) -> PartitionLag:
    (lag,) = lags
    return lag


def after_commits(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Calls `change` when a group's offsets have been read, and the ends have not."""
    read = LagReading._committed

    async def changed(self: LagReading, *args: Any) -> Any:
        found = await read(self, *args)
        change()
        return found

    monkeypatch.setattr(LagReading, "_committed", changed)


@pytest.mark.parametrize(
    ("committed", "start", "lag"), [(3, 10, 10), (12, 10, 8), (10, 10, 10), (3, 20, 0), (0, 0, 20)]
)
def test_scenario_17_lag_counts_what_the_log_still_holds(
    admin: Admin, reader: LagReader, filled: TopicPartition, committed: int, start: int, lag: int
) -> None:
    """Records before the log's start can't be read any more, so nobody is behind by them."""
    group = f"{filled.topic}-group"
    commit(admin, group, {filled: committed})
    if start:
        admin.delete_records({filled: start}).all()
    found = only(group_lag(reader, group))
    assert (found.committed, found.log_start, found.log_end, found.lag) == (committed, start, 20, lag)


def test_scenario_17_lag_of_a_quiet_topic_stays_what_it_is(
    servers: str, admin: Admin, reader: LagReader, filled: TopicPartition
) -> None:
    """Nobody writes and nobody reads: the records that were left are left, and none when all were read."""
    read, left = f"{filled.topic}-read", f"{filled.topic}-left"
    with Consumer(servers, group_id=read, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([filled.topic])

        def all_read() -> bool:
            consumer.poll(200)
            return filled in consumer.assignment() and consumer.position(filled) == 20

        until(all_read, "all is read", 60)
        consumer.commit()
    commit(admin, left, {filled: 15})
    for _ in range(3):
        assert only(group_lag(reader, read)).lag == 0
        assert only(group_lag(reader, left)).lag == 5
    fill(servers, filled.topic, 1)
    assert only(group_lag(reader, read)).lag == 1


def test_scenario_17_lag_of_a_deleted_topic_is_unknown_and_hides_no_other(
    servers: str, admin: Admin, reader: LagReader, filled: TopicPartition
) -> None:
    """The topic's offsets go with it. A partition with an owner shows the reason, the others their lag."""
    group, doomed = f"{filled.topic}-group", TopicPartition(f"{filled.topic}-doomed", 0)
    admin.create_topics([NewTopic(doomed.topic, 1, 1)]).all()
    fill(servers, doomed.topic, 4)
    commit(admin, group, {filled: 13, doomed: 1})
    assert [found.lag for found in group_lag(reader, group)] == [7, 3]
    admin.delete_topics([doomed.topic]).all()
    until(lambda: doomed not in admin.list_consumer_group_offsets(group).all(), "its offsets are gone", 30)
    assert [(found.partition, found.lag) for found in group_lag(reader, group)] == [(filled, 7)]


def test_scenario_17_a_topic_that_goes_while_lag_is_read_hides_no_other(
    admin: Admin, reader: LagReader, filled: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, doomed = f"{filled.topic}-group", TopicPartition(f"{filled.topic}-doomed", 0)
    admin.create_topics([NewTopic(doomed.topic, 1, 1)]).all()
    commit(admin, group, {filled: 13, doomed: 0})

    def delete() -> None:
        admin.delete_topics([doomed.topic]).all()
        until(lambda: doomed.topic not in {topic.name for topic in admin.list_topics()}, "the topic is gone", 30)

    after_commits(monkeypatch, delete)
    kept, gone = group_lag(reader, group)
    assert (kept.partition, kept.lag, kept.error) == (filled, 7, None)
    assert (gone.partition, gone.committed, gone.lag) == (doomed, 0, None)
    assert (gone.status, gone.cause) == (LagStatus.ERR, "topic gone")
    assert gone.error is not None and "UNKNOWN_TOPIC_OR_PARTITION" in gone.error


def test_scenario_17_lag_of_an_abandoned_topic_is_named_so(
    servers: str, admin: Admin, reader: LagReader, filled: TopicPartition
) -> None:
    """The group reads another topic by now.

    What it has left is shown without an owner, until its offsets are deleted.
    """
    group, read = f"{filled.topic}-group", TopicPartition(f"{filled.topic}-read", 0)
    admin.create_topics([NewTopic(read.topic, 1, 1)]).all()
    commit(admin, group, {filled: 5})
    with Consumer(servers, group_id=group, heartbeat_interval_ms=200) as consumer:
        consumer.subscribe([read.topic])
        until(lambda: bool(consumer.poll(50) or consumer.assignment()), "the consumer has its partition", 30)
        members = admin.describe_consumer_groups([group]).result(group).members
        owned = {partition for member in members for partition in member.assignment or ()}
        fill(servers, filled.topic, 10)
        by_partition = {found.partition: found for found in group_lag(reader, group)}
        assert owned == {read}
        assert (by_partition[filled].committed, by_partition[filled].lag) == (5, 25)
        assert (by_partition[filled].cause, by_partition[filled].owner) == ("abandoned", None)
        assert reader.report is not None and reader.report.groups[group].sum_lag == 0
        assert (by_partition[read].committed, by_partition[read].lag) == (None, None)
        assert by_partition[read].log_end == 0
        admin.delete_consumer_group_offsets(group, [filled]).all()
        assert [found.partition for found in group_lag(reader, group)] == [read]


def test_scenario_17_a_commit_past_the_end_is_no_lag(admin: Admin, reader: LagReader, filled: TopicPartition) -> None:
    """Kafka takes any offset: one past the end is no negative lag, and the records written up to it are none either."""
    group = f"{filled.topic}-group"
    commit(admin, group, {filled: 25})
    found = only(group_lag(reader, group))
    assert (found.committed, found.log_end, found.lag) == (25, 20, 0)


def test_scenario_17_the_end_is_read_after_the_commit(
    servers: str, admin: Admin, reader: LagReader, filled: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit read after the end is past it, and lag would be 0 while five records wait.

    The other way it is never less. kafka_exporter #437 and kafka-lag-exporter #138 show lags below zero.
    """
    group = f"{filled.topic}-group"
    commit(admin, group, {filled: 20})

    def move() -> None:
        fill(servers, filled.topic, 10)
        commit(admin, group, {filled: 25})

    after_commits(monkeypatch, move)
    found = only(group_lag(reader, group))
    assert (found.committed, found.log_end, found.lag) == (20, 30, 10)


def test_scenario_17_nothing_committed_is_no_lag_of_zero(
    servers: str, admin: Admin, reader: LagReader, filled: TopicPartition
) -> None:
    """Where the group will begin is its clients' choice: that lag is not known, which is not none."""
    group = f"{filled.topic}-group"
    with Consumer(servers, group_id=group, enable_auto_commit=False, heartbeat_interval_ms=200) as consumer:
        consumer.subscribe([filled.topic])
        until(lambda: bool(consumer.poll(50) or consumer.assignment()), "the consumer has its partition", 30)
        found = only(group_lag(reader, group))
    assert (found.committed, found.log_start, found.log_end, found.lag) == (None, 0, 20, None)
    assert (found.cause, found.owner is not None) == ("no offset", True)


@pytest.mark.parametrize(
    ("committed", "start", "status", "lost"),
    [
        (21, 0, "past end", None),
        (2**63 - 1, 0, "past end", None),
        (20, 0, None, None),
        (0, 0, None, None),
        (3, 10, "before start", 7),
        (10, 10, None, None),
        (3, 20, "before start", 17),
    ],
)
def test_status_says_that_a_consumer_will_start_anew(
    admin: Admin,
    reader: LagReader,
    filled: TopicPartition,
    committed: int,
    start: int,
    status: str | None,
    lost: int | None,
) -> None:
    group = f"{filled.topic}-group"
    commit(admin, group, {filled: committed})
    if start:
        admin.delete_records({filled: start}).all()
    found = only(group_lag(reader, group))
    assert (found.position, found.lost_offsets) == (status, lost)


def test_error_of_one_partitions_offset_leaves_the_others_their_lag(
    admin: Admin, reader: LagReader, filled: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, refused = f"{filled.topic}-group", TopicPartition(filled.topic, 1)
    commit(admin, group, {filled: 13})
    read = LagReading._committed

    async def refusing(self: LagReading, *args: Any) -> Any:
        committed, _ = (await read(self, *args))[group]
        return {group: (committed, {refused: error_for(ErrorCode.UNSTABLE_OFFSET_COMMIT, "not yet")})}

    monkeypatch.setattr(LagReading, "_committed", refusing)
    known, unknown = group_lag(reader, group)
    assert (known.partition, known.lag, known.error) == (filled, 7, None)
    assert (unknown.partition, unknown.lag, unknown.committed) == (refused, None, None)
    assert unknown.cause == "unavailable"
    assert unknown.error is not None and "not yet" in unknown.error


# -- Timestamps, transactions, members and requests, as the reader gets them from a broker


def test_time_lag_is_the_age_of_the_oldest_unread_record(
    servers: str, admin: Admin, reader: LagReader, topic: str
) -> None:
    """Also of a record in the middle of a batch, and for groups that stand at different offsets of a partition."""
    place, hour_ms = TopicPartition(topic, 0), 3_600_000
    now_ms = time.time_ns() // 1_000_000
    with Producer(servers, linger_ms=500) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=0, timestamp_ms=now_ms - (10 - number) * hour_ms)
        producer.flush()
    commits = {f"{topic}-{number}": number for number in range(11)}
    for group, offset in commits.items():
        commit(admin, group, {place: offset})
    for _ in range(3):  # a fetch names a partition once, and a read sends a few fetches
        report = reader.read(list(commits))
    assert not report.failures
    ages = [report.groups[group].partitions[0].time_lag_ms for group in commits]
    assert all(part.is_time_lag_exact for group in commits for part in report.groups[group].partitions)
    assert ages[-1] == 0
    for number, age in enumerate(ages[:-1]):
        assert age is not None and 0 <= age - (10 - number) * hour_ms < 600_000


def test_open_transaction_is_named_and_markers_are_no_records(
    servers: str, admin: Admin, reader: LagReader, topic: str
) -> None:
    """A read_committed group can't go on. Kafka's command shows a lag, and no cause; afterwards a lag of the marker."""
    place, group = TopicPartition(topic, 0), f"{topic}-group"
    with Producer(servers, transactional_id=f"{topic}-id") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"a", partition=0)
        producer.flush()
        commit(admin, group, {place: 0})
        waiting = only(group_lag(reader, group))
        assert (waiting.lag, waiting.cause, waiting.is_time_lag_exact) == (1, "open transaction", True)
        assert waiting.time_lag_ms is not None and waiting.time_lag_ms >= 0
        producer.commit_transaction()
        commit(admin, group, {place: 1})
        until(lambda: admin.list_offsets({place: "latest"}).all()[place].offset == 2, "the marker is there", 30)
        done = only(group_lag(reader, group))
        assert (done.lag, done.time_lag_ms, done.cause, done.status) == (1, 0, None, LagStatus.OK)
        producer.begin_transaction()
        producer.send(topic, b"b", partition=0)
        producer.flush()
        producer.abort_transaction()
        until(lambda: admin.list_offsets({place: "latest"}).all()[place].offset == 4, "the marker is there", 30)
        aborted = only(group_lag(reader, group))
        assert (aborted.lag, aborted.time_lag_ms) == (3, 0), "no one can read an aborted record"
    fill(servers, topic, 1)
    unread = only(group_lag(reader, group))
    assert unread.lag == 4 and unread.time_lag_ms is not None and unread.is_time_lag_exact
    assert unread.trend is not None and unread.trend.stuck_since_ms is not None


def test_large_batch_is_looked_into_as_well(servers: str, admin: Admin, reader: LagReader, topic: str) -> None:
    """A broker leaves out a batch that exceeds a partition's limit, unless the partition is the request's first."""
    other = f"{topic}-other"
    admin.create_topics([NewTopic(other, 1, 1)]).all()
    with Producer(servers) as producer:
        for name in (topic, other):
            producer.send(name, bytes(300_000), partition=0, timestamp_ms=time.time_ns() // 1_000_000 - 7_200_000)
        producer.flush()
    group = f"{topic}-group"
    commit(admin, group, {TopicPartition(topic, 0): 0, TopicPartition(other, 0): 0})
    for part in group_lag(reader, group):
        assert part.time_lag_ms is not None and 7_200_000 <= part.time_lag_ms < 7_800_000


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_of_both_protocols_own_their_partitions(
    servers: str, reader: LagReader, filled: TopicPartition, protocol: str
) -> None:
    """Redpanda console #1815, akhq #2720, kminion #294, kafka_exporter #533: groups of KIP-848 are dead or missing."""
    group = f"{filled.topic}-{protocol}"
    with Consumer(servers, group_id=group, client_id="watched", group_protocol=protocol) as consumer:
        consumer.subscribe([filled.topic])
        until(lambda: bool(consumer.poll(50) or consumer.assignment()), "the consumer has its partition", 30)
        found = reader.read().groups[group]
    assert (found.description.type, found.description.state) == (protocol.capitalize(), "Stable")
    assert [part.owner.client_id if part.owner else None for part in found.partitions] == ["watched"]


def test_member_of_a_push_group_owns_its_partitions(our_broker: Broker) -> None:
    topic = f"push-{uuid.uuid4().hex[:8]}"
    with Admin(our_broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)]).all()
    fill(our_broker.bootstrap_servers, topic, 20)
    settings = {"group_id": topic, "client_id": "watched", "group_protocol": "push", "auto_offset_reset": "earliest"}
    with (
        LagReader(our_broker.bootstrap_servers) as reader,
        Consumer(our_broker.bootstrap_servers, **settings) as consumer,
    ):
        consumer.subscribe([topic])
        until(lambda: bool(consumer.poll(50) or consumer.assignment()), "the consumer has its partition", 30)
        consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(13)})
        found = reader.read().groups[topic]
    assert (found.description.state, found.sum_lag, len(found.description.members)) == ("Stable", 7, 1)
    (part,) = found.partitions
    assert part.owner is not None and part.owner.client_id == "watched"


def test_missing_group_is_an_error_of_its_own(admin: Admin, reader: LagReader, filled: TopicPartition) -> None:
    group = f"{filled.topic}-group"
    commit(admin, group, {filled: 13})
    report = reader.read([f"{group}x", group])
    assert report.errors[f"{group}x"].code is ErrorCode.GROUP_ID_NOT_FOUND
    assert report.groups[group].sum_lag == 7
    assert reader.listing is not None and group in reader.listing, "so that a command can name the nearest"
