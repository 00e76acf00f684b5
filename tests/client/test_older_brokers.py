"""Brokers with older versions: what they lack is left out, asked in their way, or refused where that would mislead."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kohort.client.admin import cluster as cluster_calls
from kohort.client.admin import group_offsets, groups, security, topics, transactions
from kohort.client.admin.values import Acl, AclPermission, AclResource
from kohort.client.net.cluster import TRANSACTION, Cluster
from kohort.client.net.cluster import Coordinator as Place
from kohort.client.offsets import (
    GroupIdentity,
    GroupMetadata,
    OffsetAndMetadata,
    commit_offsets,
    committed_offsets,
    list_offsets,
)
from kohort.client.producer.core import ProducerCore, producer_config
from kohort.client.producer.transactions import TransactionManager, TxnState
from kohort.errors import ErrorCode, InvalidInputError, KafkaError
from kohort.ids import AclOperation, AclPattern, TopicPartition
from kohort.wire.cluster_admin import UpdateFeaturesResponse
from kohort.wire.data import ListOffsetsResponse
from kohort.wire.discovery import DeleteTopicsResponse
from kohort.wire.framing import APIS
from kohort.wire.groups import ListGroupsResponse
from kohort.wire.offsets import OffsetCommitResponse, OffsetFetchResponse
from kohort.wire.security import DescribeAclsResponse
from kohort.wire.transactions import AddPartitionsToTxnResponse, InitProducerIdResponse
from tests.client import test_membership, test_membership_consumer
from tests.client.virtual import VirtualCluster

A0 = TopicPartition("a", 0)
KEYS = {api.name: key for key, api in APIS.items()}


def older(**highest: int) -> VirtualCluster:
    """A cluster that knows these APIs up to these versions only."""
    return VirtualCluster(
        settings={"group_id": "g"}, topics={"a": 1}, highest={KEYS[name]: version for name, version in highest.items()}
    )


Call = Callable[[Cluster], Coroutine[Any, Any, Any]]
REFUSED: dict[str, tuple[dict[str, int], Call]] = {
    "groups by state": ({"ListGroups": 3}, lambda at: groups.list_groups(at, states=["Stable"])),
    "groups by type": ({"ListGroups": 4}, lambda at: groups.list_groups(at, types=["consumer"])),
    "members by instance": (
        {"LeaveGroup": 2},
        lambda at: groups.remove_members_from_consumer_group(at, "g", ["one"], timeout_ms=2000),
    ),
    "stable offsets": (
        {"OffsetFetch": 6},
        lambda at: group_offsets.list_consumer_group_offsets(at, "g", [A0], require_stable=True, timeout_ms=2000),
    ),
    "features": ({"ApiVersions": 2}, cluster_calls.describe_features),
    "only validating": (
        {"UpdateFeatures": 0},
        lambda at: cluster_calls.update_features(at, {"group.version": 1}, validate_only=True),
    ),
    "transactions by duration": ({"ListTransactions": 0}, lambda at: transactions.list_transactions(at, open_for_ms=5)),
    "transactions by pattern": ({"ListTransactions": 1}, lambda at: transactions.list_transactions(at, pattern="a.*")),
    "a commit of a static member": (
        {"OffsetCommit": 6},
        lambda at: commit_offsets(at, "g", {A0: OffsetAndMetadata(1)}, GroupIdentity(1, "m", "one")),
    ),
    "the end of what is committed": ({"ListOffsets": 1}, lambda at: list_offsets(at, {A0: -1}, read_committed=True)),
    "the coordinator of a transactional id": (
        {"FindCoordinator": 0},
        lambda at: at.coordinator(Place("t", TRANSACTION)),
    ),
}


def all_of(results: Any) -> Any:
    """The values of an admin call; raises the first error among its outcomes."""
    return results.all()


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_older_version_can_not_be_asked_is_refused_and_not_asked_without_it(name: str) -> None:
    highest, call = REFUSED[name]
    world = older(**highest)
    asked = next(iter(highest))
    with pytest.raises(KafkaError) as caught:
        all_of(world.call(call(world.cluster)))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    if asked != "ApiVersions":
        assert world.sent(asked) == []


@pytest.mark.parametrize(("api", "newest"), [("JoinGroup", 4), ("SyncGroup", 2), ("Heartbeat", 2)])
def test_a_static_member_gets_an_error_where_its_coordinator_knows_none(api: str, newest: int) -> None:
    trial = test_membership.Coordinator(group_instance_id="one")
    trial.world.highest[KEYS[api]] = newest
    trial.subscribe("a")
    trial.world.run(5_000)
    assert trial.member.error is not None
    assert trial.member.error.code is ErrorCode.UNSUPPORTED_VERSION
    assert "group_instance_id" in str(trial.member.error)
    assert trial.world.sent(api) == []


@pytest.mark.parametrize("newest", [0, 4, 9])
def test_a_member_joins_by_any_version(newest: int) -> None:
    trial = test_membership.Coordinator()
    for api in ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"):
        trial.world.highest[KEYS[api]] = min(newest, APIS[KEYS[api]].max_version)
    if newest < 4:
        trial.member._member_id = "m-1"
    member = trial.subscribe("a")
    assert member.assignment.partitions == test_membership.parts(0, 1, 2, 3)
    trial.world.call(member.leave("the test is over"))
    [left] = trial.world.sent("LeaveGroup")
    if newest < 3:
        assert left.message.member_id == "m-1" and left.message.members == []
    else:
        assert [entry.member_id for entry in left.message.members] == ["m-1"] and left.message.member_id == ""
        assert left.message.members[0].reason == ("the test is over" if newest >= 5 else None)


def test_a_coordinator_without_patterns_gets_the_topics_that_match() -> None:
    trial = test_membership_consumer.Coordinator()
    trial.world.highest[KEYS["ConsumerGroupHeartbeat"]] = 0
    trial.news = test_membership_consumer.parts(0, topic="b")
    member = trial.subscribe(pattern="^b$")
    named = [beat.subscribed_topic_names for beat in trial.beats() if beat.subscribed_topic_names]
    assert named == [["b"]]
    assert all(beat.subscribed_topic_regex is None for beat in trial.beats())
    assert member.assignment.partitions == test_membership_consumer.parts(0, topic="b")


@pytest.mark.parametrize("newest", [1, 5, 7, 8, 9, 10])
def test_committed_offsets_are_asked_for_in_the_layout_of_any_version(newest: int) -> None:
    world = older(OffsetFetch=newest)
    world.ids["a"] = test_membership_consumer.IDS["a"]
    world.call(world.cluster.describe_topics(["a"]))

    def committed(message: Any, version: int) -> OffsetFetchResponse:
        if version >= 8:
            [group] = message.groups
            [topic] = group.topics
            assert (message.group_id, message.topics) == ("", [])
            inner = OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics
            part = inner.OffsetFetchResponsePartitions(partition_index=0, committed_offset=7)
            reported = inner(name=topic.name, topic_id=topic.topic_id, partitions=[part])
            return OffsetFetchResponse(
                groups=[OffsetFetchResponse.OffsetFetchResponseGroup(group_id="g", topics=[reported])]
            )
        assert message.group_id == "g" and message.groups == []
        assert message.require_stable is (version >= 7)
        outer = OffsetFetchResponse.OffsetFetchResponseTopic
        entry = outer.OffsetFetchResponsePartition(partition_index=0, committed_offset=7)
        return OffsetFetchResponse(topics=[outer(name=message.topics[0].name, partitions=[entry])])

    world.handlers["OffsetFetch"] = committed
    found = world.call(committed_offsets(world.cluster, "g", [A0]))
    assert found[A0].offset == 7
    [request] = world.sent("OffsetFetch")
    assert request.version == newest


@pytest.mark.parametrize("newest", [2, 6, 9, 10])
def test_a_commit_names_its_topic_as_the_version_does(newest: int) -> None:
    world = older(OffsetCommit=newest)
    world.ids["a"] = test_membership_consumer.IDS["a"]
    world.call(world.cluster.describe_topics(["a"]))
    world.handlers["OffsetCommit"] = lambda message, version: OffsetCommitResponse()
    world.call(commit_offsets(world.cluster, "g", {A0: OffsetAndMetadata(1, "", 4)}, GroupIdentity(1, "m")))
    [request] = world.sent("OffsetCommit")
    [topic] = request.message.topics
    assert (topic.name == "a", topic.topic_id == world.ids["a"]) == (newest < 10, newest >= 10)
    assert topic.partitions[0].committed_leader_epoch == (4 if newest >= 6 else -1)


@pytest.mark.parametrize("newest", [5, 6])
def test_topics_are_deleted_by_the_layout_of_the_version(newest: int) -> None:
    world = older(DeleteTopics=newest)
    world.call(world.cluster.refresh_metadata())
    answer = DeleteTopicsResponse(responses=[DeleteTopicsResponse.DeletableTopicResult(name="a")])
    world.handlers["DeleteTopics"] = lambda message, version: answer
    world.call(topics.delete_topics(world.cluster, ["a"])).all()
    message = world.sent("DeleteTopics")[0].message
    assert message.topic_names == (["a"] if newest < 6 else [])
    assert [topic.name for topic in message.topics] == (["a"] if newest >= 6 else [])


@pytest.mark.parametrize("newest", [0, 1])
def test_a_feature_may_be_lowered_in_the_words_of_the_version(newest: int) -> None:
    world = older(UpdateFeatures=newest)
    world.handlers["UpdateFeatures"] = lambda message, version: UpdateFeaturesResponse()
    world.call(cluster_calls.update_features(world.cluster, {"group.version": 0}, allow_downgrade=True)).all()
    [update] = world.sent("UpdateFeatures")[0].message.feature_updates
    assert (update.allow_downgrade, update.upgrade_type) == ((True, 1) if newest == 0 else (False, 2))


def test_groups_are_listed_by_any_version() -> None:
    world = older(ListGroups=0)
    entry = ListGroupsResponse.ListedGroup(group_id="g", protocol_type="consumer")
    world.handlers["ListGroups"] = lambda message, version: ListGroupsResponse(groups=[entry])
    assert [group.group_id for group in world.call(groups.list_groups(world.cluster))] == ["g"]


def test_the_end_of_a_log_is_asked_of_any_version() -> None:
    world = older(ListOffsets=1)
    part = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, offset=9)
    topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="a", partitions=[part])
    world.handlers["ListOffsets"] = lambda message, version: ListOffsetsResponse(topics=[topic])
    assert world.call(list_offsets(world.cluster, {A0: -1}))[A0].offset == 9


def begun(world: VirtualCluster) -> TransactionManager:
    """The transactions of a producer that is ready."""
    config = producer_config("127.0.0.1:9092", {"transactional_id": "t", "max_block_ms": 2000})
    own = ProducerCore(world.cluster, config, lambda step: step()).transactions
    assert own is not None
    world.handlers["InitProducerId"] = lambda message, version: InitProducerIdResponse(producer_id=5, producer_epoch=0)
    world.call(own.init())
    return own


def test_a_coordinator_that_can_not_check_the_member_gets_no_offsets_of_it() -> None:
    """Else a member that lost its partitions could commit for them."""
    world = older(TxnOffsetCommit=2)
    world.cluster.connections.features["transaction.version"] = 2
    own = begun(world)
    own.begin()
    with pytest.raises(InvalidInputError, match="TxnOffsetCommitRequest") as caught:
        world.call(own.send_offsets({A0: 3}, GroupMetadata("g", 4, "m")))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert world.sent("TxnOffsetCommit") == []


def test_a_coordinator_that_can_not_check_the_epoch_is_not_asked_for_the_next_one() -> None:
    """Else a producer that was fenced would fence its successor by aborting."""
    world = older(InitProducerId=2)
    own = begun(world)
    own.begin()
    own._batch_lost(KafkaError("lost", ErrorCode.REQUEST_TIMED_OUT))
    with pytest.raises(KafkaError) as caught:
        world.call(own.end_transaction(commit=False))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert own.state is TxnState.DEAD
    assert len(world.sent("InitProducerId")) == 1


def test_rights_of_a_transactional_id_stay_unchecked_where_a_broker_takes_no_such_request() -> None:
    world = older(AddPartitionsToTxn=-1)
    world.call(transactions.check_transaction_rights(world.cluster, "t", ["a"]))
    assert world.sent("AddPartitionsToTxn") == []


@pytest.mark.parametrize(
    ("code", "again"),
    [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True), (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False)],
    ids=["a topic that the coordinator has not heard of", "a topic without a right"],
)
def test_a_transaction_fails_by_the_partition_that_was_refused_and_not_by_those_that_were_not_tried(
    code: ErrorCode, again: bool
) -> None:
    """A coordinator that refuses one partition adds none of the request. Source: KIP-98."""
    world = VirtualCluster(topics={"a": 1, "b": 1})
    own = begun(world)
    own.begin()
    refusals = [{"a": ErrorCode.OPERATION_NOT_ATTEMPTED, "b": code}, {}]

    def added(message: Any, version: int) -> AddPartitionsToTxnResponse:
        codes = refusals.pop(0)
        make = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        part = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                make(
                    name=topic.name,
                    results_by_partition=[
                        part(partition_index=0, partition_error_code=codes.get(topic.name, ErrorCode.NONE))
                    ],
                )
                for topic in message.v3_and_below_topics
            ]
        )

    world.handlers["AddPartitionsToTxn"] = added
    assert not own._may_send(A0)
    assert not own._may_send(TopicPartition("b", 0))
    world.run(1000)
    assert own._may_send(A0) is again
    if again:
        assert own.state is TxnState.OPEN
    else:
        assert own.cause is not None
        assert own.cause.code is code
        assert "b-0" in own.cause.message


# -- Newer brokers, whose access rules have numbers that this version does not know


def with_rule(**changed: int) -> VirtualCluster:
    """A cluster with two rules, of which one has such a number."""
    world = VirtualCluster(topics={"a": 1})
    make = DescribeAclsResponse.DescribeAclsResource
    numbers = {"operation": AclOperation.READ, "permission_type": AclPermission.ALLOW}
    of_rule = numbers | {name: number for name, number in changed.items() if name in numbers}
    of_resource = {"resource_type": AclResource.TOPIC, "pattern_type": AclPattern.LITERAL}
    of_resource |= {name: number for name, number in changed.items() if name in of_resource}
    known = make.AclDescription(principal="User:bob", host="*", **numbers)
    newer = make.AclDescription(principal="User:eve", host="*", **of_rule)
    resources = [
        make(resource_name="a", resource_type=AclResource.TOPIC, pattern_type=AclPattern.LITERAL, acls=[known]),
        make(resource_name="b", acls=[newer], **of_resource),
    ]
    world.handlers["DescribeAcls"] = lambda message, version: DescribeAclsResponse(resources=resources)
    return world


NEWER = [{"operation": 99}, {"resource_type": 99}, {"pattern_type": 99}, {"permission_type": 99}]


@pytest.mark.parametrize("changed", NEWER, ids=str)
def test_list_of_rules_that_can_t_be_whole_is_refused(changed: dict[str, int]) -> None:
    world = with_rule(**changed)
    with pytest.raises(KafkaError, match="a rule of User:eve .* a later version") as refused:
        world.call(security.describe_acls(world.cluster))
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("changed", NEWER, ids=str)
def test_rules_that_decide_leave_out_what_no_request_asks_for(changed: dict[str, int]) -> None:
    """A coordinator's authorizer reads them; a rule that may deny something must not be left out."""
    world = with_rule(**changed)
    if "operation" in changed or "resource_type" in changed:
        rules = world.call(security.list_enforceable_acls(world.cluster, timeout_ms=1000))
        assert rules == [Acl("User:bob", AclOperation.READ, AclResource.TOPIC, "a")]
    else:
        with pytest.raises(KafkaError, match="a rule of User:eve"):
            world.call(security.list_enforceable_acls(world.cluster, timeout_ms=1000))
