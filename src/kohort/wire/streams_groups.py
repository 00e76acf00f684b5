"""The heartbeat of streams groups (KIP-1071), which the broker refuses with the code that ends the client's wait.

Source: Kafka 4.4, message schemas.
"""

from __future__ import annotations

from kohort.wire.message import Message, RequestMessage
from kohort.wire.schema import Struct, array, boolean, int8, int16, int32, int64, string, struct, uint16


class StreamsKeyValue(Struct):
    """A setting or a tag."""

    key: str = string()
    value: str = string()


class StreamsTopicInfo(Struct):
    """A topic that Kafka Streams wants to be made."""

    name: str = string()
    partitions: int = int32()
    replication_factor: int = int16()
    topic_configs: list[StreamsKeyValue] = array(StreamsKeyValue)


class StreamsEndpoint(Struct):
    """The address of an instance for interactive queries."""

    host: str = string()
    port: int = uint16()


class StreamsTaskIds(Struct):
    """Tasks of one subtopology."""

    subtopology_id: str = string()
    partitions: list[int] = array(int32)


class StreamsTaskOffset(Struct):
    """The changelog offset of one task."""

    subtopology_id: str = string()
    partition: int = int32()
    offset: int = int64()


class StreamsSubtopology(Struct):
    """A part of the topology, with its topics."""

    class CopartitionGroup(Struct):
        """Part of StreamsSubtopology."""

        source_topics: list[int] = array(int16)
        source_topic_regex: list[int] = array(int16)
        repartition_source_topics: list[int] = array(int16)

    subtopology_id: str = string()
    source_topics: list[str] = array(string)
    source_topic_regex: list[str] = array(string)
    state_changelog_topics: list[StreamsTopicInfo] = array(StreamsTopicInfo)
    repartition_sink_topics: list[str] = array(string)
    repartition_source_topics: list[StreamsTopicInfo] = array(StreamsTopicInfo)
    copartition_groups: list[CopartitionGroup] = array(CopartitionGroup)


class StreamsGroupHeartbeatRequest(
    RequestMessage["StreamsGroupHeartbeatResponse"], key=88, versions=(0, 1), flexible=0
):
    """The heartbeat of an instance of Kafka Streams with `group.protocol=streams`."""

    class Topology(Struct):
        """Part of StreamsGroupHeartbeatRequest."""

        epoch: int = int32()
        subtopologies: list[StreamsSubtopology] = array(StreamsSubtopology)

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    endpoint_information_epoch: int = int32()
    instance_id: str | None = string(nullable=True, default=None)
    rack_id: str | None = string(nullable=True, default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    topology: Topology | None = struct(Topology, nullable=True, default=None)
    active_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, nullable=True, default=None)
    standby_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, nullable=True, default=None)
    warmup_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, nullable=True, default=None)
    process_id: str | None = string(nullable=True, default=None)
    user_endpoint: StreamsEndpoint | None = struct(StreamsEndpoint, nullable=True, default=None)
    client_tags: list[StreamsKeyValue] | None = array(StreamsKeyValue, nullable=True, default=None)
    task_offsets: list[StreamsTaskOffset] | None = array(StreamsTaskOffset, nullable=True, default=None)
    task_end_offsets: list[StreamsTaskOffset] | None = array(StreamsTaskOffset, nullable=True, default=None)
    shutdown_application: bool = boolean()


class StreamsGroupHeartbeatResponse(Message, key=88, versions=(0, 1), flexible=0):
    """The tasks of an instance; here an error alone."""

    class GroupStatus(Struct):
        """Part of StreamsGroupHeartbeatResponse."""

        status_code: int = int8()
        status_detail: str = string()

    class EndpointToPartitions(Struct):
        """Part of StreamsGroupHeartbeatResponse."""

        class TopicPartitions(Struct):
            """Part of EndpointToPartitions."""

            topic: str = string()
            partitions: list[int] = array(int32)

        user_endpoint: StreamsEndpoint = struct(StreamsEndpoint)
        active_partitions: list[TopicPartitions] = array(TopicPartitions)
        standby_partitions: list[TopicPartitions] = array(TopicPartitions)

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    member_id: str = string()
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    acceptable_recovery_lag_legacy: int = int32(until=0)
    task_offset_interval_ms: int = int32()
    acceptable_recovery_lag: int = int64(since=1, default=-1, ignorable=True)
    status: list[GroupStatus] | None = array(GroupStatus, nullable=True)
    active_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, nullable=True, default=None)
    standby_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, nullable=True, default=None)
    warmup_tasks: list[StreamsTaskIds] | None = array(StreamsTaskIds, nullable=True, default=None)
    topology_description_required: bool = boolean(since=1)
    endpoint_information_epoch: int = int32()
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = array(
        EndpointToPartitions, nullable=True, default=None
    )
