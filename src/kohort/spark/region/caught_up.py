"""When a job that runs now and then is done: all that was there when it began is published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kohort.region.messages import RegionSeen
from kohort.spark.catalog import Catalog
from kohort.spark.region.declared import Declared
from kohort.spark.region.pinned import query_of

Ends = Mapping[tuple[str, str, int], int]
"""Where partitions end, by group, topic and partition."""


def present_ends(queries: Iterable[Declared]) -> Ends:
    """Where the partitions that these queries read end now; of one that is pinned, its own alone.

    Raises:
        KafkaError: they can't be asked for.
    """
    ends: dict[tuple[str, str, int], int] = {}
    for query in queries:
        for _, options in query.sources:
            catalog = Catalog(options)
            try:
                found = catalog.ends(catalog.partitions(known=None))
            finally:
                catalog.close()
            ends |= {
                (str(options.group_id), at.topic, at.partition): end
                for at, end in found.items()
                if not query.queries or query_of(at.topic, at.partition, query.queries) == query.name
            }
    return ends


def caught_up(seen: RegionSeen, ends: Ends) -> bool:
    """Whether all up to there is in sequences that the sinks show."""
    at = {(one.group, one.topic, one.partition): one.offset for one in seen.positions}
    return seen.published >= seen.sequence and all(at.get(part, 0) >= end for part, end in ends.items())
