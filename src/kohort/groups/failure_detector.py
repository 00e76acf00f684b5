"""Failure detector: the session, heartbeat interval and next due time of each member, and which members are suspected.

Members of every protocol derive from `MonitoredMember`, and groups from `MonitoredGroup`. Protocols differ only in the
`DetectorSettings`, the session timeout, and the interval to assume if none is known.

- **Interval** (`interval_ms`). Known if the member got one in a reply or with its lease. Otherwise its heartbeats
  show it (`learn_from_heartbeat`), or the group's usual interval applies (`default_interval_ms`).
- **Due** (`next_request_due_ms`). One interval after the last heartbeat, or with `any_sign` after the last of any
  kind.
- **Suspected** (`suspected_from_ms`). So late that it may be dead, or without a connection. A member that waits
  for a response is never suspected. The protocol decides what follows (`classic.deferred_notification`,
  `consumer.suspicion`). No protocol evicts a member for silence alone; the session timeout does that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Protocol

from kohort.groups.effects import CoordinatorMeter
from kohort.groups.events import NO_CONNECTION, ConnectionLost
from kohort.groups.step import Step
from kohort.groups.timers import Deadline, Timer

# -- Sessions that began before this owner's term
#
# A coordinator that was overtaken may answer until its proof of ownership is too old (`Journal.ownership_proof_ms`).
# A member counts its session from its own requests. If the earlier owner heard a member in that time, the member owns
# its partitions for a whole session after it. The check runs when a session ends, not at each sign of life, because
# sessions seldom end.
#
# -- Eviction of members whose connection ended without a leave
#
# A closed connection may have other causes than death. The network may have broken it, and the client returns with its
# next heartbeat. So a member gets a grace period. Any request within it, on any connection, restores the session.
# Static members keep their session in any case, because they may be absent for a while. The caller decides which
# connections count (`ConnectionLost`):
#
# - **Clients that keep a lease** (`kohort.io.processes`). They are evicted one lease after the coordinator *received*
#   their last request. They have stopped by then: they count from when they *sent* it.
# - **Members whose process has ended**, by the kernel's report on the broker's machine. They are evicted immediately.
# - **Other members, if the operator enabled it.** The grace is a little more than the member's heartbeat interval. A
#   member that is still alive does not know of its eviction. Its commits are refused, but it may go on processing
#   records that belong to others now.

LEAST_INTERVAL_MS = 1_000
"""Clients wait up to about this long before they reconnect, however short their interval is."""
ADDED_MS = 250
"""The tolerated delay of a heartbeat."""


def grace_end_ms(step: Step, event: ConnectionLost, heard_ms: int | None, interval_ms: int) -> int:
    """Return when a member whose connection has ended is evicted, unless it returns before.

    That is one lease after its last sign of life, but never too soon to reconnect. Without a lease, it is a little more
    than a heartbeat interval from now.
    """
    now_ms = step.now.mono_ms
    if event.lease_ms:
        lease_end_ms = max(now_ms if heard_ms is None else heard_ms, step.sessions_from_ms) + event.lease_ms
        return max(lease_end_ms, now_ms + LEAST_INTERVAL_MS + ADDED_MS)
    return now_ms + max(interval_ms, LEAST_INTERVAL_MS) * 5 // 4 + ADDED_MS


def shorten_session(step: Step, session: Timer, due_ms: int) -> None:
    """Let a member's session end at `next_request_due_ms`, unless it ends earlier."""
    if session.due_ms is None or due_ms < session.due_ms:
        step.deadlines.set_timer(session, due_ms)


LATE_MS = 100
"""A heartbeat may be this late without being suspicious."""


class DetectorSettings(NamedTuple):
    """The failure detector's parameters for one protocol. The defaults suit groups that act on a suspicion.

    Attributes:
        any_sign: whether every request of a member, and every released response, moves the time when it is due.
            Otherwise only heartbeats do, for clients whose heartbeat timer runs independently of other requests.
        late_percent: the tolerated delay before a member is silent, in percent of its interval.
        late_ms: the tolerated delay in addition to `late_percent`.
        reconnect_ms: the time that a client needs to reconnect after its connection ended.
        forgives_disconnect: responses are delayed again although a connection ended during an earlier delay.
    """

    any_sign: bool = True
    late_percent: int = 50
    late_ms: int = 500
    reconnect_ms: int = 500
    forgives_disconnect: bool = True


CAREFUL = DetectorSettings()
"""The parameters of protocols that set none of their own."""


class DelayableHeartbeat(Protocol):
    """A heartbeat request whose response the coordinator can delay, whatever the group's protocol."""

    @property
    def request(self) -> int:
        """The id of the heartbeat request to answer."""

    @property
    def delay_ms(self) -> int:
        """How long the client tolerates a delayed response, in ms; 0: not at all."""


class MonitoredMember:
    """The failure detector's state of one member.

    Attributes:
        session: the timer that evicts the member after silence.
        connection: the connection on which it was last heard.
        heard_ms: when it was last heard, or its wait for a response ended; None before the first time.
        gone_ms: when that connection ended; None if it has not, or the member has been heard since.
        lost: the connection ended and the end counts: the session timer runs to the end of the grace period.
        interval_ms: its heartbeat interval, as told to it or as its heartbeats show; 0 while unknown.
        slowest_ms: the longest silence of a member that was suspected by mistake.
        beat_ms: when its last heartbeat came; None at first and after each join. Kept if intervals are learnt.
        long_poll: the heartbeat whose response is delayed, else None. Only `long_polling` sets it.
        long_poll_timer: the timer that ends the delay; None before the first one.
        released_ms: when the response to its last heartbeat was released; None if it was sent immediately.
        times_from_reply: the client counts its interval from the last response, not from its last request. Assumed
            until a delay shows it, because waiting for a member that comes later makes a rebalance longer.
        no_long_polls: the client did not tolerate a delay and gets no more of them.
    """

    __slots__ = (
        "beat_ms",
        "connection",
        "gone_ms",
        "heard_ms",
        "interval_ms",
        "long_poll",
        "long_poll_timer",
        "lost",
        "no_long_polls",
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
        self.long_poll: DelayableHeartbeat | None = None
        self.long_poll_timer: Timer | None = None
        self.released_ms: int | None = None
        self.times_from_reply = True
        self.no_long_polls = False

    @property
    def awaits_answer(self) -> bool:
        """Whether the member waits for a response, so that no request is due from it.

        Waiting for other members counts too.
        """
        return self.long_poll is not None

    @property
    def is_gone(self) -> bool:
        """Whether the member's connection has ended and no request came on another one since."""
        return self.gone_ms is not None

    def bind_connection(self, step: Step, connection: int) -> None:
        """Bind the member to a connection: from now on only the end of this one matters."""
        group_id, member_id = self.session.group_id, self.session.subject
        step.forget_connection(self.connection, group_id, member_id)
        step.remember_connection(connection, group_id, member_id)
        self.connection = connection
        self.gone_ms = None

    def unbind_connection(self, step: Step) -> None:
        """Unbind a removed member from its connection, so that the connection's end changes nothing."""
        step.forget_connection(self.connection, self.session.group_id, self.session.subject)

    def restart_session_if_connected(self, step: Step, session_ms: int) -> None:
        """Restart the session after a request or the end of a wait, unless the connection has ended."""
        if not self.lost:
            now_ms = step.now.mono_ms
            self.heard_ms = now_ms
            step.deadlines.set_timer(self.session, now_ms + session_ms)

    def end_grace(self, step: Step, session_ms: int) -> None:
        """End the member's grace period, if any, and restart its session, after a request on any connection."""
        self.lost = False
        self.restart_session_if_connected(step, session_ms)

    def take_over_connection(self, before: MonitoredMember) -> None:
        """Take over connection and failure detection state from the same member under another protocol."""
        self.connection, self.heard_ms = before.connection, before.heard_ms
        self.gone_ms, self.lost = before.gone_ms, before.lost

    def last_seen_text(self, step: Step, client_id: str, client_host: str) -> str:
        """Describe for the log who a member is, when it was last heard, and whether its connection ended."""
        now_ms = step.now.mono_ms
        heard = "" if self.heard_ms is None else f", heard {now_ms - self.heard_ms} ms ago"
        ended = "stands" if self.gone_ms is None else f"ended {now_ms - self.gone_ms} ms ago"
        return f"client {client_id} at {client_host}{heard}, connection {ended}"

    def learn_from_heartbeat(self, step: Step, interval_ms: int) -> None:
        """Learn from a heartbeat: the member's interval, and whether the client tolerated the last delay.

        Args:
            step: the step.
            interval_ms: the interval sent to the member; 0: none, so its heartbeats must show it. The learnt interval
                is the longest recent time between two heartbeats that were answered immediately. Consecutive delays
                show a shorter one.
        """
        now_ms, before_ms, released_ms = step.now.mono_ms, self.beat_ms, self.released_ms
        if interval_ms:
            self.interval_ms = interval_ms
            self.times_from_reply = False
        elif before_ms is not None:
            spacing, interval = now_ms - before_ms, self.interval_ms
            if released_ms is None:
                self.interval_ms = max(spacing, interval - (interval >> 3))
            else:
                if now_ms - released_ms > interval * 3 // 2 + LATE_MS:
                    self.no_long_polls = True
                    step.count_meter(CoordinatorMeter.HELD_LATE)
                if (released_ms - before_ms) * 10 > interval * 3:
                    self.times_from_reply = spacing * 10 > interval * 12
                self.interval_ms = min(interval, spacing)
        self.beat_ms = now_ms
        self.released_ms = None

    def next_request_due_ms(self, settings: DetectorSettings, usual_ms: int = 0) -> int | None:
        """Return when the member's next request is due, by the monotonic clock; None if that is unknown.

        `usual_ms` is the interval to assume if the member's own is unknown; 0: none.
        """
        interval = self.interval_ms or usual_ms
        since_ms = self.heard_ms if settings.any_sign else self.beat_ms
        if since_ms is None or not interval:
            return None
        if settings.any_sign or self.released_ms is None:
            return since_ms + interval
        return self.released_ms + interval if self.times_from_reply else max(self.released_ms, since_ms + interval)

    def suspected_from_ms(self, settings: DetectorSettings, usual_ms: int = 0) -> int | None:
        """Return when the member is suspected unless it sends a request before.

        A member that was suspected by mistake gets as much time as it took then. So clients with an interval of their
        own are not suspected again and again.

        Returns:
            None if the member is never silent: it waits for a response, or its interval is unknown.
        """
        if self.awaits_answer:
            return None
        if self.gone_ms is not None:
            return self.gone_ms + settings.reconnect_ms
        due_ms = self.next_request_due_ms(settings, usual_ms)
        if due_ms is None:
            return None
        interval = self.interval_ms or usual_ms
        longest = max(interval, self.slowest_ms)
        return due_ms + longest - interval + longest * settings.late_percent // 100 + settings.late_ms

    def clear_suspicion(self, step: Step) -> None:
        """Record that a suspected member was heard again, and how long it was silent."""
        if self.heard_ms is not None:
            self.slowest_ms = max(self.slowest_ms, step.now.mono_ms - self.heard_ms)


class MonitoredGroup(ABC):
    """A group whose members the failure detector watches.

    Attributes:
        detector: the failure detector's parameters, and whether heartbeats are delayed again after a disconnect.
    """

    __slots__ = ()

    detector: ClassVar[DetectorSettings] = CAREFUL

    @abstractmethod
    def find_member(self, member_id: str) -> MonitoredMember | None:
        """Return a member; None if the id is unknown."""

    def member_session_ms(self, step: Step, member: Any) -> int:
        """Return a member's session timeout."""
        return 0

    def default_interval_ms(self, step: Step) -> int:
        """Return the heartbeat interval to assume for a member without a known one; 0: none."""
        return 0

    def end_long_poll_at_disconnect(self, step: Step, member: MonitoredMember) -> None:
        """Answer a delayed heartbeat because its connection has ended; by default there is none."""
        return

    def suspected_from_ms(self, step: Step, member: MonitoredMember) -> int | None:
        """Return from when on a member is suspected, if it sends nothing, by its protocol's detector settings."""
        return member.suspected_from_ms(self.detector, self.default_interval_ms(step))

    def is_suspected(self, step: Step, member: MonitoredMember) -> bool:
        """Return whether a member is silent now: it is overdue, or its connection has ended."""
        from_ms = self.suspected_from_ms(step, member)
        return from_ms is not None and from_ms <= step.now.mono_ms

    def handle_connection_end(
        self,
        step: Step,
        member: MonitoredMember,
        event: ConnectionLost,
        *,
        is_static: bool,
        process: str,
        interval_ms: int,
    ) -> None:
        """Handle the end of a member's connection: answer its delayed heartbeat, and start its grace period.

        The grace period starts only if `event.noticed` is set. A static member keeps its session in any case.

        Args:
            step: the step.
            member: the member.
            event: the connection's end.
            is_static: the member has an instance id.
            process: the process that it joined from. If that process has ended, there is no grace period; the end of a
                process that only spoke for the member changes nothing.
            interval_ms: the interval to assume if the member's own is unknown.
        """
        member.gone_ms = now_ms = step.now.mono_ms
        if event.noticed and not is_static:
            member.connection = NO_CONNECTION
            member.lost = True
        self.end_long_poll_at_disconnect(step, member)
        if member.lost:
            is_dead = event.ended != "" and event.ended == process
            end_ms = grace_end_ms(step, event, member.heard_ms, member.interval_ms or interval_ms)
            shorten_session(step, member.session, now_ms if is_dead else end_ms)

    def extend_session(self, step: Step, session: Timer) -> bool:
        """Extend an expired session if an earlier owner of the shard may have heard the member later than this one.

        The grace period of a member without a connection includes this time from the start (`grace_end_ms`).

        Returns:
            Whether the session was extended.
        """
        member = self.find_member(session.subject)
        if member is None or member.lost:
            return False
        end_ms = step.sessions_from_ms + self.member_session_ms(step, member)
        if step.now.mono_ms >= end_ms:
            return False
        step.deadlines.set_timer(session, end_ms)
        return True
