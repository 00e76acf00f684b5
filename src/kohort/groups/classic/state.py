"""A group under the classic protocol: its members, with the requests they wait on, and its rounds.

All of it is soft: lost with the process and built again from the group's record.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE, read_topics
from kohort.groups.events import NO_CONNECTION, Client
from kohort.groups.liveness.deadlines import Deadline, Timer
from kohort.groups.outcome import GroupState
from kohort.groups.records import ClassicProtocol, SavedMember

MEMBER_RECORD_OVERHEAD = 40


class ClassicMember:
    """A member of a classic group, with the requests it waits on.

    Attributes:
        join_request: the JoinGroup it waits on, None when it waits on none.
        sync_request: the SyncGroup it waits on.
        is_new: it has not been through a completed join phase.
        told: a reply has named its id, so that its client can come back with it.
        size: its share of the group's record in bytes, as last counted.
        connection: it was last heard on.
        is_gone: that connection has ended, and it has not been heard since.
        lost: it is gone, and that counts.
        heard_ms: when it was last heard, or its wait for a reply ended; None before the first time.
        beat_ms: when its last heartbeat came, None at first and after each join.
        interval_ms: the longest recent time between two heartbeats that were answered at once, 0 while it is not known.
        held: the heartbeat whose reply is held, None when none is.
        hold: ends it, None as long as none was held.
        released_ms: when the reply to its last heartbeat was released, None when that was answered at once.
        due_ms: when its next heartbeat is due, None when that is not known.
        times_from_reply: its next heartbeat is due an interval after the last was answered, not after it was sent. Taken
            for granted until a hold has shown it: to wait for a member that comes later makes a rebalance longer.
        bears_hold: its client bears to be held.
        never_held: it has borne a hold badly.
        stopped_ms: when it gave up its work to join, None while it has an assignment.
    """

    __slots__ = (
        "assignment",
        "bears_hold",
        "beat_ms",
        "client",
        "connection",
        "due_ms",
        "heard_ms",
        "held",
        "hold",
        "instance_id",
        "interval_ms",
        "is_gone",
        "is_new",
        "join_request",
        "lost",
        "member_id",
        "never_held",
        "protocols",
        "rebalance_timeout_ms",
        "released_ms",
        "session",
        "session_timeout_ms",
        "size",
        "stopped_ms",
        "sync_request",
        "times_from_reply",
        "told",
    )

    def __init__(self, group_id: str, member_id: str, instance_id: str | None, client: Client) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client = client
        self.session_timeout_ms = 0
        self.rebalance_timeout_ms = 0
        self.protocols: tuple[ClassicProtocol, ...] = ()
        self.assignment = b""
        self.session = Timer(Deadline.SESSION, group_id, member_id)
        self.join_request: int | None = None
        self.sync_request: int | None = None
        self.is_new = False
        self.told = True
        self.connection = NO_CONNECTION
        self.size = 0
        self.is_gone = False
        self.lost = False
        self.heard_ms: int | None = None
        self.beat_ms: int | None = None
        self.interval_ms = 0
        self.held: int | None = None
        self.hold: Timer | None = None
        self.released_ms: int | None = None
        self.due_ms: int | None = None
        self.times_from_reply = True
        self.bears_hold = False
        self.never_held = False
        self.stopped_ms: int | None = None

    @classmethod
    def from_saved(cls, group_id: str, saved: SavedMember, protocol: str) -> ClassicMember:
        """A member as the group's record has it; of its protocols only the chosen one is known."""
        client = Client(saved.client_id, saved.client_host)
        member = cls(group_id, saved.member_id, saved.instance_id, client)
        timeout = saved.rebalance_timeout_ms
        member.rebalance_timeout_ms = saved.session_timeout_ms if timeout < 0 else timeout
        member.session_timeout_ms = saved.session_timeout_ms
        member.protocols = (ClassicProtocol(protocol, saved.subscription),)
        member.assignment = saved.assignment
        return member

    def metadata(self, protocol: str | None) -> bytes:
        """Its bytes for a protocol it supports; empty for any other."""
        for offered in self.protocols:
            if offered.name == protocol:
                return offered.metadata
        return b""

    def record_bytes(self) -> int:
        """What it takes in the group's record at most, in bytes, with the assignment it has now."""
        metadata = max((len(protocol.metadata) for protocol in self.protocols), default=0)
        texts = len(self.member_id) + len(self.instance_id or "") + len(self.client.id) + len(self.client.host)
        return MEMBER_RECORD_OVERHEAD + metadata + texts + len(self.assignment)

    def saved(self, protocol: str | None) -> SavedMember:
        """As it stands in the group's record."""
        return SavedMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client.id,
            client_host=self.client.host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=self.assignment,
        )


@dataclass(slots=True)
class PendingMember:
    """A member id that was given out (KIP-394) and has not come back."""

    timer: Timer
    connection: int


@dataclass(slots=True)
class Gathering:
    """A rebalance of which no one is told yet.

    Attributes:
        awaited: members that work on and whose next heartbeat is due in time.
        began_ms: when the rebalance began.
        timer: ends it.
        until_ms: when all are told at the latest.
        silent: those awaited that were not heard when they should have been.
        spares: `until_ms` is put off for the silent.
    """

    awaited: dict[str, None]
    began_ms: int
    timer: Timer
    until_ms: int = 0
    silent: dict[str, None] = field(default_factory=dict)
    spares: bool = False


class ClassicGroup:
    """The soft state of a group under the classic protocol.

    Attributes:
        previous_state: before the current one; Empty tells an initial rebalance.
        members: by member id, in the order they came.
        static_ids: instance id to member id; None, of dynamic members, is never in it, and may be looked up.
        pending: member ids given out and awaited.
        votes: protocol name to the number of members that support it.
        awaiting_join: how many members wait on a JoinGroup.
        pending_sync: members of this generation that have not sent SyncGroup.
        subscribed: topics of all members; None when they can't be known.
        resumed_from: after a restart in mid-round, the generation whose members are still to be led on; -1: none.
        topics_hash: of the subscribed topics when the leader last assigned them; None: not known.
        leader_unaware: whether the leader has not assigned yet, and so may miss changes of topics.
        owes_look: a static member is back that may read other topics, of which partitions may be nobody's.
        left_out: a generation, the image's version then, and whether its assignment leaves partitions to nobody.
        refused_generation: its assignment outgrew the record limit, so that its members are refused; -1: none.
        delay_ms, remaining_ms: of the initial rebalance: this step's and what may still be added.
        newcomer: a member came since the initial rebalance's delay was set.
        size: what the group's record takes at most, in bytes.
        began_ms: when the rebalance under way began, None when there is none.
        gathering: while members are not told yet of the rebalance under way.
    """

    def __init__(self, group_id: str) -> None:
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.EMPTY
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_ids: dict[str | None, str] = {}
        self.pending: dict[str, PendingMember] = {}
        self.votes: dict[str, int] = {}
        self.awaiting_join = 0
        self.pending_sync: dict[str, None] = {}
        self.subscribed: frozenset[str] | None = None
        self.resumed_from = -1
        self.topics_hash: int | None = None
        self.leader_unaware = False
        self.owes_look = False
        self.left_out: tuple[int, int, bool] | None = None
        self.refused_generation = -1
        self.join_phase = Timer(Deadline.JOIN_PHASE, group_id)
        self.sync_phase = Timer(Deadline.SYNC_PHASE, group_id)
        self.delay_ms = 0
        self.remaining_ms = 0
        self.newcomer = False
        self.size = 0
        self.began_ms: int | None = None
        self.gathering: Gathering | None = None

    def is_leader(self, member_id: str) -> bool:
        """Whether this member leads."""
        return self.leader == member_id

    def all_joined(self) -> bool:
        """Whether the join phase waits for no one."""
        return self.awaiting_join == len(self.members) and not self.pending

    def rebalance_timeout_ms(self) -> int:
        """The longest that any member asked for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def count(self, member: ClassicMember, sign: int) -> None:
        """Add (1) or take away (-1) a member's votes and size; always in pairs around a change of it."""
        for name in dict.fromkeys([protocol.name for protocol in member.protocols]):  # a client may name one twice
            self.votes[name] = self.votes.get(name, 0) + sign
        if sign > 0:
            member.size = member.record_bytes()
        self.size += sign * member.size

    def supports(self, protocol_type: str, protocols: tuple[ClassicProtocol, ...]) -> bool:
        """Whether a member with these protocols fits in: the same type and one protocol that all support."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        everyone = len(self.members)
        return any(self.votes.get(protocol.name, 0) == everyone for protocol in protocols)

    def select_protocol(self) -> str | None:
        """The protocol with the most votes among those that all support; each member votes for its first such."""
        everyone = len(self.members)
        candidates = {name for name, votes in self.votes.items() if votes == everyone}
        tally: dict[str, int] = {}
        for member in self.members.values():
            for protocol in member.protocols:
                if protocol.name in candidates:
                    tally[protocol.name] = tally.get(protocol.name, 0) + 1
                    break
        return max(tally, key=lambda name: tally[name]) if tally else None

    def read_subscriptions(self) -> frozenset[str] | None:
        """The topics that members are subscribed to; None for other protocol types and unreadable metadata."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        found: set[str] = set()
        for member in self.members.values():
            topics = read_topics(member.metadata(self.protocol))
            if topics is None:
                return None
            found.update(topics)
        return frozenset(found)

    def is_subscribed(self, topic: str) -> bool:
        """Whether members read this topic; an unreadable subscription counts as all topics."""
        if self.subscribed is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self.subscribed
