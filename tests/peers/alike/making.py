"""Requests as scenarios write them, with the fields that they do not care about filled in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kohort.consumer_protocol import ConsumerProtocolSubscription, write_assignment, write_subscription
from kohort.ids import TopicPartition
from kohort.wire.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from kohort.wire.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from tests.peers.alike.harness import Side
from tests.support.waiting import until

SESSION_MS = 30_000


def subscription(*topics: str) -> bytes:
    return write_subscription(ConsumerProtocolSubscription(0, topics))


def assignment(topic: str, *partitions: int) -> bytes:
    return write_assignment(0, [TopicPartition(topic, number) for number in partitions])


def join(group: str, member: str = "", **fields: Any) -> JoinGroupRequest:
    protocols: Sequence[tuple[str, bytes]] = fields.pop("protocols", [("range", subscription("any"))])
    make = JoinGroupRequest.JoinGroupRequestProtocol
    values = {
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "group_instance_id": fields.pop("instance", None),
        **fields,
    }
    asked = [make(name=name, metadata=metadata) for name, metadata in protocols]
    return JoinGroupRequest(group_id=group, member_id=member, protocols=asked, **values)


def sync(group: str, member: str, generation: int, shares: dict[str, bytes] | None = None, **fields: Any) -> Any:
    make = SyncGroupRequest.SyncGroupRequestAssignment
    values = {
        "protocol_type": "consumer",
        "protocol_name": "range",
        "group_instance_id": fields.pop("instance", None),
        **fields,
    }
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member,
        assignments=[make(member_id=value, assignment=share) for value, share in (shares or {}).items()],
        **values,
    )


def heartbeat(group: str, member: str, generation: int, instance: str | None = None) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, member_id=member, generation_id=generation, group_instance_id=instance)


def leave(group: str, *members: tuple[str, str | None] | str) -> LeaveGroupRequest:
    """Up to version 2 the first member's id counts."""
    pairs = [(member, None) if isinstance(member, str) else member for member in members]
    make = LeaveGroupRequest.MemberIdentity
    return LeaveGroupRequest(
        group_id=group,
        member_id=pairs[0][0] if pairs else "",
        members=[make(member_id=member, group_instance_id=instance, reason="done") for member, instance in pairs],
    )


def describe(*groups: str, operations: bool = False) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=list(groups), include_authorized_operations=operations)


def known(side: Side, group: str) -> None:
    """Wait until a group that was just made can be described and listed.

    Apache Kafka answers the join that creates a classic group before the group's record is committed. It describes
    committed groups only, so a request that follows at once may miss the group.
    """

    def found() -> bool:
        return side.silently(describe(group), 5).groups[0].group_state != "Dead"

    until(found, f"{group} is known")


def commit(side: Side, group: str, parts: Iterable[tuple[Any, ...]], version: int, **fields: Any) -> Any:
    """Parts are (topic, partition, offset), with metadata and leader epoch behind them when they matter."""
    member, generation = fields.pop("member", ""), fields.pop("generation", -1)
    topics: dict[str, list[Any]] = {}
    for topic, partition, offset, *rest in parts:
        made = OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=partition,
            committed_offset=offset,
            committed_metadata=rest[0] if rest else "",
            committed_leader_epoch=rest[1] if len(rest) > 1 else -1,
        )
        topics.setdefault(topic, []).append(made)
    make = OffsetCommitRequest.OffsetCommitRequestTopic
    asked = [
        make(name=name, topic_id=side.id_of(name), partitions=parts)
        if version >= 10
        else make(name=name, partitions=parts)
        for name, parts in topics.items()
    ]
    return OffsetCommitRequest(
        group_id=group,
        member_id=member,
        generation_id_or_member_epoch=generation,
        group_instance_id=fields.pop("instance", None),
        topics=asked,
        **fields,
    )


def fetch(side: Side, group: str, wanted: dict[str, list[int]] | None, version: int, **fields: Any) -> Any:
    """Offsets of partitions, or all with None."""
    stable = fields.pop("require_stable", False)
    if version < 8:
        plain = OffsetFetchRequest.OffsetFetchRequestTopic
        topics = (
            None if wanted is None else [plain(name=name, partition_indexes=parts) for name, parts in wanted.items()]
        )
        return OffsetFetchRequest(group_id=group, topics=topics, require_stable=stable)
    make = OffsetFetchRequest.OffsetFetchRequestTopics
    listed = None
    if wanted is not None:
        listed = [
            make(name=name, topic_id=side.id_of(name), partition_indexes=parts)
            if version >= 10
            else make(name=name, partition_indexes=parts)
            for name, parts in wanted.items()
        ]
    return OffsetFetchRequest(
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=listed, **fields)],
        require_stable=stable,
    )


def listing(states: Iterable[str] = (), types: Iterable[str] = ()) -> ListGroupsRequest:
    return ListGroupsRequest(states_filter=list(states), types_filter=list(types))


def remove(*groups: str) -> DeleteGroupsRequest:
    return DeleteGroupsRequest(groups_names=list(groups))


def offset_delete(group: str, wanted: dict[str, list[int]]) -> OffsetDeleteRequest:
    make, part = OffsetDeleteRequest.OffsetDeleteRequestTopic, OffsetDeleteRequest.OffsetDeleteRequestTopic
    return OffsetDeleteRequest(
        group_id=group,
        topics=[
            make(
                name=name,
                partitions=[part.OffsetDeleteRequestPartition(partition_index=partition) for partition in parts],
            )
            for name, parts in wanted.items()
        ],
    )
