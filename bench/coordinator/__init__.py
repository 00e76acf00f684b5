"""The group coordinator under load, beside Apache Kafka's: joins, downtime, heartbeats, commits, churn, SIGKILL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from bench.harness import Figure, Options


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """All figures of the coordinator; see `bench.coordinator.comparisons`."""
    from bench.coordinator import comparisons

    return comparisons.measurements(options, console)
