"""How a member of a consumer group moves from what it has to its target, one heartbeat at a time.

| state | what it waits for | what a heartbeat does |
|---|---|---|
| STABLE | a newer target | begins to move: gives up first, takes afterwards |
| UNREVOKED_PARTITIONS | the member no longer reports what it must give up | goes on towards the newest target |
| UNRELEASED_PARTITIONS | others give up what it is to have | takes what has become free |

A partition is assigned only when no member holds it or still has to give it up: that is the whole of why two clients
never own one. Source: KIP-848, "Reconciliation"; scenario 6.
"""

from __future__ import annotations

from kohort.groups.consumer.group import ConsumerGroup, CurrentAssignment
from kohort.groups.pairs import Pairs
from kohort.groups.records import MemberState


def next_step(consumer: ConsumerGroup, member_id: str, target: Pairs, owned: Pairs | None) -> CurrentAssignment:
    """Where a member stands after this heartbeat.

    Args:
        consumer: the group.
        member_id: the member.
        target: what it is to have at the group's target epoch.
        owned: what it reports to have; None: unchanged, so perhaps all of it.
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
    """One step towards the target: give up, or take, or wait."""
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
    """Whether a part of the member's target is still held by another."""
    current = consumer.current_assignment(member_id)
    if current.state is not MemberState.UNRELEASED_PARTITIONS:
        return False
    missing = consumer.targets.get(member_id, frozenset()) - current.assigned
    return any(consumer.holders.get(pair, member_id) != member_id for pair in missing)
