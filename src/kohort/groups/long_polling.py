"""Long polling: heartbeat responses that the coordinator delays until it has news for the member.

A member learns of a change from the response to a heartbeat. While there is no news, the response may be held and then
sent the moment something changes. The protocol knows whether there is news; `client_quirks` lists the clients that
tolerate a delay.

| the response is sent when | content, by the protocol | session timer |
|---|---|---|
| there is news for the member (`end_long_poll`) | `answer_long_poll`: what a heartbeat would return now | restarts |
| another request follows on the connection, which keeps the order (`on_long_poll_end`) | the same | restarts |
| the time limit passes (`on_long_poll_end`) | the same | restarts |
| the connection closes | the same, but nobody receives it | restarts; the grace period begins |
| the member joins, leaves or is replaced (`cancel_long_poll`) | `refuse_long_poll`: an error | - |
"""

from __future__ import annotations

import enum
from typing import Any

from kohort.errors import ErrorCode
from kohort.groups.effects import CoordinatorMeter
from kohort.groups.failure_detector import DelayableHeartbeat, MonitoredGroup, MonitoredMember
from kohort.groups.step import Step
from kohort.groups.timers import Deadline, Timer

SESSION_PARTS = 3
"""A response is held for at most 1/3 of the session timeout, so that there is time for another heartbeat."""
SHORTEST_MS = 100
"""Shorter delays gain less than a timer costs."""


class LongPollEnd(enum.Enum):
    """Why a delayed heartbeat response is sent."""

    NOW = enum.auto()
    DISCONNECTED = enum.auto()


class LongPollingGroup(MonitoredGroup):
    """A group that may delay the responses to its members' heartbeats.

    A member has at most one delayed heartbeat, because its next request releases the one before. Their number is
    therefore bounded by the number of members, which `group.max.size` and its counterparts limit. Each member has one
    timer for it, by which `Step.long_polls` finds the member.
    """

    __slots__ = ()

    def answer_long_poll(self, step: Step, member: Any, event: Any, why: LongPollEnd) -> None:
        """Answer a delayed heartbeat as it would be answered now."""
        return

    def refuse_long_poll(self, step: Step, event: Any, error: ErrorCode, message: str | None) -> None:
        """Answer a delayed heartbeat with an error, and a message if the protocol has one."""
        return

    def begin_long_poll(self, step: Step, member: MonitoredMember, event: DelayableHeartbeat, limit_ms: int) -> bool:
        """Delay the response to a heartbeat for at most `limit_ms`.

        The client's own limit and a third of the session timeout apply as well.

        Returns:
            False if the response must be sent now: the limit is below `SHORTEST_MS`, or the member gets no more delays.
        """
        limit = min(event.delay_ms, limit_ms, self.member_session_ms(step, member) // SESSION_PARTS)
        if limit < SHORTEST_MS or member.no_long_polls:
            return False
        member.long_poll = event
        timer = member.long_poll_timer
        if timer is None:
            timer = member.long_poll_timer = Timer(Deadline.LONG_POLL, member.session.group_id, member.session.subject)
        step.long_polls[event.request] = timer
        step.start_timer(timer, limit)
        return True

    def end_long_poll(self, step: Step, member: MonitoredMember, why: LongPollEnd = LongPollEnd.NOW) -> None:
        """Send a member's delayed response, if there is one, and restart its session timer."""
        event = _take(step, member)
        if event is not None:
            member.restart_session_if_connected(step, self.member_session_ms(step, member))
            self.answer_long_poll(step, member, event, why)

    def cancel_long_poll(
        self, step: Step, member: MonitoredMember, error: ErrorCode, message: str | None = None
    ) -> None:
        """Send a member's delayed response, if there is one, as an error: the member was removed or replaced."""
        event = _take(step, member)
        if event is not None:
            self.refuse_long_poll(step, event, error, message)

    def on_long_poll_end(self, step: Step, member_id: str) -> None:
        """Send a delayed response: its time limit has passed, or another request follows on the connection."""
        member = self.find_member(member_id)
        if member is not None:
            self.end_long_poll(step, member)

    def end_long_poll_at_disconnect(self, step: Step, member: MonitoredMember) -> None:
        """Send a member's delayed response because its connection ended; the client may not tolerate delays."""
        if member.long_poll is None:
            return
        if not self.detector.forgives_disconnect:
            member.no_long_polls = True
        step.count_meter(CoordinatorMeter.HELD_DISCONNECTS)
        self.end_long_poll(step, member, LongPollEnd.DISCONNECTED)
        member.released_ms = None  # the time of its next request does not show its interval


def _take(step: Step, member: MonitoredMember) -> DelayableHeartbeat | None:
    event = member.long_poll
    if event is not None:
        member.long_poll = None
        member.released_ms = step.now.mono_ms
        if member.long_poll_timer is not None:
            member.long_poll_timer.cancel()
        step.long_polls.pop(event.request, None)
    return event
