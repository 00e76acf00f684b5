"""Prometheus metrics of the lag of clusters: the collector that a scrape calls.

A scrape asks no cluster: it formats the last read. So the page answers while a cluster is away, and says so.

Names are those of kafka-lag-exporter where it has one, so that dashboards made for it go on working. Ours begin with
`kohort_`. `METRICS` lists them all.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kohort.lag.cluster_watch import ClusterWatch
from kohort.lag.evaluation import GroupLag, LagReport, PartitionLag
from kohort.lag.exporter_shares import SHARES, share_of
from kohort.lag.snapshot import REASONS

PARTITIONS_MAX = 100_000
"""The most partitions of groups on a page, for all clusters. Groups beyond have their sums and maxima alone."""

_OF_PARTITION = ("cluster_name", "group", "topic", "partition", "member_host", "consumer_id", "client_id")
_OF_GROUP = ("cluster_name", "group")
_OF_LOG = ("cluster_name", "topic", "partition")
_OF_CLUSTER = ("cluster_name",)

METRICS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "kafka_consumergroup_group_offset": ("Committed offset", _OF_PARTITION),
    "kafka_consumergroup_group_lag": ("Offsets still to be read", _OF_PARTITION),
    "kafka_consumergroup_group_lag_seconds": ("Age of the oldest unread record, 0 if there is none", _OF_PARTITION),
    "kafka_consumergroup_group_max_lag": ("Largest lag of a partition, in offsets", _OF_GROUP),
    "kafka_consumergroup_group_max_lag_seconds": ("Largest lag of a partition, in time", _OF_GROUP),
    "kafka_consumergroup_group_sum_lag": ("Lag of all partitions, in offsets", _OF_GROUP),
    "kafka_consumergroup_group_topic_sum_lag": ("Lag of a topic's partitions, in offsets", (*_OF_GROUP, "topic")),
    "kafka_consumergroup_poll_time_ms": ("Duration of the last read", _OF_CLUSTER),
    "kafka_partition_earliest_offset": ("First offset that the partition holds", _OF_LOG),
    "kafka_partition_latest_offset": ("Offset of the next record", _OF_LOG),
    "kohort_consumergroup_info": (
        "1; type, state and activity (active, idle, stopped, empty, unknown) are labels",
        (*_OF_GROUP, "type", "protocol", "state", "activity"),
    ),
    "kohort_consumergroup_status": ("0 OK, 1 WARN, 2 STALL, 3 STOP, 4 ERR: the worst of the group", _OF_GROUP),
    "kohort_consumergroup_spark_batch": (
        "Last finished batch of a Spark query whose checkpoint is read; -1 before the first",
        _OF_GROUP,
    ),
    "kohort_consumergroup_members": ("Members", _OF_GROUP),
    "kohort_consumergroup_consumed_per_second": ("Offsets committed per second", _OF_GROUP),
    "kohort_consumergroup_written_per_second": ("Offsets written per second to what the group reads", _OF_GROUP),
    "kohort_consumergroup_lag_skew": ("Largest lag of a partition by the mean of all: 1 is even", _OF_GROUP),
    "kohort_consumergroup_hot_partition": (
        "Offsets written per second to a partition that gets over 3 times the mean of the group's others",
        (*_OF_GROUP, "topic", "partition"),
    ),
    "kohort_consumergroup_catch_up_seconds": ("Time until nothing is unread; absent: never, or unknown", _OF_GROUP),
    "kohort_consumergroup_changes": ("Changes that were seen, by kind", (*_OF_GROUP, "kind")),
    "kohort_consumergroup_rebalance_causes": (
        "Causes of rebalances by reason, as kohort's coordinators record them",
        (*_OF_GROUP, "reason"),
    ),
    "kohort_consumergroup_partition_status": (
        "Status of a partition that has a cause; OK is 0",
        (*_OF_GROUP, "topic", "partition", "cause"),
    ),
    "kohort_consumergroup_lost_offsets": (
        "Offsets that retention deleted before the group read them",
        (*_OF_GROUP, "topic", "partition"),
    ),
    "kohort_exporter_up": ("1 if the last read of the cluster succeeded, also if parts are missing", _OF_CLUSTER),
    "kohort_exporter_last_read_timestamp_seconds": ("When the last read succeeded", _OF_CLUSTER),
    "kohort_exporter_failures": ("What could not be read in the last read, by reason", (*_OF_CLUSTER, "reason")),
    "kohort_exporter_reads": ("Reads", (*_OF_CLUSTER, "outcome")),
    "kohort_exporter_shares": (
        f"Shares of the groups that this exporter shows, {SHARES} of all exporters; only with --share",
        _OF_CLUSTER,
    ),
    "kohort_exporter_partitions_left_out": ("Partitions of groups beyond the page's limit", _OF_CLUSTER),
}
"""Every metric: its meaning and labels. Counters get the ending `_total` on the page."""
COUNTERS = frozenset({"kohort_consumergroup_changes", "kohort_consumergroup_rebalance_causes", "kohort_exporter_reads"})


class LagExporter(Collector):
    """The Prometheus collector of some clusters, called at each scrape."""

    def __init__(self, clusters: Sequence[ClusterWatch]) -> None:
        self._clusters = clusters
        self._formatting = threading.Lock()

    def describe(self) -> Iterator[Metric]:
        """Return nothing: which groups there are is known after the first read."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of the last reads. One scrape at a time: a page of many groups takes memory."""
        with self._formatting:
            return iter(self._page())

    def _page(self) -> list[Metric]:
        families = _Families()
        left = PARTITIONS_MAX
        for cluster in self._clusters:
            _add_cluster(families, cluster)
            shares, report = cluster.shown_shares, cluster.current  # in this order: the report is not the older one
            if report is None:
                continue
            out = 0
            for name, group in report.groups.items():
                if not (shares is None or share_of(name) in shares):
                    continue
                is_shown = len(group.partitions) <= left
                left -= len(group.partitions) if is_shown else 0
                out += 0 if is_shown else len(group.partitions)
                _add_group(families, cluster.name, group)
                for part in group.partitions if is_shown else ():
                    _add_partition(families, (cluster.name, group.description.group_id), part)
            _add_logs(families, cluster.name, report, shares)
            families.add_sample("kohort_exporter_partitions_left_out", (cluster.name,), out)
        return list(families.by_name.values())


class _Families:
    """The metric families of one scrape, filled cluster by cluster."""

    def __init__(self) -> None:
        self.by_name: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            name: (CounterMetricFamily if name in COUNTERS else GaugeMetricFamily)(name, text, labels=labels)
            for name, (text, labels) in METRICS.items()
        }

    def add_sample(self, name: str, labels: Sequence[str], value: float | None) -> None:
        """Add a sample to a metric family, unless its value is unknown."""
        if value is not None:
            self.by_name[name].add_metric(labels, value)


def _add_cluster(families: _Families, cluster: ClusterWatch) -> None:
    state, name = cluster.state, cluster.name
    families.add_sample("kohort_exporter_up", (name,), float(state.is_up))
    if state.report is not None:
        families.add_sample("kohort_exporter_last_read_timestamp_seconds", (name,), state.report.taken_ms / 1000)
    if state.reads:
        families.add_sample("kafka_consumergroup_poll_time_ms", (name,), state.read_ms)
    for reason in REASONS:
        families.add_sample("kohort_exporter_failures", (name, reason), state.failures.get(reason, 0))
    for outcome in ("whole", "partial", "failed"):
        families.add_sample("kohort_exporter_reads", (name, outcome), state.reads.get(outcome, 0))
    shares, is_current = cluster.shown_shares, cluster.current is not None
    if shares is not None:
        families.add_sample("kohort_exporter_shares", (name,), len(shares) if is_current else 0)
    if is_current:
        for (group, kind), count in state.changes.items():
            if shares is None or share_of(group) in shares:
                families.add_sample("kohort_consumergroup_changes", (name, group, kind), count)


def _add_logs(families: _Families, cluster: str, report: LagReport, shares: frozenset[int] | None) -> None:
    """Add the ends of the partitions: those that groups read, or with shares those of every topic of a share."""
    shown = [(tp, bounds) for tp, bounds in report.bounds.items() if shares is None or share_of(tp.topic) in shares]
    for tp, bounds in shown[:PARTITIONS_MAX]:
        place = (cluster, tp.topic, str(tp.partition))
        families.add_sample("kafka_partition_earliest_offset", place, bounds.log_start)
        families.add_sample("kafka_partition_latest_offset", place, bounds.log_end)


def _add_group(families: _Families, cluster: str, group: GroupLag) -> None:
    of, place = group.description, (cluster, group.description.group_id)
    families.add_sample("kohort_consumergroup_info", (*place, of.type, of.protocol_type, of.state, group.activity), 1)
    families.add_sample("kohort_consumergroup_status", place, group.status)
    families.add_sample("kohort_consumergroup_spark_batch", place, group.batch)
    if group.members_known:
        families.add_sample("kohort_consumergroup_members", place, len(of.members))
    for reason, count in of.causes.items():
        families.add_sample("kohort_consumergroup_rebalance_causes", (*place, reason), count)
    read = group.known_partitions
    if not read:
        return
    families.add_sample("kafka_consumergroup_group_max_lag", place, group.max_lag)
    families.add_sample("kafka_consumergroup_group_sum_lag", place, group.sum_lag)
    families.add_sample("kafka_consumergroup_group_max_lag_seconds", place, _seconds(group.max_time_lag_ms))
    topics: Counter[str] = Counter()
    for part in read:
        topics[part.partition.topic] += part.lag or 0
    for topic, lag in topics.items():
        families.add_sample("kafka_consumergroup_group_topic_sum_lag", (*place, topic), lag)
    consumed, written = [part.consumed_per_s for part in read], [part.produced_per_s for part in read]
    families.add_sample("kohort_consumergroup_consumed_per_second", place, _sum(consumed))
    families.add_sample("kohort_consumergroup_written_per_second", place, _sum(written))
    families.add_sample("kohort_consumergroup_lag_skew", place, group.skew)
    for part in group.hot:
        where = (part.partition.topic, str(part.partition.partition))
        families.add_sample("kohort_consumergroup_hot_partition", (*place, *where), part.produced_per_s)
    times = [part.catch_up_s for part in read]
    known = [time_s for time_s in times if time_s is not None]
    families.add_sample(
        "kohort_consumergroup_catch_up_seconds", place, max(known) if len(known) == len(times) else None
    )


def _add_partition(families: _Families, group: tuple[str, str], part: PartitionLag) -> None:
    owner, tp = part.owner, part.partition
    place = (*group, tp.topic, str(tp.partition))
    member = ("", "", "") if owner is None else (owner.host, owner.member_id, owner.client_id)
    families.add_sample("kafka_consumergroup_group_offset", (*place, *member), part.committed)
    families.add_sample("kafka_consumergroup_group_lag", (*place, *member), part.lag)
    families.add_sample("kafka_consumergroup_group_lag_seconds", (*place, *member), _seconds(part.time_lag_ms))
    if part.cause is not None:
        families.add_sample("kohort_consumergroup_partition_status", (*place, part.cause), part.status)
    if part.lost:
        families.add_sample("kohort_consumergroup_lost_offsets", place, part.lost)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
