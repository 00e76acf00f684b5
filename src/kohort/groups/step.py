"""What every protocol's handlers work with: the groups, the deadlines, the moment, and the outcome under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from kohort.groups.config import GroupConfig
from kohort.groups.effects import Counted, Level, Meter, Now, Outcome, Rebalanced, Reply, ReplyValue, Told
from kohort.groups.events import NO_CONNECTION, GroupSettings, Topic, TopicImage
from kohort.groups.group import Group, M, Membership, Partition, PendingOffset
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
    from kohort.groups.handlers import Row


# -- The hard state of all groups, and the one place that writes it
#
# `Ledger.apply` runs live, on every record a step returns, and on replay, with the same result: that is what makes a
# restarted coordinator the same coordinator. Records of kinds that say nothing new (a tombstone of something gone) are
# taken without complaint, because compaction leaves such.

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


class Context:
    """The state of one shard and the step it is in.

    Attributes:
        protocols: a group's row by the class of its membership.
        ledger: the hard state.
        now: the moment of the step.
        out: what the step will return.
        image: the topics.
        connections: by connection, the (group, member id) last heard on it, or to be told their id on it.
        held: the replies that are held.
        imports: groups that are being asked for at their earlier coordinator.
        settings: groups' own settings.
        sessions_from_ms: an earlier owner may have heard members until then, and no session ends as if it had not.
        expiring: groups whose offsets the expiration under way has still to look at.
    """

    def __init__(self, config: GroupConfig, protocols: Sequence[Row]) -> None:
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
        """Start a step."""
        self.now = now
        self.out = Outcome()

    def emit(self, record: Record) -> None:
        """Change the hard state, now and durably."""
        self.ledger.apply(record)
        self.out.records.append(record)

    def reply(self, request: int, value: ReplyValue) -> None:
        """Answer a request, once the records so far are durable."""
        self.out.replies.append(Reply(request, value))

    def run(self, timer: Timer, delay_ms: int) -> None:
        """Set a timer from now."""
        self.deadlines.set(timer, self.now.mono_ms + delay_ms)

    def count(self, meter: Meter, amount: int = 1) -> None:
        """Move a meter on."""
        if amount:
            self.out.notes.append(Counted(meter, amount))

    def rebalanced(self, group_id: str, protocol: str, began_ms: int | None, still: list[int], members: int) -> None:
        """A group is whole again: count it, and leave how long it took and how long (`still`, ms) who stood still."""
        now_ms = self.now.mono_ms
        self.count(Meter.COMPLETED_REBALANCES)
        whole = now_ms - (now_ms if began_ms is None else began_ms)
        mean = sum(still) / len(still) if still else 0.0
        self.out.notes.append(Rebalanced(group_id, protocol, whole, mean, max(still, default=0), members))

    def tell(self, group_id: str, text: str, level: Level = Level.INFO) -> None:
        """Leave a line for the log."""
        self.out.notes.append(Told(level, group_id, text))

    def remember_connection(self, connection: int, group_id: str, member_id: str) -> None:
        """A member was heard on this connection."""
        if connection != NO_CONNECTION:
            self.connections.setdefault(connection, {})[group_id, member_id] = None

    def forget_connection(self, connection: int, group_id: str, member_id: str) -> None:
        """A member is gone, or was heard on another connection since."""
        of_connection = self.connections.get(connection)
        if of_connection is not None:
            of_connection.pop((group_id, member_id), None)
            if not of_connection:
                del self.connections[connection]

    def ticket(self) -> int:
        """A number that no earlier work of this process has, also not of a machine that was thrown away."""
        self._ticket = max(self._ticket + 1, self.now.mono_ms << 10)
        return self._ticket

    def topics_by_id(self) -> Mapping[TopicId, Topic]:
        """The topics of the image by their ids."""
        if self._ids_of is not self.image:
            self._ids_of = self.image
            self._by_id = {topic.id: topic for topic in self.image.topics.values()}
        return self._by_id

    def find(self, group_id: str) -> Group | None:
        """The group, None when there is none."""
        return self.ledger.groups.get(group_id)

    def protocol(self, group: Group) -> Row:
        """The row of a group's protocol, whose functions take its membership."""
        return self.protocols[type(group.membership)]

    def remove(self, group: Group) -> None:
        """Write that a group has no members' records any more; its offsets stay."""
        for key in list(group.membership.tombstones()):
            self.emit(Tombstone(key))

    def create(self, group_id: str) -> Group | None:
        """A new empty group with its record; None when the shard has as many as it may have."""
        if len(self.ledger.groups) >= self.config.groups_max:
            self.tell(group_id, f"refused: there are {self.config.groups_max} groups already", Level.WARNING)
            return None
        self.emit(GroupSaved(group_id, "", 0, None, None, self.now.wall_ms, ()))
        return self.ledger.groups[group_id]
