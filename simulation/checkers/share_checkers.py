"""Checkers of even assignments at the end: classic groups by what members own, consumer groups by their targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kohort.groups.config import GroupConfig
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.effects import ComputeAssignment, Effects
from kohort.groups.machine import GroupMachine
from kohort.groups.records import PushMemberSaved
from simulation.checkers.property import Checker, Holder
from simulation.harness.server import Waiting
from simulation.harness.world import World


class ClassicEvennessChecker(Checker):
    """At the end members of a classic group with equal subscriptions have equal shares, in total or of each topic.

    The same holds for members of a push group that have one stream of their topics.
    """

    def at_end(self, waiting: Waiting, partitions: Mapping[str, int]) -> None:
        for group_id in sorted({member.group_id for member in self.members}):
            group = self.journal.groups.get(group_id)
            living = [member for member in self.members if member.group_id == group_id and not member.dead]
            if group is None or group.consumer is not None or len({member.topics for member in living}) != 1:
                continue
            if group.push is not None and not all(
                has_one_stream(push_member) for push_member in group.push.members.values()
            ):
                continue
            if not is_even(living):
                shares = {member.name: sorted(map(str, member.held)) for member in living}
                self.fail(f"shares of {group_id} are {shares}")


def has_one_stream(member: PushMemberSaved) -> bool:
    """Return whether a push consumer has one stream, so that it gets one share of its topics."""
    return all(streams == 1 for _, streams in member.topics) if member.regex is None else member.streams == 1


def is_even(members: Sequence[Holder]) -> bool:
    """Return whether shares differ by one at most: in total, or of each topic, as `range` divides them."""
    shares = [list(member.held) for member in members]
    topics = {partition.topic for share in shares for partition in share}
    by_topic = [[Counter(partition.topic for partition in share)[topic] for share in shares] for topic in topics]
    return spread(list(map(len, shares))) <= 1 or all(spread(counts) <= 1 for counts in by_topic)


def spread(counts: list[int]) -> int:
    """Return the difference between the largest and the smallest count."""
    return max(counts) - min(counts)


class EvennessChecker(Checker):
    """At the end all members of a consumer group have equal shares, also those that were suspected before."""

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._machine: GroupMachine | None = None
        self._assignors: dict[str, str] = {}  # by which the targets were made; who replaces a static member votes later

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        for work in outcome.work:
            if isinstance(work, ComputeAssignment):
                self._assignors[work.group_id] = work.assignor

    def on_loaded(self, machine: GroupMachine, outcome: Effects) -> None:
        self._machine = machine

    def at_end(self, waiting: Waiting, partitions: Mapping[str, int]) -> None:
        if self._machine is None:
            return
        context = self._machine.context
        for group_id, group in context.ledger.groups.items():
            consumer = group.membership_as(ConsumerGroup)
            if consumer is None or consumer.preferred_assignor(context) != "uniform":
                continue
            if self._assignors.get(group_id) != "uniform":
                continue
            shares = {member_id: len(consumer.targets[member_id]) for member_id in consumer.members}
            alike = len({consumer.topics_of(member) for member in consumer.members.values()}) == 1
            if alike and max(shares.values()) - min(shares.values()) > 1:
                self.fail(f"shares of {group_id} are {shares}")
