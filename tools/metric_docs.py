"""Writes docs/metrics.md from the collectors of a broker, a coordinator and a region: `python -m tools.metric_docs`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prometheus_client import Metric

from kohort import Broker
from kohort.broker.metrics_exporter import Exporter
from kohort.cluster.metrics_exporter import CoordinatorExporter
from kohort.region.messages import RegionStatus
from kohort.region.metrics import RegionExporter

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
HEAD = """<!-- Written by tools/metric_docs.py from the exporters: change those, then run `make docs`. -->

# Metrics

Prometheus reads these from a broker, a coordinator or a region. The lag of groups is on another page: `kohort exporter`
serves it for any cluster ([exporter.md](exporter.md#prometheus)).

| process | option | property or argument |
|---|---|---|
| `kohort broker`, `kohort coordinator` | `--metrics-listen 127.0.0.1:9400` | `metrics.listen` |
| `kohort region serve NAME` | `--metrics-listen 127.0.0.1:9400` | `Region(metrics_listen="127.0.0.1:9400")` |

An address beyond loopback needs client certificates ([security.md](security.md#metrics-and-other-servers)). A counter
ends with `_total`. A histogram is given by its name; Prometheus has it as `_bucket`, `_sum` and `_count`.
"""
OF_REGION = (
    "Those of members are of the process that serves them. Others are of the control plane, if it runs there, and "
    "begin at 0 with its term."
)
TITLES = "| metric | kind | meaning | labels |\n|---|---|---|---|\n"
_KINDS = {"unknown": "untyped"}


def rows(metrics: Iterable[Metric]) -> list[str]:
    """Return a row for each metric."""
    found = []
    for metric in metrics:
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        labels = ", ".join(f"`{label}`" for label in getattr(metric, "_labelnames", ()))
        kind = _KINDS.get(metric.type, metric.type)
        found.append(f"| `{name}` | {kind} | {metric.documentation} | {labels} |")
    return sorted(found)


def page() -> str:
    """Return the page, with the metrics that a new broker and a region have."""
    with Broker() as broker:
        of_broker = rows(Exporter(broker.metrics).collect())
        of_coordinator = rows(CoordinatorExporter(broker.metrics, lambda: 0, list).collect())
    seen = RegionStatus("", "", 0, 0, 0, 0, (), (), {})
    of_region = rows(RegionExporter("", tuple, lambda: seen).collect())
    sections = (
        ("A broker", "A coordinator has these too.", of_broker),
        (
            "A coordinator",
            "For each of its shards, beside those of a broker.",
            sorted({*of_coordinator} - {*of_broker}),
        ),
        ("A region", OF_REGION, of_region),
    )
    texts = [f"\n## {title}\n\n{text}\n\n{TITLES}" + "\n".join(lines) + "\n" for title, text, lines in sections]
    return HEAD + "".join(texts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
