"""Checkers of consumer groups' targets: which results are accepted, when rebalances count, what a conversion keeps."""

from __future__ import annotations

from typing import Any, ClassVar

from kohort.groups.config import GroupConfig
from kohort.groups.effects import (
    BackgroundTask,
    Computation,
    ComputeAssignment,
    CoordinatorMeter,
    CounterIncreased,
    Effects,
    GroupState,
    Rebalanced,
)
from kohort.groups.events import AssignmentComputed, ConsumerGroupHeartbeat, RegexesResolved, SyncGroup
from kohort.groups.machine import GroupMachine
from kohort.groups.records import (
    EpochBumped,
    GroupSaved,
    MemberAssigned,
    MemberSaved,
    Record,
    RecordKind,
    RegexResolved,
    TargetAssigned,
    TargetEpochSet,
    Tombstone,
)
from kohort.ids import TopicPartition
from simulation.checkers.journal_model import pairs
from simulation.checkers.property import QUIET, Checker, Holder
from simulation.harness.server import Waiting
from simulation.harness.world import World


def ended(outcome: Effects) -> list[str]:
    """Return the consumer groups that a step has deleted or converted to another protocol."""
    return [
        record.key[1]
        for record in outcome.records
        if isinstance(record, Tombstone) and record.key[0] is RecordKind.EPOCH
    ]


class TargetChecker(Checker):
    """Only the result of the newest requested work is accepted, once, and no target is older than the one before."""

    skips = QUIET

    WRITTEN: ClassVar[dict[type, tuple[type, ...]]] = {
        AssignmentComputed: (TargetAssigned, TargetEpochSet),
        RegexesResolved: (RegexResolved,),
    }

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._asked: dict[tuple[type, str], BackgroundTask] = {}
        self._done: dict[int, tuple[Any, BackgroundTask]] = {}

    def on_worked(self, work: Any, event: Any) -> None:
        self._done[id(event)] = event, work

    def on_loaded(self, machine: GroupMachine, outcome: Effects) -> None:
        self._asked.clear()
        self._note(outcome)

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        written = self.WRITTEN.get(type(event))
        if written is not None:
            newest = self._asked.get((type(event), event.group_id))
            _, mine = self._done.pop(id(event), (event, None))
            if newest is not None and newest is mine:
                del self._asked[type(event), event.group_id]
            elif any(isinstance(record, written) for record in outcome.records):
                self.fail(f"{event} of {mine} is taken, the newest work of {event.group_id} is {newest}")
        for record in outcome.records:
            if isinstance(record, TargetEpochSet):
                consumer = self.journal.consumer(record.group_id)
                if consumer is not None and record.epoch < consumer.target_epoch and not ended(outcome):
                    self.fail(f"{record.group_id} went from target {consumer.target_epoch} back to {record.epoch}")
        self._note(outcome)

    def _note(self, outcome: Effects) -> None:
        for group_id in ended(outcome) if outcome.records else ():
            for kind in self.WRITTEN:
                self._asked.pop((kind, group_id), None)
        for work in outcome.work:
            if isinstance(work, Computation):
                kind = AssignmentComputed if isinstance(work, ComputeAssignment) else RegexesResolved
                self._asked[kind, work.group_id] = work


class CountChecker(Checker):
    """Every completed rebalance is counted and reported once."""

    skips = QUIET

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._counted: set[tuple[str, int]] = set()
        self._loaded: set[tuple[str, int]] = set()
        self._touched: dict[str, None] = {}

    def on_loaded(self, machine: GroupMachine, outcome: Effects) -> None:
        self._counted.clear()
        self._touched.clear()
        groups = self.journal.groups.items()
        self._loaded = {
            (name, group.consumer.epoch) for name, group in groups if group.consumer and self._is_whole(name)
        }

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        rebalances = [note for note in outcome.notes if isinstance(note, Rebalanced)]
        notes = [note for note in outcome.notes if isinstance(note, CounterIncreased)]
        counted = sum(note.amount for note in notes if note.meter is CoordinatorMeter.COMPLETED_REBALANCES)
        if counted != len(rebalances):
            self.fail(f"{counted} rebalances are counted and {len(rebalances)} told of after {event}")
        saved = [
            saved_group
            for saved_group in outcome.records
            if isinstance(saved_group, GroupSaved) and saved_group.members
        ]
        if isinstance(event, SyncGroup) and len(saved) != len(
            [rebalanced for rebalanced in rebalances if rebalanced.protocol == "classic"]
        ):
            self.fail(f"{saved} is written and {rebalances} is told of")
        for group_id in ended(outcome) if outcome.records else ():
            self._counted = {key for key in self._counted if key[0] != group_id}
            self._loaded = {key for key in self._loaded if key[0] != group_id}
        for note in rebalances:
            if note.protocol == "consumer":
                self._count(note.group_id, outcome)
        for record in outcome.records:
            if isinstance(record, MemberAssigned):
                self._touched[record.group_id] = None

    def _count(self, group_id: str, outcome: Effects) -> None:
        bumped = [
            record.epoch
            for record in outcome.records
            if isinstance(record, EpochBumped) and record.group_id == group_id
        ]
        consumer = self.journal.consumer(group_id)
        settled = [
            record.member_epoch
            for record in outcome.records
            if isinstance(record, MemberAssigned) and record.group_id == group_id
        ]
        epoch = max(settled, default=bumped[0] if bumped else 0 if consumer is None else consumer.epoch)
        if (group_id, epoch) in self._counted:
            self.fail(f"the rebalance of {group_id} to epoch {epoch} is counted twice")
        self._counted.add((group_id, epoch))

    def _is_whole(self, group_id: str) -> bool:
        consumer = self.journal.consumer(group_id)
        return consumer is not None and consumer.state() is GroupState.STABLE

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        for group_id in self._touched:
            consumer = self.journal.consumer(group_id)
            if consumer is not None and self._is_whole(group_id):
                key = (group_id, consumer.epoch)
                if key not in self._counted and key not in self._loaded:
                    self.fail(f"{group_id} is whole at epoch {consumer.epoch} and its rebalance is not counted")
        self._touched.clear()


class HandoverChecker(Checker):
    """A classic member keeps its partitions when its group becomes a consumer group, until it revokes them."""

    skips = QUIET

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        if not isinstance(event, ConsumerGroupHeartbeat) or not outcome.records:
            return
        before, group_id = self.journal.groups.get(event.group_id), event.group_id
        if before is None or before.consumer is not None:
            return
        saved = {
            record.member_id
            for record in outcome.records
            if isinstance(record, MemberSaved) and record.classic_protocols
        }
        held = {
            record.member_id: pairs((*record.assigned, *record.pending_revocation))
            for record in outcome.records
            if isinstance(record, MemberAssigned)
        }
        for member in self.members:
            if member.group_id != group_id or member.member_id not in saved:
                continue
            for partition in member.held:
                if member.owns(partition) and self._exists(member, partition):
                    pair = (member.topic_of(partition), partition.partition)
                    if pair not in held.get(member.member_id, ()):
                        self.fail(f"{partition} of {group_id} is owned by {member.name}, and not its own any more")

    def _exists(self, member: Holder, partition: TopicPartition) -> bool:
        return self.world.topic_ids.get(partition.topic) == member.topic_of(partition)
