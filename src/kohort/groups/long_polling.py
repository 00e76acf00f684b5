"""Long polling: heartbeat responses that the coordinator delays until it has news for the member.

A member learns of a change from the response to a heartbeat. While there is no news, the response may be held and then
sent the moment something changes. The protocol knows whether there is news; `client_quirks` lists the clients that
tolerate a delay.

| the response is sent when | content, by the protocol's row | session timer |
|---|---|---|
| there is news for the member (`release`) | `answer_held`: what a heartbeat would return now | restarts |
| another request follows on the connection, which keeps the order (`on_asked`) | the same | restarts |
| the time limit passes (`on_end`) | the same | restarts |
| the connection closes (`on_disconnect`) | the same, but nobody receives it | restarts; the grace period begins |
| the member joins, leaves or is replaced (`refuse`) | `refuse_held`: an error | - |
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kohort.errors import ErrorCode
from kohort.groups.effects import Meter
from kohort.groups.timers import Deadline, Timer

if TYPE_CHECKING:
    from kohort.groups.context import Context
    from kohort.groups.failure_detector import Holdable, MonitoredMember
    from kohort.groups.group import GroupMembership

SESSION_PARTS = 3
"""A response is held for at most 1/3 of the session timeout, so that there is time for another heartbeat."""
SHORTEST_MS = 100
"""Shorter delays gain less than a timer costs."""


class Release(enum.Enum):
    """The reason why a held response is sent."""

    NOW = enum.auto()
    DISCONNECTED = enum.auto()


class HeldReplies:
    """The heartbeat requests of one shard that have no response yet, by request.

    A member has at most one, because its next request releases the one before. The number is therefore bounded by the
    number of members, which `group.max.size` and its counterparts limit. Each member has one timer for it.
    """

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: dict[int, MonitoredMember] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[tuple[int, MonitoredMember]]:
        return iter(self._members.items())

    def keep(
        self, context: Context, membership: GroupMembership, member: MonitoredMember, event: Holdable, limit_ms: int
    ) -> bool:
        """Hold the response to a heartbeat for at most `limit_ms`.

        The client's own limit and a third of the session timeout apply as well.

        Returns:
            False if the response must be sent now: the limit is below `SHORTEST_MS`, or the member gets no more delays.
        """
        row = context.protocols[type(membership)]
        limit = min(event.hold_ms, limit_ms, row.session_ms(context, membership, member) // SESSION_PARTS)
        if limit < SHORTEST_MS or member.never_held:
            return False
        member.held = event
        self._members[event.request] = member
        if member.hold is None:
            member.hold = Timer(Deadline.HELD, member.session.group_id, member.session.subject)
        context.run(member.hold, limit)
        return True

    def release(
        self, context: Context, membership: GroupMembership, member: MonitoredMember, why: Release = Release.NOW
    ) -> None:
        """Send a member's held response, if there is one, and restart its session timer."""
        event = self._take(context, member)
        if event is not None:
            row = context.protocols[type(membership)]
            member.touch(context, row.session_ms(context, membership, member))
            row.answer_held(context, membership, member, event, why)

    def refuse(
        self,
        context: Context,
        membership: GroupMembership,
        member: MonitoredMember,
        error: ErrorCode,
        message: str | None = None,
    ) -> None:
        """Send a member's held response, if there is one, as an error: the member was removed or replaced."""
        event = self._take(context, member)
        if event is not None:
            context.protocols[type(membership)].refuse_held(context, event, error, message)

    def on_asked(self, context: Context, requests: tuple[int, ...]) -> None:
        """Send these responses because other requests follow on their connections; some may have been sent already."""
        for request in requests:
            member = self._members.get(request)
            group = None if member is None else context.ledger.groups.get(member.session.group_id)
            if member is not None and group is not None:
                self.release(context, group.membership, member)

    def on_end(self, context: Context, membership: GroupMembership, member_id: str) -> None:
        """Send a member's held response because its time limit has passed."""
        member = context.protocols[type(membership)].member(membership, member_id)
        if member is not None:
            self.release(context, membership, member)

    def on_disconnect(self, context: Context, membership: GroupMembership, member: MonitoredMember) -> None:
        """Release a member's held response because its connection ended; the client may not tolerate delays."""
        if member.held is None:
            return
        if not context.protocols[type(membership)].detector.forgives_disconnect:
            member.never_held = True
        context.count(Meter.HELD_DISCONNECTS)
        self.release(context, membership, member, Release.DISCONNECTED)
        member.released_ms = None  # the time of its next request does not show its interval

    def _take(self, context: Context, member: MonitoredMember) -> Holdable | None:
        event = member.held
        if event is not None:
            member.held = None
            member.released_ms = context.now.mono_ms
            if member.hold is not None:
                member.hold.cancel()
            self._members.pop(event.request, None)
        return event
