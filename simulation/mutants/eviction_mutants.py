"""Coordinators with one known fault each: unjustified evictions, and deadlines that a new one does not watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from kohort.coordinator.shard import Shard
from kohort.groups.classic.group import ClassicGroup
from kohort.groups.classic.rebalance import ClassicRebalance
from kohort.groups.consumer.assignment import ConsumerAssignment, ConsumerSuspicion
from kohort.groups.consumer.classic_members import ConsumerClassicMembers
from kohort.groups.consumer.group import ConsumerGroup, ConsumerHeartbeat
from kohort.groups.consumer.members import ConsumerReconciliation, CurrentAssignment
from kohort.groups.effects import Cause, Effects, RebalanceReason
from kohort.groups.events import (
    ConnectionLost,
    JoinGroup,
)
from kohort.groups.machine import GroupMachine
from kohort.groups.step import Step
from kohort.groups.topics import TopicIdPartitions
from simulation.checkers.eviction_checker import EvictionChecker
from simulation.checkers.property import Checker
from simulation.checkers.soft_state_checker import SoftStateChecker
from simulation.mutants.swapped import Swapped


class NeverStopsRevocations(Swapped):
    """A coordinator that keeps a revocation timer running after the member has revoked."""

    module, name = ConsumerReconciliation, "reconcile_member"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step that leaves the deadline as it was."""

        def reconcile(
            group: ConsumerGroup, step: Step, member_id: str, owned: TopicIdPartitions | None
        ) -> CurrentAssignment:
            due_ms = group.soft_state(member_id).revocation.due_ms
            after: CurrentAssignment = real(group, step, member_id, owned)
            timer = group.soft_state(member_id).revocation
            if due_ms is not None and timer.due_ms is None:
                step.deadlines.set_timer(timer, due_ms)
            return after

        return reconcile


class NeverStopsJoinPhases(Swapped):
    """A coordinator that keeps the join timer of a classic member of a consumer group running after it has joined."""

    module, name = ConsumerClassicMembers, "await_target"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a join that leaves the deadline as it was."""

        def wait(group: ConsumerGroup, step: Step, event: JoinGroup, member_id: str) -> None:
            timer = group.soft_state(member_id).join_phase
            due_ms = timer.due_ms
            real(group, step, event, member_id)
            if due_ms is not None:
                step.deadlines.set_timer(timer, due_ms)

        return wait


class PutsOutTheStatic(Swapped):
    """A coordinator that ends a static member's session early when its connection has ended."""

    module, name = ConsumerHeartbeat, "on_connection_lost"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a check that treats a static member as a dynamic one."""

        def lose(group: ConsumerGroup, step: Step, member_id: str, event: ConnectionLost) -> None:
            member = group.members.get(member_id)
            if member is not None:
                group.members[member_id] = replace(member, instance_id=None)
            real(group, step, member_id, event)
            if member is not None and member_id in group.members:
                group.members[member_id] = member

        return lose


class HurriesJoiners(Swapped):
    """A coordinator that ends a join phase after a fifth of the members' rebalance timeout."""

    module, name = ClassicRebalance, "prepare_rebalance"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a rebalance with a shorter join phase."""

        def prepare_rebalance(group: ClassicGroup, step: Step, cause: Cause) -> None:
            real(group, step, cause)
            timer, now_ms = group.join_phase, step.now.mono_ms
            if timer.due_ms is not None:
                step.deadlines.set_timer(timer, now_ms + (timer.due_ms - now_ms) // 5)

        return prepare_rebalance


class ForgetsThatItWaits(Swapped):
    """A coordinator that evicts a member as silent while it waits for the response to its join."""

    module, name = ClassicRebalance, "on_session_end"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return an end of a session that ignores pending requests."""

        def ended(group: ClassicGroup, step: Step, member_id: str) -> None:
            if member_id in group.members:
                group.evict_member(step, Cause(RebalanceReason.SESSION_EXPIRED, "silent", member_id))

        return ended


class NeverEndsRevocationsAfterRestart(GroupMachine):
    """A coordinator that does not limit revocations after a restart."""

    def on_loaded(self, *args: Any) -> Effects:
        """Act as the real coordinator, without those timers."""
        outcome = super().on_loaded(*args)
        for group in self.context.ledger.groups.values():
            consumers = group.membership_as(ConsumerGroup)
            for presence in () if consumers is None else consumers.presences.values():
                presence.revocation.cancel()
        return outcome


class AsksForNoTargetAfterRestart(GroupMachine):
    """A coordinator that does not request a missing target after a restart until the next change."""

    def on_loaded(self, *args: Any) -> Effects:
        """Act as the real coordinator, without the work."""
        outcome = super().on_loaded(*args)
        for group in self.context.ledger.groups.values():
            if (asked := group.membership_as(ConsumerGroup)) is not None:
                asked.computing = -1
        outcome.work.clear()
        return outcome


class LooksAtNoTopicsAfterRestart(Swapped):
    """A coordinator that does not notice at a restart that topics were created or deleted."""

    module, name = ConsumerAssignment, "check_topics"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a check that does nothing."""

        def look(group: ConsumerGroup, step: Step) -> None:
            if any(presence.connection >= 0 for presence in group.presences.values()):
                real(group, step)

        return look


class WatchesNoOneAfterRestart(Swapped):
    """A coordinator that does not watch, after a restart, for silent members that have to move."""

    module, name = ConsumerSuspicion, "schedule_suspicion_check"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a watch that does nothing."""

        def watch(group: ConsumerGroup, step: Step) -> None:
            if any(presence.connection >= 0 for presence in group.presences.values()):
                real(group, step)

        return watch


EVICTION_MUTANTS: dict[type[GroupMachine | Shard], type[Checker]] = {
    NeverStopsRevocations: EvictionChecker,
    NeverStopsJoinPhases: EvictionChecker,
    PutsOutTheStatic: EvictionChecker,
    HurriesJoiners: EvictionChecker,
    ForgetsThatItWaits: EvictionChecker,
    NeverEndsRevocationsAfterRestart: SoftStateChecker,
    AsksForNoTargetAfterRestart: SoftStateChecker,
    LooksAtNoTopicsAfterRestart: SoftStateChecker,
    WatchesNoOneAfterRestart: SoftStateChecker,
}
