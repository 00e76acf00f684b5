"""Consumers come, come back, and go. Source: spec 4.4, 4.12.

| who registers | what happens |
|---|---|
| a new id | it is a member, and the group is looked at |
| the id of a member whose connection has ended, or that the journal knows | it goes on with what it owns |
| the id of a member whose connection seems open | that one is pinged: if it answers, the other is refused |

A consumer is out when its session is over, when it leaves (LeaveGroup, which kohort's own clients send), or when the
process that it registered from has ended. A connection's end alone says nothing: it may work on behind it.
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
    """A consumer asks to be a member."""
    error = check(context, event)
    made = error if error is not ErrorCode.NONE else make_push_group(context, event.group_id)
    if not isinstance(made, PushGroup):
        context.reply(event.request, RegisterConsumerReply(made))
        return
    member = made.present.get(event.member_id)
    if member is None:
        admit(context, made, event)
    elif member.is_gone:
        come_back(context, made, member, event)
    elif member.claim is not None:
        context.reply(event.request, RegisterConsumerReply(ErrorCode.FENCED_INSTANCE_ID))
    else:
        member.claim = event
        context.remember_connection(event.connection, event.group_id, event.member_id)
        if member.asked is None:
            requests.advance(context, made, event.member_id)


def check(context: Context, event: RegisterConsumer) -> ErrorCode:
    """What a registration itself may get wrong, whatever the group."""
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
    """What it said, as its record."""
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
    """A new member."""
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
    rebalance.look(context, push, f"{event.member_id} came")


def take_connection(context: Context, push: PushGroup, member: PushMember, event: RegisterConsumer) -> None:
    """The member is heard on the connection that it registered on."""
    member.bind(context, event.connection)
    member.process = event.client.process
    member.alive(context, requests.bound_ms(context, push.members[event.member_id]))
    context.reply(event.request, RegisterConsumerReply(ErrorCode.NONE))


def come_back(context: Context, push: PushGroup, member: PushMember, event: RegisterConsumer) -> None:
    """A member registers again: it is pinged, then started with what it owns, unless it is to have something else."""
    saved = saved_of(event)
    before = push.members[event.member_id]
    if saved != before:
        context.emit(saved)
    member.asked, member.out, member.told = None, 0, None
    member.stopped = member.ending = False
    member.back = True
    member.refusals = 0
    take_connection(context, push, member, event)
    context.tell(push.group_id, f"{event.member_id} is back, with {len(push.owned_by(event.member_id))} partitions")
    if (saved.topics, saved.regex, saved.excluding, saved.streams) != (
        before.topics,
        before.regex,
        before.excluding,
        before.streams,
    ):
        rebalance.look(context, push, f"{event.member_id} reads other topics")
    requests.advance(context, push, event.member_id)


def refuse_claim(context: Context, member: PushMember) -> None:
    """Whoever wants the id of a member that is there gets it not."""
    claim, member.claim = member.claim, None
    if claim is not None:
        if claim.connection != member.connection:
            context.forget_connection(claim.connection, claim.group_id, claim.member_id)
        context.reply(claim.request, RegisterConsumerReply(ErrorCode.FENCED_INSTANCE_ID))


def replace(context: Context, push: PushGroup, member: PushMember) -> None:
    """A member whose connection seemed open did not answer while another wants its id."""
    lose(context, push, member, f"{member.session.subject} has not answered, and is back on another connection")


def lose(context: Context, push: PushGroup, member: PushMember, why: str) -> None:
    """Its connection says nothing any more: it ends; the session runs on."""
    context.tell(push.group_id, why, Level.WARNING)
    requests.dismiss(context, push, member, why)
    member.unbind(context)
    disconnect(context, push, member)


def disconnect(context: Context, push: PushGroup, member: PushMember) -> None:
    """It can't be reached; whoever wants its id has it."""
    member.gone_ms = context.now.mono_ms
    member.asked, member.out, member.finding = None, 0, -1
    member.ping.cancel()
    claim, member.claim = member.claim, None
    if claim is not None:
        come_back(context, push, member, claim)


def on_connection_lost(context: Context, push: PushGroup, member_id: str, event: ConnectionLost) -> None:
    """A hint of death. That its process has ended is death."""
    member = push.present.get(member_id)
    if member is None:
        return
    if member.claim is not None and member.claim.connection == event.connection:
        member.claim = None
    elif member.connection == event.connection and not member.is_gone:
        disconnect(context, push, member)
        is_dead = event.ended != "" and event.ended == member.process
        if is_dead and push.present[member_id].is_gone:
            evict(context, push, member_id, f"the process of {member_id} has ended")


def on_session_end(context: Context, push: PushGroup, member_id: str) -> None:
    """It has answered nothing for so long that it has stopped by its own clock."""
    member = push.present[member_id]
    saved = push.members[member_id]
    seen = member.last_seen(context, saved.client_id, saved.client_host)
    evict(context, push, member_id, f"{member_id} is out: {seen}")


def leave(context: Context, push: PushGroup, event: LeaveGroup) -> None:
    """Members leave, or an administrator removes them: they are known to read nothing more, or said to be."""
    left = tuple(leave_one(context, push, leaving) for leaving in event.members)
    context.reply(event.request, LeaveGroupReply(ErrorCode.NONE, left))


def leave_one(context: Context, push: PushGroup, leaving: LeavingMember) -> LeftMember:
    """One of them."""
    if leaving.member_id not in push.members:
        return LeftMember(leaving.member_id, leaving.instance_id, ErrorCode.UNKNOWN_MEMBER_ID)
    evict(context, push, leaving.member_id, f"{leaving.member_id} leaves: {leaving.reason or 'no reason given'}")
    return LeftMember(leaving.member_id, leaving.instance_id, ErrorCode.NONE)


def evict(context: Context, push: PushGroup, member_id: str, why: str) -> None:
    """A member is out: what it had is free, its connection ends, and the group is looked at."""
    context.tell(push.group_id, why)
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
    """After a replay members are awaited for a session each; the group is looked at."""
    push.loaded = True
    for member_id, saved in push.members.items():
        member = push.present[member_id] = PushMember(push.group_id, member_id)
        member.alive(context, requests.bound_ms(context, saved))
        member.gone_ms = context.now.mono_ms
    if push.members:
        rebalance.look(context, push, "it was loaded")
