"""What a consumer counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumerFigures:
    """Counters of a consumer since it was made, and what it keeps now.

    Attributes:
        lapses: How often nothing was handed out because the coordinator had not answered for the lease it told.
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
