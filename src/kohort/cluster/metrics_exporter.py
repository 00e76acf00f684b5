"""A coordinator's metrics in Prometheus's text format: those of every group host, and those of its shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kohort.broker.metrics import Snapshot
from kohort.broker.metrics_exporter import Exporter
from kohort.wire.coordinators import DescribeCoordinatorsResponse


class CoordinatorExporter(Exporter):
    """An exporter that turns snapshots and shards into metric families."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        coordinator: Callable[[], int],
        shards: Callable[[], list[DescribeCoordinatorsResponse.Shard]],
    ) -> None:
        """Create an exporter of `snapshot`, and of samples for each row of `shards()` with `coordinator()` as label."""
        super().__init__(snapshot)
        self._coordinator = coordinator
        self._shards = shards

    def collect(self) -> Iterator[Metric]:
        """Return the metric families of one snapshot."""
        yield from super().collect()
        labels = ["shard", "coordinator"]
        owned = GaugeMetricFamily("kohort_shard_serving", "1: the shard serves here; 0: it does not yet", labels=labels)
        term = GaugeMetricFamily("kohort_shard_term", "The journal's term: its producer epoch", labels=labels)
        proof = GaugeMetricFamily(
            "kohort_shard_proof_age_seconds", "Since the newest acknowledged append was sent", labels=labels
        )
        load = GaugeMetricFamily("kohort_shard_load_seconds", "How long it took to load", labels=labels)
        p99 = GaugeMetricFamily("kohort_shard_append_p99_seconds", "Of its appends, 99 in 100 took less", labels=labels)
        appends = CounterMetricFamily("kohort_shard_appends", "Appends that were acknowledged", labels=labels)
        fences = CounterMetricFamily("kohort_shard_fences", "How often another coordinator took it over", labels=labels)
        number = str(self._coordinator())
        for shard in self._shards():
            at = [str(shard.index), number]
            owned.add_metric(at, float(shard.phase == "serving"))
            for family, value, unit in (
                (term, shard.term, 1),
                (proof, shard.proof_age_ms, 1e3),
                (load, shard.load_ms, 1e3),
                (p99, shard.append_p99_us, 1e6),
            ):
                if value >= 0:
                    family.add_metric(at, value / unit)
            appends.add_metric(at, shard.appends)
            fences.add_metric(at, shard.fences)
        yield from (owned, term, proof, load, p99, appends, fences)
