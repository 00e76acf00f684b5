"""Scenarios that real groups have failed where the client decides; docs/spec.md lists them all."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.client.offsets import committed_offsets
from kohort.errors import ErrorCode, KafkaError
from kohort.ids import TopicPartition
from kohort.wire.offsets import OffsetFetchResponse
from tests.client.virtual import VirtualCluster


def answer(code: ErrorCode, offset: int) -> Any:
    group = OffsetFetchResponse.OffsetFetchResponseGroup
    topic = group.OffsetFetchResponseTopics
    part = topic.OffsetFetchResponsePartitions(partition_index=0, committed_offset=offset)
    topics = [] if code else [topic(name="a", partitions=[part])]
    return OffsetFetchResponse(groups=[group(group_id="g", topics=topics, error_code=code)])


@pytest.mark.parametrize("code", [ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_scenario_11_a_refused_fetch_of_offsets_is_an_error_and_never_no_offset(code: ErrorCode) -> None:
    """A client that reads a stale epoch as "nothing committed" resets its positions and reads everything again."""
    world = VirtualCluster(settings={"group_id": "g"}, topics={"a": 1}, highest={9: 9})
    world.handlers["OffsetFetch"] = lambda message, version: answer(code, -1)
    with pytest.raises(KafkaError) as caught:
        world.call(committed_offsets(world.cluster, "g", [TopicPartition("a", 0)], timeout_ms=500))
    assert caught.value.code is code


@pytest.mark.parametrize(
    "code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.UNSTABLE_OFFSET_COMMIT]
)
def test_scenario_11_what_may_pass_is_asked_again(code: ErrorCode) -> None:
    world = VirtualCluster(settings={"group_id": "g"}, topics={"a": 1}, highest={9: 9})
    answers = [answer(code, -1), answer(code, -1), answer(ErrorCode.NONE, 7)]
    world.handlers["OffsetFetch"] = lambda message, version: answers.pop(0)
    found = world.call(committed_offsets(world.cluster, "g", [TopicPartition("a", 0)]))
    assert found[TopicPartition("a", 0)].offset == 7


def entry_with(code: ErrorCode, offset: int, index: int = 0) -> Any:
    """An answer without an error of its own, whose entry carries one."""
    reported = answer(ErrorCode.NONE, offset)
    part = reported.groups[0].topics[0].partitions[0]
    part.error_code, part.partition_index = code, index
    return reported


ENTRY_ERRORS = [code for code in ErrorCode if code is not ErrorCode.NONE]


@pytest.mark.parametrize("offset", [-1, 0])
@pytest.mark.parametrize("code", ENTRY_ERRORS, ids=lambda code: code.name)
def test_scenario_11_error_of_an_entry_is_never_an_offset_nor_none(code: ErrorCode, offset: int) -> None:
    """Any of Kafka's codes: what a retry may cure is asked again, the rest is raised with the partition's name."""
    world = VirtualCluster(settings={"group_id": "g"}, topics={"a": 1}, highest={9: 9})
    answers = [entry_with(code, offset), answer(ErrorCode.NONE, 7)]
    world.handlers["OffsetFetch"] = lambda message, version: answers.pop(0)
    question = committed_offsets(world.cluster, "g", [TopicPartition("a", 0)])
    if code.retriable and code is not ErrorCode.CORRUPT_MESSAGE:  # damage is raised, as everywhere in the client
        assert world.call(question)[TopicPartition("a", 0)].offset == 7
        return
    with pytest.raises(KafkaError, match="in a-0") as caught:
        world.call(question)
    assert caught.value.code is code


def test_scenario_11_partition_that_the_answer_leaves_out_is_an_error() -> None:
    world = VirtualCluster(settings={"group_id": "g"}, topics={"a": 2}, highest={9: 9})
    world.handlers["OffsetFetch"] = lambda message, version: entry_with(ErrorCode.NONE, 7, index=1)
    with pytest.raises(KafkaError, match="the answer says nothing of a-0"):
        world.call(committed_offsets(world.cluster, "g", [TopicPartition("a", 0)], timeout_ms=500))
