"""Classic group APIs: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and administration. All versions map to one event.

Versions: JoinGroup 1 adds a rebalance timeout, 4 requires a member id first, and 5 adds static members. Version 7 adds
the protocol type to the response, and 8 reasons. With 9 a leader may be told not to assign. LeaveGroup 3 adds several
members. DescribeGroups 6 reports missing groups. ListGroups 4 adds states, 5 types.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any, Final

from kohort.broker.authorization import CLUSTER_NAME, Resource, may_see, permitted_operations, unauthorized_names
from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.host import GroupHost
from kohort.broker.rebalance_history import RebalanceRecord
from kohort.broker.server.requests import Request, without_many_repeats
from kohort.errors import ErrorCode
from kohort.groups import events
from kohort.groups.effects import (
    DeleteGroupsReply,
    DescribedGroup,
    DescribeGroupsReply,
    GroupState,
    HeartbeatReply,
    JoinGroupReply,
    LeaveGroupReply,
    ListGroupsReply,
    SyncGroupReply,
)
from kohort.groups.records import OfferedProtocol
from kohort.ids import AclOperation
from kohort.wire.groups import (
    CauseCount,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupRebalance,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kohort.wire.message import Message

_NEW_HEARTBEAT: Final[Callable[[Iterable[Any]], events.Heartbeat]] = partial(tuple.__new__, events.Heartbeat)
"""`Heartbeat._make` without its overhead in Python."""
CLIENT_SHOWN = 8_000
"""Characters of the client id that go into a generated member id."""


def client_of(request: Request[Message]) -> events.Client:
    """Return the client of a request, as the coordinator's records describe it."""
    return request.client.client_identity(request.client_id)


def fresh_member_id(request: Request[Message]) -> str:
    """Generate a unique member id in Kafka's form. A long client id is shortened, so that a record can hold the id."""
    return f"{(request.client_id or '')[:CLIENT_SHOWN]}-{uuid.uuid4()}"


def join_group(host: GroupHost, request: Request[JoinGroupRequest]) -> JoinGroupResponse | None:
    """Join or rejoin a group; answered when the join phase completes."""
    message, version = request.message, request.version
    if not message.group_id:
        return _join_refused(ErrorCode.INVALID_GROUP_ID, message, version)
    event = events.JoinGroup(
        request=host.next_request_id(),
        group_id=message.group_id,
        member_id=message.member_id,
        new_member_id="" if message.member_id else fresh_member_id(request),
        client=client_of(request),
        protocol_type=message.protocol_type,
        protocols=tuple([OfferedProtocol(protocol.name, protocol.metadata) for protocol in message.protocols]),
        session_timeout_ms=message.session_timeout_ms,
        rebalance_timeout_ms=message.rebalance_timeout_ms if version >= 1 else message.session_timeout_ms,
        instance_id=message.group_instance_id,
        reason=message.reason,
        requires_known_id=version >= 4,
        can_skip_assignment=version >= 9,
        connection=request.client.number,
    )

    def send_response(value: JoinGroupReply | ErrorCode) -> None:
        if isinstance(value, ErrorCode):
            request.reply(_join_refused(value, message, version))
            return
        make = JoinGroupResponse.JoinGroupResponseMember
        request.reply(
            JoinGroupResponse(
                error_code=value.error,
                generation_id=value.generation,
                protocol_type=value.protocol_type if version >= 7 else None,
                protocol_name=value.protocol_name if version >= 7 else value.protocol_name or "",
                leader=value.leader,
                skip_assignment=value.skip_assignment,
                member_id=value.member_id,
                members=[
                    make(
                        member_id=member.member_id,
                        group_instance_id=member.instance_id if version >= 5 else None,
                        metadata=member.metadata,
                    )
                    for member in value.members
                ],
            )
        )

    host.groups.ask(request.client, event, send_response)
    return None


def _join_refused(error: int, message: JoinGroupRequest, version: int) -> JoinGroupResponse:
    name = None if version >= 7 else ""
    return JoinGroupResponse(error_code=error, member_id=message.member_id, protocol_name=name)


def sync_group(host: GroupHost, request: Request[SyncGroupRequest]) -> SyncGroupResponse | None:
    """Synchronize with a group; answered when the leader's assignment is durable."""
    message, version = request.message, request.version
    if not message.group_id:
        return SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if version >= 5 and (message.protocol_type is None or message.protocol_name is None):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    event = events.SyncGroup(
        request=host.next_request_id(),
        group_id=message.group_id,
        generation=message.generation_id,
        member_id=message.member_id,
        assignments=tuple([(assigned.member_id, assigned.assignment) for assigned in message.assignments]),
        instance_id=message.group_instance_id,
        protocol_type=message.protocol_type,
        protocol_name=message.protocol_name,
        connection=request.client.number,
    )

    def send_response(value: SyncGroupReply | ErrorCode) -> None:
        if isinstance(value, ErrorCode):
            request.reply(SyncGroupResponse(error_code=value))
        elif version >= 5:
            request.reply(
                SyncGroupResponse(
                    error_code=value.error,
                    protocol_type=value.protocol_type,
                    protocol_name=value.protocol_name,
                    assignment=value.assignment,
                )
            )
        else:
            request.reply(SyncGroupResponse(error_code=value.error, assignment=value.assignment))

    host.groups.ask(request.client, event, send_response)
    return None


def heartbeat(host: GroupHost, request: Request[HeartbeatRequest]) -> HeartbeatResponse | None:
    """Keep a member's session alive. The response, which may be delayed, reports a rebalance."""
    message, client = request.message, request.client
    held = client.held
    delay_ms = client.max_heartbeat_delay_ms(host.group_config.notify_at_once) if request.is_only_waiting_request else 0
    member = (message.group_id, message.generation_id, message.member_id, message.group_instance_id)
    number = host.next_request_id()
    event = _NEW_HEARTBEAT((number, *member, delay_ms, client.number, client.interval_ms))

    def send_response(value: HeartbeatReply | ErrorCode) -> None:
        held.pop(number, None)
        error = value if isinstance(value, ErrorCode) else value.error
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and not (client.lease_ms or client.is_kohort_client):
            error = ErrorCode.NONE  # as in Kafka: some clients treat the code as final. A lease counts from responses
        if request.accepts_encoded_response:
            request.reply_encoded(HeartbeatResponse, _heartbeat_body(request.version, error))
        else:
            request.reply(HeartbeatResponse(error_code=error))

    if delay_ms:
        held[number] = host.groups.shard_index_of(message.group_id)
    host.groups.ask(client, event, send_response)
    return None


@cache
def _heartbeat_body(version: int, error: ErrorCode) -> bytes:
    """Return the encoded response to a heartbeat, from a cache: there are few different ones."""
    return HeartbeatResponse(error_code=error).encode(version)


def leave_group(host: GroupHost, request: Request[LeaveGroupRequest]) -> LeaveGroupResponse | None:
    """Remove a member from its group, or several members for an administrator."""
    message, version = request.message, request.version
    if not message.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if version >= 3:
        members = tuple(
            [
                events.LeavingMember(member.member_id, member.group_instance_id, member.reason)
                for member in message.members
            ]
        )
    else:
        members = (events.LeavingMember(message.member_id),)
    event = events.LeaveGroup(host.next_request_id(), message.group_id, members)

    def send_response(value: LeaveGroupReply | ErrorCode) -> None:
        if isinstance(value, ErrorCode):
            request.reply(LeaveGroupResponse(error_code=value))
        elif version < 3:
            single = value.members[0].error if value.members else ErrorCode.NONE
            request.reply(LeaveGroupResponse(error_code=value.error or single))
        else:
            make = LeaveGroupResponse.MemberResponse
            request.reply(
                LeaveGroupResponse(
                    error_code=value.error,
                    members=[
                        make(member_id=member.member_id, group_instance_id=member.instance_id, error_code=member.error)
                        for member in value.members
                    ],
                )
            )

    host.groups.ask(request.client, event, send_response)
    return None


REBALANCING = (
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.ASSIGNING,
    GroupState.RECONCILING,
)


def described_rebalances(
    host: GroupHost, request: Request[Any], group: str, state: str, wanted: int
) -> tuple[list[GroupRebalance], list[CauseCount]]:
    """Return the last rebalances of a group, the oldest first, and the number of causes by reason.

    Args:
        host: the host.
        request: the request, whose client may not know the names of some topics.
        group: the group.
        state: its state, which tells whether a rebalance is under way.
        wanted: the most rebalances to return.
    """
    history = host.rebalances.history_of_group(group)
    records = [*history.past]
    if history.current is not None and state in REBALANCING:
        records.append(history.current)
    causes = [CauseCount(reason=reason, count=count) for reason, count in sorted(history.causes.items())]
    may_see_topic = partial(may_see, host, request, AclOperation.DESCRIBE, Resource.TOPIC)
    return [_rebalance(record, may_see_topic) for record in records[max(0, len(records) - wanted) :]], causes


def _rebalance(record: RebalanceRecord, may_see_topic: Callable[[str], bool]) -> GroupRebalance:
    return GroupRebalance(
        ended_ms=record.ended_ms,
        generation=record.generation,
        members=record.members,
        downtime_ms=record.downtime_ms,
        causes=[
            GroupRebalance.RebalanceCause(
                at_ms=timed.at_ms,
                reason=timed.cause.reason.value,
                text=timed.cause.text
                if all(map(may_see_topic, timed.cause.topics))
                else timed.cause.text.partition(":")[0],
                member_id=timed.cause.member_id,
            )
            for timed in record.causes
        ],
        causes_left_out=record.causes_left_out,
        longest=[
            GroupRebalance.MemberDowntime(member_id=member_id, downtime_ms=downtime_ms)
            for member_id, downtime_ms in record.longest
        ],
    )


def describe_groups(host: GroupHost, request: Request[DescribeGroupsRequest]) -> None:
    """Describe the state, protocol and members of groups."""
    version = request.version

    def make_event(token: int, groups: tuple[str, ...]) -> events.DescribeGroups:
        return events.DescribeGroups(token, groups, knows_missing=version >= 6)

    def response_entries(groups: tuple[str, ...], value: DescribeGroupsReply | ErrorCode) -> list[DescribedGroup]:
        if isinstance(value, ErrorCode):
            return [DescribedGroup(group, "", error=value) for group in groups]
        return list(value.groups)

    def send_response(found: dict[str, DescribedGroup]) -> None:
        refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
        found |= {group: DescribedGroup(group, "", error=refused, error_message=refused.text) for group in hidden}
        described = [
            _described(host, request, found[group]) for group in without_many_repeats(request.message.groups, str)
        ]
        request.reply(DescribeGroupsResponse(groups=described))

    hidden = unauthorized_names(host, request, AclOperation.DESCRIBE, Resource.GROUP, request.message.groups)
    named = [group for group in request.message.groups if group not in hidden]
    host.groups.ask_groups_by_shard(named, make_event, response_entries, send_response)


def _described(
    host: GroupHost, request: Request[DescribeGroupsRequest], group: DescribedGroup
) -> DescribeGroupsResponse.DescribedGroup:
    version, operations_asked = request.version, request.message.include_authorized_operations
    member = DescribeGroupsResponse.DescribedGroupMember
    described = DescribeGroupsResponse.DescribedGroup(
        error_code=group.error,
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=[
            member(
                member_id=entry.member_id,
                group_instance_id=entry.instance_id if version >= 4 else None,
                client_id=entry.client_id,
                client_host=entry.client_host,
                member_metadata=entry.metadata,
                member_assignment=entry.assignment,
            )
            for entry in group.members
        ],
        authorized_operations=permitted_operations(
            operations_asked and not group.error, host, request, Resource.GROUP, group.group_id
        ),
    )
    if version >= 6:
        described.error_message = group.error_message
    if request.message.rebalances > 0 and not group.error:
        described.rebalances, described.causes = described_rebalances(
            host, request, group.group_id, group.state, request.message.rebalances
        )
    return described


def list_groups(host: GroupHost, request: Request[ListGroupsRequest]) -> None:
    """List the groups of all shards, filtered by state and type.

    A client that may not describe the cluster gets the groups that it may describe.
    """
    message, version = request.message, request.version
    states = tuple(message.states_filter) if version >= 4 else ()
    types = tuple(message.types_filter) if version >= 5 else ()
    sees_all = may_see(host, request, AclOperation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)

    def send_response(values: list[ListGroupsReply | ErrorCode]) -> None:
        error = next((value for value in values if isinstance(value, ErrorCode)), ErrorCode.NONE)
        make = ListGroupsResponse.ListedGroup
        groups = []
        for value in values:
            for group in () if isinstance(value, ErrorCode) else value.groups:
                if not (sees_all or may_see(host, request, AclOperation.DESCRIBE, Resource.GROUP, group.group_id)):
                    continue
                listed = make(group_id=group.group_id, protocol_type=group.protocol_type)
                if version >= 4:
                    listed.group_state = group.state
                if version >= 5:
                    listed.group_type = group.type
                groups.append(listed)
        request.reply(ListGroupsResponse(error_code=error, groups=groups))

    host.groups.ask_all_shards(lambda token: events.ListGroups(token, states, types), send_response)


def delete_groups(host: GroupHost, request: Request[DeleteGroupsRequest]) -> None:
    """Delete empty groups with their offsets."""
    names = request.message.groups_names
    refused = unauthorized_names(host, request, AclOperation.DELETE, Resource.GROUP, names)

    def response_entries(
        groups: tuple[str, ...], value: DeleteGroupsReply | ErrorCode
    ) -> list[DeleteGroupsResponse.DeletableGroupResult]:
        errors = [value] * len(groups) if isinstance(value, ErrorCode) else value.errors
        make = DeleteGroupsResponse.DeletableGroupResult
        return [make(group_id=group, error_code=error) for group, error in zip(groups, errors, strict=True)]

    def send_response(found: dict[str, DeleteGroupsResponse.DeletableGroupResult]) -> None:
        make, code = DeleteGroupsResponse.DeletableGroupResult, ErrorCode.GROUP_AUTHORIZATION_FAILED
        found |= {group: make(group_id=group, error_code=code) for group in refused}
        request.reply(DeleteGroupsResponse(results=[found[group] for group in dict.fromkeys(names)]))

    deleted = [group for group in names if group not in refused]
    host.groups.ask_groups_by_shard(deleted, events.DeleteGroups, response_entries, send_response)


HANDLERS: list[ApiHandler[GroupHost]] = [
    api_handler(JoinGroupRequest, JoinGroupResponse, join_group),
    api_handler(SyncGroupRequest, SyncGroupResponse, sync_group),
    api_handler(HeartbeatRequest, HeartbeatResponse, heartbeat),
    api_handler(LeaveGroupRequest, LeaveGroupResponse, leave_group),
    api_handler(DescribeGroupsRequest, DescribeGroupsResponse, describe_groups),
    api_handler(ListGroupsRequest, ListGroupsResponse, list_groups),
    api_handler(DeleteGroupsRequest, DeleteGroupsResponse, delete_groups),
]
