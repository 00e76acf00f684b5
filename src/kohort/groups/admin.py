"""What administrators ask: describe, list and delete groups."""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.groups import expiry, offsets
from kohort.groups.events import DeleteGroups, DescribeGroups, ListGroups
from kohort.groups.kernel import Kernel
from kohort.groups.outcome import (
    DeleteGroupsReply,
    DescribedGroup,
    DescribedMember,
    DescribeGroupsReply,
    GroupState,
    GroupType,
    ListedGroup,
    ListGroupsReply,
    Meter,
)
from kohort.groups.state import Group


def describe(kernel: Kernel, event: DescribeGroups) -> None:
    """Classic groups with their members; metadata only while stable."""
    described = tuple(describe_one(kernel, group_id, event.knows_missing) for group_id in event.group_ids)
    kernel.reply(event.request, DescribeGroupsReply(described))


def describe_one(kernel: Kernel, group_id: str, knows_missing: bool) -> DescribedGroup:
    """One group; a missing one is Dead, and GROUP_ID_NOT_FOUND to who knows that answer."""
    group = kernel.find(group_id)
    if group is None:
        if knows_missing:
            message = f"Group {group_id} not found."
            error = ErrorCode.GROUP_ID_NOT_FOUND
            return DescribedGroup(group_id, GroupState.DEAD, error=error, error_message=message)
        return DescribedGroup(group_id, GroupState.DEAD)
    classic = group.classic
    stable = classic.state is GroupState.STABLE
    protocol = classic.protocol if stable else None
    members = tuple(
        DescribedMember(
            member.member_id,
            member.instance_id,
            member.client.id,
            member.client.host,
            member.metadata(protocol),
            member.assignment,
        )
        for member in classic.members.values()
    )
    return DescribedGroup(group_id, classic.state, classic.protocol_type or "", protocol or "", members)


def list_groups(kernel: Kernel, event: ListGroups) -> None:
    """Every group that passes the filters."""
    states = {state.strip().lower() for state in event.states}
    types = {kind.strip().lower() for kind in event.types}
    found = tuple(
        listed
        for listed in map(list_one, kernel.ledger.groups.values())
        if (not states or listed.state.lower() in states) and (not types or listed.type.lower() in types)
    )
    kernel.reply(event.request, ListGroupsReply(found))


def list_one(group: Group) -> ListedGroup:
    """One group's line."""
    classic = group.classic
    return ListedGroup(group.group_id, classic.protocol_type or "", classic.state, GroupType.CLASSIC)


def delete(kernel: Kernel, event: DeleteGroups) -> None:
    """Remove groups without members, and all their positions."""
    kernel.reply(event.request, DeleteGroupsReply(tuple(delete_one(kernel, name) for name in event.group_ids)))


def delete_one(kernel: Kernel, group_id: str) -> ErrorCode:
    """Remove one group, or say why not."""
    group = kernel.find(group_id)
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.classic.state is not GroupState.EMPTY:
        return ErrorCode.NON_EMPTY_GROUP
    partitions = offsets.all_partitions(group)
    for partition in partitions:
        offsets.tombstone(kernel, group_id, partition)
    kernel.count(Meter.OFFSET_DELETIONS, len(partitions))
    expiry.remove(kernel, group)
    kernel.tell(group_id, f"deleted, with {len(partitions)} offsets")
    return ErrorCode.NONE
