"""Members of a consumer group whose connection ended without a leave. What their grace is, `liveness.lost` says."""

from __future__ import annotations

from kohort.groups.consumer import heartbeat
from kohort.groups.consumer.state import ConsumerGroup
from kohort.groups.context import Context
from kohort.groups.events import ConnectionLost


def on_connection_lost(context: Context, consumer: ConsumerGroup, member_id: str, event: ConnectionLost) -> None:
    """A new member that no reply has told its id goes at once; a held heartbeat is answered, to no one."""
    drop_untold(context, consumer, member_id)
    presence, member = consumer.presences.get(member_id), consumer.members.get(member_id)
    if presence is None or presence.connection != event.connection or member is None:
        return
    presence.lose(
        context,
        consumer,
        event,
        is_static=member.instance_id is not None,
        process=presence.process,
        interval_ms=0 if member.classic_protocols is None else member.classic_session_timeout_ms // 3,
    )


def drop_untold(context: Context, consumer: ConsumerGroup, member_id: str) -> None:
    """The connection of a new member ended before a reply told its id."""
    presence = consumer.presences.get(member_id)
    if presence is None:
        return
    first, joining = presence.waiting, presence.joining
    untold = joining is not None and not joining.member_id and joining.instance_id is None
    if untold or (first is not None and not first.member_id):
        heartbeat.evict(context, consumer, member_id, f"the connection of new member {member_id} ended")
