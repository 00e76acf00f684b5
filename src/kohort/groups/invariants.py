"""Invariants that hold between any two steps, whatever the input. A violation is a bug here, and the shard stops.

The checks cost as much as the state is large. The simulation therefore runs them on samples, and a coordinator only
when debugging.
"""

from __future__ import annotations

from collections.abc import Iterator

from kohort.groups.events import NO_CONNECTION
from kohort.groups.group import Group
from kohort.groups.step import Context


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
    yield from context.protocol(group).broken(group.membership)


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
