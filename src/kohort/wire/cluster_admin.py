"""Messages of administration: quorum, features, telemetry, disks, elections, reassignments, quotas.

Source: Kafka 4.4, message schemas.
"""

from __future__ import annotations

from uuid import UUID

from kohort.wire.message import Message, RequestMessage
from kohort.wire.schema import Struct, array, binary, boolean, float64, int8, int16, int32, int64, string, uint16, uuid


class DescribeQuorumRequest(RequestMessage["DescribeQuorumResponse"], key=55, versions=(0, 2), flexible=0):
    """A request for the state of the controllers' quorum."""

    class TopicData(Struct):
        """A topic whose quorum is asked for, in Kafka the metadata topic."""

        class PartitionData(Struct):
            """A partition, by its index."""

            partition_index: int = int32()

        topic_name: str = string()
        partitions: list[PartitionData] = array(PartitionData)

    PartitionData = TopicData.PartitionData

    topics: list[TopicData] = array(TopicData)


class DescribeQuorumResponse(Message, key=55, versions=(0, 2), flexible=0):
    """Voters and observers of the controllers' quorum, with their log ends."""

    class TopicData(Struct):
        """One topic of the quorum, with its partitions."""

        class PartitionData(Struct):
            """A partition's leader and high-water mark, with its voters and observers."""

            class ReplicaState(Struct):
                """How far one replica has read, and when it last did; -1 if the leader does not know."""

                replica_id: int = int32()
                replica_directory_id: UUID = uuid(since=2)
                log_end_offset: int = int64()
                last_fetch_timestamp: int = int64(since=1, default=-1, ignorable=True)
                last_caught_up_timestamp: int = int64(since=1, default=-1, ignorable=True)

            partition_index: int = int32()
            error_code: int = int16()
            error_message: str | None = string(since=2, nullable=True, ignorable=True)
            leader_id: int = int32()
            leader_epoch: int = int32()
            high_watermark: int = int64()
            current_voters: list[ReplicaState] = array(ReplicaState)
            observers: list[ReplicaState] = array(ReplicaState)

        topic_name: str = string()
        partitions: list[PartitionData] = array(PartitionData)

    class Node(Struct):
        """A node of the quorum, with its addresses."""

        class Listener(Struct):
            """An address of a node, by the listener's name."""

            name: str = string()
            host: str = string()
            port: int = uint16()

        node_id: int = int32()
        listeners: list[Listener] = array(Listener)

    PartitionData = TopicData.PartitionData
    ReplicaState = TopicData.PartitionData.ReplicaState
    Listener = Node.Listener

    error_code: int = int16()
    error_message: str | None = string(since=2, nullable=True, ignorable=True)
    topics: list[TopicData] = array(TopicData)
    nodes: list[Node] = array(Node, since=2)


class UpdateFeaturesRequest(RequestMessage["UpdateFeaturesResponse"], key=57, versions=(0, 2), flexible=0):
    """A request to raise or lower finalized feature levels."""

    class FeatureUpdateKey(Struct):
        """The new version level of one feature; below 1 deletes the feature."""

        feature: str = string()
        max_version_level: int = int16()
        allow_downgrade: bool = boolean(until=0, ignorable=True)
        upgrade_type: int = int8(since=1, default=1, ignorable=True)

    timeout_ms: int = int32(default=60000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean(since=1)


class UpdateFeaturesResponse(Message, key=57, versions=(0, 2), flexible=0):
    """The response to UpdateFeatures: an error code for the request, and until version 1 one for each feature."""

    class UpdatableFeatureResult(Struct):
        """One feature in the response to UpdateFeatures: its error code and message."""

        feature: str = string()
        error_code: int = int16()
        error_message: str | None = string(nullable=True)

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, until=1, ignorable=True)


class GetTelemetrySubscriptionsRequest(
    RequestMessage["GetTelemetrySubscriptionsResponse"], key=71, versions=(0, 0), flexible=0
):
    """A request for the metrics that the broker subscribes to (KIP-714)."""

    client_instance_id: UUID = uuid()


class GetTelemetrySubscriptionsResponse(Message, key=71, versions=(0, 0), flexible=0):
    """The metrics wanted, how often, and in which compression."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    client_instance_id: UUID = uuid()
    subscription_id: int = int32()
    accepted_compression_types: list[int] = array(int8)
    push_interval_ms: int = int32()
    telemetry_max_bytes: int = int32()
    delta_temporality: bool = boolean()
    requested_metrics: list[str] = array(string)


class PushTelemetryRequest(RequestMessage["PushTelemetryResponse"], key=72, versions=(0, 0), flexible=0):
    """Client metrics that a client sends to the broker (KIP-714)."""

    client_instance_id: UUID = uuid()
    subscription_id: int = int32()
    terminating: bool = boolean()
    compression_type: int = int8()
    metrics: bytes = binary()


class PushTelemetryResponse(Message, key=72, versions=(0, 0), flexible=0):
    """The response to PushTelemetry: an error code."""

    throttle_time_ms: int = int32()
    error_code: int = int16()


class DescribeLogDirsRequest(RequestMessage["DescribeLogDirsResponse"], key=35, versions=(1, 5), flexible=2):
    """A request for log directories and the sizes of partitions in them; null asks for all."""

    class DescribableLogDirTopic(Struct):
        """A topic, with the partitions to describe."""

        topic: str = string()
        partitions: list[int] = array(int32)

    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable=True)


class DescribeLogDirsResponse(Message, key=35, versions=(1, 5), flexible=2):
    """Log directories, their space, and the sizes of their partitions."""

    class DescribeLogDirsResult(Struct):
        """One log folder: its partitions and the volume's bytes, or why it can't be read."""

        class DescribeLogDirsTopic(Struct):
            """The partitions of one topic in the folder."""

            class DescribeLogDirsPartition(Struct):
                """The bytes of a partition's log, and how far a replica that moves between folders is behind."""

                partition_index: int = int32()
                partition_size: int = int64()
                offset_lag: int = int64()
                is_future_key: bool = boolean()

            name: str = string()
            partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)

        error_code: int = int16()
        log_dir: str = string()
        topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
        total_bytes: int = int64(since=4, default=-1, ignorable=True)
        usable_bytes: int = int64(since=4, default=-1, ignorable=True)
        is_cordoned: bool = boolean(since=5, ignorable=True)

    DescribeLogDirsTopic = DescribeLogDirsResult.DescribeLogDirsTopic
    DescribeLogDirsPartition = DescribeLogDirsResult.DescribeLogDirsTopic.DescribeLogDirsPartition

    throttle_time_ms: int = int32()
    error_code: int = int16(since=3, ignorable=True)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)


class ElectLeadersRequest(RequestMessage["ElectLeadersResponse"], key=43, versions=(0, 2), flexible=2):
    """A request for leader elections."""

    class TopicPartitions(Struct):
        """A topic, with the partitions that shall elect a leader."""

        topic: str = string()
        partitions: list[int] = array(int32)

    election_type: int = int8(since=1)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable=True)
    timeout_ms: int = int32(default=60000)


class ElectLeadersResponse(Message, key=43, versions=(0, 2), flexible=2):
    """The response to ElectLeaders: an error code for each partition, by topic."""

    class ReplicaElectionResult(Struct):
        """One topic in the response to ElectLeaders, with the result for each partition."""

        class PartitionResult(Struct):
            """One partition in the response to ElectLeaders: its error code and message."""

            partition_id: int = int32()
            error_code: int = int16()
            error_message: str | None = string(nullable=True)

        topic: str = string()
        partition_result: list[PartitionResult] = array(PartitionResult)

    PartitionResult = ReplicaElectionResult.PartitionResult

    throttle_time_ms: int = int32()
    error_code: int = int16(since=1)
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)


class AlterPartitionReassignmentsRequest(
    RequestMessage["AlterPartitionReassignmentsResponse"], key=45, versions=(0, 1), flexible=0
):
    """A request to reassign partitions to other replicas, or to cancel a reassignment."""

    class ReassignableTopic(Struct):
        """A topic, with the partitions to reassign."""

        class ReassignablePartition(Struct):
            """The brokers that shall hold a partition's replicas. Null cancels a reassignment under way."""

            partition_index: int = int32()
            replicas: list[int] | None = array(int32, nullable=True, default=None)

        name: str = string()
        partitions: list[ReassignablePartition] = array(ReassignablePartition)

    ReassignablePartition = ReassignableTopic.ReassignablePartition

    timeout_ms: int = int32(default=60000)
    allow_replication_factor_change: bool = boolean(since=1, default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic)


class AlterPartitionReassignmentsResponse(Message, key=45, versions=(0, 1), flexible=0):
    """The response to AlterPartitionReassignments: an error code for each partition, by topic."""

    class ReassignableTopicResponse(Struct):
        """One topic in the response to AlterPartitionReassignments, with the result for each partition."""

        class ReassignablePartitionResponse(Struct):
            """One partition in the response to AlterPartitionReassignments: its error code and message."""

            partition_index: int = int32()
            error_code: int = int16()
            error_message: str | None = string(nullable=True)

        name: str = string()
        partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse)

    ReassignablePartitionResponse = ReassignableTopicResponse.ReassignablePartitionResponse

    throttle_time_ms: int = int32()
    allow_replication_factor_change: bool = boolean(since=1, default=True, ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse)


class ListPartitionReassignmentsRequest(
    RequestMessage["ListPartitionReassignmentsResponse"], key=46, versions=(0, 0), flexible=0
):
    """A request for the reassignments under way."""

    class ListPartitionReassignmentsTopics(Struct):
        """A topic, with the partitions whose reassignments are asked for."""

        name: str = string()
        partition_indexes: list[int] = array(int32)

    timeout_ms: int = int32(default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, nullable=True, default=None
    )


class ListPartitionReassignmentsResponse(Message, key=46, versions=(0, 0), flexible=0):
    """The reassignments under way."""

    class OngoingTopicReassignment(Struct):
        """The reassignments under way in one topic."""

        class OngoingPartitionReassignment(Struct):
            """The replicas of a partition that moves, and those that are added and removed."""

            partition_index: int = int32()
            replicas: list[int] = array(int32)
            adding_replicas: list[int] = array(int32)
            removing_replicas: list[int] = array(int32)

        name: str = string()
        partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)

    OngoingPartitionReassignment = OngoingTopicReassignment.OngoingPartitionReassignment

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)


class ListConfigResourcesRequest(RequestMessage["ListConfigResourcesResponse"], key=74, versions=(0, 1), flexible=0):
    """A request for the existing configuration resources."""

    resource_types: list[int] = array(int8, since=1)


class ListConfigResourcesResponse(Message, key=74, versions=(0, 1), flexible=0):
    """The configuration resources by type and name."""

    class ConfigResource(Struct):
        """A resource that has configurations, by its name and type."""

        resource_name: str = string()
        resource_type: int = int8(since=1, default=16, ignorable=True)

    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: list[ConfigResource] = array(ConfigResource)


class DescribeClientQuotasRequest(RequestMessage["DescribeClientQuotasResponse"], key=48, versions=(0, 1), flexible=1):
    """A request for quotas by entity."""

    class ComponentData(Struct):
        """A condition on one part of the entity. `match_type`: 0 the name in `match`, 1 the default, 2 any name."""

        entity_type: str = string()
        match_type: int = int8()
        match: str | None = string(nullable=True)

    components: list[ComponentData] = array(ComponentData)
    strict: bool = boolean()


class DescribeClientQuotasResponse(Message, key=48, versions=(0, 1), flexible=1):
    """Quotas by entity."""

    class EntryData(Struct):
        """An entity, with the values of its quotas."""

        class EntityData(Struct):
            """One part of the entity that the quotas apply to: user, client-id or ip, and its name.

            Null names the default.
            """

            entity_type: str = string()
            entity_name: str | None = string(nullable=True)

        class ValueData(Struct):
            """The value of one quota, by the quota's key."""

            key: str = string()
            value: float = float64()

        entity: list[EntityData] = array(EntityData)
        values: list[ValueData] = array(ValueData)

    EntityData = EntryData.EntityData
    ValueData = EntryData.ValueData

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    entries: list[EntryData] | None = array(EntryData, nullable=True)


class AlterClientQuotasRequest(RequestMessage["AlterClientQuotasResponse"], key=49, versions=(0, 1), flexible=1):
    """A request to set or remove quotas."""

    class EntryData(Struct):
        """An entity, with the changes of its quotas."""

        EntityData = DescribeClientQuotasResponse.EntityData

        class OpData(Struct):
            """The new value of one quota, or its removal."""

            key: str = string()
            value: float = float64()
            remove: bool = boolean()

        entity: list[DescribeClientQuotasResponse.EntryData.EntityData] = array(EntityData)
        ops: list[OpData] = array(OpData)

    EntityData = EntryData.EntityData
    OpData = EntryData.OpData

    entries: list[EntryData] = array(EntryData)
    validate_only: bool = boolean()


class AlterClientQuotasResponse(Message, key=49, versions=(0, 1), flexible=1):
    """The response to AlterClientQuotas: an error code for each quota entity."""

    class EntryData(Struct):
        """One quota entity in the response to AlterClientQuotas: its error code and message."""

        EntityData = DescribeClientQuotasResponse.EntityData

        error_code: int = int16()
        error_message: str | None = string(nullable=True)
        entity: list[DescribeClientQuotasResponse.EntryData.EntityData] = array(EntityData)

    EntityData = EntryData.EntityData

    throttle_time_ms: int = int32()
    entries: list[EntryData] = array(EntryData)


class AlterReplicaLogDirsRequest(RequestMessage["AlterReplicaLogDirsResponse"], key=34, versions=(1, 2), flexible=2):
    """A request to move replicas to other log folders of the same broker."""

    class AlterReplicaLogDir(Struct):
        """A log folder, with the replicas that shall move into it."""

        class AlterReplicaLogDirTopic(Struct):
            """A topic, with the partitions whose replicas shall move."""

            name: str = string()
            partitions: list[int] = array(int32)

        path: str = string()
        topics: list[AlterReplicaLogDirTopic] = array(AlterReplicaLogDirTopic)

    AlterReplicaLogDirTopic = AlterReplicaLogDir.AlterReplicaLogDirTopic

    dirs: list[AlterReplicaLogDir] = array(AlterReplicaLogDir)


class AlterReplicaLogDirsResponse(Message, key=34, versions=(1, 2), flexible=2):
    """The response to AlterReplicaLogDirs: an error code for each partition, by topic."""

    class AlterReplicaLogDirTopicResult(Struct):
        """One topic in the response to AlterReplicaLogDirs, with the result for each partition."""

        class AlterReplicaLogDirPartitionResult(Struct):
            """One partition in the response to AlterReplicaLogDirs: its error code."""

            partition_index: int = int32()
            error_code: int = int16()

        topic_name: str = string()
        partitions: list[AlterReplicaLogDirPartitionResult] = array(AlterReplicaLogDirPartitionResult)

    AlterReplicaLogDirPartitionResult = AlterReplicaLogDirTopicResult.AlterReplicaLogDirPartitionResult

    throttle_time_ms: int = int32()
    results: list[AlterReplicaLogDirTopicResult] = array(AlterReplicaLogDirTopicResult)
