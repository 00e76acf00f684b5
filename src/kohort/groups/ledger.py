"""The hard state of all groups, and the one place that writes it.

`Ledger.apply` runs live, on every record a step returns, and on replay, with the same result: that is what makes a
restarted coordinator the same coordinator. Records of kinds that say nothing new (a tombstone of something gone) are
taken without complaint, because compaction leaves such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final

from kohort.groups.group import Group, M, Membership, Partition, PendingOffset
from kohort.groups.records import Kind, OffsetCommitted, OffsetsImported, Record, Tombstone, TransactionMarked

PARTITION_OF: Final = itemgetter(1, 2)
"""Topic and partition of an `OffsetCommitted`."""


class Ledger:
    """Every group that has a record, by id.

    Attributes:
        open_transactions: producer id to the groups that hold pending offsets of it.
        imported: by group, also one that is gone since, that it was imported.
        changed: groups that are shown elsewhere, or were, and have changed since; None: nobody has asked for them yet.
    """

    def __init__(self, kinds: Sequence[type[Membership]]) -> None:
        """Args are the memberships there are; a group that none has a record of is of the first kind."""
        self.groups: dict[str, Group] = {}
        self._first = kinds[0]
        self.open_transactions: dict[int, dict[str, None]] = {}
        self.imported: dict[str, OffsetsImported] = {}
        self.changed: dict[str, None] | None = None
        self._pending_order = 0
        self._appliers: dict[type, Callable[[Any], None]] = {
            OffsetCommitted: self._offset_committed,
            TransactionMarked: self._transaction_marked,
            OffsetsImported: self._offsets_imported,
            Tombstone: self._tombstone,
        }
        for kind in kinds:
            for record, take in kind.takes.items():
                self._appliers[record] = partial(self._take, kind, take)

    def apply(self, record: Record) -> None:
        """Take in one record."""
        self._appliers[type(record)](record)

    def note(self, membership: Membership) -> None:
        """A group of these members is not any more as it was shown."""
        if membership.is_shown and self.changed is not None:
            self.changed[membership.group_id] = None

    def snapshot(self) -> Iterator[Record]:
        """Every current record, in an order that replays to the same state."""
        yield from self.imported.values()
        for group in self.groups.values():
            yield from group.membership.records()
            pending = [slot for offsets in group.pending.values() for slot in offsets.values()]
            pending.sort(key=lambda slot: slot.order)
            yield from (slot.record for slot in pending if slot.superseded)
            yield from group.offsets.values()
            yield from (slot.record for slot in pending if not slot.superseded)

    def group(self, group_id: str) -> Group:
        """The group, made when there is none."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, self._first(group_id))
        return group

    def membership(self, group_id: str, kind: type[M]) -> M:
        """The group's members under this protocol, which it speaks from now on."""
        group = self.group(group_id)
        membership = group.membership
        if not isinstance(membership, kind):
            membership = group.membership = kind(group_id)
        return membership

    def _take(self, kind: type[Membership], take: Callable[[Any, Any], None], record: Any) -> None:
        membership = self.membership(record.group_id, kind)
        take(membership, record)
        self.note(membership)

    def take_commit(self, group: Group, records: list[OffsetCommitted]) -> None:
        """As `apply` of each: positions of one group, none of them transactional."""
        self.note(group.membership)
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

    def _offsets_imported(self, record: OffsetsImported) -> None:
        self.imported[record.group_id] = record

    def _transaction_marked(self, record: TransactionMarked) -> None:
        for group_id in self.open_transactions.pop(record.producer_id, {}):
            group = self.groups[group_id]
            self.note(group.membership)
            for partition, slot in group.pending.pop(record.producer_id, {}).items():
                if record.committed and not slot.superseded:
                    group.offsets[partition] = slot.record._replace(producer_id=-1, producer_epoch=-1)
                    _supersede(group, partition, slot.order)
            self._drop_if_void(group)

    def _tombstone(self, record: Tombstone) -> None:
        kind, group_id, *rest = record.key
        if kind is Kind.IMPORT:
            self.imported.pop(group_id, None)
            return
        group = self.groups.get(group_id)
        if group is None:
            return
        self.note(group.membership)
        if kind is Kind.OFFSET:
            self._drop_offset(group, (rest[0], rest[1]))
        elif group.membership.drop(kind, rest):
            group.membership = self._first(group_id)
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
