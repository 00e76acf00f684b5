"""Lag over the last reads, and what changed: the memory behind sparklines and timelines. Pure."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from kohort.ids import TopicPartition
from kohort.lag import GroupChange, LagReport

READS_KEPT = 120
"""The reads that a history shows: 20 minutes at an interval of 10 s."""
PARTITIONS_MAX = 50_000
"""The most partitions of groups with a history of their own: 24 MB."""
CHANGES_KEPT = 100
"""The last changes of a group that its timeline shows."""
CHANGES_MAX = 20_000
"""The most changes of all groups; beyond them the oldest go first."""

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class TimedChange:
    """A change of a group, and when it was seen, in milliseconds since 1970."""

    at_ms: int
    group: str
    change: GroupChange


class _Rings(Generic[K]):
    """One ring of values for each key, all with the same positions. Single precision is enough for a picture."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._rings: dict[K, array[float]] = {}

    def put(self, slot: int, values: Mapping[K, float], gone: Iterable[K]) -> None:
        """Set the value of each key at a position; not a number where a key has none."""
        for key in gone:
            self._rings.pop(key, None)
        for key, ring in self._rings.items():
            ring[slot] = values.get(key, math.nan)
        for key, value in values.items():
            if key not in self._rings and len(self._rings) < self._keys_max:
                ring = self._rings[key] = array("f", (math.nan,)) * READS_KEPT
                ring[slot] = value

    def names(self) -> list[K]:
        """Return the keys that have a ring."""
        return list(self._rings)

    def values(self, key: K, slots: Iterable[int]) -> list[int | None]:
        """Return a key's values at some positions; none for a key without a history."""
        ring = self._rings.get(key)
        return [] if ring is None else [None if math.isnan(value := ring[slot]) else int(value) for slot in slots]


class LagHistory:
    """The lag of groups and partitions over the last reads, and the last changes of groups."""

    def __init__(self) -> None:
        self._reads = 0
        self._times = array("d", (0.0,)) * READS_KEPT
        self._lag: _Rings[str] = _Rings(PARTITIONS_MAX)
        self._time_lag: _Rings[str] = _Rings(PARTITIONS_MAX)
        self._partitions: _Rings[tuple[str, TopicPartition]] = _Rings(PARTITIONS_MAX)
        self._changes: deque[TimedChange] = deque(maxlen=CHANGES_MAX)

    def add_report(self, report: LagReport, latest: Iterable[tuple[str, GroupChange]] = ()) -> None:
        """Add a read. A group that could not be read has a gap; one that is not there any more loses its history."""
        slot, groups = self._reads % READS_KEPT, report.groups
        self._reads += 1
        self._times[slot] = report.taken_ms
        gone = [] if report.failures else [name for name in self._lag.names() if _is_gone(name, report)]
        self._lag.put(slot, {name: group.sum_lag for name, group in groups.items() if group.read}, gone)
        times = {name: group.max_time_lag_ms for name, group in groups.items()}
        self._time_lag.put(slot, {name: lag for name, lag in times.items() if lag is not None}, gone)
        lags = {
            (name, part.partition): float(part.lag)
            for name, group in groups.items()
            for part in group.partitions
            if part.lag is not None
        }
        here = {(name, part.partition) for name, group in groups.items() for part in group.partitions}
        left = [key for key in self._partitions.names() if key not in here and key[0] not in report.errors]
        self._partitions.put(slot, lags, [] if report.failures else left)
        self._changes.extend(TimedChange(report.taken_ms, name, change) for name, change in latest)

    def times_ms(self, last: int = READS_KEPT) -> list[int]:
        """Return the times of the last reads, the oldest first."""
        return [int(self._times[slot]) for slot in self._slots(last)]

    def lag_of_group(self, name: str, last: int = READS_KEPT) -> list[int | None]:
        """Return a group's lag at `times_ms`; None where it is not known."""
        return self._lag.values(name, self._slots(last))

    def time_lag_of_group(self, name: str, last: int = READS_KEPT) -> list[int | None]:
        """Return a group's time lag at `times_ms`, in milliseconds; None where it is not known."""
        return self._time_lag.values(name, self._slots(last))

    def lag_of_partition(self, group: str, partition: TopicPartition, last: int = READS_KEPT) -> list[int | None]:
        """Return a group's lag in a partition at `times_ms`; empty beyond `PARTITIONS_MAX` partitions."""
        return self._partitions.values((group, partition), self._slots(last))

    def changes_of_group(self, name: str) -> list[TimedChange]:
        """Return the last changes of a group, the newest first."""
        found = [change for change in reversed(self._changes) if change.group == name]
        return found[:CHANGES_KEPT]

    def _slots(self, last: int) -> list[int]:
        count = min(self._reads, last, READS_KEPT)
        return [number % READS_KEPT for number in range(self._reads - count, self._reads)]


def _is_gone(name: str, report: LagReport) -> bool:
    return name not in report.groups and name not in report.errors
