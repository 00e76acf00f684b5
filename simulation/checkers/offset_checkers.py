"""Checkers of committed offsets: none is lost, invented, or kept for a deleted topic.

Every commit has a different offset. Offsets are ordered by when the coordinator received them, also transactional ones:
a transaction that commits counts from when its offset was sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kohort.errors import ErrorCode
from kohort.groups.config import GroupConfig
from kohort.groups.effects import DeleteGroupsReply, Effects, OffsetDeleteReply, OffsetFetchReply, ReplyValue
from kohort.groups.events import (
    DeleteGroups,
    Heartbeat,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    TimersDue,
    TopicsDeleted,
    TransactionEnded,
    TxnOffsetCommit,
)
from kohort.groups.machine import GroupMachine
from kohort.groups.records import OffsetCommitted, RecordKind, Tombstone
from simulation.checkers.property import QUIET, Checker, Holder
from simulation.harness.server import Waiting
from simulation.harness.world import World

Slot = tuple[str, str, int]


class DurabilityChecker(Checker):
    """A commit that was acknowledged or read is still there, or a later one is.

    The exceptions: it was deleted, it expired (`ExpiryChecker`), or its topic was deleted.
    """

    skips = frozenset({Heartbeat})

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._order: dict[int, int] = {-1: 0}
        self._count = 1  # of commits; the same position may be committed twice
        self._floor: dict[Slot, int] = {}
        self._decided: dict[int, dict[int, int]] = {}  # by request: the order of each of its offsets as it was then
        self._pending: dict[int, dict[Slot, int]] = {}
        self._deleting: dict[str, int] = {}
        self._deleted: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        self._cleared: dict[str | Slot, int] = {}

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        for record in outcome.records:
            if isinstance(record, OffsetCommitted):
                self._order[record.offset] = self._count
                self._count += 1
        if isinstance(event, TopicsDeleted):
            self._arm()
            self._gone.update(dict.fromkeys(event.topics, self._count))  # with commits that were in the queue before
            self._drop(lambda slot: slot[1] in event.topics)
        elif isinstance(event, DeleteGroups | OffsetDelete):
            for _, value in outcome.replies:
                self._forget(event, value)
        elif isinstance(event, TimersDue):
            keys = [record.key for record in outcome.records if isinstance(record, Tombstone)]
            self._clear({(key[1], key[2], key[3]) for key in keys if key[0] is RecordKind.OFFSET})
        elif isinstance(event, OffsetCommit | TxnOffsetCommit):
            self._decided[event.request] = {
                offset.offset: self._order.get(offset.offset, 0) for offset in event.offsets
            }
        elif isinstance(event, OffsetFetch):  # decided now: its reply may leave after a later deletion or commit
            values = [value for _, value in outcome.replies if isinstance(value, OffsetFetchReply)]
            shown = [found for value in values for found in value.offsets]
            self._decided[event.request] = {found.offset: self._order.get(found.offset, 0) for found in shown}
            for found in shown:
                self._check_deleted((event.group_id, found.topic, found.partition), found.offset)

    def _forget(self, event: DeleteGroups | OffsetDelete, value: ReplyValue) -> None:
        """Forget what an administrator deleted: commits received before need not exist any more."""
        if isinstance(event, DeleteGroups) and isinstance(value, DeleteGroupsReply):
            gone = {group for group, error in zip(event.group_ids, value.errors, strict=True) if not error}
            self._cleared.update(dict.fromkeys(gone, self._count))
            self._drop(lambda slot: slot[0] in gone)
        elif isinstance(event, OffsetDelete) and isinstance(value, OffsetDeleteReply) and not value.error:
            paired = zip(event.partitions, value.errors, strict=True)
            self._clear(
                {
                    (event.group_id, deleted_offset.topic, deleted_offset.partition)
                    for deleted_offset, error in paired
                    if not error
                }
            )

    def _clear(self, slots: set[Slot]) -> None:
        if slots:
            self._cleared.update(dict.fromkeys(slots, self._count))
            self._drop(lambda slot: slot in slots)

    def _drop(self, goes: Callable[[Slot], bool]) -> None:
        self._floor = {slot: order for slot, order in self._floor.items() if not goes(slot)}
        for slots in self._pending.values():
            for slot in [slot for slot in slots if goes(slot)]:
                del slots[slot]

    def on_deleted(self, topic: str) -> None:
        self._drop(lambda slot: slot[1] == topic)
        self._deleting[topic] = self._count

    def _arm(self) -> None:
        self._deleted.update(self._deleting)
        self._deleting.clear()

    def on_released(self, event: Any, value: Any) -> None:
        decided = self._decided.pop(getattr(event, "request", -1), {})
        if isinstance(event, OffsetCommit):
            for offset, error in zip(event.offsets, value.errors, strict=True):
                if error is ErrorCode.NONE:
                    self._raise_floor((event.group_id, offset.topic, offset.partition), decided[offset.offset])
        elif isinstance(event, TxnOffsetCommit):
            pending = self._pending.setdefault(event.producer_id, {})
            for offset, error in zip(event.offsets, value.errors, strict=True):
                if error is ErrorCode.NONE:
                    pending[event.group_id, offset.topic, offset.partition] = decided[offset.offset]
        elif isinstance(event, TransactionEnded):
            for slot, order in self._pending.pop(event.producer_id, {}).items():
                if event.commit:
                    self._raise_floor(slot, order)
        elif isinstance(event, OffsetFetch) and value.error is ErrorCode.NONE:
            for found in value.offsets:
                if found.error is ErrorCode.NONE:
                    slot = (event.group_id, found.topic, found.partition)
                    self._check_lost(slot, found.offset)
                    self._raise_floor(slot, decided[found.offset])

    def on_overtaken(self, event: Any, value: Any, came_ms: int, since_ms: int) -> None:
        """Count earlier commits as usual; nothing received later can have been written."""
        if getattr(event, "request", -1) in self._decided:
            self.on_released(event, value)
        elif isinstance(event, OffsetCommit) and ErrorCode.NONE in value.errors:
            self.fail(
                f"{event.group_id}: a commit was taken {self.world.now_ms - since_ms} ms after that was impossible"
            )

    def _raise_floor(self, slot: Slot, order: int) -> None:
        deleted = max(self._deleting.get(slot[1], 0), self._gone.get(slot[1], 0))
        if order >= max(deleted, self._cleared.get(slot[0], 0), self._cleared.get(slot, 0)):
            self._floor[slot] = max(self._floor.get(slot, 0), order)

    def on_replayed(self, machine: GroupMachine) -> None:
        self._arm()
        for group_id, topic, partition in self._floor:
            group = machine.context.find(group_id)
            record = group.offsets.get((topic, partition)) if group is not None else None
            slot = (group_id, topic, partition)
            if record is not None or not self._is_pending(slot):
                offset = -1 if record is None else record.offset
                self._check_lost(slot, offset)
                self._check_deleted(slot, offset)

    def _is_pending(self, slot: Slot) -> bool:
        return any(slot in slots for slots in self._pending.values())

    def _check_lost(self, slot: Slot, offset: int) -> None:
        if self._order.get(offset, -1) < self._floor.get(slot, 0):
            self.fail(f"{slot[0]} {slot[1]}-{slot[2]} is at {offset}, before the last acknowledged commit")

    def _check_deleted(self, slot: Slot, offset: int) -> None:
        if 0 < self._order.get(offset, -1) < self._deleted.get(slot[1], 0):
            name = f"{slot[0]} {slot[1]}-{slot[2]}"
            self.fail(f"{name} is at {offset}, which was committed before the topic was deleted")


class TransactionChecker(Checker):
    """A transaction's offset is visible only after its commit; a fetch of stable offsets waits for the end."""

    skips = QUIET

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._pending: dict[int, set[int]] = {}
        self._hidden: set[int] = set()
        self._awaited: dict[int, set[Slot]] = {}

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        if isinstance(event, TxnOffsetCommit):
            sent = {record.offset for record in outcome.records if isinstance(record, OffsetCommitted)}
            self._pending.setdefault(event.producer_id, set()).update(sent)
            self._hidden |= sent
        elif isinstance(event, TransactionEnded):
            self._awaited.pop(event.producer_id, None)
            sent = self._pending.pop(event.producer_id, set())
            if event.commit:
                self._hidden -= sent
        elif isinstance(event, TopicsDeleted | DeleteGroups | OffsetDelete):
            self._awaited.clear()

    def on_deleted(self, topic: str) -> None:
        self._awaited.clear()

    def on_released(self, event: Any, value: Any) -> None:
        if isinstance(event, TxnOffsetCommit) and event.producer_id in self._pending:
            slots = self._awaited.setdefault(event.producer_id, set())
            for offset, error in zip(event.offsets, value.errors, strict=True):
                if error is ErrorCode.NONE:
                    slots.add((event.group_id, offset.topic, offset.partition))
        elif isinstance(event, OffsetFetch) and value.error is ErrorCode.NONE:
            for found in value.offsets:
                if found.offset in self._hidden:
                    self.fail(f"{event.group_id} {found.topic}-{found.partition} shows {found.offset} of a transaction")
                slot = (event.group_id, found.topic, found.partition)
                waits = event.require_stable and any(slot in slots for slots in self._awaited.values())
                if waits and found.error is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                    self.fail(f"{slot} is told as {found.offset} while a transaction is about to replace it")

    def at_end(self, waiting: Waiting, partitions: Any) -> None:
        if self._pending:
            self.fail(f"transactions of {sorted(self._pending)} never ended")
