"""Reconciliation: a consumer group member moves from its assignment to its target, one heartbeat at a time.

| state | the member waits for | a heartbeat |
|---|---|---|
| STABLE | a newer target | begins the move: first revokes, then assigns |
| UNREVOKED_PARTITIONS | its own report without the revoked partitions | moves on towards the newest target |
| UNRELEASED_PARTITIONS | other members to revoke its new partitions | assigns what has become free |

A partition is assigned only if no member owns it or has yet to revoke it. For this reason two clients never own the
same partition. Source: KIP-848, "Reconciliation"; scenario 6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kohort.groups.consumer.members import ConsumerMembers, CurrentAssignment
from kohort.groups.pairs import Pairs
from kohort.groups.records import ReconciliationState
from kohort.groups.step import Step
from kohort.groups.table import UnexpectedTransitionError


class Movement(NamedTuple):
    """An entry of the members' table: how a member moves on, and its possible next states."""

    why: str
    do: Callable[..., CurrentAssignment]
    to: tuple[ReconciliationState, ...]


class ConsumerReconciliation(ConsumerMembers):
    """How a member moves from its assignment to its target, and when a rebalance is complete."""

    def next_assignment(self, member_id: str, target: Pairs, owned: Pairs | None) -> CurrentAssignment:
        """Return a member's assignment after this heartbeat.

        Args:
            consumer: the group.
            member_id: the member.
            target: the member's partitions at the group's target epoch.
            owned: the partitions that the member reports; None: unchanged, so perhaps all of them.
        """
        before = self.current_assignment(member_id)
        entry = MEMBER_TABLE[before.state]
        after = entry.do(self, before, member_id, target, owned)
        if after.state is not before.state and after.state not in entry.to:
            raise UnexpectedTransitionError(f"{member_id}: led from {before.state} to {after.state}")
        return after

    def continue_move(
        self, current: CurrentAssignment, member_id: str, target: Pairs, owned: Pairs | None
    ) -> CurrentAssignment:
        """Take a step towards the target, unless the member has all of it."""
        if current.is_reconciled_to(self.target_epoch):
            return current
        return self.move_towards_target(member_id, current.member_epoch, target, owned)

    def finish_revocation(
        self, current: CurrentAssignment, member_id: str, target: Pairs, owned: Pairs | None
    ) -> CurrentAssignment:
        """Go on towards the newest target, unless the member still reports partitions that it has to revoke."""
        if owned is None or owned & current.pending:
            return current
        return self.move_towards_target(member_id, current.member_epoch + 1, target, owned)

    def move_towards_target(self, member_id: str, epoch: int, target: Pairs, owned: Pairs | None) -> CurrentAssignment:
        """Take one step towards the target: revoke, assign, or wait."""
        before = self.current_assignment(member_id)
        kept = before.assigned & target
        to_revoke = before.assigned - kept
        previous = before.previous_epoch if epoch == before.member_epoch else before.member_epoch
        if to_revoke and (owned is None or owned & to_revoke):
            since = {pair: before.since[pair] for pair in before.assigned}
            return CurrentAssignment(epoch, previous, ReconciliationState.UNREVOKED_PARTITIONS, kept, to_revoke, since)
        holders = self.holders
        wanted = target - kept
        free = frozenset(pair for pair in wanted if holders.get(pair, member_id) == member_id)
        state = ReconciliationState.STABLE if len(free) == len(wanted) else ReconciliationState.UNRELEASED_PARTITIONS
        epoch = self.target_epoch
        previous = before.previous_epoch if epoch == before.member_epoch else before.member_epoch
        since = {pair: before.since[pair] for pair in kept} | dict.fromkeys(free, epoch)
        return CurrentAssignment(epoch, previous, state, kept | free, since=since)

    def waits_for_others(self, member_id: str) -> bool:
        """Return whether another member still owns a part of this member's target."""
        current = self.current_assignment(member_id)
        if current.state is not ReconciliationState.UNRELEASED_PARTITIONS:
            return False
        missing = self.targets.get(member_id, frozenset()) - current.assigned
        return any(self.holders.get(pair, member_id) != member_id for pair in missing)

    def reconcile_member(self, step: Step, member_id: str, owned: Pairs | None) -> CurrentAssignment:
        """Move a member one step towards its target and bound the time of its revocation."""
        before = self.current_assignment(member_id)
        target = self.targets.get(member_id, frozenset())
        after = self.next_assignment(member_id, target, owned)
        if after == before and member_id in self.current:
            return after
        step.emit(after.record(self.group_id, member_id))
        self.record_downtime(step, before.assigned, after.assigned)
        member = self.members[member_id]
        presence = self.presence(member_id)
        if after.state is ReconciliationState.UNREVOKED_PARTITIONS and member.classic_protocols is None:
            step.run(presence.revocation, member.rebalance_timeout_ms)
        else:
            presence.revocation.cancel()
        if after.is_reconciled_to(self.epoch) and not before.is_reconciled_to(self.epoch):
            self.report_if_settled(step)
        return after

    def record_downtime(self, step: Step, before: Pairs, after: Pairs) -> None:
        """Record the downtime of partitions that were taken from a member or assigned to one."""
        if before == after:
            return
        now_ms = step.now.mono_ms
        for pair in before - after:
            self.stopped[pair] = now_ms
        if self.stopped:
            for pair in after - before:
                since = self.stopped.pop(pair, None)
                if since is not None:
                    self.still.append(now_ms - since)

    def report_if_settled(self, step: Step) -> None:
        """Report the rebalance as complete when the last member has reached its target."""
        if self.settling_epoch != self.epoch:
            self.settling, self.settling_epoch = list(self.members), self.epoch
        left = self.settling
        if not left:  # all members were reached before: one of them has rejoined
            return
        while left:
            awaited = left[-1] in self.members and left[-1] not in self.excluded
            if awaited and not self.current_assignment(left[-1]).is_reconciled_to(self.epoch):
                return
            left.pop()
        step.rebalanced(self.group_id, "consumer", self.began_ms, self.still, len(self.members))
        self.began_ms = None
        self.stopped.clear()
        self.still = []

    def session_timeout_ms(self, step: Step, member_id: str) -> int:
        """Return a member's session timeout."""
        member = self.members[member_id]
        if member.classic_protocols is not None:
            return member.classic_session_timeout_ms
        return self.settings.session_timeout_ms or step.config.consumer_session_timeout_ms

    def heartbeat_interval_ms(self, step: Step) -> int:
        """Return the heartbeat interval of settled members."""
        return self.settings.heartbeat_interval_ms or step.config.consumer_heartbeat_interval_ms

    def preferred_assignor(self, step: Step) -> str:
        """Return the assignor that most members prefer; the first configured one if none has a preference."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.server_assignor is not None:
                votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
        return max(votes, key=lambda name: votes[name]) if votes else step.config.consumer_assignors[0]


SETTLED, UNREVOKED = ReconciliationState.STABLE, ReconciliationState.UNREVOKED_PARTITIONS
UNRELEASED = ReconciliationState.UNRELEASED_PARTITIONS

MEMBER_TABLE: Mapping[ReconciliationState, Movement] = {
    SETTLED: Movement(
        "with a newer target the member first revokes partitions, then gets those that nobody owns",
        ConsumerReconciliation.continue_move,
        (UNREVOKED, UNRELEASED),
    ),
    UNREVOKED: Movement(
        "once the member reports that it has revoked them, it moves on towards the newest target",
        ConsumerReconciliation.finish_revocation,
        (SETTLED, UNRELEASED),
    ),
    UNRELEASED: Movement(
        "the member gets what other members have revoked",
        ConsumerReconciliation.continue_move,
        (SETTLED, UNREVOKED),
    ),
}
"""What a heartbeat, or the JoinGroup of a classic member, does to the member in each of its states."""
