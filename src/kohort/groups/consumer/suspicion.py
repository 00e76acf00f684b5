"""Suspected members of a consumer group: the group does not wait for them.

A member that is overdue may be dead, which only its session timeout shows. Until then it keeps its partitions. But a
target that revokes some of them or adds others would leave other members waiting and partitions unread. So a target is
computed without the members that are silent at that moment. They keep their partitions, and the others share the rest.
If a member falls silent before it has moved, the group gets a new target. When the member is heard again or evicted,
the next target is balanced again.

`failure_detector` decides which members are silent, by `DETECTOR_SETTINGS`. A static member is also silent while it
has left temporarily.

This works only with the assignor `uniform`. The assignor `range` keeps partitions of the same number together, which
needs every member.
"""

from __future__ import annotations

from collections.abc import Iterable

from kohort.groups import failure_detector
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.consumer.members import preferred_assignor
from kohort.groups.context import Context
from kohort.groups.failure_detector import DetectorSettings
from kohort.groups.pairs import Pairs
from kohort.groups.timers import Deadline, Timer

SLACK_MS = 500
"""The tolerated delay of a heartbeat beside half its interval, and the time that a client needs to reconnect."""
DETECTOR_SETTINGS = DetectorSettings(
    any_sign=True, late_percent=50, late_ms=SLACK_MS, reconnect_ms=SLACK_MS, forgives_disconnect=True
)
"""The failure detector's parameters for consumer groups.

A false suspicion moves partitions twice: away from the member and back. So members get time, and every request counts.
Heartbeats of members that closed a connection during a delay are still delayed. The length of the delay was measured
with their client (`client_quirks`) or follows from the interval that the member was told. Without delays some clients
would send several heartbeats a second, because they were told a short interval.
"""
ASSIGNOR = "uniform"


def silent_from_ms(context: Context, consumer: ConsumerGroup, member_id: str) -> int | None:
    """Return when a member counts as silent unless it is heard before.

    None for a member of the classic protocol: a new target does not affect it before it joins again.
    """
    if consumer.members[member_id].classic_protocols is not None:
        return None
    if consumer.current_assignment(member_id).is_away:
        return context.now.mono_ms
    presence = consumer.presences.get(member_id)
    return None if presence is None else failure_detector.silent_from_ms(context, consumer, presence)


def is_silent(context: Context, consumer: ConsumerGroup, member_id: str) -> bool:
    """Return whether a member counts as silent now."""
    from_ms = silent_from_ms(context, consumer, member_id)
    return from_ms is not None and from_ms <= context.now.mono_ms


def applies(context: Context, consumer: ConsumerGroup) -> bool:
    """Return whether targets may be computed without some of the members."""
    return context.config.notify_at_once != "off" and preferred_assignor(context, consumer) == ASSIGNOR


def exclude(context: Context, consumer: ConsumerGroup) -> dict[str, Pairs]:
    """Choose the silent members to exclude from the next target, with their partitions; none if all are silent."""
    consumer.excluded.clear()
    silent = silent_of(context, consumer, consumer.members) if applies(context, consumer) else []
    consumer.excluded.update(dict.fromkeys(silent))
    current = {member_id: consumer.current_assignment(member_id) for member_id in silent}
    return {member_id: assignment.assigned | assignment.pending for member_id, assignment in current.items()}


def silent_of(context: Context, consumer: ConsumerGroup, candidates: Iterable[str]) -> list[str]:
    """Return the silent ones of some members; none if every member of the group is silent."""
    if all(is_silent(context, consumer, member_id) for member_id in consumer.members):
        return []
    return [member_id for member_id in candidates if is_silent(context, consumer, member_id)]


def heard(context: Context, consumer: ConsumerGroup, member_id: str) -> bool:
    """Take a member back that is heard again; return whether the target excluded it, so that a new one is needed."""
    if member_id not in consumer.excluded:
        return False
    del consumer.excluded[member_id]
    presence = consumer.presences.get(member_id)
    if presence is not None:
        presence.was_not_silent(context)
    return True


def watch(context: Context, consumer: ConsumerGroup) -> None:
    """Schedule a check of the new target: when the first member that has to move would be silent."""
    if not applies(context, consumer):
        return
    due = [silent_from_ms(context, consumer, member_id) for member_id in unmoved(consumer)]
    first_ms = min((due_ms for due_ms in due if due_ms is not None), default=None)
    if first_ms is not None:
        if consumer.watch is None:
            consumer.watch = Timer(Deadline.SILENCE, consumer.group_id)
        context.deadlines.set(consumer.watch, max(first_ms, context.now.mono_ms + SLACK_MS))


def unmoved(consumer: ConsumerGroup) -> list[str]:
    """Return the members that the target includes and that do not have it yet."""
    return [
        member_id
        for member_id in consumer.members
        if member_id not in consumer.excluded and not _has_its_target(consumer, member_id)
    ]


def _has_its_target(consumer: ConsumerGroup, member_id: str) -> bool:
    current = consumer.current.get(member_id)
    target = consumer.targets.get(member_id)
    return not target if current is None else not current.pending and current.assigned == (target or frozenset())


def leaves_out(context: Context, consumer: ConsumerGroup) -> bool:
    """Return whether no target holds some partitions of subscribed topics, as only silent members had read them.

    For a coordinator that takes over; `is_uneven` explains why.
    """
    if not applies(context, consumer):
        return False
    given = {pair for member_id in consumer.members for pair in consumer.targets.get(member_id, ())}
    topics = (context.image.topics.get(name) for name in consumer.subscribed())
    return any((topic.id, number) not in given for topic in topics if topic for number in range(topic.partitions))


def is_uneven(context: Context, consumer: ConsumerGroup) -> bool:
    """Return whether shares differ by more than one although all members read the same topics.

    Such a target excluded silent members. No record names them, so a coordinator that takes over checks this.
    """
    if not applies(context, consumer) or len({consumer.topics_of(reader) for reader in consumer.members.values()}) != 1:
        return False
    shares = [len(consumer.targets.get(member_id, frozenset())) for member_id in consumer.members]
    return max(shares) - min(shares) > 1
