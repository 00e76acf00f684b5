"""Target assignments and regular expressions: background tasks whose results return as events.

Each group has at most one computation under way. A result for an older epoch is progress and is accepted; then the
newest epoch is computed. Otherwise a group would never get a target while members keep joining.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kohort.assignors import MemberSubscription, server_assignor
from kohort.groups.consumer import suspicion
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.consumer.members import preferred_assignor
from kohort.groups.context import Context
from kohort.groups.effects import ComputeAssignment, Level, ResolveRegexes
from kohort.groups.events import AssignmentComputed, RegexesResolved, Topic
from kohort.groups.pairs import NOTHING, Pairs, pack, unpack
from kohort.groups.records import (
    EpochBumped,
    Kind,
    RegexResolved,
    TargetAssigned,
    TargetEpochSet,
    Tombstone,
)
from kohort.groups.topics import ImageChange, metadata_hash, topic_info
from kohort.ids import TopicPartition

Matcher = Callable[[str, Iterable[str]], Iterable[str]]
"""A function from a regular expression and topic names to the names that match."""


def bump(context: Context, consumer: ConsumerGroup, reason: str) -> None:
    """Begin a new epoch, with the topics as they are now."""
    if consumer.began_ms is None:
        consumer.began_ms = context.now.mono_ms
    epoch = consumer.epoch + 1
    context.emit(EpochBumped(consumer.group_id, epoch, metadata_hash(context.image, consumer.subscribed())))
    context.log(consumer.group_id, f"epoch {epoch}: {reason}", Level.DEBUG)
    if not consumer.members:
        for regex in list(consumer.regexes):  # without members nobody keeps them up to date
            context.emit(Tombstone((Kind.REGEX, consumer.group_id, regex)))
        consumer.computing = -1  # a result for the former members would set the target back
        context.emit(TargetEpochSet(consumer.group_id, epoch, context.now.wall_ms))
        return
    request(context, consumer)


def request(context: Context, consumer: ConsumerGroup) -> None:
    """Request the target of the newest epoch, unless a computation or its prerequisite is under way."""
    if consumer.computing >= 0 or consumer.resolving >= 0 or consumer.epoch <= consumer.target_epoch:
        return
    if resolve_if_needed(context, consumer):
        return
    consumer.computing = context.ticket()
    subscribed = {member_id: consumer.topics_of(member) for member_id, member in sorted(consumer.members.items())}
    names = {name for topics in subscribed.values() for name in topics}
    topics = {name: context.image.topics[name] for name in sorted(names) if name in context.image.topics}
    excluded = suspicion.exclude(context, consumer)
    context.out.work.append(
        ComputeAssignment(
            group_id=consumer.group_id,
            ticket=consumer.computing,
            epoch=consumer.epoch,
            assignor=preferred_assignor(context, consumer),
            members=dict(consumer.members),
            subscribed=subscribed,
            current={member_id: pack(consumer.targets.get(member_id, NOTHING)) for member_id in subscribed},
            topics=topics,
            excluded={member_id: pack(existing(pairs, topics)) for member_id, pairs in excluded.items()},
        )
    )


def existing(pairs: Pairs, topics: Mapping[str, Topic]) -> Pairs:
    """Return the partitions that exist in these topics."""
    sizes = {topic.id: topic.partitions for topic in topics.values()}
    return frozenset((topic_id, number) for topic_id, number in pairs if number < sizes.get(topic_id, 0))


def resolve_if_needed(context: Context, consumer: ConsumerGroup, *, again: bool = False) -> bool:
    """Request the topics of unresolved regular expressions, or with `again` of all; True if a request is needed."""
    wanted = sorted({m.subscribed_regex for m in consumer.members.values() if m.subscribed_regex})
    for regex in [regex for regex in consumer.regexes if regex not in wanted]:
        context.emit(Tombstone((Kind.REGEX, consumer.group_id, regex)))
    regexes = tuple(regex for regex in wanted if again or regex not in consumer.regexes)
    if not regexes or consumer.resolving >= 0:
        return bool(regexes)
    consumer.resolving = context.ticket()
    version = context.image.version
    context.out.work.append(
        ResolveRegexes(consumer.group_id, consumer.resolving, version, regexes, tuple(sorted(context.image.topics)))
    )
    return True


def on_resolved(context: Context, consumer: ConsumerGroup, event: RegexesResolved) -> None:
    """Take over resolved regular expressions; begin a new epoch if the group's topics changed."""
    if consumer.resolving != event.ticket:
        return
    consumer.resolving = -1
    in_use = {member.subscribed_regex for member in consumer.members.values()}
    for regex, names in event.topics.items():
        known = consumer.regexes.get(regex)
        if regex in in_use and (known is None or known.topics != names):
            context.emit(RegexResolved(event.group_id, regex, names, event.version, context.now.wall_ms))
    if event.version < context.image.version:
        resolve_if_needed(context, consumer, again=True)
    look_at_topics(context, consumer)
    request(context, consumer)


def look_at_topics(context: Context, consumer: ConsumerGroup) -> None:
    """Begin a new epoch if the subscribed topics differ from those of the current one."""
    if consumer.members and metadata_hash(context.image, consumer.subscribed()) != consumer.metadata_hash:
        bump(context, consumer, "subscribed topics changed")


def on_image(context: Context, consumer: ConsumerGroup, change: ImageChange) -> None:
    """Handle a change of topics in a group that reads one of them, or may."""
    if not consumer.members:
        return
    if change.names_differ and any(member.subscribed_regex for member in consumer.members.values()):
        resolve_if_needed(context, consumer, again=True)
    if not change.topics.isdisjoint(consumer.subscribed()):
        look_at_topics(context, consumer)


def take(context: Context, consumer: ConsumerGroup, event: AssignmentComputed) -> bool:
    """Write a computed target as far as it differs, then its epoch; False if it is stale or failed."""
    if consumer.computing != event.ticket:
        return False
    consumer.computing = -1
    if event.failure is not None:
        context.log(event.group_id, f"target for epoch {event.epoch} not computed: {event.failure}", Level.ERROR)
        return False
    if event.epoch == consumer.epoch and not consumer.members.keys() <= event.assignment.keys():
        request(context, consumer)  # a static member was replaced meanwhile and has another id now
        return False
    for member_id in consumer.members:
        target = unpack(event.assignment.get(member_id, ()))
        if member_id not in consumer.targets or consumer.targets[member_id] != target:
            context.emit(TargetAssigned(event.group_id, member_id, pack(target)))
    context.emit(TargetEpochSet(event.group_id, event.epoch, context.now.wall_ms))
    return True


def compute(work: ComputeAssignment) -> AssignmentComputed:
    """Carry out a `ComputeAssignment`: a pure function for any thread or process.

    The assignor sees the partitions that excluded members leave, with each topic's numbered from 0.
    """
    kept = {
        (entry.topic_id, number) for held in work.excluded.values() for entry in held for number in entry.partitions
    }
    left = {
        name: [number for number in range(topic.partitions) if (topic.id, number) not in kept]
        for name, topic in work.topics.items()
    }
    places = {
        (topic.id, number): TopicPartition(name, place)
        for name, topic in work.topics.items()
        for place, number in enumerate(left[name])
    }
    members = {
        member_id: MemberSubscription(
            topics=work.subscribed[member_id],
            instance_id=member.instance_id,
            rack=member.rack_id,
            owned=tuple(
                place
                for entry in work.current[member_id]
                for number in entry.partitions
                if (place := places.get((entry.topic_id, number))) is not None
            ),
            generation=work.epoch - 1,
        )
        for member_id, member in work.members.items()
        if member_id not in work.excluded
    }
    infos = {name: topic_info(topic, left[name]) for name, topic in work.topics.items()}
    assigned = server_assignor(work.assignor).assign(members, infos)
    shares = {
        member_id: pack((work.topics[topic].id, left[topic][place]) for topic, place in assigned.get(member_id, ()))
        for member_id in members
    }
    return AssignmentComputed(work.group_id, work.ticket, work.epoch, {**shares, **work.excluded})


def resolve(work: ResolveRegexes, matcher: Matcher) -> RegexesResolved:
    """Carry out a `ResolveRegexes` with the caller's RE2."""
    matches = {regex: tuple(sorted(matcher(regex, work.topics))) for regex in work.regexes}
    return RegexesResolved(work.group_id, work.ticket, work.version, matches)
