"""What the coordinator knows of a group under KIP-848: members, epochs, targets, and who holds which partition.

Hard state is written by the ledger alone. Beside it stand indexes of the same facts, kept by the same hand, and the
soft state: timers, joiners that wait for a first assignment, work under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from kohort.groups.effects import GroupState
from kohort.groups.events import ConsumerGroupHeartbeat, GroupSettings, JoinGroup
from kohort.groups.failure_detector import Pacing
from kohort.groups.group import Membership, Takes
from kohort.groups.pairs import NOTHING, Pair, Pairs, pack, unpack
from kohort.groups.records import (
    EpochBumped,
    HeldPartitions,
    Kind,
    MemberAssigned,
    MemberSaved,
    MemberState,
    Record,
    RecordKey,
    RegexResolved,
    TargetAssigned,
    TargetEpochSet,
)
from kohort.groups.timers import Deadline, Timer

LEFT_FOR_A_WHILE = -2


@dataclass(slots=True)
class CurrentAssignment:
    """Where a member stands: its record, and the record's partitions as sets.

    Attributes:
        since: the epoch at which it was given each of them; those that are left out, at `member_epoch`.
    """

    member_epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Pairs = NOTHING
    pending: Pairs = NOTHING
    since: Mapping[Pair, int] = field(default_factory=dict)

    @classmethod
    def of(cls, record: MemberAssigned) -> CurrentAssignment:
        """From the record."""
        return cls(
            record.member_epoch,
            record.previous_epoch,
            record.state,
            unpack(record.assigned),
            unpack(record.pending_revocation),
            {
                (entry.topic_id, number): epoch
                for entry in (*record.assigned, *record.pending_revocation)
                for number, epoch in zip(entry.partitions, entry.epochs, strict=True)
            },
        )

    def record(self, group_id: str, member_id: str) -> MemberAssigned:
        """As a record."""
        return MemberAssigned(
            group_id,
            member_id,
            self.member_epoch,
            self.previous_epoch,
            self.state,
            self._pack(self.assigned),
            self._pack(self.pending),
        )

    def _pack(self, pairs: Pairs) -> tuple[HeldPartitions, ...]:
        return tuple(
            HeldPartitions(
                entry.topic_id,
                entry.partitions,
                tuple(self.since.get((entry.topic_id, number), self.member_epoch) for number in entry.partitions),
            )
            for entry in pack(pairs)
        )

    def afresh(self) -> CurrentAssignment:
        """Of a member that joins again in its place: what it has, and no epoch yet."""
        return CurrentAssignment(assigned=self.assigned, since=self.since)

    def away(self) -> CurrentAssignment:
        """Of a static member that leaves for a while: it has given everything up, and what it had stays its own."""
        assigned, since = self.assigned, self.since
        return CurrentAssignment(LEFT_FOR_A_WHILE, self.previous_epoch, MemberState.STABLE, assigned, since=since)

    @property
    def is_away(self) -> bool:
        """Whether the member left for a while and has not joined since."""
        return self.member_epoch == LEFT_FOR_A_WHILE

    def covers(self, epoch: int, pair: Pair) -> bool:
        """Whether the member had this partition at this epoch of its own and has it still, or has yet to give it up."""
        since = self.since.get(pair)
        return since is not None and since <= epoch <= self.member_epoch

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether the member has all of this epoch's target."""
        return self.state is MemberState.STABLE and self.member_epoch == epoch


class Presence(Pacing):
    """A member's soft state.

    Attributes:
        revocation: bounds how long it may take to give partitions up.
        join_phase, sync_phase: bound a classic member's way through a rebalance.
        waiting: its first heartbeat, which is answered when there is a target for `waits_for`.
        joining: a classic member's JoinGroup that waits likewise.
        process: it joined from, "": not known.
        fenced: it said a wrong epoch, which the log was told.
        overdue: it did not move within its rebalance timeout, and is refused until it joins again.
    """

    __slots__ = (
        "fenced",
        "join_phase",
        "joining",
        "overdue",
        "process",
        "revocation",
        "sync_phase",
        "waiting",
        "waits_for",
    )

    def __init__(self, group_id: str, member_id: str) -> None:
        super().__init__(group_id, member_id)
        self.revocation = Timer(Deadline.REVOCATION, group_id, member_id)
        self.join_phase = Timer(Deadline.JOIN_PHASE, group_id, member_id)
        self.sync_phase = Timer(Deadline.SYNC_PHASE, group_id, member_id)
        self.waiting: ConsumerGroupHeartbeat | None = None
        self.joining: JoinGroup | None = None
        self.waits_for = 0
        self.process = ""
        self.overdue = False
        self.fenced = False

    @property
    def awaits_answer(self) -> bool:
        """A heartbeat or a JoinGroup of it is not answered yet."""
        return self.held is not None or self.waiting is not None or self.joining is not None

    def cancel(self) -> None:
        """Stop all its timers."""
        self.session.cancel()
        self.expect_nothing()

    def expect_nothing(self) -> None:
        """Stop the timers of what it was to do, and of its held heartbeat; its session goes on."""
        for timer in (self.revocation, self.join_phase, self.sync_phase, self.hold):
            if timer is not None:
                timer.cancel()
        self.overdue = False


@dataclass(slots=True)
class ConsumerGroup(Membership):
    """A group under KIP-848.

    Attributes:
        members: what each said of itself, by member id.
        epoch: bumped by every change of members, subscriptions or topics.
        metadata_hash: of the topics the epoch was made for.
        target_epoch: of the target assignment.
        targets: what each member is to have.
        current: the current assignment of each member; one without is at epoch 0 and has nothing.
        regexes: resolved regular expressions, by pattern.
        static_ids: instance id to member id; None, of dynamic members, is never in it, and may be looked up.
        holders: partition to the member that has it or has not given it up yet.
        presences: soft state by member id.
        began_ms: when the rebalance under way began, None when there is none.
        stopped: partitions no one has in this rebalance, since when (ms).
        still: how long partitions stood still in it that are given again.
        settling: members of `settling_epoch` not yet seen to have all of its target, at least one that has not at the
            end.
        excluded: members that the newest target, or that under way, is made without, as they were silent.
        watch: when members that have to move are looked at, None before the first time.
        computing: the ticket of the target that is being computed, -1: none.
        resolving: the ticket of the regular expressions that are being matched, -1: none.
        given_ids: ids given to classic members that have not come back with them, until the timer ends.
        settings: the group's own timeouts.
    """

    group_id: str
    members: dict[str, MemberSaved] = field(default_factory=dict)
    epoch: int = 0
    metadata_hash: int = 0
    target_epoch: int = 0
    assigned_ms: int = -1
    targets: dict[str, Pairs] = field(default_factory=dict)
    current: dict[str, CurrentAssignment] = field(default_factory=dict)
    regexes: dict[str, RegexResolved] = field(default_factory=dict)
    static_ids: dict[str | None, str] = field(default_factory=dict)
    holders: dict[Pair, str] = field(default_factory=dict)
    presences: dict[str, Presence] = field(default_factory=dict)
    began_ms: int | None = None
    stopped: dict[Pair, int] = field(default_factory=dict)
    still: list[int] = field(default_factory=list)
    settling: list[str] = field(default_factory=list)
    settling_epoch: int = -1
    excluded: dict[str, None] = field(default_factory=dict)
    watch: Timer | None = None
    computing: int = -1
    resolving: int = -1
    given_ids: dict[str, Timer] = field(default_factory=dict)
    settings: GroupSettings = field(default_factory=GroupSettings)
    _listed: dict[str, int] = field(default_factory=dict)
    _matched: dict[str, int] = field(default_factory=dict)

    def current_assignment(self, member_id: str) -> CurrentAssignment:
        """What a member has and has still to give up, and at which epoch."""
        return self.current.get(member_id) or CurrentAssignment()

    def topics_of(self, member: MemberSaved) -> tuple[str, ...]:
        """The names a member reads: those it lists and those its regular expression matches, sorted."""
        resolved = self.regexes.get(member.subscribed_regex or "")
        if resolved is None:
            return member.subscribed_topics
        return tuple(sorted({*member.subscribed_topics, *resolved.topics}))

    def subscribed(self) -> list[str]:
        """Every name that a member reads, sorted."""
        names = set(self._listed)
        for regex in self._matched:
            resolved = self.regexes.get(regex)
            if resolved is not None:
                names.update(resolved.topics)
        return sorted(names)

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member reads this topic, or may: it is not known yet what a pattern matches."""
        if any(regex not in self.regexes for regex in self._matched):
            return True
        return any(topic in self.topics_of(member) for member in self.members.values())

    def presence(self, member_id: str) -> Presence:
        """A member's soft state, made when there is none."""
        presence = self.presences.get(member_id)
        if presence is None:
            presence = self.presences[member_id] = Presence(self.group_id, member_id)
        return presence

    def cancel(self) -> None:
        """Stop all its timers."""
        for presence in self.presences.values():
            presence.cancel()
        for timer in (*self.given_ids.values(), *(() if self.watch is None else (self.watch,))):
            timer.cancel()

    def group_state(self) -> GroupState:
        """Whether there is a target for the newest epoch, and all have it."""
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        if all(self.current_assignment(member_id).is_reconciled_to(self.target_epoch) for member_id in self.members):
            return GroupState.STABLE
        return GroupState.RECONCILING

    def classic_members(self) -> list[MemberSaved]:
        """Members that speak the classic protocol."""
        return [member for member in self.members.values() if member.classic_protocols is not None]

    def places(self) -> Iterator[tuple[str, int, bool]]:
        """Where its members are."""
        return ((member_id, each.connection, each.is_gone) for member_id, each in self.presences.items())

    def empty_since_ms(self) -> int:
        """When the target of the epoch without members was written."""
        return -1 if self.members else self.assigned_ms

    def records(self) -> Iterator[Record]:
        """Members, the epoch, regular expressions, the target, and where members stand."""
        yield from self.members.values()
        yield EpochBumped(self.group_id, self.epoch, self.metadata_hash)
        yield from self.regexes.values()
        for member_id, target in self.targets.items():
            yield TargetAssigned(self.group_id, member_id, pack(target))
        if self.target_epoch:
            yield TargetEpochSet(self.group_id, self.target_epoch, self.assigned_ms)
        for member_id, current in self.current.items():
            yield current.record(self.group_id, member_id)

    def has_records(self) -> bool:
        """Always: it is there from its first record until its epoch's is gone."""
        return True

    def tombstones(self) -> Iterator[RecordKey]:
        """The members' keys, and last the epoch's."""
        names: tuple[tuple[Kind, Iterable[str]], ...] = (
            (Kind.CURRENT, self.current),
            (Kind.TARGET, self.targets),
            (Kind.MEMBER, self.members),
            (Kind.REGEX, self.regexes),
        )
        for kind, of_kind in names:
            yield from ((kind, self.group_id, name) for name in of_kind)
        if self.target_epoch:
            yield (Kind.TARGET_EPOCH, self.group_id)
        yield (Kind.EPOCH, self.group_id)

    def drop(self, kind: Kind, names: list[str]) -> bool:
        """Ledger: a record is gone; that of the epoch is the group's last."""
        if kind is Kind.MEMBER:
            self.drop_member(names[0])
        elif kind is Kind.TARGET_EPOCH:
            self.target_epoch = 0
        elif kind is Kind.TARGET:
            self.targets.pop(names[0], None)
        elif kind is Kind.CURRENT:
            self.drop_current(names[0])
        elif kind is Kind.REGEX:
            self.regexes.pop(names[0], None)
        return kind is Kind.EPOCH

    def take_epoch(self, record: EpochBumped) -> None:
        """Ledger: something changed that needs a new target."""
        self.epoch = record.epoch
        self.metadata_hash = record.metadata_hash

    def take_target_epoch(self, record: TargetEpochSet) -> None:
        """Ledger: the target is whole."""
        self.target_epoch = record.epoch
        self.assigned_ms = record.assigned_ms

    def take_target(self, record: TargetAssigned) -> None:
        """Ledger: what a member is to have."""
        self.targets[record.member_id] = unpack(record.partitions)

    def take_regex(self, record: RegexResolved) -> None:
        """Ledger: the topics that a regular expression matches."""
        self.regexes[record.regex] = record

    def take_member(self, member: MemberSaved) -> None:
        """Ledger: a member said something new of itself."""
        self._count(self.members.get(member.member_id), -1)
        self.members[member.member_id] = member
        self._count(member, 1)
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id

    def drop_member(self, member_id: str) -> None:
        """Ledger: a member is gone."""
        member = self.members.pop(member_id, None)
        self._count(member, -1)
        instance_id = None if member is None else member.instance_id
        if instance_id is not None and self.static_ids.get(instance_id) == member_id:
            del self.static_ids[instance_id]

    def _count(self, member: MemberSaved | None, sign: int) -> None:
        """Add (1) or take away (-1) what a member reads: so that who joins costs nothing for each who is there."""
        if member is None:
            return
        for name in member.subscribed_topics:
            _shift(self._listed, name, sign)
        if member.subscribed_regex is not None:
            _shift(self._matched, member.subscribed_regex, sign)

    def take_current(self, record: MemberAssigned) -> None:
        """Ledger: a member has moved."""
        self.drop_current(record.member_id)
        current = self.current[record.member_id] = CurrentAssignment.of(record)
        for pair in current.assigned | current.pending:
            self.holders[pair] = record.member_id

    def drop_current(self, member_id: str) -> None:
        """Ledger: a member has nothing."""
        before = self.current.pop(member_id, None)
        if before is not None:
            for pair in before.assigned | before.pending:
                if self.holders.get(pair) == member_id:
                    del self.holders[pair]

    takes: ClassVar[Takes] = {
        EpochBumped: take_epoch,
        MemberSaved: take_member,
        TargetEpochSet: take_target_epoch,
        TargetAssigned: take_target,
        MemberAssigned: take_current,
        RegexResolved: take_regex,
    }


def _shift(counts: dict[str, int], name: str, sign: int) -> None:
    left = counts.get(name, 0) + sign
    if left:
        counts[name] = left
    else:
        counts.pop(name, None)
