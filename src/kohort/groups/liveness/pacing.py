"""When a member was heard, on which connection, whether that has ended, and the reply that is held for it.

The same for all protocols: members of each are of this kind (`ClassicMember`, `Presence`). How long a session is, and
what is said when a held reply is released, is the protocol's.
"""

from __future__ import annotations

from kohort.groups.context import Context
from kohort.groups.events import NO_CONNECTION, ConnectionLost
from kohort.groups.liveness.deadlines import Deadline, Timer
from kohort.groups.liveness.lost import grace_end_ms, shorten


class Pacing:
    """One member as it is heard.

    Attributes:
        session: ends it after silence.
        connection: it was last heard on.
        heard_ms: when it was last heard, or its wait for a reply ended; None before the first time.
        gone_ms: when that connection ended, None if it has not, or the member has been heard since.
        lost: it is gone, and that counts: its session is its grace.
        hold: ends the hold of its reply, None as long as none was held.
    """

    __slots__ = ("connection", "gone_ms", "heard_ms", "hold", "lost", "session")

    def __init__(self, group_id: str, member_id: str) -> None:
        self.session = Timer(Deadline.SESSION, group_id, member_id)
        self.connection = NO_CONNECTION
        self.heard_ms: int | None = None
        self.gone_ms: int | None = None
        self.lost = False
        self.hold: Timer | None = None

    @property
    def is_gone(self) -> bool:
        """Whether its connection has ended, and it has not been heard since."""
        return self.gone_ms is not None

    def bind(self, context: Context, connection: int) -> None:
        """It is this connection's end, and no other's, that says something of the member."""
        group_id, member_id = self.session.group_id, self.session.subject
        context.forget_connection(self.connection, group_id, member_id)
        context.remember_connection(connection, group_id, member_id)
        self.connection = connection
        self.gone_ms = None

    def unbind(self, context: Context) -> None:
        """The member is there no more: no connection's end says anything of it."""
        context.forget_connection(self.connection, self.session.group_id, self.session.subject)

    def touch(self, context: Context, session_ms: int) -> None:
        """A sign of life, or the end of a wait: its session starts again, unless its connection has ended."""
        if not self.lost:
            now_ms = context.now.mono_ms
            self.heard_ms = now_ms
            context.deadlines.set(self.session, now_ms + session_ms)

    def alive(self, context: Context, session_ms: int) -> None:
        """It was heard, on whatever connection: its session is whole again."""
        self.lost = False
        self.touch(context, session_ms)

    def lose(self, context: Context, event: ConnectionLost, *, is_static: bool) -> None:
        """Its connection has ended, which counts if it is noticed; a static member keeps its session in any case."""
        self.gone_ms = context.now.mono_ms
        if event.noticed and not is_static:
            self.connection = NO_CONNECTION
            self.lost = True

    def give_grace(self, context: Context, event: ConnectionLost, interval_ms: int, process: str) -> None:
        """It has its grace from now on.

        It has none if the process that it joined from has ended; one that only spoke for it does not count.
        """
        is_dead = event.ended != "" and event.ended == process
        end_ms = grace_end_ms(context, event, self.heard_ms, interval_ms)
        shorten(context, self.session, context.now.mono_ms if is_dead else end_ms)

    def go_on_from(self, before: Pacing) -> None:
        """The same member under another protocol: what is known of its connection."""
        self.connection, self.heard_ms = before.connection, before.heard_ms
        self.gone_ms, self.lost = before.gone_ms, before.lost

    def last_seen(self, context: Context, client_id: str, client_host: str) -> str:
        """For the log: who it is, when it was heard last, and what became of its connection."""
        now_ms = context.now.mono_ms
        heard = "" if self.heard_ms is None else f", heard {now_ms - self.heard_ms} ms ago"
        ended = "stands" if self.gone_ms is None else f"ended {now_ms - self.gone_ms} ms ago"
        return f"client {client_id} at {client_host}{heard}, connection {ended}"

    def hold_reply(self, context: Context, request: int, limit_ms: int) -> None:
        """Keep the reply to this request until something happens, at most so long; the shell may ask for it before."""
        group_id, member_id = self.session.group_id, self.session.subject
        context.held[request] = (group_id, member_id)
        if self.hold is None:
            self.hold = Timer(Deadline.HELD, group_id, member_id)
        context.run(self.hold, limit_ms)

    def unhold(self, context: Context, request: int) -> None:
        """The reply to this request is held no more: it is given now."""
        if self.hold is not None:
            self.hold.cancel()
        context.held.pop(request, None)
