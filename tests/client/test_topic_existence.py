"""Topics that were deleted, moved or recreated: the client notices at once."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kohort import Admin, Broker, Producer
from kohort.client.admin.values import NewTopic
from kohort.client.consumer.range_reader import RangeReader
from kohort.client.net.topic_existence import LOOKUP_ATTEMPTS, present_topics
from kohort.client.offsets import LATEST, GroupIdentity, OffsetAndMetadata, commit_offsets, list_offsets
from kohort.errors import ErrorCode, NotFoundError
from kohort.ids import TopicPartition
from kohort.wire.data import FetchRequest, ListOffsetsResponse
from kohort.wire.offsets import OffsetCommitResponse
from tests.client.virtual import VirtualCluster

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)


def answer(codes: list[ErrorCode]) -> Any:
    """Answers ListOffsets with one code after the other, then with offset 9."""

    def list_offsets(message: Any, version: int) -> Any:
        kind = ListOffsetsResponse.ListOffsetsTopicResponse
        topics = []
        code = codes.pop(0) if codes else ErrorCode.NONE
        for topic in message.topics:
            part = kind.ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=-1 if code else 9)
            topics.append(kind(name=topic.name, partitions=[part]))
        return ListOffsetsResponse(topics=topics)

    return list_offsets


def asked_for(world: VirtualCluster, topic: str) -> int:
    """How often Metadata was asked for a topic."""
    return sum(topic in [entry.name for entry in request.message.topics or ()] for request in world.sent("Metadata"))


def test_a_topic_is_gone_when_it_was_unknown_several_times() -> None:
    world = VirtualCluster(topics={"a": 1})
    assert list(world.call(present_topics(world.cluster, ["a", "b"]))) == ["a"]
    assert (asked_for(world, "a"), asked_for(world, "b")) == (1, LOOKUP_ATTEMPTS)


def test_a_topic_that_a_broker_has_not_heard_of_yet_is_there() -> None:
    world = VirtualCluster(topics={})
    task = world.runtime.spawn(present_topics(world.cluster, ["a"]))
    world.run()
    world.topics["a"] = 1
    assert list(world.finish(task)) == ["a"]


def test_offsets_of_what_is_gone_are_left_out_and_not_waited_for() -> None:
    world = VirtualCluster(topics={"a": 1, "b": 1})
    world.handlers["ListOffsets"] = answer([])
    wanted = {A0: LATEST, B0: LATEST}
    assert set(world.call(list_offsets(world.cluster, wanted, skip_missing_partitions=True))) == {A0, B0}
    world.handlers["ListOffsets"] = answer([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
    del world.topics["b"]
    before = world.runtime.now_ms
    assert set(world.call(list_offsets(world.cluster, wanted, skip_missing_partitions=True))) == {A0}
    assert world.runtime.now_ms - before < world.config.default_api_timeout_ms / 10


def test_a_leader_that_moved_is_looked_up_for_a_topic_that_nothing_else_wants() -> None:
    world = VirtualCluster(topics={"a": 1})
    world.handlers["ListOffsets"] = answer([ErrorCode.NOT_LEADER_OR_FOLLOWER])
    assert world.call(list_offsets(world.cluster, {A0: LATEST}))[A0].offset == 9
    assert asked_for(world, "a") == 2


def test_a_commit_by_name_for_a_topic_that_is_gone_is_refused_at_once() -> None:
    """Brokers before Kafka 4.1 know offsets by the topic's name alone."""
    old = UUID(int=1)
    world = VirtualCluster(settings={"group_id": "g"}, topics={"a": 1}, ids={"a": old}, highest={8: 9})

    def commit(message: Any, version: int) -> Any:
        assert version == 9
        kind = OffsetCommitResponse.OffsetCommitResponseTopic
        code = ErrorCode.NONE if "a" in world.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        part = kind.OffsetCommitResponsePartition(partition_index=0, error_code=code)
        return OffsetCommitResponse(topics=[kind(name="a", partitions=[part])])

    world.handlers["OffsetCommit"] = commit

    def do() -> None:
        values = {A0: OffsetAndMetadata(7)}
        world.call(commit_offsets(world.cluster, "g", values, GroupIdentity(), ids={"a": old}))

    do()
    del world.topics["a"]
    with pytest.raises(NotFoundError, match="topic 'a' was deleted since"):
        do()


@pytest.mark.parametrize("fetch", [FetchRequest.MAX_VERSION, 12], ids=["by id", "by name"])
def test_a_range_is_read_of_its_topic_and_of_no_other_of_the_name(
    kohort_broker: Broker, fetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FetchRequest, "MAX_VERSION", fetch)
    servers = kohort_broker.bootstrap_servers

    def make() -> UUID:
        topic_id = admin.create_topics([NewTopic("a", 1)]).all()["a"].topic_id
        with Producer(servers) as producer:
            producer.send("a", b"value")
        return topic_id

    def rows(topic_id: UUID) -> int:
        return sum(batch.num_rows for batch in reader.read(A0, 0, 1, topic_id=topic_id))

    with Admin(servers) as admin, RangeReader(servers) as reader:
        old = make()
        assert rows(old) == 1
        admin.delete_topics(["a"]).all()
        with pytest.raises(NotFoundError, match=rf"topic a \(id {old}\) was deleted"):
            rows(old)
        new = make()
        with pytest.raises(NotFoundError, match=f"made again: its id was {old} and is {new} now"):
            rows(old)
        assert rows(new) == 1
