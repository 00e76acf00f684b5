"""The hard state of all groups, and the one place that writes it.

`Ledger.apply` runs live, on every record a step returns, and on replay, with the same result: that is what makes a
restarted coordinator the same coordinator. Records of kinds that say nothing new (a tombstone of something gone) are
taken without complaint, because compaction leaves such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kohort.groups.records import (
    GenerationStarted,
    GroupSaved,
    Kind,
    OffsetCommitted,
    Record,
    Tombstone,
    TransactionMarked,
)
from kohort.groups.state import Group, Partition, PendingOffset


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

    def _group_saved(self, record: GroupSaved) -> None:
        self.group(record.group_id).saved = record

    def _generation_started(self, record: GenerationStarted) -> None:
        self.group(record.group_id).started = record.generation

    def _offset_committed(self, record: OffsetCommitted) -> None:
        group = self.group(record.group_id)
        partition = (record.topic, record.partition)
        if record.producer_id >= 0:
            self._pending_order += 1
            group.pending.setdefault(record.producer_id, {})[partition] = PendingOffset(record, self._pending_order)
            self.open_transactions.setdefault(record.producer_id, {})[record.group_id] = None
            return
        group.offsets[partition] = record
        if group.pending:
            _supersede(group, partition, self._pending_order)

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
        self._drop_if_void(group)

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


def _supersede(group: Group, partition: Partition, up_to: int) -> None:
    for offsets in group.pending.values():
        slot = offsets.get(partition)
        if slot is not None and slot.order <= up_to:
            slot.superseded = True
