"""Scenarios that real groups have failed where the client decides; docs/spec.md lists them all."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.client.offset_requests import committed_offsets
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
    """Who takes a stale epoch for "nothing committed" resets its positions and reads everything again."""
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
