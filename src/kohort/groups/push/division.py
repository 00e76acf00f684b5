"""Who of a push group is to have what: long work, pure, for any thread.

A consumer counts as many takers as it has streams of a topic. Topics that a consumer's expression finds are matched
here too; internal ones are left out. Source: spec 4.7, 4.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kohort.assignors import MemberSubscription, server_assignor
from kohort.groups.consumer.targets import topic_info
from kohort.groups.events import PartitionsDivided, Topic
from kohort.groups.outcome import DividePartitions
from kohort.groups.pairs import Pair, pack, unpack
from kohort.groups.records import PushMemberSaved
from kohort.ids import TopicId, TopicPartition

ASSIGNORS = {"sticky": "uniform", "range": "range"}
"""The coordinator's assignors by the names of `push.assignor`: uniform keeps what members have."""
INTERNAL = "__"
"""Topics whose names begin so are internal."""

Matched = Mapping[tuple[str, bool], frozenset[str]]


def divide(work: DividePartitions, match: Callable[[str, Iterable[str]], Iterable[str]]) -> PartitionsDivided:
    """Carry out a `DividePartitions` with the shell's regular expressions."""
    matched = {
        (member.regex, member.excluding): found(member.regex, member.excluding, work.topics, match)
        for member in work.members.values()
        if member.regex is not None
    }
    by_id = {topic.id: topic for topic in work.topics.values()}
    takers: dict[str, MemberSubscription] = {}
    member_of: dict[str, str] = {}
    for member_id, member in work.members.items():
        reads = {
            topic: streams
            for topic, streams in streams_of(member, matched).items()
            if topic in work.topics  # others have no partitions yet
        }
        owned = unpack(work.current[member_id])
        for taker, subscription in split(member_id, reads, owned, by_id).items():
            takers[taker] = subscription
            member_of[taker] = member_id
    read = {topic for subscription in takers.values() for topic in subscription.topics}
    infos = {name: topic_info(work.topics[name], range(work.topics[name].partitions)) for name in sorted(read)}
    given: dict[str, set[Pair]] = {member_id: set() for member_id in work.members}
    if takers:
        for taker, parts in server_assignor(ASSIGNORS[work.assignor]).assign(takers, infos).items():
            given[member_of[taker]].update((work.topics[topic].id, number) for topic, number in parts)
    shares = {member_id: pack(pairs) for member_id, pairs in given.items()}
    return PartitionsDivided(work.group_id, work.ticket, shares, matched)


def found(
    regex: str, excluding: bool, topics: Mapping[str, Topic], match: Callable[[str, Iterable[str]], Iterable[str]]
) -> frozenset[str]:
    """The topics that an expression finds."""
    names = [name for name in sorted(topics) if not name.startswith(INTERNAL)]
    matches = frozenset(match(regex, names))
    return frozenset(names) - matches if excluding else matches


def streams_of(member: PushMemberSaved, matched: Matched) -> Mapping[str, int]:
    """The topics that a member reads, with their streams."""
    if member.regex is None:
        return dict(member.topics)
    return dict.fromkeys(matched[member.regex, member.excluding], member.streams)


def split(
    member_id: str, reads: Mapping[str, int], owned: Iterable[Pair], by_id: Mapping[TopicId, Topic]
) -> dict[str, MemberSubscription]:
    """A member's streams as takers of their own; what it has is spread over them."""
    held: dict[int, list[TopicPartition]] = {}
    dealt: dict[str, int] = {}
    for topic_id, number in sorted(owned):
        topic = by_id.get(topic_id)
        if topic is not None and topic.name in reads and number < topic.partitions:
            stream = dealt.get(topic.name, 0)
            dealt[topic.name] = stream + 1
            held.setdefault(stream % reads[topic.name], []).append(TopicPartition(topic.name, number))
    return {
        f"{member_id}-{stream}": MemberSubscription(
            topics=tuple(sorted(topic for topic, streams in reads.items() if streams > stream)),
            owned=tuple(held.get(stream, ())),
            generation=1,
        )
        for stream in range(max(reads.values(), default=1))
    }
