"""What must hold in a push group between any two steps."""

from __future__ import annotations

from collections.abc import Iterator

from kohort.groups.events import Asking
from kohort.groups.pairs import Pair
from kohort.groups.push.state import PushGroup, PushMember


def broken_in(push: PushGroup) -> Iterator[str]:
    """What is wrong with a push group."""
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
    """What is wrong with what a member was asked."""
    if member.session.due_ms is None:
        yield f"no session of {member_id} runs"
    if (member.asked is None) != (member.out == 0):
        yield f"{member_id} was asked {member.asked}, and owes {member.out} answers"
    if member.out > 1 and member.asked is not Asking.PING:
        yield f"{member.asked} of {member_id} was repeated"
    if member.is_gone and (member.asked is not None or member.ping.due_ms is not None or member.claim is not None):
        yield f"{member_id} can't be reached, and is asked"
    if not member.is_gone and member.ping.due_ms is None:
        yield f"{member_id} is never asked again"
