"""The broker's metrics in Prometheus's text format, loaded by a process that serves them.

A scrape asks the loop for a snapshot and formats it on its own thread, so that it delays no request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal, TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UntypedMetricFamily,
)
from prometheus_client.registry import Collector

from kohort.broker.metrics import GROUP_METRICS, HistogramSummary, Snapshot
from kohort.groups.effects import CoordinatorMeter

Timed: TypeAlias = Literal["rebalance", "downtime", "event-queue", "step", "journal-append"]
HISTOGRAMS: Final[dict[Timed, tuple[str, str]]] = {
    "rebalance": ("kohort_rebalance_seconds", "From the first change until the group was stable again"),
    "downtime": ("kohort_downtime_seconds", "Mean downtime in a rebalance of the members that stopped processing"),
    "event-queue": ("kohort_event_queue_seconds", "How long the oldest event of a batch waited"),
    "step": ("kohort_step_seconds", "A batch of events in the group coordinator"),
    "journal-append": ("kohort_journal_append_seconds", "A batch's records into the journal"),
}

IMPORTS: Final[dict[str, str]] = {
    CoordinatorMeter.GROUP_IMPORTS: "Groups imported from Kafka's own coordinator",
    CoordinatorMeter.MEMBERS_ELSEWHERE: "Groups here that were found to have members at Kafka's own coordinator too",
}

ZOOKEEPER_LAG: Final = "Age of the state of push groups that ZooKeeper shows"
ZOOKEEPER: Final[dict[str, str]] = {
    "changes": "ZooKeeper nodes of push groups created, set or deleted",
    "multis": "ZooKeeper multi requests for these changes",
    "refused": "Multi requests that failed because another process is the writer or changed the nodes",
    "failures": "Checks after which some changes were still unwritten",
    "looked": "Groups checked",
}


class Exporter(Collector):
    """A Prometheus collector that turns snapshots into metric families."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterator[Metric]:
        """Return nothing: the metrics are unknown before the first snapshot."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return the metric families of one snapshot."""
        found = self._snapshot()
        yield from _kafka_meters(found[GROUP_METRICS])
        yield from _groups(found)
        for timed, (title, text) in HISTOGRAMS.items():
            family = HistogramMetricFamily(title, text)
            _add_histogram(family, [], found[timed])
            yield family
        latency = HistogramMetricFamily(
            "kohort_request_seconds", "From a request's arrival to its answer", labels=["api"]
        )
        requests = CounterMetricFamily("kohort_requests", "Requests that arrived", labels=["api"])
        for api, count in found["requests"].items():
            requests.add_metric([api], count)
            _add_histogram(latency, [api], found["latency"][api])
        yield requests
        yield latency
        yield GaugeMetricFamily("kohort_connections", "Open connections", value=found["connections"])
        for name, count in found["held"].items():
            title = f"kohort_{name.replace('-', '_')}"
            yield CounterMetricFamily(title, "Delayed heartbeats of classic members, by how they ended", value=count)
        for name, count in found["imports"].items():
            title = f"kohort_{name.replace('-', '_')}"
            yield CounterMetricFamily(title, IMPORTS[name], value=count)
        for name, count in found["push"].items():
            yield CounterMetricFamily(f"kohort_{name.replace('-', '_')}", "Of push groups", value=count)
        yield from _zookeeper(found["zookeeper"])
        yield CounterMetricFamily(
            "kohort_events", "Events that the group coordinators processed", value=found["events"]
        )


def _kafka_meters(meters: dict[str, float]) -> Iterator[Metric]:
    """Yield Kafka's meters under the names that the usual JMX exporter gives to Kafka's beans."""
    for name, value in meters.items():
        title = f"kafka.server_{GROUP_METRICS}_{name}".replace(".", "_").replace("-", "_")
        yield UntypedMetricFamily(title, f"Kafka's {name} of {GROUP_METRICS}", value=value)


def _zookeeper(found: dict[str, float]) -> Iterator[Metric]:
    if found:
        yield GaugeMetricFamily("kohort_zookeeper_lag_seconds", ZOOKEEPER_LAG, value=found["lag_s"])
        for name, text in ZOOKEEPER.items():
            yield CounterMetricFamily(f"kohort_zookeeper_{name}", text, value=found[name])


def _groups(found: Snapshot) -> Iterator[Metric]:
    states = GaugeMetricFamily("kohort_groups", "Groups", labels=["protocol", "state"])
    for protocol, counts in found["groups"].items():
        for state, count in counts.items():
            states.add_metric([protocol, state], count)
    yield states
    whole = CounterMetricFamily("kohort_group_rebalance_seconds", "Time in rebalances, by group", labels=["group"])
    still = CounterMetricFamily("kohort_group_downtime_seconds", "Downtime in rebalances, by group", labels=["group"])
    completed = CounterMetricFamily("kohort_group_rebalances", "Completed rebalances, by group", labels=["group"])
    for group, values in found["rebalances"].items():
        whole.add_metric([group], values["duration_ms"] / 1000)
        still.add_metric([group], values["downtime_ms"] / 1000)
        completed.add_metric([group], values["completed"])
    causes = CounterMetricFamily("kohort_rebalance_causes", "Causes of rebalances, by reason", labels=["reason"])
    for reason, count in found["rebalance-causes"].items():
        causes.add_metric([reason], count)
    yield from (whole, still, completed, causes)


def _add_histogram(family: HistogramMetricFamily, labels: list[str], values: HistogramSummary) -> None:
    buckets, seen = [], 0
    for bound, count in values["buckets"]:
        seen += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(seen)))
    family.add_metric(labels, buckets, values["total_s"])
