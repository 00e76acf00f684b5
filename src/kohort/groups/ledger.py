"""The hard state of all groups, and the one place that writes it.

`Ledger.apply` runs live, on every record a step returns, and on replay, with the same result: that is what makes a
restarted coordinator the same coordinator. Records of kinds that say nothing new (a tombstone of something gone) are
taken without complaint, because compaction leaves such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final

from kohort.groups.consumer.state import ConsumerGroup, pack, unpack
from kohort.groups.group import Group, Partition, PendingOffset
from kohort.groups.records import (
    EpochBumped,
    GenerationStarted,
    GroupSaved,
    Kind,
    MemberAssigned,
    MemberSaved,
    OffsetCommitted,
    Record,
    RegexResolved,
    TargetAssigned,
    TargetEpochSet,
    Tombstone,
    TransactionMarked,
)

PARTITION_OF: Final = itemgetter(1, 2)
"""Topic and partition of an `OffsetCommitted`."""


class Ledger:
    """Every group that has a record, by id.

    Attributes:
        open_transactions: producer id to the groups that hold pending offsets of it.
    """

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.open_transactions: dict[int, dict[str, None]] = {}
        self._pending_order = 0
        self._appliers: dict[type, Callable[[Any], None]] = {
            OffsetCommitted: self._offset_committed,
            TransactionMarked: self._transaction_marked,
            GroupSaved: self._group_saved,
            GenerationStarted: self._generation_started,
            Tombstone: self._tombstone,
            EpochBumped: self._epoch_bumped,
            MemberSaved: lambda record: self.consumer(record.group_id).take_member(record),
            TargetEpochSet: self._target_epoch_set,
            TargetAssigned: self._target_assigned,
            MemberAssigned: lambda record: self.consumer(record.group_id).take_current(record),
            RegexResolved: self._regex_resolved,
        }

    def apply(self, record: Record) -> None:
        """Take in one record."""
        self._appliers[type(record)](record)

    def snapshot(self) -> Iterator[Record]:
        """Every current record, in an order that replays to the same state."""
        for group in self.groups.values():
            if group.saved is not None:
                yield group.saved
            if group.started:
                yield GenerationStarted(group.group_id, group.started)
            if group.consumer is not None:
                yield from consumer_records(group.group_id, group.consumer)
            pending = [slot for offsets in group.pending.values() for slot in offsets.values()]
            pending.sort(key=lambda slot: slot.order)
            yield from (slot.record for slot in pending if slot.superseded)
            yield from group.offsets.values()
            yield from (slot.record for slot in pending if not slot.superseded)

    def group(self, group_id: str) -> Group:
        """The group, made when there is none."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id)
        return group

    def consumer(self, group_id: str) -> ConsumerGroup:
        """The group under KIP-848, made when there is none."""
        group = self.group(group_id)
        if group.consumer is None:
            group.consumer = ConsumerGroup()
        return group.consumer

    def _epoch_bumped(self, record: EpochBumped) -> None:
        consumer = self.consumer(record.group_id)
        consumer.epoch = record.epoch
        consumer.metadata_hash = record.metadata_hash

    def _target_epoch_set(self, record: TargetEpochSet) -> None:
        consumer = self.consumer(record.group_id)
        consumer.target_epoch = record.epoch
        consumer.assigned_ms = record.assigned_ms

    def _target_assigned(self, record: TargetAssigned) -> None:
        self.consumer(record.group_id).targets[record.member_id] = unpack(record.partitions)

    def _regex_resolved(self, record: RegexResolved) -> None:
        self.consumer(record.group_id).regexes[record.regex] = record

    def _group_saved(self, record: GroupSaved) -> None:
        self.group(record.group_id).saved = record

    def _generation_started(self, record: GenerationStarted) -> None:
        self.group(record.group_id).started = record.generation

    def take_commit(self, group: Group, records: list[OffsetCommitted]) -> None:
        """As `apply` of each: positions of one group, none of them transactional."""
        group.offsets.update(zip(map(PARTITION_OF, records), records, strict=True))
        if group.pending:
            for record in records:
                _supersede(group, (record.topic, record.partition), self._pending_order)

    def _offset_committed(self, record: OffsetCommitted) -> None:
        group = self.group(record.group_id)
        partition = (record.topic, record.partition)
        if record.producer_id >= 0:
            self._pending_order += 1
            group.pending.setdefault(record.producer_id, {})[partition] = PendingOffset(record, self._pending_order)
            self.open_transactions.setdefault(record.producer_id, {})[record.group_id] = None
            return
        self.take_commit(group, [record])

    def _transaction_marked(self, record: TransactionMarked) -> None:
        for group_id in self.open_transactions.pop(record.producer_id, {}):
            group = self.groups[group_id]
            for partition, slot in group.pending.pop(record.producer_id, {}).items():
                if record.committed and not slot.superseded:
                    group.offsets[partition] = slot.record._replace(producer_id=-1, producer_epoch=-1)
                    _supersede(group, partition, slot.order)
            self._drop_if_void(group)

    def _tombstone(self, record: Tombstone) -> None:
        kind, group_id, *rest = record.key
        group = self.groups.get(group_id)
        if group is None:
            return
        if kind is Kind.OFFSET:
            self._drop_offset(group, (rest[0], rest[1]))
        elif kind is Kind.GROUP:
            group.saved = None
        elif kind is Kind.GENERATION:
            group.started = 0
        elif group.consumer is not None:
            self._drop_consumer_fact(group, group.consumer, kind, rest)
        self._drop_if_void(group)

    @staticmethod
    def _drop_consumer_fact(group: Group, consumer: ConsumerGroup, kind: Kind, rest: list[str]) -> None:
        if kind is Kind.EPOCH:
            group.consumer = None
        elif kind is Kind.MEMBER:
            consumer.drop_member(rest[0])
        elif kind is Kind.TARGET_EPOCH:
            consumer.target_epoch = 0
        elif kind is Kind.TARGET:
            consumer.targets.pop(rest[0], None)
        elif kind is Kind.CURRENT:
            consumer.drop_current(rest[0])
        elif kind is Kind.REGEX:
            consumer.regexes.pop(rest[0], None)

    def _drop_offset(self, group: Group, partition: Partition) -> None:
        group.offsets.pop(partition, None)
        for producer_id in [producer for producer, offsets in group.pending.items() if partition in offsets]:
            offsets = group.pending[producer_id]
            del offsets[partition]
            if not offsets:
                del group.pending[producer_id]
                self.open_transactions[producer_id].pop(group.group_id, None)

    def _drop_if_void(self, group: Group) -> None:
        if group.is_void():
            self.groups.pop(group.group_id, None)


def consumer_records(group_id: str, consumer: ConsumerGroup) -> Iterator[Record]:
    """Every record of a group under KIP-848."""
    yield from consumer.members.values()
    yield EpochBumped(group_id, consumer.epoch, consumer.metadata_hash)
    yield from consumer.regexes.values()
    for member_id, target in consumer.targets.items():
        yield TargetAssigned(group_id, member_id, pack(target))
    if consumer.target_epoch:
        yield TargetEpochSet(group_id, consumer.target_epoch, consumer.assigned_ms)
    for member_id, current in consumer.current.items():
        yield current.record(group_id, member_id)


def _supersede(group: Group, partition: Partition, up_to: int) -> None:
    for offsets in group.pending.values():
        slot = offsets.get(partition)
        if slot is not None and slot.order <= up_to:
            slot.superseded = True
