"""Deferred rebalance notification: when the heartbeats of classic members announce a rebalance.

A member learns of a rebalance from the response to a heartbeat. While its group is stable and its client tolerates it,
the response is delayed (long polling), so that it can announce a rebalance immediately. Any other request on the
connection releases it first.

An eager member revokes all its partitions when it is notified, and then waits until the last member has joined. So in
an eager group everyone continues to work after a change, and all are notified at one moment. That is when every
response is delayed, or when the last member without a delayed response is due. A response may be released before that,
by a commit or its time limit. It announces the rebalance only if the member's next heartbeat is due after that moment
and would come too late. Members of cooperative groups keep their partitions during a rebalance and are notified
immediately. See docs/notification.md for measurements with a simulation and real clients.

Nor do members stop for one that is silent: overdue, or without a connection. The join phase cannot end before the
silent member returns or its session ends, so that is the moment of the notification.

| a heartbeat | while the group is stable | during the deferral | after the notification |
|---|---|---|---|
| arrives | delayed | delayed; the last one ends the deferral | REBALANCE_IN_PROGRESS |
| arrives from a client without delays | NONE | NONE if the next one is due in time, else told | REBALANCE_IN_PROGRESS |
| is released by a request or its time limit | NONE | NONE if the next one is due in time, else told | - |
"""

from __future__ import annotations

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from kohort.errors import ErrorCode
from kohort.groups.classic.group import ClassicGroup, ClassicMember, DeferredNotification
from kohort.groups.effects import GroupState, HeartbeatReply, Meter
from kohort.groups.events import Heartbeat
from kohort.groups.failure_detector import LATE_MS, DetectorSettings, is_silent
from kohort.groups.long_polling import Release
from kohort.groups.context import Context
from kohort.groups.timers import Deadline, Timer

HELD_TENTHS = 9
"""The longest delay in tenths of the interval, so that the next heartbeat finds no other one outstanding."""
DETECTOR_SETTINGS = DetectorSettings(
    any_sign=False, late_percent=0, late_ms=LATE_MS, reconnect_ms=0, forgives_disconnect=False
)
"""The failure detector's parameters for classic members.

A false suspicion is cheap: the others are notified when the member is heard, moments later. A missed one stalls all
members for a session timeout. So a member is silent as soon as it is late or its connection has ended. Only heartbeats
count, because only their responses can announce a rebalance, not those of commits. A client that closed its connection
during a delay gets no more delays: its interval is its own, and it loses only the early notification.
"""
USUAL_PART, LONGEST_PART = 4, 2
"""The parts of the rebalance timeout that a deferral may take: 1/4, or 1/2 with a silent member."""
COOPERATIVE = "cooperative"
"""The members of strategies with this word in their names keep working during a rebalance."""


def heard(context: Context, classic: ClassicGroup, member: ClassicMember, event: Heartbeat) -> None:
    """Take in a heartbeat: release an earlier one, learn the member's interval, and clear a suspicion."""
    if member.held is not None:
        context.held.release(context, classic, member)
    member.beat(context, event.interval_ms)
    member.bears_hold = event.hold_ms > 0
    deferral = classic.deferral
    if deferral is not None and member.member_id in deferral.silent:
        deferral.forget(member.member_id)
        tell_if_all_held(context, classic)


def hold(context: Context, classic: ClassicGroup, member: ClassicMember, event: Heartbeat) -> bool:
    """Delay the response to a valid heartbeat; False if it must be sent now."""
    if not event.hold_ms or classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return False
    if classic.state is GroupState.STABLE:
        if member.member_id in classic.pending_sync:
            return False
    elif classic.deferral is None or member.join_request is not None:
        return False
    if not context.held.keep(context, classic, member, event, member.interval_ms * HELD_TENTHS // 10):
        return False
    if classic.deferral is not None:
        classic.deferral.forget(member.member_id)
        tell_if_all_held(context, classic)
    return True


def answer(context: Context, classic: ClassicGroup, member: ClassicMember) -> ErrorCode:
    """Return the content of a response that is sent now: join again, unless the member's next heartbeat is in time."""
    if classic.state is not GroupState.PREPARING_REBALANCE:
        return ErrorCode.NONE
    deferral = classic.deferral
    if deferral is None:
        return ErrorCode.REBALANCE_IN_PROGRESS
    due_ms = None if member.join_request is not None else member.due_ms(DETECTOR_SETTINGS)
    if due_ms is not None and due_ms <= deferral.until_ms:
        deferral.awaited[member.member_id] = None
        return ErrorCode.NONE
    deferral.awaited.pop(member.member_id, None)
    return ErrorCode.REBALANCE_IN_PROGRESS


def answer_held(context: Context, classic: ClassicGroup, member: ClassicMember, event: Heartbeat, why: Release) -> None:
    """Answer a delayed heartbeat like a new one; after a disconnect it announces nothing, since nobody reads it."""
    if why is Release.DISCONNECTED:
        context.reply(event.request, HeartbeatReply(ErrorCode.NONE))
        return
    context.reply(event.request, HeartbeatReply(answer(context, classic, member)))
    tell_if_all_held(context, classic)


def refuse_held(context: Context, classic: ClassicGroup, event: Heartbeat, error: ErrorCode, message: str | None) -> None:
    """Answer a delayed heartbeat with an error."""
    context.reply(event.request, HeartbeatReply(error))


def begin(context: Context, classic: ClassicGroup) -> None:
    """Begin the deferral when a stable group starts a rebalance, or notify all members with a delayed heartbeat.

    If no client tolerates delays, members are notified by their next heartbeats, unless some member is silent already.
    Waiting for a silent member takes no delay, only responses that announce nothing yet.
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
    classic.deferral = DeferredNotification(awaited, now_ms, Timer(Deadline.NOTIFICATION, classic.group_id))
    set_until(context, classic, classic.deferral)
    tell_if_all_held(context, classic)


def set_until(context: Context, classic: ClassicGroup, deferral: DeferredNotification) -> None:
    """Set the time of the notification: when the last member is due, but not before silent members return or leave.

    The deferral takes one session timeout at most, however many members fall silent one after the other. Meanwhile some
    wait without work, and nobody reads the partitions of dead members. Members that fall silent after all have been
    notified and have joined do not delay the end of the join phase.
    """
    now_ms = context.now.mono_ms
    awaited = [classic.members[member_id] for member_id in deferral.awaited]
    silent = [member for member in awaited if is_silent(context, classic, member)]
    deferral.silent = dict.fromkeys(member.member_id for member in silent)
    if silent:
        ends_ms = max(member.session.due_ms or now_ms for member in silent)
        longest_ms = max(member.session_timeout_ms for member in silent)
        longest_ms = min(longest_ms, classic.rebalance_timeout_ms() // LONGEST_PART)
        deferral.until_ms = min(ends_ms, deferral.began_ms + longest_ms)
        deferral.extended = True
    else:
        last_ms = now_ms + min(longest_interval_ms(classic), classic.rebalance_timeout_ms() // USUAL_PART)
        dues = [member.due_ms(DETECTOR_SETTINGS) for member in awaited]
        due_ms = max((last_ms if due_ms is None else due_ms for due_ms in dues), default=now_ms)
        deferral.until_ms = min(due_ms + LATE_MS, last_ms)
        deferral.extended = False
    context.deadlines.set(deferral.timer, deferral.until_ms)


def on_deadline(context: Context, classic: ClassicGroup, subject: str) -> None:
    """Notify all members when the last one was due, unless one did not come and is silent now."""
    deferral = classic.deferral
    if deferral is None:
        return
    if not deferral.extended:
        set_until(context, classic, deferral)
    if not deferral.extended or deferral.until_ms <= context.now.mono_ms:
        tell_all(context, classic)


def longest_interval_ms(classic: ClassicGroup) -> int:
    """Return the longest known interval of the members that tolerate delays; 0 if there is none."""
    return max((member.interval_ms for member in classic.members.values() if member.bears_hold), default=0)


def tell_if_all_held(context: Context, classic: ClassicGroup) -> None:
    """End the deferral if no member is awaited any more; compute its end again if no member is silent any more."""
    deferral = classic.deferral
    if deferral is None:
        return
    if not deferral.awaited:
        tell_all(context, classic)
    elif deferral.extended and not deferral.silent:
        set_until(context, classic, deferral)


def tell_all(context: Context, classic: ClassicGroup) -> None:
    """Announce the rebalance to every member with a delayed heartbeat; the others learn of it by their next one.

    If the notification was extended for silent members, the time to join starts only now.
    """
    deferral = classic.deferral
    timeout_ms = classic.rebalance_timeout_ms()
    if deferral is not None and context.now.mono_ms - deferral.began_ms > timeout_ms // USUAL_PART:
        context.run(classic.join_phase, timeout_ms)
    end(classic)
    notified = [member for member in classic.members.values() if member.held is not None]
    for member in notified:
        context.held.release(context, classic, member)
    context.count(Meter.HELD_TOLD, len(notified))


def end(classic: ClassicGroup) -> None:
    """End the deferral."""
    if classic.deferral is not None:
        classic.deferral.timer.cancel()
        classic.deferral = None


def forget(context: Context, classic: ClassicGroup, member: ClassicMember, error: ErrorCode) -> None:
    """Answer the delayed heartbeat of a member that joins, leaves or is replaced, and no longer await it."""
    context.held.refuse(context, classic, member, error)
    if classic.deferral is not None:
        classic.deferral.forget(member.member_id)


def forget_awaited(deferral: DeferredNotification, member_id: str) -> None:
    """No longer await this member."""
    deferral.awaited.pop(member_id, None)
    deferral.silent.pop(member_id, None)
