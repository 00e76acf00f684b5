"""Groups and their members, as coroutines over a `Cluster`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from kohort.client.admin.routing import RequestAttempts, error_of_result, send_to_coordinators
from kohort.client.admin.values import (
    GroupDescription,
    GroupListing,
    GroupRebalanced,
    MemberDescription,
    RebalanceCause,
    Results,
)
from kohort.client.net.cluster import Between, BrokerById, Cluster
from kohort.consumer_protocol import read_assignment, read_subscription
from kohort.errors import ErrorCode, KafkaError, error_for
from kohort.ids import TopicPartition
from kohort.wire.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
)
from kohort.wire.message import Message, RequestMessage

R = TypeVar("R", bound=Message)
_Described: TypeAlias = dict[str, GroupDescription | KafkaError]
_Member: TypeAlias = ConsumerGroupDescribeResponse.DescribedGroup.Member
_CONSUMER = "consumer"
_DEAD = "Dead"
_REMOVED_BY_ADMIN = "member was removed by an administrator"
_SEVERAL_LEAVE_SINCE = 3
"""The first version of LeaveGroup that names several members, and static ones by instance id."""


class SendRequest(Protocol):
    """An interface: an async function that sends a request to the node with this id, and returns the response."""

    async def __call__(self, message: RequestMessage[R], node: int, /) -> R: ...


async def list_groups(
    cluster: Cluster, *, states: Sequence[str] = (), types: Sequence[str] = (), timeout_ms: float | None = None
) -> list[GroupListing]:
    """List groups of every coordinator, sorted; only of these states and types if given (letter case is ignored)."""
    wanted_states = {state.lower() for state in states}
    # Kafka 4.4 lists a state as NotReady, and its filter calls the same state not_ready.
    aliases = ["not_ready"] if "notready" in wanted_states else []
    request = ListGroupsRequest(states_filter=[*states, *aliases], types_filter=list(types))
    wanted_types = {kind.lower() for kind in types}

    async def list_groups_once() -> list[GroupListing]:
        listings = {}
        for node in await cluster.group_coordinator_nodes(timeout_ms):
            answer = await cluster.send(request, BrokerById(node))
            if answer.error_code:
                raise error_for(answer.error_code, f"broker {node} did not list its groups")
            for group in answer.groups:
                listings[group.group_id] = GroupListing(
                    group.group_id, group.protocol_type, group.group_state, group.group_type, node
                )
        return [
            group
            for _, group in sorted(listings.items())
            if (not wanted_states or group.state.lower() in wanted_states)
            and (not wanted_types or group.type.lower() in wanted_types)
        ]

    return await cluster.retry_call(list_groups_once, "list groups", timeout_ms)


async def describe_consumer_groups(
    cluster: Cluster, groups: Iterable[str], *, timeout_ms: float | None = None
) -> Results[str, GroupDescription]:
    """Describe state, assignor and members of groups, of either protocol."""

    async def send_request(message: RequestMessage[R], node: int) -> R:
        return await cluster.send(message, BrokerById(node))

    async def send_describe_consumer_groups(node: int, names: list[str]) -> _Described:
        return await describe_groups_of_coordinator(send_request, node, names)

    return await send_to_coordinators(
        cluster, list(groups), send_describe_consumer_groups, "describe groups", timeout_ms
    )


async def describe_groups_of_coordinator(
    send: SendRequest, node: int, names: Sequence[str], classic: Collection[str] = (), rebalances: int = 0
) -> dict[str, GroupDescription | KafkaError]:
    """Describe groups of one coordinator, in one attempt and at most two requests.

    Args:
        send: Sends a request to a node.
        node: The coordinator.
        names: The groups.
        classic: The names of known classic groups. All others are first described as KIP-848 groups.
        rebalances: How many of each group's last rebalances to describe; only kohort's coordinators can.
    """
    others = [name for name in names if name not in classic]
    outcomes = await _describe_consumer(send, node, others, rebalances) if others else {}
    rest = [name for name in names if name not in outcomes]
    if rest:
        outcomes.update(await _describe_classic(send, node, rest, rebalances))
    return outcomes


async def _describe_consumer(send: SendRequest, node: int, names: list[str], rebalances: int) -> _Described:
    """Describe the KIP-848 groups among `names`; leave the others out, or all if the broker lacks KIP-848."""
    try:
        answer = await send(ConsumerGroupDescribeRequest(group_ids=names, rebalances=rebalances), node)
    except KafkaError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return {}
        raise
    outcomes: _Described = {}
    for group in answer.groups:
        code = ErrorCode.of(group.error_code)
        if code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            continue
        if code:
            outcomes[group.group_id] = error_for(code, f"group {group.group_id!r}: {group.error_message or code.text}")
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
                _rebalances(group),
                {counted.reason: counted.count for counted in group.causes},
            )
    return outcomes


def _consumer_member(member: _Member) -> MemberDescription:
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


def _partitions(assignment: _Member.Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, number)
            for topic in assignment.topic_partitions
            for number in topic.partitions
        )
    )


def _rebalances(
    group: ConsumerGroupDescribeResponse.DescribedGroup | DescribeGroupsResponse.DescribedGroup,
) -> tuple[GroupRebalanced, ...] | None:
    if group.rebalances is None:
        return None
    return tuple(
        GroupRebalanced(
            tuple(RebalanceCause(cause.at_ms, cause.reason, cause.text, cause.member_id) for cause in rebalance.causes),
            rebalance.causes_left_out,
            None if rebalance.ended_ms < 0 else rebalance.ended_ms,
            None if rebalance.generation < 0 else rebalance.generation,
            rebalance.members,
            rebalance.downtime_ms,
            tuple((downtime.member_id, downtime.downtime_ms) for downtime in rebalance.longest),
        )
        for rebalance in group.rebalances
    )


async def _describe_classic(send: SendRequest, node: int, names: list[str], rebalances: int) -> _Described:
    answer = await send(DescribeGroupsRequest(groups=names, rebalances=rebalances), node)
    outcomes: _Described = {}
    for group in answer.groups:
        code = ErrorCode.of(group.error_code)
        if not code and group.group_state == _DEAD:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        if code:
            outcomes[group.group_id] = error_for(code, f"group {group.group_id!r}: {code.text}")
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
            rebalances=_rebalances(group),
            causes={counted.reason: counted.count for counted in group.causes},
        )
    return outcomes


def _classic_member(
    member: DescribeGroupsResponse.DescribedGroup.DescribedGroupMember, protocol_type: str
) -> MemberDescription:
    is_consumer = protocol_type == _CONSUMER
    return MemberDescription(
        member.member_id,
        member.client_id,
        member.client_host,
        member.group_instance_id,
        decode_member_assignment(bytes(member.member_assignment)) if is_consumer else None,
        None,
        decode_member_topics(bytes(member.member_metadata)) if is_consumer else None,
    )


def decode_member_assignment(data: bytes) -> tuple[TopicPartition, ...] | None:
    """Decode a classic member's assignment to its partitions; None if the bytes have another format than consumers'.

    Empty bytes give no partitions: the member has no assignment yet.
    """
    assignment = read_assignment(data)
    return None if assignment is None else tuple(sorted(assignment.partitions))


def decode_member_topics(data: bytes) -> tuple[str, ...] | None:
    """Decode the topics of a classic member's subscription; None if the bytes have another format than consumers'."""
    said = read_subscription(data)
    return None if said is None else tuple(sorted(said.topics))


def _member_order(member: MemberDescription) -> tuple[str, str]:
    return member.client_id, member.member_id


async def delete_consumer_groups(
    cluster: Cluster, groups: Iterable[str], *, timeout_ms: float | None = None
) -> Results[str, None]:
    """Delete groups without members, with their offsets."""
    attempts = RequestAttempts[str]()

    async def send_delete_consumer_groups(node: int, names: list[str]) -> dict[str, KafkaError | None]:
        request = DeleteGroupsRequest(groups_names=names)
        answer = await cluster.send(request, BrokerById(node), leaving=attempts.sending(names))
        return {
            result.group_id: error_of_result(result, f"group {result.group_id!r}") if result.error_code else None
            for result in answer.results
        }

    return await send_to_coordinators(
        cluster, list(groups), send_delete_consumer_groups, "delete groups", timeout_ms, attempts=attempts
    )


async def remove_members_from_consumer_group(
    cluster: Cluster, group: str, group_instance_ids: Iterable[str] | None = None, *, timeout_ms: float | None = None
) -> Results[str, None]:
    """Remove static members from a group, by instance id; None: all its members, with outcomes by member id."""
    if group_instance_ids is None:
        described = (await describe_consumer_groups(cluster, [group], timeout_ms=timeout_ms)).result(group)
        wanted: list[tuple[str, str | None]] = [(member.member_id, None) for member in described.members]
    else:
        wanted = [("", name) for name in group_instance_ids]

    request = LeaveGroupRequest(
        group_id=group,
        members=[
            LeaveGroupRequest.MemberIdentity(member_id=member, group_instance_id=instance, reason=_REMOVED_BY_ADMIN)
            for member, instance in wanted
        ],
    )

    attempts = RequestAttempts[str]()

    async def send_remove_members_from_consumer_group(
        node: int, names: list[str]
    ) -> dict[str, list[LeaveGroupResponse.MemberResponse] | KafkaError]:
        message = Between(request, lowest=_SEVERAL_LEAVE_SINCE)
        answer = await cluster.send(message, BrokerById(node), leaving=attempts.sending(names))
        if answer.error_code:
            return {group: error_of_result(answer, f"group {group!r}")}
        return {group: answer.members}

    if not wanted:
        return Results.of({})
    members = (
        await send_to_coordinators(
            cluster, [group], send_remove_members_from_consumer_group, "remove members", timeout_ms, attempts=attempts
        )
    ).result(group)
    outcomes: dict[str, KafkaError | None] = {}
    for member in members:
        name = str(member.group_instance_id) if group_instance_ids is not None else member.member_id
        code = ErrorCode.of(member.error_code)
        outcomes[name] = (
            attempts.refusal_error(group, error_for(code, f"member {name!r}: {code.text}")) if code else None
        )
    return Results.of(outcomes)
