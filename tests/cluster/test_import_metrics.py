"""Metrics of groups that are taken over from Kafka's own coordinator."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from kohort.broker.metrics import Metrics
from kohort.broker.metrics_exporter import IMPORTS, Exporter
from kohort.groups.effects import CoordinatorMeter, CounterIncreased


def scraped(metrics: Metrics) -> str:
    registry = CollectorRegistry()
    registry.register(Exporter(lambda: metrics.snapshot([], 0)))
    return generate_latest(registry).decode()


def test_imports_are_logged_where_there_are_any() -> None:
    metrics = Metrics()
    assert "import" not in scraped(metrics)
    metrics.record_measurement(CounterIncreased(CoordinatorMeter.GROUP_IMPORTS, 2))
    metrics.record_measurement(CounterIncreased(CoordinatorMeter.MEMBERS_ELSEWHERE, 1))
    text = scraped(metrics)
    assert "kohort_group_imports_total 2.0" in text
    assert "kohort_group_members_elsewhere_total 1.0" in text
    assert set(IMPORTS) == {CoordinatorMeter.GROUP_IMPORTS, CoordinatorMeter.MEMBERS_ELSEWHERE}
