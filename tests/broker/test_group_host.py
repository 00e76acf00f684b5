"""Groups in processes that keep no data: the broker's own handlers, asked by our own client over real connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from kohort import Admin
from kohort.broker.api import group_offsets
from kohort.client.group.member import GroupMember
from kohort.errors import ErrorCode
from kohort.groups.effects import FetchedOffset
from kohort.wire.discovery import ApiVersionsRequest, DescribeClusterRequest, MetadataRequest
from kohort.wire.groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    ListGroupsRequest,
)
from kohort.wire.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from kohort.wire.transactions import TxnOffsetCommitRequest
from tests.broker.raw import RawClient
from tests.broker.storeless import PARTITIONS, TOPIC, Coordinators, part

WAIT_MS = 20_000


@pytest.fixture
def coordinators(tmp_path: Path) -> Iterator[Coordinators]:
    """Two of them, the first with all shards."""
    with Coordinators(tmp_path) as coordinators:
        yield coordinators


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_join_share_and_commit_without_a_store(coordinators: Coordinators, protocol: str) -> None:
    settings = {"topics": [TOPIC], "group_protocol": protocol}
    with GroupMember(coordinators.address(1), "g", **settings) as one:
        assert len(one.wait_assignment(WAIT_MS).partitions) == PARTITIONS
        with GroupMember(coordinators.address(0), "g", **settings) as two:
            gathered = _shared(one, two)
            assert gathered == {part(index) for index in range(PARTITIONS)}
            mine = next(iter(two.assignment().partitions))
            two.commit({mine: 42})
            found = one.committed([mine])
            assert found[mine] is not None
            assert found[mine].offset == 42
        one.release()


def _shared(one: GroupMember, two: GroupMember) -> set[object]:
    """Return both members' partitions when each has a part."""
    while True:
        one.wait_change(200)
        if one.revocation():
            one.release()
        first, second = one.assignment().partitions, two.assignment().partitions
        if first and second and not one.revocation() and not set(first) & set(second):
            return {*first, *second}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_follows_its_group_to_another_process(coordinators: Coordinators, protocol: str) -> None:
    """Shards end and begin while processes run: the member is there still, and so are its offsets."""
    with GroupMember(coordinators.address(), "g", topics=[TOPIC], group_protocol=protocol) as member:
        before = member.wait_assignment(WAIT_MS)
        member.commit({part(0): 7})
        coordinators.move("g", 1)
        member.commit({part(1): 8}, generation=before.generation)
        found = member.committed([part(0), part(1)])
        assert [position.offset for position in found.values() if position is not None] == [7, 8]
        assert member.assignment() == before
        assert member.revocation() is None
    with Admin(coordinators.address(0)) as admin:
        assert admin.describe_consumer_groups(["g"]).result("g").coordinator == 1


def test_what_is_asked_of_a_shard_that_is_not_here_is_refused(coordinators: Coordinators) -> None:
    with RawClient(coordinators.address(1)) as client:
        beat = client.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"))
        assert beat.error_code == ErrorCode.NOT_COORDINATOR
        described = client.ask(DescribeGroupsRequest(groups=["g", "h"]))
        assert [group.error_code for group in described.groups] == [ErrorCode.NOT_COORDINATOR] * 2
        assert client.ask(ListGroupsRequest()).groups == []
        coordinators.move("g", 1)
        again = client.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"))
        assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_each_process_tells_the_same_places(coordinators: Coordinators) -> None:
    coordinators.move("g", 1)
    for number in range(2):
        with RawClient(coordinators.address(number)) as client:
            nodes = {(broker.node_id, broker.port) for broker in client.ask(MetadataRequest(topics=[])).brokers}
            assert nodes == {*coordinators.map.ports.items()}
            cluster = client.ask(DescribeClusterRequest())
            assert {(broker.broker_id, broker.port) for broker in cluster.brokers} == nodes
            found = client.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])).coordinators[0]
            assert (found.node_id, found.port) == (1, coordinators.map.ports[1])
            old = client.ask(FindCoordinatorRequest(key="g", key_type=0), version=3)
            assert (old.node_id, old.port) == (1, coordinators.map.ports[1])
            other = client.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=["x"])).coordinators[0]
            assert (other.error_code, other.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


def test_topics_are_described_as_they_are_and_none_is_made(coordinators: Coordinators) -> None:
    with RawClient(coordinators.address()) as client:
        asked = MetadataRequest.MetadataRequestTopic
        answer = client.ask(MetadataRequest(topics=[asked(name=TOPIC), asked(name="missing")]))
        there, missing = answer.topics
        assert [(partition.leader_id, partition.leader_epoch) for partition in there.partitions] == [
            (0, 3)
        ] * PARTITIONS
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_positions_of_topics_that_are_only_known_by_name_and_id(coordinators: Coordinators) -> None:
    """Commits and fetches by either; a partition that the topic lacks is refused; a deleted position is gone."""
    topic = coordinators.topics.by_name[TOPIC]
    commit, fetch, delete = OffsetCommitRequest, OffsetFetchRequest, OffsetDeleteRequest
    to_commit = commit.OffsetCommitRequestTopic
    parts = [
        to_commit.OffsetCommitRequestPartition(partition_index=index, committed_offset=5) for index in (0, PARTITIONS)
    ]
    refused = [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    with RawClient(coordinators.address()) as client:
        by_name = client.ask(commit(group_id="g", topics=[to_commit(name=TOPIC, partitions=parts)]), version=9)
        assert [partition.error_code for partition in by_name.topics[0].partitions] == refused
        by_id = client.ask(commit(group_id="g", topics=[to_commit(topic_id=topic.id, partitions=parts)]))
        assert [partition.error_code for partition in by_id.topics[0].partitions] == refused
        group = fetch.OffsetFetchRequestGroup
        wanted = group.OffsetFetchRequestTopics(topic_id=topic.id, partition_indexes=[0])
        found = client.ask(fetch(groups=[group(group_id="g", topics=[wanted])])).groups[0]
        assert found.topics[0].partitions[0].committed_offset == 5
        of_topic = delete.OffsetDeleteRequestTopic
        numbers = [of_topic.OffsetDeleteRequestPartition(partition_index=index) for index in (0, PARTITIONS)]
        deleted = client.ask(delete(group_id="g", topics=[of_topic(name=TOPIC, partitions=numbers)]))
        assert [partition.error_code for partition in deleted.topics[0].partitions] == refused
        assert client.ask(fetch(groups=[group(group_id="g")])).groups[0].topics == []


def test_offsets_in_transactions_are_not_offered(coordinators: Coordinators) -> None:
    with RawClient(coordinators.address()) as client:
        keys = {api_key.api_key for api_key in client.ask(ApiVersionsRequest(), version=0).api_keys}
        assert not keys & {0, 1, 22, 25, 28}
        client.send(TxnOffsetCommitRequest(group_id="g", transactional_id="x"))
        assert client.closed()


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "created again"])
def test_topic_deleted_while_its_offsets_are_fetched_is_not_left_out(coordinators: Coordinators, again: bool) -> None:
    """The answer names what was asked for: a client can't tell an answer without it from a damaged one."""
    asked, name = uuid4(), TOPIC if again else "gone"
    host: Any = SimpleNamespace(topics=coordinators.topics)
    (topic,) = group_offsets._fetched(host, [FetchedOffset(name, 3, 5)], {name: asked}, by_id=True)
    (part,) = topic.partitions
    assert (topic.topic_id, part.partition_index, part.committed_offset) == (asked, 3, -1)
    assert part.error_code == ErrorCode.UNKNOWN_TOPIC_ID
