"""Share groups (KIP-932) and streams groups (KIP-1071), which their coordinators describe by requests of their own.

A share group has no committed offsets. Its position in a partition is the start offset: the first record that is not
acknowledged for good. Records after it may be acknowledged already, so the coordinator counts what is left (KIP-1226,
Kafka 4.2). Several members may read a partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kohort.client.admin.groups import SendRequest
from kohort.client.admin.values import GroupDescription, MemberDescription
from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import ErrorCode, KafkaError, error_for
from kohort.ids import TopicPartition
from kohort.wire.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from kohort.wire.streams_groups import StreamsGroupDescribeRequest, StreamsGroupDescribeResponse, StreamsTaskIds

SHARE, STREAMS = "share", "streams"
"""The types of these groups, in lower case."""

_OffsetsOfGroup: TypeAlias = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup


@dataclass(frozen=True, slots=True)
class ShareOffsets:
    """The offsets of a share group in its partitions.

    Attributes:
        starts: The start offset of each partition: all records before it are acknowledged.
        lags: The number of records from the start offset on that are not acknowledged; absent if the coordinator does
            not say.
        errors: The error for which the offsets of a partition are unavailable, by partition.
    """

    starts: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    lags: Mapping[TopicPartition, int] = field(default_factory=dict)
    errors: Mapping[TopicPartition, KafkaError] = field(default_factory=dict)


async def describe_share_groups(
    send: SendRequest, node: int, names: Sequence[str]
) -> dict[str, GroupDescription | KafkaError]:
    """Describe share groups by one request to their coordinator, `node`; return a description or an error for each.

    Raises:
        KafkaError: The coordinator does not know the request (UNSUPPORTED_VERSION), or does not answer.
    """
    answer = await send(ShareGroupDescribeRequest(group_ids=list(names)), node)
    return {group.group_id: _share_group(group, node) for group in answer.groups}


def _share_group(group: ShareGroupDescribeResponse.DescribedGroup, node: int) -> GroupDescription | KafkaError:
    if group.error_code:
        return _error(group.error_code, group.group_id, group.error_message)
    members = (
        MemberDescription(
            member.member_id,
            member.client_id,
            member.client_host,
            assignment=tuple(
                sorted(
                    TopicPartition(topic.topic_name, number)
                    for topic in member.assignment.topic_partitions
                    for number in topic.partitions
                )
            ),
            subscription=tuple(sorted(member.subscribed_topic_names)),
            rack_id=member.rack_id,
            epoch=member.member_epoch,
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id, "Share", group.group_state, SHARE, group.assignor_name, _sorted(members), node,
        group.group_epoch, group.assignment_epoch,
    )  # fmt: skip


async def describe_streams_groups(
    send: SendRequest, node: int, names: Sequence[str]
) -> dict[str, GroupDescription | KafkaError]:
    """Describe streams groups by one request to their coordinator, `node`; return a description or an error for each.

    A member's assignment has the partitions that its active tasks read.

    Raises:
        KafkaError: The coordinator does not know the request (UNSUPPORTED_VERSION), or does not answer.
    """
    answer = await send(StreamsGroupDescribeRequest(group_ids=list(names)), node)
    return {group.group_id: _streams_group(group, node) for group in answer.groups}


def _streams_group(group: StreamsGroupDescribeResponse.DescribedGroup, node: int) -> GroupDescription | KafkaError:
    if group.error_code:
        return _error(group.error_code, group.group_id, group.error_message)
    parts = [] if group.topology is None else group.topology.subtopologies or []
    topics = {
        part.subtopology_id: [*part.source_topics, *(topic.name for topic in part.repartition_source_topics)]
        for part in parts
    }
    members = (
        MemberDescription(
            member.member_id,
            member.client_id,
            member.client_host,
            member.instance_id,
            _read_by(member.assignment.active_tasks, topics),
            _read_by(member.target_assignment.active_tasks, topics),
            rack_id=member.rack_id,
            epoch=member.member_epoch,
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id, "Streams", group.group_state, STREAMS, group.assignor_name or "", _sorted(members), node,
        group.group_epoch, group.assignment_epoch,
    )  # fmt: skip


def _read_by(tasks: Iterable[StreamsTaskIds], topics: Mapping[str, Sequence[str]]) -> tuple[TopicPartition, ...]:
    """Return the partitions that streams tasks read.

    Some may not exist: a topic may have fewer partitions than there are tasks.
    """
    return tuple(
        sorted(
            TopicPartition(topic, number)
            for task in tasks
            for topic in topics.get(task.subtopology_id, ())
            for number in task.partitions
        )
    )


async def share_group_offsets(
    send: SendRequest, node: int, names: Sequence[str]
) -> dict[str, ShareOffsets | KafkaError]:
    """Return the offsets of share groups by one request to their coordinator, `node`, or an error for each.

    Raises:
        KafkaError: The coordinator does not know the request (UNSUPPORTED_VERSION), or does not answer.
    """
    group_type = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    request = DescribeShareGroupOffsetsRequest(groups=[group_type(group_id=name, topics=None) for name in names])
    answer = await send(request, node)
    return {group.group_id: _positions(group) for group in answer.groups}


def _positions(group: _OffsetsOfGroup) -> ShareOffsets | KafkaError:
    if group.error_code:
        return _error(group.error_code, group.group_id, group.error_message)
    starts: dict[TopicPartition, OffsetAndMetadata] = {}
    lags: dict[TopicPartition, int] = {}
    errors: dict[TopicPartition, KafkaError] = {}
    for topic in group.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.topic_name, part.partition_index)
            if part.error_code:
                text = part.error_message or f"start offset of group {group.group_id!r} in {tp}"
                errors[tp] = error_for(part.error_code, text)
            elif part.start_offset >= 0:
                starts[tp] = OffsetAndMetadata(part.start_offset)
                if part.lag >= 0:
                    lags[tp] = part.lag
    return ShareOffsets(starts, lags, errors)


def _error(code: int, group: str, text: str | None) -> KafkaError:
    found = ErrorCode.of(code)
    return error_for(found, f"group {group!r}: {text or found.text}")


def _sorted(members: Iterable[MemberDescription]) -> tuple[MemberDescription, ...]:
    return tuple(sorted(members, key=lambda member: (member.client_id, member.member_id)))
