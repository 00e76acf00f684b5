"""What goes into an assignor and what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from kohort.ids import MemberId, TopicPartition

Assignment: TypeAlias = dict[MemberId, list[TopicPartition]]
"""Partitions by member; every member is a key, each list is sorted."""


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """One member, as the assignor sees it.

    Attributes:
        topics: names subscribed to; those that do not exist are left out of the assignment.
        instance_id: of a static member: range and roundrobin sort by it, so that a restart changes nothing.
        rack: where the member runs, or None.
        owned: what the member holds, or held last. Two members may claim the same partition after a lost rebalance:
            the higher `generation` is believed, and neither when they are equal.
        generation: of the assignment that gave it `owned`; -1 unknown.
        user_data: what the member's own copy of the assignor sent along.
    """

    topics: tuple[str, ...]
    instance_id: str | None = None
    rack: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic that exists.

    Attributes:
        partitions: how many.
        racks: of each partition, the racks that have a replica; empty when they are not known.
    """

    partitions: int
    racks: tuple[frozenset[str], ...] = ()


@runtime_checkable
class Assignor(Protocol):
    """Divides partitions among members. Write one of your own by following this protocol.

    Attributes:
        name: under which the members of a group agree on it.
        cooperative: members keep what they own during a rebalance (KIP-429). `assign` then leaves out a partition
            that moves, until a later rebalance in which its owner does not hold it any more.
    """

    @property
    def name(self) -> str:
        """The assignor's name in the protocol."""

    @property
    def cooperative(self) -> bool:
        """Whether members keep what they own during a rebalance."""

    def assign(self, members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, TopicInfo]) -> Assignment:
        """Who gets what. The order of the mappings must not matter.

        Args:
            members: all members of the group.
            topics: the topics that exist among those subscribed to.
        """

    def assignment_user_data(self) -> Mapping[MemberId, bytes]:
        """What the leader tells members along with the assignment just made; members left out are told nothing."""

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """What this member tells the group's leader when it joins."""

    def on_assignment(self, partitions: Sequence[TopicPartition], user_data: bytes | None, generation: int) -> None:
        """This member was given an assignment."""


class Stateless:
    """The part of an assignor that remembers nothing and tells nobody anything; a base for assignors of your own."""

    def assignment_user_data(self) -> Mapping[MemberId, bytes]:
        """Nothing."""
        return {}

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """Nothing."""
        return None

    def on_assignment(self, partitions: Sequence[TopicPartition], user_data: bytes | None, generation: int) -> None:
        """Forget it."""


def member_order(members: Mapping[MemberId, MemberSubscription]) -> list[MemberId]:
    """Member ids in the order of Kafka's assignors: static members by instance id, then the others by member id."""
    return sorted(
        members, key=lambda member: (members[member].instance_id is None, members[member].instance_id or member)
    )


def subscribers(
    members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, TopicInfo]
) -> dict[str, list[MemberId]]:
    """The members of each existing topic, topics sorted by name, members in `member_order`."""
    found: dict[str, list[MemberId]] = {topic: [] for topic in sorted(topics)}
    for member in member_order(members):
        for topic in dict.fromkeys(members[member].topics):
            if topic in found:
                found[topic].append(member)
    return found


def racks_matter(member_racks: set[str], partition_racks: Sequence[frozenset[str]]) -> bool:
    """Whether a choice by rack can change anything.

    Not when no member is in a rack that has replicas, nor when every partition has a replica in every rack.
    """
    everywhere = frozenset[str]().union(*partition_racks)
    if not member_racks or everywhere.isdisjoint(member_racks):
        return False
    return any(racks != everywhere for racks in partition_racks)
