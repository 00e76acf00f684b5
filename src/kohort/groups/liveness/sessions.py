"""Sessions that began before this owner's term: whom an earlier owner answered last is a member for a session more.

A coordinator that was overtaken may answer for a while still, until its proof is too old (`Journal.proof_ms`). A member
counts its session from what it sent, so one that was heard there in that while owns until a session after it, wherever
else it was heard before. What is looked at is the end of a session, not each sign of life: it seldom comes.
"""

from __future__ import annotations

from kohort.groups.context import Context
from kohort.groups.group import Membership
from kohort.groups.liveness.deadlines import Timer


def goes_on(context: Context, membership: Membership, session: Timer) -> bool:
    """Have a session that is due go on, if an earlier owner may have heard its member later; whether it does.

    Of a member whose connection has ended the grace is counted so from the start (`lost.grace_end_ms`).
    """
    row = context.protocols[type(membership)]
    member = row.member(membership, session.subject)
    if member is None or member.lost:
        return False
    end_ms = context.sessions_from_ms + row.session_ms(context, membership, member)
    if context.now.mono_ms >= end_ms:
        return False
    context.deadlines.set(session, end_ms)
    return True
