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

from kohort.groups.consumer.group import ConsumerGroup, CurrentAssignment
from kohort.groups.pairs import Pairs
from kohort.groups.records import MemberState


def next_step(consumer: ConsumerGroup, member_id: str, target: Pairs, owned: Pairs | None) -> CurrentAssignment:
    """Return a member's assignment after this heartbeat.

    Args:
        consumer: the group.
        member_id: the member.
        target: the member's partitions at the group's target epoch.
        owned: the partitions that the member reports; None: unchanged, so perhaps all of them.
    """
    current = consumer.current_assignment(member_id)
    if current.state is MemberState.UNREVOKED_PARTITIONS:
        if owned is None or owned & current.pending:
            return current
        return move(consumer, member_id, current.member_epoch + 1, target, owned)
    if current.is_reconciled_to(consumer.target_epoch):
        return current
    return move(consumer, member_id, current.member_epoch, target, owned)


def move(consumer: ConsumerGroup, member_id: str, epoch: int, target: Pairs, owned: Pairs | None) -> CurrentAssignment:
    """Take one step towards the target: revoke, assign, or wait."""
    before = consumer.current_assignment(member_id)
    kept = before.assigned & target
    to_revoke = before.assigned - kept
    previous = before.previous_epoch if epoch == before.member_epoch else before.member_epoch
    if to_revoke and (owned is None or owned & to_revoke):
        since = {pair: before.since[pair] for pair in before.assigned}
        return CurrentAssignment(epoch, previous, MemberState.UNREVOKED_PARTITIONS, kept, to_revoke, since)
    holders = consumer.holders
    wanted = target - kept
    free = frozenset(pair for pair in wanted if holders.get(pair, member_id) == member_id)
    state = MemberState.STABLE if len(free) == len(wanted) else MemberState.UNRELEASED_PARTITIONS
    epoch = consumer.target_epoch
    previous = before.previous_epoch if epoch == before.member_epoch else before.member_epoch
    since = {pair: before.since[pair] for pair in kept} | dict.fromkeys(free, epoch)
    return CurrentAssignment(epoch, previous, state, kept | free, since=since)


def waits_for_others(consumer: ConsumerGroup, member_id: str) -> bool:
    """Return whether another member still owns a part of this member's target."""
    current = consumer.current_assignment(member_id)
    if current.state is not MemberState.UNRELEASED_PARTITIONS:
        return False
    missing = consumer.targets.get(member_id, frozenset()) - current.assigned
    return any(consumer.holders.get(pair, member_id) != member_id for pair in missing)
