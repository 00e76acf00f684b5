"""ConsumerGroupHeartbeat: a member of a consumer group joins, moves, leaves, and is fenced. Source: KIP-848.

Differences from Kafka: a joiner's reply waits for the moment that its target takes to compute. Members that wait for
others are told a short interval. A settled member's reply may be delayed until there is news.
"""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

from kohort.errors import ErrorCode
from kohort.groups import client_quirks, sizes
from kohort.groups.consumer import assignment, members, suspicion
from kohort.groups.consumer.group import LEFT_FOR_A_WHILE, ConsumerGroup, CurrentAssignment, Presence
from kohort.groups.consumer.members import Refusal
from kohort.groups.context import Context
from kohort.groups.effects import ConsumerGroupHeartbeatReply, Level
from kohort.groups.events import AssignmentComputed, ConsumerGroupHeartbeat, GroupSettingsChanged
from kohort.groups.long_polling import Release
from kohort.groups.migration import classic_members, conversion
from kohort.groups.pairs import pack, unpack
from kohort.groups.records import MemberSaved, MemberState

LEAVES = -1
SPREAD_FROM = 500
"""From this group size on, the first full interval is shortened at random, so that heartbeats do not come at once."""
MEMBERS_PER_MS = 5
"""The number of unsettled members that may send heartbeats in one ms, which bounds the cost of their short interval."""


def heartbeat(context: Context, consumer: ConsumerGroup, event: ConsumerGroupHeartbeat) -> None:
    """Process a heartbeat that passed `check`: a join, a regular heartbeat, or a leave."""
    refusal = leave(context, consumer, event) if event.member_epoch < 0 else beat(context, consumer, event)
    if refusal is not None:
        members.log_fenced(context, consumer, event, refusal)
        members.refuse(context, event, refusal)


def check(context: Context, event: ConsumerGroupHeartbeat) -> Refusal | None:
    """Return the error in a request itself, None if there is none."""
    message = None
    if "consumer" not in context.config.rebalance_protocols:
        return Refusal(ErrorCode.UNSUPPORTED_VERSION, "The consumer protocol is switched off.")
    if (event.member_epoch > 0 or event.member_epoch == LEAVES) and is_blank(event.member_id):
        message = "MemberId can't be empty."
    elif is_blank(event.group_id):
        message = "GroupId can't be empty."
    elif is_blank(event.instance_id):
        message = "InstanceId can't be empty."
    elif is_blank(event.rack_id):
        message = "RackId can't be empty."
    elif event.member_epoch == 0:
        message = check_join(event)
    elif event.member_epoch == LEFT_FOR_A_WHILE and event.instance_id is None:
        message = "InstanceId can't be null."
    elif event.member_epoch < LEFT_FOR_A_WHILE:
        message = "MemberEpoch is invalid."
    if message is None and (event.member_epoch == 0 or event.subscribed_topics or event.subscribed_regex):
        message = check_sizes(context, event)
    if message is not None:
        return Refusal(ErrorCode.INVALID_REQUEST, message)
    if event.server_assignor is not None and event.server_assignor not in context.config.consumer_assignors:
        offered = ", ".join(context.config.consumer_assignors)
        text = f"ServerAssignor {event.server_assignor} is not supported. Supported assignors: {offered}."
        return Refusal(ErrorCode.UNSUPPORTED_ASSIGNOR, text)
    return None


def is_blank(name: str | None) -> bool:
    """Return whether a name is given but blank."""
    return name is not None and not name.strip()


def check_sizes(context: Context, event: ConsumerGroupHeartbeat) -> str | None:
    """Return why no record could hold the request's texts, None if one can."""
    if not sizes.fits(event.group_id):
        return f"GroupId can't be longer than {sizes.NAME_BYTES_MAX} bytes."
    if not sizes.fits(event.member_id, event.new_member_id, event.instance_id, event.rack_id, event.subscribed_regex):
        return f"No id, rack or regular expression can be longer than {sizes.NAME_BYTES_MAX} bytes."
    limit = context.config.group_record_bytes_max
    if event.subscribed_topics and sum(map(len, event.subscribed_topics)) > limit:
        return f"The subscription takes more than {limit} bytes (group.record.max.bytes)."
    return None


def check_join(event: ConsumerGroupHeartbeat) -> str | None:
    """Return why a join is incomplete, None if it is complete."""
    if event.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    if event.owned is None or event.owned:
        return "TopicPartitions must be empty when (re-)joining."
    if event.subscribed_topics is None and event.subscribed_regex is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    return None


def beat(context: Context, consumer: ConsumerGroup, event: ConsumerGroupHeartbeat) -> Refusal | None:
    """Process a join or a regular heartbeat."""
    member_id = event.member_id or event.new_member_id
    refusal = admit(context, consumer, event, member_id)
    if refusal is not None:
        return refusal
    back = suspicion.heard(context, consumer, member_id)
    joins, before = event.member_epoch == 0, consumer.members.get(member_id)
    if joins:
        members.rejoin(context, consumer, member_id)
    if save(context, consumer, event, member_id):
        assignment.bump(context, consumer, f"member {member_id} joined or changed its subscription")
    elif back:
        assignment.bump(context, consumer, f"suspected member {member_id} is heard again")
    presence = members.heard(context, consumer, member_id, event.connection)
    presence.overdue = presence.fenced = False
    if joins:
        presence.process = event.client.process
    if before is not None and before.classic_protocols is not None:
        members.change_protocol(context, consumer, presence, member_id)
    answer_waiting(context, consumer, member_id)
    if consumer.epoch > consumer.target_epoch:
        assignment.request(context, consumer)
        if joins:
            presence.waiting, presence.waits_for = event, consumer.epoch
            return None
    answer(context, consumer, event, member_id)
    return None


def admit(context: Context, consumer: ConsumerGroup, event: ConsumerGroupHeartbeat, member_id: str) -> Refusal | None:
    """Check a member and its epoch; let a returning static member take its predecessor's place."""
    joins = event.member_epoch == 0
    known = member_id in consumer.members
    if event.instance_id is not None:
        holder = consumer.static_ids.get(event.instance_id)
        if holder is not None and holder != member_id:
            return replace_static(context, consumer, event, holder, member_id)
        if holder is None and not joins:
            return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {event.instance_id} is unknown.")
    if joins:
        if not known and len(consumer.members) >= context.config.consumer_max_size:
            text = f"The consumer group has reached its maximum capacity of {context.config.consumer_max_size} members."
            return Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        return None
    if not known:
        return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {event.group_id}.")
    if consumer.presence(member_id).overdue:
        text = f"Member {member_id} did not give its partitions up within its rebalance timeout and must join again."
        return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, text)
    return check_epoch(consumer.current_assignment(member_id), event)


def check_epoch(current: CurrentAssignment, event: ConsumerGroupHeartbeat) -> Refusal | None:
    """Check an epoch: it must be the member's, or the previous one if only the reply with the newer one was lost."""
    epoch = event.member_epoch
    if epoch == current.member_epoch:
        return None
    lost_reply = (
        epoch < current.member_epoch
        and epoch == current.previous_epoch
        and event.owned is not None
        and unpack(event.owned) <= current.assigned
    )
    if lost_reply:
        return None
    relation = "greater" if epoch > current.member_epoch else "smaller"
    return Refusal(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({current.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def replace_static(
    context: Context, consumer: ConsumerGroup, event: ConsumerGroupHeartbeat, old_id: str, new_id: str
) -> Refusal | None:
    """Replace a static member by another process, if it left temporarily or speaks the classic protocol."""
    if event.member_epoch != 0:
        text = f"Static member {new_id} with instance id {event.instance_id} was fenced by member {old_id}."
        return Refusal(ErrorCode.FENCED_INSTANCE_ID, text)
    old = consumer.members[old_id]
    if old.classic_protocols is None and not consumer.current_assignment(old_id).is_away:
        text = (
            f"Static member {new_id} with instance id {event.instance_id} cannot join the group because the instance "
            f"id is owned by {old_id} member."
        )
        return Refusal(ErrorCode.UNRELEASED_INSTANCE_ID, text)
    members.take_place(context, consumer, old_id, new_id)
    return None


def save(context: Context, consumer: ConsumerGroup, event: ConsumerGroupHeartbeat, member_id: str) -> bool:
    """Write a member's metadata if it is new; True if the group needs a new epoch for it.

    A new subscription needs one. Since Kafka 4.4 a preference that changes the group's assignor does too.
    """
    old = consumer.members.get(member_id)
    if old is not None and says_nothing_new(old, event):
        return False
    base = old or MemberSaved(event.group_id, member_id, None, None, "", "", (), None, -1, None)
    topics, regex = base.subscribed_topics, base.subscribed_regex
    new = MemberSaved(
        group_id=event.group_id,
        member_id=member_id,
        instance_id=base.instance_id if event.instance_id is None else event.instance_id,
        rack_id=base.rack_id if event.rack_id is None else event.rack_id,
        client_id=event.client.id,
        client_host=event.client.host,
        subscribed_topics=topics if event.subscribed_topics is None else tuple(sorted(set(event.subscribed_topics))),
        subscribed_regex=regex if event.subscribed_regex is None else event.subscribed_regex or None,
        rebalance_timeout_ms=base.rebalance_timeout_ms
        if event.rebalance_timeout_ms == -1
        else event.rebalance_timeout_ms,
        server_assignor=base.server_assignor if event.server_assignor is None else event.server_assignor,
    )
    if new == old:
        return False
    wishes_otherwise = old is not None and new.server_assignor != old.server_assignor
    preferred = members.preferred_assignor(context, consumer) if wishes_otherwise else ""
    context.emit(new)
    if old is None or (new.subscribed_topics, new.subscribed_regex) != (topics, regex):
        return True
    return wishes_otherwise and members.preferred_assignor(context, consumer) != preferred


def says_nothing_new(old: MemberSaved, event: ConsumerGroupHeartbeat) -> bool:
    """Return whether a heartbeat has only its member's id and epoch, as nearly every one does."""
    unsaid = event.subscribed_topics is None and event.subscribed_regex is None and event.rebalance_timeout_ms == -1
    unsaid = unsaid and event.rack_id is None and event.server_assignor is None and old.classic_protocols is None
    client, instance_id = event.client, event.instance_id
    same = old.client_id == client.id and old.client_host == client.host and instance_id in (None, old.instance_id)
    return unsaid and same


def answer(context: Context, consumer: ConsumerGroup, event: ConsumerGroupHeartbeat, member_id: str) -> None:
    """Move a member one step and send it the news, or delay the reply while there is none."""
    before = consumer.current_assignment(member_id)
    owned = None if event.owned is None else unpack(event.owned)
    after = members.step(context, consumer, member_id, owned)
    told = says_everything(event) or after.assigned != before.assigned or after.member_epoch != event.member_epoch
    settled = after.is_reconciled_to(consumer.epoch)
    presence = consumer.presence(member_id)
    if settled and not told and event.owned is None and event.hold_ms > 0 and hold(context, consumer, event, presence):
        return
    interval = members.heartbeat_interval_ms(context, consumer)
    if not settled:
        interval = unsettled_interval_ms(context, consumer, interval)
    elif event.short_interval:
        interval = min(interval, context.config.unsettled_interval_ms)
    elif presence.interval_ms < interval // 2 and len(consumer.members) >= SPREAD_FROM:
        interval = spread(interval, member_id)
    presence.interval_ms = interval
    context.reply(
        event.request,
        ConsumerGroupHeartbeatReply(
            ErrorCode.NONE,
            None,
            member_id,
            after.member_epoch,
            interval,
            pack(after.assigned) if told else None,
        ),
    )


def says_everything(event: ConsumerGroupHeartbeat) -> bool:
    """Return whether a heartbeat is a join, or a full one that a client sends after it missed a reply."""
    subscribed = event.subscribed_topics is not None or event.subscribed_regex is not None
    return event.member_epoch == 0 or (event.rebalance_timeout_ms != -1 and subscribed and event.owned is not None)


def unsettled_interval_ms(context: Context, consumer: ConsumerGroup, settled_ms: int) -> int:
    """Return the interval of members that wait or must revoke: short, but longer in large groups."""
    if context.config.notify_at_once == "off":
        return settled_ms
    return min(settled_ms, max(context.config.unsettled_interval_ms, len(consumer.members) // MEMBERS_PER_MS))


def spread(interval_ms: int, member_id: str) -> int:
    """Return a part of the interval, at least a half, that depends on the member's id.

    Members of a large group settle within moments of each other. Otherwise all of them would send their heartbeats at
    one moment ever after.
    """
    return interval_ms - crc32(member_id.encode()) % max(1, interval_ms // 2)


def hold(context: Context, consumer: ConsumerGroup, event: ConsumerGroupHeartbeat, presence: Presence) -> bool:
    """Delay the reply until something changes; False if it must be sent now."""
    limit = event.hold_ms if event.short_interval else int(presence.interval_ms * client_quirks.SHARE_OF_TOLD)
    return context.held.keep(context, consumer, presence, event, limit)


def answer_held(
    context: Context, consumer: ConsumerGroup, presence: Presence, event: ConsumerGroupHeartbeat, why: Release
) -> None:
    """Answer a delayed heartbeat; the member moves on whether or not the reply reaches it."""
    answer(context, consumer, replace(event, hold_ms=0), presence.session.subject)


def refuse_held(context: Context, event: ConsumerGroupHeartbeat, error: ErrorCode, message: str | None) -> None:
    """Answer a delayed heartbeat with an error."""
    members.refuse(context, event, Refusal(error, message or error.text))


def answer_waiting(context: Context, consumer: ConsumerGroup, member_id: str) -> None:
    """Answer a member's waiting heartbeats: a join by the current target, a delayed one as usual."""
    presence = consumer.presences.get(member_id)
    if presence is None:
        return
    event, presence.waiting = presence.waiting, None
    if event is not None:
        members.touch(context, consumer, presence, member_id)
        answer(context, consumer, replace(event, hold_ms=0), member_id)
    context.held.release(context, consumer, presence)


def release_all(context: Context, consumer: ConsumerGroup) -> None:
    """Answer every delayed heartbeat, so that all members move now."""
    for presence in list(consumer.presences.values()):
        context.held.release(context, consumer, presence)


def on_computed(context: Context, consumer: ConsumerGroup, event: AssignmentComputed) -> None:
    """Take over a computed target: answer waiting joins, move delayed members, and request the next target."""
    taken = assignment.take(context, consumer, event)
    for member_id, presence in list(consumer.presences.items()):
        if presence.waiting is None:
            continue
        if event.failure is not None and consumer.computing < 0:
            members.refuse(context, presence.waiting, Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, event.failure))
            presence.waiting = None
        elif presence.waits_for <= consumer.target_epoch:
            answer_waiting(context, consumer, member_id)
    classic_members.on_target(context, consumer, event.failure)
    if taken:
        release_all(context, consumer)
        suspicion.watch(context, consumer)
        assignment.request(context, consumer)


def leave(context: Context, consumer: ConsumerGroup, event: ConsumerGroupHeartbeat) -> Refusal | None:
    """Process a leave, permanent or, for a static member, temporary."""
    member_id = event.member_id
    if event.instance_id is not None:
        holder = consumer.static_ids.get(event.instance_id)
        if holder is None:
            return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {event.instance_id} is unknown.")
        if holder != member_id:
            text = f"Static member {member_id} with instance id {event.instance_id} was fenced by member {holder}."
            return Refusal(ErrorCode.FENCED_INSTANCE_ID, text)
    elif member_id not in consumer.members:
        return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {event.group_id}.")
    if event.member_epoch == LEFT_FOR_A_WHILE:
        members.leave_for_a_while(context, consumer, member_id)
    else:
        evict(context, consumer, member_id, f"member {member_id} left")
    context.reply(
        event.request, ConsumerGroupHeartbeatReply(ErrorCode.NONE, member_id=member_id, member_epoch=event.member_epoch)
    )
    return None


def evict(context: Context, consumer: ConsumerGroup, member_id: str, reason: str) -> None:
    """Remove a member, also one that leaves; the others get a new epoch or become a classic group again."""
    if member_id not in consumer.members:
        return
    context.log(consumer.group_id, reason)
    is_of_consumer_protocol = consumer.members[member_id].classic_protocols is None
    if is_of_consumer_protocol and conversion.turns_classic(context, consumer, leaving=member_id):
        members.dismiss(context, consumer, member_id)
        conversion.make_classic_group(context, consumer, leaving=member_id)
        return
    members.remove(context, consumer, member_id)
    assignment.bump(context, consumer, reason)


def on_session_end(context: Context, consumer: ConsumerGroup, member_id: str) -> None:
    """Evict a member after its session timeout or grace period."""
    presence = consumer.presences.get(member_id)
    if presence is None or member_id not in consumer.members:
        return
    if presence.overdue:
        reason = "evicted: did not revoke, join or sync in time, and did not join again"
    elif presence.lost:
        reason = "evicted: did not reconnect after its connection ended"
    else:
        reason = f"evicted: session timed out after {members.session_timeout_ms(context, consumer, member_id)} ms"
    evict(
        context, consumer, member_id, f"member {member_id} {reason} ({members.last_seen(context, consumer, member_id)})"
    )


def on_revocation_end(context: Context, consumer: ConsumerGroup, member_id: str) -> None:
    """Require a member to rejoin that did not revoke its partitions within its rebalance timeout."""
    expect_join(context, consumer, member_id, "revoke")


def on_phase_end(context: Context, consumer: ConsumerGroup, member_id: str) -> None:
    """Require a classic member to rejoin that did not join or sync within its rebalance timeout."""
    expect_join(context, consumer, member_id, "join or sync")


def on_given_id_end(context: Context, consumer: ConsumerGroup, member_id: str) -> None:
    """Forget a member id that was given out and never used."""
    consumer.given_ids.pop(member_id, None)


def expect_join(context: Context, consumer: ConsumerGroup, member_id: str, what: str) -> None:
    """Refuse a member until it joins again: it did not revoke, join or sync within its rebalance timeout.

    The member may not know that it must move, nor see that it is refused now. So it keeps its partitions until it joins
    again, leaves, or its session ends, counted from its last accepted request. By then it has stopped.
    """
    presence = consumer.presences.get(member_id)
    if presence is not None and presence.waiting is None and presence.joining is None:
        context.log(consumer.group_id, f"member {member_id} refused until it rejoins: did not {what} in time")
        presence.overdue = True


def on_watch(context: Context, consumer: ConsumerGroup, subject: str) -> None:
    """Begin a new epoch without members that fell silent before they moved."""
    silent = suspicion.silent_of(context, consumer, suspicion.unmoved(consumer))
    if silent and suspicion.applies(context, consumer):
        names = ", ".join(silent)
        assignment.bump(context, consumer, f"suspected members {names}: rebalance continues without them")
    else:
        suspicion.watch(context, consumer)


def on_settings(context: Context, consumer: ConsumerGroup, event: GroupSettingsChanged) -> None:
    """Take over a group's own settings."""
    consumer.settings = event.settings


def load(context: Context, consumer: ConsumerGroup) -> None:
    """Build the soft state after a replay: restart sessions and revocation timers, and request a missing target.

    Regular expressions are resolved again, which finds topics that changed while no coordinator ran.
    """
    consumer.settings = context.settings.get(consumer.group_id, consumer.settings)
    for member_id, member in consumer.members.items():
        presence = consumer.presence(member_id)
        context.run(presence.session, members.session_timeout_ms(context, consumer, member_id))
        presence.heard_ms = context.now.mono_ms
        unrevoked = consumer.current_assignment(member_id).state is MemberState.UNREVOKED_PARTITIONS
        if unrevoked and member.classic_protocols is None:
            context.run(presence.revocation, member.rebalance_timeout_ms)
    if consumer.members:
        assignment.resolve_if_needed(context, consumer, again=True)
        assignment.look_at_topics(context, consumer)
        settled = consumer.epoch == consumer.target_epoch
        if settled and (suspicion.is_uneven(context, consumer) or suspicion.leaves_out(context, consumer)):
            assignment.bump(context, consumer, "the target was made without suspected members")
        assignment.request(context, consumer)
        suspicion.watch(context, consumer)
    context.log(
        consumer.group_id, f"loaded with {len(consumer.members)} members at epoch {consumer.epoch}", Level.DEBUG
    )
