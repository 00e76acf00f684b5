"""A member of any protocol as it is heard: its session, its interval, when it is due, and when it is silent.

Members of each protocol are of this kind (`ClassicMember`, `Presence`). What differs between protocols is data of
their rows: a `Pace`, how long a session is, and the interval of members of whom none is known.

- **Interval** (`interval_ms`). Known from what the member was told, in a reply or with its lease; otherwise learnt from
  its heartbeats (`beat`); otherwise the one that is usual in the group (the row's `usual_ms`), if there is one.
- **Due** (`due_ms`). An interval after the last heartbeat, or after the last sign of any kind: `Pace.any_sign`.
- **Silent** (`silent_from_ms`). So late that it may be dead, which its session will show; or without a connection.
  Nobody who waits for an answer is silent. What follows from it is the protocol's (`classic.gathering`,
  `consumer.silence`); in no protocol is a member evicted for it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kohort.groups.effects import Meter
from kohort.groups.events import NO_CONNECTION, ConnectionLost
from kohort.groups.group import Membership
from kohort.groups.step import Context
from kohort.groups.timers import Deadline, Timer

# -- Sessions that began before this owner's term: whom an earlier owner answered last is a member for a session more
#
# A coordinator that was overtaken may answer for a while still, until its proof is too old (`Journal.proof_ms`). A
# member counts its session from what it sent, so one that was heard there in that while owns until a session after it,
# wherever else it was heard before. What is looked at is the end of a session, not each sign of life: it seldom comes.


def goes_on(context: Context, membership: Membership, session: Timer) -> bool:
    """Have a session that is due go on, if an earlier owner may have heard its member later; whether it does.

    Of a member whose connection has ended the grace is counted so from the start (`lost.grace_end_ms`).
    """
    row = context.protocols[type(membership)]
    member = row.member(membership, session.subject)
    if member is None or member.lost:
        return False
    end_ms = context.sessions_from_ms + row.session_ms(context, membership, member)
    if context.now.mono_ms >= end_ms:
        return False
    context.deadlines.set(session, end_ms)
    return True


# -- Members whose connection ended without a leave: evicted before their session ends
#
# A closed connection is a hint of death, not death: the network may have broken it, and the client is back with its
# next heartbeat. So a member has a grace; whatever it says within it, on any connection, and its session is whole
# again. Static members keep their session in any case: to be away for a while is what they are for. Whose connections
# count is the shell's to say (`ConnectionLost`):
#
# - **Clients that keep a lease** (`kohort.io.processes`). They are evicted a lease after the coordinator *received*
#   their last request, and have stopped by then, counting from when they *sent* it.
# - **Members that joined from a process that has ended**, by the word of the kernel that it and the broker run on: at
#   once.
# - **Others, where the operator asked for it.** The grace is a little more than the interval at which the member has
#   been heard. A member that lives on does not know of it: its commits are refused, but it may work on records of
#   others.

LEAST_INTERVAL_MS = 1_000
"""Clients wait up to about so long before they connect again, however short their interval is."""
ADDED_MS = 250
"""What a heartbeat may be late by."""


def on_connection_lost(context: Context, event: ConnectionLost) -> None:
    """New members whose id no reply has reached can't come back and go at once; others have their grace."""
    for group_id, member_id in context.connections.pop(event.connection, {}):
        group = context.find(group_id)
        if group is not None:
            context.protocol(group).connection_lost(context, group.membership, member_id, event)


def grace_end_ms(context: Context, event: ConnectionLost, heard_ms: int | None, interval_ms: int) -> int:
    """When a member's grace ends: its lease runs since it was heard, and time to connect again is left in any case."""
    now_ms = context.now.mono_ms
    if event.lease_ms:
        lease_end_ms = max(now_ms if heard_ms is None else heard_ms, context.sessions_from_ms) + event.lease_ms
        return max(lease_end_ms, now_ms + LEAST_INTERVAL_MS + ADDED_MS)
    return now_ms + max(interval_ms, LEAST_INTERVAL_MS) * 5 // 4 + ADDED_MS


def shorten(context: Context, session: Timer, due_ms: int) -> None:
    """Let a session end then, if it would end later."""
    if session.due_ms is None or due_ms < session.due_ms:
        context.deadlines.set(session, due_ms)


LATE_MS = 100
"""A heartbeat may come so much later than it is due, and nothing is wrong."""


class Pace(NamedTuple):
    """How the members of one protocol are heard. The defaults are for those whose group acts on a silence.

    Attributes:
        any_sign: whatever is heard of a member moves the time when it is due, and so does a released reply. Otherwise
            only its heartbeats do, as their own timer runs on beside its other requests.
        late_percent: of its interval a member may be late by so much before it is silent,
        late_ms: and by so much beside.
        reconnect_ms: after the end of its connection a client takes so long to come on another one.
        forgives_disconnect: its replies are held again after its connection ended while one was.
    """

    any_sign: bool = True
    late_percent: int = 50
    late_ms: int = 500
    reconnect_ms: int = 500
    forgives_disconnect: bool = True


CAREFUL = Pace()
"""How members are heard of whose protocol says nothing else."""


class Holdable(Protocol):
    """A heartbeat of any protocol."""

    @property
    def request(self) -> int:
        """The request that is to be answered."""

    @property
    def hold_ms(self) -> int:
        """How long its client bears to wait, 0: not at all."""


class Pacing:
    """One member as it is heard.

    Attributes:
        session: ends it after silence.
        connection: it was last heard on.
        heard_ms: when it was last heard, or its wait for a reply ended; None before the first time.
        gone_ms: when that connection ended, None if it has not, or the member has been heard since.
        lost: it is gone, and that counts: its session is its grace.
        interval_ms: at which it is heard, as it was told or as its heartbeats show; 0 while that is not known.
        slowest_ms: how long it once took to be heard, of a member that was taken for silent.
        beat_ms: when its last heartbeat came, None at first and after each join. Kept where intervals are learnt.
        held: the heartbeat whose reply is held, None when none is. Only `HeldReplies` sets it.
        hold: ends that, None as long as none was held.
        released_ms: when the reply to its last heartbeat was released, None when that was answered at once.
        times_from_reply: its next heartbeat is due an interval after the last was answered, not after it was sent.
            Taken for granted until a hold has shown it: to wait for a member that comes later makes a rebalance longer.
        never_held: it has borne a hold badly.
    """

    __slots__ = (
        "beat_ms",
        "connection",
        "gone_ms",
        "heard_ms",
        "held",
        "hold",
        "interval_ms",
        "lost",
        "never_held",
        "released_ms",
        "session",
        "slowest_ms",
        "times_from_reply",
    )

    def __init__(self, group_id: str, member_id: str) -> None:
        self.session = Timer(Deadline.SESSION, group_id, member_id)
        self.connection = NO_CONNECTION
        self.heard_ms: int | None = None
        self.gone_ms: int | None = None
        self.lost = False
        self.interval_ms = 0
        self.slowest_ms = 0
        self.beat_ms: int | None = None
        self.held: Holdable | None = None
        self.hold: Timer | None = None
        self.released_ms: int | None = None
        self.times_from_reply = True
        self.never_held = False

    @property
    def awaits_answer(self) -> bool:
        """Whether it waits for a reply and so has nothing to say; members that wait for others say so too."""
        return self.held is not None

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

    def lose(
        self,
        context: Context,
        membership: Membership,
        event: ConnectionLost,
        *,
        is_static: bool,
        process: str,
        interval_ms: int,
    ) -> None:
        """Its connection has ended: what is held on it is answered, to no one, and it has its grace from now on.

        That counts if it is noticed; a static member keeps its session in any case.

        Args:
            context: the moment.
            membership: its group's.
            event: the connection's end.
            is_static: it has an instance id.
            process: that it joined from. If that has ended it has no grace; one that only spoke for it does not count.
            interval_ms: at which it is taken to be heard where its interval is not known.
        """
        self.gone_ms = now_ms = context.now.mono_ms
        if event.noticed and not is_static:
            self.connection = NO_CONNECTION
            self.lost = True
        context.held.on_disconnect(context, membership, self)
        if self.lost:
            is_dead = event.ended != "" and event.ended == process
            end_ms = grace_end_ms(context, event, self.heard_ms, self.interval_ms or interval_ms)
            shorten(context, self.session, now_ms if is_dead else end_ms)

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

    def beat(self, context: Context, told_ms: int) -> None:
        """A heartbeat has come: what it tells of its member's interval, and of how the member bore the last hold.

        Args:
            context: the moment.
            told_ms: the interval that the member was told to keep, 0: none, and its heartbeats must show it. Theirs is
                the longest recent time between two that were answered at once; one hold after the other shows less.
        """
        now_ms, before_ms, released_ms = context.now.mono_ms, self.beat_ms, self.released_ms
        if told_ms:
            self.interval_ms = told_ms
            self.times_from_reply = False
        elif before_ms is not None:
            spacing, interval = now_ms - before_ms, self.interval_ms
            if released_ms is None:
                self.interval_ms = max(spacing, interval - (interval >> 3))
            else:
                if now_ms - released_ms > interval * 3 // 2 + LATE_MS:
                    self.never_held = True
                    context.count(Meter.HELD_LATE)
                if (released_ms - before_ms) * 10 > interval * 3:
                    self.times_from_reply = spacing * 10 > interval * 12
                self.interval_ms = min(interval, spacing)
        self.beat_ms = now_ms
        self.released_ms = None

    def due_ms(self, pace: Pace, usual_ms: int = 0) -> int | None:
        """When it is to be heard next, None when that can't be known; `usual_ms` as in the row."""
        interval = self.interval_ms or usual_ms
        since_ms = self.heard_ms if pace.any_sign else self.beat_ms
        if since_ms is None or not interval:
            return None
        if pace.any_sign or self.released_ms is None:
            return since_ms + interval
        return self.released_ms + interval if self.times_from_reply else max(self.released_ms, since_ms + interval)

    def silent_from_ms(self, pace: Pace, usual_ms: int = 0) -> int | None:
        """When it counts as silent if it is not heard before; None: never, as it waits or its interval is not known.

        One that was taken for silent and was not is given as much time as it took, so that clients with an interval of
        their own settle.
        """
        if self.awaits_answer:
            return None
        if self.gone_ms is not None:
            return self.gone_ms + pace.reconnect_ms
        due_ms = self.due_ms(pace, usual_ms)
        if due_ms is None:
            return None
        interval = self.interval_ms or usual_ms
        longest = max(interval, self.slowest_ms)
        return due_ms + longest - interval + longest * pace.late_percent // 100 + pace.late_ms

    def was_not_silent(self, context: Context) -> None:
        """It is heard, and was taken for silent."""
        if self.heard_ms is not None:
            self.slowest_ms = max(self.slowest_ms, context.now.mono_ms - self.heard_ms)


def silent_from_ms(context: Context, membership: Membership, member: Pacing) -> int | None:
    """As the method, by the row of the member's group."""
    row = context.protocols[type(membership)]
    return member.silent_from_ms(row.pace, row.usual_ms(context, membership))


def is_silent(context: Context, membership: Membership, member: Pacing) -> bool:
    """Whether a member that should have been heard was not, or can't be heard where it was heard last."""
    from_ms = silent_from_ms(context, membership, member)
    return from_ms is not None and from_ms <= context.now.mono_ms
