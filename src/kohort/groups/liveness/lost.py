"""Members whose connection ended without a leave: evicted before their session ends.

A closed connection is a hint of death, not death: the network may have broken it, and the client is back with its next
heartbeat. So a member has a grace; whatever it says within it, on any connection, and its session is whole again.
Static members keep their session in any case: to be away for a while is what they are for. Whose connections count is
the shell's to say (`ConnectionLost`):

- **Clients that keep a lease** (`kohort.lease`). They are evicted a lease after the coordinator *received* their last
  request, and have stopped by then, counting from when they *sent* it.
- **Members that joined from a process that has ended**, by the word of the kernel that it and the broker run on: at
  once.
- **Others, where the operator asked for it.** The grace is a little more than the interval at which the member has been
  heard. A member that lives on does not know of it: its commits are refused, but it may work on records of others.
"""

from __future__ import annotations

from kohort.groups.context import Context
from kohort.groups.events import ConnectionLost
from kohort.groups.liveness.deadlines import Timer

LEAST_INTERVAL_MS = 1_000
"""Clients wait up to about so long before they connect again, however short their interval is."""
ADDED_MS = 250
"""What a heartbeat may be late by."""


def on_connection_lost(context: Context, event: ConnectionLost) -> None:
    """New members whose id no reply has reached can't come back and go at once; others have their grace."""
    for group_id, member_id in context.connections.pop(event.connection, {}):
        group = context.find(group_id)
        if group is not None:
            context.protocol(group).connection_lost(context, group.membership, member_id, event)


def grace_end_ms(context: Context, event: ConnectionLost, heard_ms: int | None, interval_ms: int) -> int:
    """When a member's grace ends: its lease runs since it was heard, and time to connect again is left in any case."""
    now_ms = context.now.mono_ms
    if event.lease_ms:
        lease_end_ms = max(now_ms if heard_ms is None else heard_ms, context.sessions_from_ms) + event.lease_ms
        return max(lease_end_ms, now_ms + LEAST_INTERVAL_MS + ADDED_MS)
    return now_ms + max(interval_ms, LEAST_INTERVAL_MS) * 5 // 4 + ADDED_MS


def shorten(context: Context, session: Timer, due_ms: int) -> None:
    """Let a session end then, if it would end later."""
    if session.due_ms is None or due_ms < session.due_ms:
        context.deadlines.set(session, due_ms)
