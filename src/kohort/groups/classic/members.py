"""The state of a classic group: its members, the requests that they wait on, and its rebalance.

Its two records are the hard state. Everything else is lost with the process and rebuilt from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE, read_topics
from kohort.groups.admission import UnusedMemberIds
from kohort.groups.effects import GroupState, SyncGroupReply
from kohort.groups.events import Client
from kohort.groups.failure_detector import MonitoredMember
from kohort.groups.group import Appliers, GroupMembership
from kohort.groups.records import (
    GenerationStarted,
    GroupSaved,
    OfferedProtocol,
    Record,
    RecordKey,
    RecordKind,
    SavedMember,
)
from kohort.groups.sizes import names_bytes
from kohort.groups.step import Step
from kohort.groups.timers import Deadline, Timer

MEMBER_RECORD_OVERHEAD = 40

EMPTY, STABLE = GroupState.EMPTY, GroupState.STABLE
PREPARING, COMPLETING = GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE


class ClassicMember(MonitoredMember):
    """A member of a classic group, with the requests that it waits on.

    Attributes:
        join_request: the unanswered JoinGroup, None if there is none.
        sync_request: the unanswered SyncGroup, None if there is none.
        is_loaded: the member comes from the group's record, which has only the chosen one of its protocols.
        is_new: the member has not completed a join phase yet.
        notified: a reply has told the client its member id, so that its client can rejoin with it.
        size: its share of the group's record in bytes, as last counted.
        tolerates_long_polls: the client tolerates delayed heartbeats.
        stopped_ms: when it revoked its assignment to join, None while it has one.
    """

    __slots__ = (
        "assignment",
        "client",
        "instance_id",
        "is_loaded",
        "is_new",
        "join_request",
        "member_id",
        "notified",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "size",
        "stopped_ms",
        "sync_request",
        "tolerates_long_polls",
    )

    def __init__(self, group_id: str, member_id: str, instance_id: str | None, client: Client) -> None:
        super().__init__(group_id, member_id)
        self.member_id = member_id
        self.instance_id = instance_id
        self.client = client
        self.session_timeout_ms = 0
        self.rebalance_timeout_ms = 0
        self.protocols: tuple[OfferedProtocol, ...] = ()
        self.assignment = b""
        self.join_request: int | None = None
        self.sync_request: int | None = None
        self.is_loaded = False
        self.is_new = False
        self.notified = True
        self.size = 0
        self.tolerates_long_polls = False
        self.stopped_ms: int | None = None

    @property
    def awaits_answer(self) -> bool:
        """Whether a heartbeat, JoinGroup or SyncGroup of the member is unanswered."""
        return self.long_poll is not None or self.join_request is not None or self.sync_request is not None

    @classmethod
    def from_saved(cls, group_id: str, saved: SavedMember, protocol: str) -> ClassicMember:
        """Build a member from the group's record, which holds only the chosen one of its protocols."""
        client = Client(saved.client_id, saved.client_host)
        member = cls(group_id, saved.member_id, saved.instance_id, client)
        timeout = saved.rebalance_timeout_ms
        member.rebalance_timeout_ms = saved.session_timeout_ms if timeout < 0 else timeout
        member.session_timeout_ms = saved.session_timeout_ms
        member.protocols, member.is_loaded = (OfferedProtocol(protocol, saved.subscription),), True
        member.assignment = saved.assignment
        return member

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol that it supports; empty for any other."""
        for offered in self.protocols:
            if offered.name == protocol:
                return offered.metadata
        return b""

    def record_bytes(self) -> int:
        """Return an upper bound of the bytes that the member takes in the group's record, with its assignment."""
        metadata = max((len(protocol.metadata) for protocol in self.protocols), default=0)
        texts = names_bytes((self.member_id, self.instance_id or "", self.client.id, self.client.host))
        return MEMBER_RECORD_OVERHEAD + metadata + texts + len(self.assignment)

    def to_saved_member(self, protocol: str | None) -> SavedMember:
        """Return the member's entry for the record of a classic group."""
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

    def answer_sync(self, step: Step, reply: SyncGroupReply) -> bool:
        """Answer the member's waiting SyncGroup with `reply`; return False if it has none."""
        if self.sync_request is None:
            return False
        step.reply(self.sync_request, reply)
        self.sync_request = None
        return True

    def on_member_request(self, step: Step, connection: int) -> None:
        """Record a request of the member: bind it to its connection, and end its grace period."""
        if connection != self.connection:
            self.bind_connection(step, connection)
        if self.lost:
            self.restart_session(step)

    def restart_session(self, step: Step) -> None:
        """Restart the session, or the time limit of a new member, after a request on any connection."""
        self.end_grace(step, self.session_timeout_ms)
        if self.is_new:
            step.start_timer(self.session, step.config.new_member_timeout_ms)


@dataclass(slots=True)
class PendingMember:
    """A member id that was given out (KIP-394) and has not been used yet."""

    timer: Timer
    connection: int


@dataclass(slots=True)
class DeferredNotification:
    """The deferral of a rebalance notification: until it ends, no member knows of the rebalance.

    Attributes:
        awaited: working members whose next heartbeat is due in time.
        began_ms: when the rebalance began.
        timer: the timer that ends the deferral.
        until_ms: when all members are notified at the latest.
        suspected: awaited members that are overdue.
        extended: `until_ms` was extended for the silent members.
    """

    awaited: dict[str, None]
    began_ms: int
    timer: Timer
    until_ms: int = 0
    suspected: dict[str, None] = field(default_factory=dict)
    extended: bool = False

    def forget_member(self, member_id: str) -> None:
        """Stop waiting for this member in the deferred notification."""
        self.awaited.pop(member_id, None)
        self.suspected.pop(member_id, None)


class ClassicMembers(GroupMembership):
    """The members of a group under the classic protocol, and the state of its rebalance.

    Attributes:
        saved: the last GroupSaved, None if there is none.
        started: the generation of the last GenerationStarted, 0 if there is none.
        previous_state: the state before the current one; Empty marks an initial rebalance.
        members: by member id, in the order of their joins.
        static_ids: member ids by instance id; a lookup of None, for dynamic members, finds nothing.
        pending: member ids that were given out and not used yet.
        votes: the number of members that support each protocol name.
        awaiting_join: the number of members that wait on a JoinGroup.
        pending_sync: members of this generation that have not sent SyncGroup.
        subscribed: the topics of all members; None if they are unknown.
        resumed_from: the last complete generation if a restart interrupted a rebalance, else -1.
        topics_hash: the hash of the subscribed topics at the leader's last assignment; None if unknown.
        leader_unaware: the leader has not assigned yet, and so may miss changes of topics.
        owes_look: a static member returned that may read other topics, so partitions may be without owner.
        left_out: a generation, the image version at that time, and whether some partition has no owner.
        refused_generation: the generation whose assignment exceeded the record limit; -1: none.
        delay_ms, remaining_ms: the current delay of the initial rebalance, and what may still be added.
        newcomer: a member joined since the initial rebalance's delay was set.
        size: the most bytes that the group's record takes.
        began_ms: when the current rebalance began; None: there is no rebalance.
        deferral: the deferred notification of the current rebalance, else None.
    """

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.saved: GroupSaved | None = None
        self.started = 0
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.EMPTY
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_ids: dict[str | None, str] = {}
        self.pending: UnusedMemberIds[PendingMember] = UnusedMemberIds()
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
        self.deferral: DeferredNotification | None = None

    @property
    def generation(self) -> int:
        """Return the number of the group's current generation; 0 before the first."""
        return self.started if self.saved is None else max(self.started, self.saved.generation)

    def is_leader(self, member_id: str) -> bool:
        """Return whether this member is the leader."""
        return self.leader == member_id

    def all_joined(self) -> bool:
        """Return whether every member has sent JoinGroup, and no given member id is unused."""
        return self.awaiting_join == len(self.members) and not self.pending

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def count_votes(self, member: ClassicMember, sign: int) -> None:
        """Add (`sign` 1) or subtract (-1) a member's protocol votes and its size in the group's totals.

        Callers subtract before they change a member, and add afterwards.
        """
        for name in dict.fromkeys([protocol.name for protocol in member.protocols]):  # clients may repeat a name
            self.votes[name] = self.votes.get(name, 0) + sign
        if sign > 0:
            member.size = member.record_bytes()
        self.size += sign * member.size

    def supports_protocols(self, protocol_type: str, protocols: tuple[OfferedProtocol, ...]) -> bool:
        """Return whether a member with these protocols fits: the same type, and one protocol that all support."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        everyone = len(self.members)
        return any(self.votes.get(protocol.name, 0) == everyone for protocol in protocols)

    def select_protocol(self) -> str | None:
        """Return the protocol with the most votes of those that all support; each member votes for its first one."""
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
        """Return the topics that members subscribe to; None for other protocol types and unreadable metadata."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        found: set[str] = set()
        for member in self.members.values():
            topics = read_topics(member.metadata(self.protocol))
            if topics is None:
                return None
            found.update(topics)
        return frozenset(found)

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that members read; an unreadable subscription counts as all topics."""
        if self.subscribed is None and self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return frozenset()
        return self.subscribed

    def cancel_timers(self) -> None:
        """Stop all timers of the classic group and its members."""
        timers = [self.join_phase, self.sync_phase]
        timers += [member.session for member in self.members.values()]
        timers += [pending.timer for pending in self.pending.values()]
        if self.deferral is not None:
            timers.append(self.deferral.timer)
        for timer in timers:
            timer.cancel()

    def group_state(self) -> GroupState:
        """Return the group's state, such as PreparingRebalance."""
        return self.state

    def member_connections(self) -> Iterator[tuple[str, int, bool]]:
        """Yield each member's id, its connection, and whether that has ended; pending ids are left out."""
        return ((member.member_id, member.connection, member.is_gone) for member in self.members.values())

    def may_expire_offsets(self) -> bool:
        """Return whether offsets may expire now: the group is empty, or stable with readable subscriptions."""
        if self.state is GroupState.EMPTY:
            return True
        return self.state is GroupState.STABLE and self.knows_subscribed_topics() and self.subscribed is not None

    def empty_since_ms(self) -> int:
        """Return when the record of an empty group that had members was written."""
        saved = self.saved
        return saved.state_ms if self.state is GroupState.EMPTY and saved is not None and saved.protocol_type else -1

    def has_unused_member_ids(self) -> bool:
        """Return whether a member id was given out (KIP-394) and is still unused."""
        return bool(self.pending)

    def knows_subscribed_topics(self) -> bool:
        """Return whether every member's metadata shows its topics; True for a group without members."""
        return self.state is GroupState.EMPTY or self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def records(self) -> Iterator[Record]:
        """Yield the record of the last stable state, and the generation that began since."""
        if self.saved is not None:
            yield self.saved
        if self.started:
            yield GenerationStarted(self.group_id, self.started)

    def has_records(self) -> bool:
        """Return whether the journal has a GroupSaved or GenerationStarted record of the group."""
        return self.saved is not None or self.started > 0

    def tombstones(self) -> Iterator[RecordKey]:
        """Yield the keys of the records to remove: of the generation, if one was started, and last of the group."""
        if self.started:
            yield (RecordKind.GENERATION, self.group_id)
        yield (RecordKind.GROUP, self.group_id)

    def apply_tombstone(self, kind: RecordKind, names: list[str]) -> bool:
        """Apply a tombstone; return False: without records the group stays classic, for its offsets.

        Only the ledger calls this.
        """
        if kind is RecordKind.GROUP:
            self.saved = None
        elif kind is RecordKind.GENERATION:
            self.started = 0
        return False

    def apply_group_saved(self, record: GroupSaved) -> None:
        """Apply the record of a stable generation, or of an empty group. Only the ledger calls this."""
        self.saved = record

    def apply_generation_started(self, record: GenerationStarted) -> None:
        """Apply the record that a generation has begun. Only the ledger calls this."""
        self.started = record.generation

    appliers: ClassVar[Appliers] = {
        GroupSaved: apply_group_saved,
        GenerationStarted: apply_generation_started,
    }
