"""Share groups (KIP-932) as administration tools see them: members, start offsets and lag. The broker has none.

Source: Kafka 4.4, message schemas.
"""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from kohort.wire.groups import ConsumerGroupDescribeResponse
from kohort.wire.message import Message, RequestMessage
from kohort.wire.schema import Struct, array, boolean, int16, int32, int64, string, struct, uuid

_Assignment: TypeAlias = ConsumerGroupDescribeResponse.DescribedGroup.Member.Assignment


class ShareGroupDescribeRequest(RequestMessage["ShareGroupDescribeResponse"], key=77, versions=(1, 1), flexible=0):
    """A request for the state and members of share groups."""

    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean()


class ShareGroupDescribeResponse(Message, key=77, versions=(1, 1), flexible=0):
    """Members with their assignments; a partition may be assigned to several."""

    class DescribedGroup(Struct):
        """A group's state, epochs and members, or why it can't be described."""

        class Member(Struct):
            """A member's client, subscription and partitions."""

            member_id: str = string()
            rack_id: str | None = string(nullable=True, default=None)
            member_epoch: int = int32()
            client_id: str = string()
            client_host: str = string()
            subscribed_topic_names: list[str] = array(string)
            assignment: _Assignment = struct(_Assignment)

        error_code: int = int16()
        error_message: str | None = string(nullable=True, default=None)
        group_id: str = string()
        group_state: str = string()
        group_epoch: int = int32()
        assignment_epoch: int = int32()
        assignor_name: str = string()
        members: list[Member] = array(Member)
        authorized_operations: int = int32(default=-2147483648)

    Member = DescribedGroup.Member

    throttle_time_ms: int = int32()
    groups: list[DescribedGroup] = array(DescribedGroup)


class DescribeShareGroupOffsetsRequest(
    RequestMessage["DescribeShareGroupOffsetsResponse"], key=90, versions=(0, 1), flexible=0
):
    """A request for the start offsets of share groups."""

    class DescribeShareGroupOffsetsRequestGroup(Struct):
        """A group, and its topics; None: all that it has a start offset for."""

        class DescribeShareGroupOffsetsRequestTopic(Struct):
            """Partitions of one topic."""

            topic_name: str = string()
            partitions: list[int] = array(int32)

        group_id: str = string()
        topics: list[DescribeShareGroupOffsetsRequestTopic] | None = array(
            DescribeShareGroupOffsetsRequestTopic, nullable=True
        )

    groups: list[DescribeShareGroupOffsetsRequestGroup] = array(DescribeShareGroupOffsetsRequestGroup)


class DescribeShareGroupOffsetsResponse(Message, key=90, versions=(0, 1), flexible=0):
    """Start offsets, and from version 1 the number of records after them that are not acknowledged (KIP-1226)."""

    class DescribeShareGroupOffsetsResponseGroup(Struct):
        """The offsets of a group, or why there are none."""

        class DescribeShareGroupOffsetsResponseTopic(Struct):
            """The offsets of one topic."""

            class DescribeShareGroupOffsetsResponsePartition(Struct):
                """A partition's first offset that is not acknowledged; -1: the group has none there."""

                partition_index: int = int32()
                start_offset: int = int64()
                leader_epoch: int = int32()
                lag: int = int64(since=1, default=-1, ignorable=True)
                error_code: int = int16()
                error_message: str | None = string(nullable=True, default=None)

            topic_name: str = string()
            topic_id: UUID = uuid()
            partitions: list[DescribeShareGroupOffsetsResponsePartition] = array(
                DescribeShareGroupOffsetsResponsePartition
            )

        group_id: str = string()
        topics: list[DescribeShareGroupOffsetsResponseTopic] = array(DescribeShareGroupOffsetsResponseTopic)
        error_code: int = int16()
        error_message: str | None = string(nullable=True, default=None)

    Group = DescribeShareGroupOffsetsResponseGroup

    throttle_time_ms: int = int32()
    groups: list[DescribeShareGroupOffsetsResponseGroup] = array(DescribeShareGroupOffsetsResponseGroup)
