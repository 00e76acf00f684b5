"""Committed offsets of groups, and offsets of partitions, as coroutines over a `Cluster`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from kohort.client.admin.routing import RequestAttempts, send_to_coordinators, send_to_leaders
from kohort.client.admin.values import ListedOffset, OffsetSpec, PartitionResults
from kohort.client.net.cluster import Between, BrokerById, Cluster
from kohort.client.offsets import HIGHEST_BY_NAME, OffsetAndMetadata, offset_fetch_request
from kohort.errors import ErrorCode, KafkaError, error_for
from kohort.ids import TopicPartition, by_topic
from kohort.wire.data import ListOffsetsRequest
from kohort.wire.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchResponse,
)

_Fetched: TypeAlias = (
    OffsetFetchResponse.OffsetFetchResponseTopic
    | OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics
)
_Topic: TypeAlias = OffsetCommitResponse.OffsetCommitResponseTopic | OffsetDeleteResponse.OffsetDeleteResponseTopic
_NAMED_TIMES = {"latest": -1, "earliest": -2, "max_timestamp": -3}
_STABLE_SINCE = 7
"""The first version of OffsetFetch that can wait for open transactions."""


async def list_consumer_group_offsets(
    cluster: Cluster,
    group: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
    timeout_ms: float | None = None,
) -> PartitionResults[OffsetAndMetadata | None]:
    """List a group's committed offsets; None: of all partitions that have one. One that has none is mapped to None."""
    if partitions is not None:
        partitions = list(partitions)

    request = Between(
        offset_fetch_request(group, partitions, require_stable=require_stable),
        lowest=_STABLE_SINCE if require_stable else 0,
        highest=HIGHEST_BY_NAME,
    )

    async def send_list_consumer_group_offsets(node: int, _: list[str]) -> dict[str, Sequence[_Fetched] | KafkaError]:
        answer = await cluster.send(request, BrokerById(node))
        response = answer.groups[0] if answer.groups else answer
        if response.error_code:
            return {group: error_for(response.error_code, f"group {group!r}")}
        return {group: response.topics}

    if partitions is not None and not partitions:
        return PartitionResults({}, {})
    topics = (
        await send_to_coordinators(
            cluster, [group], send_list_consumer_group_offsets, f"offsets of group {group!r}", timeout_ms
        )
    ).result(group)
    values: dict[TopicPartition, OffsetAndMetadata | None] = {}
    errors: dict[TopicPartition, KafkaError] = {}
    for topic in topics:
        for part in topic.partitions:
            key = TopicPartition(topic.name, part.partition_index)
            if part.error_code:
                errors[key] = error_for(part.error_code, f"{key}")
            elif part.committed_offset >= 0:
                values[key] = OffsetAndMetadata(part.committed_offset, part.metadata or "", part.committed_leader_epoch)
            elif partitions is not None:
                values[key] = None
    return PartitionResults(dict(sorted(values.items())), errors)


async def alter_consumer_group_offsets(
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
    *,
    timeout_ms: float | None = None,
) -> PartitionResults[None]:
    """Commit offsets for a group that has no members.

    The error of a partition is CommitFailedError if the group has members: Kafka takes commits from them alone.
    """

    def partition_entry(
        partition: TopicPartition,
    ) -> OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition:
        given = offsets[partition]
        offset = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
        return OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=partition.partition,
            committed_offset=offset.offset,
            committed_leader_epoch=offset.leader_epoch,
            committed_metadata=offset.metadata,
        )

    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=topic, partitions=[partition_entry(TopicPartition(topic, number)) for number in numbers]
            )
            for topic, numbers in by_topic(list(offsets)).items()
        ],
    )

    attempts = RequestAttempts[str]()

    async def send_alter_consumer_group_offsets(
        node: int, names: list[str]
    ) -> dict[str, Sequence[_Topic] | KafkaError]:
        wanted = Between(request, highest=HIGHEST_BY_NAME)
        answer = await cluster.send(wanted, BrokerById(node), leaving=attempts.sending(names))
        return {group: _moved(answer.topics) or answer.topics}

    what = f"set offsets of {group!r}"
    topics = (
        await send_to_coordinators(
            cluster, [group], send_alter_consumer_group_offsets, what, timeout_ms, attempts=attempts
        )
    ).result(group)
    return _outcomes(topics, group, attempts, {ErrorCode.UNKNOWN_MEMBER_ID: _HAS_MEMBERS})


async def delete_consumer_group_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition], *, timeout_ms: float | None = None
) -> PartitionResults[None]:
    """Delete committed offsets of partitions whose topics no member subscribes to (KIP-496).

    A partition without a committed offset is no error. When the call fails for the whole group, every partition has
    that error.
    """
    partitions = list(partitions)
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=topic,
                partitions=[
                    OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=number) for number in numbers
                ],
            )
            for topic, numbers in by_topic(partitions).items()
        ],
    )

    attempts = RequestAttempts[str]()

    async def send_delete_consumer_group_offsets(
        node: int, names: list[str]
    ) -> dict[str, Sequence[_Topic] | KafkaError]:
        answer = await cluster.send(request, BrokerById(node), leaving=attempts.sending(names))
        if answer.error_code:
            code = ErrorCode.of(answer.error_code)
            return {group: error_for(code, f"group {group!r}: {code.text}")}
        return {group: answer.topics}

    what = f"delete offsets of {group!r}"
    results = await send_to_coordinators(
        cluster, [group], send_delete_consumer_group_offsets, what, timeout_ms, attempts=attempts
    )
    if group in results.errors:
        return PartitionResults({}, {TopicPartition(*key): results.errors[group] for key in partitions})
    return _outcomes(results.result(group), group, attempts)


async def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, OffsetSpec],
    *,
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
    timeout_ms: float | None = None,
) -> PartitionResults[ListedOffset]:
    """Look up first, end, or by-time offsets of partitions."""
    times = {partition: spec if isinstance(spec, int) else _NAMED_TIMES[spec] for partition, spec in wanted.items()}

    async def send_list_offsets(
        node: int, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, ListedOffset | KafkaError]:
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(isolation_level == "read_committed"),
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsPartition(
                            partition_index=number, timestamp=times[TopicPartition(topic, number)]
                        )
                        for number in numbers
                    ],
                )
                for topic, numbers in by_topic(partitions).items()
            ],
        )
        answer = await cluster.send(request, BrokerById(node))
        return {
            TopicPartition(topic.name, part.partition_index): error_for(
                part.error_code,
                f"offsets of {topic.name}-{part.partition_index}: {ErrorCode.of(part.error_code).text}",
            )
            if part.error_code
            else ListedOffset(part.offset, part.timestamp, part.leader_epoch)
            for topic in answer.topics
            for part in topic.partitions
        }

    return PartitionResults.of(
        await send_to_leaders(cluster, list(times), send_list_offsets, "list offsets", timeout_ms)
    )


def _moved(topics: Sequence[_Topic]) -> KafkaError | None:
    """Return the first partition's error which says that the group's coordinator moved, is unavailable or loads.

    The caller then looks the coordinator up again. None: no partition has such an error.
    """
    moved = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    for topic in topics:
        for part in topic.partitions:
            if part.error_code in moved:
                return error_for(part.error_code)
    return None


_HAS_MEMBERS: Final = "the group has members, and takes commits from them alone: stop them first"
_OWN_TEXTS: Final[Mapping[ErrorCode, str]] = MappingProxyType({})


def _outcomes(
    topics: Sequence[_Topic], group: str, attempts: RequestAttempts[str], texts: Mapping[ErrorCode, str] = _OWN_TEXTS
) -> PartitionResults[None]:
    """Convert the partitions of a response to results: None, or the partition's error.

    For the error codes in `texts`, their text is used instead of the general text of the code.
    """
    values: dict[TopicPartition, None] = {}
    errors: dict[TopicPartition, KafkaError] = {}
    for topic in topics:
        for part in topic.partitions:
            key = TopicPartition(topic.name, part.partition_index)
            if part.error_code:
                code = ErrorCode.of(part.error_code)
                errors[key] = attempts.refusal_error(
                    group, error_for(code, f"{key} of group {group!r}: {texts.get(code, code.text)}")
                )
            else:
                values[key] = None
    return PartitionResults(values, errors)
