"""Messages about the cluster: brokers, API versions, topics and configurations.

Source: Kafka 4.4, message schemas.
"""

from __future__ import annotations

from uuid import UUID

from kohort.wire.message import Message, RequestMessage
from kohort.wire.schema import Struct, array, boolean, int8, int16, int32, int64, string, struct, uuid


class MetadataRequest(RequestMessage["MetadataResponse"], key=3, versions=(0, 13), flexible=9):
    """A request for topics, their partitions and the brokers; a null list asks for all topics."""

    class MetadataRequestTopic(Struct):
        """A topic that is asked for, by name or by id."""

        topic_id: UUID = uuid(since=10, ignorable=True)
        name: str | None = string(null_since=10)

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, null_since=1)
    allow_auto_topic_creation: bool = boolean(since=4, default=True)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10)
    include_topic_authorized_operations: bool = boolean(since=8)


class MetadataResponse(Message, key=3, versions=(0, 13), flexible=9):
    """Brokers, the controller, and each topic's partitions with leader, replicas and in-sync replicas."""

    class MetadataResponseBroker(Struct):
        """The address and rack of one broker."""

        node_id: int = int32()
        host: str = string()
        port: int = int32()
        rack: str | None = string(since=1, nullable=True, default=None, ignorable=True)

    class MetadataResponseTopic(Struct):
        """A topic with its id and partitions, or why it can't be described."""

        class MetadataResponsePartition(Struct):
            """A partition's leader and epoch, with its replicas, those in sync and those offline."""

            error_code: int = int16()
            partition_index: int = int32()
            leader_id: int = int32()
            leader_epoch: int = int32(since=7, default=-1, ignorable=True)
            replica_nodes: list[int] = array(int32)
            isr_nodes: list[int] = array(int32)
            offline_replicas: list[int] = array(int32, since=5, ignorable=True)

        error_code: int = int16()
        name: str | None = string(null_since=12)
        topic_id: UUID = uuid(since=10, ignorable=True)
        is_internal: bool = boolean(since=1, ignorable=True)
        partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
        topic_authorized_operations: int = int32(since=8, default=-2147483648)

    MetadataResponsePartition = MetadataResponseTopic.MetadataResponsePartition

    throttle_time_ms: int = int32(since=3, ignorable=True)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string(since=2, nullable=True, default=None, ignorable=True)
    controller_id: int = int32(since=1, default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(since=8, until=10, default=-2147483648)
    error_code: int = int16(since=13, ignorable=True)


class ApiVersionsRequest(RequestMessage["ApiVersionsResponse"], key=18, versions=(0, 5), flexible=3):
    """The first request of most clients, for the supported APIs and versions.

    `client_process` is not Kafka's: kohort's clients send it to brokers on their own machine (`kohort.io.processes`).
    Its tag spells "kp" and is far above Kafka's tags, which are assigned consecutively. Brokers skip unknown tags.
    """

    client_software_name: str = string(since=3, ignorable=True)
    client_software_version: str = string(since=3, ignorable=True)
    cluster_id: str | None = string(since=5, nullable=True, default=None, ignorable=True)
    node_id: int = int32(since=5, default=-1, ignorable=True)
    client_process: str = string(since=3, tag=0x6B70, ignorable=True)


class ApiVersionsResponse(Message, key=18, versions=(0, 5), flexible=3):
    """The version range of each API; its header is never flexible, so that any client can read it.

    Two fields are not Kafka's; kohort's processes send them only to kohort's clients. Their tags are far above Kafka's,
    which are assigned consecutively. `lease_ms` ("ko") is the lease of `kohort.io.processes`. `coordinator_id` ("kc")
    marks one of kohort's coordinators over a Kafka cluster: group requests go to it, not to Kafka's own brokers.
    """

    class ApiVersion(Struct):
        """The versions of one API that the broker serves."""

        api_key: int = int16()
        min_version: int = int16()
        max_version: int = int16()

    class SupportedFeatureKey(Struct):
        """The version levels of one feature that the broker supports."""

        name: str = string()
        min_version: int = int16()
        max_version: int = int16()

    class FinalizedFeatureKey(Struct):
        """The version levels of one feature that the cluster has enabled."""

        name: str = string()
        max_version_level: int = int16()
        min_version_level: int = int16()

    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(since=1, ignorable=True)
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, since=3, tag=0, ignorable=True)
    finalized_features_epoch: int = int64(since=3, tag=1, default=-1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, since=3, tag=2, ignorable=True)
    zk_migration_ready: bool = boolean(since=3, tag=3, ignorable=True)
    coordinator_id: int = int32(since=3, tag=0x6B63, default=-1, ignorable=True)
    lease_ms: int = int32(since=3, tag=0x6B6F, ignorable=True)


class DescribeClusterRequest(RequestMessage["DescribeClusterResponse"], key=60, versions=(0, 2), flexible=0):
    """A request for the cluster id, the controller and the brokers."""

    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(since=1, default=1)
    include_fenced_brokers: bool = boolean(since=2)


class DescribeClusterResponse(Message, key=60, versions=(0, 2), flexible=0):
    """The cluster id, the controller and the brokers, with racks."""

    class DescribeClusterBroker(Struct):
        """The address and rack of one broker."""

        broker_id: int = int32()
        host: str = string()
        port: int = int32()
        rack: str | None = string(nullable=True, default=None)
        is_fenced: bool = boolean(since=2)

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    endpoint_type: int = int8(since=1, default=1)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=-2147483648)


class DescribeTopicPartitionsRequest(
    RequestMessage["DescribeTopicPartitionsResponse"], key=75, versions=(0, 0), flexible=0
):
    """A request for partitions page by page (KIP-966)."""

    class TopicRequest(Struct):
        """A topic, by its name."""

        name: str = string()

    class Cursor(Struct):
        """The topic and partition at which the page to describe begins."""

        topic_name: str = string()
        partition_index: int = int32()

    topics: list[TopicRequest] = array(TopicRequest)
    response_partition_limit: int = int32(default=2000)
    cursor: Cursor | None = struct(Cursor, nullable=True, default=None)


class DescribeTopicPartitionsResponse(Message, key=75, versions=(0, 0), flexible=0):
    """One page of partitions, with eligible leaders, and where the next page begins."""

    class DescribeTopicPartitionsResponseTopic(Struct):
        """A topic with its id and partitions, or why it can't be described."""

        class DescribeTopicPartitionsResponsePartition(Struct):
            """A partition's leader and replicas, also those that are eligible as leaders (ELR)."""

            error_code: int = int16()
            partition_index: int = int32()
            leader_id: int = int32()
            leader_epoch: int = int32(default=-1)
            replica_nodes: list[int] = array(int32)
            isr_nodes: list[int] = array(int32)
            eligible_leader_replicas: list[int] | None = array(int32, nullable=True, default=None)
            last_known_elr: list[int] | None = array(int32, nullable=True, default=None)
            offline_replicas: list[int] = array(int32)

        error_code: int = int16()
        name: str | None = string(nullable=True)
        topic_id: UUID = uuid()
        is_internal: bool = boolean()
        partitions: list[DescribeTopicPartitionsResponsePartition] = array(DescribeTopicPartitionsResponsePartition)
        topic_authorized_operations: int = int32(default=-2147483648)

    DescribeTopicPartitionsResponsePartition = (
        DescribeTopicPartitionsResponseTopic.DescribeTopicPartitionsResponsePartition
    )

    throttle_time_ms: int = int32()
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: DescribeTopicPartitionsRequest.Cursor | None = struct(
        DescribeTopicPartitionsRequest.Cursor, nullable=True, default=None
    )


class CreateTopicsRequest(RequestMessage["CreateTopicsResponse"], key=19, versions=(2, 7), flexible=5):
    """A request to create topics, or only to check whether they could be created."""

    class CreatableTopic(Struct):
        """A topic to create: its partitions, replication factor and configurations."""

        class CreatableReplicaAssignment(Struct):
            """The brokers that shall hold the replicas of one partition."""

            partition_index: int = int32()
            broker_ids: list[int] = array(int32)

        class CreatableTopicConfig(Struct):
            """A configuration of the topic."""

            name: str = string()
            value: str | None = string(nullable=True)

        name: str = string()
        num_partitions: int = int32()
        replication_factor: int = int16()
        assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
        configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)

    CreatableReplicaAssignment = CreatableTopic.CreatableReplicaAssignment
    CreatableTopicConfig = CreatableTopic.CreatableTopicConfig

    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean()


class CreateTopicsResponse(Message, key=19, versions=(2, 7), flexible=5):
    """The response to CreateTopics: each created topic with its id and configuration, or its error."""

    class CreatableTopicResult(Struct):
        """A topic as it was created, or why it was not."""

        class CreatableTopicConfigs(Struct):
            """A configuration of the topic, and where its value comes from."""

            name: str = string()
            value: str | None = string(nullable=True)
            read_only: bool = boolean()
            config_source: int = int8(default=-1)
            is_sensitive: bool = boolean()

        name: str = string()
        topic_id: UUID = uuid(since=7, ignorable=True)
        error_code: int = int16()
        error_message: str | None = string(nullable=True)
        num_partitions: int = int32(since=5, default=-1, ignorable=True)
        replication_factor: int = int16(since=5, default=-1, ignorable=True)
        configs: list[CreatableTopicConfigs] | None = array(
            CreatableTopicConfigs, since=5, nullable=True, ignorable=True
        )
        topic_config_error_code: int = int16(since=5, tag=0, ignorable=True)

    CreatableTopicConfigs = CreatableTopicResult.CreatableTopicConfigs

    throttle_time_ms: int = int32()
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)


class DeleteTopicsRequest(RequestMessage["DeleteTopicsResponse"], key=20, versions=(1, 6), flexible=4):
    """A request to delete topics by name or, from version 6, by id."""

    class DeleteTopicState(Struct):
        """A topic to delete, by name or by id."""

        name: str | None = string(nullable=True, default=None)
        topic_id: UUID = uuid()

    topic_names: list[str] = array(string, until=5, ignorable=True)
    topics: list[DeleteTopicState] = array(DeleteTopicState, since=6, ignorable=True)
    timeout_ms: int = int32()


class DeleteTopicsResponse(Message, key=20, versions=(1, 6), flexible=4):
    """The response to DeleteTopics: an error code for each topic."""

    class DeletableTopicResult(Struct):
        """One topic in the response to DeleteTopics: its error code and message."""

        name: str | None = string(null_since=6)
        topic_id: UUID = uuid(since=6, ignorable=True)
        error_code: int = int16()
        error_message: str | None = string(since=5, nullable=True, default=None, ignorable=True)

    throttle_time_ms: int = int32()
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)


class CreatePartitionsRequest(RequestMessage["CreatePartitionsResponse"], key=37, versions=(0, 3), flexible=2):
    """A request to raise the number of partitions of topics."""

    class CreatePartitionsTopic(Struct):
        """A topic, with its new number of partitions."""

        class CreatePartitionsAssignment(Struct):
            """The brokers that shall hold the replicas of one new partition."""

            broker_ids: list[int] = array(int32)

        name: str = string()
        count: int = int32()
        assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, nullable=True)

    CreatePartitionsAssignment = CreatePartitionsTopic.CreatePartitionsAssignment

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


class CreatePartitionsResponse(Message, key=37, versions=(0, 3), flexible=2):
    """The response to CreatePartitions: an error code for each topic."""

    class CreatePartitionsTopicResult(Struct):
        """One topic in the response to CreatePartitions: its error code and message."""

        name: str = string()
        error_code: int = int16()
        error_message: str | None = string(nullable=True, default=None)

    throttle_time_ms: int = int32()
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)


class DescribeConfigsRequest(RequestMessage["DescribeConfigsResponse"], key=32, versions=(1, 4), flexible=4):
    """A request for configurations; null keys ask for all of a resource."""

    class DescribeConfigsResource(Struct):
        """A resource, with the configurations that are asked for; null: all."""

        resource_type: int = int8()
        resource_name: str = string()
        configuration_keys: list[str] | None = array(string, nullable=True)

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean()
    include_documentation: bool = boolean(since=3)


class DescribeConfigsResponse(Message, key=32, versions=(1, 4), flexible=4):
    """Configurations with where each value comes from."""

    class DescribeConfigsResult(Struct):
        """The configurations of one resource, or why they can't be described."""

        class DescribeConfigsResourceResult(Struct):
            """A configuration: its value, where that comes from, and the documentation."""

            class DescribeConfigsSynonym(Struct):
                """A setting that can supply the value. The first that is set wins."""

                name: str = string()
                value: str | None = string(nullable=True)
                source: int = int8()

            name: str = string()
            value: str | None = string(nullable=True)
            read_only: bool = boolean()
            config_source: int = int8(default=-1)
            is_sensitive: bool = boolean()
            synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym)
            config_type: int = int8(since=3, ignorable=True)
            documentation: str | None = string(since=3, nullable=True, ignorable=True)

        error_code: int = int16()
        error_message: str | None = string(nullable=True)
        resource_type: int = int8()
        resource_name: str = string()
        configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)

    DescribeConfigsResourceResult = DescribeConfigsResult.DescribeConfigsResourceResult
    DescribeConfigsSynonym = DescribeConfigsResult.DescribeConfigsResourceResult.DescribeConfigsSynonym

    throttle_time_ms: int = int32()
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)


class AlterConfigsRequest(RequestMessage["AlterConfigsResponse"], key=33, versions=(0, 2), flexible=2):
    """A request to replace the whole configuration of resources."""

    class AlterConfigsResource(Struct):
        """A resource, with its complete new configurations."""

        class AlterableConfig(Struct):
            """A configuration and its new value."""

            name: str = string()
            value: str | None = string(nullable=True)

        resource_type: int = int8()
        resource_name: str = string()
        configs: list[AlterableConfig] = array(AlterableConfig)

    AlterableConfig = AlterConfigsResource.AlterableConfig

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResponse(Message, key=33, versions=(0, 2), flexible=2):
    """The response to AlterConfigs: an error code for each resource."""

    class AlterConfigsResourceResponse(Struct):
        """One resource in the response to AlterConfigs: its error code and message."""

        error_code: int = int16()
        error_message: str | None = string(nullable=True)
        resource_type: int = int8()
        resource_name: str = string()

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


class IncrementalAlterConfigsRequest(
    RequestMessage["IncrementalAlterConfigsResponse"], key=44, versions=(0, 1), flexible=1
):
    """A request to change single keys: 0 set, 1 delete, 2 append, 3 subtract."""

    class AlterConfigsResource(Struct):
        """A resource, with the changes of its configurations."""

        class AlterableConfig(Struct):
            """A change of one configuration. `config_operation`: 0 set, 1 delete, 2 append, 3 subtract."""

            name: str = string()
            config_operation: int = int8()
            value: str | None = string(nullable=True)

        resource_type: int = int8()
        resource_name: str = string()
        configs: list[AlterableConfig] = array(AlterableConfig)

    AlterableConfig = AlterConfigsResource.AlterableConfig

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class IncrementalAlterConfigsResponse(Message, key=44, versions=(0, 1), flexible=1):
    """The response to IncrementalAlterConfigs: an error code for each resource."""

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResponse.AlterConfigsResourceResponse] = array(
        AlterConfigsResponse.AlterConfigsResourceResponse
    )
