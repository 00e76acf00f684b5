"""The interface of assignors: their input, their output and the protocol to implement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from kohort.ids import MemberId, TopicPartition

Assignment: TypeAlias = dict[MemberId, list[TopicPartition]]
"""Partitions by member; every member is a key, each list is sorted."""


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """The properties of a member that an assignor decides by.

    Attributes:
        topics: names subscribed to; those that do not exist are left out of the assignment.
        instance_id: of a static member: range and roundrobin sort by it, so that a restart changes nothing.
        rack: the member's rack, or None.
        owned: the partitions that the member owns, or owned last. Two members may claim the same partition after a
            missed rebalance: the higher `generation` wins, and neither if they are equal.
        generation: of the assignment that gave it `owned`; -1 unknown.
        user_data: the bytes that the member's own copy of the assignor sent along.
    """

    topics: tuple[str, ...]
    instance_id: str | None = None
    rack: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class AssignableTopic:
    """One topic that exists.

    Attributes:
        partitions: the number of partitions.
        racks: of each partition, the racks that have a replica; empty when they are not known.
    """

    partitions: int
    racks: tuple[frozenset[str], ...] = ()


@runtime_checkable
class Assignor(Protocol):
    """The division of partitions among members; implement this protocol for a custom assignor.

    Attributes:
        name: under which the members of a group agree on it.
        cooperative: members keep what they own during a rebalance (KIP-429). `assign` then leaves out a partition that
            moves, until a later rebalance in which its owner no longer owns it.
    """

    @property
    def name(self) -> str:
        """Return the assignor's name in the protocol."""

    @property
    def cooperative(self) -> bool:
        """Return whether members keep what they own during a rebalance."""

    def assign(
        self, members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, AssignableTopic]
    ) -> Assignment:
        """Assign the partitions to the members. The order of the mappings must not matter.

        Args:
            members: all members of the group.
            topics: the topics that exist among those subscribed to.
        """

    def assignment_user_data(self) -> Mapping[MemberId, bytes]:
        """Return the leader's user data for members of the last assignment; members left out get none."""

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """Return the user data that this member sends to the group's leader when it joins."""

    def on_assignment(self, partitions: Sequence[TopicPartition], user_data: bytes | None, generation: int) -> None:
        """Receive this member's new assignment."""


class Stateless:
    """A base for custom assignors without state: no user data, and nothing kept between rebalances."""

    def assignment_user_data(self) -> Mapping[MemberId, bytes]:
        """Return no user data."""
        return {}

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """Return no user data."""
        return None

    def on_assignment(self, partitions: Sequence[TopicPartition], user_data: bytes | None, generation: int) -> None:
        """Ignore the assignment."""


def members_in_order(members: Mapping[MemberId, MemberSubscription]) -> list[MemberId]:
    """Return member ids in the order of Kafka's assignors: static members by instance id, then others by member id."""
    return sorted(
        members, key=lambda member: (members[member].instance_id is None, members[member].instance_id or member)
    )


def subscribers(
    members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, AssignableTopic]
) -> dict[str, list[MemberId]]:
    """Return the members of each existing topic: topics sorted by name, members in `members_in_order`."""
    by_topic: dict[str, list[MemberId]] = {topic: [] for topic in sorted(topics)}
    for member in members_in_order(members):
        for topic in dict.fromkeys(members[member].topics):
            if topic in by_topic:
                by_topic[topic].append(member)
    return by_topic


def racks_matter(member_racks: set[str], partition_racks: Sequence[frozenset[str]]) -> bool:
    """Return whether racks can influence an assignment at all.

    It can't if no member is in a rack that has replicas, or if every partition has a replica in every rack.
    """
    everywhere = frozenset[str]().union(*partition_racks)
    if not member_racks or everywhere.isdisjoint(member_racks):
        return False
    return any(racks != everywhere for racks in partition_racks)
