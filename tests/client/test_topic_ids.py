"""A topic that was deleted and made again is another topic: commits, committed offsets and positions go by its id."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import pytest

from kohort import Admin, Broker, Consumer, Producer
from kohort.client.admin.values import NewTopic
from kohort.client.offsets import GroupIdentity, OffsetAndMetadata, commit_offsets, committed_offsets
from kohort.errors import CommitFailedError, ErrorCode, NotFoundError
from kohort.ids import TopicPartition
from kohort.wire.offsets import OffsetCommitResponse, OffsetFetchResponse
from kohort.wire.transactions import TxnOffsetCommitResponse
from tests.client.test_older_brokers import begun
from tests.client.virtual import VirtualCluster
from tests.client.written_log import A0, A1, Log, offsets

OLD, NEW = UUID(int=1), UUID(int=2)


class Coordinator:
    """Keeps offsets by topic id, as Kafka does from version 10 on; `hidden` answers UNKNOWN_TOPIC_ID so often."""

    def __init__(self) -> None:
        self.world = VirtualCluster(settings={"group_id": "g"}, topics={"a": 2}, ids={"a": OLD})
        self.world.handlers |= {"OffsetCommit": self.commit, "OffsetFetch": self.fetch}
        self.kept: dict[tuple[UUID, int], int] = {}
        self.hidden = 0
        self.world.call(self.world.cluster.describe_topics(["a"]))

    def code(self, topic_id: UUID) -> ErrorCode:
        if self.hidden:
            self.hidden -= 1
            return ErrorCode.UNKNOWN_TOPIC_ID
        return ErrorCode.NONE if topic_id == self.world.ids["a"] else ErrorCode.UNKNOWN_TOPIC_ID

    def commit(self, message: Any, version: int) -> Any:
        assert version == 10
        topics = []
        for topic in message.topics:
            code = self.code(topic.topic_id)
            made = OffsetCommitResponse.OffsetCommitResponseTopic(topic_id=topic.topic_id)
            for part in topic.partitions:
                if not code:
                    self.kept[topic.topic_id, part.partition_index] = part.committed_offset
                kind = OffsetCommitResponse.OffsetCommitResponsePartition
                made.partitions.append(kind(partition_index=part.partition_index, error_code=code))
            topics.append(made)
        return OffsetCommitResponse(topics=topics)

    def fetch(self, message: Any, version: int) -> Any:
        assert version == 10
        (group,) = message.groups
        answer = OffsetFetchResponse.OffsetFetchResponseGroup(group_id="g")
        for topic in group.topics:
            code = self.code(topic.topic_id)
            made = OffsetFetchResponse.OffsetFetchResponseTopics(topic_id=topic.topic_id)
            for number in topic.partition_indexes:
                offset = -1 if code else self.kept.get((topic.topic_id, number), -1)
                kind = OffsetFetchResponse.OffsetFetchResponsePartitions
                made.partitions.append(kind(partition_index=number, committed_offset=offset, error_code=code))
            answer.topics.append(made)
        return OffsetFetchResponse(groups=[answer])

    def do_commit(self, offset: int, **more: Any) -> None:
        values = {A0: OffsetAndMetadata(offset)}
        self.world.call(commit_offsets(self.world.cluster, "g", values, GroupIdentity(), 5000, **more))

    def committed(self) -> int | None:
        found = self.world.call(committed_offsets(self.world.cluster, "g", [A0, A1], timeout_ms=5000))
        assert found[A1] is None
        return None if found[A0] is None else found[A0].offset


def test_offsets_are_committed_and_read_by_id() -> None:
    coordinator = Coordinator()
    coordinator.do_commit(7)
    assert coordinator.kept == {(OLD, 0): 7}
    assert coordinator.committed() == 7


def test_a_coordinator_that_has_not_heard_of_the_topic_yet_is_asked_again() -> None:
    coordinator = Coordinator()
    coordinator.hidden = 2
    coordinator.do_commit(7)
    coordinator.hidden = 2
    assert coordinator.committed() == 7


def test_offsets_of_a_topic_that_is_gone_are_refused_and_not_given_to_its_successor() -> None:
    coordinator = Coordinator()
    coordinator.world.ids["a"] = NEW
    with pytest.raises(NotFoundError, match="topic 'a' was deleted since") as caught:
        coordinator.do_commit(7, ids={"a": OLD})
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_ID
    assert coordinator.kept == {}


def test_committed_offsets_are_those_of_the_topic_as_it_is_now() -> None:
    coordinator = Coordinator()
    coordinator.do_commit(7)
    coordinator.world.ids["a"] = NEW
    assert coordinator.committed() is None
    coordinator.do_commit(3)
    assert coordinator.committed() == 3


def test_positions_of_a_topic_that_is_gone_do_not_hold_in_its_successor() -> None:
    log = Log({A0: 100})
    log.world.ids["a"] = OLD
    log.sessions = {}
    while offsets(log.poll(), A0)[-1] < 59:
        pass
    log.world.ids["a"] = NEW
    log.ends[A0] = 80
    log.world.call(log.core.cluster.describe_topics(["a"]))
    assert offsets(log.poll(), A0)[0] == 0


def test_no_position_is_looked_for_while_the_group_has_not_said_whose_the_partitions_are() -> None:
    log = Log({A0: 20, A1: 20})
    assert log.poll()
    log.core.partitions.forget_position(A0, None)
    log.core.partitions.withhold_positions_of({"a"})
    assert log.core.partitions.partitions_without_position() == []
    log.core.partitions.withhold_positions_of(set())
    assert A0 in log.core.partitions.partitions_without_position()


@pytest.mark.kohort_broker({"group.initial.rebalance.delay.ms": 0})
@pytest.mark.parametrize("count", [20, 80], ids=["fewer", "more"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_reads_a_topic_that_was_made_again_from_its_beginning(
    kohort_broker: Broker, protocol: str, count: int
) -> None:
    servers = kohort_broker.bootstrap_servers
    settings = {
        "group_id": f"g-{protocol}-{count}",
        "group_protocol": protocol,
        "auto_offset_reset": "earliest",
        "metadata_max_age_ms": 500,
        "allow_auto_create_topics": False,
    }
    with Admin(servers) as admin, Consumer(servers, **settings) as consumer:
        _make(admin, servers, "old", 50)
        consumer.subscribe(["again"])
        assert _read(consumer, 50) == ["old"] * 50
        admin.delete_topics(["again"]).all()
        _make(admin, servers, "new", count)
        assert _read(consumer, count) == ["new"] * count
        consumer.commit()
        part = TopicPartition("again", 0)
        assert consumer.assignment() == {part}
        committed = consumer.committed([part])[part]
        assert committed is not None and committed.offset == count


@pytest.mark.parametrize("count", [20, 80], ids=["fewer", "more"])
def test_a_topic_made_again_is_read_from_its_beginning_and_its_offsets_committed(
    kohort_broker: Broker, count: int
) -> None:
    servers = kohort_broker.bootstrap_servers
    part = TopicPartition("again", 0)
    with (
        Admin(servers) as admin,
        Consumer(
            servers,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            metadata_max_age_ms=500,
            allow_auto_create_topics=False,
        ) as consumer,
    ):
        _make(admin, servers, "old", 50)
        consumer.assign([part])
        assert _read(consumer, 50) == ["old"] * 50
        consumer.commit()
        admin.delete_topics(["again"]).all()
        _make(admin, servers, "new", count)
        assert _read(consumer, count) == ["new"] * count
        consumer.commit()
        committed = consumer.committed([part])[part]
        assert committed is not None and committed.offset == count


def _make(admin: Admin, servers: str, text: str, count: int) -> None:
    admin.create_topics([NewTopic("again", 1)]).all()
    with Producer(servers) as producer:
        for _ in range(count):
            producer.send("again", text)


def _read(consumer: Consumer, count: int) -> list[str]:
    seen: list[str] = []
    deadline = time.monotonic() + 60
    while len(seen) < count and time.monotonic() < deadline:
        seen += [record.value.decode() for record in consumer.poll(500)]
    return seen


class TransactionalCoordinator(Coordinator):
    """Takes offsets in transactions by topic id, as Kafka does from TxnOffsetCommit 6 on."""

    def __init__(self) -> None:
        super().__init__()
        self.world.handlers["TxnOffsetCommit"] = self.commit_in_transaction
        self.world.cluster.connections.features["transaction.version"] = 2
        self.transactions = begun(self.world)
        self.transactions.begin()

    def commit_in_transaction(self, message: Any, version: int) -> Any:
        assert version == 6
        (topic,) = message.topics
        code = self.code(topic.topic_id)
        kind = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
        parts = [
            kind.TxnOffsetCommitResponsePartition(partition_index=part.partition_index, error_code=code)
            for part in topic.partitions
        ]
        if not code:
            self.kept |= {(topic.topic_id, part.partition_index): part.committed_offset for part in topic.partitions}
        return TxnOffsetCommitResponse(topics=[kind(topic_id=topic.topic_id, partitions=parts)])


def test_offsets_in_a_transaction_go_by_topic_id_and_wait_for_a_coordinator_that_has_not_heard_of_it() -> None:
    side = TransactionalCoordinator()
    side.hidden = 2
    side.world.call(side.transactions.send_offsets({A0: 3, A1: 4}, "g"))
    assert side.kept == {(OLD, 0): 3, (OLD, 1): 4}


def test_offsets_in_a_transaction_of_a_topic_that_was_made_again_are_refused() -> None:
    side = TransactionalCoordinator()
    side.world.ids["a"] = NEW
    with pytest.raises(NotFoundError, match="'a' was deleted since"):
        side.world.call(side.transactions.send_offsets({A0: 3}, "g"))
    assert side.kept == {}


def test_offsets_in_a_transaction_for_a_group_that_has_gone_are_a_failed_commit() -> None:
    side = TransactionalCoordinator()
    side.code = lambda topic_id: ErrorCode.GROUP_ID_NOT_FOUND  # type: ignore[method-assign]
    with pytest.raises(CommitFailedError, match="no group 'g'"):
        side.world.call(side.transactions.send_offsets({A0: 3}, "g"))
