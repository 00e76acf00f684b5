"""Prometheus metrics of a region: of one application's members, and of the control plane if this process runs it.

The control plane's counters begin at 0 with its term. Source: spec 5.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kohort.region.consuming.settings import MemberMetrics
from kohort.region.messages import RegionStatus
from kohort.region.states import RegionState

MEMBERS = (
    ("partitions", "Partitions that a member is assigned"),
    ("topics", "Topics that a member reads"),
    ("drain_seconds", "From the order to drain until nothing was in flight, the last time"),
    ("longest_drain_seconds", "The longest drain since the member began"),
    ("waits_for_sink", "1 while a member's sink takes nothing, and its checkpoint waits"),
)
PLANE = (
    ("term", "Number of the control plane's term"),
    ("epoch", "Grows with each start and each reset"),
    ("sequence", "The last complete sequence"),
    ("unpublished", "Complete sequences that not all sinks show yet"),
    ("members", "Members that are registered"),
    ("sequence_seconds", "From the beginning of the last sequence to its completion"),
    ("longest_sequence_seconds", "The longest of this term"),
)


class MeasuredMember(Protocol):
    """A member whose metrics are exported: a consumer or a Spark query."""

    @property
    def name(self) -> str:
        """The member's name in the region."""

    @property
    def metrics(self) -> MemberMetrics:
        """The member's metrics."""


class RegionExporter(Collector):
    """The Prometheus collector of a region, called at each scrape.

    Args:
        region: the region's name.
        members: returns the members of this application.
        plane: returns the description of the region if its control plane runs in this process; else None.
    """

    def __init__(
        self, region: str, members: Callable[[], Iterable[MeasuredMember]], plane: Callable[[], RegionStatus | None]
    ) -> None:
        self._region, self._members, self._plane = region, members, plane

    def describe(self) -> Iterator[Metric]:
        """Return nothing, because metrics are not known before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of members and, if it runs here, of the control plane; unmeasured times are left out."""
        yield from self._of_members()
        plane = self._plane()
        if plane is not None:
            yield from self._of_plane(plane)

    def _of_members(self) -> Iterator[Metric]:
        gauges = {
            name: GaugeMetricFamily(f"kohort_region_member_{name}", text, labels=["region", "member"])
            for name, text in MEMBERS
        }
        sequences = CounterMetricFamily(
            "kohort_region_member_sequences", "Complete sequences a member heard of", labels=["region", "member"]
        )
        resets = CounterMetricFamily(
            "kohort_region_member_resets", "How often a member went back", labels=["region", "member"]
        )
        letters = CounterMetricFamily(
            "kohort_region_member_dead_letters",
            "Rows a sink could not take that complete sequences have in the member's place of dead letters",
            labels=["region", "member"],
        )
        for member in self._members():
            labels, metrics = [self._region, member.name], member.metrics
            gauges["partitions"].add_metric(labels, metrics.partitions)
            gauges["topics"].add_metric(labels, metrics.topics)
            gauges["waits_for_sink"].add_metric(labels, float(bool(metrics.waits_for)))
            if metrics.drain_ms >= 0:
                gauges["drain_seconds"].add_metric(labels, metrics.drain_ms / 1000)
                gauges["longest_drain_seconds"].add_metric(labels, metrics.longest_drain_ms / 1000)
            sequences.add_metric(labels, metrics.sequences)
            resets.add_metric(labels, metrics.resets)
            letters.add_metric(labels, metrics.dead_letters)
        yield from gauges.values()
        yield from (sequences, resets, letters)

    def _of_plane(self, seen: RegionStatus) -> Iterator[Metric]:
        values = {
            "term": float(seen.term),
            "epoch": float(seen.epoch),
            "sequence": float(seen.sequence),
            "unpublished": float(seen.sequence - seen.published),
            "members": float(sum(member.registered for member in seen.members)),
        }
        if seen.sequence_ms >= 0:
            values["sequence_seconds"] = seen.sequence_ms / 1000
            values["longest_sequence_seconds"] = seen.longest_ms / 1000
        for name, text in PLANE:
            family = GaugeMetricFamily(f"kohort_region_{name}", text, labels=["region"])
            if name in values:
                family.add_metric([self._region], values[name])
            yield family
        unpublished = "Complete sequences that a sink does not show yet"
        sinks = GaugeMetricFamily("kohort_region_sink_unpublished", unpublished, labels=["region", "sink"])
        for sink in seen.sinks:
            sinks.add_metric([self._region, sink.place], float(seen.sequence - sink.published))
        yield sinks
        waits = GaugeMetricFamily(
            "kohort_region_sink_waits", "1 while a sink can't be written to", labels=["region", "sink"]
        )
        staging = {place for member in seen.members if member.waits_for for place in (member.sink, member.letters)}
        for sink in seen.sinks:
            waits.add_metric([self._region, sink.place], float(bool(sink.waits_for) or sink.place in staging))
        yield waits
        states = GaugeMetricFamily("kohort_region_state", "1 in the state that it has", labels=["region", "state"])
        for state in RegionState:
            states.add_metric([self._region, state.name], float(state.name == seen.state))
        yield states
        resets = CounterMetricFamily("kohort_region_resets", "Resets, by cause", labels=["region", "cause"])
        for cause, count in seen.resets.items():
            resets.add_metric([self._region, cause], count)
        yield resets
