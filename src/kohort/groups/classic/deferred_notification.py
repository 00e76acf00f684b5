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

from typing import ClassVar

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from kohort.errors import NO_ERROR, ErrorCode
from kohort.groups.classic.members import PREPARING, STABLE, ClassicMember, ClassicMembers, DeferredNotification
from kohort.groups.effects import CoordinatorMeter, HeartbeatReply
from kohort.groups.events import Heartbeat
from kohort.groups.failure_detector import LATE_MS, DetectorSettings
from kohort.groups.long_polling import LongPollEnd
from kohort.groups.step import Step
from kohort.groups.timers import Deadline, Timer

LONG_POLL_TENTHS = 9
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


class ClassicNotification(ClassicMembers):
    """When the members of a classic group are told to rejoin (REBALANCE_IN_PROGRESS): at once, or all together."""

    detector: ClassVar[DetectorSettings] = DETECTOR_SETTINGS

    def find_member(self, member_id: str) -> ClassicMember | None:
        """Return a member; None if the id is unknown."""
        return self.members.get(member_id)

    def member_session_ms(self, step: Step, member: ClassicMember) -> int:
        """Return a member's session timeout."""
        return member.session_timeout_ms

    def on_member_heartbeat(self, step: Step, member: ClassicMember, event: Heartbeat) -> None:
        """Handle a valid heartbeat: answer an earlier delayed one, learn the interval, and clear a suspicion."""
        if member.long_poll is not None:
            self.end_long_poll(step, member)
        member.learn_from_heartbeat(step, event.interval_ms)
        member.tolerates_long_polls = event.delay_ms > 0
        deferral = self.deferral
        if deferral is not None and member.member_id in deferral.suspected:
            deferral.forget_member(member.member_id)
            self.notify_if_none_awaited(step)

    def delay_heartbeat(self, step: Step, member: ClassicMember, event: Heartbeat) -> bool:
        """Delay the response to a valid heartbeat; False if it must be sent now."""
        if not event.delay_ms or self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return False
        if self.state is STABLE:
            if member.member_id in self.pending_sync:
                return False
        elif self.deferral is None or member.join_request is not None:
            return False
        if not self.begin_long_poll(step, member, event, member.interval_ms * LONG_POLL_TENTHS // 10):
            return False
        if self.deferral is not None:
            self.deferral.forget_member(member.member_id)
            self.notify_if_none_awaited(step)
        return True

    def heartbeat_error_code(self, step: Step, member: ClassicMember) -> ErrorCode:
        """Return the error code of a heartbeat response that is sent now: NONE or REBALANCE_IN_PROGRESS.

        While a notification is deferred, a member gets NONE if its next heartbeat is due before the end of the
        deferral.
        """
        if self.state is not PREPARING:
            return NO_ERROR
        deferral = self.deferral
        if deferral is None:
            return ErrorCode.REBALANCE_IN_PROGRESS
        due_ms = None if member.join_request is not None else member.next_request_due_ms(DETECTOR_SETTINGS)
        if due_ms is not None and due_ms <= deferral.until_ms:
            deferral.awaited[member.member_id] = None
            return ErrorCode.NONE
        deferral.awaited.pop(member.member_id, None)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def answer_long_poll(self, step: Step, member: ClassicMember, event: Heartbeat, why: LongPollEnd) -> None:
        """Answer a delayed heartbeat with what a new one would get now; with NONE if its connection has ended."""
        if why is LongPollEnd.DISCONNECTED:
            step.reply(event.request, HeartbeatReply(ErrorCode.NONE))
            return
        step.reply(event.request, HeartbeatReply(self.heartbeat_error_code(step, member)))
        self.notify_if_none_awaited(step)

    def refuse_long_poll(self, step: Step, event: Heartbeat, error: ErrorCode, message: str | None) -> None:
        """Answer a delayed heartbeat with an error."""
        step.reply(event.request, HeartbeatReply(error))

    def defer_notification(self, step: Step) -> None:
        """Defer the notification of a rebalance that a stable group starts, or notify all members now.

        A deferral needs a client that tolerates delayed heartbeats, or a suspected member. To wait for a suspected
        member, nothing is delayed: heartbeats are answered with NONE. Cooperative groups are notified now, and all
        groups if `group.notify.at.once` is "off".
        """
        now_ms = step.now.mono_ms
        self.end_deferral()
        gathers = self.longest_tolerant_interval_ms() or any(
            self.is_suspected(step, member) for member in self.members.values()
        )
        if not gathers or COOPERATIVE in (self.protocol or "") or step.config.notify_at_once == "off":
            self.notify_members(step)
            return
        awaited = dict.fromkeys(
            member.member_id
            for member in self.members.values()
            if member.long_poll is None and member.join_request is None and member.member_id not in self.pending_sync
        )
        self.deferral = DeferredNotification(awaited, now_ms, Timer(Deadline.NOTIFICATION, self.group_id))
        self.schedule_notification(step, self.deferral)
        self.notify_if_none_awaited(step)

    def schedule_notification(self, step: Step, deferral: DeferredNotification) -> None:
        """Set the end of a deferral: when the last awaited member is due, or when suspected members are evicted.

        For suspected members the deferral lasts at most one session timeout, and half the rebalance timeout. Meanwhile
        some members are idle, and nobody reads the partitions of dead ones. Without suspected members, the longest
        known interval and a quarter of the rebalance timeout limit it.
        """
        now_ms = step.now.mono_ms
        awaited = [self.members[member_id] for member_id in deferral.awaited]
        silent = [member for member in awaited if self.is_suspected(step, member)]
        deferral.suspected = dict.fromkeys(member.member_id for member in silent)
        if silent:
            ends_ms = max(member.session.due_ms or now_ms for member in silent)
            longest_ms = max(member.session_timeout_ms for member in silent)
            longest_ms = min(longest_ms, self.rebalance_timeout_ms() // LONGEST_PART)
            deferral.until_ms = min(ends_ms, deferral.began_ms + longest_ms)
            deferral.extended = True
        else:
            last_ms = now_ms + min(self.longest_tolerant_interval_ms(), self.rebalance_timeout_ms() // USUAL_PART)
            dues = [member.next_request_due_ms(DETECTOR_SETTINGS) for member in awaited]
            due_ms = max((last_ms if due_ms is None else due_ms for due_ms in dues), default=now_ms)
            deferral.until_ms = min(due_ms + LATE_MS, last_ms)
            deferral.extended = False
        step.deadlines.set_timer(deferral.timer, deferral.until_ms)

    def on_notification_deadline(self, step: Step, subject: str) -> None:
        """End the deferral at its deadline and notify all members, unless an awaited member has become suspected.

        Then the deadline is moved, so that this member can return or be evicted before.
        """
        deferral = self.deferral
        if deferral is None:
            return
        if not deferral.extended:
            self.schedule_notification(step, deferral)
        if not deferral.extended or deferral.until_ms <= step.now.mono_ms:
            self.notify_members(step)

    def longest_tolerant_interval_ms(self) -> int:
        """Return the longest known heartbeat interval of clients that tolerate delayed heartbeats; 0 if none."""
        return max((member.interval_ms for member in self.members.values() if member.tolerates_long_polls), default=0)

    def notify_if_none_awaited(self, step: Step) -> None:
        """Notify all members if none is awaited any more; set a new deadline if no suspected one is awaited."""
        deferral = self.deferral
        if deferral is None:
            return
        if not deferral.awaited:
            self.notify_members(step)
        elif deferral.extended and not deferral.suspected:
            self.schedule_notification(step, deferral)

    def notify_members(self, step: Step) -> None:
        """Answer all delayed heartbeats with REBALANCE_IN_PROGRESS; other members get it with their next heartbeat.

        After a long deferral, the rebalance timeout starts anew, so that members have enough time to join.
        """
        deferral = self.deferral
        timeout_ms = self.rebalance_timeout_ms()
        if deferral is not None and step.now.mono_ms - deferral.began_ms > timeout_ms // USUAL_PART:
            step.start_timer(self.join_phase, timeout_ms)
        self.end_deferral()
        notified = [member for member in self.members.values() if member.long_poll is not None]
        for member in notified:
            self.end_long_poll(step, member)
        step.count_meter(CoordinatorMeter.HELD_TOLD, len(notified))

    def end_deferral(self) -> None:
        """End the deferral, if there is one, and stop its timer."""
        if self.deferral is not None:
            self.deferral.timer.cancel()
            self.deferral = None

    def release_awaited_member(self, step: Step, member: ClassicMember, error: ErrorCode) -> None:
        """Answer a member's delayed heartbeat with an error and stop awaiting it: it joins, leaves or is replaced."""
        self.cancel_long_poll(step, member, error)
        if self.deferral is not None:
            self.deferral.forget_member(member.member_id)
