"""The state that every protocol's handlers share: groups, deadlines, the time of the step, and its effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from kohort.groups.config import GroupConfig
from kohort.groups.effects import Counted, Level, LogLine, Meter, Now, Outcome, Rebalanced, Reply, ReplyValue
from kohort.groups.events import NO_CONNECTION, GroupSettings, Topic, TopicImage
from kohort.groups.group import Group, GroupMembership, M, Partition, PendingOffset
from kohort.groups.imports import Imports
from kohort.groups.long_polling import HeldReplies
from kohort.groups.records import (
    GroupSaved,
    Kind,
    OffsetCommitted,
    OffsetsImported,
    Record,
    Tombstone,
    TransactionMarked,
)
from kohort.groups.timers import Deadline, Deadlines, Timer
from kohort.ids import TopicId

if TYPE_CHECKING:
    from kohort.groups.handlers import AnyProtocol


# -- The hard state of all groups
#
# `Ledger.apply` is the only writer. It runs live, on every record that a step returns, and on replay, with the same
# result. For this reason a restarted coordinator has the same state. Records that change nothing, such as a tombstone
# of a missing key, are accepted, because compaction leaves them behind.

PARTITION_OF: Final = itemgetter(1, 2)
"""The topic and partition of an `OffsetCommitted`."""


GROUP_NAME_CHARS: Final = 1_000
"""Names of groups count toward `group.coordinator.max.groups`: so many characters as one more group."""


class Ledger:
    """The hard state of a shard: every group that has a record, by id.

    Attributes:
        open_transactions: the groups with pending offsets of a producer, by producer id.
        imported: the import records by group; they outlive their groups.
        changed: published groups that have changed since the last `ShowPushGroups`; None before the first one.
    """

    def __init__(self, kinds: Sequence[type[GroupMembership]]) -> None:
        """Take the classes of memberships; a group without records of its own membership gets the first class."""
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
            for record, take in kind.takes.items():
                self._appliers[record] = partial(self._take, kind, take)

    def apply(self, record: Record) -> None:
        """Apply one record to the state."""
        self._appliers[type(record)](record)

    def mark_changed(self, membership: GroupMembership) -> None:
        """Mark a group as changed since it was last published."""
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
        """Return a group; create it if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, self._first(group_id))
            self._name_chars += len(group_id)
        return group

    def is_full(self, groups_max: int) -> bool:
        """Return whether no further group may be created. Names of up to 32 KB count as what they take in memory."""
        return len(self.groups) + self._name_chars // GROUP_NAME_CHARS >= groups_max

    def membership(self, group_id: str, kind: type[M]) -> M:
        """Return a group's members under this protocol, and switch the group to it if necessary."""
        group = self.group(group_id)
        membership = group.membership
        if not isinstance(membership, kind):
            membership = group.membership = kind(group_id)
        return membership

    def _take(self, kind: type[GroupMembership], take: Callable[[Any, Any], None], record: Any) -> None:
        membership = self.membership(record.group_id, kind)
        take(membership, record)
        self.mark_changed(membership)

    def take_commit(self, group: Group, records: list[OffsetCommitted]) -> None:
        """Apply a commit of several positions to one group, none of them transactional: a faster `apply` of each."""
        self.mark_changed(group.membership)
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
            self.mark_changed(group.membership)
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
        self.mark_changed(group.membership)
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
        if group.is_void() and self.groups.pop(group.group_id, None) is not None:
            self._name_chars -= len(group.group_id)


def _supersede(group: Group, partition: Partition, up_to: int) -> None:
    for offsets in group.pending.values():
        slot = offsets.get(partition)
        if slot is not None and slot.order <= up_to:
            slot.superseded = True


class Context:
    """The state of one shard and its current step.

    Attributes:
        protocols: the protocol handlers by the class of a group's membership.
        ledger: the hard state.
        now: the time of the step.
        out: the effects of the step.
        image: the topics.
        connections: by connection, the (group, member id) pairs last heard on it, or awaiting their id on it.
        held: the delayed heartbeats.
        imports: the groups whose earlier coordinator is being asked.
        settings: the groups' own settings.
        sessions_from_ms: until this time an earlier owner may have heard members; sessions are extended accordingly.
        expiring: groups that the current offset expiration has still to look at.
    """

    def __init__(self, config: GroupConfig, protocols: Sequence[AnyProtocol]) -> None:
        self.config = config
        self.protocols = {protocol.membership: protocol for protocol in protocols}
        self.ledger = Ledger(list(self.protocols))
        self.deadlines = Deadlines()
        self.image = TopicImage()
        self._ids_of: TopicImage | None = None
        self._by_id: dict[TopicId, Topic] = {}
        self.now = Now(0, 0)
        self.out = Outcome()
        self._ticket = 0
        self.connections: dict[int, dict[tuple[str, str], None]] = {}
        self.held = HeldReplies()
        self.imports = Imports()
        self.settings: dict[str, GroupSettings] = {}
        self.sessions_from_ms = 0
        self.expiring: list[str] = []
        self.expiry = Timer(Deadline.EXPIRY)

    def begin(self, now: Now) -> None:
        """Begin a step."""
        self.now = now
        self.out = Outcome()

    def emit(self, record: Record) -> None:
        """Apply a record to the hard state now, and append it with the step's effects."""
        self.ledger.apply(record)
        self.out.records.append(record)

    def reply(self, request: int, value: ReplyValue) -> None:
        """Answer a request as soon as the records so far are durable."""
        self.out.replies.append(Reply(request, value))

    def run(self, timer: Timer, delay_ms: int) -> None:
        """Start a timer from now."""
        self.deadlines.set(timer, self.now.mono_ms + delay_ms)

    def count(self, meter: Meter, amount: int = 1) -> None:
        """Increase a counter."""
        if amount:
            self.out.notes.append(Counted(meter, amount))

    def rebalanced(self, group_id: str, protocol: str, began_ms: int | None, still: list[int], members: int) -> None:
        """Report that a rebalance is finished: count it and record its duration.

        Args:
            group_id: the group.
            protocol: the group's protocol.
            began_ms: when the first change came; None counts as now.
            still: the downtimes of members or partitions, in ms.
            members: the number of members now.
        """
        now_ms = self.now.mono_ms
        self.count(Meter.COMPLETED_REBALANCES)
        whole = now_ms - (now_ms if began_ms is None else began_ms)
        mean = sum(still) / len(still) if still else 0.0
        self.out.notes.append(Rebalanced(group_id, protocol, whole, mean, max(still, default=0), members))

    def log(self, group_id: str, text: str, level: Level = Level.INFO) -> None:
        """Add a log line to the effects."""
        self.out.notes.append(LogLine(level, group_id, text))

    def remember_connection(self, connection: int, group_id: str, member_id: str) -> None:
        """Record that a member was heard on this connection."""
        if connection != NO_CONNECTION:
            self.connections.setdefault(connection, {})[group_id, member_id] = None

    def forget_connection(self, connection: int, group_id: str, member_id: str) -> None:
        """Drop a member that is gone, or that was heard on another connection since."""
        of_connection = self.connections.get(connection)
        if of_connection is not None:
            of_connection.pop((group_id, member_id), None)
            if not of_connection:
                del self.connections[connection]

    def ticket(self) -> int:
        """Return a number that no earlier task of this process has, not even one of a discarded machine."""
        self._ticket = max(self._ticket + 1, self.now.mono_ms << 10)
        return self._ticket

    def topics_by_id(self) -> Mapping[TopicId, Topic]:
        """Return the topics of the image by their ids."""
        if self._ids_of is not self.image:
            self._ids_of = self.image
            self._by_id = {topic.id: topic for topic in self.image.topics.values()}
        return self._by_id

    def find(self, group_id: str) -> Group | None:
        """Return a group; None if there is none."""
        return self.ledger.groups.get(group_id)

    def protocol(self, group: Group) -> AnyProtocol:
        """Return the handlers of a group's protocol, whose functions take its membership."""
        return self.protocols[type(group.membership)]

    def remove(self, group: Group) -> None:
        """Write tombstones for all records of a group's membership; its offsets stay."""
        for key in list(group.membership.tombstones()):
            self.emit(Tombstone(key))

    def create(self, group_id: str) -> Group | None:
        """Create an empty group with its record; None if the shard holds `group.coordinator.max.groups` already."""
        if self.ledger.is_full(self.config.groups_max):
            self.log(group_id, f"refused: there are {self.config.groups_max} groups already", Level.WARNING)
            return None
        self.emit(GroupSaved(group_id, "", 0, None, None, self.now.wall_ms, ()))
        return self.ledger.groups[group_id]
