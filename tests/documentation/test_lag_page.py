"""docs/lag.md, docs/exporter.md, alert rules and dashboard name metrics, labels, causes and statuses that there are."""

from __future__ import annotations

import json
import re

import pytest

from kohort.lag import CAUSES, LagStatus
from kohort.lag.exporter import COUNTERS, METRICS
from kohort.lag.snapshot import REASONS
from tests.documentation.spec_page import ROOT

PAGE = ROOT / "docs" / "lag.md"
EXPORTER_PAGE = ROOT / "docs" / "exporter.md"
ALERTS = ROOT / "docs" / "lag" / "alerts.yml"
DASHBOARD = ROOT / "docs" / "lag" / "grafana-dashboard.json"
ON_PAGE = {f"{name}_total" if name in COUNTERS else name: labels for name, (_, labels) in METRICS.items()}
"""Each metric as a scrape has it, with its labels."""
_METRIC = re.compile(r"\b(?:kafka_consumergroup|kafka_partition|kohort_consumergroup|kohort_exporter)_\w+")
_SELECTED = re.compile(rf"({_METRIC.pattern})(?:\{{([^}}]*)\}})?")


def expressions() -> dict[str, str]:
    """Each expression of alert rules and dashboard by the name of the rule or panel."""
    found = dict(re.findall(r"- alert: (\w+)\n\s+expr: (.+)", ALERTS.read_text()))
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found[variable["name"]] = variable["definition"]
    return found


def wrong(expression: str) -> list[str]:
    """Names in an expression that no scrape has: metrics, and labels of the metric that they select."""
    found = []
    labels: set[str] = set()
    for metric, selector in _SELECTED.findall(expression):
        known = ON_PAGE.get(metric)
        if known is None:
            found.append(metric)
            continue
        labels.update(known)
        found += [label for label in re.findall(r"(\w+)\s*(?:=|!)", selector) if label not in known]
    for words in re.findall(r"\b(?:by|on|without) \(([^)]*)\)", expression):
        found += [label for label in re.split(r",\s*", words) if label not in labels]
    return found


@pytest.mark.parametrize("name", expressions())
def test_expression_names_metrics_and_labels_that_there_are(name: str) -> None:
    expression = expressions()[name]
    assert _METRIC.search(expression)
    assert wrong(expression) == []


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("kohort_exporter_upp == 0", ["kohort_exporter_upp"]),
        ("kohort_exporter_reads > 0", ["kohort_exporter_reads"]),
        ('kohort_exporter_up{group="g"}', ["group"]),
        ("sum by (cluster_name, topic) (kafka_consumergroup_group_sum_lag)", ["topic"]),
    ],
)
def test_wrong_expression_is_noticed(expression: str, what: list[str]) -> None:
    assert wrong(expression) == what


def test_labels_of_legends_and_texts_are_there() -> None:
    legends = re.findall(r"\{\{(\w+)\}\}", DASHBOARD.read_text())
    texts = re.findall(r"\$labels\.(\w+)", ALERTS.read_text())
    known = {label for labels in ON_PAGE.values() for label in labels}
    assert legends and texts and set(legends) | set(texts) <= known


def test_page_has_every_metric_with_its_labels() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (`cluster_name`.*) \|$", EXPORTER_PAGE.read_text(), re.MULTILINE)
    assert {name: tuple(re.findall(r"`(\w+)`", labels)) for name, _, labels in rows} == ON_PAGE
    assert {name.removesuffix("_total"): text for name, text, _ in rows} == {
        name: text for name, (text, _) in METRICS.items()
    }


def test_pages_have_every_cause_status_and_reason() -> None:
    text = PAGE.read_text()
    rows = dict(re.findall(r"^\| `([\w ]+)` \| (.+) \|$", text, re.MULTILINE))
    assert {cause: rows.get(cause) for cause in CAUSES} == dict(CAUSES)
    assert {status.name for status in LagStatus} <= rows.keys()
    assert [reason for reason in REASONS if f"`{reason}`" not in EXPORTER_PAGE.read_text()] == []


def test_numbers_of_statuses_in_alerts_are_theirs() -> None:
    """An expression that compares a status compares it with a number."""
    compared = re.findall(r"- alert: (\w+)\n\s+expr: .*_status\)? == (\d)", ALERTS.read_text())
    assert dict(compared) == {
        "KafkaGroupCannotContinue": str(int(LagStatus.ERR)),
        "KafkaGroupStopped": str(int(LagStatus.STOP)),
        "KafkaGroupStalled": str(int(LagStatus.STALL)),
        "KafkaGroupFallsBehind": str(int(LagStatus.WARN)),
    }
