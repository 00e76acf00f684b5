"""What administrators ask: describe, list and delete groups."""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.groups.context import Context
from kohort.groups.events import ConsumerGroupDescribe, DeleteGroups, DescribeGroups, ListGroups
from kohort.groups.group import Group
from kohort.groups.offsets import requests as offset_requests
from kohort.groups.outcome import (
    ConsumerGroupDescribeReply,
    DeleteGroupsReply,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribeGroupsReply,
    GroupState,
    ListedGroup,
    ListGroupsReply,
    Meter,
)


def describe(context: Context, event: DescribeGroups) -> None:
    """Groups with their members, those of which DescribeGroups tells."""
    described = tuple(describe_one(context, group_id, event.knows_missing) for group_id in event.group_ids)
    context.reply(event.request, DescribeGroupsReply(described))


def describe_one(context: Context, group_id: str, knows_missing: bool) -> DescribedGroup:
    """One group; a missing one is Dead, and GROUP_ID_NOT_FOUND to who knows that answer."""
    group = context.find(group_id)
    described = None if group is None else context.protocol(group).describe(context, group.membership)
    if described is not None:
        return described
    if not knows_missing:
        return DescribedGroup(group_id, GroupState.DEAD)
    message = f"Group {group_id} {'not found' if group is None else 'is not a classic group'}."
    error = ErrorCode.GROUP_ID_NOT_FOUND
    return DescribedGroup(group_id, GroupState.DEAD, error=error, error_message=message)


def list_groups(context: Context, event: ListGroups) -> None:
    """Every group that passes the filters."""
    states = {state.strip().lower() for state in event.states}
    types = {kind.strip().lower() for kind in event.types}
    found = tuple(
        listed
        for listed in (list_one(context, group) for group in context.ledger.groups.values())
        if (not states or listed.state.lower() in states) and (not types or listed.type.lower() in types)
    )
    context.reply(event.request, ListGroupsReply(found))


def list_one(context: Context, group: Group) -> ListedGroup:
    """One group's line."""
    protocol = context.protocol(group)
    return ListedGroup(
        group.group_id, protocol.protocol_type(group.membership), group.state(), protocol.listed_as or protocol.name
    )


def describe_consumer_groups(context: Context, event: ConsumerGroupDescribe) -> None:
    """Groups under KIP-848 with their members, epochs, assignments and targets."""
    described = tuple(describe_consumer_group(context, group_id) for group_id in event.group_ids)
    context.reply(event.request, ConsumerGroupDescribeReply(described))


def describe_consumer_group(context: Context, group_id: str) -> DescribedConsumerGroup:
    """One group; GROUP_ID_NOT_FOUND for one that is missing or classic."""
    group = context.find(group_id)
    described = None if group is None else context.protocol(group).describe_consumer(context, group.membership)
    if described is not None:
        return described
    message = f"Group {group_id} {'not found' if group is None else 'is not a consumer group'}."
    return DescribedConsumerGroup(group_id, error=ErrorCode.GROUP_ID_NOT_FOUND, error_message=message)


def delete(context: Context, event: DeleteGroups) -> None:
    """Remove groups without members, and all their positions."""
    context.reply(event.request, DeleteGroupsReply(tuple(delete_one(context, name) for name in event.group_ids)))


def delete_one(context: Context, group_id: str) -> ErrorCode:
    """Remove one group, or say why not."""
    group = context.find(group_id)
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state() is not GroupState.EMPTY:
        return ErrorCode.NON_EMPTY_GROUP
    partitions = offset_requests.all_partitions(group)
    for partition in partitions:
        offset_requests.tombstone(context, group_id, partition)
    context.count(Meter.OFFSET_DELETIONS, len(partitions))
    context.remove(group)
    context.tell(group_id, f"deleted, with {len(partitions)} offsets")
    return ErrorCode.NONE
