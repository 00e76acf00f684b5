"""Where a sequence ends, as a table's snapshot says it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from kohort.region.records import Position

OFFSETS_CHARS_MAX: Final = 16_384
"""Limit on the offsets in a snapshot: Iceberg's metadata has the summaries of all snapshots, and each commit writes it
anew. About 1,000 partitions fit."""


def offsets_text(positions: Iterable[Position]) -> str:
    """Return next offsets as JSON, by group, topic and partition; empty if there are none, or too many."""
    groups: dict[str, dict[str, dict[str, int]]] = {}
    for position in positions:
        topics = groups.setdefault(position.group, {})
        topics.setdefault(position.topic, {})[str(position.partition)] = position.offset
    text = json.dumps(groups, separators=(",", ":")) if groups else ""
    return text if len(text) <= OFFSETS_CHARS_MAX else ""
