"""A group under the classic protocol: its members, with the requests they wait on, and its rounds.

Its two records are hard; all else is lost with the process and built again from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE, read_topics
from kohort.groups.effects import GroupState
from kohort.groups.events import Client
from kohort.groups.failure_detector import Pacing
from kohort.groups.group import Membership, Takes
from kohort.groups.records import ClassicProtocol, GenerationStarted, GroupSaved, Kind, Record, RecordKey, SavedMember
from kohort.groups.timers import Deadline, Timer

MEMBER_RECORD_OVERHEAD = 40


class ClassicMember(Pacing):
    """A member of a classic group, with the requests it waits on.

    Attributes:
        join_request: the JoinGroup it waits on, None when it waits on none.
        sync_request: the SyncGroup it waits on.
        is_new: it has not been through a completed join phase.
        told: a reply has named its id, so that its client can come back with it.
        size: its share of the group's record in bytes, as last counted.
        bears_hold: its client bears to be held.
        stopped_ms: when it gave up its work to join, None while it has an assignment.
    """

    __slots__ = (
        "assignment",
        "bears_hold",
        "client",
        "instance_id",
        "is_new",
        "join_request",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "size",
        "stopped_ms",
        "sync_request",
        "told",
    )

    def __init__(self, group_id: str, member_id: str, instance_id: str | None, client: Client) -> None:
        super().__init__(group_id, member_id)
        self.member_id = member_id
        self.instance_id = instance_id
        self.client = client
        self.session_timeout_ms = 0
        self.rebalance_timeout_ms = 0
        self.protocols: tuple[ClassicProtocol, ...] = ()
        self.assignment = b""
        self.join_request: int | None = None
        self.sync_request: int | None = None
        self.is_new = False
        self.told = True
        self.size = 0
        self.bears_hold = False
        self.stopped_ms: int | None = None

    @property
    def awaits_answer(self) -> bool:
        """Its heartbeat is held, or it waits for others to join or sync."""
        return self.held is not None or self.join_request is not None or self.sync_request is not None

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
        extended: `until_ms` is put off for the silent.
    """

    awaited: dict[str, None]
    began_ms: int
    timer: Timer
    until_ms: int = 0
    silent: dict[str, None] = field(default_factory=dict)
    extended: bool = False


class ClassicGroup(Membership):
    """The members of a group under the classic protocol.

    Attributes:
        saved: the last GroupSaved, None when there is none.
        started: the last GenerationStarted's generation, 0 when there is none.
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

    @property
    def generation(self) -> int:
        """The last generation begun or saved; 0 before the first."""
        return self.started if self.saved is None else max(self.started, self.saved.generation)

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

    def cancel(self) -> None:
        """Stop all its timers."""
        timers = [self.join_phase, self.sync_phase]
        timers += [member.session for member in self.members.values()]
        timers += [pending.timer for pending in self.pending.values()]
        if self.gathering is not None:
            timers.append(self.gathering.timer)
        for timer in timers:
            timer.cancel()

    def group_state(self) -> GroupState:
        """Where its round is."""
        return self.state

    def places(self) -> Iterator[tuple[str, int, bool]]:
        """Where its members are; of ids given out nothing is said."""
        return ((member.member_id, member.connection, member.is_gone) for member in self.members.values())

    def expires_offsets(self) -> bool:
        """While it is empty, or settled with subscriptions that can be read."""
        if self.state is GroupState.EMPTY:
            return True
        return self.state is GroupState.STABLE and self.knows_topics() and self.subscribed is not None

    def empty_since_ms(self) -> int:
        """When the record of an empty group that had members was written."""
        saved = self.saved
        return saved.state_ms if self.state is GroupState.EMPTY and saved is not None and saved.protocol_type else -1

    def awaits_members(self) -> bool:
        """Whether a member id was given out (KIP-394) and has not come back."""
        return bool(self.pending)

    def knows_topics(self) -> bool:
        """Whether its members say in bytes that are known here what they read, or there are none."""
        return self.state is GroupState.EMPTY or self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def records(self) -> Iterator[Record]:
        """The record of its last settled state, and the generation that began since."""
        if self.saved is not None:
            yield self.saved
        if self.started:
            yield GenerationStarted(self.group_id, self.started)

    def has_records(self) -> bool:
        """Whether it has either."""
        return self.saved is not None or self.started > 0

    def tombstones(self) -> Iterator[RecordKey]:
        """Both keys; that of the group in any case."""
        if self.started:
            yield (Kind.GENERATION, self.group_id)
        yield (Kind.GROUP, self.group_id)

    def drop(self, kind: Kind, names: list[str]) -> bool:
        """Ledger: a record is gone. Without any it is a group that holds offsets only."""
        if kind is Kind.GROUP:
            self.saved = None
        elif kind is Kind.GENERATION:
            self.started = 0
        return False

    def take_saved(self, record: GroupSaved) -> None:
        """Ledger: a generation is settled, or the group empty."""
        self.saved = record

    def take_started(self, record: GenerationStarted) -> None:
        """Ledger: a generation began."""
        self.started = record.generation

    takes: ClassVar[Takes] = {
        GroupSaved: take_saved,
        GenerationStarted: take_started,
    }
