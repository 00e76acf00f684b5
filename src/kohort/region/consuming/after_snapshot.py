"""The start of a region behind a table: a table that a region has written, and the records after it, are one table.

A snapshot with rows of an `IcebergTable` says where its sequence ends, in the property `kohort.offsets` of its summary.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition

_OFFSETS: Final = "kohort.offsets"
_SEQUENCE: Final = "kohort.sequence"
_REGION: Final = "kohort.region-id"


@dataclass(frozen=True)
class AfterSnapshot:
    """A start position for the option `start`: behind the records that an Iceberg table already has.

    Attributes:
        offsets: the next offset of each partition.
    """

    offsets: Mapping[TopicPartition, int]


def after(snapshot: Any, *, group: str | None = None) -> AfterSnapshot:
    """Return the offsets behind the records that an Iceberg table already has, for the option `start`.

    A region stores its offsets in each snapshot with which it publishes rows. Of each region that has written the
    table, the newest published snapshot counts that is `snapshot` or an ancestor of it.

    Args:
        snapshot: a table of pyiceberg, for its current snapshot; or one snapshot, which a region has written.
        group: the group whose offsets are used; None: all groups, if no two have read one partition.

    Raises:
        InvalidInputError: no region has written these snapshots; the newest one of a region has no offsets, as after a
            reset that emptied the table; or two groups or regions have read one partition.
    """
    found: dict[TopicPartition, int] = {}
    seen = set[str]()
    for summary in _summaries(snapshot):
        region = summary.get(_REGION)
        if region is None or region in seen or _SEQUENCE not in summary:  # a region's first snapshot has no sequence
            continue
        seen.add(region)
        if not (text := summary.get(_OFFSETS)):
            raise InvalidInputError(
                f"Sequence {summary[_SEQUENCE]} of region {region} has no offsets in its snapshot: the "
                "table was emptied by it, or the offsets were too long. Begin with start='beginning', or a time"
            )
        for name, topics in json.loads(text).items():
            if group is not None and name != group:
                continue
            for topic, partitions in topics.items():
                for partition, offset in partitions.items():
                    at = TopicPartition(topic, int(partition))
                    if at in found:
                        raise InvalidInputError(
                            f"Two groups or regions have written the records of {at} into the table: give group=…, or "
                            "a table of one region"
                        )
                    found[at] = int(offset)
    if not found:
        who = "No region" if group is None else f"No region with the group {group!r}"
        raise InvalidInputError(f"{who} has written these snapshots, or they have expired: none has {_OFFSETS}")
    return AfterSnapshot(found)


def _summaries(snapshot: Any) -> Iterator[Mapping[str, str]]:
    """Yield the summary properties of one given snapshot, or of a table's snapshots from the current one back."""
    is_table = hasattr(snapshot, "current_snapshot")
    at = snapshot.current_snapshot() if is_table else snapshot
    while at is not None:
        yield {} if at.summary is None else at.summary.additional_properties
        has_parent = is_table and at.parent_snapshot_id is not None
        at = snapshot.snapshot_by_id(at.parent_snapshot_id) if has_parent else None
