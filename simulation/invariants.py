"""Invariants that hold between any two steps, whatever the input. A violation is a bug of the coordinator.

The checks cost as much as the state is large. The simulation therefore runs them on samples.
"""

from __future__ import annotations

from collections.abc import Iterator

from kohort.groups.context import Context
from kohort.groups.events import NO_CONNECTION, PushRequestKind
from kohort.groups.group import Group
from kohort.groups.pairs import Pair
from kohort.groups.push.group import PushGroup
from kohort.groups.push.members import PushMember


class BrokenInvariantError(Exception):
    """A violated invariant: the state contradicts itself."""


def check(context: Context) -> None:
    """Check the invariants of every group.

    Raises:
        BrokenInvariantError: with the group's name and every violation in it.
    """
    for group in context.ledger.groups.values():
        broken = [*broken_in(context, group), *unbound_in(context, group)]
        if broken:
            raise BrokenInvariantError(f"{group.group_id}: {'; '.join(broken)}")
    broken = [*broken_holds(context)]
    if broken:
        raise BrokenInvariantError("; ".join(broken))
    for producer_id, group_ids in context.ledger.open_transactions.items():
        for group_id in group_ids:
            if producer_id not in context.ledger.groups[group_id].pending:
                raise BrokenInvariantError(f"{group_id}: transaction of {producer_id} is open without offsets")


def broken_in(context: Context, group: Group) -> Iterator[str]:
    """Yield the violations in one group."""
    if group.is_void():
        yield "it has no record"
    if group.membership.group_id != group.group_id:
        yield f"it has the members of {group.membership.group_id}"
    membership = group.membership
    if isinstance(membership, PushGroup):
        yield from broken_push(membership)
    else:
        yield from context.protocol(group).broken(membership)


def broken_holds(context: Context) -> Iterator[str]:
    """Yield held responses without a member, or without a running time limit."""
    for request, member in context.held:
        group_id, member_id = member.session.group_id, member.session.subject
        group = context.find(group_id)
        if group is None or context.protocol(group).member(group.membership, member_id) is not member:
            yield f"{group_id}: request {request} is held for {member_id}, who is not in it"
        elif member.held is None or member.held.request != request:
            yield f"{group_id}: request {request} is held for {member_id}, who knows nothing of it"
        elif member.hold is None or member.hold.due_ms is None:
            yield f"{group_id}: nothing ends the hold of request {request} for {member_id}"


def unbound_in(context: Context, group: Group) -> Iterator[str]:
    """Yield members whose connection may end unnoticed: it has not ended, but they are not registered on it."""
    for member_id, connection, is_gone in group.membership.places():
        bound = connection == NO_CONNECTION or (group.group_id, member_id) in context.connections.get(connection, ())
        if not is_gone and not bound:
            yield f"{member_id} is not bound to its connection {connection}"


# -- Push groups


def broken_push(push: PushGroup) -> Iterator[str]:
    """Yield the violated invariants of a push group."""
    if push.members.keys() != push.present.keys():
        yield "members are not those that are heard"
    for what, names in (("owns", push.owned.keys()), ("is to be started", push.moving.keys())):
        if not names <= push.members.keys():
            yield f"a stranger {what}"
    holders: dict[Pair, str] = {}
    for member_id, pairs in push.owned.items():
        for pair in pairs:
            if pair in holders:
                yield f"{pair} is owned by {holders[pair]} and {member_id}"
            holders[pair] = member_id
    if holders != push.holders:
        yield "holders differ from what members own"
    runs = push.attempts.due_ms is not None or push.backoff.due_ms is not None or push.dividing >= 0
    if push.rebalancing and not runs:
        yield "a rebalance is under way, and nothing ends it"
    if not push.rebalancing and (push.moving or push.dividing >= 0):
        yield "members are moved, and no rebalance is under way"
    if push.again and not push.rebalancing and push.backoff.due_ms is None:
        yield "it is marked to be looked at again, and nothing will"
    for member_id, member in push.present.items():
        yield from broken_asking(member_id, member)


def broken_asking(member_id: str, member: PushMember) -> Iterator[str]:
    """Yield contradictions between a member's unanswered requests and its timers."""
    if member.session.due_ms is None:
        yield f"no session of {member_id} runs"
    if (member.asked is None) != (member.out == 0):
        yield f"{member_id} was asked {member.asked}, and owes {member.out} answers"
    if member.out > 1 and member.asked is not PushRequestKind.PING:
        yield f"{member.asked} of {member_id} was repeated"
    if member.is_gone and (member.asked is not None or member.ping.due_ms is not None or member.claim is not None):
        yield f"{member_id} can't be reached, and is asked"
    if not member.is_gone and member.ping.due_ms is None:
        yield f"{member_id} is never asked again"
