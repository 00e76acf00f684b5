"""The round-robin assignor: all partitions of all topics in order, dealt to the members in turn.

Source: the same results as Kafka's RoundRobinAssignor.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from kohort.assignors.shapes import (
    AssignableTopic,
    Assignment,
    MemberSubscription,
    Stateless,
    members_in_order,
    subscribers,
)
from kohort.ids import MemberId, TopicPartition


class RoundRobin(Stateless):
    """Deals partitions to members in turn, skipping members that are not subscribed to the topic."""

    name = "roundrobin"
    cooperative = False

    def assign(
        self, members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, AssignableTopic]
    ) -> Assignment:
        """Assign the partitions to the members."""
        order = members_in_order(members)
        position = {member: number for number, member in enumerate(order)}
        result: Assignment = {member: [] for member in order}
        turn = 0
        for topic, takers in subscribers(members, topics).items():
            if not takers:
                continue
            positions = [position[taker] for taker in takers]
            for partition in range(topics[topic].partitions):
                at = bisect_left(positions, turn)
                chosen = positions[at] if at < len(positions) else positions[0]
                result[order[chosen]].append(TopicPartition(topic, partition))
                turn = chosen + 1
        return result
