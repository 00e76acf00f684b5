"""The range assignor: each topic's partitions in order, cut into one range per member.

Topics with equal numbers of partitions and the same members are cut alike, so that one member gets their equally
numbered partitions. Where racks are known, members in a replica's rack come before contiguous ranges. The sizes stay
the same, and such topics are still cut alike.

Source: KIP-54, KIP-881; the same results as Kafka's RangeAssignor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kohort.assignors.shapes import (
    AssignableTopic,
    Assignment,
    MemberSubscription,
    Stateless,
    members_in_order,
    racks_matter,
    subscribers,
)
from kohort.ids import MemberId, TopicPartition


class Range(Stateless):
    """The range assignor: each topic divided into contiguous ranges, one per member."""

    name = "range"
    cooperative = False

    def assign(
        self, members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, AssignableTopic]
    ) -> Assignment:
        """Assign the partitions to the members."""
        result: Assignment = {member: [] for member in members_in_order(members)}
        member_racks = {member: subscription.rack for member, subscription in members.items()}
        shares = [
            _Share(topic, topics[topic], takers, member_racks)
            for topic, takers in subscribers(members, topics).items()
            if takers and topics[topic].partitions > 0
        ]
        if any(share.by_rack for share in shares):
            _match_racks(shares, result)
        for share in shares:
            share.give_first_remaining(result, None)
        for partitions in result.values():
            partitions.sort()
        return result


class _Share:
    """One topic while the range assignor divides its partitions among the subscribed members.

    Attributes:
        least: partitions that every taker gets.
        extra: how many takers still get one more.
    """

    def __init__(
        self, topic: str, info: AssignableTopic, takers: list[MemberId], member_racks: Mapping[MemberId, str | None]
    ) -> None:
        self.topic = topic
        self.count = info.partitions
        self.takers = takers
        self.racks = info.racks
        self.member_racks = member_racks
        self.least, self.extra = divmod(info.partitions, len(takers))
        self.given = dict.fromkeys(takers, 0)
        self.left = list(range(info.partitions))
        self.by_rack = racks_matter({rack for taker in takers if (rack := member_racks[taker])}, info.racks)

    def remaining_quota(self, taker: MemberId) -> int:
        """Return how many more of the topic's partitions a member may get."""
        return max(0, self.least + (self.extra > 0) - self.given[taker])

    def is_in_rack_of(self, taker: MemberId, partition: int) -> bool:
        """Return whether a partition has a replica in the member's rack; always True for a member without a rack."""
        rack = self.member_racks[taker]
        return rack is None or (partition < len(self.racks) and rack in self.racks[partition])

    def give_partitions(self, taker: MemberId, partitions: list[int], result: Assignment) -> None:
        """Give partitions to a taker; the caller removes them from `left`."""
        result[taker] += [TopicPartition(self.topic, partition) for partition in partitions]
        self.given[taker] += len(partitions)
        if self.given[taker] > self.least:
            self.extra -= 1

    def give_first_remaining(self, result: Assignment, allowed: Callable[[MemberId, int], bool] | None) -> None:
        """Give each member, in order, as many of the first remaining partitions as its quota and `allowed` permit."""
        for taker in self.takers:
            if not self.left:
                return
            room = self.remaining_quota(taker)
            if not room:
                continue
            if allowed is None:
                chosen, self.left = self.left[:room], self.left[room:]
            else:
                chosen = []
                for partition in self.left:
                    if len(chosen) == room:
                        break
                    if allowed(taker, partition):
                        chosen.append(partition)
                taken = set(chosen)
                self.left = [partition for partition in self.left if partition not in taken]
            if chosen:
                self.give_partitions(taker, chosen, result)


def _match_racks(shares: list[_Share], result: Assignment) -> None:
    """Give members partitions with a replica in their rack first.

    Topics with the same members and partition counts are divided alike.
    """
    alike: dict[tuple[tuple[MemberId, ...], int], list[_Share]] = {}
    for share in shares:
        alike.setdefault((tuple(share.takers), share.count), []).append(share)
    for (takers, count), group in alike.items():
        if len(group) > 1:
            _match_alike(takers, count, group, result)
        elif group[0].by_rack:
            group[0].give_first_remaining(result, group[0].is_in_rack_of)


def _match_alike(takers: tuple[MemberId, ...], count: int, group: list[_Share], result: Assignment) -> None:
    open_takers = list(takers)
    assigned: set[int] = set()
    for partition in range(count):
        chosen = next(
            (
                taker
                for taker in open_takers
                if all(share.remaining_quota(taker) and share.is_in_rack_of(taker, partition) for share in group)
            ),
            None,
        )
        if chosen is None:
            continue
        assigned.add(partition)
        for share in group:
            share.give_partitions(chosen, [partition], result)
        if not any(share.remaining_quota(chosen) for share in group):
            open_takers.remove(chosen)
            if not open_takers:
                break
    for share in group:
        share.left = [partition for partition in share.left if partition not in assigned]
