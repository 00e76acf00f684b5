"""ListOffsets and OffsetForLeaderEpoch: start and end offsets, offsets by timestamp, and the end of leader epochs.

Versions: ListOffsets 1 returns one offset, 2 adds read_committed, 4 leader epochs, and 7 the latest timestamp. Versions
8 and 9 add tiered offsets, 10 a timeout, 11 the earliest offset still to be uploaded. OffsetForLeaderEpoch 2 adds
leader epochs.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from kohort.broker.authorization import CLUSTER_NAME, Resource, may_see, unauthorized_names
from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.node import Node
from kohort.broker.server.requests import Request
from kohort.errors import ErrorCode, KafkaError
from kohort.ids import AclOperation
from kohort.log import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    MAX_TIMESTAMP,
    Isolation,
    LoopBudget,
    PartitionLog,
    Search,
)
from kohort.wire.data import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_Asked: TypeAlias = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
_Listed: TypeAlias = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
_Ended: TypeAlias = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset
NEVER = 1 << 15
_SINCE = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""The first version that supports a special timestamp."""


def leader_epoch_error(log: PartitionLog, current_leader_epoch: int) -> int:
    """Check a client's leader epoch against the partition's; -1 is not checked. Source: KIP-320."""
    if current_leader_epoch in (-1, log.leader_epoch):
        return 0
    if current_leader_epoch < log.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH


def list_offsets(node: Node, request: Request[ListOffsetsRequest]) -> None:
    """Return an offset and its timestamp for each partition. Searches in large batches run in another thread."""
    node.records.search(_listing(node, request), request.reply, request.connection.close)


def _listing(node: Node, request: Request[ListOffsetsRequest]) -> Search[ListOffsetsResponse]:
    message = request.message
    isolation = Isolation.READ_COMMITTED if message.isolation_level == 1 else Isolation.READ_UNCOMMITTED
    budget = LoopBudget()
    topics = []
    names = [topic.name for topic in message.topics]
    hidden = unauthorized_names(node, request, AclOperation.DESCRIBE, Resource.TOPIC, names)
    for topic in message.topics:
        if topic.name in hidden:
            refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            answers = [_Listed(partition_index=part.partition_index, error_code=refused) for part in topic.partitions]
            topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=answers))
            continue
        asked = {part.partition_index: part for part in topic.partitions}
        twice = {
            index for index, times in Counter(part.partition_index for part in topic.partitions).items() if times > 1
        }
        answers = []
        for index, part in asked.items():
            if index in twice:
                answers.append(_Listed(partition_index=index, error_code=ErrorCode.INVALID_REQUEST))
            else:
                answers.append((yield from _list(node, topic.name, part, (isolation, request.version, budget))))
        topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


def _list(node: Node, topic: str, asked: _Asked, how: tuple[Isolation, int, LoopBudget]) -> Search[_Listed]:
    isolation, version, budget = how
    index = asked.partition_index
    if asked.timestamp < 0 and version < _SINCE.get(asked.timestamp, NEVER):
        return _Listed(partition_index=index, error_code=ErrorCode.UNSUPPORTED_VERSION)
    log = node.store.get(topic, index)
    error = leader_epoch_error(log, asked.current_leader_epoch) if log else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if log is None or error:
        return _Listed(partition_index=index, error_code=error)
    timestamp = asked.timestamp
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):  # nothing is tiered
        return _Listed(partition_index=index, leader_epoch=-1)
    try:
        found = yield from log.search_by_time(timestamp, isolation, budget)
    except KafkaError as refused:
        return _Listed(partition_index=index, error_code=refused.code)
    except OSError:
        return _Listed(partition_index=index, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    return _Listed(
        partition_index=index,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch if version >= 4 else -1,
    )


def offset_for_leader_epoch(node: Node, request: Request[OffsetForLeaderEpochRequest]) -> OffsetForLeaderEpochResponse:
    """Return where leader epochs ended, so that clients can detect truncation of the log."""
    make = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    hidden: frozenset[str] = frozenset()
    if not may_see(node, request, AclOperation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME):
        names = [topic.topic for topic in request.message.topics]
        hidden = unauthorized_names(node, request, AclOperation.DESCRIBE, Resource.TOPIC, names)
    return OffsetForLeaderEpochResponse(
        topics=[
            make(
                topic=topic.topic,
                partitions=[
                    _Ended(partition=part.partition, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                    if topic.topic in hidden
                    else _epoch_end(node, topic.topic, part)
                    for part in topic.partitions
                ],
            )
            for topic in request.message.topics
        ]
    )


def _epoch_end(
    node: Node, topic: str, asked: OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition
) -> OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset:
    log = node.store.get(topic, asked.partition)
    error = leader_epoch_error(log, asked.current_leader_epoch) if log else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if log is None or error:
        return OffsetForLeaderEpochResponse.EpochEndOffset(partition=asked.partition, error_code=error)
    epoch, end = log.end_offset_for_epoch(asked.leader_epoch)
    return OffsetForLeaderEpochResponse.EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end)


HANDLERS: list[ApiHandler[Node]] = [
    api_handler(ListOffsetsRequest, ListOffsetsResponse, list_offsets),
    api_handler(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, offset_for_leader_epoch),
]
