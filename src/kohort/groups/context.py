"""The state of one shard: its ledger, which is the hard state of its groups, and the step under way.

`Ledger.apply` is the only code that changes hard state. It runs live, on every record that a step returns, and on
replay, with the same result. For this reason a restarted coordinator has the same state. Records that change nothing,
such as a tombstone of a missing key, are accepted, because compaction leaves them behind.

`Context.handle_event` executes the groups' tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from kohort.groups import admission
from kohort.groups.admission import PROCEED, GroupImports, MissingGroupVerdict
from kohort.groups.config import GroupConfig
from kohort.groups.effects import Level
from kohort.groups.events import JoinGroup
from kohort.groups.group import REFUSED, Group, GroupMembership, M, Partition, PendingOffset
from kohort.groups.records import (
    GroupSaved,
    OffsetCommitted,
    OffsetsImported,
    Record,
    RecordKind,
    Tombstone,
    TransactionMarked,
)
from kohort.groups.step import Step
from kohort.groups.table import Trigger, UnexpectedTransitionError
from kohort.groups.timers import Deadline, Timer
from kohort.io.age_clock import AgeClock

GROUP_NAME_CHARS: Final = 1_000
"""Names of groups count toward `group.coordinator.max.groups`: this many characters as one more group."""


class Ledger:
    """The hard state of a shard: every group that has a record, by id.

    Attributes:
        open_transactions: the groups with pending offsets of a producer, by producer id.
        imported: the import records by group; they outlive their groups.
        changed: published groups that have changed since the last `DescribePushGroups`; None before the first one.
    """

    def __init__(self, kinds: Sequence[type[GroupMembership]]) -> None:
        """Create an empty state. `kinds` are the membership classes, one for each group protocol.

        A group without a record of any protocol, such as one with committed offsets only, gets the first class.
        """
        self.groups: dict[str, Group] = {}
        self._name_chars = 0
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
            for record, take in kind.appliers.items():
                self._appliers[record] = partial(self._apply_to, kind, take)

    def apply(self, record: Record) -> None:
        """Apply one journal record to the hard state."""
        self._appliers[type(record)](record)

    def mark_for_zookeeper(self, membership: GroupMembership) -> None:
        """Mark a push group as changed since ZooKeeper's mirror last published it."""
        if membership.is_shown and self.changed is not None:
            self.changed[membership.group_id] = None

    def snapshot(self) -> Iterator[Record]:
        """Return every current record, in an order that replays to the same state."""
        yield from self.imported.values()
        for group in self.groups.values():
            yield from group.membership.records()
            pending = [slot for offsets in group.pending.values() for slot in offsets.values()]
            pending.sort(key=lambda slot: slot.order)
            yield from (slot.record for slot in pending if slot.superseded)
            yield from group.offsets.values()
            yield from (slot.record for slot in pending if not slot.superseded)

    def group(self, group_id: str) -> Group:
        """Return the group of this id; if there is none, create one in memory, without a record."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, self._first(group_id))
            self._name_chars += len(group_id)
        return group

    @property
    def size(self) -> int:
        """Return the number of groups for the limit on them; 1,000 characters of their names count as one more."""
        return len(self.groups) + self._name_chars // GROUP_NAME_CHARS

    def membership(self, group_id: str, kind: type[M]) -> M:
        """Return a group's membership under this protocol; if it has another protocol, replace that by an empty one."""
        group = self.group(group_id)
        membership = group.membership
        if not isinstance(membership, kind):
            membership = group.membership = kind(group_id)
        return membership

    def _apply_to(self, kind: type[GroupMembership], take: Callable[[Any, Any], None], record: Any) -> None:
        membership = self.membership(record.group_id, kind)
        take(membership, record)
        self.mark_for_zookeeper(membership)

    def apply_commit(self, group: Group, partitions: Iterable[Partition], records: Sequence[OffsetCommitted]) -> None:
        """Apply the records of a commit to one group, none of them transactional.

        The result is that of `apply` for each record, in less time.
        """
        if group.membership.is_shown:
            self.mark_for_zookeeper(group.membership)
        group.offsets.update(zip(partitions, records, strict=True))
        if group.pending:
            for record in records:
                _supersede(group, (record.topic, record.partition), self._pending_order)

    def _offset_committed(self, record: OffsetCommitted) -> None:
        group = self.group(record.group_id)
        partition = (record.topic, record.partition)
        if record.producer_id >= 0:
            self._pending_order += 1
            slot = PendingOffset(record, self._pending_order)
            group.pending.setdefault(record.producer_id, {})[partition] = slot
            group.pending_of.setdefault(partition, {})[record.producer_id] = slot
            self.open_transactions.setdefault(record.producer_id, {})[record.group_id] = None
            return
        self.apply_commit(group, (partition,), (record,))

    def _offsets_imported(self, record: OffsetsImported) -> None:
        self.imported[record.group_id] = record

    def _transaction_marked(self, record: TransactionMarked) -> None:
        for group_id in self.open_transactions.pop(record.producer_id, {}):
            group = self.groups[group_id]
            self.mark_for_zookeeper(group.membership)
            for partition, slot in group.pending.pop(record.producer_id, {}).items():
                _forget_producer(group, partition, record.producer_id)
                if record.committed and not slot.superseded:
                    group.offsets[partition] = slot.record._replace(producer_id=-1, producer_epoch=-1)
                    _supersede(group, partition, slot.order)
            self._drop_if_void(group)

    def _tombstone(self, record: Tombstone) -> None:
        kind, group_id, *rest = record.key
        if kind is RecordKind.IMPORT:
            self.imported.pop(group_id, None)
            return
        group = self.groups.get(group_id)
        if group is None:
            return
        self.mark_for_zookeeper(group.membership)
        if kind is RecordKind.OFFSET:
            self._drop_offset(group, (rest[0], rest[1]))
        elif group.membership.apply_tombstone(kind, rest):
            group.membership = self._first(group_id)
        self._drop_if_void(group)

    def _drop_offset(self, group: Group, partition: Partition) -> None:
        group.offsets.pop(partition, None)
        for producer_id in group.pending_of.pop(partition, {}):
            offsets = group.pending[producer_id]
            del offsets[partition]
            if not offsets:
                del group.pending[producer_id]
                self.open_transactions[producer_id].pop(group.group_id, None)

    def _drop_if_void(self, group: Group) -> None:
        if group.has_no_records() and self.groups.pop(group.group_id, None) is not None:
            self._name_chars -= len(group.group_id)


def _supersede(group: Group, partition: Partition, up_to: int) -> None:
    for slot in group.pending_of.get(partition, {}).values():
        if slot.order <= up_to:
            slot.superseded = True


def _forget_producer(group: Group, partition: Partition, producer_id: int) -> None:
    holders = group.pending_of[partition]
    del holders[producer_id]
    if not holders:
        del group.pending_of[partition]


Downgrade: TypeAlias = "Callable[[str, str | None, tuple[JoinGroup, str] | None], bool]"
"""A function that converts a consumer group to a classic one: the groups' own code may not know both protocols."""


def never_converts_to_classic(_group_id: str, _leaving: str | None, _joining: tuple[JoinGroup, str] | None) -> bool:
    """Return False: without a `GroupMachine`, a shard converts no consumer group to a classic one."""
    return False


class Context(Step):
    """The state of one shard and its current step.

    Attributes:
        ledger: the hard state.
        downgrade: the conversion of a consumer group to a classic one; the machine sets it.
        imports: the groups whose earlier coordinator is being asked.
        expiring: groups that the current offset expiration has still to look at.
        ages: the clock of offset expiration.
    """

    def __init__(self, config: GroupConfig, protocols: Sequence[type[GroupMembership]]) -> None:
        super().__init__(config)
        self.ledger = Ledger(protocols)
        self.imports = GroupImports()
        self.expiring: list[str] = []
        self.expiry = Timer(Deadline.EXPIRY)
        self.downgrade: Downgrade = never_converts_to_classic
        self.ages = AgeClock(0, 0)

    def emit(self, record: Record) -> None:
        """Apply a record to the hard state now, and append it with the step's effects."""
        self.ledger.apply(record)
        self.effects.records.append(record)

    def offsets_of(self, group_id: str) -> Mapping[tuple[str, int], OffsetCommitted]:
        """Return the committed offsets of an existing group, by topic and partition."""
        return self.ledger.groups[group_id].offsets

    def convert_to_classic(
        self, group_id: str, leaving: str | None = None, joining: tuple[JoinGroup, str] | None = None
    ) -> bool:
        """Convert a consumer group to a classic one if only classic members are left and the policy permits it."""
        return self.downgrade(group_id, leaving, joining)

    def mark_for_zookeeper(self, group_id: str) -> None:
        """Mark a push group as changed, because soft state that ZooKeeper's mirror shows has changed."""
        self.ledger.mark_for_zookeeper(self.ledger.groups[group_id].membership)

    def find(self, group_id: str) -> Group | None:
        """Return the group with this id; None if there is none."""
        return self.ledger.groups.get(group_id)

    def handle_event(self, group: Group, trigger: Trigger, *arguments: Any) -> None:
        """Let a group handle an event, by the transition table of its protocol.

        Raises:
            UnexpectedTransitionError: the handler led to a state that the table does not name.
        """
        membership = group.membership
        reactions = membership.table.get(trigger)
        if reactions is None:
            refuse = REFUSED.get(trigger)
            if refuse is not None:
                refuse(membership, self, *arguments)
            return
        before = membership.group_state()
        entry = reactions[before]
        if entry.do is None:
            return
        entry.do(membership, self, *arguments)
        after = membership.group_state() if group.membership is membership else group.membership.name
        if after is not before and after not in entry.to:
            raise UnexpectedTransitionError(f"{group.group_id}: {trigger} led from {before} to {after}")

    def remove_membership(self, group: Group) -> None:
        """Write tombstones for all records of a group's membership; its offsets stay."""
        for key in list(group.membership.tombstones()):
            self.emit(Tombstone(key))

    def missing_group_verdict(self, group_id: str) -> MissingGroupVerdict:
        """Return the verdict on a missing group: create it, refuse, or retry while its import is under way."""
        if self.config.group_import == "off" or group_id in self.ledger.imported:
            return PROCEED
        return self.imports.verdict_or_import(self, group_id)

    def has_room(self) -> bool:
        """Return whether the shard has fewer groups than `group.coordinator.max.groups`."""
        return admission.has_room_for_group(self.config, self.ledger.size)

    def create_group(self, group_id: str) -> Group | None:
        """Create an empty group with its record; None if the shard holds `group.coordinator.max.groups` already."""
        if not self.has_room():
            self.log(group_id, f"refused: there are {self.config.groups_max} groups already", Level.WARNING)
            return None
        self.emit(GroupSaved(group_id, "", 0, None, None, self.now.wall_ms, ()))
        return self.ledger.groups[group_id]
