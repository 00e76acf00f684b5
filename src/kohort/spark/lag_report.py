"""What a query's progress shows of its lag and its place in the group. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kohort.ids import TopicPartition
from kohort.spark.rebalances import Standing


def lag_report(
    positions: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    generation: int,
    group: str | None,
    standing: Standing,
) -> dict[str, Any]:
    """Where a query is and how far its partitions go, as plain JSON.

    Args:
        positions: next offsets to read; a partition without one has nothing to read.
        ends: of the partitions held.
        generation: of the group; -1 without one.
        group: its name; None without one.
        standing: the query's, as a member.
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
    standstill_ms = None if standing.standstill_ms is None else round(standing.standstill_ms)
    return {
        "group": group,
        "member": standing.member_id,
        "generation": generation,
        "rebalances": standing.rebalances,
        "lastStandstillMs": standstill_ms,
        "lag": lag,
        "topics": topics,
    }
