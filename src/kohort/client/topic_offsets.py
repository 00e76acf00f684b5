"""What partitions there are and where they begin and end. Coroutines over a Cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kohort.client.net.cluster import Cluster
from kohort.client.net.presence import there
from kohort.client.offset_requests import EARLIEST, LATEST, list_offsets
from kohort.client.offset_values import OffsetAndTimestamp
from kohort.ids import TopicPartition


async def beginning_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
) -> dict[TopicPartition, int]:
    """First offsets that can be read."""
    found = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), timeout_ms=timeout_ms)
    return {part: value.offset for part, value in found.items()}


async def end_offsets(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    timeout_ms: float | None = None,
    *,
    read_committed: bool = False,
) -> dict[TopicPartition, int]:
    """Offsets after the last one that can be read."""
    found = await list_offsets(
        cluster, dict.fromkeys(partitions, LATEST), read_committed=read_committed, timeout_ms=timeout_ms
    )
    return {part: value.offset for part, value in found.items()}


async def offsets_for_times(
    cluster: Cluster, times: Mapping[TopicPartition, int], timeout_ms: float | None = None
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """The first record at or after a time; None where there is none."""
    found = await list_offsets(cluster, times, timeout_ms=timeout_ms)
    return {part: value if value.offset >= 0 else None for part, value in found.items()}


async def partitions_of(
    cluster: Cluster, topics: Iterable[str], timeout_ms: float | None = None
) -> dict[str, list[int]]:
    """Partition numbers of topics, asked now; unknown topics are left out.

    Raises:
        KafkaError: a topic can't be seen for another reason than that it does not exist.
    """
    wanted = list(topics)
    found = await cluster.describe_topics(wanted, timeout_ms) if wanted else {}
    return {name: sorted(info.partitions) for name, info in there(found).items()}


async def topic_names(cluster: Cluster, timeout_ms: float | None = None) -> list[str]:
    """All topics, sorted; internal ones left out."""
    found = await cluster.describe_topics(None, timeout_ms)
    return sorted(name for name, info in found.items() if not info.internal)
