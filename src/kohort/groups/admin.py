"""What administrators ask: describe, list and delete groups."""

from __future__ import annotations

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from kohort.errors import ErrorCode
from kohort.groups.consumer.members import preferred_assignor
from kohort.groups.consumer.state import Pairs, pack
from kohort.groups.context import Context
from kohort.groups.events import ConsumerGroupDescribe, DeleteGroups, DescribeGroups, ListGroups
from kohort.groups.group import Group
from kohort.groups.offsets import expiry
from kohort.groups.offsets import requests as offset_requests
from kohort.groups.outcome import (
    ConsumerGroupDescribeReply,
    DeleteGroupsReply,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribedMember,
    DescribeGroupsReply,
    GroupState,
    GroupType,
    ListedGroup,
    ListGroupsReply,
    Meter,
    NamedPartitions,
)
from kohort.ids import TopicId


def describe(context: Context, event: DescribeGroups) -> None:
    """Classic groups with their members; metadata only while stable."""
    described = tuple(describe_one(context, group_id, event.knows_missing) for group_id in event.group_ids)
    context.reply(event.request, DescribeGroupsReply(described))


def describe_one(context: Context, group_id: str, knows_missing: bool) -> DescribedGroup:
    """One group; a missing one is Dead, and GROUP_ID_NOT_FOUND to who knows that answer."""
    group = context.find(group_id)
    if group is None or group.consumer is not None:
        if knows_missing:
            what = "not found" if group is None else "is not a classic group"
            message = f"Group {group_id} {what}."
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


def list_groups(context: Context, event: ListGroups) -> None:
    """Every group that passes the filters."""
    states = {state.strip().lower() for state in event.states}
    types = {kind.strip().lower() for kind in event.types}
    found = tuple(
        listed
        for listed in map(list_one, context.ledger.groups.values())
        if (not states or listed.state.lower() in states) and (not types or listed.type.lower() in types)
    )
    context.reply(event.request, ListGroupsReply(found))


def list_one(group: Group) -> ListedGroup:
    """One group's line."""
    if group.consumer is not None:
        return ListedGroup(group.group_id, CONSUMER_PROTOCOL_TYPE, group.consumer.state(), GroupType.CONSUMER)
    classic = group.classic
    return ListedGroup(group.group_id, classic.protocol_type or "", classic.state, GroupType.CLASSIC)


def describe_consumer_groups(context: Context, event: ConsumerGroupDescribe) -> None:
    """Groups under KIP-848 with their members, epochs, assignments and targets."""
    described = tuple(describe_consumer_group(context, group_id) for group_id in event.group_ids)
    context.reply(event.request, ConsumerGroupDescribeReply(described))


def describe_consumer_group(context: Context, group_id: str) -> DescribedConsumerGroup:
    """One group; GROUP_ID_NOT_FOUND for one that is missing or classic."""
    group = context.find(group_id)
    consumer = None if group is None else group.consumer
    if consumer is None:
        message = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group."
        return DescribedConsumerGroup(group_id, error=ErrorCode.GROUP_ID_NOT_FOUND, error_message=message)
    names = {topic.id: topic.name for topic in context.image.topics.values()}
    members = []
    for member_id, member in consumer.members.items():
        current = consumer.standing(member_id)
        members.append(
            DescribedConsumer(
                member_id=member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=current.member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topics=member.subscribed_topics,
                subscribed_regex=member.subscribed_regex,
                assignment=named(current.assigned | current.pending, names),
                target=named(consumer.targets.get(member_id, frozenset()), names),
                member_type=1 if member.classic_protocols is None else 0,
            )
        )
    return DescribedConsumerGroup(
        group_id,
        consumer.state(),
        consumer.epoch,
        consumer.target_epoch,
        preferred_assignor(context, consumer),
        tuple(members),
    )


def named(pairs: Pairs, names: dict[TopicId, str]) -> tuple[NamedPartitions, ...]:
    """Partitions by topic id and name; those of deleted topics are left out."""
    return tuple(
        NamedPartitions(entry.topic_id, names[entry.topic_id], entry.partitions)
        for entry in pack(pairs)
        if entry.topic_id in names
    )


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
    expiry.remove(context, group)
    context.tell(group_id, f"deleted, with {len(partitions)} offsets")
    return ErrorCode.NONE
