"""An independent model of every group, built from the journal's records: checkers compare the coordinator with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kohort.groups.effects import GroupState
from kohort.groups.records import (
    EpochBumped,
    GenerationStarted,
    GroupSaved,
    HeldPartitions,
    MemberAssigned,
    MemberSaved,
    OffsetCommitted,
    PushGroupSaved,
    PushMemberSaved,
    PushOwned,
    ReconciliationState,
    Record,
    RecordKind,
    RegexResolved,
    TargetAssigned,
    TargetEpochSet,
    Tombstone,
    TopicPartitions,
    TransactionMarked,
)
from kohort.ids import TopicId

TopicIdPartitions = frozenset[tuple[TopicId, int]]
Slot = tuple[str, int]


def pairs(entries: Iterable[TopicPartitions | HeldPartitions]) -> TopicIdPartitions:
    """Return partitions as a set."""
    return frozenset((entry.topic_id, number) for entry in entries for number in entry.partitions)


@dataclass
class ConsumerJournal:
    """A consumer group as its records describe it."""

    epoch: int = 0
    metadata_hash: int = 0
    target_epoch: int = 0
    members: dict[str, MemberSaved] = field(default_factory=dict)
    targets: dict[str, TopicIdPartitions] = field(default_factory=dict)
    current: dict[str, MemberAssigned] = field(default_factory=dict)
    regexes: dict[str, RegexResolved] = field(default_factory=dict)

    def topics_of(self, member: MemberSaved) -> tuple[str, ...]:
        """Return the names of the topics that a member subscribes to."""
        resolved = self.regexes.get(member.subscribed_regex or "")
        return (*member.subscribed_topics, *(() if resolved is None else resolved.topics))

    def epoch_of(self, member_id: str) -> int:
        """Return a member's epoch, 0 before it has one."""
        current = self.current.get(member_id)
        return 0 if current is None else current.member_epoch

    def state_of(self, member_id: str) -> ReconciliationState:
        """Return a member's reconciliation state."""
        current = self.current.get(member_id)
        return ReconciliationState.STABLE if current is None else current.state

    def holder_of(self, instance_id: str) -> str | None:
        """Return the member that has an instance id."""
        return next((name for name, member in self.members.items() if member.instance_id == instance_id), None)

    def state(self) -> GroupState:
        """Return the state as ListGroups shows it."""
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        settled = all(
            self.epoch_of(name) == self.target_epoch and self.state_of(name) is ReconciliationState.STABLE
            for name in self.members
        )
        return GroupState.STABLE if settled else GroupState.RECONCILING


@dataclass
class PushJournal:
    """A push group as its records describe it."""

    members: dict[str, PushMemberSaved] = field(default_factory=dict)
    owned: dict[str, TopicIdPartitions] = field(default_factory=dict)


@dataclass
class GroupJournal:
    """A group as its records describe it.

    Attributes:
        offsets: partitions with a committed offset.
        pending: by producer id, the partitions whose offsets its open transaction holds.
        consumer: None unless it is a consumer group.
        push: None unless it is a push group.
    """

    saved: GroupSaved | None = None
    started: int = 0
    offsets: dict[Slot, None] = field(default_factory=dict)
    pending: dict[int, dict[Slot, None]] = field(default_factory=dict)
    consumer: ConsumerJournal | None = None
    push: PushJournal | None = None

    def is_void(self) -> bool:
        """Return whether no record of the group is left."""
        return not (self.saved or self.started or self.offsets or self.pending or self.consumer or self.push)

    def slots(self) -> set[Slot]:
        """Return the partitions with a committed or a pending offset."""
        return {*self.offsets, *(slot for held in self.pending.values() for slot in held)}


class JournalModel:
    """Every group that has a record."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupJournal] = {}

    def consumer(self, group_id: str) -> ConsumerJournal | None:
        """The consumer group of this name."""
        group = self.groups.get(group_id)
        return None if group is None else group.consumer

    def rebuild(self, records: Iterable[Record]) -> None:
        """Start again from these records."""
        self.groups.clear()
        self.take(records)

    def take(self, records: Iterable[Record]) -> None:
        """Apply the records of a step."""
        for record in records:
            kind = type(record)
            if kind is OffsetCommitted:
                self._commit(record)  # type: ignore[arg-type]
            elif kind is TransactionMarked:
                self._end(record)  # type: ignore[arg-type]
            elif kind is Tombstone:
                self._bury(record)  # type: ignore[arg-type]
            else:
                self._save(self.groups.setdefault(record.group_id, GroupJournal()), record)  # type: ignore[union-attr]

    def _commit(self, record: OffsetCommitted) -> None:
        group = self.groups.get(record.group_id)
        if group is None:
            group = self.groups[record.group_id] = GroupJournal()
        slot = (record.topic, record.partition)
        if record.producer_id >= 0:
            group.pending.setdefault(record.producer_id, {})[slot] = None
            return
        group.offsets[slot] = None

    def _end(self, record: TransactionMarked) -> None:
        for group_id, group in list(self.groups.items()):
            held = group.pending.pop(record.producer_id, {})
            if record.committed:
                group.offsets.update(dict.fromkeys(held))
            if group.is_void():
                del self.groups[group_id]

    @staticmethod
    def _save(group: GroupJournal, record: Record) -> None:
        if isinstance(record, GroupSaved):
            group.saved = record
            return
        if isinstance(record, GenerationStarted):
            group.started = record.generation
            return
        if isinstance(record, PushGroupSaved | PushMemberSaved | PushOwned):
            push = group.push = group.push or PushJournal()
            if isinstance(record, PushMemberSaved):
                push.members[record.member_id] = record
            elif isinstance(record, PushOwned):
                push.owned[record.member_id] = pairs(record.partitions)
            return
        consumer = group.consumer = group.consumer or ConsumerJournal()
        if isinstance(record, EpochBumped):
            consumer.epoch, consumer.metadata_hash = record.epoch, record.metadata_hash
        elif isinstance(record, TargetEpochSet):
            consumer.target_epoch = record.epoch
        elif isinstance(record, MemberSaved):
            consumer.members[record.member_id] = record
        elif isinstance(record, TargetAssigned):
            consumer.targets[record.member_id] = pairs(record.partitions)
        elif isinstance(record, MemberAssigned):
            consumer.current[record.member_id] = record
        elif isinstance(record, RegexResolved):
            consumer.regexes[record.regex] = record

    def _bury(self, record: Tombstone) -> None:
        kind, group_id, *rest = record.key
        group = self.groups.get(group_id)
        if group is None:
            return
        if kind is RecordKind.OFFSET:
            self._drop_offset(group, (rest[0], rest[1]))
        elif kind is RecordKind.GROUP:
            group.saved = None
        elif kind is RecordKind.GENERATION:
            group.started = 0
        elif kind is RecordKind.EPOCH:
            group.consumer = None
        elif kind is RecordKind.PUSH_GROUP:
            group.push = None
        elif kind is RecordKind.PUSH_MEMBER and group.push is not None:
            group.push.members.pop(rest[0], None)
        elif kind is RecordKind.PUSH_OWNED and group.push is not None:
            group.push.owned.pop(rest[0], None)
        elif group.consumer is not None:
            consumer = group.consumer
            if kind is RecordKind.TARGET_EPOCH:
                consumer.target_epoch = 0
            else:
                held = {
                    RecordKind.MEMBER: consumer.members,
                    RecordKind.TARGET: consumer.targets,
                    RecordKind.CURRENT: consumer.current,
                    RecordKind.REGEX: consumer.regexes,
                }
                held[kind].pop(rest[0], None)  # type: ignore[attr-defined]
        if group.is_void():
            del self.groups[group_id]

    @staticmethod
    def _drop_offset(group: GroupJournal, slot: Slot) -> None:
        group.offsets.pop(slot, None)
        for producer_id, held in list(group.pending.items()):
            held.pop(slot, None)
            if not held:
                del group.pending[producer_id]
