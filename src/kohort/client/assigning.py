"""Which assignors a classic member offers, and the one shape in which the leader calls them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member as the leader sees it.

    Attributes:
        owned: What it says it holds; `generation` is of when it got that, -1 unknown.
    """

    member_id: str
    instance_id: str | None
    topics: tuple[str, ...]
    user_data: bytes | None
    owned: tuple[TopicPartition, ...]
    generation: int
    rack: str | None


@runtime_checkable
class Assignor(Protocol):
    """An assignment strategy. Write one of your own and pass it in `partition_assignment_strategy`.

    Attributes:
        name: Under which the group agrees on it.
        cooperative: Whether members keep partitions during a rebalance (KIP-429). The assignment must then leave a
            partition that moves unassigned until its owner has given it up.
    """

    name: str
    cooperative: bool

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """What this member tells the leader's assignor."""

    def assign(
        self,
        members: Sequence[MemberView],
        partitions: Mapping[str, int],
        racks: Mapping[TopicPartition, frozenset[str]],
    ) -> dict[str, tuple[list[TopicPartition], bytes | None]]:
        """Every member's partitions and user data.

        Args:
            members: All of the group.
            partitions: Partition counts of the topics that exist.
            racks: Racks of each partition's replicas; empty when brokers name none.
        """

    def on_assignment(self, partitions: Sequence[TopicPartition], user_data: bytes | None, generation: int) -> None:
        """What this member got."""


class Range:
    """Each topic's partitions in ranges, one range per member."""

    name = "range"
    cooperative = False

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        return None

    def assign(
        self, members: Sequence[MemberView], partitions: Mapping[str, int], racks: Mapping[TopicPartition, frozenset[str]]
    ) -> dict[str, tuple[list[TopicPartition], bytes | None]]:
        result: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
        for topic, count in sorted(partitions.items()):
            takers = sorted((m for m in members if topic in m.topics), key=lambda m: (m.instance_id is None, m.instance_id or m.member_id))
            share, rest = divmod(count, len(takers))
            at = 0
            for place, member in enumerate(takers):
                size = share + (place < rest)
                result[member.member_id] += [TopicPartition(topic, at + i) for i in range(size)]
                at += size
        return {member: (parts, None) for member, parts in result.items()}

    def on_assignment(self, partitions: Sequence[TopicPartition], user_data: bytes | None, generation: int) -> None:
        return


_KNOWN: dict[str, type[Assignor]] = {"range": Range}


def assignors_of(strategies: Iterable[str | Assignor]) -> dict[str, Assignor]:
    """Assignors by name, in order of preference.

    Raises:
        InvalidInputError: an unknown name, or none at all.
    """
    chosen: dict[str, Assignor] = {}
    for strategy in strategies:
        if isinstance(strategy, str):
            kind = _KNOWN.get(strategy)
            if kind is None:
                continue
            strategy = kind()
        chosen[strategy.name] = strategy
    if not chosen:
        raise InvalidInputError("partition.assignment.strategy names no assignor")
    return chosen
