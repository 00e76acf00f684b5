"""Target assignments and regular expressions: work that leaves the loop and comes back as an event.

One computation per group is under way at a time. A result for an older epoch is progress and is taken, then the newest
is computed: with members joining all the time, a group would otherwise never get a target.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from kohort.assignors import MemberSubscription, TopicInfo, server_assignor
from kohort.groups.consumer import silence
from kohort.groups.consumer.members import preferred_assignor
from kohort.groups.consumer.state import NOTHING, ConsumerGroup, Pairs, pack, unpack
from kohort.groups.context import Context
from kohort.groups.events import AssignmentComputed, RegexesResolved, Topic, TopicImage
from kohort.groups.outcome import ComputeAssignment, Level, ResolveRegexes
from kohort.groups.records import (
    EpochBumped,
    Kind,
    RegexResolved,
    TargetAssigned,
    TargetEpochSet,
    Tombstone,
)
from kohort.ids import TopicPartition

Matcher = Callable[[str, Iterable[str]], Iterable[str]]
"""From a regular expression and topic names to the names it matches."""


def metadata_hash(image: TopicImage, names: Iterable[str]) -> int:
    """A number that changes when a subscribed topic appears, goes, grows, or moves between racks; signed 64 bit."""
    digest = hashlib.blake2b(digest_size=8)
    for name in names:
        topic = image.topics.get(name)
        if topic is not None:
            racks = "|".join(",".join(partition) for partition in topic.racks)
            digest.update(f"{name}\0{topic.id}\0{topic.partitions}\0{racks}\0".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)


def bump(context: Context, group_id: str, reason: str) -> None:
    """A new epoch, with the topics as they are now."""
    consumer = context.ledger.consumer(group_id)
    if consumer.began_ms is None:
        consumer.began_ms = context.now.mono_ms
    epoch = consumer.epoch + 1
    context.emit(EpochBumped(group_id, epoch, metadata_hash(context.image, consumer.subscribed())))
    context.tell(group_id, f"epoch {epoch}: {reason}", Level.DEBUG)
    if not consumer.members:
        for regex in list(consumer.regexes):  # no one looks after them until a member comes that reads them
            context.emit(Tombstone((Kind.REGEX, group_id, regex)))
        consumer.computing = -1  # a result for those who were there would set the target back
        context.emit(TargetEpochSet(group_id, epoch, context.now.wall_ms))
        return
    request(context, group_id)


def request(context: Context, group_id: str) -> None:
    """Ask for the target of the newest epoch, unless a computation or what it needs is under way."""
    consumer = context.ledger.consumer(group_id)
    if consumer.computing >= 0 or consumer.resolving >= 0 or consumer.epoch <= consumer.target_epoch:
        return
    if resolve_if_needed(context, group_id):
        return
    consumer.computing = context.ticket()
    subscribed = {member_id: consumer.topics_of(member) for member_id, member in sorted(consumer.members.items())}
    names = {name for topics in subscribed.values() for name in topics}
    topics = {name: context.image.topics[name] for name in sorted(names) if name in context.image.topics}
    spared = silence.spare(context, consumer)
    context.out.work.append(
        ComputeAssignment(
            group_id=group_id,
            ticket=consumer.computing,
            epoch=consumer.epoch,
            assignor=preferred_assignor(context, consumer),
            members=dict(consumer.members),
            subscribed=subscribed,
            current={member_id: pack(consumer.targets.get(member_id, NOTHING)) for member_id in subscribed},
            topics=topics,
            spared={member_id: pack(existing(pairs, topics)) for member_id, pairs in spared.items()},
        )
    )


def existing(pairs: Pairs, topics: Mapping[str, Topic]) -> Pairs:
    """Those that are of one of these topics."""
    sizes = {topic.id: topic.partitions for topic in topics.values()}
    return frozenset((topic_id, number) for topic_id, number in pairs if number < sizes.get(topic_id, 0))


def resolve_if_needed(context: Context, group_id: str, *, again: bool = False) -> bool:
    """Ask for the topics of regular expressions that have none yet, or with `again` of all; True when it was asked."""
    consumer = context.ledger.consumer(group_id)
    wanted = sorted({m.subscribed_regex for m in consumer.members.values() if m.subscribed_regex})
    for regex in [regex for regex in consumer.regexes if regex not in wanted]:
        context.emit(Tombstone((Kind.REGEX, group_id, regex)))
    regexes = tuple(regex for regex in wanted if again or regex not in consumer.regexes)
    if not regexes or consumer.resolving >= 0:
        return bool(regexes)
    consumer.resolving = context.ticket()
    version = context.image.version
    context.out.work.append(
        ResolveRegexes(group_id, consumer.resolving, version, regexes, tuple(sorted(context.image.topics)))
    )
    return True


def on_resolved(context: Context, event: RegexesResolved) -> None:
    """Topics for regular expressions are here; a group whose topics changed gets a new epoch."""
    group = context.find(event.group_id)
    consumer = None if group is None else group.consumer
    if consumer is None or consumer.resolving != event.ticket:
        return
    consumer.resolving = -1
    in_use = {member.subscribed_regex for member in consumer.members.values()}
    for regex, names in event.topics.items():
        known = consumer.regexes.get(regex)
        if regex in in_use and (known is None or known.topics != names):
            context.emit(RegexResolved(event.group_id, regex, names, event.version, context.now.wall_ms))
    if event.version < context.image.version:
        resolve_if_needed(context, event.group_id, again=True)
    look_at_topics(context, event.group_id, consumer)
    request(context, event.group_id)


def look_at_topics(context: Context, group_id: str, consumer: ConsumerGroup) -> None:
    """A group whose subscribed topics are not what its epoch was made for gets a new one."""
    if consumer.members and metadata_hash(context.image, consumer.subscribed()) != consumer.metadata_hash:
        bump(context, group_id, "its topics changed")


def on_image(context: Context, before: TopicImage) -> None:
    """The topics changed: every group that reads one of them, or may, is looked at."""
    changed = {name for name, topic in context.image.topics.items() if before.topics.get(name) != topic}
    changed.update(before.topics.keys() - context.image.topics.keys())
    names_changed = before.topics.keys() != context.image.topics.keys()
    for group in list(context.ledger.groups.values()):
        consumer = group.consumer
        if consumer is None or not consumer.members:
            continue
        if names_changed and any(member.subscribed_regex for member in consumer.members.values()):
            resolve_if_needed(context, group.group_id, again=True)
        if not changed.isdisjoint(consumer.subscribed()):
            look_at_topics(context, group.group_id, consumer)


def take(context: Context, event: AssignmentComputed) -> bool:
    """A target is here: write what differs, then its epoch. False when it is stale or failed."""
    group = context.find(event.group_id)
    consumer = None if group is None else group.consumer
    if consumer is None or consumer.computing != event.ticket:
        return False
    consumer.computing = -1
    if event.failure is not None:
        context.tell(event.group_id, f"no target for epoch {event.epoch}: {event.failure}", Level.ERROR)
        return False
    if event.epoch == consumer.epoch and not consumer.members.keys() <= event.assignment.keys():
        request(context, event.group_id)  # a static member was replaced meanwhile: its place has another id now
        return False
    for member_id in consumer.members:
        target = unpack(event.assignment.get(member_id, ()))
        if member_id not in consumer.targets or consumer.targets[member_id] != target:
            context.emit(TargetAssigned(event.group_id, member_id, pack(target)))
    context.emit(TargetEpochSet(event.group_id, event.epoch, context.now.wall_ms))
    return True


def compute(work: ComputeAssignment) -> AssignmentComputed:
    """Carry out a `ComputeAssignment`; pure, for any thread or process.

    The assignor sees the partitions that are left by members that are spared, each topic's numbered from 0.
    """
    kept = {(entry.topic_id, number) for held in work.spared.values() for entry in held for number in entry.partitions}
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
        if member_id not in work.spared
    }
    infos = {name: topic_info(topic, left[name]) for name, topic in work.topics.items()}
    assigned = server_assignor(work.assignor).assign(members, infos)
    shares = {
        member_id: pack((work.topics[topic].id, left[topic][place]) for topic, place in assigned.get(member_id, ()))
        for member_id in members
    }
    return AssignmentComputed(work.group_id, work.ticket, work.epoch, {**shares, **work.spared})


def topic_info(topic: Topic, left: Sequence[int]) -> TopicInfo:
    """These partitions of a topic as the assignors see them, numbered anew."""
    return TopicInfo(len(left), tuple(frozenset(topic.racks[number]) for number in left if number < len(topic.racks)))


def resolve(work: ResolveRegexes, matcher: Matcher) -> RegexesResolved:
    """Carry out a `ResolveRegexes` with the shell's RE2."""
    found = {regex: tuple(sorted(matcher(regex, work.topics))) for regex in work.regexes}
    return RegexesResolved(work.group_id, work.ticket, work.version, found)
