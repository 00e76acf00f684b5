"""Scaling on recorded traffic of real groups, by kohort's rule and KEDA's: `python -m simulation.recorded_traffic`.

`tools/record_traffic.py` made the recordings with a real broker, real members and a real reader of lag. Each is used in
two ways:

- **As it was** (`asked_of_recording`): both rules look at what the reader saw, and the group stays as it was. That
  shows what they ask for, and why.
- **With scaling** (`recorded_trace`): what was written and what nobody could read is taken from the recording, and the
  group of `simulation.scaling` follows the rule. That shows how late the group is.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kohort.client.admin.values import GroupDescription, MemberDescription
from kohort.client.offsets import OffsetAndMetadata
from kohort.ids import TopicPartition
from kohort.lag.evaluation import LagReport, evaluate
from kohort.lag.scaling import ScalingDecision, ScalingState, ScalingTarget, decide_member_count
from kohort.lag.snapshot import ClusterSnapshot, GroupReading, PartitionBounds
from simulation.scaling import (
    MAX_LAG_S,
    PARTITIONS,
    TOPIC,
    HorizontalAutoscaler,
    KedaRule,
    KohortRule,
    Trace,
    print_table,
    run,
)

ROOT = Path(__file__).resolve().parent.parent
RECORDINGS = ROOT / "tests" / "fixtures" / "scaling-traffic.json.gz"
STUCK_S = 60
"""A partition whose offset did not move for so long to the end of the recording could not be read on."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a recorded group.

    Attributes:
        at_ms: When it was, from the beginning on.
        members: The number of members.
        owners: The member that has each partition; -1: none.
        committed: The committed offsets.
        open: The partitions in which the group stood before an open transaction.
        end: The log ends.
        oldest_ms: The timestamps of the oldest unread records, from the beginning on; None: nothing was unread.
    """

    at_ms: int
    members: int
    owners: Sequence[int]
    committed: Sequence[int]
    open: Sequence[int]
    end: Sequence[int]
    oldest_ms: Sequence[int | None]

    def snapshot(self) -> ClusterSnapshot:
        """Return what the reader of lag had."""
        parts = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        members = tuple(
            MemberDescription(
                f"m{member}", f"m{member}", "/127.0.0.1", None,
                tuple(part for part in parts if self.owners[part.partition] == member), None, (TOPIC,),
            )
            for member in range(self.members)
        )  # fmt: skip
        description = GroupDescription("g", "Consumer", "Stable", "consumer", "uniform", members)
        committed = {part: OffsetAndMetadata(self.committed[part.partition]) for part in parts}
        bounds, oldest = {}, {}
        for part in parts:
            number = part.partition
            end, offset, oldest_ms = self.end[number], self.committed[number], self.oldest_ms[number]
            bounds[part] = PartitionBounds(0, end, offset if number in self.open else end)
            if oldest_ms is not None:
                oldest[part, offset] = oldest_ms
        return ClusterSnapshot(self.at_ms, {"g": GroupReading(description, True, committed)}, {}, bounds, oldest)


@dataclass(frozen=True, slots=True)
class Recording:
    """The recorded traffic of a group.

    Attributes:
        name: Its name.
        member_per_s: The most records that a member read per second.
        downtime_ms: The downtime of each rebalance.
        samples: What was seen.
    """

    name: str
    member_per_s: float
    downtime_ms: Sequence[int]
    samples: Sequence[Sample]

    def trace(self) -> Trace:
        """Return the traffic for a group that is scaled: what was written, and what nobody could read."""
        seconds = self.samples[-1].at_ms // 1_000
        written = [self._per_second(number, seconds) for number in range(PARTITIONS)]
        last, stuck, transactions = self.samples[-1], {}, {}
        for number in range(PARTITIONS):
            still = [s.at_ms for s in self.samples if s.committed[number] == last.committed[number] < s.end[number]]
            if still and last.at_ms - still[0] >= STUCK_S * 1_000:
                stuck[number] = still[0] // 1_000
            opened = [sample.at_ms // 1_000 for sample in self.samples if number in sample.open]
            if opened:
                transactions[number] = (opened[0], opened[-1])
        return Trace(
            self.name, seconds, lambda partition, second: written[partition][second], stuck, transactions,
            member_per_s=self.member_per_s, downtime_s=math.ceil(max(self.downtime_ms, default=0) / 1_000),
        )  # fmt: skip

    def _per_second(self, number: int, seconds: int) -> list[float]:
        """Return what was written in each second, evenly between two looks."""
        found = [0.0] * (seconds + 1)
        at_ms, end = 0, 0
        for sample in self.samples:
            rate = (sample.end[number] - end) * 1_000 / max(1, sample.at_ms - at_ms)
            for second in range(at_ms // 1_000, sample.at_ms // 1_000):
                found[second] = rate
            at_ms, end = sample.at_ms, sample.end[number]
        return found


@cache
def recordings(path: Path = RECORDINGS) -> Mapping[str, Recording]:
    """Return the recordings by name."""
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return {
        name: Recording(
            name, group["member_per_s"], group["downtime_ms"], [Sample(**sample) for sample in group["samples"]]
        )
        for name, group in found.items()
    }


def asked_of_recording(recording: Recording) -> tuple[list[ScalingDecision], list[int]]:
    """Return the decisions of kohort's rule at each look, and the members that KEDA's asked for.

    The group stays as it was, so that every decision is about what really was.
    """
    report: LagReport | None = None
    state: ScalingState | None = None
    autoscaler = HorizontalAutoscaler(PARTITIONS)
    decisions, keda, wanted = [], [], recording.samples[0].members
    for sample in recording.samples:
        report = evaluate(sample.snapshot(), report)
        decision, state = decide_member_count(report.groups["g"], sample.at_ms, ScalingTarget(MAX_LAG_S * 1_000), state)
        decisions.append(decision)
        threshold = recording.member_per_s * MAX_LAG_S
        lag = sum(end - offset for end, offset in zip(sample.end, sample.committed, strict=True))
        wanted = autoscaler.wanted(lag / threshold, sample.members, wanted, sample.at_ms // 1_000)
        keda.append(wanted)
    return decisions, keda


def main() -> None:
    """Print the table of docs/scaling.md."""
    outcomes = {}
    for name, recording in recordings().items():
        members = recording.samples[0].members
        outcomes[name] = (run(recording.trace(), KohortRule(), members), run(recording.trace(), KedaRule(), members))
    print_table(outcomes)


if __name__ == "__main__":
    main()
