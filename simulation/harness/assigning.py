"""Assignments by simulated leaders: balanced, sticky to valid claims, in two steps for cooperative members."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from kohort.consumer_protocol import read_assignment, read_subscription, write_assignment
from kohort.groups.records import TopicPartitions
from kohort.ids import TopicId, TopicPartition

EAGER, COOPERATIVE = "range", "cooperative-sticky"
"""The names of the client's own assignors, so that its members share a group with the simulated ones."""

Target = frozenset[TopicPartition]
Claim = tuple[int, frozenset[TopicPartition]]


def pattern_of(topics: Iterable[str]) -> str:
    """Return a pattern that matches only these topics, whose names are a t and a digit."""
    return f"t[{''.join(sorted(topic[1:] for topic in topics))}]"


def encode_metadata(
    topics: Iterable[str], generation: int, owned: Iterable[TopicPartition], rack: str | None = None
) -> bytes:
    """Return a subscription of version 3 with the member's owned partitions, their generation, and its rack."""
    names = sorted(topics)
    parts = [struct.pack(">hi", 3, len(names)), *(_text(name) for name in names), struct.pack(">i", 0)]
    held: dict[str, list[int]] = {}
    for topic, number in sorted(owned):
        held.setdefault(topic, []).append(number)
    parts.append(struct.pack(">i", len(held)))
    for topic, numbers in held.items():
        parts.append(_text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    parts.append(struct.pack(">i", generation) + (struct.pack(">h", -1) if rack is None else _text(rack)))
    return b"".join(parts)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def decode_claim(metadata: bytes) -> Claim:
    """Return the generation and partitions that `encode_metadata` wrote; for other bytes, no partitions."""
    subscription = read_subscription(metadata)
    if subscription is None:
        return -1, frozenset()
    return subscription.generation, frozenset(subscription.owned)


def decode_topics(metadata: bytes) -> frozenset[str]:
    """Return the topics that a member subscribes to; none for other bytes."""
    subscription = read_subscription(metadata)
    return frozenset() if subscription is None else frozenset(subscription.topics)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Return a member's assignment in bytes."""
    return write_assignment(3, partitions)


def decode_assignment(raw: bytes) -> frozenset[TopicPartition]:
    """Return the partitions of an assignment; empty bytes are an empty assignment."""
    assignment = read_assignment(raw)
    return frozenset() if assignment is None else frozenset(assignment.partitions)


def assign(
    members: Mapping[str, Claim],
    read: Mapping[str, frozenset[str]],
    partitions: Iterable[TopicPartition],
    *,
    cooperative: bool,
) -> dict[str, frozenset[TopicPartition]]:
    """Assign every partition to one member that subscribes to its topic; valid claims are kept where they fit.

    The assignment is as even as possible if all members have the same subscription (`read`: the topics of each). Of two
    claims to one partition that of the later generation counts, and of two with the same generation neither. With
    `cooperative`, a partition that another member validly owns is withheld until that member has revoked it.
    """
    holder: dict[TopicPartition, str] = {}
    disputed = set()
    for member, (generation, owned) in sorted(members.items(), key=lambda item: item[1][0]):
        for partition in owned:
            other = holder.get(partition)
            if other is not None and members[other][0] == generation:
                disputed.add(partition)
            else:
                disputed.discard(partition)
            holder[partition] = member
    everything = sorted(set(partitions))
    readers = {topic: sorted(reader for reader in members if topic in read[reader]) for topic, _ in everything}
    room = rooms(readers, everything, sorted(members))
    given: dict[str, set[TopicPartition]] = {member: set() for member in members}
    left = []
    for partition in everything:
        member = holder.get(partition, "")
        if partition not in disputed and member in readers[partition.topic] and room[member] > 0:
            given[member].add(partition)
            room[member] -= 1
        else:
            left.append(partition)
    for partition in left:
        if not readers[partition.topic]:
            continue
        member = max(readers[partition.topic], key=lambda name: room[name])
        room[member] -= 1
        current = holder.get(partition)
        if cooperative and current is not None and (current != member or partition in disputed):
            continue
        given[member].add(partition)
    return {member: frozenset(taken) for member, taken in given.items()}


def rooms(readers: Mapping[str, list[str]], partitions: Iterable[TopicPartition], members: list[str]) -> dict[str, int]:
    """Return how many of its claimed partitions each member may keep: its equal share of the topics that it reads."""
    counts: dict[str, int] = {}
    for topic, _ in partitions:
        counts[topic] = counts.get(topic, 0) + 1
    alike: dict[tuple[str, ...], int] = {}
    for topic, count in counts.items():
        who = tuple(readers[topic])
        alike[who] = alike.get(who, 0) + count
    room = dict.fromkeys(members, 0)
    for who, count in alike.items():
        for at, member in enumerate(who):
            share, extra = divmod(count, len(who))
            room[member] += share + (1 if at < extra else 0)
    return room


TOPICS = 100
"""The number of topic names; the rest of an id counts how often its topic was created."""


def topic_id(name: str, made: int = 0) -> TopicId:
    """Return the id of the topic named t and a number, created for the first time, or again."""
    return TopicId(int=int(name[1:]) + 1 + TOPICS * made)


def topic_name(id: TopicId) -> str:
    """Return the name of the topic that has, or had, this id."""
    return f"t{(id.int - 1) % TOPICS}"


def to_ids(partitions: Target, ids: Mapping[str, TopicId]) -> tuple[TopicPartitions, ...]:
    """Return partitions in the form of heartbeats."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return tuple(TopicPartitions(ids[topic], tuple(numbers)) for topic, numbers in topics.items())


def to_names(assignment: tuple[TopicPartitions, ...]) -> Target:
    """Return heartbeat partitions by name; the reverse of `to_ids`."""
    return frozenset(
        TopicPartition(topic_name(entry.topic_id), number) for entry in assignment for number in entry.partitions
    )
