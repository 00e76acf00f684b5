"""Answers with retriable errors, as a broker gives that is busy, loading, or unsure of an outcome."""

from __future__ import annotations

from typing import Any

from kohort.errors import ErrorCode
from kohort.wire.data import ListOffsetsRequest, ListOffsetsResponse, ProduceRequest, ProduceResponse
from kohort.wire.groups import FindCoordinatorRequest, FindCoordinatorResponse
from kohort.wire.offsets import OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse
from kohort.wire.transactions import EndTxnRequest, EndTxnResponse, InitProducerIdRequest, InitProducerIdResponse

LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def refusal(message: Any, *, unsure: bool = False) -> Any:
    """Return a response with a retriable error to a request; None for requests that never get one.

    Args:
        message: the request.
        unsure: the request was carried out, and the broker does not know that.
    """
    if isinstance(message, ProduceRequest):
        return _produce(
            message, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if unsure else ErrorCode.NOT_ENOUGH_REPLICAS
        )
    if isinstance(message, OffsetCommitRequest):
        return _commit(message, ErrorCode.REQUEST_TIMED_OUT if unsure else LOADING)
    if isinstance(message, OffsetFetchRequest):
        make = OffsetFetchResponse.OffsetFetchResponseGroup
        return OffsetFetchResponse(groups=[make(group_id=message.groups[0].group_id, error_code=int(LOADING))])
    if isinstance(message, ListOffsetsRequest):
        return _list_offsets(message)
    if isinstance(message, FindCoordinatorRequest):
        code = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        found = FindCoordinatorResponse.Coordinator(key=message.coordinator_keys[0], node_id=-1, error_code=code)
        return FindCoordinatorResponse(coordinators=[found])
    if isinstance(message, InitProducerIdRequest):
        return InitProducerIdResponse(error_code=int(LOADING))
    if isinstance(message, EndTxnRequest):
        return EndTxnResponse(error_code=int(LOADING))
    return None


def _produce(message: ProduceRequest, code: ErrorCode) -> ProduceResponse:
    make = ProduceResponse.PartitionProduceResponse
    return ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[make(index=part.index, error_code=int(code)) for part in topic.partition_data],
            )
            for topic in message.topic_data
        ]
    )


def _commit(message: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    topic_type = OffsetCommitResponse.OffsetCommitResponseTopic
    make = topic_type.OffsetCommitResponsePartition
    return OffsetCommitResponse(
        topics=[
            topic_type(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    make(partition_index=part.partition_index, error_code=int(code)) for part in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def _list_offsets(message: ListOffsetsRequest) -> ListOffsetsResponse:
    make, code = ListOffsetsResponse.ListOffsetsPartitionResponse, int(ErrorCode.KAFKA_STORAGE_ERROR)
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[make(partition_index=part.partition_index, error_code=code) for part in topic.partitions],
            )
            for topic in message.topics
        ]
    )
