"""Messages of groups: the classic protocol, KIP-848, and the requests of administration tools.

Source: Kafka 4.4, message schemas.
"""

from __future__ import annotations

from uuid import UUID

from kohort.wire.message import Message, RequestMessage
from kohort.wire.schema import Struct, array, binary, boolean, int8, int16, int32, int64, string, struct, uuid


class FindCoordinatorRequest(RequestMessage["FindCoordinatorResponse"], key=10, versions=(0, 6), flexible=3):
    """A request for the coordinators of groups (key type 0) or transactional ids (1); a list of them from version 4."""

    key: str = string(until=3, ignorable=True)
    key_type: int = int8(since=1)
    coordinator_keys: list[str] = array(string, since=4, ignorable=True)


class FindCoordinatorResponse(Message, key=10, versions=(0, 6), flexible=3):
    """The coordinators; one in the top fields up to version 3, a list from version 4."""

    class Coordinator(Struct):
        """The address of the coordinator of one key, or why there is none."""

        key: str = string()
        node_id: int = int32()
        host: str = string()
        port: int = int32()
        error_code: int = int16()
        error_message: str | None = string(nullable=True)

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16(until=3)
    error_message: str | None = string(since=1, until=3, nullable=True, ignorable=True)
    node_id: int = int32(until=3)
    host: str = string(until=3)
    port: int = int32(until=3)
    coordinators: list[Coordinator] = array(Coordinator, since=4)


class JoinGroupRequest(RequestMessage["JoinGroupResponse"], key=11, versions=(0, 9), flexible=6):
    """A request to join a classic group: the coordinator delays the response until the join phase ends."""

    class JoinGroupRequestProtocol(Struct):
        """An assignor that the member supports, and its subscription in the assignor's format."""

        name: str = string()
        metadata: bytes = binary()

    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(since=1, default=-1, ignorable=True)
    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable=True, default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string(since=8, nullable=True, default=None, ignorable=True)


class JoinGroupResponse(Message, key=11, versions=(0, 9), flexible=6):
    """The response to JoinGroup: generation, protocol, leader and member id; the leader's also has all members."""

    class JoinGroupResponseMember(Struct):
        """A member and its subscription. Only the leader receives members."""

        member_id: str = string()
        group_instance_id: str | None = string(since=5, nullable=True, default=None, ignorable=True)
        metadata: bytes = binary()

    throttle_time_ms: int = int32(since=2, ignorable=True)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(since=7, nullable=True, default=None, ignorable=True)
    protocol_name: str | None = string(null_since=7)
    leader: str = string()
    skip_assignment: bool = boolean(since=9)
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)


class SyncGroupRequest(RequestMessage["SyncGroupResponse"], key=14, versions=(0, 5), flexible=4):
    """A request for this generation's assignment; the leader's request has the assignments of all members."""

    class SyncGroupRequestAssignment(Struct):
        """The assignment that the leader has computed for one member."""

        member_id: str = string()
        assignment: bytes = binary()

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable=True, default=None)
    protocol_type: str | None = string(since=5, nullable=True, default=None, ignorable=True)
    protocol_name: str | None = string(since=5, nullable=True, default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(Message, key=14, versions=(0, 5), flexible=4):
    """The response to SyncGroup: the member's assignment in this generation."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    protocol_type: str | None = string(since=5, nullable=True, default=None, ignorable=True)
    protocol_name: str | None = string(since=5, nullable=True, default=None, ignorable=True)
    assignment: bytes = binary()


class HeartbeatRequest(RequestMessage["HeartbeatResponse"], key=12, versions=(0, 4), flexible=4):
    """A heartbeat that keeps a classic member's session alive."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable=True, default=None)


class HeartbeatResponse(Message, key=12, versions=(0, 4), flexible=4):
    """The response to Heartbeat: NONE, or an error such as REBALANCE_IN_PROGRESS: the member must join again."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()


class LeaveGroupRequest(RequestMessage["LeaveGroupResponse"], key=13, versions=(0, 5), flexible=4):
    """A request to leave a classic group; from version 3 several members, also by instance id."""

    class MemberIdentity(Struct):
        """A member that leaves, by member id or by instance id."""

        member_id: str = string()
        group_instance_id: str | None = string(nullable=True, default=None)
        reason: str | None = string(since=5, nullable=True, default=None, ignorable=True)

    group_id: str = string()
    member_id: str = string(until=2, ignorable=True)
    members: list[MemberIdentity] = array(MemberIdentity, since=3, ignorable=True)


class LeaveGroupResponse(Message, key=13, versions=(0, 5), flexible=4):
    """The response to LeaveGroup: an error code, and from version 3 one for each member."""

    class MemberResponse(Struct):
        """One member in the response to LeaveGroup: its error code."""

        member_id: str = string()
        group_instance_id: str | None = string(nullable=True)
        error_code: int = int16()

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    members: list[MemberResponse] = array(MemberResponse, since=3)


class GroupRebalance(Struct):
    """One of a group's last rebalances, with causes and downtimes. Not Kafka's: only kohort's coordinators send it.

    They do so to clients that ask for it. `ended_ms` is -1 while the rebalance is under way. Times are wall clock times
    of the coordinator.
    """

    class RebalanceCause(Struct):
        """One cause of a rebalance, in a word and in a sentence.

        `member_id` is empty if the cause concerns no member, or several.
        """

        at_ms: int = int64()
        reason: str = string()
        text: str = string()
        member_id: str = string()

    class MemberDowntime(Struct):
        """A member's downtime: how long it processed nothing."""

        member_id: str = string()
        downtime_ms: int = int64()

    ended_ms: int = int64(default=-1)
    generation: int = int32(default=-1)
    members: int = int32()
    downtime_ms: int = int64()
    causes: list[RebalanceCause] = array(RebalanceCause)
    causes_left_out: int = int32()
    longest: list[MemberDowntime] = array(MemberDowntime)


class CauseCount(Struct):
    """The number of rebalance causes of one kind that a group has had. Not Kafka's."""

    reason: str = string()
    count: int = int64()


class DescribeGroupsRequest(RequestMessage["DescribeGroupsResponse"], key=15, versions=(0, 6), flexible=5):
    """A request for the state and members of classic groups.

    `rebalances` is not Kafka's: how many of the last rebalances kohort's coordinators are to describe. Its tag spells
    "kr" and is far above Kafka's tags, which are assigned consecutively. Brokers skip unknown tags.
    """

    groups: list[str] = array(string)
    include_authorized_operations: bool = boolean(since=3)
    rebalances: int = int32(since=5, tag=0x6B72, ignorable=True)


class DescribeGroupsResponse(Message, key=15, versions=(0, 6), flexible=5):
    """State, assignor and members of each classic group.

    `rebalances` and `causes` are sent to clients that ask for rebalances; `rebalances` is null where nothing records
    them.
    """

    class DescribedGroup(Struct):
        """A group's state and members, or why it can't be described."""

        class DescribedGroupMember(Struct):
            """A member's client, subscription and assignment."""

            member_id: str = string()
            group_instance_id: str | None = string(since=4, nullable=True, default=None, ignorable=True)
            client_id: str = string()
            client_host: str = string()
            member_metadata: bytes = binary()
            member_assignment: bytes = binary()

        error_code: int = int16()
        error_message: str | None = string(since=6, nullable=True, default=None)
        group_id: str = string()
        group_state: str = string()
        protocol_type: str = string()
        protocol_data: str = string()
        members: list[DescribedGroupMember] = array(DescribedGroupMember)
        authorized_operations: int = int32(since=3, default=-2147483648)
        rebalances: list[GroupRebalance] | None = array(
            GroupRebalance, since=5, tag=0x6B72, nullable=True, default=None, ignorable=True
        )
        causes: list[CauseCount] = array(CauseCount, since=5, tag=0x6B73, ignorable=True)

    DescribedGroupMember = DescribedGroup.DescribedGroupMember

    throttle_time_ms: int = int32(since=1, ignorable=True)
    groups: list[DescribedGroup] = array(DescribedGroup)


class ListGroupsRequest(RequestMessage["ListGroupsResponse"], key=16, versions=(0, 5), flexible=3):
    """A request for the groups of this coordinator, by state and type."""

    states_filter: list[str] = array(string, since=4)
    types_filter: list[str] = array(string, since=5)


class ListGroupsResponse(Message, key=16, versions=(0, 5), flexible=3):
    """The response to ListGroups: the groups of this coordinator, each with its state and type."""

    class ListedGroup(Struct):
        """A group's name, state and type."""

        group_id: str = string()
        protocol_type: str = string()
        group_state: str = string(since=4, ignorable=True)
        group_type: str = string(since=5, ignorable=True)

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)


class DeleteGroupsRequest(RequestMessage["DeleteGroupsResponse"], key=42, versions=(0, 3), flexible=2):
    """A request to delete groups that have no members."""

    groups_names: list[str] = array(string)


class DeleteGroupsResponse(Message, key=42, versions=(0, 3), flexible=2):
    """The response to DeleteGroups: an error code for each group."""

    class DeletableGroupResult(Struct):
        """One group in the response to DeleteGroups: its error code and message."""

        group_id: str = string()
        error_code: int = int16()
        error_message: str | None = string(since=3, nullable=True, default=None, ignorable=True)

    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)


class ConsumerGroupHeartbeatRequest(
    RequestMessage["ConsumerGroupHeartbeatResponse"], key=68, versions=(0, 1), flexible=0
):
    """The only request of a KIP-848 member: joins (epoch 0), reports owned partitions, leaves (-1, or -2 if static)."""

    class TopicPartitions(Struct):
        """Partitions of one topic that the member owns."""

        topic_id: UUID = uuid()
        partitions: list[int] = array(int32)

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable=True, default=None)
    rack_id: str | None = string(nullable=True, default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array(string, nullable=True, default=None)
    subscribed_topic_regex: str | None = string(since=1, nullable=True, default=None)
    server_assignor: str | None = string(nullable=True, default=None)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable=True, default=None)


class ConsumerGroupHeartbeatResponse(Message, key=68, versions=(0, 1), flexible=0):
    """The member's epoch, and its assignment when that changed."""

    class Assignment(Struct):
        """The partitions that the member should own now."""

        class TopicPartitions(Struct):
            """Partitions of one topic."""

            topic_id: UUID = uuid()
            partitions: list[int] = array(int32)

        topic_partitions: list[TopicPartitions] = array(TopicPartitions)

    TopicPartitions = Assignment.TopicPartitions

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    member_id: str | None = string(nullable=True, default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = struct(Assignment, nullable=True, default=None)


class ConsumerGroupDescribeRequest(
    RequestMessage["ConsumerGroupDescribeResponse"], key=69, versions=(0, 1), flexible=0
):
    """A request for the state and members of KIP-848 groups.

    `rebalances` is the number of last rebalances to describe, as in DescribeGroups.
    """

    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean()
    rebalances: int = int32(tag=0x6B72, ignorable=True)


class ConsumerGroupDescribeResponse(Message, key=69, versions=(0, 1), flexible=0):
    """Epochs, assignor and members with current and target assignments."""

    class DescribedGroup(Struct):
        """A group's state, epochs and members, or why it can't be described."""

        class Member(Struct):
            """A member's client and subscription, what it owns and what it should own."""

            class Assignment(Struct):
                """The partitions that a member owns, or that it should own."""

                class TopicPartitions(Struct):
                    """Partitions of one topic."""

                    topic_id: UUID = uuid()
                    topic_name: str = string()
                    partitions: list[int] = array(int32)

                topic_partitions: list[TopicPartitions] = array(TopicPartitions)

            member_id: str = string()
            instance_id: str | None = string(nullable=True, default=None)
            rack_id: str | None = string(nullable=True, default=None)
            member_epoch: int = int32()
            client_id: str = string()
            client_host: str = string()
            subscribed_topic_names: list[str] = array(string)
            subscribed_topic_regex: str | None = string(nullable=True, default=None)
            assignment: Assignment = struct(Assignment)
            target_assignment: Assignment = struct(Assignment)
            member_type: int = int8(since=1, default=-1, ignorable=True)

        error_code: int = int16()
        error_message: str | None = string(nullable=True, default=None)
        group_id: str = string()
        group_state: str = string()
        group_epoch: int = int32()
        assignment_epoch: int = int32()
        assignor_name: str = string()
        members: list[Member] = array(Member)
        authorized_operations: int = int32(default=-2147483648)
        rebalances: list[GroupRebalance] | None = array(
            GroupRebalance, tag=0x6B72, nullable=True, default=None, ignorable=True
        )
        causes: list[CauseCount] = array(CauseCount, tag=0x6B73, ignorable=True)

    Member = DescribedGroup.Member
    Assignment = DescribedGroup.Member.Assignment
    TopicPartitions = DescribedGroup.Member.Assignment.TopicPartitions

    throttle_time_ms: int = int32()
    groups: list[DescribedGroup] = array(DescribedGroup)
