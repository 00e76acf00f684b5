"""Coordinators over Kafka beside Kafka's own: latency, commits, cost of members and of proofs, take-over, loading."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from bench.harness import Figure, Options


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """All figures of coordinators over Kafka; see `bench.cluster.comparisons`."""
    from bench.cluster import comparisons

    return comparisons.measurements(options, console)
