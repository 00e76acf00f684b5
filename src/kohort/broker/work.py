"""Long work of the group coordinator, run in a thread: server-side assignments and regular expressions."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterable

from kohort.assignors import MemberSubscription, TopicInfo, server_assignor
from kohort.groups.events import AssignmentComputed, Event, RegexesResolved
from kohort.groups.outcome import ComputeAssignment, ResolveRegexes, Work
from kohort.groups.records import TopicPartitions
from kohort.ids import TopicPartition

log = logging.getLogger("kohort.groups")


def run(work: Work) -> Event:
    """Do the work; what comes back is an event for the shard."""
    if isinstance(work, ResolveRegexes):
        return resolve(work)
    try:
        return AssignmentComputed(work.group_id, work.epoch, compute(work))
    except Exception as error:
        # An assignor is code that others may have written: whatever it raises is the group's failure, not the broker's.
        log.exception("group %s: the assignor %s failed", work.group_id, work.assignor)
        return AssignmentComputed(work.group_id, work.epoch, {}, f"{type(error).__name__}: {error}")


def compute(work: ComputeAssignment) -> dict[str, tuple[TopicPartitions, ...]]:
    """Run the assignor."""
    names = {topic.id: name for name, topic in work.topics.items()}
    members = {
        member: MemberSubscription(
            topics=work.subscribed[member],
            instance_id=saved.instance_id,
            rack=saved.rack_id,
            owned=tuple(_named(work.current.get(member, ()), names)),
        )
        for member, saved in work.members.items()
    }
    topics = {
        name: TopicInfo(topic.partitions, tuple(frozenset(racks) for racks in topic.racks))
        for name, topic in work.topics.items()
    }
    assigned = server_assignor(work.assignor).assign(members, topics)
    return {member: _by_id(partitions, work) for member, partitions in assigned.items()}


def _named(partitions: Iterable[TopicPartitions], names: dict[uuid.UUID, str]) -> Iterable[TopicPartition]:
    for each in partitions:
        if each.topic_id in names:
            for index in each.partitions:
                yield TopicPartition(names[each.topic_id], index)


def _by_id(partitions: Iterable[TopicPartition], work: ComputeAssignment) -> tuple[TopicPartitions, ...]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    return tuple(
        TopicPartitions(work.topics[topic].id, tuple(sorted(indexes))) for topic, indexes in sorted(by_topic.items())
    )


def resolve(work: ResolveRegexes) -> RegexesResolved:
    """The topics that each expression matches as a whole; one that can't be compiled matches none."""
    found: dict[str, tuple[str, ...]] = {}
    for regex in work.regexes:
        try:
            pattern = re.compile(regex)
        except re.error:
            found[regex] = ()
            continue
        found[regex] = tuple(sorted(name for name in work.topics if pattern.fullmatch(name)))
    return RegexesResolved(work.group_id, work.version, found)
