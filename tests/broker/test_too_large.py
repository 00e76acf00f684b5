"""A record too large for the group journal fails its own request only. The group and its shard go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kohort import Broker
from kohort.errors import ErrorCode
from kohort.wire.groups import ConsumerGroupHeartbeatRequest, JoinGroupRequest
from kohort.wire.offsets import OffsetCommitRequest
from kohort.wire.transactions import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from tests.broker.group_member import Member, committed, subscription
from tests.broker.raw import RawClient, create_topic

LONG = "n" * 40_000
"""Longer than Kafka's records take a name."""
WIDE = "語" * 11_000
"""So is this in bytes, not in characters."""
SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "offset.metadata.max.bytes": 32_767,
}


@pytest.fixture(scope="module")
def one_shard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose groups are all in one shard."""
    with Broker(tmp_path_factory.mktemp("broker"), SETTINGS) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            create_topic(client, "t", 2)
        yield broker


@pytest.fixture
def client(one_shard: Broker) -> Iterator[RawClient]:
    """A connection to it."""
    with RawClient(one_shard.bootstrap_servers) as client:
        yield client


@pytest.fixture(autouse=True)
def neighbour(one_shard: Broker, name: str) -> Iterator[Member]:
    """A member of another group of the shard, which must notice nothing: a reloading shard refuses its heartbeat."""
    with RawClient(one_shard.bootstrap_servers) as client:
        member = Member(client, f"beside-{name}", "t")
        member.join()
        member.sync({member.id: b"all"})
        yield member
        assert member.heartbeat() == ErrorCode.NONE
        assert member.commit("t", 0, 5) == ErrorCode.NONE


def join(client: RawClient, group: str, version: int = 9, **fields: Any) -> int:
    metadata = fields.pop("metadata", subscription("t"))
    names = fields.pop("names", ["range"])
    asked = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type=fields.pop("protocol_type", "consumer"),
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata) for name in names],
        **fields,
    )
    return int(client.ask(asked, version).error_code)


def commit(client: RawClient, group: str, *parts: tuple[int, int, str]) -> list[int]:
    make = OffsetCommitRequest.OffsetCommitRequestPartition
    offsets = [make(partition_index=p, committed_offset=o, committed_metadata=m) for p, o, m in parts]
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=offsets)
    answer = client.ask(OffsetCommitRequest(group_id=group, topics=[topic]), 9)
    return [part.error_code for part in answer.topics[0].partitions]


def heartbeat(client: RawClient, group: str, **fields: Any) -> Any:
    values: dict[str, Any] = {
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 10_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    return client.ask(ConsumerGroupHeartbeatRequest(group_id=group, **(values | fields)), 1)


@pytest.mark.parametrize("group", [LONG, WIDE])
def test_a_group_whose_name_no_record_holds_is_refused(client: RawClient, group: str) -> None:
    assert join(client, group) == ErrorCode.INVALID_GROUP_ID
    assert commit(client, group, (0, 1, "")) == [ErrorCode.INVALID_GROUP_ID]
    assert committed(client, group, "t") == -1
    refused = heartbeat(client, group)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert "GroupId" in refused.error_message


def test_a_transaction_s_offsets_of_such_a_group_are_refused(client: RawClient) -> None:
    made = client.ask(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 4)
    who: dict[str, Any] = {
        "transactional_id": "x",
        "producer_id": made.producer_id,
        "producer_epoch": made.producer_epoch,
    }
    assert client.ask(AddOffsetsToTxnRequest(group_id=LONG, **who), 3).error_code == ErrorCode.NONE
    make = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
        name="t", partitions=[make(partition_index=0, committed_offset=1, committed_metadata="")]
    )
    answer = client.ask(TxnOffsetCommitRequest(group_id=LONG, topics=[topic], **who), 3)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_GROUP_ID
    assert client.ask(EndTxnRequest(committed=False, **who), 3).error_code == ErrorCode.NONE


def test_a_member_whose_names_no_record_holds_is_refused(client: RawClient, name: str) -> None:
    assert join(client, name, group_instance_id=LONG) == ErrorCode.INVALID_REQUEST
    assert join(client, name, names=[LONG]) == ErrorCode.INVALID_REQUEST
    assert join(client, name, protocol_type=WIDE) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("field", ["member_id", "instance_id", "subscribed_topic_regex"])
def test_a_member_of_a_consumer_group_whose_names_no_record_holds_is_refused(
    client: RawClient, name: str, field: str
) -> None:
    refused = heartbeat(client, name, **{field: LONG})
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert "32767" in refused.error_message
    taken = heartbeat(client, name, member_id="other")
    assert taken.error_code == ErrorCode.NONE


def test_a_client_with_a_name_as_long_as_can_be_takes_part(one_shard: Broker, name: str) -> None:
    with RawClient(one_shard.bootstrap_servers, "c" * 32_767) as client:
        member = Member(client, name, "t")
        assert member.join().error_code == ErrorCode.NONE
        assert member.sync({member.id: b"all"}).assignment == b"all"
        assert member.commit("t", 0, 3) == ErrorCode.NONE
        assert committed(client, name, "t") == 3


def test_metadata_that_no_record_holds_is_refused_for_its_partition(client: RawClient, name: str) -> None:
    errors = commit(client, name, (0, 1, WIDE), (1, 2, "語" * 10_000))
    assert errors == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    assert commit(client, name, (0, 1, LONG)) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert [committed(client, name, "t", partition) for partition in (0, 1)] == [-1, 2]


def test_a_commit_whose_records_are_too_much_for_one_append_is_refused(client: RawClient, name: str) -> None:
    """One partition named again and again: each of its records holds the name of the group, too."""
    group = name + "g" * 30_000
    errors = commit(client, group, *[(0, 1, "")] * 6_000)
    assert set(errors) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert commit(client, group, *[(0, 1, "")] * 100) == [ErrorCode.NONE] * 100


def test_a_join_too_large_for_the_group_s_record_is_refused(client: RawClient, name: str) -> None:
    assert join(client, name, metadata=b"x" * (17 << 20)) == ErrorCode.GROUP_MAX_SIZE_REACHED
    refused = heartbeat(client, name, subscribed_topic_names=["x" * 30_000] * 600)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert "group.record.max.bytes" in refused.error_message
    assert heartbeat(client, name).error_code == ErrorCode.NONE
