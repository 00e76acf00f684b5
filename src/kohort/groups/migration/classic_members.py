"""Classic members of a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup against epochs. Source: KIP-848.

A classic member's generation is its member epoch. REBALANCE_IN_PROGRESS tells it to move. Its JoinGroup reports the
partitions that it still has, and its SyncGroup returns its new ones.
"""

from __future__ import annotations

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE, Subscription, read_subscription
from kohort.errors import ErrorCode
from kohort.groups import sizes
from kohort.groups.classic.group import ClassicGroup
from kohort.groups.consumer import assignment, members
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.consumer.reconcile import waits_for_others
from kohort.groups.context import Context
from kohort.groups.effects import HeartbeatReply, JoinGroupReply, LeaveGroupReply, LeftMember, SyncGroupReply
from kohort.groups.events import Heartbeat, JoinGroup, LeaveGroup, LeavingMember, SyncGroup
from kohort.groups.migration import conversion
from kohort.groups.pairs import Pairs
from kohort.groups.records import MemberSaved, MemberState
from kohort.groups.timers import Deadline, Timer


def join(context: Context, consumer: ConsumerGroup, event: JoinGroup) -> None:
    """Process a classic member's join, first or repeated."""
    error = join_or_error(context, consumer, event)
    if error is not ErrorCode.NONE:
        member_id = event.new_member_id if error is ErrorCode.MEMBER_ID_REQUIRED else event.member_id
        context.reply(event.request, JoinGroupReply(error, member_id=member_id))


def join_or_error(context: Context, consumer: ConsumerGroup, event: JoinGroup) -> ErrorCode:
    """Process a JoinGroup, or return the error that refuses it."""
    refused = sizes.check_join(context.config, event)
    if refused is not ErrorCode.NONE:
        return refused
    if conversion.protocols_bytes(event.protocols) > context.config.group_record_bytes_max:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    member_id = event.member_id or event.new_member_id
    replaced = consumer.static_ids.get(event.instance_id)
    is_new = event.member_id not in consumer.members and replaced is None
    if is_new and len(consumer.members) >= context.config.consumer_max_size:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    subscription = read_subscription(event.protocols[0].metadata) if event.protocols else None
    if subscription is None or len(event.protocols) > context.config.protocols_max or not supports(consumer, event):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if not event.member_id and event.instance_id is None and event.requires_known_id:
        give_id(context, consumer, event)
        return ErrorCode.MEMBER_ID_REQUIRED
    if event.instance_id is None and not is_known(consumer, event.member_id):
        return ErrorCode.UNKNOWN_MEMBER_ID
    if event.instance_id is not None and event.member_id:
        if replaced is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if replaced != event.member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    goes_back = False
    if replaced is not None and replaced != member_id:
        goes_back = consumer.members[replaced].classic_protocols is None
        members.take_place(context, consumer, replaced, member_id)
    else:
        members.rejoin(context, consumer, member_id)
    before = consumer.members.get(member_id)
    if save(context, consumer, event, member_id, subscription):
        assignment.bump(context, consumer, f"classic member {member_id} joined or changed its subscription")
    presence = members.heard(context, consumer, member_id, event.connection)
    presence.process = event.client.process
    if before is not None and before.classic_protocols is None:
        members.change_protocol(context, consumer, presence, member_id)
    if goes_back and conversion.turns_classic(context, consumer):
        join_classic(context, conversion.make_classic_group(context, consumer), event, member_id)
        return ErrorCode.NONE
    wait(context, consumer, event, member_id)
    return ErrorCode.NONE


def give_id(context: Context, consumer: ConsumerGroup, event: JoinGroup) -> None:
    """Answer a first join with a member id (KIP-394)."""
    timer = consumer.given_ids[event.new_member_id] = Timer(
        Deadline.PENDING_MEMBER, event.group_id, event.new_member_id
    )
    context.run(timer, event.session_timeout_ms)


def is_known(consumer: ConsumerGroup, member_id: str) -> bool:
    """Return whether a dynamic member has no id yet, is in the group, or was just given its id.

    Kafka accepts any id here. An evicted member that does not know of its eviction would continue with partitions that
    others have by now. UNKNOWN_MEMBER_ID tells it to release them first.
    """
    if not member_id or member_id in consumer.members:
        return True
    timer = consumer.given_ids.pop(member_id, None)
    if timer is not None:
        timer.cancel()
    return timer is not None


def join_classic(context: Context, classic: ClassicGroup, event: JoinGroup, member_id: str) -> None:
    """Let the member that made the group classic again wait for the join phase like the others."""
    classic.await_join(context, classic.members[member_id], event.request)
    classic.complete_if_all_joined(context)


def supports(consumer: ConsumerGroup, event: JoinGroup) -> bool:
    """Return whether a protocol of the member is one that all classic members support."""
    others = [
        {offered.name for offered in member.classic_protocols or ()}
        for member in consumer.classic_members()
        if member.member_id != event.member_id
    ]
    names = [offered.name for offered in event.protocols]
    is_consumer = event.protocol_type == CONSUMER_PROTOCOL_TYPE
    return is_consumer and any(all(name in other for other in others) for name in names)


def save(
    context: Context, consumer: ConsumerGroup, event: JoinGroup, member_id: str, subscription: Subscription
) -> bool:
    """Write a classic member's metadata if it is new; True if the group needs a new epoch for it."""
    old = consumer.members.get(member_id)
    new = conversion.member_saved(event.group_id, member_id, event, subscription)
    if new == old:
        return False
    context.emit(new)
    return old is None or (old.subscribed_topics, old.subscribed_regex) != (new.subscribed_topics, None)


def wait(context: Context, consumer: ConsumerGroup, event: JoinGroup, member_id: str) -> None:
    """Answer the join as soon as there is a target for it."""
    presence = consumer.presence(member_id)
    again = members.Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} has sent another JoinGroup.")
    members.turn_away(context, consumer, presence, again)
    presence.joining, presence.waits_for = event, consumer.epoch
    presence.overdue = False
    presence.join_phase.cancel()
    if consumer.epoch <= consumer.target_epoch:
        complete_join(context, consumer, member_id)
    else:
        assignment.request(context, consumer)


def on_target(context: Context, consumer: ConsumerGroup, failure: str | None) -> None:
    """Answer the waiting joins of classic members after a target was computed."""
    for member_id, presence in list(consumer.presences.items()):
        if presence.joining is None:
            continue
        if failure is not None and consumer.computing < 0:
            reply = JoinGroupReply(ErrorCode.UNKNOWN_SERVER_ERROR, member_id=member_id)
            context.reply(presence.joining.request, reply)
            presence.joining = None
        elif presence.waits_for <= consumer.target_epoch:
            complete_join(context, consumer, member_id)


def complete_join(context: Context, consumer: ConsumerGroup, member_id: str) -> None:
    """Move a classic member by the partitions that its join reports, and send it its epoch."""
    presence = consumer.presences[member_id]
    event = presence.joining
    if event is None:
        return
    presence.joining = None
    before = consumer.current_assignment(member_id)
    subscription = read_subscription(event.protocols[0].metadata)
    owned = None if is_behind(subscription, before.member_epoch) else owned_ids(context, subscription)
    current = members.step(context, consumer, member_id, owned)
    members.touch(context, consumer, presence, member_id)
    if current != before:  # else it has its assignment or is awaited already: a join may be late or repeated
        context.run(presence.sync_phase, event.rebalance_timeout_ms)
    context.reply(
        event.request,
        JoinGroupReply(
            ErrorCode.NONE,
            member_id=member_id,
            generation=current.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=event.protocols[0].name,
        ),
    )


def is_behind(subscription: Subscription | None, member_epoch: int) -> bool:
    """Return whether a member's reported partitions are those of an older epoch than its own.

    Such a join was sent before the member got its partitions, and arrived late or again after a lost reply. Partitions
    that it leaves out are not revoked. Members that name no generation are taken at their word.
    """
    return subscription is not None and 0 < subscription.generation < member_epoch


def owned_ids(context: Context, subscription: Subscription | None) -> Pairs:
    """Return the partitions that a subscription reports as owned."""
    topics = context.image.topics
    owned = () if subscription is None else subscription.owned
    return frozenset((topics[topic].id, number) for topic, number in owned if topic in topics)


def validate(consumer: ConsumerGroup, member_id: str, instance_id: str | None, generation: int | None) -> ErrorCode:
    """Return whether a classic member may send requests, with this generation if one is given."""
    if instance_id is not None:
        holder = consumer.static_ids.get(instance_id)
        if holder is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if holder != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    member = consumer.members.get(member_id)
    if member is None or member.classic_protocols is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    presence = consumer.presences.get(member_id)
    if generation is not None and presence is not None and presence.overdue:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if generation is not None and generation != consumer.current_assignment(member_id).member_epoch:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE


def sync(context: Context, consumer: ConsumerGroup, event: SyncGroup) -> None:
    """Process a SyncGroup: return a classic member's assignment."""
    error = validate(consumer, event.member_id, event.instance_id, event.generation)
    if error is ErrorCode.NONE:
        error = check_sync(context, consumer, event)
    if error is not ErrorCode.NONE:
        context.reply(event.request, SyncGroupReply(error))
        return
    member = consumer.members[event.member_id]
    presence = members.heard(context, consumer, event.member_id, event.connection)
    presence.sync_phase.cancel()
    assignment = conversion.assignment_bytes(consumer, member, conversion.topic_names(context))
    reply = SyncGroupReply(ErrorCode.NONE, assignment, event.protocol_type, event.protocol_name)
    context.reply(event.request, reply)


def check_sync(context: Context, consumer: ConsumerGroup, event: SyncGroup) -> ErrorCode:
    """Return whether protocol names match and no newer epoch requires the member to rejoin."""
    member = consumer.members[event.member_id]
    name = (member.classic_protocols or ())[0].name
    wrong_type = event.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE)
    if wrong_type or event.protocol_name not in (None, name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    current = consumer.current_assignment(event.member_id)
    if consumer.epoch > current.member_epoch and current.state is not MemberState.UNREVOKED_PARTITIONS:
        expect_join(context, consumer, member)
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def expect_join(context: Context, consumer: ConsumerGroup, member: MemberSaved) -> None:
    """Start the rebalance timeout of a classic member that was told to join again, unless it runs already."""
    timer = consumer.presence(member.member_id).join_phase
    if timer.due_ms is None:
        context.run(timer, member.rebalance_timeout_ms)


def heartbeat(context: Context, consumer: ConsumerGroup, event: Heartbeat) -> None:
    """Process a classic member's heartbeat, and tell it whether it must move."""
    error = validate(consumer, event.member_id, event.instance_id, event.generation)
    if error is ErrorCode.NONE:
        member = consumer.members[event.member_id]
        members.heard(context, consumer, event.member_id, event.connection)
        current = consumer.current_assignment(event.member_id)
        freed = current.state is MemberState.UNRELEASED_PARTITIONS and not waits_for_others(consumer, event.member_id)
        if current.member_epoch < consumer.epoch or current.state is MemberState.UNREVOKED_PARTITIONS or freed:
            expect_join(context, consumer, member)
            error = ErrorCode.REBALANCE_IN_PROGRESS
    context.reply(event.request, HeartbeatReply(error))


def leave(context: Context, consumer: ConsumerGroup, event: LeaveGroup) -> None:
    """Remove classic members that leave."""
    left = []
    gone = []
    for leaving in event.members:
        error, member_id = leaver(consumer, leaving)
        if error is ErrorCode.NONE:
            members.remove(context, consumer, member_id)
            gone.append(member_id)
        left.append(LeftMember(leaving.member_id, leaving.instance_id, error))
    context.reply(event.request, LeaveGroupReply(ErrorCode.NONE, tuple(left)))
    if gone:
        assignment.bump(context, consumer, f"{', '.join(gone)} left")


def leaver(consumer: ConsumerGroup, leaving: LeavingMember) -> tuple[ErrorCode, str]:
    """Return the id of a leaving member, with the error if it cannot leave this way."""
    member_id = leaving.member_id
    if not member_id and leaving.instance_id is not None:
        member_id = consumer.static_ids.get(leaving.instance_id, "")
    return validate(consumer, member_id, leaving.instance_id, None), member_id
