"""Scaling of a group on synthetic load, by kohort's rule and by KEDA's for Kafka: `python -m simulation.scaling`.

A group of equal members reads the partitions of a topic in virtual time. Each member reads at most `MEMBER_PER_S`
records per second of all its partitions together. After a change new members come after `START_S`, and then nobody
reads for `DOWNTIME_S`. Both rules see the group every `POLL_S`.

KEDA's rule is that of its documentation (scalers/apache-kafka): total lag by `lagThreshold`, rounded up, at most one
member for each partition. The threshold is what a member reads in the target time, which is the best that one can
know. The Horizontal Pod Autoscaler in front of it changes nothing within 10 %. It goes down to the highest number of
the last 300 s. Both are its defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kohort.client.admin.values import GroupDescription, GroupRebalanced, MemberDescription, RebalanceCause
from kohort.client.offsets import OffsetAndMetadata
from kohort.ids import TopicPartition
from kohort.lag.evaluation import LagReport, evaluate
from kohort.lag.scaling import ScalingState, ScalingTarget, decide_member_count
from kohort.lag.snapshot import ClusterSnapshot, GroupReading, PartitionBounds

PARTITIONS = 12
MEMBER_PER_S = 100.0
START_S, DOWNTIME_S, POLL_S, COMMIT_S = 20, 4, 15, 5
MAX_LAG_S = 30
HPA_TOLERANCE, HPA_DOWN_S = 0.1, 300
TOPIC = "orders"

Rate = Callable[[int, int], float]
"""Records per second written to a partition, as a function of the partition and the second."""


@dataclass(frozen=True)
class Trace:
    """Synthetic load.

    Attributes:
        name: the load's name.
        seconds: its length.
        rate: the records written.
        stuck: partitions that no member can read further, from a second on.
        open_transaction: the same, because of an open transaction, until it ends.
        member_per_s: the most records that a member reads in a second.
        downtime_s: how long nobody reads after a change of members.
    """

    name: str
    seconds: int
    rate: Rate
    stuck: dict[int, int] = field(default_factory=dict)
    open_transaction: dict[int, tuple[int, int]] = field(default_factory=dict)
    member_per_s: float = MEMBER_PER_S
    downtime_s: int = DOWNTIME_S

    def blocks(self, partition: int, second: int) -> bool:
        """Return whether a partition cannot be read further at this second."""
        if partition in self.stuck:
            return second >= self.stuck[partition]
        since, until = self.open_transaction.get(partition, (1, 0))
        return since <= second < until


def steady(partition: int, second: int) -> float:
    """Return 350 records per second for all."""
    return 350 / PARTITIONS


def burst(partition: int, second: int) -> float:
    """Return 200 per second, and 900 for five minutes of every half hour."""
    return (900 if second % 1_800 >= 1_500 else 200) / PARTITIONS


def day_and_night(partition: int, second: int) -> float:
    """Return 80 to 700 per second, in a day of two hours."""
    return (390 - 310 * math.cos(second / 7_200 * 2 * math.pi)) / PARTITIONS


def hot(partition: int, second: int) -> float:
    """Return 20 per second for each partition, and 150 for one: more than a member reads."""
    return 150.0 if partition == 5 else 20.0


TRACES = (
    Trace("steady", 7_200, steady),
    Trace("burst", 7_200, burst),
    Trace("day and night", 14_400, day_and_night),
    Trace("stuck partition", 7_200, steady, stuck={3: 900}),
    Trace("open transaction", 7_200, steady, open_transaction={3: (900, 4_500)}),
    Trace("hot partition", 7_200, hot),
)


@dataclass
class Outcome:
    """The result of a rule on a trace.

    Attributes:
        changes: the number of changes of the number of members.
        over_s: the seconds in which a partition was over the target although members could read it.
        member_h: the hours of all members.
        most: the maximum number of members.
        whys: the rule's reasons, once each.
    """

    changes: int = 0
    over_s: int = 0
    member_h: float = 0.0
    most: int = 0
    whys: list[str] = field(default_factory=list)


class SimulatedGroup:
    """A simulated group."""

    def __init__(self, trace: Trace, members: int) -> None:
        self.trace, self.second = trace, 0
        self.members = self.asked = members
        self.joins_at = self.reads_at = 0
        self.written = [[0.0] for _ in range(PARTITIONS)]
        self.read = [0.0] * PARTITIONS
        self.committed = [0] * PARTITIONS
        self.oldest_s = [0] * PARTITIONS
        self.rebalances: list[GroupRebalanced] = []

    def ask(self, members: int) -> None:
        """Set the number of members: new ones need time to start, others leave at once."""
        if members != self.asked:
            self.joins_at = self.second + (START_S if members > self.members else 0)
            self.asked = members

    def owned_by(self, member: int) -> range:
        """Return a member's partitions, divided as evenly as possible."""
        return range(member, PARTITIONS, self.members)

    def step(self) -> None:
        """Advance by one second."""
        if self.asked != self.members and self.second >= self.joins_at:
            self.members, self.reads_at = self.asked, self.second + self.trace.downtime_s
            cause = RebalanceCause(self.second * 1_000, "joined", "scaled")
            self.rebalances = [
                *self.rebalances[-4:],
                GroupRebalanced((cause,), 0, self.reads_at * 1_000, 1, self.members, self.trace.downtime_s * 1_000),
            ]
        for number, log in enumerate(self.written):
            log.append(log[-1] + self.trace.rate(number, self.second))
        self.second += 1
        if self.second > self.reads_at:
            for member in range(self.members):
                self._read(member)
        if self.second % COMMIT_S == 0:
            self.committed = [int(offset) for offset in self.read]
        for number, log in enumerate(self.written):
            while self.oldest_s[number] < self.second and log[self.oldest_s[number] + 1] <= self.read[number] + 1e-6:
                self.oldest_s[number] += 1

    def _read(self, member: int) -> None:
        """Read a member's partitions, the shortest backlog first, each with an equal part of the remaining capacity."""
        open_ones = [number for number in self.owned_by(member) if not self.trace.blocks(number, self.second)]
        left = self.trace.member_per_s
        backlogs = sorted((self.written[number][-1] - self.read[number], number) for number in open_ones)
        for place, (backlog, number) in enumerate(backlogs):
            count = min(backlog, left / (len(backlogs) - place))
            self.read[number] += count
            left -= count

    def time_lag_s(self, number: int) -> int:
        """Return the age of the oldest unread record."""
        return self.second - self.oldest_s[number]

    def is_helpable(self, number: int) -> bool:
        """Return whether a member could read the partition faster than it is written."""
        writes = self.trace.rate(number, self.second)
        return not self.trace.blocks(number, self.second) and writes < self.trace.member_per_s

    def snapshot(self) -> ClusterSnapshot:
        """Return the group's lag as a lag reader reports it."""
        parts = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        members = tuple(
            MemberDescription(
                f"m{member}", f"m{member}", "/127.0.0.1", None, tuple(parts[n] for n in self.owned_by(member)),
                None, (TOPIC,),
            )
            for member in range(self.members)
        )  # fmt: skip
        description = GroupDescription(
            "g", "Consumer", "Stable", "consumer", "uniform", members, rebalances=tuple(self.rebalances)
        )
        now_ms = self.second * 1_000
        bounds, oldest, committed = {}, {}, {}
        for number, part in enumerate(parts):
            end, offset = int(self.written[number][-1]), self.committed[number]
            transaction = number in self.trace.open_transaction and self.trace.blocks(number, self.second)
            bounds[part] = PartitionBounds(0, end, offset if transaction else end)
            committed[part] = OffsetAndMetadata(offset)
            if offset < end:
                oldest[part, offset] = self.oldest_s[number] * 1_000
        reading = GroupReading(description, True, committed)
        return ClusterSnapshot(now_ms, {"g": reading}, {}, bounds, oldest)


class Rule:
    """A scaling rule."""

    def wanted(self, group: SimulatedGroup) -> tuple[int, str]:
        """Return the wanted number of members, and the reason."""
        raise NotImplementedError


class KohortRule(Rule):
    """Kohort's scaling rule."""

    def __init__(self) -> None:
        self._report: LagReport | None = None
        self._state: ScalingState | None = None

    def wanted(self, group: SimulatedGroup) -> tuple[int, str]:
        """Return the wanted number of members, and the reason."""
        self._report = evaluate(group.snapshot(), self._report)
        target = ScalingTarget(MAX_LAG_S * 1_000)
        decision, self._state = decide_member_count(
            self._report.groups["g"], self._report.taken_ms, target, self._state
        )
        return decision.wanted, decision.why


class HorizontalAutoscaler:
    """Kubernetes' Horizontal Pod Autoscaler as it is without configuration.

    Args:
        most: The most members.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._recent: list[tuple[int, int]] = []

    def wanted(self, metric: float, members: int, wanted: int, second: int) -> int:
        """Return how many members are wanted.

        Args:
            metric: The metric, divided by its target for one member.
            members: The members that are there.
            wanted: The members that were wanted last.
            second: The time.
        """
        is_near = abs(metric / max(1, members) - 1) <= HPA_TOLERANCE
        asked = max(1, min(members if is_near else math.ceil(metric), self._most))
        since = second - HPA_DOWN_S
        self._recent = [*((at, number) for at, number in self._recent if at > since), (second, asked)]
        return min(wanted, max(number for _, number in self._recent)) if asked < wanted else asked


class KedaRule(Rule):
    """KEDA's scaler for Kafka with the Horizontal Pod Autoscaler."""

    def __init__(self) -> None:
        self._autoscaler = HorizontalAutoscaler(PARTITIONS)

    def wanted(self, group: SimulatedGroup) -> tuple[int, str]:
        """Return the wanted number of members, and the reason."""
        threshold = group.trace.member_per_s * MAX_LAG_S
        lag = sum(int(log[-1]) - offset for log, offset in zip(group.written, group.committed, strict=True))
        return self._autoscaler.wanted(lag / threshold, group.members, group.asked, group.second), "lag"


def run(trace: Trace, rule: Rule, members: int = 2) -> Outcome:
    """Apply a rule to a load."""
    group, outcome = SimulatedGroup(trace, members), Outcome()
    for second in range(trace.seconds):
        if second % POLL_S == 0:
            wanted, why = rule.wanted(group)
            outcome.changes += wanted != group.asked
            if why not in outcome.whys:
                outcome.whys.append(why)
            group.ask(wanted)
        group.step()
        late = [number for number in range(PARTITIONS) if group.time_lag_s(number) > MAX_LAG_S]
        outcome.over_s += any(group.is_helpable(number) for number in late)
        outcome.member_h += group.members / 3_600
        outcome.most = max(outcome.most, group.members)
    return outcome


def print_table(outcomes: Mapping[str, tuple[Outcome, Outcome]]) -> None:
    """Print the outcomes of kohort's rule and of KEDA's, by trace."""
    print("| trace | changes | s over the target | member hours | changes, KEDA | s over, KEDA | member hours, KEDA |")
    print("|---|---|---|---|---|---|---|")
    for name, (ours, theirs) in outcomes.items():
        print(
            f"| {name} | {ours.changes} | {ours.over_s} | {ours.member_h:.1f} "
            f"| {theirs.changes} | {theirs.over_s} | {theirs.member_h:.1f} |"
        )


def main() -> None:
    """Print the table of docs/scaling.md."""
    print_table({trace.name: (run(trace, KohortRule()), run(trace, KedaRule())) for trace in TRACES})


if __name__ == "__main__":
    main()
