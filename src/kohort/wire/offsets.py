"""Committed offsets of groups.

Source: Kafka 4.4, message schemas.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from kohort.wire.message import Message, RequestMessage
from kohort.wire.schema import Struct, array, boolean, int16, int32, int64, string, uuid


class OffsetCommitRequest(RequestMessage["OffsetCommitResponse"], key=8, versions=(2, 10), flexible=8):
    """A request to commit offsets; an administrator sends generation or member epoch -1 and no member id."""

    class OffsetCommitRequestTopic(Struct):
        """The offsets of one topic, which is named until version 9 and given by id later."""

        class OffsetCommitRequestPartition(Struct):
            """The offset to commit for one partition, with the leader epoch of the last record and metadata."""

            partition_index: int = int32()
            committed_offset: int = int64()
            committed_leader_epoch: int = int32(since=6, default=-1, ignorable=True)
            committed_metadata: str | None = string(nullable=True)

        name: str = string(until=9, ignorable=True)
        topic_id: UUID = uuid(since=10, ignorable=True)
        partitions: Sequence[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition, columns=True)

    OffsetCommitRequestPartition = OffsetCommitRequestTopic.OffsetCommitRequestPartition

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1)
    member_id: str = string()
    retention_time_ms: int = int64(until=4, default=-1, ignorable=True)
    group_instance_id: str | None = string(since=7, nullable=True, default=None)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


class OffsetCommitResponse(Message, key=8, versions=(2, 10), flexible=8):
    """The response to OffsetCommit: an error code for each partition, by topic."""

    class OffsetCommitResponseTopic(Struct):
        """One topic in the response to OffsetCommit, with the result for each partition."""

        class OffsetCommitResponsePartition(Struct):
            """One partition in the response to OffsetCommit: its error code."""

            partition_index: int = int32()
            error_code: int = int16()

        name: str = string(until=9, ignorable=True)
        topic_id: UUID = uuid(since=10, ignorable=True)
        partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)

    OffsetCommitResponsePartition = OffsetCommitResponseTopic.OffsetCommitResponsePartition

    throttle_time_ms: int = int32(since=3, ignorable=True)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)


class OffsetFetchRequest(RequestMessage["OffsetFetchResponse"], key=9, versions=(1, 10), flexible=6):
    """A request for committed offsets; null topics ask for all; several groups from version 8."""

    class OffsetFetchRequestTopic(Struct):
        """A topic and the partitions whose committed offsets are requested. From version 8 on `groups` replaces it."""

        name: str = string()
        partition_indexes: list[int] = array(int32)

    class OffsetFetchRequestGroup(Struct):
        """A group whose offsets are asked for. Null topics ask for all."""

        class OffsetFetchRequestTopics(Struct):
            """A topic and the partitions whose committed offsets are requested."""

            name: str = string(until=9, ignorable=True)
            topic_id: UUID = uuid(since=10, ignorable=True)
            partition_indexes: list[int] = array(int32)

        group_id: str = string()
        member_id: str | None = string(since=9, nullable=True, default=None, ignorable=True)
        member_epoch: int = int32(since=9, default=-1, ignorable=True)
        topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, nullable=True)

    OffsetFetchRequestTopics = OffsetFetchRequestGroup.OffsetFetchRequestTopics

    group_id: str = string(until=7, ignorable=True)
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, until=7, null_since=2, ignorable=True)
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, since=8, ignorable=True)
    require_stable: bool = boolean(since=7, ignorable=True)


class OffsetFetchResponse(Message, key=9, versions=(1, 10), flexible=6):
    """The response to OffsetFetch: committed offsets; -1 for a partition without one."""

    class OffsetFetchResponseTopic(Struct):
        """The committed offsets of one topic. From version 8 on `groups` replaces it."""

        class OffsetFetchResponsePartition(Struct):
            """The committed offset of one partition, with its metadata; -1: none."""

            partition_index: int = int32()
            committed_offset: int = int64()
            committed_leader_epoch: int = int32(since=5, default=-1, ignorable=True)
            metadata: str | None = string(nullable=True)
            error_code: int = int16()

        name: str = string()
        partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)

    class OffsetFetchResponseGroup(Struct):
        """The offsets of one group, or why they can't be read."""

        class OffsetFetchResponseTopics(Struct):
            """The offsets of one topic, which is named until version 9 and given by id later."""

            class OffsetFetchResponsePartitions(Struct):
                """The committed offset of one partition, with its metadata; -1: none."""

                partition_index: int = int32()
                committed_offset: int = int64()
                committed_leader_epoch: int = int32(default=-1)
                metadata: str | None = string(nullable=True)
                error_code: int = int16()

            name: str = string(until=9, ignorable=True)
            topic_id: UUID = uuid(since=10, ignorable=True)
            partitions: Sequence[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions, columns=True)

        group_id: str = string()
        topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics)
        error_code: int = int16()

    OffsetFetchResponsePartition = OffsetFetchResponseTopic.OffsetFetchResponsePartition
    OffsetFetchResponseTopics = OffsetFetchResponseGroup.OffsetFetchResponseTopics
    OffsetFetchResponsePartitions = OffsetFetchResponseGroup.OffsetFetchResponseTopics.OffsetFetchResponsePartitions

    throttle_time_ms: int = int32(since=3, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, until=7)
    error_code: int = int16(since=2, until=7, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, since=8)


class OffsetDeleteRequest(RequestMessage["OffsetDeleteResponse"], key=47, versions=(0, 0)):
    """A request to delete committed offsets of topics that no member is subscribed to."""

    class OffsetDeleteRequestTopic(Struct):
        """A topic, with the partitions whose offsets to delete."""

        class OffsetDeleteRequestPartition(Struct):
            """A partition whose committed offset to delete."""

            partition_index: int = int32()

        name: str = string()
        partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)

    OffsetDeleteRequestPartition = OffsetDeleteRequestTopic.OffsetDeleteRequestPartition

    group_id: str = string()
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


class OffsetDeleteResponse(Message, key=47, versions=(0, 0)):
    """The response to OffsetDelete: an error code for each partition, by topic."""

    class OffsetDeleteResponseTopic(Struct):
        """One topic in the response to OffsetDelete, with the result for each partition."""

        class OffsetDeleteResponsePartition(Struct):
            """One partition in the response to OffsetDelete: its error code."""

            partition_index: int = int32()
            error_code: int = int16()

        name: str = string()
        partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)

    OffsetDeleteResponsePartition = OffsetDeleteResponseTopic.OffsetDeleteResponsePartition

    error_code: int = int16()
    throttle_time_ms: int = int32()
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic)
