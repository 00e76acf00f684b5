"""The members of a group under KIP-848: their state, and how each moves from its assignment to its target.

Only the ledger writes the hard state. Indexes of the same facts are kept up to date with it. The soft state holds
timers, joiners that wait for a first assignment, and background tasks under way.

Reconciliation: a consumer group member moves from its assignment to its target, one heartbeat at a time.

| state | the member waits for | a heartbeat |
|---|---|---|
| STABLE | a newer target | begins the move: first revokes, then assigns |
| UNREVOKED_PARTITIONS | its own report without the revoked partitions | moves on towards the newest target |
| UNRELEASED_PARTITIONS | other members to revoke its new partitions | assigns what has become free |

A partition is assigned only if no member owns it or has yet to revoke it. For this reason two clients never own the
same partition. Source: KIP-848, "Reconciliation"; scenario 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from kohort.groups.admission import LEFT_FOR_A_WHILE, UnusedMemberIds
from kohort.groups.effects import Downtime, GroupState
from kohort.groups.events import ConsumerGroupHeartbeat, GroupSettings, JoinGroup
from kohort.groups.failure_detector import MonitoredMember
from kohort.groups.group import Appliers, GroupMembership
from kohort.groups.records import (
    EpochBumped,
    HeldPartitions,
    MemberAssigned,
    MemberSaved,
    ReconciliationState,
    Record,
    RecordKey,
    RecordKind,
    RegexResolved,
    TargetAssigned,
    TargetEpochSet,
)
from kohort.groups.step import Step
from kohort.groups.table import UnexpectedTransitionError
from kohort.groups.timers import Deadline, Timer
from kohort.groups.topics import NOTHING, TopicIdPartition, TopicIdPartitions, pack_partitions, unpack_partitions

EMPTY, ASSIGNING = GroupState.EMPTY, GroupState.ASSIGNING
RECONCILING, STABLE = GroupState.RECONCILING, GroupState.STABLE


@dataclass(slots=True)
class CurrentAssignment:
    """A member's current assignment: its record, with the record's partitions as sets.

    Attributes:
        since: the epoch at which each partition was assigned; partitions that are left out: at `member_epoch`.
    """

    member_epoch: int = 0
    previous_epoch: int = 0
    state: ReconciliationState = ReconciliationState.STABLE
    assigned: TopicIdPartitions = NOTHING
    pending: TopicIdPartitions = NOTHING
    since: Mapping[TopicIdPartition, int] = field(default_factory=dict)

    @classmethod
    def from_record(cls, record: MemberAssigned) -> CurrentAssignment:
        """Build a member's current assignment from its record."""
        return cls(
            record.member_epoch,
            record.previous_epoch,
            record.state,
            unpack_partitions(record.assigned),
            unpack_partitions(record.pending_revocation),
            {
                (entry.topic_id, number): epoch
                for entry in (*record.assigned, *record.pending_revocation)
                for number, epoch in zip(entry.partitions, entry.epochs, strict=True)
            },
        )

    def to_record(self, group_id: str, member_id: str) -> MemberAssigned:
        """Return the member's current assignment as a record for the journal."""
        return MemberAssigned(
            group_id,
            member_id,
            self.member_epoch,
            self.previous_epoch,
            self.state,
            self._pack(self.assigned),
            self._pack(self.pending),
        )

    def _pack(self, pairs: TopicIdPartitions) -> tuple[HeldPartitions, ...]:
        return tuple(
            HeldPartitions(
                entry.topic_id,
                entry.partitions,
                tuple(self.since.get((entry.topic_id, number), self.member_epoch) for number in entry.partitions),
            )
            for entry in pack_partitions(pairs)
        )

    def without_epoch(self) -> CurrentAssignment:
        """Return the current assignment for a member that joins again: the same partitions, at member epoch 0."""
        return CurrentAssignment(assigned=self.assigned, since=self.since)

    def as_temporarily_left(self) -> CurrentAssignment:
        """Return the assignment of a static member that left with epoch -2: its partitions stay reserved for it."""
        assigned, since = self.assigned, self.since
        return CurrentAssignment(
            LEFT_FOR_A_WHILE, self.previous_epoch, ReconciliationState.STABLE, assigned, since=since
        )

    @property
    def has_left_temporarily(self) -> bool:
        """Whether the member left temporarily and has not joined since."""
        return self.member_epoch == LEFT_FOR_A_WHILE

    def has_owned_since(self, epoch: int, pair: TopicIdPartition) -> bool:
        """Return whether the member got this partition at `epoch` or earlier, and has owned it ever since."""
        since = self.since.get(pair)
        return since is not None and since <= epoch <= self.member_epoch

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return whether the member has all of this epoch's target."""
        return self.state is SETTLED and self.member_epoch == epoch


class MemberSoftState(MonitoredMember):
    """The soft state of a member, which no record holds: its connection, timers and waiting requests.

    Attributes:
        revocation: the timer that bounds a revocation.
        join_phase, sync_phase: the timers that bound a classic member's steps of a rebalance.
        waiting: the member's first heartbeat, which is answered as soon as there is a target for `awaited_epoch`.
        joining: a classic member's JoinGroup that waits likewise.
        process: the process that it joined from, "" if unknown.
        fenced: the member sent a wrong epoch, and the log says so.
        overdue: the member did not move within its rebalance timeout and is refused until it joins again.
    """

    __slots__ = (
        "awaited_epoch",
        "fenced",
        "join_phase",
        "joining",
        "overdue",
        "process",
        "revocation",
        "sync_phase",
        "waiting",
    )

    def __init__(self, group_id: str, member_id: str) -> None:
        super().__init__(group_id, member_id)
        self.revocation = Timer(Deadline.REVOCATION, group_id, member_id)
        self.join_phase = Timer(Deadline.JOIN_PHASE, group_id, member_id)
        self.sync_phase = Timer(Deadline.SYNC_PHASE, group_id, member_id)
        self.waiting: ConsumerGroupHeartbeat | None = None
        self.joining: JoinGroup | None = None
        self.awaited_epoch = 0
        self.process = ""
        self.overdue = False
        self.fenced = False

    @property
    def awaits_answer(self) -> bool:
        """Whether a heartbeat or a JoinGroup of the member is unanswered."""
        return self.long_poll is not None or self.waiting is not None or self.joining is not None

    def cancel_timers(self) -> None:
        """Stop all timers of the member: session, revocation, join and sync."""
        self.session.cancel()
        self.stop_rebalance_timers()

    def stop_rebalance_timers(self) -> None:
        """Stop the timers of a revocation, a join, a sync and a delayed heartbeat; the session continues."""
        for timer in (self.revocation, self.join_phase, self.sync_phase, self.long_poll_timer):
            if timer is not None:
                timer.cancel()
        self.overdue = False


@dataclass(slots=True)
class ConsumerMembers(GroupMembership):
    """The members of a group under KIP-848: their metadata, targets and current assignments.

    Attributes:
        members: each member's metadata, by member id.
        epoch: the group epoch, incremented by every change of members, subscriptions or topics.
        metadata_hash: the hash of the topics that the epoch was made for.
        target_epoch: the epoch of the target assignment.
        targets: each member's target.
        current: each member's current assignment; a member that is not in it is at epoch 0 and has nothing.
        regexes: resolved regular expressions, by pattern.
        static_ids: member ids by instance id; a lookup of None, for dynamic members, finds nothing.
        holders: by partition, the member that owns it or has yet to revoke it.
        presences: the members' soft state, by member id.
        began_ms: when the current rebalance began; None: there is no rebalance.
        stopped: partitions without an owner in this rebalance, with the time since when (ms).
        still: the downtimes of partitions that were assigned again in this rebalance.
        settling: members that were not yet seen to have all of the target of `settling_epoch`; the last one has not.
        excluded: silent members that the newest target, or the one under way, leaves out.
        watch: the timer that checks members which have to move, None before the first time.
        computing: the ticket of the target computation, -1: none.
        resolving: the ticket of the regular expression task, -1: none.
        resolved_ms: when all regular expressions were last resolved, or the first one was.
        given_ids: ids given to classic members that have not yet joined with them, until the timer ends.
        settings: the group's own timeouts.
    """

    group_id: str
    members: dict[str, MemberSaved] = field(default_factory=dict)
    epoch: int = 0
    metadata_hash: int = 0
    target_epoch: int = 0
    assigned_ms: int = -1
    targets: dict[str, TopicIdPartitions] = field(default_factory=dict)
    current: dict[str, CurrentAssignment] = field(default_factory=dict)
    regexes: dict[str, RegexResolved] = field(default_factory=dict)
    static_ids: dict[str | None, str] = field(default_factory=dict)
    holders: dict[TopicIdPartition, str] = field(default_factory=dict)
    presences: dict[str, MemberSoftState] = field(default_factory=dict)
    began_ms: int | None = None
    stopped: dict[TopicIdPartition, int] = field(default_factory=dict)
    still: list[Downtime] = field(default_factory=list)
    settling: list[str] = field(default_factory=list)
    settling_epoch: int = -1
    excluded: dict[str, None] = field(default_factory=dict)
    watch: Timer | None = None
    computing: int = -1
    resolving: int = -1
    resolved_ms: int = 0
    given_ids: UnusedMemberIds[Timer] = field(default_factory=UnusedMemberIds)
    settings: GroupSettings = field(default_factory=GroupSettings)
    _moving: set[str] | None = None
    _listed: dict[str, int] = field(default_factory=dict)
    _matched: dict[str, int] = field(default_factory=dict)

    def current_assignment(self, member_id: str) -> CurrentAssignment:
        """Return a member's owned and pending-revocation partitions with its epoch."""
        return self.current.get(member_id) or CurrentAssignment()

    def topics_of(self, member: MemberSaved) -> tuple[str, ...]:
        """Return the names of the topics that one member reads, by list or by regular expression, sorted."""
        resolved = self.regexes.get(member.subscribed_regex or "")
        if resolved is None:
            return member.subscribed_topics
        return tuple(sorted({*member.subscribed_topics, *resolved.topics}))

    def subscribed(self) -> list[str]:
        """Return the names of all topics that any member reads, sorted."""
        names = set(self._listed)
        for regex in self._matched:
            resolved = self.regexes.get(regex)
            if resolved is not None:
                names.update(resolved.topics)
        return sorted(names)

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that members read; an unresolved pattern may match any."""
        if any(regex not in self.regexes for regex in self._matched):
            return None
        return frozenset(self.subscribed())

    def soft_state(self, member_id: str) -> MemberSoftState:
        """Return a member's soft state; create it if there is none."""
        presence = self.presences.get(member_id)
        if presence is None:
            presence = self.presences[member_id] = MemberSoftState(self.group_id, member_id)
        return presence

    def cancel_timers(self) -> None:
        """Stop all timers of the group."""
        for presence in self.presences.values():
            presence.cancel_timers()
        for timer in (*self.given_ids.values(), *(() if self.watch is None else (self.watch,))):
            timer.cancel()

    def group_state(self) -> GroupState:
        """Return the state: by whether there is a target for the newest epoch and all members have it."""
        if not self.members:
            return EMPTY
        if self.epoch > self.target_epoch:
            return ASSIGNING
        return RECONCILING if self.moving_members() else STABLE

    def moving_members(self) -> set[str]:
        """Return the members that do not have all of their target yet, from a cache."""
        if self._moving is None:
            self._moving = {member_id for member_id in self.members if self._moves(member_id)}
        return self._moving

    def _moves(self, member_id: str) -> bool:
        return member_id in self.members and not self.current_assignment(member_id).is_reconciled_to(self.target_epoch)

    def _note_move(self, member_id: str) -> None:
        if self._moving is not None:
            if self._moves(member_id):
                self._moving.add(member_id)
            else:
                self._moving.discard(member_id)

    def classic_members(self) -> list[MemberSaved]:
        """Return the members of the classic protocol."""
        return [member for member in self.members.values() if member.classic_protocols is not None]

    def member_connections(self) -> Iterator[tuple[str, int, bool]]:
        """Yield each member's id, its connection, and whether that has ended."""
        return ((member_id, presence.connection, presence.is_gone) for member_id, presence in self.presences.items())

    def empty_since_ms(self) -> int:
        """Return when the target of the epoch without members was written; -1 if there are members."""
        return -1 if self.members else self.assigned_ms

    def records(self) -> Iterator[Record]:
        """Yield the records of members, epoch, regular expressions, target and current assignments."""
        yield from self.members.values()
        yield EpochBumped(self.group_id, self.epoch, self.metadata_hash)
        yield from self.regexes.values()
        for member_id, target in self.targets.items():
            yield TargetAssigned(self.group_id, member_id, pack_partitions(target))
        if self.target_epoch:
            yield TargetEpochSet(self.group_id, self.target_epoch, self.assigned_ms)
        for member_id, current in self.current.items():
            yield current.to_record(self.group_id, member_id)

    def has_records(self) -> bool:
        """Return True: the group exists from its first record until its epoch's record is removed."""
        return True

    def tombstones(self) -> Iterator[RecordKey]:
        """Yield the keys of the members' records, and last that of the epoch."""
        names: tuple[tuple[RecordKind, Iterable[str]], ...] = (
            (RecordKind.CURRENT, self.current),
            (RecordKind.TARGET, self.targets),
            (RecordKind.MEMBER, self.members),
            (RecordKind.REGEX, self.regexes),
        )
        for kind, of_kind in names:
            yield from ((kind, self.group_id, name) for name in of_kind)
        if self.target_epoch:
            yield (RecordKind.TARGET_EPOCH, self.group_id)
        yield (RecordKind.EPOCH, self.group_id)

    def apply_tombstone(self, kind: RecordKind, names: list[str]) -> bool:
        """Apply a tombstone; return True for the epoch's, which is the group's last. Only the ledger calls this."""
        if kind is RecordKind.MEMBER:
            self.drop_member(names[0])
        elif kind is RecordKind.TARGET_EPOCH:
            self.target_epoch = 0
            self._moving = None
        elif kind is RecordKind.TARGET:
            self.targets.pop(names[0], None)
        elif kind is RecordKind.CURRENT:
            self.drop_current_assignment(names[0])
        elif kind is RecordKind.REGEX:
            self.regexes.pop(names[0], None)
        return kind is RecordKind.EPOCH

    def apply_epoch(self, record: EpochBumped) -> None:
        """Apply the record of a new epoch, which needs a new target. Only the ledger calls this."""
        self.epoch = record.epoch
        self.metadata_hash = record.metadata_hash

    def apply_target_epoch(self, record: TargetEpochSet) -> None:
        """Apply the record of the epoch that completes a target. Only the ledger calls this."""
        self.target_epoch = record.epoch
        self._moving = None
        self.assigned_ms = record.assigned_ms

    def apply_target_assignment(self, record: TargetAssigned) -> None:
        """Apply the record of a member's target. Only the ledger calls this."""
        self.targets[record.member_id] = unpack_partitions(record.partitions)

    def apply_regex(self, record: RegexResolved) -> None:
        """Apply the record of a resolved regular expression. Only the ledger calls this."""
        self.regexes[record.regex] = record

    def apply_member(self, member: MemberSaved) -> None:
        """Apply the record of a member's new metadata. Only the ledger calls this."""
        before = self.members.get(member.member_id)
        self._count(before, -1)
        if before is not None and before.instance_id != member.instance_id:
            self._drop_instance(before)
        self.members[member.member_id] = member
        self._count(member, 1)
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        self._note_move(member.member_id)

    def drop_member(self, member_id: str) -> None:
        """Apply the removal of a member. Called only while a record or tombstone is applied."""
        member = self.members.pop(member_id, None)
        self._count(member, -1)
        self._note_move(member_id)
        if member is not None:
            self._drop_instance(member)

    def _drop_instance(self, member: MemberSaved) -> None:
        if self.static_ids.get(member.instance_id) == member.member_id:
            del self.static_ids[member.instance_id]

    def _count(self, member: MemberSaved | None, sign: int) -> None:
        """Add (`sign` 1) or subtract (-1) a member's topics in the group's counts of subscribers.

        With these counts, a join costs no pass over all members.
        """
        if member is None:
            return
        for name in member.subscribed_topics:
            _shift(self._listed, name, sign)
        if member.subscribed_regex is not None:
            _shift(self._matched, member.subscribed_regex, sign)

    def apply_current_assignment(self, record: MemberAssigned) -> None:
        """Apply the record of a member's new assignment. Only the ledger calls this."""
        self.drop_current_assignment(record.member_id)
        current = self.current[record.member_id] = CurrentAssignment.from_record(record)
        for pair in current.assigned | current.pending:
            self.holders[pair] = record.member_id
        self._note_move(record.member_id)

    def drop_current_assignment(self, member_id: str) -> None:
        """Apply the removal of a member's assignment. Called only while a record or tombstone is applied."""
        before = self.current.pop(member_id, None)
        if before is not None:
            for pair in before.assigned | before.pending:
                if self.holders.get(pair) == member_id:
                    del self.holders[pair]
            self._note_move(member_id)

    appliers: ClassVar[Appliers] = {
        EpochBumped: apply_epoch,
        MemberSaved: apply_member,
        TargetEpochSet: apply_target_epoch,
        TargetAssigned: apply_target_assignment,
        MemberAssigned: apply_current_assignment,
        RegexResolved: apply_regex,
    }


def _shift(counts: dict[str, int], name: str, sign: int) -> None:
    left = counts.get(name, 0) + sign
    if left:
        counts[name] = left
    else:
        counts.pop(name, None)


class AssignmentMove(NamedTuple):
    """An entry of `MEMBER_TABLE`: the method that moves a member on from one state, and its possible next states."""

    why: str
    do: Callable[..., CurrentAssignment]
    to: tuple[ReconciliationState, ...]


class ConsumerReconciliation(ConsumerMembers):
    """How a member moves from its assignment to its target, and when a rebalance is complete."""

    def next_assignment(
        self, member_id: str, target: TopicIdPartitions, owned: TopicIdPartitions | None
    ) -> CurrentAssignment:
        """Return the current assignment to which a member moves with this heartbeat.

        Args:
            member_id: the member.
            target: the member's partitions at the group's target epoch.
            owned: the partitions that the member reports; None: unchanged, so perhaps all of them.
        """
        before = self.current_assignment(member_id)
        entry = MEMBER_TABLE[before.state]
        after = entry.do(self, before, member_id, target, owned)
        if after.state is not before.state and after.state not in entry.to:
            raise UnexpectedTransitionError(f"{member_id}: led from {before.state} to {after.state}")
        return after

    def continue_reconciliation(
        self, current: CurrentAssignment, member_id: str, target: TopicIdPartitions, owned: TopicIdPartitions | None
    ) -> CurrentAssignment:
        """Take the next step of a member's move to its target, unless it has all of the target."""
        if current.is_reconciled_to(self.target_epoch):
            return current
        return self.move_towards_target(member_id, current.member_epoch, target, owned)

    def continue_after_revocation(
        self, current: CurrentAssignment, member_id: str, target: TopicIdPartitions, owned: TopicIdPartitions | None
    ) -> CurrentAssignment:
        """Move on towards the newest target, unless the member still reports partitions that it has to revoke."""
        if owned is None or owned & current.pending:
            return current
        return self.move_towards_target(member_id, current.member_epoch + 1, target, owned)

    def move_towards_target(
        self, member_id: str, epoch: int, target: TopicIdPartitions, owned: TopicIdPartitions | None
    ) -> CurrentAssignment:
        """Take one step towards the target: revoke, assign, or wait."""
        before = self.current_assignment(member_id)
        kept = before.assigned & target
        to_revoke = before.assigned - kept
        previous = before.previous_epoch if epoch == before.member_epoch else before.member_epoch
        if to_revoke and (owned is None or owned & to_revoke):
            since = {pair: before.since[pair] for pair in before.assigned}
            return CurrentAssignment(epoch, previous, ReconciliationState.UNREVOKED_PARTITIONS, kept, to_revoke, since)
        holders = self.holders
        wanted = target - kept
        free = frozenset(pair for pair in wanted if holders.get(pair, member_id) == member_id)
        state = ReconciliationState.STABLE if len(free) == len(wanted) else ReconciliationState.UNRELEASED_PARTITIONS
        epoch = self.target_epoch
        previous = before.previous_epoch if epoch == before.member_epoch else before.member_epoch
        since = {pair: before.since[pair] for pair in kept} | dict.fromkeys(free, epoch)
        return CurrentAssignment(epoch, previous, state, kept | free, since=since)

    def waits_for_others(self, member_id: str) -> bool:
        """Return whether another member still owns a part of this member's target."""
        current = self.current_assignment(member_id)
        if current.state is not ReconciliationState.UNRELEASED_PARTITIONS:
            return False
        missing = self.targets.get(member_id, frozenset()) - current.assigned
        return any(self.holders.get(pair, member_id) != member_id for pair in missing)

    def reconcile_member(self, step: Step, member_id: str, owned: TopicIdPartitions | None) -> CurrentAssignment:
        """Move a member one step towards its target and bound the time of its revocation."""
        before = self.current_assignment(member_id)
        target = self.targets.get(member_id, frozenset())
        after = self.next_assignment(member_id, target, owned)
        if (after is before or after == before) and member_id in self.current:
            return after
        step.emit(after.to_record(self.group_id, member_id))
        self.record_partition_downtime(step, member_id, before.assigned, after.assigned)
        member = self.members[member_id]
        presence = self.soft_state(member_id)
        if after.state is ReconciliationState.UNREVOKED_PARTITIONS and member.classic_protocols is None:
            step.start_timer(presence.revocation, member.rebalance_timeout_ms)
        else:
            presence.revocation.cancel()
        if after.is_reconciled_to(self.epoch) and not before.is_reconciled_to(self.epoch):
            self.report_if_settled(step)
        return after

    def record_partition_downtime(
        self, step: Step, member_id: str, before: TopicIdPartitions, after: TopicIdPartitions
    ) -> None:
        """Record when partitions lose this member as owner, and how long the partitions that it gets had no owner."""
        if before == after:
            return
        now_ms = step.now.mono_ms
        for pair in before - after:
            self.stopped[pair] = now_ms
        if self.stopped:
            for pair in after - before:
                since = self.stopped.pop(pair, None)
                if since is not None:
                    self.still.append(Downtime(member_id, now_ms - since))

    def report_if_settled(self, step: Step) -> None:
        """Report the rebalance as complete when the last member has reached its target."""
        if self.settling_epoch != self.epoch:
            self.settling, self.settling_epoch = list(self.members), self.epoch
        left = self.settling
        if not left:  # all members were reached before: one of them has rejoined
            return
        while left:
            awaited = left[-1] in self.members and left[-1] not in self.excluded
            if awaited and not self.current_assignment(left[-1]).is_reconciled_to(self.epoch):
                return
            left.pop()
        step.report_rebalance(self.group_id, "consumer", self.began_ms, self.still, len(self.members), self.epoch)
        self.began_ms = None
        self.stopped.clear()
        self.still = []

    def session_timeout_ms(self, step: Step, member_id: str) -> int:
        """Return a member's session timeout."""
        member = self.members[member_id]
        if member.classic_protocols is not None:
            return member.classic_session_timeout_ms
        return self.settings.session_timeout_ms or step.config.consumer_session_timeout_ms

    def heartbeat_interval_ms(self, step: Step) -> int:
        """Return the heartbeat interval in ms for members that have all of their target.

        An interval that is not shorter than the session would have members evicted between two heartbeats: it becomes a
        third of the session. Source: KAFKA-17618.
        """
        interval_ms = self.settings.heartbeat_interval_ms or step.config.consumer_heartbeat_interval_ms
        session_ms = self.settings.session_timeout_ms or step.config.consumer_session_timeout_ms
        return interval_ms if interval_ms < session_ms else max(1, session_ms // 3)

    def preferred_assignor(self, step: Step) -> str:
        """Return the assignor that most members prefer; the first configured one if none has a preference."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.server_assignor is not None:
                votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
        return max(votes, key=lambda name: votes[name]) if votes else step.config.consumer_assignors[0]


SETTLED, UNREVOKED = ReconciliationState.STABLE, ReconciliationState.UNREVOKED_PARTITIONS
UNRELEASED = ReconciliationState.UNRELEASED_PARTITIONS

MEMBER_TABLE: Mapping[ReconciliationState, AssignmentMove] = {
    SETTLED: AssignmentMove(
        "with a newer target the member first revokes partitions, then gets those that nobody owns",
        ConsumerReconciliation.continue_reconciliation,
        (UNREVOKED, UNRELEASED),
    ),
    UNREVOKED: AssignmentMove(
        "once the member reports that it has revoked them, it moves on towards the newest target",
        ConsumerReconciliation.continue_after_revocation,
        (SETTLED, UNRELEASED),
    ),
    UNRELEASED: AssignmentMove(
        "the member gets what other members have revoked",
        ConsumerReconciliation.continue_reconciliation,
        (SETTLED, UNREVOKED),
    ),
}
"""The effect of a heartbeat, or of a classic member's JoinGroup, in each state of the member."""
