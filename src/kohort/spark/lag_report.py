"""What a query's progress shows of its lag. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kohort.ids import TopicPartition


def lag_report(
    positions: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    generation: int,
    group: str | None = None,
) -> dict[str, Any]:
    """Where a query is and how far its partitions go, as plain JSON.

    Args:
        positions: next offsets to read; a partition without one has nothing to read.
        ends: of the partitions held.
        generation: of the group; -1 without one.
        group: its name; None without one.
    """
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for tp in sorted(ends):
        position = positions.get(tp, ends[tp])
        topics.setdefault(tp.topic, {})[str(tp.partition)] = {
            "position": position,
            "end": ends[tp],
            "lag": max(0, ends[tp] - position),
        }
    lag = sum(one["lag"] for numbers in topics.values() for one in numbers.values())
    return {"group": group, "generation": generation, "lag": lag, "topics": topics}
