"""Conversion of groups between the classic and the consumer protocol while members live. Source: KIP-848, scenario 15.

- **Upgrade**: a member of the consumer protocol joins a classic group. Its classic members stay, as classic members of
  a consumer group, with their partitions.
- **Downgrade**: the last member of the consumer protocol leaves. The classic members rebalance among themselves.

`group.consumer.migration.policy` says which direction is allowed. An empty group may always change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kohort.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)
from kohort.errors import ErrorCode
from kohort.groups.classic import rebalance
from kohort.groups.classic.group import ClassicGroup, ClassicMember
from kohort.groups.consumer import assignment, members
from kohort.groups.consumer.group import ConsumerGroup, CurrentAssignment
from kohort.groups.effects import GroupState, JoinGroupReply, Level, SyncGroupReply
from kohort.groups.events import Client, JoinGroup
from kohort.groups.group import Group
from kohort.groups.pairs import Pairs, pack
from kohort.groups.records import (
    ClassicProtocol,
    EpochBumped,
    GenerationStarted,
    GroupSaved,
    MemberSaved,
    TargetAssigned,
    TargetEpochSet,
)
from kohort.groups.step import Context
from kohort.groups.timers import Timer
from kohort.ids import TopicId, TopicPartition

FIRST_EPOCH = 1
"""The epoch of a group before its first join, as in Apache Kafka: its first members are at 2."""


def make_consumer_group(context: Context, group_id: str) -> bool:
    """Ensure a consumer group of this name; False if it is of another kind and must not be converted."""
    group = context.find(group_id)
    if group is None:
        if context.ledger.is_full(context.config.groups_max):
            return False
        begin_consumer_group(context, group_id)
        return True
    membership = group.membership
    if isinstance(membership, ConsumerGroup):
        return True
    if membership.group_state() is GroupState.EMPTY:
        release_protocol(context, group)
        begin_consumer_group(context, group_id)
        return True
    return isinstance(membership, ClassicGroup) and upgrade(context, group, membership)


def release_protocol(context: Context, group: Group) -> None:
    """Release an empty group from its protocol, so that it takes the protocol of the next member."""
    group.membership.cancel()
    if group.membership.has_records():
        context.remove(group)


def begin_consumer_group(context: Context, group_id: str, epoch: int = FIRST_EPOCH) -> ConsumerGroup:
    """Write a new consumer group, with settings of its own that were made before it existed."""
    context.emit(EpochBumped(group_id, epoch))
    consumer = context.ledger.membership(group_id, ConsumerGroup)
    consumer.settings = context.settings.get(group_id, consumer.settings)
    return consumer


def upgrade(context: Context, group: Group, classic: ClassicGroup) -> bool:
    """Convert a classic group with members to a consumer group; False, with nothing changed, if that is not allowed.

    A rebalance under way continues as a new epoch, whoever joined: a member's former partitions have no other owner.
    """
    open_way = context.config.consumer_migration_policy in ("upgrade", "bidirectional")
    fits = len(classic.members) < context.config.consumer_max_size
    if not open_way or not fits or classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return False
    converted = [convert_member(context, classic, member) for member in classic.members.values()]
    members = [member for member in converted if member is not None]
    limit = context.config.group_record_bytes_max
    why = ""
    if len(members) < len(converted):
        why = "a member's metadata or assignment is malformed"
    elif any(protocols_bytes(member.saved.classic_protocols or ()) > limit for member in members):
        why = f"the protocols of a member take more than {limit} bytes; raise group.record.max.bytes"
    if why:
        context.log(group.group_id, f"cannot become a consumer group: {why}", Level.WARNING)
        return False
    unsettled = classic.state is not GroupState.STABLE or rebalance.leaves_out(context, classic)
    for member in classic.members.values():
        again = JoinGroupReply(ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
        rebalance.answer_join(context, classic, member, again)
        context.held.refuse(context, classic, member, ErrorCode.REBALANCE_IN_PROGRESS)
        rebalance.answer_sync(context, member, SyncGroupReply(ErrorCode.REBALANCE_IN_PROGRESS))
    generation = classic.generation
    consumer = write_consumer_group(context, group, classic, share_out(members))
    context.log(group.group_id, f"converted to a consumer group at generation {generation}")
    if unsettled:
        assignment.bump(context, consumer, "a rebalance was under way during the conversion to a consumer group")
    return True


def protocols_bytes(protocols: Iterable[ClassicProtocol]) -> int:
    """Return the bytes that a classic member's protocols take in its record of a consumer group.

    A classic group stores only the chosen one.
    """
    return sum(len(protocol.metadata) for protocol in protocols)


class Converted(NamedTuple):
    """A classic member converted to a consumer group's record, with its assigned and otherwise claimed partitions."""

    saved: MemberSaved
    assigned: Pairs
    claimed: Pairs
    generation: int


def share_out(members: list[Converted]) -> list[tuple[MemberSaved, Pairs]]:
    """Return each member's partitions: its assignment, and unassigned ones that it may not have revoked yet.

    A cooperative group moves a partition in two generations. Between them the partition is in no assignment, while its
    last owner still reads it. Only the subscription of that member shows it. Source: KIP-429, scenario 15.
    """
    taken = {pair for member in members for pair in member.assigned}
    extra: dict[str, Pairs] = {}
    for member in sorted(members, key=lambda converted: -converted.generation):
        extra[member.saved.member_id] = member.claimed - taken
        taken |= member.claimed
    return [(member.saved, member.assigned | extra[member.saved.member_id]) for member in members]


def member_saved(
    group_id: str, member_id: str, said: JoinGroup | ClassicMember, subscription: Subscription
) -> MemberSaved:
    """Build the record of a consumer group's member from a classic member or its join."""
    return MemberSaved(
        group_id=group_id,
        member_id=member_id,
        instance_id=said.instance_id,
        rack_id=subscription.rack,
        client_id=said.client.id,
        client_host=said.client.host,
        subscribed_topics=tuple(sorted(set(subscription.topics))),
        subscribed_regex=None,
        rebalance_timeout_ms=said.rebalance_timeout_ms,
        server_assignor=None,
        classic_session_timeout_ms=said.session_timeout_ms,
        classic_protocols=said.protocols,
    )


def convert_member(context: Context, classic: ClassicGroup, member: ClassicMember) -> Converted | None:
    """Convert a classic member to a consumer group's record; None if its bytes are malformed."""
    subscription = read_subscription(member.metadata(classic.protocol) or member.protocols[0].metadata)
    assignment = read_assignment(member.assignment)
    if subscription is None or assignment is None:
        return None
    topics = context.image.topics
    assigned = frozenset((topics[topic].id, number) for topic, number in assignment.partitions if topic in topics)
    claimed = frozenset((topics[topic].id, number) for topic, number in subscription.owned if topic in topics)
    saved = member_saved("", member.member_id, member, subscription)
    return Converted(saved, assigned, claimed, subscription.generation)


def write_consumer_group(
    context: Context, group: Group, classic: ClassicGroup, settled: list[tuple[MemberSaved, Pairs]]
) -> ConsumerGroup:
    """Write the group as a consumer group, with every member settled on its partitions."""
    group_id, generation, before = group.group_id, classic.generation, classic.members
    ends_ms = {member_id: member.session.due_ms for member_id, member in before.items()}
    classic.cancel()
    context.remove(group)
    for saved, _ in settled:
        fields = {name: getattr(saved, name) for name in saved.__slots__} | {"group_id": group_id}
        context.emit(MemberSaved(**fields))
    consumer = begin_consumer_group(context, group_id, generation)
    for saved, held in settled:
        context.emit(TargetAssigned(group_id, saved.member_id, pack(held)))
    context.emit(TargetEpochSet(group_id, generation, context.now.wall_ms))
    for saved, held in settled:
        context.emit(CurrentAssignment(generation, generation, assigned=held).record(group_id, saved.member_id))
        presence, member = consumer.presence(saved.member_id), before[saved.member_id]
        presence.take_over_connection(member)
        presence.process = member.client.process
        members.touch(context, consumer, presence, saved.member_id)
        continue_session(context, presence.session, ends_ms[saved.member_id])
    return consumer


def continue_session(context: Context, session: Timer, ends_ms: int | None) -> None:
    """Continue the old session of a member whose connection has ended: the conversion gives it no new one."""
    if session.due_ms is None and ends_ms is not None:
        context.deadlines.set(session, ends_ms)


def turns_classic(context: Context, consumer: ConsumerGroup, leaving: str | None = None) -> bool:
    """Return whether, without the leaving member, only classic members are left and they may become a classic group."""
    rest = [member for member_id, member in consumer.members.items() if member_id != leaving]
    return (
        bool(rest)
        and all(member.classic_protocols is not None for member in rest)
        and context.config.consumer_migration_policy in ("downgrade", "bidirectional")
        and len(rest) <= context.config.group_max_size
        and fits_one_record(context, consumer, rest)
    )


def fits_one_record(context: Context, consumer: ConsumerGroup, members: list[MemberSaved]) -> bool:
    """Return whether these members fit into the one record of a classic group; now each has its own."""
    names, limit = topic_names(context), context.config.group_record_bytes_max
    size = sum(convert_back(consumer, member, names).record_bytes() for member in members)
    if size <= limit:
        return True
    text = f"its record would take {size} bytes, more than {limit}; raise group.record.max.bytes"
    context.log(
        consumer.group_id, f"only classic members are left, but it stays a consumer group: {text}", Level.WARNING
    )
    return False


def topic_names(context: Context) -> dict[TopicId, str]:
    """Return the names of all topics by id."""
    return {topic.id: topic.name for topic in context.image.topics.values()}


def make_classic_group(context: Context, consumer: ConsumerGroup, leaving: str | None = None) -> ClassicGroup:
    """Convert a consumer group of classic members to a classic group, and start its rebalance."""
    group_id, epoch = consumer.group_id, consumer.epoch
    names = topic_names(context)
    rest = [saved for saved in consumer.members.values() if saved.member_id != leaving]
    kept = [convert_back(consumer, saved, names) for saved in rest]
    joining = {name: presence.joining for name, presence in consumer.presences.items() if presence.joining is not None}
    ends_ms = {name: presence.session.due_ms for name, presence in consumer.presences.items()}
    consumer.cancel()
    context.remove(context.ledger.group(group_id))
    classic = context.ledger.membership(group_id, ClassicGroup)
    classic.protocol_type = CONSUMER_PROTOCOL_TYPE
    for member in kept:
        classic.members[member.member_id] = member
        classic.count(member, 1)
        if member.instance_id is not None:
            classic.static_ids[member.instance_id] = member.member_id
    protocol = classic.protocol = classic.select_protocol()
    leads = classic.leader = next(iter(classic.members), None)
    members = tuple(member.saved(protocol) for member in kept)
    context.emit(GroupSaved(group_id, CONSUMER_PROTOCOL_TYPE, epoch, protocol, leads, context.now.wall_ms, members))
    context.emit(GenerationStarted(group_id, epoch + 1))  # after a crash, the rebalance that starts here starts again
    classic.resumed_from = epoch
    classic.state = classic.previous_state = GroupState.STABLE
    classic.subscribed = classic.read_subscriptions()
    for member in classic.members.values():
        member.touch(context, member.session_timeout_ms)
        continue_session(context, member.session, ends_ms.get(member.member_id))
        if (event := joining.get(member.member_id)) is not None:
            rebalance.await_join(context, classic, member, event.request)
    context.log(group_id, f"converted to a classic group at generation {epoch}")
    rebalance.prepare(context, classic, "the last member of the consumer protocol left")
    return classic


def convert_back(consumer: ConsumerGroup, saved: MemberSaved, names: dict[TopicId, str]) -> ClassicMember:
    """Convert a consumer group's classic member to a classic group's member."""
    presence = consumer.presence(saved.member_id)
    client = Client(saved.client_id, saved.client_host, presence.process)
    member = ClassicMember(saved.group_id, saved.member_id, saved.instance_id, client)
    member.take_over_connection(presence)
    member.rebalance_timeout_ms = saved.rebalance_timeout_ms
    member.session_timeout_ms = saved.classic_session_timeout_ms
    member.protocols = saved.classic_protocols or ()
    member.assignment = assignment_bytes(consumer, saved, names)
    return member


def assignment_bytes(consumer: ConsumerGroup, saved: MemberSaved, names: dict[TopicId, str]) -> bytes:
    """Return a classic member's partitions in the bytes that its client reads."""
    held = consumer.current_assignment(saved.member_id).assigned
    protocols = saved.classic_protocols or ()
    subscription = read_subscription(protocols[0].metadata) if protocols else None
    version = 0 if subscription is None else subscription.version
    named = [TopicPartition(names[topic_id], number) for topic_id, number in held if topic_id in names]
    return write_assignment(version, named)
