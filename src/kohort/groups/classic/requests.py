"""The classic protocol's requests: join, sync, heartbeat, leave, each answered as Kafka's coordinator answers it.

`rebalance` has the phases between them. Source: spec 3.1-3.13, KIP-62, KIP-345, KIP-394, KIP-814.
"""

from __future__ import annotations

from kohort.consumer_protocol import read_topics
from kohort.errors import ErrorCode
from kohort.groups import imports, sizes
from kohort.groups.classic import deferred_notification, rebalance
from kohort.groups.classic.group import ClassicGroup, ClassicMember, PendingMember
from kohort.groups.effects import (
    GroupState,
    HeartbeatReply,
    JoinGroupReply,
    LeaveGroupReply,
    LeftMember,
    Level,
    SyncGroupReply,
)
from kohort.groups.events import Heartbeat, JoinGroup, LeaveGroup, LeavingMember, SyncGroup
from kohort.groups.records import GroupSaved
from kohort.groups.context import Context
from kohort.groups.timers import Deadline, Timer


def validate(classic: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    """Return whether a request's member is in the group and was not replaced by another with its instance id.

    If a restart interrupted a rebalance, the lost id may be the member's newer one. Then nobody is fenced: an unknown
    member joins again without its id. Source: scenario 8.
    """
    if instance_id is not None:
        current = classic.static_ids.get(instance_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if current != member_id:
            return ErrorCode.FENCED_INSTANCE_ID if classic.resumed_from < 0 else ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if member_id in classic.members else ErrorCode.UNKNOWN_MEMBER_ID


def is_current(classic: ClassicGroup, generation: int) -> bool:
    """Return whether a generation is the current one, or the last one before a rebalance that a restart interrupted."""
    return generation == classic.generation or (generation == classic.resumed_from and generation >= 0)


def join_first(context: Context, event: JoinGroup) -> None:
    """Join a group that does not exist: create it if an empty group would accept the member."""
    error = check_first(context, event) or imports.admit(context, event.group_id).error
    if error is ErrorCode.NONE and context.create(event.group_id) is None:
        error = ErrorCode.POLICY_VIOLATION
    if error is ErrorCode.NONE:
        join(context, context.ledger.membership(event.group_id, ClassicGroup), event)
    else:
        context.reply(event.request, JoinGroupReply(error, member_id=event.member_id))


def check_first(context: Context, event: JoinGroup) -> ErrorCode:
    """Return whether an empty group, which knows no member ids, would accept a member."""
    error = sizes.check_join(context.config, event)
    if error is ErrorCode.NONE and event.member_id:
        error = ErrorCode.UNKNOWN_MEMBER_ID
    return error or misfit(context, ClassicGroup(event.group_id), event)


def join(context: Context, classic: ClassicGroup, event: JoinGroup) -> None:
    """Process a JoinGroup: the member wants to be in the next generation."""
    error = join_or_error(context, classic, event)
    if error is not ErrorCode.NONE:
        member_id = "" if error is ErrorCode.GROUP_MAX_SIZE_REACHED else event.member_id
        context.reply(event.request, JoinGroupReply(error, member_id=member_id))


def join_or_error(context: Context, classic: ClassicGroup, event: JoinGroup) -> ErrorCode:
    """Process a JoinGroup, or return the error that refuses it."""
    config = context.config
    refused = sizes.check_join(config, event)
    if refused is not ErrorCode.NONE:
        return refused
    if not has_room(context, classic, event):
        if event.member_id in classic.members:
            rebalance.evict(context, classic, event.member_id, f"no room for member {event.member_id}")
        not_awaited(context, classic, event.member_id)
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    refused = misfit(context, classic, event)
    if refused is not ErrorCode.NONE:
        return refused
    if not event.member_id:
        join_new(context, classic, event)
        return ErrorCode.NONE
    return join_again(context, classic, event)


def misfit(context: Context, classic: ClassicGroup, event: JoinGroup) -> ErrorCode:
    """Return why a member's protocols do not fit the group, NONE if they do."""
    too_many = len(event.protocols) > context.config.protocols_max
    if too_many or not classic.supports(event.protocol_type, event.protocols):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.GROUP_MAX_SIZE_REACHED if outgrows(context, classic, event) else ErrorCode.NONE


def has_room(context: Context, classic: ClassicGroup, event: JoinGroup) -> bool:
    """Return whether group.max.size lets this member in; during a join phase the first to join have the places."""
    limit = context.config.group_max_size
    member_id = event.member_id or classic.static_ids.get(event.instance_id, "")
    member = classic.members.get(member_id)
    if classic.state is GroupState.EMPTY:
        return True
    if classic.state is GroupState.PREPARING_REBALANCE:
        return (member is not None and member.join_request is not None) or classic.awaiting_join < limit
    return member is not None or len(classic.members) < limit


def outgrows(context: Context, classic: ClassicGroup, event: JoinGroup) -> bool:
    """Return whether the group's record could exceed its limit with this member, which is refused then."""
    member = classic.members.get(event.member_id)
    before = 0 if member is None else member.size
    metadata = max(len(protocol.metadata) for protocol in event.protocols)
    if classic.size - before + metadata + len(event.client.id) <= context.config.group_record_bytes_max:
        return False
    context.log(
        classic.group_id,
        f"member refused: the group would not fit into one record of {context.config.group_record_bytes_max} bytes; "
        "raise group.record.max.bytes",
        Level.ERROR,
    )
    return True


def join_new(context: Context, classic: ClassicGroup, event: JoinGroup) -> None:
    """Process a first join: a static member may replace its predecessor, a dynamic one gets its id first (KIP-394)."""
    if classic.saved is None:  # a group that only holds offsets would disappear with the last of them
        context.emit(GroupSaved(classic.group_id, "", classic.generation, None, None, context.now.wall_ms, ()))
    if event.instance_id is not None:
        predecessor = classic.static_ids.get(event.instance_id)
        if predecessor is not None:
            replace_static(context, classic, classic.members[predecessor], event)
            return
    elif event.requires_known_id:
        timer = Timer(Deadline.PENDING_MEMBER, classic.group_id, event.new_member_id)
        classic.pending[event.new_member_id] = PendingMember(timer, event.connection)
        context.run(timer, event.session_timeout_ms)
        context.remember_connection(event.connection, classic.group_id, event.new_member_id)
        context.reply(event.request, JoinGroupReply(ErrorCode.MEMBER_ID_REQUIRED, member_id=event.new_member_id))
        return
    add(context, classic, event, event.new_member_id, told=event.instance_id is not None)


def add(context: Context, classic: ClassicGroup, event: JoinGroup, member_id: str, *, told: bool) -> None:
    """Add a new member to the group."""
    member = ClassicMember(classic.group_id, member_id, event.instance_id, event.client)
    member.protocols = event.protocols
    member.session_timeout_ms = event.session_timeout_ms
    member.rebalance_timeout_ms = event.rebalance_timeout_ms
    member.is_new = True
    member.told = told
    if not classic.members:
        classic.protocol_type = event.protocol_type
    if classic.state is GroupState.PREPARING_REBALANCE and classic.previous_state is GroupState.EMPTY:
        classic.newcomer = True
    rebalance.add_member(context, classic, member, event.request)
    member.bind(context, event.connection)
    context.run(member.session, context.config.new_member_timeout_ms)
    rebalance.after_change(context, classic, f"member {member_id} joined (reason: {event.reason or 'not given'})")


def join_again(context: Context, classic: ClassicGroup, event: JoinGroup) -> ErrorCode:
    """Process a join with a member id, pending or in the group."""
    if event.member_id in classic.pending and event.instance_id is None:
        add(context, classic, event, event.member_id, told=True)
        return ErrorCode.NONE
    error = validate(classic, event.member_id, event.instance_id)
    if error is not ErrorCode.NONE:
        return error
    member = classic.members[event.member_id]
    member.was_heard(context, event.connection)
    unchanged = member.protocols == event.protocols
    leads = classic.is_leader(event.member_id)
    settled = classic.state is GroupState.COMPLETING_REBALANCE or (classic.state is GroupState.STABLE and not leads)
    if settled and unchanged:
        member.touch(context, member.session_timeout_ms)
        context.reply(event.request, rebalance.joined(classic, member))
        return ErrorCode.NONE
    update(context, classic, member, event)
    role = "leader" if leads else "member"
    rebalance.after_change(
        context, classic, f"{role} {event.member_id} joined again (reason: {event.reason or 'not given'})"
    )
    return ErrorCode.NONE


def update(context: Context, classic: ClassicGroup, member: ClassicMember, event: JoinGroup) -> None:
    """Take over a member's protocols and timeouts from its join, and keep the join waiting."""
    classic.count(member, -1)
    member.protocols = event.protocols
    member.session_timeout_ms = event.session_timeout_ms
    member.rebalance_timeout_ms = event.rebalance_timeout_ms
    classic.count(member, 1)
    rebalance.await_join(context, classic, member, event.request)


def replace_static(context: Context, classic: ClassicGroup, old: ClassicMember, event: JoinGroup) -> None:
    """Replace a static member that returned under a new id; the old id is fenced. Source: KIP-345."""
    old_leader = classic.leader or ""
    new = ClassicMember(classic.group_id, event.new_member_id, event.instance_id, old.client)
    new.assignment = old.assignment
    fenced = JoinGroupReply(ErrorCode.FENCED_INSTANCE_ID, member_id=old.member_id)
    rebalance.answer_join(context, classic, old, fenced)
    old.answer_sync(context, SyncGroupReply(ErrorCode.FENCED_INSTANCE_ID))
    deferred_notification.forget(context, classic, old, ErrorCode.FENCED_INSTANCE_ID)
    classic.count(old, -1)
    old.session.cancel()
    old.unbind(context)
    del classic.members[old.member_id]
    classic.members[new.member_id] = new
    classic.static_ids[event.instance_id] = new.member_id
    if classic.leader == old.member_id:
        classic.leader = new.member_id
    if classic.pending_sync.pop(old.member_id, "") is None:
        classic.pending_sync[new.member_id] = None
    classic.count(new, 1)
    new.bind(context, event.connection)
    update(context, classic, new, event)
    new.touch(context, new.session_timeout_ms)
    context.log(
        classic.group_id,
        f"static member {event.instance_id} replaced: its member id is {new.member_id}, was {old.member_id}",
    )
    classic.owes_look |= read_topics(old.metadata(classic.protocol)) != read_topics(new.metadata(classic.protocol))
    after_replacement(context, classic, new, event, old_leader)


def after_replacement(
    context: Context, classic: ClassicGroup, new: ClassicMember, event: JoinGroup, old_leader: str
) -> None:
    """Keep a stable group's assignment after a replacement unless the protocol or a leader's topics have changed.

    A returning leader compares topics only from then on. So changes before its return are compared here (KAFKA-13435);
    after a restart they are unknown. A sync under way restarts (KAFKA-9801). Partitions without owner mean that a
    cooperative member revoked some and left before it joined again, which it owed the others.
    """
    keeps = classic.select_protocol() == classic.protocol and not rebalance.leaves_out(context, classic)
    if keeps and classic.is_leader(new.member_id):
        keeps = classic.subscribed is None or classic.topics_hash == rebalance.topics_hash(context, classic)
    if classic.state is GroupState.STABLE and keeps:
        save(context, classic)
        reply = rebalance.joined(classic, new)
        leads = classic.is_leader(new.member_id)
        classic.leader_unaware |= leads
        if not event.can_skip_assignment:
            reply = JoinGroupReply(
                ErrorCode.NONE, new.member_id, reply.generation, reply.protocol_type, reply.protocol_name, old_leader
            )
        elif leads:
            reply = JoinGroupReply(
                ErrorCode.NONE,
                new.member_id,
                reply.generation,
                reply.protocol_type,
                reply.protocol_name,
                reply.leader,
                skip_assignment=True,
                members=reply.members,
            )
        rebalance.answer_join(context, classic, new, reply)
        return
    rebalance.after_change(context, classic, f"static member {event.instance_id} came back")


def save(context: Context, classic: ClassicGroup) -> None:
    """Write the group's record, and update the subscriptions from it."""
    members = tuple(member.saved(classic.protocol) for member in classic.members.values())
    context.emit(
        GroupSaved(
            classic.group_id,
            classic.protocol_type or "",
            classic.generation,
            classic.protocol,
            classic.leader,
            context.now.wall_ms,
            members,
        )
    )
    classic.subscribed = classic.read_subscriptions()


def sync(context: Context, classic: ClassicGroup, event: SyncGroup) -> None:
    """Process a SyncGroup: the member asks for its assignment, and the leader brings everyone's."""
    error = sync_or_error(context, classic, event)
    if error is not ErrorCode.NONE:
        context.reply(event.request, SyncGroupReply(error))


def sync_or_error(context: Context, classic: ClassicGroup, event: SyncGroup) -> ErrorCode:
    """Process a SyncGroup, or return the error that refuses it."""
    if classic.state is GroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = validate(classic, event.member_id, event.instance_id)
    if error is not ErrorCode.NONE:
        return error
    classic.members[event.member_id].was_heard(context, event.connection)
    if not is_current(classic, event.generation):
        return ErrorCode.ILLEGAL_GENERATION
    if differs(event.protocol_type, classic.protocol_type) or differs(event.protocol_name, classic.protocol):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if classic.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    if classic.refused_generation == event.generation:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    member = classic.members[event.member_id]
    rebalance.synced(context, classic, event.member_id)
    if classic.state is GroupState.STABLE:
        member.touch(context, member.session_timeout_ms)
        context.reply(event.request, assigned(classic, member))
        return ErrorCode.NONE
    if member.sync_request is not None:
        context.reply(member.sync_request, SyncGroupReply(ErrorCode.REBALANCE_IN_PROGRESS))
    member.sync_request = event.request
    if classic.is_leader(event.member_id):
        complete_sync(context, classic, dict(event.assignments))
    return ErrorCode.NONE


def differs(asked: str | None, actual: str | None) -> bool:
    """Return whether two protocol names contradict each other; None contradicts nothing."""
    return asked is not None and actual is not None and asked != actual


def assigned(classic: ClassicGroup, member: ClassicMember) -> SyncGroupReply:
    """Return a member's assignment in the current generation as a reply."""
    return SyncGroupReply(ErrorCode.NONE, member.assignment, classic.protocol_type, classic.protocol)


def complete_sync(context: Context, classic: ClassicGroup, assignments: dict[str, bytes]) -> None:
    """Write the leader's assignments, then send them to the members. Source: spec 3.7."""
    for member in classic.members.values():
        rebalance.set_assignment(classic, member, assignments.get(member.member_id, b""))
    if classic.size > context.config.group_record_bytes_max:
        refuse_generation(context, classic)
        return
    rebalance.move(classic, GroupState.STABLE)
    save(context, classic)
    classic.topics_hash = rebalance.topics_hash(context, classic)
    classic.leader_unaware, classic.left_out = False, None
    rebalance.settled(context, classic)
    for member in classic.members.values():
        if member.answer_sync(context, assigned(classic, member)):
            member.touch(context, member.session_timeout_ms)


def refuse_generation(context: Context, classic: ClassicGroup) -> None:
    """Refuse a generation whose assignment does not fit into a record, so that members stop retrying it."""
    context.log(
        classic.group_id,
        f"generation {classic.generation} refused: with its assignment the group takes {classic.size} bytes, more than "
        f"the {context.config.group_record_bytes_max} of one record; raise group.record.max.bytes",
        Level.ERROR,
    )
    classic.refused_generation = classic.generation
    for member in classic.members.values():
        rebalance.forget_assignment(classic, member)
        member.answer_sync(context, SyncGroupReply(ErrorCode.GROUP_MAX_SIZE_REACHED))


def heartbeat(context: Context, classic: ClassicGroup, event: Heartbeat) -> None:
    """Process a heartbeat: answer whether the member must join again, or delay the answer until there is news."""
    error = heartbeat_error(classic, event)
    if error is ErrorCode.NONE:
        if classic.owes_look:
            rebalance.look(context, classic)
        member = classic.members[event.member_id]
        if member.connection != event.connection or member.lost:
            member.was_heard(context, event.connection)
        deferred_notification.heard(context, classic, member, event)
        member.touch(context, member.session_timeout_ms)
        if deferred_notification.hold(context, classic, member, event):
            return
        error = deferred_notification.answer(context, classic, member)
    context.reply(event.request, HeartbeatReply(error))
    if error is ErrorCode.REBALANCE_IN_PROGRESS:
        deferred_notification.tell_if_all_held(context, classic)


def heartbeat_error(classic: ClassicGroup, event: Heartbeat) -> ErrorCode:
    """Return whether a heartbeat comes from a member with the current generation, or the error."""
    if event.member_id not in classic.members or event.instance_id is not None:
        error = validate(classic, event.member_id, event.instance_id)
        if error is not ErrorCode.NONE:
            return error
    return ErrorCode.NONE if is_current(classic, event.generation) else ErrorCode.ILLEGAL_GENERATION


def leave(context: Context, classic: ClassicGroup, event: LeaveGroup) -> None:
    """Remove members that leave by themselves or that an administrator removes."""
    left = []
    gone = []
    for leaving in event.members:
        error = leave_one(context, classic, leaving)
        left.append(LeftMember(leaving.member_id, leaving.instance_id, error))
        if error is ErrorCode.NONE:
            gone.append(leaving.member_id or leaving.instance_id or "")
    context.reply(event.request, LeaveGroupReply(ErrorCode.NONE, tuple(left)))
    if gone:
        rebalance.after_removal(context, classic, f"{', '.join(gone)} left")


def leave_one(context: Context, classic: ClassicGroup, leaving: LeavingMember) -> ErrorCode:
    """Remove one member, pending or not."""
    member_id = leaving.member_id
    if not member_id:
        found = classic.static_ids.get(leaving.instance_id) if leaving.instance_id is not None else None
        if found is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = found
    elif member_id not in classic.pending:
        error = validate(classic, member_id, leaving.instance_id)
        if error is not ErrorCode.NONE:
            return error
    context.log(classic.group_id, f"member {member_id} left (reason: {leaving.reason or 'not given'})")
    rebalance.remove_member(context, classic, member_id)
    return ErrorCode.NONE


def not_awaited(context: Context, classic: ClassicGroup, member_id: str) -> None:
    """Drop a pending member id that was not used in time or does not fit into the group; the join phase goes on."""
    if rebalance.drop_pending(context, classic, member_id):
        rebalance.complete_if_all_joined(context, classic)


def load(context: Context, classic: ClassicGroup) -> None:
    """Build the soft state from the group's record; sessions restart. Source: spec 3.7.

    A generation that began and was never synchronized is over: its members, and those of the one before, join again.
    """
    saved = classic.saved
    if saved is None:
        return
    classic.protocol_type = saved.protocol_type or None
    classic.protocol = saved.protocol
    classic.leader = saved.leader
    for stored in saved.members:
        member = ClassicMember.from_saved(classic.group_id, stored, saved.protocol or "")
        classic.members[member.member_id] = member
        if member.instance_id is not None:
            classic.static_ids[member.instance_id] = member.member_id
        classic.count(member, 1)
        member.touch(context, member.session_timeout_ms)
    classic.subscribed = classic.read_subscriptions()
    if not classic.members:
        return
    classic.state = classic.previous_state = GroupState.STABLE
    if classic.started > saved.generation:
        classic.resumed_from = saved.generation
        rebalance.prepare(context, classic, f"a restart interrupted generation {classic.started}")
    elif len(classic.members) > context.config.group_max_size:
        rebalance.prepare(context, classic, f"{len(classic.members)} members are more than group.max.size")
    else:
        rebalance.on_loaded(context, classic)
