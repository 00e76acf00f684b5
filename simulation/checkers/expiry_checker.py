"""A checker of offset expiration against a model of records and clocks. Source: KIP-211, KIP-496, spec 1.5, 1.6."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from kohort.groups.classic.group import ClassicGroup
from kohort.groups.config import GroupConfig
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.effects import Effects, GroupState
from kohort.groups.events import TimersDue
from kohort.groups.machine import GroupMachine
from kohort.groups.records import (
    GroupSaved,
    MemberSaved,
    OffsetCommitted,
    PushGroupSaved,
    PushMemberSaved,
    Record,
    RecordKind,
    Tombstone,
)
from simulation.checkers.property import Checker, Holder, is_one
from simulation.harness.server import Waiting
from simulation.harness.world import World

LATE_MS = 2_000
"""The tolerance beyond the check interval: the coordinator's tick and its append take time too."""


@dataclass
class ExpiringGroup:
    """A group in the model.

    Attributes:
        members: of a consumer group, by id; of a classic group those of its last generation.
        empty_ms: wall clock when the last member left; None while there are members, or never were any.
        at_ms: by partition, the commit time and the explicit expiry time, -1 if the retention applies.
        due_since_ms: by partition, the monotonic time at which the model first found the offset expired.
    """

    members: set[str] = field(default_factory=set)
    empty_ms: int | None = None
    at_ms: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    due_since_ms: dict[tuple[str, int], int] = field(default_factory=dict)


class ExpiryChecker(Checker):
    """A committed offset expires when its retention has passed and no member subscribes to its topic, and soon after.

    The retention counts from the commit; in an empty group from the later moment when the group became empty.
    """

    SHARE = 0.1

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._groups: dict[str, ExpiringGroup] = {}
        self._machine: GroupMachine | None = None

    def on_replayed(self, machine: GroupMachine) -> None:
        self._machine, self._groups = machine, {}
        for record in machine.snapshot():
            self._take(record, None)
        for group_id, group in machine.context.ledger.groups.items():
            consumer = group.membership_as(ConsumerGroup)  # since when it is empty no record tells
            if consumer is not None and not consumer.members:
                self._kept(group_id).empty_ms = consumer.assigned_ms

    def _kept(self, group_id: str) -> ExpiringGroup:
        return self._groups.setdefault(group_id, ExpiringGroup())

    def on_loaded(self, machine: GroupMachine, outcome: Effects) -> None:
        self.on_stepped(None, outcome, {})

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        for record in outcome.records:
            self._take(record, event)

    def _take(self, record: Record, event: Any) -> None:
        if isinstance(record, OffsetCommitted):
            if record.producer_id < 0:
                self._committed(record)
        elif isinstance(record, GroupSaved):
            kept = self._kept(record.group_id)
            kept.members = {member.member_id for member in record.members}
            kept.empty_ms = record.state_ms if record.protocol_type and not record.members else None
        elif isinstance(record, PushGroupSaved):
            self._kept(record.group_id).empty_ms = None if record.state_ms < 0 else record.state_ms
        elif isinstance(record, MemberSaved | PushMemberSaved):
            kept = self._kept(record.group_id)
            kept.members.add(record.member_id)
            kept.empty_ms = None
        elif isinstance(record, Tombstone):
            self._gone(record, event)

    def _committed(self, record: OffsetCommitted) -> None:
        kept, partition = self._kept(record.group_id), (record.topic, record.partition)
        kept.at_ms[partition] = record.commit_ms, record.expire_ms
        kept.due_since_ms.pop(partition, None)

    def _gone(self, record: Tombstone, event: Any) -> None:
        kind, group_id = record.key[0], record.key[1]
        kept = self._groups.get(group_id)
        if kept is None:
            return
        if kind is RecordKind.OFFSET:
            partition = record.key[2], record.key[3]
            if type(event) is TimersDue:
                self._expired(group_id, kept, partition)
            kept.at_ms.pop(partition, None)
            kept.due_since_ms.pop(partition, None)
        elif kind in (RecordKind.MEMBER, RecordKind.PUSH_MEMBER):
            kept.members.discard(record.key[2])
            if not kept.members:
                kept.empty_ms = self.world.wall_ms
        elif kind in (RecordKind.GROUP, RecordKind.EPOCH, RecordKind.PUSH_GROUP):
            if type(event) is TimersDue and kind is RecordKind.GROUP and kept.at_ms and not self._is_consumer(group_id):
                self.fail(f"{group_id} is gone, and {len(kept.at_ms)} positions with it")
            kept.members, kept.empty_ms = set(), None

    def _is_consumer(self, group_id: str) -> bool:
        group = None if self._machine is None else self._machine.context.find(group_id)
        return group is not None and group.membership_as(ConsumerGroup) is not None

    def _expired(self, group_id: str, kept: ExpiringGroup, partition: tuple[str, int]) -> None:
        """Check an offset that the coordinator has expired."""
        left_ms = self._left_ms(kept, partition)
        name = f"{group_id} {partition[0]}-{partition[1]}"
        if left_ms is not None and left_ms > 0:
            self.fail(f"the position of {name} has gone {left_ms} ms too early")
        if kept.members and self._is_read(group_id, partition[0]):
            self.fail(f"the position of {name} has gone, which is read")

    def _left_ms(self, kept: ExpiringGroup, partition: tuple[str, int]) -> int | None:
        """Return the time until an offset expires; None for an offset that the model does not know."""
        if partition not in kept.at_ms:
            return None
        start_ms, expire_ms = kept.at_ms[partition]
        if expire_ms >= 0:
            return expire_ms - self.world.wall_ms
        if not kept.members and kept.empty_ms is not None:
            start_ms = max(start_ms, kept.empty_ms)
        return start_ms + self.config.offsets_retention_ms - self.world.wall_ms

    def _is_read(self, group_id: str, topic: str) -> bool:
        """Return whether a process in the group subscribes to the topic, by its own state.

        Two processes with one id are ignored: it is unknown which of them is the member.
        """
        kept = self._groups[group_id]
        inside = [
            process for process in self.members if process.group_id == group_id and process.member_id in kept.members
        ]
        sure = [
            holder for holder in inside if not any(other is not holder and is_one(holder, other) for other in inside)
        ]
        return any(topic in member.topics for member in sure)

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        if not self.chance.likely(self.SHARE):
            return
        now_ms, held_back_ms = self.world.now_ms, machine.context.ages.held_back_ms
        for group_id, kept in self._groups.items():
            group = machine.context.find(group_id)
            if group is None:
                continue
            for partition in kept.at_ms:
                left_ms = self._left_ms(kept, partition)
                rests = not self._may_stay(group_id, kept, partition)
                if left_ms is None or left_ms + held_back_ms > 0 or not rests or group.has_pending_offset(partition):
                    kept.due_since_ms.pop(partition, None)
                    continue
                since_ms = kept.due_since_ms.setdefault(partition, now_ms)
                if now_ms - since_ms > self.config.offsets_retention_check_ms + LATE_MS:
                    self.fail(
                        f"the position of {group_id} {partition[0]}-{partition[1]} is due for {now_ms - since_ms} ms"
                    )

    def _may_stay(self, group_id: str, kept: ExpiringGroup, partition: tuple[str, int]) -> bool:
        """Return whether an offset past its retention may stay: its topic is read, or subscriptions are changing."""
        group = None if self._machine is None else self._machine.context.find(group_id)
        if group is None:
            return True
        classic, is_read = group.membership_as(ClassicGroup), group.membership.is_subscribed(partition[0])
        if classic is None or group.listed_state() is GroupState.EMPTY:
            return bool(kept.members) and is_read
        readable = classic.protocol_type == CONSUMER_PROTOCOL_TYPE and group.listed_state() is GroupState.STABLE
        return not readable or is_read
