"""Builds Fetch requests in the layouts of all versions, by topic name and id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kohort.client.consumer.subscription import Position
from kohort.client.net.cluster import Between, Cluster
from kohort.client.settings import ConsumerConfig
from kohort.errors import ErrorCode
from kohort.ids import TopicPartition
from kohort.wire.data import FetchRequest, FetchResponse

FETCH_LANE = "fetch"
HIGHEST_BY_NAME = 12
"""From version 13 on, Fetch names topics by id only."""

MOVED = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.LEADER_NOT_AVAILABLE,
)
"""Codes after which metadata is asked for and the fetch tried again."""


@dataclass(frozen=True, slots=True)
class FetchEntry:
    """One partition of a fetch."""

    partition: TopicPartition
    position: Position
    max_bytes: int


Topics: TypeAlias = dict[str, FetchRequest.FetchTopic]
"""The topics of a request, by name."""


def fetch_request(
    cluster: Cluster, config: ConsumerConfig, entries: Sequence[FetchEntry], max_bytes: int | None = None
) -> Between[FetchResponse]:
    """A Fetch for these partitions, outside a fetch session; topics by id where all ids are known.

    Args:
        cluster: For topic ids and leader epochs.
        config: Waits, limits, isolation, rack.
        entries: What to fetch; brokers fill the answer in this order.
        max_bytes: Of the whole answer; None: `fetch_max_bytes`.
    """
    topics: Topics = {}
    for entry in entries:
        add_partition(cluster, topics, entry)
    request = bare_request(config, topics)
    if max_bytes is not None:
        request.max_bytes = max_bytes
    return Between(request, highest=None if by_id_possible(cluster, entries) else HIGHEST_BY_NAME)


def by_id_possible(cluster: Cluster, entries: Sequence[FetchEntry]) -> bool:
    """Whether the ids of all topics are known."""
    return all(cluster.metadata.topic_id(topic).int for topic in {entry.partition.topic for entry in entries})


def bare_request(config: ConsumerConfig, topics: Topics) -> FetchRequest:
    """A Fetch of these topics, outside a fetch session."""
    return FetchRequest(
        max_wait_ms=config.fetch_max_wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        isolation_level=int(config.isolation_level == "read_committed"),
        topics=list(topics.values()),
        rack_id=config.client_rack,
    )


def add_partition(cluster: Cluster, topics: Topics, entry: FetchEntry) -> None:
    """Add a partition to the topics of a request."""
    name = entry.partition.topic
    topic = topics.get(name)
    if topic is None:
        topic = topics[name] = FetchRequest.FetchTopic(topic=name, topic_id=cluster.metadata.topic_id(name))
    info = cluster.metadata.partition(entry.partition)
    part = FetchRequest.FetchPartition(
        partition=entry.partition.partition,
        current_leader_epoch=-1 if info is None else info.leader_epoch,
        fetch_offset=entry.position.offset,
        last_fetched_epoch=entry.position.leader_epoch,
        partition_max_bytes=entry.max_bytes,
    )
    topic.partitions.append(part)
