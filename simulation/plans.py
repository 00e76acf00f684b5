"""How simulated leaders assign: balanced, sticky to valid claims, and in two steps where members are cooperative."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping

from kohort.ids import TopicPartition

Claim = tuple[int, frozenset[TopicPartition]]


def encode_metadata(topics: Iterable[str], generation: int, owned: Iterable[TopicPartition]) -> bytes:
    """A subscription of version 1 whose user data says what the member holds, and since which generation."""
    names = sorted(topics)
    user_data = json.dumps([generation, sorted(owned)]).encode()
    parts = [struct.pack(">hi", 1, len(names))]
    for name in names:
        raw = name.encode()
        parts.append(struct.pack(">h", len(raw)) + raw)
    parts.append(struct.pack(">i", len(user_data)) + user_data)
    return b"".join(parts)


def decode_claim(metadata: bytes) -> Claim:
    """The generation and partitions that `encode_metadata` put in."""
    at = 2
    (count,) = struct.unpack_from(">i", metadata, at)
    at += 4
    for _ in range(count):
        (length,) = struct.unpack_from(">h", metadata, at)
        at += 2 + length
    generation, owned = json.loads(metadata[at + 4 :])
    return generation, frozenset(TopicPartition(topic, number) for topic, number in owned)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """A member's assignment."""
    return json.dumps(sorted(partitions)).encode()


def decode_assignment(raw: bytes) -> frozenset[TopicPartition]:
    """What `encode_assignment` made; empty bytes are an empty assignment."""
    return frozenset(TopicPartition(topic, number) for topic, number in json.loads(raw or b"[]"))


def assign(
    members: Mapping[str, Claim], partitions: Iterable[TopicPartition], *, cooperative: bool
) -> dict[str, frozenset[TopicPartition]]:
    """An assignment of every partition to one member, as even as can be, claims kept where they fit.

    Of two claims to one partition that of the later generation counts, and of two alike neither. With `cooperative`, what another member validly holds is withheld until that member has given it up.
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
    share, extra = divmod(len(everything), len(members))
    room = {member: share + (1 if at < extra else 0) for at, member in enumerate(sorted(members))}
    given: dict[str, set[TopicPartition]] = {member: set() for member in members}
    left = []
    for partition in everything:
        member = holder.get(partition, "")
        if partition not in disputed and room.get(member, 0) > 0:
            given[member].add(partition)
            room[member] -= 1
        else:
            left.append(partition)
    for partition in left:
        member = max(sorted(room), key=lambda name: room[name])
        room[member] -= 1
        current = holder.get(partition)
        if cooperative and current is not None and (current != member or partition in disputed):
            continue
        given[member].add(partition)
    return {member: frozenset(taken) for member, taken in given.items()}
