"""Shares of classic groups, as the members have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from simulation.property import Checker, Holder, Waiting


class ClassicEvennessChecker(Checker):
    """In the end members of a classic group that read the same have equal shares: of everything, or of each topic."""

    def at_end(self, waiting: Waiting, partitions: Mapping[str, int]) -> None:
        for group_id in sorted({member.group_id for member in self.members}):
            group = self.journal.groups.get(group_id)
            living = [member for member in self.members if member.group_id == group_id and not member.dead]
            if group is None or group.consumer is not None or len({member.topics for member in living}) != 1:
                continue
            if not is_even(living):
                shares = {member.name: sorted(map(str, member.held)) for member in living}
                self.fail(f"shares of {group_id} are {shares}")


def is_even(members: Sequence[Holder]) -> bool:
    """Whether shares differ by one at most, of all partitions or, as `range` divides them, of those of each topic."""
    shares = [list(member.held) for member in members]
    topics = {partition.topic for share in shares for partition in share}
    by_topic = [[Counter(partition.topic for partition in share)[topic] for share in shares] for topic in topics]
    return spread(list(map(len, shares))) <= 1 or all(spread(counts) <= 1 for counts in by_topic)


def spread(counts: list[int]) -> int:
    """The difference between the most and the fewest."""
    return max(counts) - min(counts)
