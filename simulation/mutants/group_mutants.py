"""Machines and shards with one known fault each, to show that the checker named beside it detects the fault."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace

from kohort.coordinator.shard import Appends, Phase, Shard
from kohort.errors import ErrorCode
from kohort.groups.admission import LEFT_FOR_A_WHILE
from kohort.groups.classic.group import ClassicGroup
from kohort.groups.config import GroupConfig
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.effects import Effects, JoinGroupReply, Now, OffsetCommitReply, SyncGroupReply
from kohort.groups.events import (
    ConsumerGroupHeartbeat,
    JoinGroup,
    OffsetCommit,
    OffsetFetch,
    TimersDue,
    TransactionEnded,
)
from kohort.groups.group import Group
from kohort.groups.machine import GroupMachine
from kohort.groups.records import EpochBumped, GenerationStarted, MemberAssigned, OffsetCommitted, TargetEpochSet
from kohort.groups.timers import Deadline, Deadlines, Timer
from simulation.checkers.away_checker import AwayChecker
from simulation.checkers.expiry_checker import ExpiryChecker
from simulation.checkers.fencing_checker import FencingChecker
from simulation.checkers.group_checkers import (
    AnswerChecker,
    EpochChecker,
    GenerationChecker,
    InvariantChecker,
    LimitsChecker,
    LivenessChecker,
    OwnershipChecker,
    ReplayChecker,
)
from simulation.checkers.offset_checkers import DurabilityChecker, TransactionChecker
from simulation.checkers.property import Checker
from simulation.checkers.refusal_checkers import RefusalChecker
from simulation.checkers.release_checker import ReleaseChecker
from simulation.checkers.share_checkers import EvennessChecker
from simulation.mutants.admin_mutants import ADMIN_MUTANTS
from simulation.mutants.client_mutants import CountsLeasesFromAnswers, CountsSessionsFromAnswers
from simulation.mutants.disk_mutants import DISK_MUTANTS, DiskMutant
from simulation.mutants.epoch_mutants import EPOCH_MUTANTS
from simulation.mutants.eviction_mutants import EVICTION_MUTANTS


class HastyDeadlines(Deadlines):
    """Timers that end sessions after a quarter of their length."""

    now_ms = 0

    def set_timer(self, timer: Timer, due_ms: int) -> None:
        """Set a session's timer too early."""
        if timer.kind is Deadline.SESSION:
            hasty_ms = max(1, (due_ms - self.now_ms) // 4)  # never due at once: it may be set anew when it is
            due_ms = self.now_ms + hasty_ms
        super().set_timer(timer, due_ms)


class EndsSessionsEarly(GroupMachine):
    """A coordinator that reassigns a member's partitions while the member may still consider itself alive."""

    def __init__(self, config: GroupConfig) -> None:
        super().__init__(config)
        self.context.deadlines = self._deadlines = HastyDeadlines()

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, with sessions measured wrongly."""
        self._deadlines.now_ms = now.mono_ms
        return super().step(event, now)


class LeasesIgnored(GroupMachine):
    """A coordinator that counts on leases that its members do not keep."""

    members_ignore_leases = True


class TakesAnyCommit(GroupMachine):
    """A coordinator that accepts a commit whatever member and generation it names."""

    def __init__(self, config: GroupConfig) -> None:
        super().__init__(config)
        self._handlers[OffsetCommit] = self._take

    def _take(self, event: OffsetCommit) -> None:
        context = self.context
        for offset in event.offsets:
            context.emit(
                OffsetCommitted(
                    event.group_id, offset.topic, offset.partition, offset.offset, -1, "", context.now.wall_ms
                )
            )
        context.reply(event.request, OffsetCommitReply((ErrorCode.NONE,) * len(event.offsets)))


class ForgetsGenerations(GroupMachine):
    """A coordinator that does not write the record of a new generation."""

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, without the record."""
        outcome = super().step(event, now)
        outcome.records = [record for record in outcome.records if not isinstance(record, GenerationStarted)]
        return outcome


class WritesBesideRecords(GroupMachine):
    """A coordinator that changes hard state without a record."""

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, but let a commit change state without a record."""
        outcome = super().step(event, now)
        for record in outcome.records:
            if isinstance(record, OffsetCommitted) and record.offset % 7 == 0:
                group = self.context.ledger.groups[record.group_id]
                group.offsets[record.topic, record.partition] = record._replace(metadata="live only")
        return outcome


class ForgetsParkedSyncs(GroupMachine):
    """A coordinator that begins a rebalance without answering pending SyncGroups."""

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, without those replies."""
        outcome = super().step(event, now)
        outcome.replies = [
            reply
            for reply in outcome.replies
            if not isinstance(reply.value, SyncGroupReply)
            or reply.value.error is not ErrorCode.REBALANCE_IN_PROGRESS
            or reply.request == getattr(event, "request", None)
        ]
        return outcome


class NeverEndsSessions(GroupMachine):
    """A coordinator that never ends a silent member's session."""

    def _due(self, group: Group, timer: Timer) -> None:
        if timer.kind is not Deadline.SESSION:
            super()._due(group, timer)


class GivesWhatIsHeld(GroupMachine):
    """A coordinator of consumer groups that assigns a partition while another member still has to revoke it."""

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, without the owners of partitions."""
        for group in self.context.ledger.groups.values():
            if (consumer := group.membership_as(ConsumerGroup)) is not None:
                consumer.holders.clear()
        return super().step(event, now)


class MiscountsJoiners(GroupMachine):
    """A coordinator that counts a member evicted during its join as one that still waits."""

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, with a wrong count after a rejected join."""
        outcome = super().step(event, now)
        for reply in outcome.replies:
            if isinstance(reply.value, JoinGroupReply) and reply.value.error is ErrorCode.UNKNOWN_MEMBER_ID:
                group = self.context.find(event.group_id) if isinstance(event, JoinGroup) else None
                classic = None if group is None else group.membership_as(ClassicGroup)
                if classic is not None:
                    classic.awaiting_join += 1
        return outcome


class CommitsAborted(GroupMachine):
    """A coordinator that treats the offsets of an aborted transaction as committed."""

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, with commit and abort exchanged."""
        return super().step(replace(event, commit=True) if isinstance(event, TransactionEnded) else event, now)


class ForgetsEpochs(GroupMachine):
    """A coordinator that does not write a consumer group's new epoch."""

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, without the records after the first."""
        outcome = super().step(event, now)
        kept = [record for record in outcome.records if not isinstance(record, EpochBumped) or record.epoch <= 1]
        outcome.records = [record for record in kept if not isinstance(record, TargetEpochSet) or record.epoch <= 1]
        return outcome


class IgnoresMaxSize(GroupMachine):
    """A coordinator that ignores the group's maximum size."""

    def __init__(self, config: GroupConfig) -> None:
        super().__init__(dataclasses.replace(config, group_max_size=1_000, consumer_max_size=1_000))


class ForgetsWhomItExcluded(GroupMachine):
    """A coordinator that forgets, when a suspected member returns, that the target was computed without it."""

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, but forget those members."""
        outcome = super().step(event, now)
        for group in self.context.ledger.groups.values():
            consumer = group.membership_as(ConsumerGroup)
            if consumer is not None and consumer.target_epoch == consumer.epoch:
                consumer.excluded.clear()
        return outcome


class WakesTheAway(GroupMachine):
    """A coordinator that keeps a temporarily absent member's pending work, and moves the member on afterwards."""

    def __init__(self, config: GroupConfig) -> None:
        super().__init__(config)
        self._route = self._handlers[ConsumerGroupHeartbeat]
        self._handlers[ConsumerGroupHeartbeat] = self._heartbeat

    def _heartbeat(self, event: ConsumerGroupHeartbeat) -> None:
        context = self.context
        group = context.find(event.group_id)
        consumer = None if group is None else group.membership_as(ConsumerGroup)
        leaves = consumer is not None and event.member_epoch == LEFT_FOR_A_WHILE
        presence = consumer.presences.get(event.member_id) if consumer is not None and leaves else None
        held = None if presence is None else presence.long_poll
        if presence is not None:
            presence.long_poll = None
        self._route(event)
        if presence is not None and presence.long_poll_timer is not None and held is not None:
            presence.long_poll = held
            context.start_timer(presence.long_poll_timer, held.delay_ms)


def away(machine: GroupMachine) -> list[MemberAssigned]:
    """Return the assignments of members that left temporarily."""
    assigned = [record for record in machine.snapshot() if isinstance(record, MemberAssigned)]
    return [record for record in assigned if record.member_epoch == LEFT_FOR_A_WHILE]


class LoadsTheAwayAsBack(GroupMachine):
    """A coordinator that treats temporarily absent members as present after it has loaded."""

    def on_loaded(self, *args: Any) -> Effects:
        """Act as the real coordinator, but move those members."""
        outcome = super().on_loaded(*args)
        for record in away(self):
            self.context.emit(replace(record, member_epoch=record.previous_epoch))
        return outcome


class EmptiesTheAway(GroupMachine):
    """A coordinator that reassigns the partitions of temporarily absent members at the first tick."""

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, but a tick takes their partitions."""
        outcome = super().step(event, now)
        for record in away(self) if isinstance(event, TimersDue) else ():
            self.context.emit(replace(record, assigned=()))
        return outcome


class LosesTheReturned(GroupMachine):
    """A coordinator that loses the connection of a classic static member that replaced another."""

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, but forget the connection of a first join."""
        outcome = super().step(event, now)
        if isinstance(event, JoinGroup) and event.instance_id is not None and not event.member_id:
            self.context.forget_connection(event.connection, event.group_id, event.new_member_id)
        return outcome


class AnswersBeforeDurable(Shard):
    """A coordinator that sends replies before their records are in the journal."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = self._make_machine
        self._make_machine = lambda config: self._hasty(make(config))

    def _hasty(self, machine: GroupMachine) -> GroupMachine:
        step = machine.step

        def hasty(event: Any, now: Now) -> Effects:
            outcome = step(event, now)
            for token, value in outcome.replies:
                self._answer_request(token, value)
            outcome.replies = []
            return outcome

        machine.step = hasty  # type: ignore[method-assign]
        return machine


class LetsReadsPass(Shard):
    """A coordinator that answers a read at once although it saw records that are not yet in the journal."""

    def _run(self) -> None:
        if self._machine is not None and self._appends is not None and self._appends.waiting:
            for event in [queued for queued in self._queue if isinstance(queued, OffsetFetch)]:
                self._queue.remove(event)
                self._release([(event, self._machine.step(event, self._driver.now()))])
        super()._run()


class KeepsDivergedMachine(Shard):
    """A coordinator that keeps its machine after the records of its changes could not be written."""

    def _discard_machine(self, why: str, fault: Exception | None = None) -> None:
        if self.phase is not Phase.SERVING or fault is not None:
            super()._discard_machine(why, fault)
            return
        for token in [*self._waiting]:
            self._answer_request(token, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._appends = Appends(self._journal, self._term, self._driver, self._release, self._lost)
        self._journal._owner = self._appends  # type: ignore[attr-defined]


class CallsFencedUnavailable(Shard):
    """A coordinator that, when another has replaced it, tells members that it is unavailable for a moment."""

    def _unload(self, phase: Phase, error: ErrorCode) -> None:
        super()._unload(phase, ErrorCode.COORDINATOR_NOT_AVAILABLE if phase is Phase.FENCED else error)


class ExpiresFromCommits(GroupMachine):
    """A coordinator that counts the retention of an empty group's offsets from their commit."""

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, but forget since when groups are empty."""
        if isinstance(event, TimersDue):
            for group in self.context.ledger.groups.values():
                membership = group.membership
                if isinstance(membership, ConsumerGroup):
                    membership.assigned_ms = -1
                elif isinstance(membership, ClassicGroup) and membership.saved is not None:
                    membership.saved = replace(membership.saved, state_ms=-1)
        return super().step(event, now)


class KeepsPositions(GroupMachine):
    """A coordinator that never expires offsets."""

    def _on_tick(self, event: TimersDue) -> None:
        self.context.expiry.cancel()
        super()._on_tick(event)


MUTANTS: dict[type[GroupMachine | Shard | DiskMutant], type[Checker]] = {
    EndsSessionsEarly: OwnershipChecker,
    LeasesIgnored: OwnershipChecker,
    GivesWhatIsHeld: OwnershipChecker,
    AnswersBeforeDurable: DurabilityChecker,
    LetsReadsPass: DurabilityChecker,
    KeepsDivergedMachine: ReplayChecker,
    CallsFencedUnavailable: RefusalChecker,
    TakesAnyCommit: FencingChecker,
    CommitsAborted: TransactionChecker,
    ForgetsGenerations: GenerationChecker,
    ForgetsEpochs: EpochChecker,
    IgnoresMaxSize: LimitsChecker,
    WritesBesideRecords: ReplayChecker,
    ForgetsParkedSyncs: AnswerChecker,
    MiscountsJoiners: InvariantChecker,
    LosesTheReturned: InvariantChecker,
    NeverEndsSessions: LivenessChecker,
    ForgetsWhomItExcluded: EvennessChecker,
    WakesTheAway: AwayChecker,
    **dict(EVICTION_MUTANTS.items()),
    **dict(EPOCH_MUTANTS.items()),
    **dict(ADMIN_MUTANTS.items()),
    **dict(DISK_MUTANTS.items()),
    LoadsTheAwayAsBack: AwayChecker,
    EmptiesTheAway: AwayChecker,
    CountsLeasesFromAnswers: ReleaseChecker,
    CountsSessionsFromAnswers: ReleaseChecker,
    ExpiresFromCommits: ExpiryChecker,
    KeepsPositions: ExpiryChecker,
}
