"""Conversion of groups between the classic and the consumer protocol while members live. Source: KIP-848, scenario 15.

- **Upgrade**: a member of the consumer protocol joins a classic group. Its classic members stay, as classic members of
  a consumer group, with their partitions.
- **Downgrade**: the last member of the consumer protocol leaves. The classic members rebalance among themselves.

`group.consumer.migration.policy` says which direction is allowed. An empty group may always change.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from kohort.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    read_assignment,
    read_subscription,
)
from kohort.errors import ErrorCode
from kohort.groups import admission
from kohort.groups.classic.group import ClassicGroup
from kohort.groups.classic.members import ClassicMember
from kohort.groups.classic.rebalance import ClassicRebalance
from kohort.groups.consumer.classic_members import classic_member_record
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.consumer.members import CurrentAssignment
from kohort.groups.context import Context
from kohort.groups.effects import Cause, GroupState, JoinGroupReply, Level, RebalanceReason, SyncGroupReply
from kohort.groups.events import Client, JoinGroup
from kohort.groups.group import Group
from kohort.groups.records import (
    EpochBumped,
    GenerationStarted,
    GroupSaved,
    MemberSaved,
    TargetAssigned,
    TargetEpochSet,
)
from kohort.groups.timers import Timer
from kohort.groups.topics import TopicIdPartitions, pack_partitions
from kohort.ids import TopicId

FIRST_EPOCH = 1
"""The epoch of a group before its first join, as in Apache Kafka: its first members are at 2."""


class GroupConversion:
    """The conversion of a shard's groups from one protocol to another."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def make_consumer_group(self, group_id: str) -> bool:
        """Ensure that a consumer group of this name exists.

        False: the shard has no room for another group, or the group has another protocol and must not be converted.
        """
        group = self.context.find(group_id)
        if group is None:
            if not self.context.has_room():
                return False
            self.begin_consumer_group(group_id)
            return True
        membership = group.membership
        if isinstance(membership, ConsumerGroup):
            return True
        if membership.group_state() is GroupState.EMPTY:
            self.drop_empty_group_protocol(group)
            self.begin_consumer_group(group_id)
            return True
        return isinstance(membership, ClassicGroup) and self.convert_to_consumer(group, membership)

    def drop_empty_group_protocol(self, group: Group) -> None:
        """Remove the protocol's records of an empty group, so that the next member determines the protocol."""
        group.membership.cancel_timers()
        if group.membership.has_records():
            self.context.remove_membership(group)

    def begin_consumer_group(self, group_id: str, epoch: int = FIRST_EPOCH) -> ConsumerGroup:
        """Create a consumer group: write its first epoch, and apply settings that were made for its name before."""
        self.context.emit(EpochBumped(group_id, epoch))
        consumer = self.context.ledger.membership(group_id, ConsumerGroup)
        consumer.settings = self.context.settings.get(group_id, consumer.settings)
        return consumer

    def convert_to_consumer(self, group: Group, classic: ClassicRebalance) -> bool:
        """Convert a classic group with members to a consumer group; return False, with nothing changed, if not allowed.

        A rebalance under way continues as a new epoch, which includes members that have not joined yet: nobody else
        owns their partitions.
        """
        context = self.context
        open_way = context.config.consumer_migration_policy in ("upgrade", "bidirectional")
        place = admission.group_full_error(context.config.consumer_max_size, len(classic.members))
        if not open_way or place is not ErrorCode.NONE or classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return False
        converted = [self.convert_member(classic, member) for member in classic.members.values()]
        members = [member for member in converted if member is not None]
        sizes = [admission.protocols_size_bytes(member.saved.classic_protocols or ()) for member in members]
        limit = context.config.group_record_bytes_max
        why = ""
        if len(members) < len(converted):
            why = "a member's metadata or assignment is malformed"
        elif any(admission.record_size_error(context.config, size) is not ErrorCode.NONE for size in sizes):
            why = f"the protocols of a member take more than {limit} bytes; raise group.record.max.bytes"
        if why:
            context.log(group.group_id, f"cannot become a consumer group: {why}", Level.WARNING)
            return False
        unsettled = classic.state is not GroupState.STABLE or classic.has_unowned_partitions(context)
        for member in classic.members.values():
            again = JoinGroupReply(ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
            classic.answer_join(context, member, again)
            classic.cancel_long_poll(context, member, ErrorCode.REBALANCE_IN_PROGRESS)
            member.answer_sync(context, SyncGroupReply(ErrorCode.REBALANCE_IN_PROGRESS))
        generation = classic.generation
        consumer = self.write_consumer_group(group, classic, divide_converted_partitions(members))
        context.log(group.group_id, f"converted to a consumer group at generation {generation}")
        if unsettled:
            text = "a rebalance was under way during the conversion to a consumer group"
            consumer.begin_epoch(context, Cause(RebalanceReason.COORDINATOR, text))
        return True

    def convert_member(self, classic: ClassicRebalance, member: ClassicMember) -> ConvertedMember | None:
        """Convert a classic member to a consumer group's record; None if its bytes are malformed."""
        subscription = read_subscription(member.metadata(classic.protocol) or member.protocols[0].metadata)
        assignment = read_assignment(member.assignment)
        if subscription is None or assignment is None:
            return None
        topics = self.context.image.topics
        assigned = frozenset((topics[topic].id, number) for topic, number in assignment.partitions if topic in topics)
        claimed = frozenset((topics[topic].id, number) for topic, number in subscription.owned if topic in topics)
        saved = classic_member_record("", member.member_id, member, subscription)
        return ConvertedMember(saved, assigned, claimed, subscription.generation)

    def write_consumer_group(
        self, group: Group, classic: ClassicRebalance, settled: list[tuple[MemberSaved, TopicIdPartitions]]
    ) -> ConsumerGroup:
        """Write the group as a consumer group, with every member settled on its partitions."""
        context = self.context
        group_id, generation, before = group.group_id, classic.generation, classic.members
        ends_ms = {member_id: member.session.due_ms for member_id, member in before.items()}
        classic.cancel_timers()
        context.remove_membership(group)
        for saved, _ in settled:
            context.emit(replace(saved, group_id=group_id))
        consumer = self.begin_consumer_group(group_id, generation)
        for saved, held in settled:
            context.emit(TargetAssigned(group_id, saved.member_id, pack_partitions(held)))
        context.emit(TargetEpochSet(group_id, generation, context.now.wall_ms))
        for saved, held in settled:
            context.emit(CurrentAssignment(generation, generation, assigned=held).to_record(group_id, saved.member_id))
            presence, member = consumer.soft_state(saved.member_id), before[saved.member_id]
            presence.take_over_connection(member)
            presence.process = member.client.process
            consumer.restart_connected_session(context, presence, saved.member_id)
            self.keep_old_session(presence.session, ends_ms[saved.member_id])
        return consumer

    def keep_old_session(self, session: Timer, ends_ms: int | None) -> None:
        """Keep a member's old session end if its connection has ended: conversion must not give it a new session."""
        if session.due_ms is None and ends_ms is not None:
            self.context.deadlines.set_timer(session, ends_ms)

    def convert_to_classic(
        self, group_id: str, leaving: str | None = None, joining: tuple[JoinGroup, str] | None = None
    ) -> bool:
        """Convert a consumer group to a classic one if only classic members are left and the policy permits it.

        Args:
            group_id: a consumer group.
            leaving: a member that leaves with the conversion.
            joining: a JoinGroup that waits for the first rebalance, with its member's id in the group.
        """
        context = self.context
        consumer = context.ledger.membership(group_id, ConsumerGroup)
        if not self.becomes_classic_after(consumer, leaving):
            return False
        if leaving is not None:
            consumer.forget_removed_member(context, leaving)
        classic = self.make_classic_group(consumer, leaving)
        if joining is not None:
            event, member_id = joining
            classic.await_join(context, classic.members[member_id], event.request)
            classic.complete_if_all_joined(context)
        return True

    def becomes_classic_after(self, consumer: ConsumerGroup, leaving: str | None = None) -> bool:
        """Return whether a consumer group becomes classic when this member leaves.

        All others are classic members then, and the migration policy and the limits of group and record size allow it.
        """
        rest = [member for member_id, member in consumer.members.items() if member_id != leaving]
        return (
            bool(rest)
            and all(member.classic_protocols is not None for member in rest)
            and self.context.config.consumer_migration_policy in ("downgrade", "bidirectional")
            and admission.group_full_error(self.context.config.group_max_size, len(rest) - 1) is ErrorCode.NONE
            and self.fits_one_record(consumer, rest)
        )

    def fits_one_record(self, consumer: ConsumerGroup, members: list[MemberSaved]) -> bool:
        """Return whether these members fit into the one record of a classic group; now each has its own."""
        context = self.context
        names, limit = context.topic_names(), context.config.group_record_bytes_max
        size = sum(to_classic_member(consumer, member, names).record_bytes() for member in members)
        if admission.record_size_error(context.config, size) is ErrorCode.NONE:
            return True
        text = f"its record would take {size} bytes, more than {limit}; raise group.record.max.bytes"
        context.log(
            consumer.group_id, f"only classic members are left, but it stays a consumer group: {text}", Level.WARNING
        )
        return False

    def make_classic_group(self, consumer: ConsumerGroup, leaving: str | None = None) -> ClassicGroup:
        """Convert a consumer group of classic members to a classic group, and start its rebalance."""
        context = self.context
        group_id, epoch = consumer.group_id, consumer.epoch
        names = context.topic_names()
        rest = [saved for saved in consumer.members.values() if saved.member_id != leaving]
        kept = [to_classic_member(consumer, saved, names) for saved in rest]
        joining = {
            name: presence.joining for name, presence in consumer.presences.items() if presence.joining is not None
        }
        ends_ms = {name: presence.session.due_ms for name, presence in consumer.presences.items()}
        consumer.cancel_timers()
        context.remove_membership(context.ledger.group(group_id))
        classic = context.ledger.membership(group_id, ClassicGroup)
        classic.protocol_type = CONSUMER_PROTOCOL_TYPE
        for member in kept:
            classic.members[member.member_id] = member
            classic.count_votes(member, 1)
            if member.instance_id is not None:
                classic.static_ids[member.instance_id] = member.member_id
        protocol = classic.protocol = classic.select_protocol()
        leads = classic.leader = next(iter(classic.members), None)
        members = tuple(member.to_saved_member(protocol) for member in kept)
        context.emit(GroupSaved(group_id, CONSUMER_PROTOCOL_TYPE, epoch, protocol, leads, context.now.wall_ms, members))
        # After a crash, the rebalance that starts here starts again.
        context.emit(GenerationStarted(group_id, epoch + 1))
        classic.resumed_from = epoch
        classic.state = classic.previous_state = GroupState.STABLE
        classic.subscribed = classic.read_subscriptions()
        for member in classic.members.values():
            member.restart_session_if_connected(context, member.session_timeout_ms)
            self.keep_old_session(member.session, ends_ms.get(member.member_id))
            if (event := joining.get(member.member_id)) is not None:
                classic.await_join(context, member, event.request)
        context.log(group_id, f"converted to a classic group at generation {epoch}")
        text = "the last member of the consumer protocol left"
        classic.prepare_rebalance(context, Cause(RebalanceReason.LEFT, text, leaving or ""))
        return classic


class ConvertedMember(NamedTuple):
    """A classic member converted for a consumer group: its record, its assignment, and the partitions it claims."""

    saved: MemberSaved
    assigned: TopicIdPartitions
    claimed: TopicIdPartitions
    generation: int


def divide_converted_partitions(members: list[ConvertedMember]) -> list[tuple[MemberSaved, TopicIdPartitions]]:
    """Return each member's partitions: its assignment, and unassigned partitions that it may still read.

    A cooperative group moves a partition in two generations. Between them the partition is in no assignment, while its
    last owner still reads it. Only the subscription of that member shows it. Source: KIP-429, scenario 15.
    """
    taken = {pair for member in members for pair in member.assigned}
    extra: dict[str, TopicIdPartitions] = {}
    for member in sorted(members, key=lambda converted: -converted.generation):
        extra[member.saved.member_id] = member.claimed - taken
        taken |= member.claimed
    return [(member.saved, member.assigned | extra[member.saved.member_id]) for member in members]


def to_classic_member(consumer: ConsumerGroup, saved: MemberSaved, names: dict[TopicId, str]) -> ClassicMember:
    """Build a classic group's member from a classic member of a consumer group."""
    presence = consumer.soft_state(saved.member_id)
    client = Client(saved.client_id, saved.client_host, presence.process)
    member = ClassicMember(saved.group_id, saved.member_id, saved.instance_id, client)
    member.take_over_connection(presence)
    member.rebalance_timeout_ms = saved.rebalance_timeout_ms
    member.session_timeout_ms = saved.classic_session_timeout_ms
    member.protocols = saved.classic_protocols or ()
    member.assignment = consumer.assignment_bytes(saved, names)
    return member
