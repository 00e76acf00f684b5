"""Messages of streams groups (KIP-1071): the description for tools, and the heartbeat, which the broker refuses.

Source: Kafka 4.4, message schemas.
"""

from __future__ import annotations

from kohort.wire.message import Message, RequestMessage
from kohort.wire.schema import Struct, array, boolean, int8, int16, int32, int64, string, struct, uint16


class StreamsKeyValue(Struct):
    """A name and a value: of a topic's setting or of a client tag, in streams groups."""

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
    """The tasks of one subtopology in Kafka Streams, by their partitions."""

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
        """Source topics of a subtopology that must have the same number of partitions."""

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
        """The topology that the instance runs: its epoch and its subtopologies."""

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
        """A problem of the group, as a code and in words."""

        status_code: int = int8()
        status_detail: str = string()

    class EndpointToPartitions(Struct):
        """The partitions that an instance serves to interactive queries, by its endpoint."""

        class TopicPartitions(Struct):
            """Partitions of one topic that the instance serves."""

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


class StreamsTopologyNode(Struct):
    """One node of a Kafka Streams topology: a source, a processor or a sink."""

    name: str = string()
    node_type: int = int8()
    source_topics: list[str] = array(string)
    sink_topic: str | None = string(nullable=True, default=None)
    stores: list[str] = array(string)
    successors: list[str] = array(string)


class StreamsGroupDescribeRequest(RequestMessage["StreamsGroupDescribeResponse"], key=89, versions=(0, 1), flexible=0):
    """A request for the state, topology and members of streams groups."""

    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean()
    include_topology_description: bool = boolean(since=1)


class StreamsGroupDescribeResponse(Message, key=89, versions=(0, 1), flexible=0):
    """Subtopologies with their topics, and members with their tasks."""

    class DescribedGroup(Struct):
        """A group's state, epochs, topology and members, or why it can't be described."""

        class Topology(Struct):
            """The topology that the members run."""

            class Subtopology(Struct):
                """A part of the topology; its tasks are numbered as the partitions of its topics."""

                subtopology_id: str = string()
                source_topics: list[str] = array(string)
                repartition_sink_topics: list[str] = array(string)
                state_changelog_topics: list[StreamsTopicInfo] = array(StreamsTopicInfo)
                repartition_source_topics: list[StreamsTopicInfo] = array(StreamsTopicInfo)

            epoch: int = int32()
            subtopologies: list[Subtopology] | None = array(Subtopology, nullable=True, default=None)

        class Member(Struct):
            """A member's client and tasks."""

            class Assignment(Struct):
                """A streams group member's active, standby and warm-up tasks."""

                active_tasks: list[StreamsTaskIds] = array(StreamsTaskIds)
                standby_tasks: list[StreamsTaskIds] = array(StreamsTaskIds)
                warmup_tasks: list[StreamsTaskIds] = array(StreamsTaskIds)

            member_id: str = string()
            member_epoch: int = int32()
            instance_id: str | None = string(nullable=True, default=None)
            rack_id: str | None = string(nullable=True, default=None)
            client_id: str = string()
            client_host: str = string()
            topology_epoch: int = int32()
            process_id: str = string()
            user_endpoint: StreamsEndpoint | None = struct(StreamsEndpoint, nullable=True, default=None)
            client_tags: list[StreamsKeyValue] = array(StreamsKeyValue)
            task_offsets: list[StreamsTaskOffset] = array(StreamsTaskOffset)
            task_end_offsets: list[StreamsTaskOffset] = array(StreamsTaskOffset)
            assignment: Assignment = struct(Assignment)
            target_assignment: Assignment = struct(Assignment)
            is_classic: bool = boolean()

        class TopologyDescription(Struct):
            """The topology with its nodes, where the request wants it."""

            class SubtopologyNodes(Struct):
                """A part of the topology with its nodes."""

                subtopology_id: str = string()
                nodes: list[StreamsTopologyNode] = array(StreamsTopologyNode)

            class GlobalStore(Struct):
                """A global store with its nodes."""

                source: StreamsTopologyNode = struct(StreamsTopologyNode)
                processor: StreamsTopologyNode = struct(StreamsTopologyNode)

            subtopologies: list[SubtopologyNodes] = array(SubtopologyNodes)
            global_stores: list[GlobalStore] = array(GlobalStore)

        error_code: int = int16()
        error_message: str | None = string(nullable=True, default=None)
        group_id: str = string()
        group_state: str = string()
        group_epoch: int = int32()
        assignment_epoch: int = int32()
        topology: Topology | None = struct(Topology, nullable=True, default=None)
        members: list[Member] = array(Member)
        authorized_operations: int = int32(default=-2147483648)
        topology_description: TopologyDescription | None = struct(
            TopologyDescription, since=1, nullable=True, default=None
        )
        topology_description_status: int = int8(since=1)
        assignor_name: str | None = string(since=1, nullable=True, default=None, ignorable=True)

    Topology = DescribedGroup.Topology
    Member = DescribedGroup.Member

    throttle_time_ms: int = int32()
    groups: list[DescribedGroup] = array(DescribedGroup)
