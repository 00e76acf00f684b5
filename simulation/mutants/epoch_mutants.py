"""Coordinators with one known fault each, in the epochs, the background work and the targets of consumer groups."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from kohort.coordinator.shard import Shard
from kohort.errors import ErrorCode
from kohort.groups.config import GroupConfig
from kohort.groups.consumer import group as consumer_group
from kohort.groups.consumer.assignment import ConsumerAssignment
from kohort.groups.consumer.classic_members import ConsumerClassicMembers
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.consumer.members import ConsumerReconciliation, CurrentAssignment
from kohort.groups.effects import CoordinatorMeter, Effects, Now, Rebalanced
from kohort.groups.events import (
    AssignmentComputed,
    ConsumerGroupHeartbeat,
    OffsetFetch,
    RegexesResolved,
    SyncGroup,
)
from kohort.groups.machine import GroupMachine
from kohort.groups.migration import conversion
from kohort.groups.migration.conversion import ConvertedMember
from kohort.groups.records import MemberSaved
from kohort.groups.step import Step
from kohort.groups.topics import TopicIdPartitions
from simulation.checkers.epoch_checker import StaleEpochChecker
from simulation.checkers.property import Checker
from simulation.checkers.target_checkers import CountChecker, HandoverChecker, TargetChecker
from simulation.mutants.swapped import Swapped


class FetchesForAnyEpoch(Swapped):
    """A coordinator that returns offsets to a member that names an older epoch."""

    module, name = ConsumerGroup, "fetch_error"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a check that rejects only unknown members and newer epochs."""

        def fetch_error(group: ConsumerGroup, step: Step, event: OffsetFetch) -> ErrorCode:
            known = event.member_id in group.members
            older = known and event.member_epoch < group.current_assignment(event.member_id or "").member_epoch
            error: ErrorCode = real(group, step, event)
            return ErrorCode.NONE if older else error

        return fetch_error


class ForgivesAnyEpoch(Swapped):
    """A coordinator that accepts a heartbeat with any older epoch as if its response had been lost."""

    module, name = consumer_group, "heartbeat_epoch_refusal"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a check that treats every older epoch as the previous one."""

        def check(current: CurrentAssignment, event: ConsumerGroupHeartbeat) -> Any:
            older = 0 < event.member_epoch < current.member_epoch
            return real(replace(current, previous_epoch=event.member_epoch) if older else current, event)

        return check


class ForgivesNoEpoch(Swapped):
    """A coordinator that fences a member whose last response was lost."""

    module, name = consumer_group, "heartbeat_epoch_refusal"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a check without a previous epoch."""

        def check(current: CurrentAssignment, event: ConsumerGroupHeartbeat) -> Any:
            return real(replace(current, previous_epoch=-1), event)

        return check


class SyncsInAnOlderEpoch(Swapped):
    """A coordinator that gives a classic member its old assignment although a newer epoch requires it to rejoin."""

    module, name = ConsumerClassicMembers, "sync_error"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a check without epochs."""

        def check(group: ConsumerGroup, step: Step, event: SyncGroup) -> ErrorCode:
            error: ErrorCode = real(group, step, event)
            return ErrorCode.NONE if error is ErrorCode.REBALANCE_IN_PROGRESS else error

        return check


class TakesAnyTarget(Swapped):
    """A coordinator that accepts results of cancelled work, or of work that an earlier coordinator requested."""

    module, name = ConsumerAssignment, "accept_target_assignment"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a check that accepts any result."""

        def accept_target_assignment(group: ConsumerGroup, step: Step, event: AssignmentComputed) -> Any:
            group.computing = event.ticket
            return real(group, step, event)

        return accept_target_assignment


class CountsNoConsumerRebalances(GroupMachine):
    """A coordinator that does not count the rebalances of consumer groups."""

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, without those metrics."""
        outcome = super().step(event, now)
        mine = [note for note in outcome.notes if isinstance(note, Rebalanced) and note.protocol == "consumer"]
        meters = [
            note for note in outcome.notes if getattr(note, "meter", None) is CoordinatorMeter.COMPLETED_REBALANCES
        ]
        dropped = [*mine, *meters[: len(mine)]]
        outcome.notes = [note for note in outcome.notes if not any(note is dropped_note for dropped_note in dropped)]
        return outcome


class CountsTwice(Swapped):
    """A coordinator that counts a rebalance again when a member returns."""

    module, name = ConsumerReconciliation, "report_if_settled"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a check that forgets who has reconciled."""

        def settled(group: ConsumerGroup, step: Step) -> None:
            group.settling_epoch = -1
            real(group, step)

        return settled


class IgnoresClaims(Swapped):
    """A coordinator that converts a classic group by its members' assignments alone.

    Cooperative members still work on partitions that they are no longer assigned, until they join again.
    """

    module, name = conversion, "divide_converted_partitions"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a conversion without claims."""

        def divide_converted_partitions(members: list[ConvertedMember]) -> list[tuple[MemberSaved, TopicIdPartitions]]:
            shares: list[tuple[MemberSaved, TopicIdPartitions]] = real(
                [member._replace(claimed=frozenset()) for member in members]
            )
            return shares

        return divide_converted_partitions


class BeginsTicketsAnew(GroupMachine):
    """A coordinator that numbers its work from one, so it accepts results that an earlier coordinator requested."""

    def __init__(self, config: GroupConfig) -> None:
        super().__init__(config)
        numbers = itertools.count(1)
        self.context.next_task_number = numbers.__next__  # type: ignore[method-assign]


class _TakesEarlier(GroupMachine):
    """A coordinator that accepts results for an earlier coordinator of this process in place of its own."""

    kind: ClassVar[type[AssignmentComputed | RegexesResolved]]
    waits: ClassVar[str]
    _began = 0

    def on_loaded(self, *args: Any) -> Effects:
        """Act as the real coordinator; work with a ticket from here on is its own."""
        self._began = args[0].mono_ms << 10
        return super().on_loaded(*args)

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, but accept an older result."""
        if isinstance(event, self.kind) and event.ticket < self._began:
            group = self.context.find(event.group_id)
            consumer = None if group is None else group.membership_as(ConsumerGroup)
            if consumer is not None:
                setattr(consumer, self.waits, event.ticket)
        return super().step(event, now)


class TakesEarlierTargets(_TakesEarlier):
    """A coordinator that accepts a target that an earlier coordinator requested."""

    kind, waits = AssignmentComputed, "computing"


class TakesEarlierTopics(_TakesEarlier):
    """A coordinator that accepts topics of regular expressions that an earlier coordinator requested."""

    kind, waits = RegexesResolved, "resolving"


class ForgetsAssignments(Swapped):
    """A coordinator that converts a classic group by its members' claims alone.

    Eager members claim nothing and own partitions nevertheless.
    """

    module, name = conversion, "divide_converted_partitions"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a conversion without assignments."""

        def divide_converted_partitions(members: list[ConvertedMember]) -> list[tuple[MemberSaved, TopicIdPartitions]]:
            shares: list[tuple[MemberSaved, TopicIdPartitions]] = real(
                [member._replace(assigned=frozenset()) for member in members]
            )
            return shares

        return divide_converted_partitions


EPOCH_MUTANTS: dict[type[GroupMachine | Shard], type[Checker]] = {
    FetchesForAnyEpoch: StaleEpochChecker,
    ForgivesAnyEpoch: StaleEpochChecker,
    ForgivesNoEpoch: StaleEpochChecker,
    SyncsInAnOlderEpoch: StaleEpochChecker,
    TakesAnyTarget: TargetChecker,
    CountsNoConsumerRebalances: CountChecker,
    CountsTwice: CountChecker,
    ForgetsAssignments: HandoverChecker,
    IgnoresClaims: HandoverChecker,
    BeginsTicketsAnew: TargetChecker,
    TakesEarlierTargets: TargetChecker,
    TakesEarlierTopics: TargetChecker,
}
