"""The sticky assignors: as even as subscriptions allow, and then as few partitions moved as that allows.

`Sticky` and `CooperativeSticky` serve the leader of a classic group, `Uniform` the coordinator of a KIP-848 group; they
divide alike. They differ in where they learn who owned what, and in that the cooperative one holds back partitions that
their owners have to give up first.

Evenness comes before stickiness, stickiness before racks: a partition beside no replica of its member stays, new ones
are dealt by rack.

Source: KIP-54, KIP-341, KIP-429, KIP-792, KIP-848.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kohort.assignors.claims import believed, beside, keep_order
from kohort.assignors.even import divide_evenly
from kohort.assignors.shapes import Assignment, MemberSubscription, Stateless, TopicInfo, subscribers
from kohort.assignors.uneven import Division, numbers
from kohort.ids import MemberId, TopicPartition, by_topic


def divide(members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, TopicInfo]) -> Assignment:
    """The division that all three share."""
    wanted = {topic: takers for topic, takers in subscribers(members, topics).items() if takers}
    known = {topic: topics[topic] for topic in wanted}
    held = believed(members, known)
    result: Assignment = {member: [] for member in sorted(members)}
    sets = {frozenset(known.keys() & subscription.topics) for subscription in members.values()}
    sets.discard(frozenset())
    if len(sets) == 1:
        active = {
            member: subscription for member, subscription in members.items() if known.keys() & subscription.topics
        }
        result |= divide_evenly(active, known, held)
    elif sets:
        _divide_unevenly(members, known, wanted, held, result)
    for partitions in result.values():
        partitions.sort()
    return result


def _divide_unevenly(
    members: Mapping[MemberId, MemberSubscription],
    topics: Mapping[str, TopicInfo],
    takers: Mapping[str, list[MemberId]],
    held: Mapping[MemberId, list[TopicPartition]],
    result: Assignment,
) -> None:
    member_numbers, topic_numbers = numbers(members), numbers(topics)
    names = list(member_numbers)
    own: list[dict[int, int]] = [{} for _ in topic_numbers]
    for member, claims in held.items():
        for claim in claims:
            row = own[topic_numbers[claim.topic]]
            row[member_numbers[member]] = row.get(member_numbers[member], 0) + 1
    division = Division(
        [topics[topic].partitions for topic in topic_numbers],
        [sorted(member_numbers[member] for member in takers[topic]) for topic in topic_numbers],
        own,
        len(names),
    )
    counts = division.solve()
    claims_by_topic: dict[str, dict[MemberId, list[TopicPartition]]] = {topic: {} for topic in topic_numbers}
    for member, claims in held.items():
        for claim in claims:
            claims_by_topic[claim.topic].setdefault(member, []).append(claim)
    for topic, number in topic_numbers.items():
        shares = {names[member]: count for member, count in sorted(counts[number].items())}
        _hand_out(topic, shares, claims_by_topic[topic], (members, topics), result)


def _hand_out(
    topic: str,
    counts: Mapping[MemberId, int],
    claims: Mapping[MemberId, list[TopicPartition]],
    group: tuple[Mapping[MemberId, MemberSubscription], Mapping[str, TopicInfo]],
    result: Assignment,
) -> None:
    """Which partitions of one topic: those a member has, then those beside it, then any."""
    members, topics = group
    need = dict(counts)
    taken: set[TopicPartition] = set()
    for member, count in counts.items():
        kept = keep_order(claims.get(member, []), members[member], topics)[:count]
        result[member] += kept
        taken.update(kept)
        need[member] -= len(kept)
    left = [each for number in range(topics[topic].partitions) if (each := TopicPartition(topic, number)) not in taken]
    if topics[topic].racks:
        rest = []
        for partition in left:
            near = next((m for m in need if need[m] and beside(members[m], partition, topics)), None)
            if near is None:
                rest.append(partition)
            else:
                result[near].append(partition)
                need[near] -= 1
        left = rest
    at = 0
    for member, count in need.items():
        result[member] += left[at : at + count]
        at += count


class Uniform(Stateless):
    """The coordinator's default: `owned` is the previous target assignment."""

    name = "uniform"
    cooperative = False

    def assign(self, members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, TopicInfo]) -> Assignment:
        """Who gets what."""
        return divide(members, topics)


class Sticky(Stateless):
    """The eager one: members give up everything before they join, so what they had travels in the user data.

    One instance belongs to one member and remembers its last assignment.
    """

    name = "sticky"
    cooperative = False

    def __init__(self) -> None:
        self._previous: Sequence[TopicPartition] | None = None
        self._generation = -1

    def assign(self, members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, TopicInfo]) -> Assignment:
        """Who gets what; `owned` of a member counts only where its user data says nothing."""
        return divide({member: _with_user_data(each) for member, each in members.items()}, topics)

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """This member's last assignment and its generation; nothing before the first."""
        if self._previous is None:
            return None
        return encode_previous(self._previous, self._generation)

    def on_assignment(self, partitions: Sequence[TopicPartition], user_data: bytes | None, generation: int) -> None:
        """Remember it."""
        self._previous, self._generation = tuple(partitions), generation


class CooperativeSticky(Stateless):
    """The incremental one: members keep what they own, and a partition that moves is handed over in two rebalances.

    One instance belongs to one member and remembers its generation.
    """

    name = "cooperative-sticky"
    cooperative = True

    def __init__(self) -> None:
        self._generation = -1

    def assign(self, members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, TopicInfo]) -> Assignment:
        """Who gets what now: without the partitions that another member has to give up first."""
        members = {member: _with_generation(each) for member, each in members.items()}
        result = divide(members, topics)
        claimed: dict[TopicPartition, set[MemberId]] = {}
        for member, subscription in members.items():
            for partition in subscription.owned:
                claimed.setdefault(partition, set()).add(member)
        for member, partitions in result.items():
            nobody: set[MemberId] = {member}
            result[member] = [each for each in partitions if member in claimed.get(each, nobody)]
        return result

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """This member's generation, which subscriptions before version 2 have no field for."""
        return struct.pack(">i", self._generation)

    def on_assignment(self, partitions: Sequence[TopicPartition], user_data: bytes | None, generation: int) -> None:
        """Remember the generation."""
        self._generation = generation


def encode_previous(partitions: Sequence[TopicPartition], generation: int) -> bytes:
    """The sticky assignor's user data: array of (topic, array of partitions), then the generation."""
    topics = by_topic(partitions)
    parts = [struct.pack(">i", len(topics))]
    for topic, found in topics.items():
        name = topic.encode()
        parts += (struct.pack(">h", len(name)), name, struct.pack(f">i{len(found)}i", len(found), *found))
    parts.append(struct.pack(">i", generation))
    return b"".join(parts)


def decode_previous(user_data: bytes) -> tuple[tuple[TopicPartition, ...], int] | None:
    """What `encode_previous` wrote, also without a generation (-1), as old clients send it; None for anything else."""
    found: list[TopicPartition] = []
    try:
        (count,) = struct.unpack_from(">i", user_data)
        at = 4
        for _ in range(count):
            (length,) = struct.unpack_from(">h", user_data, at)
            name = user_data[at + 2 : at + 2 + length]
            at += 2 + length
            if length < 0 or len(name) != length:
                return None
            (size,) = struct.unpack_from(">i", user_data, at)
            if not 0 <= size <= (len(user_data) - at) // 4:
                return None
            topic = name.decode()
            found += [TopicPartition(topic, number) for number in struct.unpack_from(f">{size}i", user_data, at + 4)]
            at += 4 + 4 * size
        generation = struct.unpack_from(">i", user_data, at)[0] if at + 4 <= len(user_data) else -1
    except (struct.error, UnicodeDecodeError):
        return None
    return tuple(found), generation


def _with_user_data(subscription: MemberSubscription) -> MemberSubscription:
    previous = decode_previous(subscription.user_data) if subscription.user_data else None
    if previous is None:
        return subscription
    return replace(subscription, owned=previous[0], generation=previous[1])


def _with_generation(subscription: MemberSubscription) -> MemberSubscription:
    user_data = subscription.user_data
    if subscription.generation >= 0 or user_data is None or len(user_data) < 4:
        return subscription
    return replace(subscription, generation=struct.unpack_from(">i", user_data)[0])
