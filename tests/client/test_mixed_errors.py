"""Answers in which several partitions fail: an error that no retry cures counts at once, and the others go on."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.client.offsets import (
    GroupIdentity,
    OffsetAndMetadata,
    commit_offsets,
    committed_offsets,
    list_offsets,
)
from kohort.errors import ErrorCode, KafkaError, NotAuthorizedError
from kohort.wire.data import ListOffsetsResponse
from kohort.wire.offsets import OffsetCommitResponse, OffsetFetchResponse
from tests.client.virtual import VirtualCluster
from tests.client.written_log import A0, A1, Log, offsets

FINAL = ErrorCode.TOPIC_AUTHORIZATION_FAILED
LATER = ErrorCode.UNSTABLE_OFFSET_COMMIT
MIXED = pytest.mark.parametrize("codes", [(LATER, FINAL), (FINAL, LATER)], ids=["final last", "final first"])


def world() -> VirtualCluster:
    return VirtualCluster(settings={"group_id": "g"}, topics={"a": 2}, highest={8: 9, 9: 9})


def fetched(codes: tuple[ErrorCode, ErrorCode], offset: int = 7) -> Any:
    group = OffsetFetchResponse.OffsetFetchResponseGroup
    topic = group.OffsetFetchResponseTopics
    parts = [
        topic.OffsetFetchResponsePartitions(
            partition_index=index, committed_offset=-1 if code else offset, error_code=code
        )
        for index, code in enumerate(codes)
    ]
    return OffsetFetchResponse(groups=[group(group_id="g", topics=[topic(name="a", partitions=parts)])])


@MIXED
def test_final_error_of_a_commit_is_raised_at_once(codes: tuple[ErrorCode, ErrorCode]) -> None:
    cluster = world()
    topic = OffsetCommitResponse.OffsetCommitResponseTopic
    parts = [
        topic.OffsetCommitResponsePartition(partition_index=index, error_code=code) for index, code in enumerate(codes)
    ]
    cluster.handlers["OffsetCommit"] = lambda *_: OffsetCommitResponse(topics=[topic(name="a", partitions=parts)])
    values = {A0: OffsetAndMetadata(1), A1: OffsetAndMetadata(1)}
    with pytest.raises(NotAuthorizedError):
        cluster.call(commit_offsets(cluster.cluster, "g", values, GroupIdentity()))
    assert len(cluster.sent("OffsetCommit")) == 1


@MIXED
def test_final_error_of_committed_offsets_is_raised_at_once(codes: tuple[ErrorCode, ErrorCode]) -> None:
    cluster = world()
    cluster.handlers["OffsetFetch"] = lambda *_: fetched(codes)
    with pytest.raises(NotAuthorizedError):
        cluster.call(committed_offsets(cluster.cluster, "g", [A0, A1]))
    assert len(cluster.sent("OffsetFetch")) == 1


def test_committed_offsets_that_came_are_not_asked_for_again() -> None:
    cluster = world()
    answers = [fetched((LATER, ErrorCode.NONE)), fetched((ErrorCode.NONE, ErrorCode.NONE), 8)]
    cluster.handlers["OffsetFetch"] = lambda *_: answers.pop(0)
    cluster.call(committed_offsets(cluster.cluster, "g", [A0, A1]))
    (again,) = cluster.sent("OffsetFetch")[1].message.groups[0].topics
    assert again.partition_indexes == [0]


@MIXED
def test_final_error_of_a_search_is_raised_at_once(codes: tuple[ErrorCode, ErrorCode]) -> None:
    cluster = world()
    topic = ListOffsetsResponse.ListOffsetsTopicResponse
    parts = [
        topic.ListOffsetsPartitionResponse(partition_index=index, error_code=code) for index, code in enumerate(codes)
    ]
    cluster.handlers["ListOffsets"] = lambda *_: ListOffsetsResponse(topics=[topic(name="a", partitions=parts)])
    with pytest.raises(NotAuthorizedError):
        cluster.call(list_offsets(cluster.cluster, {A0: 0, A1: 0}))
    assert len(cluster.sent("ListOffsets")) == 1


class Group(Log):
    """The log, read for a group whose committed offsets come with these errors."""

    def __init__(self, codes: tuple[ErrorCode, ErrorCode]) -> None:
        super().__init__({A0: 100, A1: 100}, group_id="g")
        self.world.highest[9] = 9
        self.world.handlers["OffsetFetch"] = lambda *_: fetched(codes, 50)


@pytest.mark.parametrize("code", [LATER, FINAL], ids=["open transaction", "no right"])
def test_partition_without_a_known_offset_does_not_keep_the_others_from_being_read(code: ErrorCode) -> None:
    """A transaction may stay open for a quarter of an hour."""
    log = Group((code, ErrorCode.NONE))
    if code is FINAL:
        with pytest.raises(KafkaError):
            log.poll()
    assert offsets(log.poll(), A1)[0] == 50


def test_partition_without_a_known_offset_does_not_keep_the_others_from_their_reset() -> None:
    log = Group((LATER, ErrorCode.NONE))
    log.world.handlers["OffsetFetch"] = lambda *_: fetched((LATER, ErrorCode.NONE), -1)
    assert offsets(log.poll(), A1)[0] == 0


class HalfOfTheLog(Log):
    """ListOffsets finds the leader of one partition gone, for ever."""

    def list_offsets(self, message: Any, version: int) -> Any:
        answer = super().list_offsets(message, version)
        for topic in answer.topics:
            for part in topic.partitions:
                if part.partition_index == A0.partition:
                    part.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return answer


def test_partition_without_a_leader_does_not_keep_the_others_from_their_reset() -> None:
    log = HalfOfTheLog({A0: 100, A1: 100})
    assert offsets(log.poll(), A1)[0] == 0
