"""Lag that can be trusted: `max(0, end - max(committed, start))`, with the end read after the commit."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.support.waiting import until

from kohort import Admin, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic, PartitionResults
from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import ErrorCode, error_for
from kohort.lag import PartitionLag, group_lag


@pytest.fixture
def admin(servers: str) -> Iterator[Admin]:
    with Admin(servers) as admin:
        yield admin


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


def only(lags: list[PartitionLag]) -> PartitionLag:
    (one,) = lags
    return one


@pytest.mark.parametrize(
    ("committed", "start", "lag"), [(3, 10, 10), (12, 10, 8), (10, 10, 10), (3, 20, 0), (0, 0, 20)]
)
def test_scenario_17_lag_counts_what_the_log_still_holds(
    admin: Admin, filled: TopicPartition, committed: int, start: int, lag: int
) -> None:
    """Records before the log's start can't be read any more, so nobody is behind by them."""
    group = f"{filled.topic}-group"
    commit(admin, group, {filled: committed})
    if start:
        admin.delete_records({filled: start}).all()
    found = only(group_lag(admin, group))
    assert (found.committed, found.log_start, found.log_end, found.lag) == (committed, start, 20, lag)


def test_scenario_17_lag_of_a_quiet_topic_stays_what_it_is(servers: str, admin: Admin, filled: TopicPartition) -> None:
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
        assert only(group_lag(admin, read)).lag == 0
        assert only(group_lag(admin, left)).lag == 5
    fill(servers, filled.topic, 1)
    assert only(group_lag(admin, read)).lag == 1


def test_scenario_17_lag_of_a_deleted_topic_is_not_told_and_hides_no_other(
    servers: str, admin: Admin, filled: TopicPartition
) -> None:
    """The topic's offsets go with it. A partition with an owner shows the reason, the others their lag."""
    group, doomed = f"{filled.topic}-group", TopicPartition(f"{filled.topic}-doomed", 0)
    admin.create_topics([NewTopic(doomed.topic, 1, 1)]).all()
    fill(servers, doomed.topic, 4)
    commit(admin, group, {filled: 13, doomed: 1})
    assert [found.lag for found in group_lag(admin, group)] == [7, 3]
    admin.delete_topics([doomed.topic]).all()
    until(lambda: doomed not in admin.list_consumer_group_offsets(group).all(), "its offsets are gone", 30)
    assert [(found.partition, found.lag) for found in group_lag(admin, group)] == [(filled, 7)]
    kept, gone = group_lag(admin, group, [doomed])
    assert (kept.partition, kept.lag, kept.error) == (filled, 7, None)
    assert (gone.partition, gone.lag, gone.log_start, gone.log_end) == (doomed, None, None, None)
    assert gone.error is not None and "UNKNOWN_TOPIC_OR_PARTITION" in gone.error


class Deleting(Admin):
    """An administration under which a topic is deleted as soon as a group's offsets have been read."""

    doomed: str

    def list_consumer_group_offsets(self, *args: Any, **kwargs: Any) -> Any:
        found = super().list_consumer_group_offsets(*args, **kwargs)
        super().delete_topics([self.doomed]).all()
        until(lambda: self.doomed not in {topic.name for topic in self.list_topics()}, "the topic is gone", 30)
        return found


def test_scenario_17_a_topic_that_goes_while_lag_is_read_hides_no_other(
    servers: str, admin: Admin, filled: TopicPartition
) -> None:
    group, doomed = f"{filled.topic}-group", TopicPartition(f"{filled.topic}-doomed", 0)
    admin.create_topics([NewTopic(doomed.topic, 1, 1)]).all()
    commit(admin, group, {filled: 13, doomed: 0})
    with Deleting(servers) as deleting:
        deleting.doomed = doomed.topic
        kept, gone = group_lag(deleting, group)
    assert (kept.partition, kept.lag, kept.error) == (filled, 7, None)
    assert (gone.partition, gone.committed, gone.lag) == (doomed, 0, None)
    assert gone.error is not None


def test_scenario_17_lag_of_an_abandoned_topic_is_told_apart(
    servers: str, admin: Admin, filled: TopicPartition
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
        by_partition = {found.partition: found for found in group_lag(admin, group, owned)}
        assert owned == {read}
        assert (by_partition[filled].committed, by_partition[filled].lag) == (5, 25)
        assert (by_partition[read].committed, by_partition[read].lag) == (None, None)
        assert by_partition[read].log_end == 0
        admin.delete_consumer_group_offsets(group, [filled]).all()
        assert [found.partition for found in group_lag(admin, group, owned)] == [read]


def test_scenario_17_a_commit_past_the_end_is_no_lag(admin: Admin, filled: TopicPartition) -> None:
    """Kafka takes any offset: one past the end is no negative lag, and the records written up to it are none either."""
    group = f"{filled.topic}-group"
    commit(admin, group, {filled: 25})
    found = only(group_lag(admin, group))
    assert (found.committed, found.log_end, found.lag) == (25, 20, 0)


class Moving(Admin):
    """An administration under which the group reads on, and the log grows, after the first answer about them."""

    partition: TopicPartition
    group: str
    servers: str
    moved = False

    def list_consumer_group_offsets(self, *args: Any, **kwargs: Any) -> Any:
        return self._then_move(super().list_consumer_group_offsets(*args, **kwargs))

    def list_offsets(self, *args: Any, **kwargs: Any) -> Any:
        return self._then_move(super().list_offsets(*args, **kwargs))

    def _then_move(self, answer: Any) -> Any:
        if not self.moved:
            self.moved = True
            fill(self.servers, self.partition.topic, 10)
            commit(self, self.group, {self.partition: 25})
        return answer


def test_scenario_17_the_end_is_read_after_the_commit(servers: str, admin: Admin, filled: TopicPartition) -> None:
    """A commit read after the end is past it, and lag would be 0 while five records wait.

    The other way it is never less.
    """
    group = f"{filled.topic}-group"
    commit(admin, group, {filled: 20})
    with Moving(servers) as moving:
        moving.partition, moving.group, moving.servers = filled, group, servers
        found = only(group_lag(moving, group))
    assert moving.moved
    assert (found.committed, found.log_end, found.lag) == (20, 30, 10)


def test_scenario_17_nothing_committed_is_no_lag_of_zero(admin: Admin, filled: TopicPartition) -> None:
    """Where the group will begin is its clients' choice: that lag is not known, which is not none."""
    found = only(group_lag(admin, f"{filled.topic}-group", [filled]))
    assert (found.committed, found.log_start, found.log_end, found.lag) == (None, 0, 20, None)


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
    admin: Admin, filled: TopicPartition, committed: int, start: int, status: str | None, lost: int | None
) -> None:
    group = f"{filled.topic}-group"
    commit(admin, group, {filled: committed})
    if start:
        admin.delete_records({filled: start}).all()
    found = only(group_lag(admin, group))
    assert (found.status, found.lost) == (status, lost)


class Refusing(Admin):
    """An administration that is refused the offsets of one partition."""

    refused: TopicPartition

    def list_consumer_group_offsets(self, *args: Any, **kwargs: Any) -> Any:
        found = super().list_consumer_group_offsets(*args, **kwargs)
        return PartitionResults(found.values, {self.refused: error_for(ErrorCode.UNSTABLE_OFFSET_COMMIT, "not yet")})


def test_error_of_one_partitions_offset_leaves_the_others_their_lag(
    servers: str, admin: Admin, filled: TopicPartition
) -> None:
    group = f"{filled.topic}-group"
    commit(admin, group, {filled: 13})
    with Refusing(servers) as refusing:
        refusing.refused = TopicPartition(filled.topic, 1)
        known, refused = group_lag(refusing, group)
    assert (known.partition, known.lag, known.error) == (filled, 7, None)
    assert (refused.partition, refused.lag, refused.committed) == (TopicPartition(filled.topic, 1), None, None)
    assert refused.error is not None and "not yet" in refused.error
