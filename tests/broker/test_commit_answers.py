"""Answers to commits and heartbeats: the cached form has the bytes of the one that is built for a single request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kohort import Admin, Broker
from kohort.broker.api import consumer_groups, group_offsets, groups
from kohort.broker.api.group_offsets import encoded_commit_response
from kohort.client.admin.values import NewTopic
from kohort.errors import ErrorCode
from kohort.groups.effects import ConsumerGroupHeartbeatReply
from kohort.wire.discovery import MetadataRequest
from kohort.wire.groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, HeartbeatResponse
from kohort.wire.offsets import OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest
from tests.broker.raw import RawClient

Topic, Part = OffsetCommitRequest.OffsetCommitRequestTopic, OffsetCommitRequest.OffsetCommitRequestPartition
AnswerTopic = OffsetCommitResponse.OffsetCommitResponseTopic
AnswerPart = OffsetCommitResponse.OffsetCommitResponsePartition


@pytest.fixture(scope="module")
def client() -> Iterator[RawClient]:
    with Broker() as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("a", 5), NewTopic("b", 300)]).all()
        with RawClient(broker.bootstrap_servers) as raw:
            yield raw


def commit(
    client: RawClient, version: int, *topics: tuple[str, list[int]]
) -> list[tuple[object, list[tuple[int, int]]]]:
    """Commit twice, as the second answer comes from the cache; return topics with partitions and errors."""
    ids = {topic.name: topic.topic_id for topic in client.ask(MetadataRequest(topics=None), 12).topics}
    parts = [
        Topic(
            **({"topic_id": ids[name]} if version >= 10 else {"name": name}),
            partitions=[Part(partition_index=number, committed_offset=3, committed_metadata="") for number in numbers],
        )
        for name, numbers in topics
    ]
    request = OffsetCommitRequest(group_id="g", topics=parts)
    first, second = client.ask(request, version), client.ask(request, version)
    assert first == second
    names = {topic_id: name for name, topic_id in ids.items()}
    return [
        (
            names[topic.topic_id] if version >= 10 else topic.name,
            [(part.partition_index, part.error_code) for part in topic.partitions],
        )
        for topic in second.topics
    ]


@pytest.mark.parametrize("version", range(2, 11))
def test_answer_names_the_partitions_in_the_order_of_the_request(client: RawClient, version: int) -> None:
    assert commit(client, version, ("b", [7, 2]), ("a", [0])) == [("b", [(7, 0), (2, 0)]), ("a", [(0, 0)])]
    assert commit(client, version, ("a", [0]), ("b", [2, 7])) == [("a", [(0, 0)]), ("b", [(2, 0), (7, 0)])]


def test_answer_has_the_error_of_each_partition_that_is_refused(client: RawClient) -> None:
    assert commit(client, 9, ("a", [1, 2])) == [("a", [(1, 0), (2, 0)])]
    assert commit(client, 9, ("a", [1, 99])) == [("a", [(1, 0), (99, 3)])]
    assert commit(client, 9, ("a", [1]), ("missing", [0])) == [("a", [(1, 0)]), ("missing", [(0, 3)])]


def test_long_commit_stores_what_exists_and_refuses_the_rest(client: RawClient) -> None:
    """Long arrays are decoded and handled as columns, from which the refused positions are taken out."""
    numbers = [298, -1, 299, 300, *range(20)]
    wrong = [(number, 0 if 0 <= number < 300 else 3) for number in numbers]
    few = [(number, 0 if number < 5 else 3) for number in range(9)]
    answer = commit(client, 9, ("b", numbers), ("missing", [0, 1]), ("a", list(range(9))), ("a", []))
    assert answer == [("b", wrong), ("missing", [(0, 3), (1, 3)]), ("a", few), ("a", [])]
    asked = OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)])
    found = client.ask(asked, 8).groups[0].topics
    stored = {(topic.name, part.partition_index): part for topic in found for part in topic.partitions}
    assert {number for name, number in stored if name == "a"} == set(range(5))
    assert {298, 299, *range(20)} <= {number for name, number in stored if name == "b"}
    assert all(part.committed_offset == 3 and part.metadata == "" for part in stored.values())


@pytest.mark.parametrize("count", [2, 9])
def test_commit_without_metadata_stores_an_empty_one(client: RawClient, count: int) -> None:
    parts = [Part(partition_index=number, committed_offset=number, committed_metadata=None) for number in range(count)]
    parts[1].committed_metadata = "m"
    answer = client.ask(OffsetCommitRequest(group_id=f"g{count}", topics=[Topic(name="b", partitions=parts)]), 9)
    assert [part.error_code for part in answer.topics[0].partitions] == [0] * count
    asked = OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=f"g{count}", topics=None)])
    found = client.ask(asked, 8).groups[0].topics[0].partitions
    assert {(part.partition_index, part.committed_offset, part.metadata) for part in found} == {
        (number, number, "m" if number == 1 else "") for number in range(count)
    }


def test_answer_to_many_partitions_is_not_kept(client: RawClient) -> None:
    numbers = list(range(group_offsets.WHOLE_PARTS + 5))
    assert commit(client, 9, ("b", numbers)) == [("b", [(number, 0) for number in numbers])]


@pytest.mark.parametrize("version", range(2, 10))
def test_cached_bytes_are_those_of_the_message(version: int) -> None:
    message = OffsetCommitResponse(
        topics=[AnswerTopic(name="t", partitions=[AnswerPart(partition_index=number) for number in (4, 1)])]
    )
    assert encoded_commit_response(version, (("t", (4, 1)),)) == message.encode(version)


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS])
def test_cached_answer_to_a_heartbeat_is_that_of_the_message(version: int, error: ErrorCode) -> None:
    assert groups._heartbeat_body(version, error) == HeartbeatResponse(error_code=error).encode(version)


def test_cached_answer_to_a_consumer_heartbeat_is_that_of_the_message(client: RawClient) -> None:
    """The first answer of an epoch has an assignment; the later ones are cached bytes."""
    member = ConsumerGroupHeartbeatRequest(group_id="k", member_id="m", rebalance_timeout_ms=60_000)
    member.subscribed_topic_names, member.topic_partitions = ["a"], []
    joined = client.ask(member, 1)
    assert joined.assignment is not None
    later = ConsumerGroupHeartbeatRequest(group_id="k", member_id="m", member_epoch=joined.member_epoch)
    answers = [client.ask(later, 1) for _ in range(3)]
    expected = ConsumerGroupHeartbeatResponse(
        member_id="m", member_epoch=joined.member_epoch, heartbeat_interval_ms=answers[0].heartbeat_interval_ms
    )
    assert answers == [expected] * 3
    assert answers[0].heartbeat_interval_ms > 0
    later.member_epoch += 7
    refused = client.ask(later, 1)
    assert refused.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert refused.error_message


def test_answer_with_a_long_member_id_is_not_kept() -> None:
    fits = ConsumerGroupHeartbeatReply(ErrorCode.NONE, None, "m" * consumer_groups.KEPT_ID_MAX, 3, 5_000)
    assert consumer_groups._is_kept(fits)
    assert not consumer_groups._is_kept(fits._replace(member_id=fits.member_id + "m"))
    assert not consumer_groups._is_kept(fits._replace(assignment=()))
    assert not consumer_groups._is_kept(fits._replace(error=ErrorCode.FENCED_MEMBER_EPOCH))
