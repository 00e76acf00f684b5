"""Builds Fetch requests for every version, by topic name or id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kohort.client.consumer.subscription import Position
from kohort.client.net.cluster import Cluster, Versioned
from kohort.client.settings import ConsumerConfig
from kohort.errors import ErrorCode
from kohort.ids import TopicPartition
from kohort.wire.data import FetchRequest

FETCH_LANE = "fetch"
TOPIC_IDS_SINCE = 13
_LEADER_EPOCHS_SINCE, _FETCHED_EPOCHS_SINCE, _RACKS_SINCE = 9, 12, 11

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


def fetch_request(
    cluster: Cluster, config: ConsumerConfig, entries: Sequence[FetchEntry], max_bytes: int | None = None
) -> Versioned:
    """A Fetch for these partitions, outside a fetch session; topics by id where all ids are known.

    Args:
        cluster: For topic ids and leader epochs.
        config: Waits, limits, isolation, rack.
        entries: What to fetch; brokers fill the answer in this order.
        max_bytes: Of the whole answer; None: `fetch_max_bytes`.
    """

    def build(version: int) -> FetchRequest:
        topics: dict[str, Any] = {}
        for entry in entries:
            add_partition(cluster, topics, entry, version)
        request = bare_request(config, version)
        request.topics = list(topics.values())
        if max_bytes is not None:
            request.max_bytes = max_bytes
        return request

    return Versioned(FetchRequest, build, None if by_id_possible(cluster, entries) else TOPIC_IDS_SINCE - 1)


def by_id_possible(cluster: Cluster, entries: Sequence[FetchEntry]) -> bool:
    """Whether the ids of all topics are known."""
    return all(cluster.metadata.topic_id(topic).int for topic in {entry.partition.topic for entry in entries})


def bare_request(config: ConsumerConfig, version: int) -> FetchRequest:
    """A Fetch that names no partition yet."""
    request = FetchRequest(
        max_wait_ms=config.fetch_max_wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        isolation_level=int(config.isolation_level == "read_committed"),
    )
    if version >= _RACKS_SINCE:
        request.rack_id = config.client_rack
    return request


def add_partition(cluster: Cluster, topics: dict[str, Any], entry: FetchEntry, version: int) -> None:
    """Add a partition to the topics of a request."""
    topic_type = FetchRequest.FetchTopic
    name = entry.partition.topic
    topic = topics.get(name)
    if topic is None:
        by_id = version >= TOPIC_IDS_SINCE
        topic = topics[name] = topic_type(topic_id=cluster.metadata.topic_id(name)) if by_id else topic_type(topic=name)
    part = topic_type.FetchPartition(
        partition=entry.partition.partition, fetch_offset=entry.position.offset, partition_max_bytes=entry.max_bytes
    )
    if version >= _LEADER_EPOCHS_SINCE:
        info = cluster.metadata.partition(entry.partition)
        part.current_leader_epoch = -1 if info is None else info.leader_epoch
    if version >= _FETCHED_EPOCHS_SINCE:
        part.last_fetched_epoch = entry.position.leader_epoch
    topic.partitions.append(part)
