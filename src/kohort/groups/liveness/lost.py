"""Members whose connection ended without a leave: put out before their session ends.

A closed connection is a hint of death, not death: the network may have broken it, and the client is back with its next
heartbeat. So a member has a grace; whatever it says within it, on any connection, and its session is whole again. Static
members keep their session in any case: to be away for a while is what they are for. Whose connections count is the
shell's to say (`ConnectionLost`):

- **Clients that keep a lease.** Such a client was told a number of ms by the shell, and hands out nothing when so long has
  passed since it *sent* the last request that was answered (`kohort.client.group.lease`). It is put out so long after the
  coordinator *received* the last one. Sent is before received, and a request that came after the connection ended is a
  sign of life, so that a member that lives on behind a broken connection has stopped before its partitions are others'.
- **Members that joined from a process that has ended**, by the word of the kernel that it and the broker run on: at once.
- **Others, where the operator asked for it.** The grace is a little more than the interval at which the member has been
  heard. A member that lives on does not know of it: its commits are refused, but it may work on records of others.
"""

from __future__ import annotations

from kohort.groups.classic import gathering
from kohort.groups.classic import requests as classic
from kohort.groups.classic.state import ClassicMember
from kohort.groups.consumer import heartbeat as consumer
from kohort.groups.consumer.state import ConsumerGroup
from kohort.groups.context import Context
from kohort.groups.events import NO_CONNECTION, ConnectionLost
from kohort.groups.liveness.deadlines import Timer

LEAST_INTERVAL_MS = 1_000
"""Clients wait up to about so long before they connect again, however short their interval is."""
ADDED_MS = 250
"""What a heartbeat may be late by."""


def on_connection_lost(context: Context, event: ConnectionLost) -> None:
    """New members whose id no reply has reached can't come back and go at once; others have their grace."""
    for group_id, member_id in context.connections.pop(event.connection, {}):
        group = context.find(group_id)
        if group is None:
            continue
        if group.consumer is None:
            classic.drop_untold(context, group, member_id)
            member = group.classic.members.get(member_id)
            if member is None or member.connection != event.connection:
                continue
            member.is_gone = True
            gathering.on_disconnect(context, member)
            if event.noticed:
                lose_classic(context, member, event)
        else:
            consumer.drop_untold(context, group, member_id)
            if group.consumer is not None:  # it may have been the last of the consumer protocol
                lose_consumer(context, group.consumer, member_id, event)


def lose_classic(context: Context, member: ClassicMember, event: ConnectionLost) -> None:
    """A classic member has its grace from now on."""
    if member.instance_id is None:
        member.connection = NO_CONNECTION
        member.lost = True
        interval_ms = member.interval_ms or member.session_timeout_ms // 3
        end_ms = grace_end_ms(context, event, member.heard_ms, interval_ms)
        shorten(context, member.session, context.now.mono_ms if is_dead(event, member.client.process) else end_ms)


def lose_consumer(context: Context, group: ConsumerGroup, member_id: str, event: ConnectionLost) -> None:
    """As `lose_classic`, if it counts; a held heartbeat is answered, to no one."""
    presence, member = group.presences.get(member_id), group.members.get(member_id)
    if presence is None or presence.connection != event.connection or member is None:
        return
    presence.gone_ms = context.now.mono_ms
    if event.noticed and member.instance_id is None:
        presence.connection = NO_CONNECTION
        presence.lost = True
    if presence.held is not None:
        consumer.let_go(context, presence.session.group_id, group, member_id)
    if presence.lost:
        classic_ms = 0 if member.classic_protocols is None else member.classic_session_timeout_ms // 3
        end_ms = grace_end_ms(context, event, presence.heard_ms, presence.told_ms or classic_ms)
        shorten(context, presence.session, context.now.mono_ms if is_dead(event, presence.process) else end_ms)


def is_dead(event: ConnectionLost, process: str) -> bool:
    """Whether a member has ended with its process: the one that it joined from, not one that only spoke for it since."""
    return event.ended != "" and event.ended == process


def grace_end_ms(context: Context, event: ConnectionLost, heard_ms: int | None, interval_ms: int) -> int:
    """When a member's grace ends: its lease runs since it was heard, and time to connect again is left in any case."""
    now_ms = context.now.mono_ms
    if event.lease_ms:
        lease_end_ms = (now_ms if heard_ms is None else heard_ms) + event.lease_ms
        return max(lease_end_ms, now_ms + LEAST_INTERVAL_MS + ADDED_MS)
    return now_ms + max(interval_ms, LEAST_INTERVAL_MS) * 5 // 4 + ADDED_MS


def shorten(context: Context, session: Timer, due_ms: int) -> None:
    """Let a session end then, if it would end later."""
    if session.due_ms is None or due_ms < session.due_ms:
        context.deadlines.set(session, due_ms)


def beat_ms(lease_ms: int) -> int:
    """At which interval a client sends heartbeats that keeps a lease; shorter where it was told so by its user."""
    return lease_ms * 2 // 5


def hold_max_ms(lease_ms: int) -> int:
    """How long the answer to a heartbeat may be held back from a client that keeps a lease.

    Of two held answers the second comes up to twice as long after the first one's request was sent: with three eighths a
    quarter of the lease is left for the way there and back.
    """
    return lease_ms * 3 // 8
