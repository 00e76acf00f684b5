"""A group moves between the classic and the consumer protocol while its members live. Source: KIP-848, scenario 15.

Up: a member of the consumer protocol joins a classic group; its classic members stay, as classic members of a consumer
group, with what they have. Down: the last member of the consumer protocol goes; the classic ones rebalance among
themselves. `group.consumer.migration.policy` says which way is open; an empty group always moves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kohort.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    read_assignment,
    read_subscription,
    write_assignment,
)
from kohort.errors import ErrorCode
from kohort.groups.classic import gathering, leader, rebalance
from kohort.groups.classic.state import ClassicGroup, ClassicMember
from kohort.groups.consumer import members, targets
from kohort.groups.consumer.state import ConsumerGroup, Current, Pairs, pack
from kohort.groups.context import Context
from kohort.groups.events import Client
from kohort.groups.group import Group
from kohort.groups.liveness.deadlines import Timer
from kohort.groups.offsets import expiry
from kohort.groups.outcome import GroupState, JoinGroupReply, Level, SyncGroupReply
from kohort.groups.records import (
    ClassicProtocol,
    EpochBumped,
    GenerationStarted,
    GroupSaved,
    MemberSaved,
    TargetAssigned,
    TargetEpochSet,
)
from kohort.ids import TopicId, TopicPartition

FIRST_EPOCH = 1
"""Of a group that no one has joined yet, as in Apache Kafka: its first members are at 2."""


def make_consumer_group(context: Context, group_id: str) -> bool:
    """See that there is a consumer group of this name; False when it is another kind of group and may not change."""
    group = context.find(group_id)
    if group is None:
        if len(context.ledger.groups) >= context.config.groups_max:
            return False
        begin_consumer_group(context, group_id)
        return True
    if group.consumer is not None:
        return True
    if group.classic.state is GroupState.EMPTY:
        if group.saved is not None or group.started:
            expiry.remove(context, group)
        begin_consumer_group(context, group_id)
        reset_classic(context.ledger.group(group_id))
        return True
    return upgrade(context, group)


def begin_consumer_group(context: Context, group_id: str, epoch: int = FIRST_EPOCH) -> None:
    """Write that there is a consumer group; it has the timeouts of its own that were set before it was there."""
    context.emit(EpochBumped(group_id, epoch))
    consumer = context.ledger.consumer(group_id)
    consumer.settings = context.settings.get(group_id, consumer.settings)


def reset_classic(group: Group) -> None:
    """Forget the classic soft state."""
    classic = group.classic
    classic.join_phase.cancel()
    classic.sync_phase.cancel()
    gathering.end(classic)
    for member in classic.members.values():
        member.session.cancel()
    for pending in classic.pending.values():
        pending.timer.cancel()
    group.classic = ClassicGroup(group.group_id)


def upgrade(context: Context, group: Group) -> bool:
    """Make a classic group with members a consumer group; False, and nothing changed, when that may not be.

    A round that was under way goes on as a new epoch, whoever joined: what a member left behind has no other owner.
    """
    classic = group.classic
    open_way = context.config.consumer_migration_policy in ("upgrade", "bidirectional")
    fits = len(classic.members) < context.config.consumer_max_size
    if not open_way or not fits or classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return False
    converted = [convert_member(context, classic, member) for member in classic.members.values()]
    members = [each for each in converted if each is not None]
    limit = context.config.group_record_bytes_max
    why = ""
    if len(members) < len(converted):
        why = "a member's bytes are malformed"
    elif max(protocols_bytes(member.saved.classic_protocols or ()) for member in members) > limit:
        why = f"the strategies of a member take more than {limit} bytes (group.record.max.bytes)"
    if why:
        context.tell(group.group_id, f"can't become a consumer group: {why}", Level.WARNING)
        return False
    unsettled = classic.state is not GroupState.STABLE or leader.leaves_out(context, group)
    for member in classic.members.values():
        again = JoinGroupReply(ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
        rebalance.answer_join(context, classic, member, again)
        gathering.reply(context, member, ErrorCode.REBALANCE_IN_PROGRESS)
        rebalance.answer_sync(context, member, SyncGroupReply(ErrorCode.REBALANCE_IN_PROGRESS))
    generation = group.generation
    write_consumer_group(context, group, generation, share_out(members))
    context.tell(group.group_id, f"is a consumer group now, from generation {generation} on")
    if unsettled:
        targets.bump(context, group.group_id, "it was rebalancing when it became a consumer group")
    return True


def protocols_bytes(protocols: Iterable[ClassicProtocol]) -> int:
    """What a classic member's strategies take in the record that a consumer group has of it; a classic group keeps one."""
    return sum(len(each.metadata) for each in protocols)


class Converted(NamedTuple):
    """A classic member as a consumer group has it, what it was assigned, and what else it said it has."""

    saved: MemberSaved
    assigned: Pairs
    claimed: Pairs
    generation: int


def share_out(members: list[Converted]) -> list[tuple[MemberSaved, Pairs]]:
    """What each member holds: its assignment, and what no one was assigned but the member may not have given up.

    A cooperative group moves a partition in two generations. Between them it belongs to no one in the assignment, while
    its last owner still reads it: only that member's own word, in its subscription, tells. Source: KIP-429, scenario 15.
    """
    taken = {pair for member in members for pair in member.assigned}
    extra: dict[str, Pairs] = {}
    for member in sorted(members, key=lambda one: -one.generation):
        extra[member.saved.member_id] = member.claimed - taken
        taken |= member.claimed
    return [(member.saved, member.assigned | extra[member.saved.member_id]) for member in members]


def convert_member(context: Context, classic: ClassicGroup, member: ClassicMember) -> Converted | None:
    """A classic member as a consumer group has it; None when its bytes are malformed."""
    subscription = read_subscription(member.metadata(classic.protocol) or member.protocols[0].metadata)
    assignment = read_assignment(member.assignment)
    if subscription is None or assignment is None:
        return None
    topics = context.image.topics
    assigned = frozenset((topics[topic].id, number) for topic, number in assignment.partitions if topic in topics)
    claimed = frozenset((topics[topic].id, number) for topic, number in subscription.owned if topic in topics)
    saved = MemberSaved(
        group_id="",
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack,
        client_id=member.client.id,
        client_host=member.client.host,
        subscribed_topics=tuple(sorted(set(subscription.topics))),
        subscribed_regex=None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=None,
        classic_session_timeout_ms=member.session_timeout_ms,
        classic_protocols=member.protocols,
    )
    return Converted(saved, assigned, claimed, subscription.generation)


def write_consumer_group(
    context: Context, group: Group, generation: int, settled: list[tuple[MemberSaved, Pairs]]
) -> None:
    """Write the group anew, every member settled with what it holds."""
    group_id, before = group.group_id, group.classic.members
    ends_ms = {member_id: member.session.due_ms for member_id, member in before.items()}
    reset_classic(group)
    expiry.remove(context, group)
    for saved, _ in settled:
        fields = {name: getattr(saved, name) for name in saved.__slots__} | {"group_id": group_id}
        context.emit(MemberSaved(**fields))
    begin_consumer_group(context, group_id, generation)
    for saved, held in settled:
        context.emit(TargetAssigned(group_id, saved.member_id, pack(held)))
    context.emit(TargetEpochSet(group_id, generation, context.now.wall_ms))
    consumer = context.ledger.consumer(group_id)
    for saved, held in settled:
        context.emit(Current(generation, generation, assigned=held).record(group_id, saved.member_id))
        presence, member = consumer.presence(group_id, saved.member_id), before[saved.member_id]
        presence.connection, presence.process = member.connection, member.client.process
        presence.gone_ms = context.now.mono_ms if member.is_gone else None
        presence.lost, presence.heard_ms = member.lost, member.heard_ms
        members.touch(context, consumer, presence, saved.member_id)
        go_on(context, presence.session, ends_ms[saved.member_id])


def go_on(context: Context, session: Timer, ends_ms: int | None) -> None:
    """A member whose connection has ended is given no new session by its group's conversion: the old one goes on."""
    if session.due_ms is None and ends_ms is not None:
        context.deadlines.set(session, ends_ms)


def turns_classic(context: Context, group_id: str, consumer: ConsumerGroup, leaving: str | None = None) -> bool:
    """Whether only classic members are left, without the one that leaves, and they may be a classic group."""
    rest = [member for member_id, member in consumer.members.items() if member_id != leaving]
    return (
        bool(rest)
        and all(member.classic_protocols is not None for member in rest)
        and context.config.consumer_migration_policy in ("downgrade", "bidirectional")
        and len(rest) <= context.config.group_max_size
        and fits_one_record(context, group_id, consumer, rest)
    )


def fits_one_record(context: Context, group_id: str, consumer: ConsumerGroup, members: list[MemberSaved]) -> bool:
    """Whether these members are no more than the one record of a classic group may hold; each has one of its own now."""
    names, limit = topic_names(context), context.config.group_record_bytes_max
    size = sum(convert_back(consumer, member, names).record_bytes() for member in members)
    if size <= limit:
        return True
    text = f"it would take {size} bytes, a record may have {limit} (group.record.max.bytes)"
    context.tell(group_id, f"only classic members are left, but it stays a consumer group: {text}", Level.WARNING)
    return False


def topic_names(context: Context) -> dict[TopicId, str]:
    """The names of all topics, by id."""
    return {topic.id: topic.name for topic in context.image.topics.values()}


def make_classic_group(context: Context, group: Group, leaving: str | None = None) -> None:
    """Make a consumer group of classic members a classic one, and let it rebalance."""
    consumer = group.consumer
    if consumer is None:
        return
    group_id, epoch = group.group_id, consumer.epoch
    names = topic_names(context)
    classic = ClassicGroup(group_id)
    classic.protocol_type = CONSUMER_PROTOCOL_TYPE
    for saved in consumer.members.values():
        if saved.member_id != leaving:
            member = convert_back(consumer, saved, names)
            classic.members[saved.member_id] = member
            classic.count(member, 1)
            if saved.instance_id is not None:
                classic.static_ids[saved.instance_id] = saved.member_id
    classic.protocol = classic.select_protocol()
    classic.leader = next(iter(classic.members), None)
    joining = {name: presence.joining for name, presence in consumer.presences.items() if presence.joining is not None}
    ends_ms = {name: presence.session.due_ms for name, presence in consumer.presences.items()}
    for presence in consumer.presences.values():
        presence.cancel()
    expiry.write_tombstones(context, group_id, consumer)
    members = tuple(member.saved(classic.protocol) for member in classic.members.values())
    protocol_type = CONSUMER_PROTOCOL_TYPE
    context.emit(
        GroupSaved(group_id, protocol_type, epoch, classic.protocol, classic.leader, context.now.wall_ms, members)
    )
    context.emit(GenerationStarted(group_id, epoch + 1))  # after a crash the rebalance that begins here begins again
    group = context.ledger.group(group_id)
    group.classic = classic
    classic.resumed_from = epoch
    classic.state = classic.previous_state = GroupState.STABLE
    classic.subscribed = classic.read_subscriptions()
    for member in classic.members.values():
        rebalance.touch(context, member)
        go_on(context, member.session, ends_ms.get(member.member_id))
        if (event := joining.get(member.member_id)) is not None:
            rebalance.await_join(context, classic, member, event.request)
    context.tell(group_id, f"is a classic group again, from generation {epoch} on")
    rebalance.prepare(context, group, "the last member of the consumer protocol went")


def convert_back(consumer: ConsumerGroup, saved: MemberSaved, names: dict[TopicId, str]) -> ClassicMember:
    """A classic member of a consumer group as a classic group has it."""
    presence = consumer.presence(saved.group_id, saved.member_id)
    client = Client(saved.client_id, saved.client_host, presence.process)
    member = ClassicMember(saved.group_id, saved.member_id, saved.instance_id, client)
    member.connection, member.is_gone = presence.connection, presence.gone_ms is not None
    member.lost, member.heard_ms = presence.lost, presence.heard_ms
    member.rebalance_timeout_ms = saved.rebalance_timeout_ms
    member.session_timeout_ms = saved.classic_session_timeout_ms
    member.protocols = saved.classic_protocols or ()
    member.assignment = assignment_bytes(consumer, saved, names)
    return member


def assignment_bytes(consumer: ConsumerGroup, saved: MemberSaved, names: dict[TopicId, str]) -> bytes:
    """What a classic member has, in the bytes its client reads."""
    held = consumer.standing(saved.member_id).assigned
    protocols = saved.classic_protocols or ()
    subscription = read_subscription(protocols[0].metadata) if protocols else None
    version = 0 if subscription is None else subscription.version
    named = [TopicPartition(names[topic_id], number) for topic_id, number in held if topic_id in names]
    return write_assignment(version, named)
