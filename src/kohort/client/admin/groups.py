"""Groups and their members, as coroutines over a `Cluster`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from kohort.client.admin.values import GroupDescription, GroupListing, MemberDescription, Results
from kohort.client.net.cluster import Cluster, Coordinator, Node, Versioned
from kohort.errors import CorruptDataError, ErrorCode, KafkaError, RetriableError, error_for
from kohort.ids import TopicPartition
from kohort.wire.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
)

_CONSUMER = "consumer"
_DEAD = "Dead"
_REMOVED_BY_ADMIN = "member was removed by an administrator"
_LEAVE_BY_INSTANCE_SINCE = 3


async def list_groups(
    cluster: Cluster, states: Sequence[str], types: Sequence[str], timeout_ms: int | None
) -> list[GroupListing]:
    wanted_states = {state.lower() for state in states}
    wanted_types = {kind.lower() for kind in types}

    def build(version: int) -> ListGroupsRequest:
        request = ListGroupsRequest()
        if version >= 4:
            request.states_filter = list(states)
        if version >= 5:
            request.types_filter = list(types)
        return request

    async def attempt() -> list[GroupListing]:
        metadata = await cluster.refresh_metadata(timeout_ms)
        found = {}
        for node in sorted(metadata.brokers):
            answer = await cluster.send(Versioned(ListGroupsRequest, build), Node(node))
            if answer.error_code:
                raise error_for(answer.error_code, f"broker {node} did not list its groups")
            for group in answer.groups:
                found[group.group_id] = GroupListing(
                    group.group_id, group.protocol_type, group.group_state, group.group_type, node
                )
        return [
            group
            for _, group in sorted(found.items())
            if (not wanted_states or group.state.lower() in wanted_states)
            and (not wanted_types or group.type.lower() in wanted_types)
        ]

    return await cluster.retrying(attempt, "list groups", timeout_ms)


async def describe_groups(
    cluster: Cluster, groups: Sequence[str], timeout_ms: int | None
) -> Results[str, GroupDescription]:
    """Asks for KIP-848 groups first, then for the rest as classic groups."""

    async def ask(node: int, names: list[str]) -> dict[str, Any]:
        outcomes = await _describe_consumer(cluster, node, names)
        rest = [name for name in names if name not in outcomes]
        if rest:
            outcomes.update(await _describe_classic(cluster, node, rest))
        return outcomes

    return await at_coordinators(cluster, groups, ask, "describe groups", timeout_ms)


async def _describe_consumer(cluster: Cluster, node: int, names: list[str]) -> dict[str, Any]:
    """The KIP-848 groups among `names`; the others are left out, all of them when the broker knows no such groups."""
    try:
        answer = await cluster.send(ConsumerGroupDescribeRequest(group_ids=names), Node(node))
    except KafkaError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return {}
        raise
    outcomes: dict[str, Any] = {}
    for group in answer.groups:
        code = ErrorCode.of(group.error_code)
        if code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            continue
        if code:
            outcomes[group.group_id] = _refused(code, group.group_id, group.error_message)
        else:
            outcomes[group.group_id] = GroupDescription(
                group.group_id,
                "Consumer",
                group.group_state,
                _CONSUMER,
                group.assignor_name,
                tuple(sorted((_consumer_member(member) for member in group.members), key=_member_order)),
                node,
                group.group_epoch,
                group.assignment_epoch,
            )
    return outcomes


def _consumer_member(member: Any) -> MemberDescription:
    return MemberDescription(
        member.member_id,
        member.client_id,
        member.client_host,
        member.instance_id,
        _partitions(member.assignment),
        _partitions(member.target_assignment),
        tuple(sorted(member.subscribed_topic_names)),
        member.subscribed_topic_regex,
        member.rack_id,
        member.member_epoch,
    )


def _partitions(assignment: Any) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, number)
            for topic in assignment.topic_partitions
            for number in topic.partitions
        )
    )


async def _describe_classic(cluster: Cluster, node: int, names: list[str]) -> dict[str, Any]:
    answer = await cluster.send(DescribeGroupsRequest(groups=names), Node(node))
    outcomes: dict[str, Any] = {}
    for group in answer.groups:
        code = ErrorCode.of(group.error_code)
        if not code and group.group_state == _DEAD:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        if code:
            outcomes[group.group_id] = _refused(code, group.group_id)
            continue
        members = (_classic_member(member, group.protocol_type) for member in group.members)
        outcomes[group.group_id] = GroupDescription(
            group.group_id,
            "Classic",
            group.group_state,
            group.protocol_type,
            group.protocol_data,
            tuple(sorted(members, key=_member_order)),
            node,
        )
    return outcomes


def _classic_member(member: Any, protocol_type: str) -> MemberDescription:
    is_consumer = protocol_type == _CONSUMER
    return MemberDescription(
        member.member_id,
        member.client_id,
        member.client_host,
        member.group_instance_id,
        assignment_of(bytes(member.member_assignment)) if is_consumer else None,
        None,
        subscription_of(bytes(member.member_metadata)) if is_consumer else None,
    )


def assignment_of(data: bytes) -> tuple[TopicPartition, ...] | None:
    """The partitions in the bytes that a classic leader assigned; None when they are not a consumer's.

    No bytes at all is no partition: the member has not been assigned anything yet.
    """
    if not data:
        return ()
    decoded = _versioned(ConsumerProtocolAssignment, data)
    if decoded is None:
        return None
    return tuple(
        sorted(
            TopicPartition(topic.topic, number) for topic in decoded.assigned_partitions for number in topic.partitions
        )
    )


def subscription_of(data: bytes) -> tuple[str, ...] | None:
    """The topics in the bytes that a classic member joined with; None when they are not a consumer's."""
    if not data:
        return None
    decoded = _versioned(ConsumerProtocolSubscription, data)
    return None if decoded is None else tuple(sorted(decoded.topics))


def _versioned(kind: Any, data: bytes) -> Any:
    """Decodes bytes that begin with their own version; None when they can't be read."""
    version = int.from_bytes(data[:2], "big", signed=True)
    if version < 0:
        return None
    try:
        return kind.decode_prefix(data[2:], min(version, kind.MAX_VERSION))[0]
    except CorruptDataError:
        return None


def _member_order(member: MemberDescription) -> tuple[str, str]:
    return member.client_id, member.member_id


async def delete_groups(cluster: Cluster, groups: Sequence[str], timeout_ms: int | None) -> Results[str, None]:
    async def ask(node: int, names: list[str]) -> dict[str, Any]:
        answer = await cluster.send(DeleteGroupsRequest(groups_names=names), Node(node))
        return {
            result.group_id: _refused(ErrorCode.of(result.error_code), result.group_id) if result.error_code else None
            for result in answer.results
        }

    return await at_coordinators(cluster, groups, ask, "delete groups", timeout_ms)


async def remove_members(
    cluster: Cluster, group: str, group_instance_ids: Sequence[str], timeout_ms: int | None
) -> Results[str, None]:
    def build(version: int) -> LeaveGroupRequest:
        if version < _LEAVE_BY_INSTANCE_SINCE:
            raise error_for(ErrorCode.UNSUPPORTED_VERSION, "the broker can't remove members by instance id")
        return LeaveGroupRequest(
            group_id=group,
            members=[
                LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=name, reason=_REMOVED_BY_ADMIN)
                for name in group_instance_ids
            ],
        )

    async def ask(node: int, _: list[str]) -> dict[str, Any]:
        answer = await cluster.send(Versioned(LeaveGroupRequest, build), Node(node))
        if answer.error_code:
            return {group: _refused(ErrorCode.of(answer.error_code), group)}
        return {group: answer}

    answer = (await at_coordinators(cluster, [group], ask, "remove members", timeout_ms)).result(group)
    return Results.of(
        {
            str(member.group_instance_id): error_for(member.error_code, f"member {member.group_instance_id!r}")
            if member.error_code
            else None
            for member in answer.members
        }
    )


async def at_coordinators(
    cluster: Cluster,
    groups: Sequence[str],
    ask: Callable[[int, list[str]], Awaitable[dict[str, Any]]],
    what: str,
    timeout_ms: int | None,
) -> Results[str, Any]:
    """Asks the coordinator of each group, again where coordinators have moved; an outcome for every group.

    Args:
        ask: called with a node id and its groups; gives a value or a KafkaError for each.
    """
    done: dict[str, Any] = {}

    async def attempt() -> None:
        nodes: dict[int, list[str]] = {}
        for group in groups:
            if group not in done:
                nodes.setdefault(await cluster.coordinator(Coordinator(group)), []).append(group)
        moved: KafkaError | None = None
        for node, names in sorted(nodes.items()):
            try:
                outcomes = await ask(node, names)
            except RetriableError as error:
                outcomes = dict.fromkeys(names, error)
            for group, outcome in outcomes.items():
                if isinstance(outcome, RetriableError):
                    cluster.forget_coordinator(Coordinator(group), str(outcome))
                    moved = outcome
                else:
                    done[group] = outcome
        if moved is not None:
            raise moved

    await cluster.retrying(attempt, what, timeout_ms)
    return Results.of(done)


def _refused(code: ErrorCode, group: str, message: str | None = None) -> KafkaError:
    return error_for(code, f"group {group!r}: {message or code.text}")
