"""When a job that runs now and then is done: all that was there when it began is published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kohort.region.messages import RegionSeen
from kohort.spark.catalog import Catalog
from kohort.spark.options import SourceOptions

Ends = Mapping[tuple[str, str, int], int]
"""Where partitions end, by group, topic and partition."""


def present_ends(sources: Iterable[SourceOptions]) -> Ends:
    """Where the partitions that these sources read end now.

    Raises:
        KafkaError: they can't be asked for.
    """
    ends: dict[tuple[str, str, int], int] = {}
    for options in sources:
        catalog = Catalog(options)
        try:
            found = catalog.ends(catalog.partitions(known=None))
        finally:
            catalog.close()
        ends |= {(str(options.group_id), at.topic, at.partition): end for at, end in found.items()}
    return ends


def caught_up(seen: RegionSeen, ends: Ends) -> bool:
    """Whether all up to there is in sequences that the sinks show."""
    at = {(one.group, one.topic, one.partition): one.offset for one in seen.positions}
    return seen.published >= seen.sequence and all(at.get(part, 0) >= end for part, end in ends.items())
