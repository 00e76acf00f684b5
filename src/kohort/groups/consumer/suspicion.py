"""Members of a consumer group that are silent: no one waits for them.

A member that should have been heard and was not may be dead, which its session will show; until then what it has is its
own. But a target that asks it to give something up, or gives it more, leaves others waiting and partitions unread. So a
target is made without those that are silent when it is asked for: they keep what they have, and the others divide the
rest. One that falls silent before it has moved gets a new target made. When it is heard again, or is evicted, the next
one is even.

When a member is silent `liveness.pacing` says, by `PACE`; one is also while it is away as a static member may be.

Only with the assignor `uniform`: that of `range` keeps partitions of the same number together, which needs every
member.
"""

from __future__ import annotations

from collections.abc import Iterable

from kohort.groups import failure_detector
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.consumer.members import preferred_assignor
from kohort.groups.failure_detector import Pace
from kohort.groups.pairs import Pairs
from kohort.groups.step import Context
from kohort.groups.timers import Deadline, Timer

SLACK_MS = 500
"""A heartbeat may be so much late beside half its interval, and a client takes so long to connect again."""
PACE = Pace(any_sign=True, late_percent=50, late_ms=SLACK_MS, reconnect_ms=SLACK_MS, forgives_disconnect=True)
"""How members of consumer groups are heard.

To take one for silent that is not moves partitions twice: away from it, and back. So it is given time, and whatever is
heard of it counts. Who would not wait is held again all the same: how long it is held was measured with its client
(`liveness.patience`) or follows from the interval that it was told, and without holds some would ask several times a
second, as they are told a short interval.
"""
ASSIGNOR = "uniform"


def silent_from_ms(context: Context, consumer: ConsumerGroup, member_id: str) -> int | None:
    """When a member counts as silent if it is not heard before.

    None if it speaks classic: to a member of the classic protocol no target says anything before it joins again.
    """
    if consumer.members[member_id].classic_protocols is not None:
        return None
    if consumer.current_assignment(member_id).is_away:
        return context.now.mono_ms
    presence = consumer.presences.get(member_id)
    return None if presence is None else failure_detector.silent_from_ms(context, consumer, presence)


def is_silent(context: Context, consumer: ConsumerGroup, member_id: str) -> bool:
    """Whether a member counts as silent now."""
    from_ms = silent_from_ms(context, consumer, member_id)
    return from_ms is not None and from_ms <= context.now.mono_ms


def applies(context: Context, consumer: ConsumerGroup) -> bool:
    """Whether targets may be made without some of the members."""
    return context.config.notify_at_once != "off" and preferred_assignor(context, consumer) == ASSIGNOR


def exclude(context: Context, consumer: ConsumerGroup) -> dict[str, Pairs]:
    """The silent members that the next target is made without, and what they have; no one where all are silent."""
    consumer.excluded.clear()
    silent = silent_of(context, consumer, consumer.members) if applies(context, consumer) else []
    consumer.excluded.update(dict.fromkeys(silent))
    current = {member_id: consumer.current_assignment(member_id) for member_id in silent}
    return {member_id: each.assigned | each.pending for member_id, each in current.items()}


def silent_of(context: Context, consumer: ConsumerGroup, asked: Iterable[str]) -> list[str]:
    """Those of some members that are silent; none when no member at all is not."""
    if all(is_silent(context, consumer, member_id) for member_id in consumer.members):
        return []
    return [member_id for member_id in asked if is_silent(context, consumer, member_id)]


def heard(context: Context, consumer: ConsumerGroup, member_id: str) -> bool:
    """A member is heard: whether the target was made without it, so that the group needs another."""
    if member_id not in consumer.excluded:
        return False
    del consumer.excluded[member_id]
    presence = consumer.presences.get(member_id)
    if presence is not None:
        presence.was_not_silent(context)
    return True


def watch(context: Context, consumer: ConsumerGroup) -> None:
    """There is a new target: look when the first of those that have to move would be silent."""
    if not applies(context, consumer):
        return
    due = [silent_from_ms(context, consumer, member_id) for member_id in unmoved(consumer)]
    first_ms = min((each for each in due if each is not None), default=None)
    if first_ms is not None:
        if consumer.watch is None:
            consumer.watch = Timer(Deadline.SILENCE, consumer.group_id)
        context.deadlines.set(consumer.watch, max(first_ms, context.now.mono_ms + SLACK_MS))


def unmoved(consumer: ConsumerGroup) -> list[str]:
    """Members that the target was made with and that do not have it."""
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
    """Whether partitions of subscribed topics are in nobody's target: only silent members read them when it was made.

    Asked by a coordinator that takes over, as `is_uneven`.
    """
    if not applies(context, consumer):
        return False
    given = {pair for member_id in consumer.members for pair in consumer.targets.get(member_id, ())}
    topics = (context.image.topics.get(name) for name in consumer.subscribed())
    return any((topic.id, number) not in given for topic in topics if topic for number in range(topic.partitions))


def is_uneven(context: Context, consumer: ConsumerGroup) -> bool:
    """Whether shares differ by more than one although all members read the same: a target that was made for the silent.

    Who they were is not written; so a coordinator that takes over asks this.
    """
    if not applies(context, consumer) or len({consumer.topics_of(each) for each in consumer.members.values()}) != 1:
        return False
    shares = [len(consumer.targets.get(member_id, frozenset())) for member_id in consumer.members]
    return max(shares) - min(shares) > 1
