"""The state of a push group: its members, the owner of each partition, and each member's unanswered request.

Only the ledger writes the hard state: the members, and their partitions. A member owns partitions from before its Start
until its Stop is answered and its last positions have arrived, or until it is evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from kohort.groups.effects import Cause, Downtime, GroupState
from kohort.groups.events import PushRequestKind, RegisterConsumer
from kohort.groups.failure_detector import MonitoredMember
from kohort.groups.group import Appliers, GroupMembership
from kohort.groups.records import PushGroupSaved, PushMemberSaved, PushOwned, Record, RecordKey, RecordKind
from kohort.groups.timers import Deadline, Timer
from kohort.groups.topics import NOTHING, TopicIdPartition, TopicIdPartitions, pack_partitions, unpack_partitions
from kohort.ids import TopicId


class PushMember(MonitoredMember):
    """A consumer of a push group, with its unanswered requests.

    Attributes:
        process: the process that it registered from, "" if unknown.
        asked: the kind of the unanswered request, None: none.
        out: the number of unanswered frames: one, plus the repetitions of a Ping.
        ping: the timer of the next Ping, or of a late answer.
        stopped: its fetchers are known to be stopped: the member is new, or has answered a Stop.
        notified: the partitions of its last confirmed Start on this connection; None: none.
        ending: it has answered a Stop, but not yet the Ping for its last positions.
        back: it has registered again, and has not been pinged since.
        refusals: how often in a row it answered a Stop or a Start with an error.
        still_ms: since when its partitions are not read, None: they are.
        finding: the ticket of the offsets that it waits for, -1: none.
        claim: a conflicting registration of its id on another connection, which waits for this member's answer.
        proves: it was pinged after the conflicting registration, so an answer shows that it is still alive.
    """

    __slots__ = (
        "asked",
        "back",
        "claim",
        "ending",
        "finding",
        "notified",
        "out",
        "ping",
        "process",
        "proves",
        "refusals",
        "still_ms",
        "stopped",
    )

    def __init__(self, group_id: str, member_id: str) -> None:
        super().__init__(group_id, member_id)
        self.process = ""
        self.asked: PushRequestKind | None = None
        self.out = 0
        self.ping = Timer(Deadline.PING, group_id, member_id)
        self.stopped = False
        self.notified: TopicIdPartitions | None = None
        self.ending = False
        self.back = False
        self.refusals = 0
        self.still_ms: int | None = None
        self.finding = -1
        self.claim: RegisterConsumer | None = None
        self.proves = False


class PushMembers(GroupMembership):
    """The members of a push group, with the owner of each partition.

    Attributes:
        saved: the group's record; None before it is written.
        members: the registrations, by member id.
        owned: each member's partitions; members without partitions are left out.
        holders: the owner of each partition.
        present: the members' soft state.
        rebalancing: a rebalance is under way or will be retried (the bit of spec 4.9).
        again: something changed during the rebalance, so another one follows (the second mark of spec 4.9).
        again_causes: why, the first few.
        attempt: the attempt of the current rebalance, from 0.
        began_ms: when the change that caused the rebalance came; None: there is no rebalance.
        dividing: the ticket of the awaited assignment, -1: none.
        moving: members that still have to be started in this rebalance, with their partitions.
        takers: the next owner of each partition in `moving`.
        still: the downtimes of members that have been started again, in ms.
        attempts: the timer of an attempt.
        backoff: the timer of the pause before the next attempt or rebalance.
        loaded: the group existed when its shard was loaded.
        unregistered: members to stop and start without another change: their owner nodes in ZooKeeper were deleted.
        first_seen: each topic's id and number of partitions when a member was first started with it.
        matched: the matching topics by regular expression and whether the expression excludes.
    """

    is_shown = True
    __slots__ = (
        "again",
        "again_causes",
        "attempt",
        "attempts",
        "backoff",
        "began_ms",
        "dividing",
        "first_seen",
        "holders",
        "loaded",
        "matched",
        "members",
        "moving",
        "owned",
        "present",
        "rebalancing",
        "saved",
        "still",
        "takers",
        "unregistered",
    )

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.saved: PushGroupSaved | None = None
        self.members: dict[str, PushMemberSaved] = {}
        self.owned: dict[str, TopicIdPartitions] = {}
        self.holders: dict[TopicIdPartition, str] = {}
        self.present: dict[str, PushMember] = {}
        self.rebalancing = False
        self.again = False
        self.again_causes: list[Cause] = []
        self.attempt = 0
        self.began_ms: int | None = None
        self.dividing = -1
        self.moving: dict[str, TopicIdPartitions] = {}
        self.takers: dict[TopicIdPartition, str] = {}
        self.still: list[Downtime] = []
        self.attempts = Timer(Deadline.ATTEMPT, group_id)
        self.backoff = Timer(Deadline.BACKOFF, group_id)
        self.loaded = False
        self.unregistered: dict[str, None] = {}
        self.first_seen: dict[str, tuple[TopicId, int]] = {}
        self.matched: Mapping[tuple[str, bool], frozenset[str]] = {}

    # -- interface of every membership

    def group_state(self) -> GroupState:
        """Return Empty, PreparingRebalance during a rebalance, else Stable."""
        if not self.members:
            return GroupState.EMPTY
        return GroupState.PREPARING_REBALANCE if self.rebalancing else GroupState.STABLE

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that members read, by name or expression; an unresolved expression may match any."""
        found: set[str] = set()
        expressions = set()
        for member in self.members.values():
            if member.regex is None:
                found.update(name for name, _ in member.topics)
            else:
                expressions.add((member.regex, member.excluding))
        for expression in expressions:
            matched = self.matched.get(expression)
            if matched is None:
                return None
            found |= matched
        return frozenset(found)

    def records(self) -> Iterator[Record]:
        """Yield the records of the group, its members, and their partitions."""
        if self.saved is not None:
            yield self.saved
        yield from self.members.values()
        for member_id, pairs in self.owned.items():
            yield PushOwned(self.group_id, member_id, pack_partitions(pairs))

    def has_records(self) -> bool:
        """Return whether the group's record was written."""
        return self.saved is not None

    def tombstones(self) -> Iterator[RecordKey]:
        """Yield the keys of partitions, members, and last the group."""
        yield from ((RecordKind.PUSH_OWNED, self.group_id, member_id) for member_id in self.owned)
        yield from ((RecordKind.PUSH_MEMBER, self.group_id, member_id) for member_id in self.members)
        if self.saved is not None:
            yield self.saved.key

    def cancel_timers(self) -> None:
        """Stop all timers: of sessions and pings, of the rebalance attempt, and of its backoff."""
        for member in self.present.values():
            member.session.cancel()
            member.ping.cancel()
        self.attempts.cancel()
        self.backoff.cancel()

    def member_connections(self) -> Iterator[tuple[str, int, bool]]:
        """Yield each member's id, its connection, and whether that has ended."""
        return ((member_id, member.connection, member.is_gone) for member_id, member in self.present.items())

    def empty_since_ms(self) -> int:
        """Return the wall clock time since when the group is empty, in ms; -1 if it has members."""
        return -1 if self.members or self.saved is None else self.saved.state_ms

    # -- changes by the ledger

    def _apply_group(self, record: PushGroupSaved) -> None:
        self.saved = record

    def _apply_member(self, record: PushMemberSaved) -> None:
        self.members[record.member_id] = record

    def _apply_owned(self, record: PushOwned) -> None:
        self._release(record.member_id)
        pairs = unpack_partitions(record.partitions)
        if pairs:
            self.owned[record.member_id] = pairs
            self.holders.update(dict.fromkeys(pairs, record.member_id))

    def _release(self, member_id: str) -> None:
        for pair in self.owned.pop(member_id, NOTHING):
            if self.holders.get(pair) == member_id:
                del self.holders[pair]

    def apply_tombstone(self, kind: RecordKind, names: list[str]) -> bool:
        """Apply a tombstone; return True for the group's own record, the last one. Only the ledger calls this."""
        if kind is RecordKind.PUSH_OWNED:
            self._release(names[0])
        elif kind is RecordKind.PUSH_MEMBER:
            self.members.pop(names[0], None)
        elif kind is RecordKind.PUSH_GROUP:
            self.saved = None
            return True
        return False

    appliers: ClassVar[Appliers] = {
        PushGroupSaved: _apply_group,
        PushMemberSaved: _apply_member,
        PushOwned: _apply_owned,
    }

    # -- queries

    def find_member(self, member_id: str) -> PushMember | None:
        """Return a member; None if the id is unknown."""
        return self.present.get(member_id)

    def owned_by(self, member_id: str) -> TopicIdPartitions:
        """Return the partitions that a member owns; none if it owns none."""
        return self.owned.get(member_id, NOTHING)

    def is_free_for(self, member_id: str, pairs: TopicIdPartitions) -> bool:
        """Return whether no other member owns any of these partitions."""
        return all(self.holders.get(pair, member_id) == member_id for pair in pairs)

    def members_waiting_for(self, pairs: Iterable[TopicIdPartition]) -> list[str]:
        """Return the members whose next Start includes one of these partitions."""
        return list(dict.fromkeys(self.takers[pair] for pair in pairs if pair in self.takers))

    def set_members_to_start(self, moving: Mapping[str, TopicIdPartitions]) -> None:
        """Set the members that this rebalance has to start, each with its new partitions."""
        self.moving = dict(moving)
        self.takers = {pair: member_id for member_id, pairs in moving.items() for pair in pairs}

    def mark_member_started(self, member_id: str) -> None:
        """Remove a member from those that this rebalance still has to start: it was started, or has left."""
        for pair in self.moving.pop(member_id, NOTHING):
            if self.takers.get(pair) == member_id:
                del self.takers[pair]
