"""Heartbeats of classic members that are held until there is something to say, and who is told of a change when.

A member learns of a change by the reply to a heartbeat. While its group is stable and its client bears it, the reply is
held, so that it can be given at once; whatever else the client asks on that connection releases it first.

An eager member gives everything up when it is told, and stands still until the last one has joined. So on a change in
an eager group everyone goes on working, and all are told at one moment: when every reply is held, or when the last of
those that were not held at the change is due. Whose reply is released before (by a commit, or since it was held long
enough) is told then only if its next heartbeat is due after that moment: it would not come in time. Members of
cooperative groups keep their work while they rebalance and are told at once. docs/notification.md has what a simulation
and real clients showed of both.

Nor does anyone stand still for a member that is silent: whose heartbeat is overdue, or whose connection has ended. A
round can't end before it is back or its session is over, so that moment is when all are told.

| a heartbeat | while the group is stable | while it gathers | once all are told |
|---|---|---|---|
| arrives | held | held; the last one ends the gathering | REBALANCE_IN_PROGRESS |
| arrives, its client does not bear a hold | NONE | NONE if the next is due in time, else told | REBALANCE_IN_PROGRESS |
| is released by another request, or its hold ends | NONE | NONE if the next is due in time, else told | - |
"""

from __future__ import annotations

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from kohort.errors import ErrorCode
from kohort.groups.classic.group import ClassicGroup, ClassicMember, Gathering
from kohort.groups.effects import GroupState, HeartbeatReply, Meter
from kohort.groups.events import Heartbeat
from kohort.groups.failure_detector import LATE_MS, Pace, is_silent
from kohort.groups.long_polling import Release
from kohort.groups.step import Context
from kohort.groups.timers import Deadline, Timer

HELD_TENTHS = 9
"""Of its interval a member is held at most so much: its next heartbeat should find no other one outstanding."""
PACE = Pace(any_sign=False, late_percent=0, late_ms=LATE_MS, reconnect_ms=0, forgives_disconnect=False)
"""How classic members are heard.

It costs little to take one for silent that is not: the others are told when it is heard, moments later. Not to see one
that is costs everyone a session without work. So it is silent as soon as it is late, or its connection has ended. Only
heartbeats count: it is by the reply to one, not to a commit, that a member can be told. Who would not wait is not held
again: its client's interval is its own, and it loses nothing but the early news.
"""
USUAL_PART, LONGEST_PART = 4, 2
"""Parts of the rebalance timeout that a gathering may take, with a silent member the larger one."""
COOPERATIVE = "cooperative"
"""Strategies with this in their names keep their members at work."""


def heard(context: Context, classic: ClassicGroup, member: ClassicMember, event: Heartbeat) -> None:
    """A heartbeat has come: an earlier one is held no more, its member's interval is learnt, and no one is silent."""
    if member.held is not None:
        context.held.release(context, classic, member)
    member.beat(context, event.interval_ms)
    member.bears_hold = event.hold_ms > 0
    gathering = classic.gathering
    if gathering is not None and member.member_id in gathering.silent:
        forget_awaited(gathering, member.member_id)
        tell_if_all_held(context, classic)


def hold(context: Context, classic: ClassicGroup, member: ClassicMember, event: Heartbeat) -> bool:
    """Keep a valid heartbeat's reply; False when it must be answered now."""
    if not event.hold_ms or classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return False
    if classic.state is GroupState.STABLE:
        if member.member_id in classic.pending_sync:
            return False
    elif classic.gathering is None or member.join_request is not None:
        return False
    if not context.held.keep(context, classic, member, event, member.interval_ms * HELD_TENTHS // 10):
        return False
    if classic.gathering is not None:
        forget_awaited(classic.gathering, member.member_id)
        tell_if_all_held(context, classic)
    return True


def answer(context: Context, classic: ClassicGroup, member: ClassicMember) -> ErrorCode:
    """What a heartbeat says that is answered now: join again, unless the member's next one comes in time."""
    if classic.state is not GroupState.PREPARING_REBALANCE:
        return ErrorCode.NONE
    gathering = classic.gathering
    if gathering is None:
        return ErrorCode.REBALANCE_IN_PROGRESS
    due_ms = None if member.join_request is not None else member.due_ms(PACE)
    if due_ms is not None and due_ms <= gathering.until_ms:
        gathering.awaited[member.member_id] = None
        return ErrorCode.NONE
    gathering.awaited.pop(member.member_id, None)
    return ErrorCode.REBALANCE_IN_PROGRESS


def answer_held(context: Context, classic: ClassicGroup, member: ClassicMember, event: Heartbeat, why: Release) -> None:
    """Answer a heartbeat that was held as it would be answered now; a change is told to no one who can't hear it."""
    if why is Release.DISCONNECTED:
        context.reply(event.request, HeartbeatReply(ErrorCode.NONE))
        return
    context.reply(event.request, HeartbeatReply(answer(context, classic, member)))
    tell_if_all_held(context, classic)


def refuse_held(context: Context, event: Heartbeat, error: ErrorCode, message: str | None) -> None:
    """Answer a heartbeat that was held with an error."""
    context.reply(event.request, HeartbeatReply(error))


def begin(context: Context, classic: ClassicGroup) -> None:
    """A stable group has begun a rebalance: gather, or tell at once all whose replies are held.

    Members whose clients bear no hold are told with their next heartbeat, unless someone is silent already: that takes
    no hold, only an answer that says nothing yet.
    """
    now_ms = context.now.mono_ms
    end(classic)
    gathers = longest_interval_ms(classic) or any(
        is_silent(context, classic, member) for member in classic.members.values()
    )
    if not gathers or COOPERATIVE in (classic.protocol or "") or context.config.notify_at_once == "off":
        tell_all(context, classic)
        return
    awaited = dict.fromkeys(
        member.member_id
        for member in classic.members.values()
        if member.held is None and member.join_request is None and member.member_id not in classic.pending_sync
    )
    classic.gathering = Gathering(awaited, now_ms, Timer(Deadline.GATHERING, classic.group_id))
    set_until(context, classic, classic.gathering)
    tell_if_all_held(context, classic)


def set_until(context: Context, classic: ClassicGroup, gathering: Gathering) -> None:
    """Say when all are told: when the last one is due, but not before the silent are back or out.

    For one session at most, however many fall silent one after the other: some wait without work, and partitions of the
    dead are read by nobody. Who falls silent once all are told and have joined keeps no round from ending.
    """
    now_ms = context.now.mono_ms
    awaited = [classic.members[member_id] for member_id in gathering.awaited]
    silent = [member for member in awaited if is_silent(context, classic, member)]
    gathering.silent = dict.fromkeys(member.member_id for member in silent)
    if silent:
        ends_ms = max(member.session.due_ms or now_ms for member in silent)
        longest_ms = max(member.session_timeout_ms for member in silent)
        longest_ms = min(longest_ms, classic.rebalance_timeout_ms() // LONGEST_PART)
        gathering.until_ms = min(ends_ms, gathering.began_ms + longest_ms)
        gathering.extended = True
    else:
        last_ms = now_ms + min(longest_interval_ms(classic), classic.rebalance_timeout_ms() // USUAL_PART)
        dues = [member.due_ms(PACE) for member in awaited]
        due_ms = max((last_ms if due_ms is None else due_ms for due_ms in dues), default=now_ms)
        gathering.until_ms = min(due_ms + LATE_MS, last_ms)
        gathering.extended = False
    context.deadlines.set(gathering.timer, gathering.until_ms)


def on_deadline(context: Context, classic: ClassicGroup, subject: str) -> None:
    """The last one was due: tell all, unless it did not come and is silent now."""
    gathering = classic.gathering
    if gathering is None:
        return
    if not gathering.extended:
        set_until(context, classic, gathering)
    if not gathering.extended or gathering.until_ms <= context.now.mono_ms:
        tell_all(context, classic)


def longest_interval_ms(classic: ClassicGroup) -> int:
    """Of the members whose clients bear a hold; 0 when there is none, or when none is known."""
    return max((member.interval_ms for member in classic.members.values() if member.bears_hold), default=0)


def tell_if_all_held(context: Context, classic: ClassicGroup) -> None:
    """End the gathering when no one is awaited any more; when no one is silent, look when the last one is due."""
    gathering = classic.gathering
    if gathering is None:
        return
    if not gathering.awaited:
        tell_all(context, classic)
    elif gathering.extended and not gathering.silent:
        set_until(context, classic, gathering)


def tell_all(context: Context, classic: ClassicGroup) -> None:
    """Tell everyone whose reply is held that the group rebalances; others hear it with their next heartbeat.

    Where that was put off for the silent, they have their whole time to join from now on.
    """
    gathering = classic.gathering
    timeout_ms = classic.rebalance_timeout_ms()
    if gathering is not None and context.now.mono_ms - gathering.began_ms > timeout_ms // USUAL_PART:
        context.run(classic.join_phase, timeout_ms)
    end(classic)
    told = [member for member in classic.members.values() if member.held is not None]
    for member in told:
        context.held.release(context, classic, member)
    context.count(Meter.HELD_TOLD, len(told))


def end(classic: ClassicGroup) -> None:
    """Gather no longer."""
    if classic.gathering is not None:
        classic.gathering.timer.cancel()
        classic.gathering = None


def forget(context: Context, classic: ClassicGroup, member: ClassicMember, error: ErrorCode) -> None:
    """A member joins, goes, or is replaced: its held heartbeat is answered, and it is awaited no more."""
    context.held.refuse(context, classic, member, error)
    if classic.gathering is not None:
        forget_awaited(classic.gathering, member.member_id)


def forget_awaited(gathering: Gathering, member_id: str) -> None:
    """Wait for this member no more."""
    gathering.awaited.pop(member_id, None)
    gathering.silent.pop(member_id, None)
