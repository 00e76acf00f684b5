"""Metrics of a consumer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumerFigures:
    """Counters of a consumer since it was made, and the records it holds now.

    Attributes:
        lapses: How often polls returned nothing because the coordinator had not answered within its lease.
    """

    polls: int
    records: int
    fetches: int
    fetched_bytes: int
    commits: int
    rebalances: int
    lapses: int
    requests: int
    received_bytes: int
    kept_records: int
    kept_bytes: int
