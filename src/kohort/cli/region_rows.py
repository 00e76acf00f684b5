"""What `kohort region describe` knows beside the control plane's word: Spark queries, and how far groups are behind."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from kohort.client.admin.admin import Admin
    from kohort.region.messages import RegionSeen
    from kohort.region.topic import Saved

OF_QUERY = ("region", "query", "batch", "epoch", "records", "reads", "state")
OF_GROUP = ("region", "group", "partitions", "lag", "unknown")


def query_rows(name: str, saved: Saved) -> list[dict[str, Any]]:
    """The Spark queries of the last complete sequence, and those whose state waits for them."""
    from kohort.spark.region.saved import SavedQuery  # needs no Spark

    given = saved.contributions.get(saved.sequence, {})
    rows = []
    for member, state in sorted(saved.states().items()):
        try:
            query = SavedQuery.from_bytes(state)
        except InvalidInputError:
            continue  # a member of another kind
        spans = given[member].spans if member in given else ()
        rows.append(
            {
                "region": name,
                "query": member,
                "batch": query.batch,
                "epoch": query.epoch,
                "records": sum(span.end - span.begin for span in spans),
                "reads": list(query.sources),
                "state": list(query.operators),
            }
        )
    return rows


def lag_rows(admin: Admin, seen: RegionSeen) -> list[dict[str, Any]]:
    """How many records each group has before it since the last complete sequence.

    Raises:
        KafkaError: the partitions' ends can't be had.
    """
    reached: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
    for one in seen.positions:
        reached[one.group][TopicPartition(one.topic, one.partition)] = one.offset
    every = {partition for offsets in reached.values() for partition in offsets}
    ends = admin.list_offsets(dict.fromkeys(sorted(every), "latest"))
    rows = []
    for group, offsets in sorted(reached.items()):
        known = {at: ends.result(at).offset for at in offsets if at not in ends.errors}
        rows.append(
            {
                "region": seen.name,
                "group": group,
                "partitions": len(offsets),
                "lag": sum(max(0, end - offsets[at]) for at, end in known.items()),
                "unknown": [str(at) for at in sorted(offsets) if at not in known],
            }
        )
    return rows
