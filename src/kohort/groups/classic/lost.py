"""Classic members whose connection ended without a leave. What their grace is, `liveness.lost` says."""

from __future__ import annotations

from kohort.groups.classic import rebalance
from kohort.groups.classic.state import ClassicGroup
from kohort.groups.context import Context
from kohort.groups.events import ConnectionLost


def on_connection_lost(context: Context, classic: ClassicGroup, member_id: str, event: ConnectionLost) -> None:
    """A new member that no reply has told its id goes at once; a held heartbeat is answered, to no one."""
    drop_untold(context, classic, member_id)
    member = classic.members.get(member_id)
    if member is None or member.connection != event.connection:
        return
    member.lose(
        context,
        classic,
        event,
        is_static=member.instance_id is not None,
        process=member.client.process,
        interval_ms=member.session_timeout_ms // 3,
    )


def drop_untold(context: Context, classic: ClassicGroup, member_id: str) -> None:
    """The connection of a new member ended before a reply told its id."""
    member = classic.members.get(member_id)
    if member_id in classic.pending or (member is not None and not member.told):
        rebalance.evict(context, classic, member_id, f"the connection of new member {member_id} ended")
