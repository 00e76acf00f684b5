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
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, groupby, repeat
from operator import itemgetter

from kohort.assignors.claims import Ownership, beside, keep_order, settle_claims
from kohort.assignors.even import divide_evenly
from kohort.assignors.shapes import Assignment, MemberSubscription, Stateless, TopicInfo, subscribers
from kohort.assignors.uneven import Division, numbers
from kohort.ids import MemberId, TopicPartition, by_topic


def divide(members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, TopicInfo]) -> Assignment:
    """The division that all three share."""
    sets: dict[tuple[str, ...], frozenset[str]] = {}
    for subscription in members.values():
        if subscription.topics not in sets:
            sets[subscription.topics] = frozenset(topics.keys() & subscription.topics)
    known = {topic: topics[topic] for topic in sorted(frozenset[str]().union(*sets.values()))}
    ownership = settle_claims(members, known)
    result: Assignment = {member: [] for member in sorted(members)}
    different = {names for names in sets.values() if names}
    if len(different) == 1:
        active = {member: subscription for member, subscription in members.items() if sets[subscription.topics]}
        result |= divide_evenly(active, known, ownership)
    elif different:
        _divide_unevenly(members, known, subscribers(members, known), ownership, result)
    for partitions in result.values():
        partitions.sort()
    return result


def _divide_unevenly(
    members: Mapping[MemberId, MemberSubscription],
    topics: Mapping[str, TopicInfo],
    takers: Mapping[str, list[MemberId]],
    ownership: Ownership,
    result: Assignment,
) -> None:
    member_numbers, topic_numbers = numbers(members), numbers(topics)
    names = list(member_numbers)
    own = [
        {member_numbers[owner]: count for owner, count in Counter(ownership.owners[topic]).items() if owner is not None}
        for topic in topic_numbers
    ]
    division = Division(
        [topics[topic].partitions for topic in topic_numbers],
        [sorted(member_numbers[member] for member in takers[topic]) for topic in topic_numbers],
        own,
        len(names),
    )
    counts = division.solve()
    losers = {
        names[member]
        for row, owned in zip(counts, own, strict=True)
        for member, count in owned.items()
        if row.get(member, 0) < count
    }
    for member, claims in ownership.held.items():
        if member not in losers:
            result[member] += claims
            continue
        for topic, group in groupby(claims, itemgetter(0)):
            share = counts[topic_numbers[topic]].get(member_numbers[member], 0)
            partitions = keep_order(list(group), members[member], topics)
            result[member] += partitions[:share]
            ownership.release(partitions[share:])
    for topic, number in topic_numbers.items():
        left = ownership.unowned(topic)
        if left:
            owned = own[number]
            need = {
                names[member]: count - owned.get(member, 0)
                for member, count in sorted(counts[number].items())
                if count > owned.get(member, 0)
            }
            _hand_out(left, need, (members, topics), result)


def _hand_out(
    left: list[TopicPartition],
    need: dict[MemberId, int],
    group: tuple[Mapping[MemberId, MemberSubscription], Mapping[str, TopicInfo]],
    result: Assignment,
) -> None:
    """Give members as many partitions of one topic as they need: those beside them first, then any."""
    members, topics = group
    if topics[left[0].topic].racks:
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
        names: dict[bytes, str] = {}
        return divide({member: _with_user_data(told, names) for member, told in members.items()}, topics)

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
        gained = {member: set(partitions).difference(members[member].owned) for member, partitions in result.items()}
        moving = set[TopicPartition]().union(*gained.values())
        held_back = moving.intersection(chain.from_iterable(member.owned for member in members.values()))
        for member, partitions in result.items():
            if not gained[member].isdisjoint(held_back):
                wait = gained[member] & held_back
                result[member] = [partition for partition in partitions if partition not in wait]
        return result

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """This member's generation, which subscriptions before version 2 have no field for."""
        return struct.pack(">i", self._generation)

    def on_assignment(self, partitions: Sequence[TopicPartition], user_data: bytes | None, generation: int) -> None:
        """Remember the generation."""
        self._generation = generation


_INT16, _INT32 = struct.Struct(">h").unpack_from, struct.Struct(">i").unpack_from
_partition = partial(tuple.__new__, TopicPartition)
"""Makes a `TopicPartition` of a pair, three times as fast as its constructor does."""


def encode_previous(partitions: Sequence[TopicPartition], generation: int) -> bytes:
    """The sticky assignor's user data: array of (topic, array of partitions), then the generation."""
    topics = by_topic(partitions)
    parts = [struct.pack(">i", len(topics))]
    for topic, found in topics.items():
        name = topic.encode()
        parts += (struct.pack(">h", len(name)), name, struct.pack(f">i{len(found)}i", len(found), *found))
    parts.append(struct.pack(">i", generation))
    return b"".join(parts)


def decode_previous(
    user_data: bytes, names: dict[bytes, str] | None = None
) -> tuple[tuple[TopicPartition, ...], int] | None:
    """Return what `encode_previous` wrote, also without a generation (-1), as old clients do; None for other bytes.

    Args:
        user_data: a member's user data.
        names: topic names decoded before. Members of one group name the same topics, 1,600 of them each in a wide one.
    """
    names = {} if names is None else names
    found: list[TopicPartition] = []
    try:
        (count,) = _INT32(user_data)
        at = 4
        for _ in range(count):
            (length,) = _INT16(user_data, at)
            start, at = at + 2, at + 2 + length
            raw = user_data[start:at]
            if length < 0 or len(raw) != length:
                return None
            (size,) = _INT32(user_data, at)
            if not 0 <= size <= (len(user_data) - at) // 4:
                return None
            topic = names.get(raw) or names.setdefault(raw, raw.decode())
            if size == 1:
                found.append(_partition((topic, _INT32(user_data, at + 4)[0])))
            else:
                numbers = struct.unpack_from(f">{size}i", user_data, at + 4)
                found += map(_partition, zip(repeat(topic), numbers, strict=False))
            at += 4 + 4 * size
        generation = _INT32(user_data, at)[0] if at + 4 <= len(user_data) else -1
    except (struct.error, UnicodeDecodeError):
        return None
    return tuple(found), generation


def _with_user_data(subscription: MemberSubscription, names: dict[bytes, str]) -> MemberSubscription:
    previous = decode_previous(subscription.user_data, names) if subscription.user_data else None
    if previous is None:
        return subscription
    return replace(subscription, owned=previous[0], generation=previous[1])


def _with_generation(subscription: MemberSubscription) -> MemberSubscription:
    user_data = subscription.user_data
    if subscription.generation >= 0 or user_data is None or len(user_data) < 4:
        return subscription
    return replace(subscription, generation=struct.unpack_from(">i", user_data)[0])
