"""Registration of push consumers: they join, return, and leave. Source: spec 4.4, 4.12.

| a registration of | what happens |
|---|---|
| a new id | it becomes a member, and a rebalance follows |
| the id of a member whose connection has ended, or that the journal knows | it continues with its partitions |
| the id of a member whose connection seems open | that one is pinged; if it answers, the registration is refused |

A consumer is evicted when its session times out or the process that it registered from has ended. It may also leave
(LeaveGroup, which kohort's own clients send). The end of a connection alone shows nothing: the consumer may work on.
"""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.groups import sizes
from kohort.groups.effects import LeaveGroupReply, LeftMember, Level, RegisterConsumerReply
from kohort.groups.events import ConnectionLost, LeaveGroup, LeavingMember, RegisterConsumer
from kohort.groups.migration.pushing import make_push_group
from kohort.groups.push import rebalance, requests
from kohort.groups.push.group import PushGroup, PushMember
from kohort.groups.records import Kind, PushGroupSaved, PushMemberSaved, Tombstone
from kohort.groups.step import Context


def register(context: Context, event: RegisterConsumer) -> None:
    """Process a registration."""
    error = check(context, event)
    made = error if error is not ErrorCode.NONE else make_push_group(context, event.group_id)
    if not isinstance(made, PushGroup):
        context.reply(event.request, RegisterConsumerReply(made))
        return
    member = made.present.get(event.member_id)
    if member is None:
        admit(context, made, event)
    elif member.is_gone:
        register_again(context, made, member, event)
    elif member.claim is not None:
        context.reply(event.request, RegisterConsumerReply(ErrorCode.FENCED_INSTANCE_ID))
    else:
        member.claim = event
        context.remember_connection(event.connection, event.group_id, event.member_id)
        if member.asked is None:
            requests.advance(context, made, event.member_id)


def check(context: Context, event: RegisterConsumer) -> ErrorCode:
    """Return the error in a registration itself, whatever the group."""
    config = context.config
    if "push" not in config.rebalance_protocols:
        return ErrorCode.UNSUPPORTED_VERSION
    if not event.group_id or not sizes.fits(event.group_id):
        return ErrorCode.INVALID_GROUP_ID
    if not event.member_id or not sizes.fits(event.member_id, event.regex, *event.topics):
        return ErrorCode.INVALID_REQUEST
    if not config.push_min_session_timeout_ms <= event.session_timeout_ms <= config.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def saved_of(event: RegisterConsumer) -> PushMemberSaved:
    """Return a registration as its record."""
    return PushMemberSaved(
        group_id=event.group_id,
        member_id=event.member_id,
        client_id=event.client.id,
        client_host=event.client.host,
        topics=tuple(sorted(event.topics.items())),
        regex=event.regex,
        excluding=event.excluding,
        streams=event.streams,
        auto_commit=event.auto_commit,
        from_begin=event.from_begin,
        session_timeout_ms=event.session_timeout_ms,
    )


def admit(context: Context, push: PushGroup, event: RegisterConsumer) -> None:
    """Add a new member."""
    if len(push.members) >= context.config.group_max_size:
        context.reply(event.request, RegisterConsumerReply(ErrorCode.GROUP_MAX_SIZE_REACHED))
        return
    if not push.members:
        context.emit(PushGroupSaved(push.group_id, -1))
    context.emit(saved_of(event))
    member = push.present[event.member_id] = PushMember(push.group_id, event.member_id)
    member.stopped = True
    take_connection(context, push, member, event)
    context.run(member.ping, requests.first_ping_ms(push.members[event.member_id]))
    rebalance.look(context, push, f"member {event.member_id} joined")


def take_connection(context: Context, push: PushGroup, member: PushMember, event: RegisterConsumer) -> None:
    """Bind a member to the connection that it registered on, and restart its session."""
    member.bind(context, event.connection)
    member.process = event.client.process
    member.alive(context, requests.bound_ms(context, push.members[event.member_id]))
    context.reply(event.request, RegisterConsumerReply(ErrorCode.NONE))


def register_again(context: Context, push: PushGroup, member: PushMember, event: RegisterConsumer) -> None:
    """Take back a member that registers again: ping it, then start it with its partitions, unless they change."""
    saved = saved_of(event)
    before = push.members[event.member_id]
    if saved != before:
        context.emit(saved)
    member.asked, member.out, member.told = None, 0, None
    member.stopped = member.ending = False
    member.back = True
    member.refusals = 0
    take_connection(context, push, member, event)
    partitions = len(push.owned_by(event.member_id))
    context.log(push.group_id, f"member {event.member_id} registered again with {partitions} partitions")
    if (saved.topics, saved.regex, saved.excluding, saved.streams) != (
        before.topics,
        before.regex,
        before.excluding,
        before.streams,
    ):
        rebalance.look(context, push, f"member {event.member_id} reads other topics")
    requests.advance(context, push, event.member_id)


def refuse_conflicting(context: Context, member: PushMember) -> None:
    """Refuse a conflicting registration, because the member is alive."""
    claim, member.claim = member.claim, None
    if claim is not None:
        if claim.connection != member.connection:
            context.forget_connection(claim.connection, claim.group_id, claim.member_id)
        context.reply(claim.request, RegisterConsumerReply(ErrorCode.FENCED_INSTANCE_ID))


def replace(context: Context, push: PushGroup, member: PushMember) -> None:
    """Disconnect a member that did not answer, in favour of the conflicting registration."""
    lose(context, push, member, f"member {member.session.subject} disconnected: no answer, and its id registered again")


def lose(context: Context, push: PushGroup, member: PushMember, why: str) -> None:
    """End a member's connection; its session runs on."""
    context.log(push.group_id, why, Level.WARNING)
    requests.dismiss(context, push, member, why)
    member.unbind(context)
    disconnect(context, push, member)


def disconnect(context: Context, push: PushGroup, member: PushMember) -> None:
    """Mark a member as unreachable; a conflicting registration takes its place."""
    member.gone_ms = context.now.mono_ms
    member.asked, member.out, member.finding = None, 0, -1
    member.ping.cancel()
    claim, member.claim = member.claim, None
    if claim is not None:
        register_again(context, push, member, claim)


def on_connection_lost(context: Context, push: PushGroup, member_id: str, event: ConnectionLost) -> None:
    """Handle the end of a connection: evict the member if its process has ended, else let its session run."""
    member = push.present.get(member_id)
    if member is None:
        return
    if member.claim is not None and member.claim.connection == event.connection:
        member.claim = None
    elif member.connection == event.connection and not member.is_gone:
        disconnect(context, push, member)
        is_dead = event.ended != "" and event.ended == member.process
        if is_dead and push.present[member_id].is_gone:
            evict(context, push, member_id, f"member {member_id} evicted: its process has ended")


def on_session_end(context: Context, push: PushGroup, member_id: str) -> None:
    """Evict a member that has answered nothing for its whole session and so has stopped by its own clock."""
    member = push.present[member_id]
    saved = push.members[member_id]
    seen = member.last_seen(context, saved.client_id, saved.client_host)
    evict(context, push, member_id, f"member {member_id} evicted: session timed out ({seen})")


def leave(context: Context, push: PushGroup, event: LeaveGroup) -> None:
    """Remove members that leave or that an administrator removes: they read nothing more, or are said not to."""
    left = tuple(leave_one(context, push, leaving) for leaving in event.members)
    context.reply(event.request, LeaveGroupReply(ErrorCode.NONE, left))


def leave_one(context: Context, push: PushGroup, leaving: LeavingMember) -> LeftMember:
    """Remove one member."""
    if leaving.member_id not in push.members:
        return LeftMember(leaving.member_id, leaving.instance_id, ErrorCode.UNKNOWN_MEMBER_ID)
    evict(
        context, push, leaving.member_id, f"member {leaving.member_id} left (reason: {leaving.reason or 'not given'})"
    )
    return LeftMember(leaving.member_id, leaving.instance_id, ErrorCode.NONE)


def evict(context: Context, push: PushGroup, member_id: str, why: str) -> None:
    """Remove a member: free its partitions, end its connection, and rebalance."""
    context.log(push.group_id, why)
    member = push.present[member_id]
    requests.dismiss(context, push, member, why)
    member.session.cancel()
    member.ping.cancel()
    claim, member.claim = member.claim, None
    del push.present[member_id]
    push.moved(member_id)
    requests.release(context, push, member_id)
    context.emit(Tombstone((Kind.PUSH_MEMBER, push.group_id, member_id)))
    member.unbind(context)
    if not push.members:
        context.emit(PushGroupSaved(push.group_id, context.now.wall_ms))
    rebalance.look(context, push, why)
    rebalance.went_on(context, push)
    if claim is not None:
        context.forget_connection(claim.connection, claim.group_id, claim.member_id)
        register(context, claim)


def load(context: Context, push: PushGroup) -> None:
    """Wait for each member for one session after a replay, and rebalance."""
    push.loaded = True
    for member_id, saved in push.members.items():
        member = push.present[member_id] = PushMember(push.group_id, member_id)
        member.alive(context, requests.bound_ms(context, saved))
        member.gone_ms = context.now.mono_ms
    if push.members:
        rebalance.look(context, push, "the shard was loaded")
