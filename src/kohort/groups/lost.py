"""Members whose connection ended without a leave: put out after a grace period, before their session ends.

A closed connection is a hint of death, not death: the network may have broken it, and the client is back with its next
heartbeat. So the grace is a little more than the interval at which the member has been heard; whatever it says within it,
on any connection, and its session is whole again. Static members keep theirs in any case: to be away for a while is
what they are for. Whose connections count is the shell's to say (`ConnectionLost.noticed`).
"""

from __future__ import annotations

from kohort.groups import classic, consumer
from kohort.groups.consumer_state import ConsumerGroup
from kohort.groups.deadlines import Timer
from kohort.groups.events import NO_CONNECTION, ConnectionLost
from kohort.groups.kernel import Kernel
from kohort.groups.state import ClassicMember

LEAST_INTERVAL_MS = 1_000
"""Clients wait up to about so long before they connect again, however short their interval is."""
ADDED_MS = 250
"""What a heartbeat may be late by."""


def on_connection_lost(kernel: Kernel, event: ConnectionLost) -> None:
    """New members whose id no reply has reached can't come back and go at once; others have their grace."""
    for group_id, member_id in kernel.connections.pop(event.connection, {}):
        group = kernel.find(group_id)
        if group is None:
            continue
        if group.consumer is None:
            classic.drop_untold(kernel, group, member_id)
            member = group.classic.members.get(member_id)
            if event.noticed and member is not None and member.connection == event.connection:
                lose_classic(kernel, member)
        else:
            consumer.drop_untold(kernel, group, member_id)
            if event.noticed:
                lose_consumer(kernel, group.consumer, member_id, event.connection)


def lose_classic(kernel: Kernel, member: ClassicMember) -> None:
    """A classic member has its grace from now on."""
    if member.instance_id is None:
        member.connection = NO_CONNECTION
        member.lost = True
        shorten(kernel, member.session, member.interval_ms or member.session_timeout_ms // 3)


def lose_consumer(kernel: Kernel, group: ConsumerGroup, member_id: str, connection: int) -> None:
    """As `lose_classic`; a held heartbeat is answered, to no one."""
    presence, member = group.presences.get(member_id), group.members.get(member_id)
    if presence is None or presence.connection != connection or member is None or member.instance_id is not None:
        return
    presence.connection = NO_CONNECTION
    presence.lost = True
    if presence.held is not None:
        consumer.let_go(kernel, presence.session.group_id, group, member_id)
    shorten(kernel, presence.session, presence.told_ms)


def shorten(kernel: Kernel, session: Timer, interval_ms: int) -> None:
    """Let a session end after the grace for this interval, if it would end later."""
    due_ms = kernel.now.mono_ms + max(interval_ms, LEAST_INTERVAL_MS) * 5 // 4 + ADDED_MS
    if session.due_ms is None or due_ms < session.due_ms:
        kernel.deadlines.set(session, due_ms)
