"""Metrics of the broker as plain values; `metrics_exporter.py` has them in Prometheus's text format.

Only the loop writes and reads them: a counter is an attribute, a histogram a bisection. Groups by state are counted on
request. Kafka's four meters keep Kafka's names, so that existing dashboards work. Source: spec 1.7.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final, TypedDict

from kohort.groups.effects import (
    CoordinatorMeter,
    CounterIncreased,
    GroupState,
    RebalanceCaused,
    Rebalanced,
    RebalanceReason,
)
from kohort.wire.framing import APIS
from kohort.wire.push import PushType

BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0),
)
"""Upper bounds of every histogram's buckets, in seconds. One more bucket counts longer durations."""
RATE_WINDOW_S = 30.0
"""A rate covers the last one to two windows of this length, like Kafka's rates with default settings."""
GROUPS_MAX = 1_000
"""The most groups with their own rebalance metrics: those that rebalanced last. Bounds memory and scrape size."""
IMPORT_METERS = (CoordinatorMeter.GROUP_IMPORTS, CoordinatorMeter.MEMBERS_ELSEWHERE)
HELD_METERS = (CoordinatorMeter.HELD_TOLD, CoordinatorMeter.HELD_DISCONNECTS, CoordinatorMeter.HELD_LATE)
KAFKA_METERS = (
    CoordinatorMeter.OFFSET_COMMITS,
    CoordinatorMeter.OFFSET_EXPIRATIONS,
    CoordinatorMeter.OFFSET_DELETIONS,
    CoordinatorMeter.COMPLETED_REBALANCES,
)
PUSH_METERS = (CoordinatorMeter.PUSH_FAILED,)
API_NAMES = {key: api.name for key, api in APIS.items()} | {int(kind): kind.api for kind in PushType}
"""API names by key, of Kafka's APIs and of push frames. Both share one range of numbers."""
GROUP_METRICS: Final = "group-coordinator-metrics"
"""Kafka's name for the group of its four coordinator meters."""


class HistogramSummary(TypedDict):
    """A histogram as plain values; `buckets` are (upper bound in s, count)."""

    count: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    total_s: float
    buckets: list[tuple[float, int]]


class RebalancesSummary(TypedDict):
    """The rebalances of one group as plain values."""

    protocol: str
    completed: int
    duration_ms: int
    downtime_ms: float
    last_duration_ms: int
    last_downtime_ms: float
    last_downtime_max_ms: int
    members: int


Snapshot = TypedDict(
    "Snapshot",
    {
        "group-coordinator-metrics": dict[str, float],
        "groups": dict[str, dict[str, int]],
        "rebalances": dict[str, RebalancesSummary],
        "rebalance-causes": dict[str, int],
        "rebalance": HistogramSummary,
        "downtime": HistogramSummary,
        "event-queue": HistogramSummary,
        "step": HistogramSummary,
        "journal-append": HistogramSummary,
        "events": int,
        "held": dict[str, int],
        "imports": dict[str, int],
        "push": dict[str, int],
        "zookeeper": dict[str, float],
        "connections": int,
        "requests": dict[str, int],
        "latency": dict[str, HistogramSummary],
        "listen": str | None,
    },
)
"""All metrics of a broker. `listen` is the address that Prometheus scrapes. `imports` is empty if nothing is imported.
"""


class Histogram:
    """A histogram of durations.

    Attributes:
        counts: one per bound of `BOUNDS_S` and one for longer durations; not cumulative.
        total_s: the sum of all durations.
        max_s: the longest duration.
    """

    __slots__ = ("counts", "max_s", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0
        self.max_s = 0.0

    def observe(self, seconds: float) -> None:
        """Record one duration, in seconds."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds
        if seconds > self.max_s:
            self.max_s = seconds

    def quantile_s(self, share: float) -> float:
        """Return the upper bound of the quantile's bucket, at most the longest duration; 0.0 without durations."""
        wanted = share * sum(self.counts)
        seen = 0
        for bound, count in zip(BOUNDS_S, self.counts, strict=False):
            seen += count
            if seen and seen >= wanted:
                return min(bound, self.max_s)
        return self.max_s

    def summary(self) -> HistogramSummary:
        """Return count, mean, quantiles and maximum in ms, and the buckets as (upper bound in s, count)."""
        count = sum(self.counts)
        return {
            "count": count,
            "mean_ms": self.total_s / count * 1e3 if count else 0.0,
            "p50_ms": self.quantile_s(0.5) * 1e3,
            "p99_ms": self.quantile_s(0.99) * 1e3,
            "max_ms": self.max_s * 1e3,
            "total_s": self.total_s,
            "buckets": list(zip((*BOUNDS_S, float("inf")), self.counts, strict=True)),
        }


class Rate:
    """A counter with its growth per second over the last one to two windows."""

    __slots__ = ("_before", "_began", "_now", "count")

    def __init__(self) -> None:
        self.count = 0
        self._began = time.monotonic()
        self._before = 0
        self._now = 0

    def add(self, amount: int) -> None:
        """Increase the counter."""
        self._turn(time.monotonic())
        self.count += amount
        self._now += amount

    def per_second(self) -> float:
        """Return the counter's growth per second, over at least one whole window."""
        now = time.monotonic()
        self._turn(now)
        return (self._before + self._now) / (now - self._began + RATE_WINDOW_S)

    def _turn(self, now: float) -> None:
        passed = int((now - self._began) / RATE_WINDOW_S)
        if passed:
            self._before = self._now if passed == 1 else 0
            self._now = 0
            self._began += passed * RATE_WINDOW_S


class ZooKeeperMirrorMetrics:
    """Metrics of the process that publishes push groups in ZooKeeper: how far ZooKeeper is behind the journals.

    Attributes:
        changes: nodes that were created, set or deleted.
        multis: multi requests for these changes.
        refused: multis that failed because another process is the writer or changed the nodes.
        failures: checks after which some changes were still unwritten.
        looked: groups that were checked.
    """

    __slots__ = ("_settled_s", "changes", "failures", "looked", "multis", "refused")

    def __init__(self) -> None:
        self.changes = self.multis = self.refused = self.failures = self.looked = 0
        self._settled_s = time.monotonic()

    def record_mirror_written(self, began_s: float) -> None:
        """Record that ZooKeeper shows all changes up to this time of the monotonic clock."""
        self._settled_s = began_s

    def lag_s(self) -> float:
        """Return the age of the state that ZooKeeper shows, in seconds."""
        return time.monotonic() - self._settled_s

    def summary(self) -> dict[str, float]:
        """Return the mirror's metrics as a dictionary of numbers."""
        return {
            "lag_s": self.lag_s(),
            "changes": self.changes,
            "multis": self.multis,
            "refused": self.refused,
            "failures": self.failures,
            "looked": self.looked,
        }


class ApiMetrics:
    """Metrics of one API: the number of requests, and the time from a request's arrival to its answer.

    For a server request the time starts when it is sent.
    """

    __slots__ = ("latency", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.latency = Histogram()


class GroupRebalances:
    """The completed rebalances of one group.

    Times are in ms. Downtime is the mean over the members that stopped, and the maximum.
    """

    __slots__ = ("completed", "downtime_ms", "duration_ms", "last")

    def __init__(self) -> None:
        self.completed = 0
        self.duration_ms = 0
        self.downtime_ms = 0.0
        self.last = Rebalanced("", "", 0, 0.0, 0, 0)

    def add_rebalance(self, note: Rebalanced) -> None:
        """Record one completed rebalance of the group."""
        self.completed += 1
        self.duration_ms += note.duration_ms
        self.downtime_ms += note.downtime_ms
        self.last = note

    def summary(self) -> RebalancesSummary:
        """Return counts, times and downtimes of the group's rebalances as a dictionary."""
        return {
            "protocol": self.last.protocol,
            "completed": self.completed,
            "duration_ms": self.duration_ms,
            "downtime_ms": self.downtime_ms,
            "last_duration_ms": self.last.duration_ms,
            "last_downtime_ms": self.last.downtime_ms,
            "last_downtime_max_ms": self.last.downtime_max_ms,
            "members": self.last.members,
        }


class Metrics:
    """All metrics of one broker.

    Attributes:
        meters: Kafka's four meters, those of long polling, and those of push groups.
        apis: request metrics by API key.
        causes: causes of rebalances by reason.
        rebalances: by group, the most recently rebalanced last.
        whole, downtime: total time and downtime of all groups' rebalances.
        queue: how long the oldest event of a batch waited for its shard.
        step, append: how long a batch took in the state machine, and its records in the journal.
        events: the number of events processed.
        mirror: metrics of the ZooKeeper mirror; None: there is no mirror.
    """

    def __init__(self) -> None:
        self.mirror: ZooKeeperMirrorMetrics | None = None
        self.meters = {meter: Rate() for meter in CoordinatorMeter}
        self.apis = {key: ApiMetrics() for key in API_NAMES}
        self.rebalances: OrderedDict[str, GroupRebalances] = OrderedDict()
        self.causes: Counter[str] = Counter()
        self.whole = Histogram()
        self.downtime = Histogram()
        self.queue = Histogram()
        self.step = Histogram()
        self.append = Histogram()
        self.events = 0

    def record_measurement(self, note: CounterIncreased | RebalanceCaused | Rebalanced) -> None:
        """Record a metric that a group coordinator reports: a counter or a rebalance."""
        if isinstance(note, CounterIncreased):
            self.meters[note.meter].add(note.amount)
            return
        if isinstance(note, RebalanceCaused):
            self.causes[note.cause.reason.value] += 1
            return
        self.whole.observe(note.duration_ms / 1000)
        self.downtime.observe(note.downtime_ms / 1000)
        of_group = self.rebalances.pop(note.group_id, None) or GroupRebalances()
        of_group.add_rebalance(note)
        self.rebalances[note.group_id] = of_group
        if len(self.rebalances) > GROUPS_MAX:
            self.rebalances.popitem(last=False)

    def snapshot(
        self, groups: Iterable[tuple[str, GroupState]], connections: int, listen: str | None = None
    ) -> Snapshot:
        """Return all metrics as plain values.

        Args:
            groups: protocol and state of every group.
            connections: the number of open connections.
            listen: the address that Prometheus scrapes, if any.
        """
        by_state = Counter(groups)
        return {
            GROUP_METRICS: self.kafka_metric_values(),
            "groups": {
                protocol: {state.value: count for (of, state), count in sorted(by_state.items()) if of == protocol}
                for protocol in ("classic", "consumer", "push")
            },
            "rebalances": {group: rebalances.summary() for group, rebalances in self.rebalances.items()},
            "rebalance-causes": {reason.value: self.causes[reason.value] for reason in RebalanceReason},
            "rebalance": self.whole.summary(),
            "downtime": self.downtime.summary(),
            "event-queue": self.queue.summary(),
            "step": self.step.summary(),
            "journal-append": self.append.summary(),
            "events": self.events,
            "held": {meter.value: self.meters[meter].count for meter in HELD_METERS},
            "imports": {meter.value: count for meter in IMPORT_METERS if (count := self.meters[meter].count)},
            "push": {meter.value: self.meters[meter].count for meter in PUSH_METERS},
            "zookeeper": {} if self.mirror is None else self.mirror.summary(),
            "connections": connections,
            "requests": {API_NAMES[key]: api.requests for key, api in self.apis.items() if api.requests},
            "latency": {API_NAMES[key]: api.latency.summary() for key, api in self.apis.items() if api.requests},
            "listen": listen,
        }

    def kafka_metric_values(self) -> dict[str, float]:
        """Return Kafka's meters by name: rates (1/s) and counts."""
        meters: dict[str, float] = {}
        for meter in KAFKA_METERS:
            rate = self.meters[meter]
            meters[f"{meter.value}-rate"] = rate.per_second()
            meters[f"{meter.value}-count"] = rate.count
        return meters

    def counts(self) -> Mapping[str, int]:
        """Return the coordinator's counters by the names of their meters."""
        return {meter.value: rate.count for meter, rate in self.meters.items() if rate.count}
