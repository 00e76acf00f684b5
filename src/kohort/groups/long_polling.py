"""The held replies of a shard: for whom, until when, what releases each, and with what answer.

A member learns of a change by the reply to a heartbeat. While there is nothing to say that reply may be held, so that
it can be given at once. Whether there is nothing to say the protocol knows, and which clients bear it `patience`.

| released by | answer, by the protocol's row | its session |
|---|---|---|
| news for the member (`release`) | `answer_held`: what a heartbeat would be told now | starts again |
| another request on its connection (`on_asked`): answers are given in order | the same | starts again |
| the end of its time (`on_end`) | the same | starts again |
| the end of its connection (`on_disconnect`) | the same, to no one | starts again, then its grace counts |
| the member joins, goes or is replaced (`refuse`) | `refuse_held`: an error | - |
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kohort.errors import ErrorCode
from kohort.groups.effects import Meter
from kohort.groups.timers import Deadline, Timer

if TYPE_CHECKING:
    from kohort.groups.failure_detector import Holdable, Pacing
    from kohort.groups.group import Membership
    from kohort.groups.step import Context

SESSION_PARTS = 3
"""A reply is held for one part of the session at most: a client that was held in vain has time for another request."""
SHORTEST_MS = 100
"""To hold a reply for less is not worth a timer."""


class Release(enum.Enum):
    """Why a held reply is answered."""

    NOW = enum.auto()
    DISCONNECTED = enum.auto()


class HeldReplies:
    """All held replies, by their requests.

    A member has one at most, as it has one heartbeat under way: what releases the first one is that another comes. So
    there are no more than members, which `group.max.size` and its kin bound, and each has the one timer of its member.
    """

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: dict[int, Pacing] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[tuple[int, Pacing]]:
        return iter(self._members.items())

    def keep(self, context: Context, membership: Membership, member: Pacing, event: Holdable, limit_ms: int) -> bool:
        """Hold the reply to a heartbeat, at most so long; False when that is too short or the member bears none.

        It is held no longer than the client bears either, and for a part of the session.
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

    def release(self, context: Context, membership: Membership, member: Pacing, why: Release = Release.NOW) -> None:
        """Answer a member's held heartbeat, if there is one, as it would be answered now; its session starts again."""
        event = self._take(context, member)
        if event is not None:
            row = context.protocols[type(membership)]
            member.touch(context, row.session_ms(context, membership, member))
            row.answer_held(context, membership, member, event, why)

    def refuse(
        self, context: Context, membership: Membership, member: Pacing, error: ErrorCode, message: str | None = None
    ) -> None:
        """Answer a member's held heartbeat, if there is one, with an error: it is not, or no more, who asked."""
        event = self._take(context, member)
        if event is not None:
            context.protocols[type(membership)].refuse_held(context, event, error, message)

    def on_asked(self, context: Context, requests: tuple[int, ...]) -> None:
        """The shell needs these answers: other requests came behind them. Some may have left already."""
        for request in requests:
            member = self._members.get(request)
            group = None if member is None else context.ledger.groups.get(member.session.group_id)
            if member is not None and group is not None:
                self.release(context, group.membership, member)

    def on_end(self, context: Context, membership: Membership, member_id: str) -> None:
        """A member was held long enough."""
        member = context.protocols[type(membership)].member(membership, member_id)
        if member is not None:
            self.release(context, membership, member)

    def on_disconnect(self, context: Context, membership: Membership, member: Pacing) -> None:
        """The connection of a member ended; where a reply was held on it, perhaps its client would not wait."""
        if member.held is None:
            return
        if not context.protocols[type(membership)].pace.forgives_disconnect:
            member.never_held = True
        context.count(Meter.HELD_DISCONNECTS)
        self.release(context, membership, member, Release.DISCONNECTED)
        member.released_ms = None  # when it comes again says nothing of its interval

    def _take(self, context: Context, member: Pacing) -> Holdable | None:
        event = member.held
        if event is not None:
            member.held = None
            member.released_ms = context.now.mono_ms
            if member.hold is not None:
                member.hold.cancel()
            self._members.pop(event.request, None)
        return event
