"""Rebalances of the classic protocol: a join phase ends with a generation, a sync phase with its assignment.

| state | waits for | ends when |
|---|---|---|
| Empty | a first member | it joins: PreparingRebalance, with the initial delay; even 0 takes in queued joins |
| PreparingRebalance | all JoinGroups | all joined, or the rebalance timeout: CompletingRebalance; nobody left: Empty |
| CompletingRebalance | the leader's SyncGroup | it comes: Stable; a member joins, leaves or dies: PreparingRebalance |
| Stable | nothing | a member joins, changes, leaves or dies, or never syncs: PreparingRebalance |

Source: KIP-134 (initial delay), KIP-345 (static members stay through a join phase), KIP-394 (pending members),
spec 3.7.
"""

from __future__ import annotations

from kohort.consumer_protocol import read_assignment
from kohort.errors import ErrorCode
from kohort.groups.classic import deferred_notification
from kohort.groups.classic.group import ClassicGroup, ClassicMember
from kohort.groups.effects import GroupState, JoinedMember, JoinGroupReply, Level, SyncGroupReply
from kohort.groups.records import GenerationStarted, GroupSaved
from kohort.groups.context import Context
from kohort.groups.topics import ImageChange, metadata_hash

LEAST_WAIT_MS = 1_000
"""The least time between two checks of a join phase without joins, however short the rebalance timeout is."""
REBALANCES_FROM = (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


def add_member(context: Context, classic: ClassicGroup, member: ClassicMember, request: int) -> None:
    """Add a member that waits on its JoinGroup."""
    if member.instance_id is not None:
        classic.static_ids[member.instance_id] = member.member_id
    if classic.leader is None:
        classic.leader = member.member_id
    classic.members[member.member_id] = member
    classic.count(member, 1)
    await_join(context, classic, member, request)
    drop_pending(context, classic, member.member_id)


def await_join(context: Context, classic: ClassicGroup, member: ClassicMember, request: int) -> None:
    """Keep a JoinGroup waiting; an earlier one of the member is answered, so that no request stays open."""
    deferred_notification.forget(context, classic, member, ErrorCode.REBALANCE_IN_PROGRESS)
    if member.join_request is None:
        classic.awaiting_join += 1
    else:
        error = JoinGroupReply(ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
        context.reply(member.join_request, error)
    member.join_request = request
    member.beat_ms = None
    if member.stopped_ms is None:
        member.stopped_ms = context.now.mono_ms


def answer_join(context: Context, classic: ClassicGroup, member: ClassicMember, reply: JoinGroupReply) -> None:
    """Answer the member's waiting JoinGroup, if there is one."""
    if member.join_request is None:
        return
    context.reply(member.join_request, reply)
    member.join_request = None
    classic.awaiting_join -= 1
    member.told = member.told or bool(reply.member_id)


def answer_sync(context: Context, member: ClassicMember, reply: SyncGroupReply) -> bool:
    """Answer the member's waiting SyncGroup; False if there is none."""
    if member.sync_request is None:
        return False
    context.reply(member.sync_request, reply)
    member.sync_request = None
    return True


def remove_member(context: Context, classic: ClassicGroup, member_id: str) -> None:
    """Remove a member: answer its waiting requests with UNKNOWN_MEMBER_ID, and pick the next leader if it led."""
    member = classic.members.pop(member_id, None)
    if member is not None:
        classic.count(member, -1)
        deferred_notification.forget(context, classic, member, ErrorCode.UNKNOWN_MEMBER_ID)
        answer_join(context, classic, member, JoinGroupReply(ErrorCode.UNKNOWN_MEMBER_ID))
        member.answer_sync(context, SyncGroupReply(ErrorCode.UNKNOWN_MEMBER_ID))
        if member.instance_id is not None:
            classic.static_ids.pop(member.instance_id, None)
        member.session.cancel()
        member.unbind(context)
    if classic.leader == member_id:
        classic.leader = next(iter(classic.members), None)
    drop_pending(context, classic, member_id)
    classic.pending_sync.pop(member_id, None)


def drop_pending(context: Context, classic: ClassicGroup, member_id: str) -> bool:
    """Drop a pending member id; False if it is not pending."""
    pending = classic.pending.pop(member_id, None)
    if pending is None:
        return False
    pending.timer.cancel()
    context.forget_connection(pending.connection, pending.timer.group_id, member_id)
    return True


def heard(context: Context, member: ClassicMember, connection: int) -> None:
    """Record a request of a member: bind it to its connection, and end its grace period."""
    if connection != member.connection:
        member.bind(context, connection)
    if member.lost:
        member.restart_session(context)


def alive(context: Context, member: ClassicMember) -> None:
    """Restart a member's session, or the time limit of a new member, after a request on any connection."""
    member.alive(context, member.session_timeout_ms)
    if member.is_new:
        context.run(member.session, context.config.new_member_timeout_ms)


def after_change(context: Context, classic: ClassicGroup, reason: str) -> None:
    """Start a rebalance after a change of members, or check whether the current join phase is complete."""
    if classic.state in REBALANCES_FROM:
        prepare(context, classic, reason)
    else:
        complete_if_all_joined(context, classic)


def prepare(context: Context, classic: ClassicGroup, reason: str) -> None:
    """Start a join phase. Members that wait on a SyncGroup are told to join again. Source: spec 3.8."""
    if classic.state is GroupState.COMPLETING_REBALANCE:
        for member in classic.members.values():
            forget_assignment(classic, member)
            if member.answer_sync(context, SyncGroupReply(ErrorCode.REBALANCE_IN_PROGRESS)):
                member.touch(context, member.session_timeout_ms)
    classic.pending_sync.clear()
    classic.sync_phase.cancel()
    initial = classic.state is GroupState.EMPTY
    move(classic, GroupState.PREPARING_REBALANCE)
    if classic.began_ms is None:
        classic.began_ms = context.now.mono_ms
    context.log(classic.group_id, f"preparing a rebalance after generation {classic.generation}: {reason}")
    if initial:
        classic.delay_ms = context.config.initial_rebalance_delay_ms
        classic.remaining_ms = max(classic.rebalance_timeout_ms() - classic.delay_ms, 0)
        classic.newcomer = False
        context.run(classic.join_phase, classic.delay_ms)  # also for 0, so that joins in the queue are taken in first
    elif classic.all_joined():
        complete_join(context, classic)
    else:
        context.run(classic.join_phase, classic.rebalance_timeout_ms())
        if classic.previous_state is GroupState.STABLE:
            deferred_notification.begin(context, classic)


def move(classic: ClassicGroup, state: GroupState) -> None:
    """Change the state."""
    classic.previous_state = classic.state
    classic.state = state


def settled(context: Context, classic: ClassicGroup) -> None:
    """Report the rebalance as complete: the assignments are sent, and all members work."""
    now_ms = context.now.mono_ms
    still = [now_ms - member.stopped_ms for member in classic.members.values() if member.stopped_ms is not None]
    context.rebalanced(classic.group_id, "classic", classic.began_ms, still, len(classic.members))
    classic.began_ms = None
    for member in classic.members.values():
        member.stopped_ms = None


def forget_assignment(classic: ClassicGroup, member: ClassicMember) -> None:
    """Clear a member's assignment."""
    set_assignment(classic, member, b"")


def set_assignment(classic: ClassicGroup, member: ClassicMember, assignment: bytes) -> None:
    """Set a member's assignment, and update the group's size."""
    change = len(assignment) - len(member.assignment)
    member.assignment = assignment
    member.size += change
    classic.size += change


def complete_if_all_joined(context: Context, classic: ClassicGroup) -> None:
    """End the join phase if it waits for nobody; an initial one ends only by its delay."""
    if classic.state is not GroupState.PREPARING_REBALANCE or classic.previous_state is GroupState.EMPTY:
        return
    if classic.all_joined():
        complete_join(context, classic)
    else:
        deferred_notification.tell_if_all_held(context, classic)


def on_join_deadline(context: Context, classic: ClassicGroup, subject: str) -> None:
    """Handle the end of the initial delay or of the rebalance timeout."""
    if classic.state is not GroupState.PREPARING_REBALANCE:
        return
    if classic.previous_state is GroupState.EMPTY and classic.newcomer and classic.remaining_ms:
        classic.newcomer = False
        delay = min(context.config.initial_rebalance_delay_ms, classic.remaining_ms)
        classic.remaining_ms = max(classic.remaining_ms - classic.delay_ms, 0)
        classic.delay_ms = delay
        context.run(classic.join_phase, delay)
        return
    complete_join(context, classic)


def complete_join(context: Context, classic: ClassicGroup) -> None:
    """End the join phase: evict members that did not join, elect a leader, begin a generation."""
    classic.join_phase.cancel()
    deferred_notification.end(classic)
    absent = [m.member_id for m in classic.members.values() if m.join_request is None and m.instance_id is None]
    for member_id in absent:
        remove_member(context, classic, member_id)
    if absent:
        context.log(classic.group_id, f"members evicted: did not join in time: {', '.join(absent)}")
    if not classic.members:
        become_empty(context, classic)
        return
    if not elect_leader(classic):
        context.log(classic.group_id, "no member joined in time; static members stay in the group", Level.WARNING)
        context.run(classic.join_phase, max(classic.rebalance_timeout_ms(), LEAST_WAIT_MS))
        return
    begin_generation(context, classic)


def elect_leader(classic: ClassicGroup) -> bool:
    """Keep the leader if it joined, else choose the first member that did; False if none did."""
    leader = classic.members.get(classic.leader or "")
    if leader is not None and leader.join_request is not None:
        return True
    for member in classic.members.values():
        if member.join_request is not None:
            classic.leader = member.member_id
            return True
    return False


def become_empty(context: Context, classic: ClassicGroup) -> None:
    """Write a generation without members, whose time starts the expiration of offsets."""
    classic.protocol = None
    classic.leader = None
    classic.subscribed = classic.read_subscriptions()
    classic.resumed_from = -1
    classic.pending_sync.clear()
    move(classic, GroupState.EMPTY)
    classic.began_ms = None
    generation = classic.generation + 1
    context.emit(
        GroupSaved(classic.group_id, classic.protocol_type or "", generation, None, None, context.now.wall_ms, ())
    )
    context.log(classic.group_id, f"generation {generation} has no members: the group is empty")


def begin_generation(context: Context, classic: ClassicGroup) -> None:
    """Choose the protocol, write the generation, and answer the JoinGroups. Source: spec 3.7."""
    context.emit(GenerationStarted(classic.group_id, classic.generation + 1))
    classic.protocol = classic.select_protocol()
    classic.subscribed = classic.read_subscriptions()
    classic.resumed_from = -1
    move(classic, GroupState.COMPLETING_REBALANCE)
    classic.pending_sync = dict.fromkeys(classic.members)
    for member in classic.members.values():
        answer_join(context, classic, member, joined(classic, member))
        member.is_new = False
        member.touch(context, member.session_timeout_ms)
    context.run(classic.sync_phase, classic.rebalance_timeout_ms())
    context.log(classic.group_id, f"generation {classic.generation} has {len(classic.members)} members")


def joined(classic: ClassicGroup, member: ClassicMember) -> JoinGroupReply:
    """Return the reply to a JoinGroup of the current generation; the leader's lists all members."""
    leads = classic.is_leader(member.member_id)
    return JoinGroupReply(
        ErrorCode.NONE,
        member_id=member.member_id,
        generation=classic.generation,
        protocol_type=classic.protocol_type,
        protocol_name=classic.protocol,
        leader=classic.leader or "",
        members=all_members(classic) if leads else (),
    )


def all_members(classic: ClassicGroup) -> tuple[JoinedMember, ...]:
    """Return every member with its metadata for the chosen protocol, for the leader."""
    protocol = classic.protocol
    return tuple(
        JoinedMember(member.member_id, member.instance_id, member.metadata(protocol))
        for member in classic.members.values()
    )


def on_sync_deadline(context: Context, classic: ClassicGroup, subject: str) -> None:
    """Evict members that have not synced within the rebalance timeout after the generation began."""
    if classic.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not classic.pending_sync:
        return
    late = list(classic.pending_sync)
    for member_id in late:
        remove_member(context, classic, member_id)
    prepare(context, classic, f"members evicted: did not sync in time: {', '.join(late)}")


def synced(context: Context, classic: ClassicGroup, member_id: str) -> None:
    """Record a member's SyncGroup in this generation."""
    classic.pending_sync.pop(member_id, None)
    if not classic.pending_sync:
        classic.sync_phase.cancel()


def on_session_end(context: Context, classic: ClassicGroup, member_id: str) -> None:
    """Evict a member after its session timeout or grace period, unless it waits on a reply."""
    member = classic.members.get(member_id)
    if member is None:
        return
    if member.lost:
        evict(
            context,
            classic,
            member_id,
            f"member {member_id} evicted: did not reconnect after its connection ended "
            f"({member.last_seen(context, member.client.id, member.client.host)})",
        )
        return
    if not member.is_new and (member.join_request is not None or member.sync_request is not None):
        return
    evict(
        context,
        classic,
        member_id,
        f"member {member_id} evicted: session timed out after {member.session_timeout_ms} ms "
        f"({member.last_seen(context, member.client.id, member.client.host)})",
    )


def evict(context: Context, classic: ClassicGroup, member_id: str, reason: str) -> None:
    """Remove a member, and complete or start a rebalance as needed."""
    remove_member(context, classic, member_id)
    context.log(classic.group_id, reason)
    after_removal(context, classic, reason)


def after_removal(context: Context, classic: ClassicGroup, reason: str) -> None:
    """Complete the current join phase or start a rebalance after a removal."""
    if classic.state is GroupState.PREPARING_REBALANCE:
        complete_if_all_joined(context, classic)
    elif classic.state is not GroupState.EMPTY:
        prepare(context, classic, reason)


# -- Topic changes that a classic group's leader may miss
#
# The leader compares the topics with those it assigned, and joins again when they change. A static leader that
# returns has assigned nothing. With JoinGroup below version 9 it cannot be told that it leads (KIP-814), so it
# compares nothing. Otherwise it compares with the topics that it sees after the reply, and misses changes before that.
# After a restart nobody knows whether the leader returned like this. Until such a leader assigns, the coordinator
# compares the topics itself. Source: KAFKA-13435.


def topics_hash(context: Context, classic: ClassicGroup) -> int:
    """Return a hash of the subscribed topics as they are now."""
    return metadata_hash(context.image, sorted(classic.subscribed or ()))


def on_image(context: Context, classic: ClassicGroup, change: ImageChange) -> None:
    """Start a rebalance if topics changed and the leader may not notice."""
    if not classic.leader_unaware or classic.state is not GroupState.STABLE or classic.subscribed is None:
        return
    now = topics_hash(context, classic)
    if classic.topics_hash != now:
        classic.topics_hash = now
        after_change(context, classic, "topics changed, and the static leader may not notice")


def on_loaded(context: Context, classic: ClassicGroup) -> None:
    """Prepare for a static leader that is unaware, and find partitions without owner, after a load."""
    leader = classic.members.get(classic.leader or "")
    if leader is not None and leader.instance_id is not None:
        classic.leader_unaware = True
    if classic.static_ids:
        look(context, classic)


def look(context: Context, classic: ClassicGroup) -> None:
    """Start a rebalance if partitions that members read have no owner.

    A static member that returns with another subscription gets its old assignment, as in Apache Kafka. There the topics
    that only it reads have no owner until the next rebalance. Here the group's next heartbeat starts one.
    """
    classic.owes_look, classic.left_out = False, None
    if classic.state is GroupState.STABLE and leaves_out(context, classic):
        prepare(context, classic, "partitions of subscribed topics have no owner, and the leader may not notice")


def leaves_out(context: Context, classic: ClassicGroup) -> bool:
    """Return whether a partition of a subscribed topic is in no member's assignment, if assignments are readable.

    The answer is cached for each generation and image, because thousands of static members may return at once.
    """
    asked = (classic.generation, context.image.version)
    if classic.left_out is None or classic.left_out[:2] != asked:
        classic.left_out = (*asked, _is_anything_left(context, classic))
    return classic.left_out[2]


def _is_anything_left(context: Context, classic: ClassicGroup) -> bool:
    held: set[tuple[str, int]] = set()
    for member in classic.members.values():
        assigned = read_assignment(member.assignment)
        if assigned is None:
            return False
        held.update(assigned.partitions)
    topics = ((name, context.image.topics.get(name)) for name in classic.subscribed or ())
    return any((name, number) not in held for name, topic in topics if topic for number in range(topic.partitions))
