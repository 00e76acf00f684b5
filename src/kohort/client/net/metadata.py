"""The client's metadata cache: brokers, topics, leaders. Values only."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from kohort.client.net.connection import Address
from kohort.errors import ErrorCode
from kohort.ids import TopicPartition
from kohort.wire.discovery import MetadataResponse

NO_TOPIC_ID = uuid.UUID(int=0)
OLDER_EPOCH_MS = 5_000
"""A leader epoch below the known one is that of a broker that is behind, and ignored. After this long without any
other, the partition is taken to begin anew: brokers without topic ids do not tell that a topic was created again, and a
restored backup has its ids. All requests with the known epoch would be refused for ever."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker of the cluster."""

    id: int
    address: Address
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition's leader and replicas. `leader` is -1 when the partition has none now."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic, or why it is not available (`error`)."""

    name: str
    topic_id: uuid.UUID = NO_TOPIC_ID
    internal: bool = False
    partitions: dict[int, PartitionInfo] = field(default_factory=dict)
    error: ErrorCode = ErrorCode.NONE


@dataclass(slots=True)
class Metadata:
    """The state of the cluster as merged from Metadata responses: brokers, topics and leaders.

    Attributes:
        updates: The number of merged responses; a higher number shows a change.
        complete: Whether the last response covered all topics of the cluster.
    """

    cluster_id: str | None = None
    controller: int = -1
    brokers: dict[int, BrokerInfo] = field(default_factory=dict)
    topics: dict[str, TopicInfo] = field(default_factory=dict)
    topic_names: dict[uuid.UUID, str] = field(default_factory=dict)
    updates: int = 0
    updated_ms: float = float("-inf")
    complete: bool = False
    _older_since_ms: dict[TopicPartition, float] = field(default_factory=dict)

    def leader(self, partition: TopicPartition) -> int:
        """Return the leader's node id, -1 when unknown."""
        topic = self.topics.get(partition.topic)
        info = None if topic is None else topic.partitions.get(partition.partition)
        return -1 if info is None else info.leader

    def partition(self, partition: TopicPartition) -> PartitionInfo | None:
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.partitions.get(partition.partition)

    def partitions_of(self, topic: str) -> list[int]:
        """Return the sorted partition numbers; empty when the topic is unknown."""
        info = self.topics.get(topic)
        return [] if info is None else sorted(info.partitions)

    def topic_id(self, topic: str) -> uuid.UUID:
        info = self.topics.get(topic)
        return NO_TOPIC_ID if info is None else info.topic_id

    def expected_identity(self, node: int, address: object) -> tuple[str, int] | None:
        """Return the cluster id and broker id that the broker at an address should have; None if unknown."""
        broker, cluster_id = self.brokers.get(node), self.cluster_id
        return None if broker is None or broker.address != address or cluster_id is None else (cluster_id, node)

    def forget_brokers(self) -> None:
        """Forget the brokers' addresses; the topics stay until the next response."""
        self.cluster_id, self.controller, self.brokers = None, -1, {}

    def merge(self, answer: MetadataResponse, asked: Iterable[str] | None, now_ms: float) -> None:
        """Merge a MetadataResponse for the requested topics (None: all)."""
        self.cluster_id = answer.cluster_id or self.cluster_id
        self.controller = answer.controller_id
        self.brokers = {
            broker.node_id: BrokerInfo(broker.node_id, Address(broker.host, broker.port), broker.rack)
            for broker in answer.brokers
        }
        updated = {
            topic.name: self._topic_info(topic.name, topic, now_ms) for topic in answer.topics if topic.name is not None
        }
        if asked is None:
            self.topics = updated
        else:
            self.topics.update(updated)
        self.complete = asked is None
        self.topic_names = {info.topic_id: name for name, info in self.topics.items() if info.topic_id != NO_TOPIC_ID}
        self.updates += 1
        self.updated_ms = now_ms

    def _topic_info(self, name: str, topic: MetadataResponse.MetadataResponseTopic, now_ms: float) -> TopicInfo:
        before = self.topics.get(name)
        same = before is not None and before.topic_id == topic.topic_id
        partitions = {}
        for part in topic.partitions:
            info = PartitionInfo(
                part.leader_id,
                part.leader_epoch,
                tuple(part.replica_nodes),
                tuple(part.isr_nodes),
                tuple(part.offline_replicas),
                ErrorCode.of(part.error_code),
            )
            old = before.partitions.get(part.partition_index) if same and before is not None else None
            partitions[part.partition_index] = self._newest(
                TopicPartition(name, part.partition_index), old, info, now_ms
            )
        error = ErrorCode.of(topic.error_code)
        if (
            error in (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_SERVER_ERROR)
            and before is not None
            and not partitions
        ):
            partitions = before.partitions
        return TopicInfo(name, topic.topic_id, topic.is_internal, partitions, error)

    def _newest(
        self, partition: TopicPartition, old: PartitionInfo | None, new: PartitionInfo, now_ms: float
    ) -> PartitionInfo:
        """Return a partition's known metadata instead of the response's, if the response has an older leader epoch.

        A broker may be behind (KIP-320). When the older epoch was reported for `OLDER_EPOCH_MS`, it is accepted.
        """
        if old is not None and 0 <= new.leader_epoch < old.leader_epoch:
            since_ms = self._older_since_ms.setdefault(partition, now_ms)
            if now_ms - since_ms < OLDER_EPOCH_MS:
                return old
        self._older_since_ms.pop(partition, None)
        return new
