"""A checker of static members of consumer groups that left temporarily. Source: KIP-848."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kohort.groups.admission import LEFT_FOR_A_WHILE
from kohort.groups.config import GroupConfig
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.effects import ConsumerGroupHeartbeatReply, Effects
from kohort.groups.events import ConsumerGroupHeartbeat, JoinGroup, LeaveGroup
from kohort.groups.machine import GroupMachine
from kohort.groups.records import MemberAssigned, MemberSaved, Record, RecordKind, Tombstone
from kohort.groups.topics import TopicIdPartitions, unpack_partitions
from simulation.checkers.property import QUIET, Checker, Holder
from simulation.harness.server import Waiting
from simulation.harness.world import World

LATE_MS = 2_000
"""The tolerance in ms: a coordinator's tick may be late, and a session counted after a load from Kafka begins later."""
Key = tuple[str, str]
"""Group id and member id."""


@dataclass
class AwayMember:
    """A static member that left temporarily (epoch -2).

    Attributes:
        share: the partitions that it had and keeps.
        left_ms: when it left, or when a coordinator that loaded this state began.
    """

    share: TopicIdPartitions
    left_ms: int


class AwayChecker(Checker):
    """A static member that left temporarily keeps its partitions until it or a successor joins or its session ends."""

    skips = QUIET

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._shares: dict[Key, TopicIdPartitions] = {}
        self._instances: dict[Key, str | None] = {}
        self._heard_ms: dict[Key, int] = {}
        self._away: dict[Key, AwayMember] = {}

    def on_replayed(self, machine: GroupMachine) -> None:
        now_ms = self.world.now_ms
        self._shares, self._instances, self._away, self._heard_ms = {}, {}, {}, {}
        for group_id, group in machine.context.ledger.groups.items():
            consumer = group.membership_as(ConsumerGroup)
            if consumer is None:
                continue
            for member_id, member in consumer.members.items():
                key, current = (group_id, member_id), consumer.current_assignment(member_id)
                self._instances[key], self._shares[key] = member.instance_id, current.assigned
                self._heard_ms[key] = now_ms
                if current.member_epoch == LEFT_FOR_A_WHILE:
                    self._away[key] = AwayMember(current.assigned, now_ms)

    def on_loaded(self, machine: GroupMachine, outcome: Effects) -> None:
        self.on_stepped(None, outcome, {})

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        for record in outcome.records:
            if isinstance(record, MemberSaved):
                self._instances[record.group_id, record.member_id] = record.instance_id
            elif isinstance(record, MemberAssigned):
                self._moved(event, record)
            elif isinstance(record, Tombstone) and record.key[0] is RecordKind.CURRENT:
                self._gone(event, (record.key[1], record.key[2]))
        if isinstance(event, ConsumerGroupHeartbeat) and event.member_epoch >= 0:
            answers = [value for request, value in outcome.replies if request == event.request]
            if not any(isinstance(value, ConsumerGroupHeartbeatReply) and value.error for value in answers):
                self._heard_ms[event.group_id, event.member_id] = self.world.now_ms

    def _moved(self, event: Any, record: MemberAssigned) -> None:
        """Check a record that changes a member's assignment or epoch."""
        key, share = (record.group_id, record.member_id), unpack_partitions(record.assigned)
        away = self._away.get(key)
        if record.member_epoch == LEFT_FOR_A_WHILE:
            if share != self._shares.get(key, frozenset()):
                self.fail(f"{record.member_id} left for a while with {len(share)} partitions of its own {self._shares}")
            self._away.setdefault(key, AwayMember(share, self.world.now_ms))
        elif away is not None:
            if not self._joins(event, key):
                self.fail(f"{record.member_id} was away and is at epoch {record.member_epoch} after {event}")
            del self._away[key]
        self._shares[key] = share
        for (group_id, member_id), other in self._away.items():
            if group_id == record.group_id and member_id != record.member_id and other.share & share:
                self.fail(f"{record.member_id} has partitions of {member_id}, which is away")

    def _gone(self, event: Any, key: Key) -> None:
        """Check a record that removes a member."""
        away = self._away.pop(key, None)
        self._shares.pop(key, None)
        if away is None or self._joins(event, key) or isinstance(event, LeaveGroup):
            return
        if isinstance(event, ConsumerGroupHeartbeat) and event.member_id == key[1] and event.member_epoch == -1:
            return
        lasts_ms = self._heard_ms.get(key, 0) + self.config.consumer_session_timeout_ms
        if self.world.now_ms < lasts_ms:
            self.fail(
                f"{key[1]} was evicted while it was away, {lasts_ms - self.world.now_ms} ms too early, by {event}"
            )

    def _joins(self, event: Any, key: Key) -> bool:
        """Return whether the event is a join of this member or of its successor."""
        if not isinstance(event, JoinGroup | ConsumerGroupHeartbeat) or event.group_id != key[0]:
            return False
        if isinstance(event, ConsumerGroupHeartbeat) and event.member_epoch != 0:
            return False
        return event.member_id == key[1] or event.instance_id == self._instances.get(key, "")

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        for (group_id, member_id), away in self._away.items():
            since_ms = self.world.now_ms - away.left_ms
            if since_ms > self.config.consumer_session_timeout_ms + LATE_MS:
                self.fail(f"{member_id} of {group_id} has been away for {since_ms} ms, longer than its session")
