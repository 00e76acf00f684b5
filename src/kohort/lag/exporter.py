"""Prometheus metrics of the lag of clusters: the collector that a scrape calls.

A scrape asks no cluster: it formats the last read. So the page answers while a cluster is away, and says so.

Names are those of kafka-lag-exporter where it has one, so that dashboards made for it go on working. Ours begin with
`kohort_`. `METRICS` lists them all.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kohort.client.admin.values import MemberDescription
from kohort.ids import TopicPartition
from kohort.io.metrics_http import PreformattedFamily, escape_label_value, sample_number_text
from kohort.lag.cluster_watch import ClusterWatch
from kohort.lag.evaluation import GroupLag, PartitionLag
from kohort.lag.exporter_shares import SHARES, share_number_of
from kohort.lag.snapshot import REASONS, PartitionBounds

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

_PARTITION_VALUES: Mapping[str, Callable[[PartitionLag], float | None]] = {
    "kafka_consumergroup_group_offset": lambda part: part.committed,
    "kafka_consumergroup_group_lag": lambda part: part.lag,
    "kafka_consumergroup_group_lag_seconds": lambda part: _seconds(part.time_lag_ms),
}
"""The metrics that each partition of a group has."""
_LOG_VALUES: Mapping[str, Callable[[PartitionBounds], float]] = {
    "kafka_partition_earliest_offset": lambda bounds: bounds.log_start,
    "kafka_partition_latest_offset": lambda bounds: bounds.log_end,
}
"""The metrics that each partition of a topic has."""
_LINES_MAX = 1_000
"""The most lines of a group that are in memory at once."""
_MEMBERS_NONE = ("", "", "")
"""Host, member id and client id of a partition that no member has."""
COUNTERS = frozenset({"kohort_consumergroup_changes", "kohort_consumergroup_rebalance_causes", "kohort_exporter_reads"})


class LagExporter(Collector):
    """A Prometheus collector for the lag of several clusters. A scrape formats their last reads, and asks no broker."""

    def __init__(self, clusters: Sequence[ClusterWatch]) -> None:
        self._clusters = clusters

    def describe(self) -> Iterator[Metric]:
        """Return nothing: which groups and partitions there are is known only after the first read."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the clusters' last reads.

        Metrics with a sample for each partition come last. They format their lines piece by piece, so that the page is
        never whole in memory.
        """
        shown = [_Shown(cluster) for cluster in self._clusters]
        _limit_partitions(shown)
        families = _Families(name for name in METRICS if name not in _PARTITION_VALUES and name not in _LOG_VALUES)
        for cluster in shown:
            cluster.add_all(families)
        yield from families.by_name.values()
        texts = _LabelTexts()
        for name, value in _PARTITION_VALUES.items():
            yield PreformattedFamily(
                name, *METRICS[name],
                partial(_partition_lines, shown, name, value, texts), partial(_partition_values, shown, value),
            )  # fmt: skip
        for name, end in _LOG_VALUES.items():
            yield PreformattedFamily(
                name, *METRICS[name], partial(_log_lines, shown, name, end, texts), partial(_log_values, shown, end)
            )


class _Shown:
    """The groups and partitions of one cluster that a scrape shows.

    Attributes:
        watch: The watch that reads the cluster.
        shares: The exporter shares whose groups are shown; None: all groups are.
        report: The last report; None: there is none, or it is too old.
        groups: The groups that are shown.
        whole: Those of the groups whose partitions are shown too.
        left_out: How many partitions of the other groups are not shown, because the page has a limit.
    """

    def __init__(self, watch: ClusterWatch) -> None:
        self.watch = watch
        self.shares, self.report = (
            watch.current_owned_shares,
            watch.current_report,
        )  # in this order: the report is not the older one
        found = {} if self.report is None else self.report.groups
        self.groups = [
            group for name, group in found.items() if self.shares is None or share_number_of(name) in self.shares
        ]
        self.whole: list[GroupLag] = []
        self.left_out = 0

    def add_all(self, families: _Families) -> None:
        """Add the cluster's and its groups' metrics, except those that have a sample for each partition."""
        _add_cluster(families, self.watch)
        if self.report is None:
            return
        for group in self.groups:
            _add_group(families, self.watch.name, group)
        for group in self.whole:
            for part in group.partitions:
                _add_finding(families, (self.watch.name, group.description.group_id), part)
        families.add_metric_sample("kohort_exporter_partitions_left_out", (self.watch.name,), self.left_out)

    def logs(self) -> Iterable[tuple[TopicPartition, PartitionBounds]]:
        """Yield the partitions whose start and end offsets are shown, with these offsets; at most `PARTITIONS_MAX`.

        With exporter shares these are all partitions of the topics in this exporter's shares, otherwise those that
        groups read.
        """
        bounds = {} if self.report is None else self.report.bounds
        shares = self.shares
        shown = (
            bounds.items()
            if shares is None
            else ((t, b) for t, b in bounds.items() if share_number_of(t.topic) in shares)
        )
        return itertools.islice(shown, PARTITIONS_MAX)


class _LabelTexts:
    """A cache of label texts for one scrape. Labels are sorted by name, so a partition's come last in each line."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, str] = {}

    def partition_label_text(self, tp: TopicPartition) -> str:
        """Return the end of a sample's labels, `partition` and `topic`, as text; it is cached for each partition."""
        text = self._partitions.get(tp)
        if text is None:
            text = self._partitions[tp] = f'partition="{tp.partition}",topic="{escape_label_value(tp.topic)}"}}'
        return text

    @staticmethod
    def member_label_text(cluster: str, group: str, owner: MemberDescription | None) -> str:
        """Return the beginning of a sample's labels, `client_id` to `member_host`, for partitions of one member."""
        host, member, client = _MEMBERS_NONE if owner is None else (owner.host, owner.member_id, owner.client_id)
        return (
            f'client_id="{escape_label_value(client)}",cluster_name="{escape_label_value(cluster)}",'
            f'consumer_id="{escape_label_value(member)}",group="{escape_label_value(group)}",member_host="{escape_label_value(host)}",'
        )


def _partition_lines(
    shown: Iterable[_Shown], name: str, value: Callable[[PartitionLag], float | None], texts: _LabelTexts
) -> Iterator[str]:
    """Yield the lines of one metric with a sample for each partition of each group; a text has at most 1,000 lines."""
    for cluster in shown:
        for group in cluster.whole:
            begins: dict[int, str] = {}
            lines = []
            for part in group.partitions:
                number = value(part)
                if number is None:
                    continue
                begin = begins.get(id(part.owner))
                if begin is None:
                    begin = (
                        name + "{" + texts.member_label_text(cluster.watch.name, group.description.group_id, part.owner)
                    )
                    begins[id(part.owner)] = begin
                lines.append(f"{begin}{texts.partition_label_text(part.partition)} {sample_number_text(number)}\n")
                if len(lines) == _LINES_MAX:
                    yield "".join(lines)
                    lines.clear()
            yield "".join(lines)


def _partition_values(
    shown: Iterable[_Shown], value: Callable[[PartitionLag], float | None]
) -> Iterator[tuple[tuple[str, ...], float]]:
    for cluster in shown:
        for group in cluster.whole:
            for part in group.partitions:
                number = value(part)
                if number is not None:
                    owner, tp = part.owner, part.partition
                    member = _MEMBERS_NONE if owner is None else (owner.host, owner.member_id, owner.client_id)
                    place = (cluster.watch.name, group.description.group_id, tp.topic, str(tp.partition))
                    yield (*place, *member), number


def _log_lines(
    shown: Iterable[_Shown], name: str, end: Callable[[PartitionBounds], float], texts: _LabelTexts
) -> Iterator[str]:
    for cluster in shown:
        begin = f'{name}{{cluster_name="{escape_label_value(cluster.watch.name)}",'
        for tp, bounds in cluster.logs():
            yield f"{begin}{texts.partition_label_text(tp)} {sample_number_text(end(bounds))}\n"


def _log_values(
    shown: Iterable[_Shown], end: Callable[[PartitionBounds], float]
) -> Iterator[tuple[tuple[str, ...], float]]:
    for cluster in shown:
        for tp, bounds in cluster.logs():
            yield (cluster.watch.name, tp.topic, str(tp.partition)), end(bounds)


def _limit_partitions(shown: Iterable[_Shown]) -> None:
    """Choose the groups whose partitions are shown: each in turn that still fits into `PARTITIONS_MAX` partitions."""
    left = PARTITIONS_MAX
    for cluster in shown:
        for group in cluster.groups:
            count = len(group.partitions)
            if count <= left:
                left -= count
                cluster.whole.append(group)
            else:
                cluster.left_out += count


class _Families:
    """The Prometheus metric families of one scrape, filled cluster by cluster."""

    def __init__(self, names: Iterable[str]) -> None:
        self.by_name: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            name: (CounterMetricFamily if name in COUNTERS else GaugeMetricFamily)(
                name, METRICS[name][0], labels=METRICS[name][1]
            )
            for name in names
        }

    def add_metric_sample(self, name: str, labels: Sequence[str], value: float | None) -> None:
        """Add a sample to a metric family, unless its value is unknown."""
        if value is not None:
            self.by_name[name].add_metric(labels, value)


def _add_cluster(families: _Families, cluster: ClusterWatch) -> None:
    state, name = cluster.state, cluster.name
    families.add_metric_sample("kohort_exporter_up", (name,), float(state.is_up))
    if state.report is not None:
        families.add_metric_sample("kohort_exporter_last_read_timestamp_seconds", (name,), state.report.taken_ms / 1000)
    if state.reads:
        families.add_metric_sample("kafka_consumergroup_poll_time_ms", (name,), state.read_ms)
    for reason in REASONS:
        families.add_metric_sample("kohort_exporter_failures", (name, reason), state.failures.get(reason, 0))
    for outcome in ("whole", "partial", "failed"):
        families.add_metric_sample("kohort_exporter_reads", (name, outcome), state.reads.get(outcome, 0))
    shares, is_current = cluster.current_owned_shares, cluster.current_report is not None
    if shares is not None:
        families.add_metric_sample("kohort_exporter_shares", (name,), len(shares) if is_current else 0)
    if is_current:
        for (group, kind), count in state.changes.items():
            if shares is None or share_number_of(group) in shares:
                families.add_metric_sample("kohort_consumergroup_changes", (name, group, kind), count)


def _add_group(families: _Families, cluster: str, group: GroupLag) -> None:
    of, place = group.description, (cluster, group.description.group_id)
    families.add_metric_sample(
        "kohort_consumergroup_info", (*place, of.type, of.protocol_type, of.state, group.activity), 1
    )
    families.add_metric_sample("kohort_consumergroup_status", place, group.status)
    families.add_metric_sample("kohort_consumergroup_spark_batch", place, group.batch)
    if group.members_known:
        families.add_metric_sample("kohort_consumergroup_members", place, len(of.members))
    for reason, count in of.causes.items():
        families.add_metric_sample("kohort_consumergroup_rebalance_causes", (*place, reason), count)
    read = group.known_partitions
    if not read:
        return
    families.add_metric_sample("kafka_consumergroup_group_max_lag", place, group.max_lag)
    families.add_metric_sample("kafka_consumergroup_group_sum_lag", place, group.sum_lag)
    families.add_metric_sample("kafka_consumergroup_group_max_lag_seconds", place, _seconds(group.max_time_lag_ms))
    topics: Counter[str] = Counter()
    for part, lag in zip(read, group.known_lags, strict=True):
        topics[part.partition.topic] += lag
    for topic, lag in topics.items():
        families.add_metric_sample("kafka_consumergroup_group_topic_sum_lag", (*place, topic), lag)
    rates = group.rates
    families.add_metric_sample(
        "kohort_consumergroup_consumed_per_second", place, _sum(consumed for consumed, _ in rates)
    )
    families.add_metric_sample("kohort_consumergroup_written_per_second", place, _sum(written for _, written in rates))
    families.add_metric_sample("kohort_consumergroup_lag_skew", place, group.skew)
    for part in group.hot:
        where = (part.partition.topic, str(part.partition.partition))
        families.add_metric_sample("kohort_consumergroup_hot_partition", (*place, *where), part.produced_per_s)
    families.add_metric_sample("kohort_consumergroup_catch_up_seconds", place, group.catch_up_s)


def _add_finding(families: _Families, group: tuple[str, str], part: PartitionLag) -> None:
    """Add the metrics for a partition's status and lost offsets, if the status has a cause."""
    if part.cause is None:
        return
    place = (*group, part.partition.topic, str(part.partition.partition))
    families.add_metric_sample("kohort_consumergroup_partition_status", (*place, part.cause), part.status)
    if part.lost_offsets:
        families.add_metric_sample("kohort_consumergroup_lost_offsets", place, part.lost_offsets)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
