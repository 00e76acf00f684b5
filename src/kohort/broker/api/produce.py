"""Produce: batches are appended to the log unchanged, or recompressed if their topic requires it (`Recompression`).

Versions: 3 is the first with record batches v2, and 9 is flexible. Version 10 adds the leader to errors. Version 12
adds partitions to a transaction by producing to them (KIP-890). Version 13 names topics by id.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TypeAlias
from uuid import UUID

from kohort.broker.authorization import Resource, allowed
from kohort.broker.node import Node
from kohort.broker.server.dispatch import Handled, handled
from kohort.broker.server.requests import Request
from kohort.errors import ErrorCode, KafkaError, RecordsRefusedError
from kohort.ids import AclOperation, TopicPartition
from kohort.log import PartitionLog, is_as_wanted
from kohort.wire.batch import TRANSACTIONAL
from kohort.wire.data import ProduceRequest, ProduceResponse
from kohort.wire.schema import Buffer

log = logging.getLogger("kohort.broker")

_Data: TypeAlias = ProduceRequest.TopicProduceData.PartitionProduceData
_Topic: TypeAlias = ProduceResponse.TopicProduceResponse
_Partition: TypeAlias = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
_NO_ERRORS: list[ProduceResponse.TopicProduceResponse.PartitionProduceResponse.BatchIndexAndErrorMessage] = []
_Delayed: TypeAlias = tuple[str, _Data, _Partition]
"""A topic's name, its batches that need recompression, and the response that is filled in afterwards."""
PRODUCER = "producer"
"""The `compression.type` of topics whose batches are stored unchanged."""
ABORTABLE_SINCE = 11
"""The first version whose clients know TRANSACTION_ABORTABLE. Source: KIP-890."""
ATTRIBUTES_AT = 22
"""Position of the low attributes byte in a batch."""
_NO_LEADER = ProduceResponse.LeaderIdAndEpoch()
"""The absent leader of responses, shared because it is never modified."""


def produce(node: Node, request: Request[ProduceRequest]) -> None:
    """Append the batches of each partition; answered when all are written (acks=0: not at all)."""
    message = request.message
    whole = _refused_transaction(node, request) if node.authorizer is not None else 0
    by_id = request.version >= 13
    now_ms = time.time_ns() // 1_000_000
    responses: list[ProduceResponse.TopicProduceResponse] = []
    delayed: list[_Delayed] = []
    for topic in message.topic_data:
        name = _name_by_id(node, topic.topic_id) if by_id else topic.name
        error = whole or _refused(node, request, name, message.acks)
        answers = [
            _Partition(index=part.index, error_code=error, base_offset=-1)
            if error
            else _append(node, request, name, part, now_ms, delayed)
            for part in topic.partition_data
        ]
        responses.append(
            _Topic(topic_id=topic.topic_id, partition_responses=answers)
            if by_id
            else _Topic(name=topic.name, partition_responses=answers)
        )
    if delayed:
        _compress(node, request, delayed, responses, now_ms)
    else:
        _finish(request, responses)


def _refused_transaction(node: Node, request: Request[ProduceRequest]) -> int:
    """Return the error of a client that may not write in the request's transaction, or 0."""
    transactional_id = request.message.transactional_id
    if transactional_id is None or allowed(
        node, request, AclOperation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id
    ):
        return 0
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def _finish(request: Request[ProduceRequest], responses: list[ProduceResponse.TopicProduceResponse]) -> None:
    """Answer, if the client requested acknowledgements."""
    if request.message.acks != 0:
        request.reply(ProduceResponse(responses=responses))
    elif any(answer.error_code for topic in responses for answer in topic.partition_responses):
        # No response was requested, so only closing the connection makes the client refresh its metadata.
        log.info("%s: records with acks=0 rejected; closing the connection", request.name)
        request.connection.close()
    else:
        request.skip()


def _compress(
    node: Node,
    request: Request[ProduceRequest],
    delayed: list[_Delayed],
    responses: list[ProduceResponse.TopicProduceResponse],
    now_ms: int,
) -> None:
    """Recompress batches in a worker thread, then append them; answer after the last one."""
    left = len(delayed)
    held = sum(len(part.records) for _, part, _ in delayed)
    request.connection.hold(held)

    def done(name: str, part: _Data, answer: _Partition, target: object, result: bytes | KafkaError) -> None:
        nonlocal left
        if isinstance(result, KafkaError):
            found = _refusal(request, part.index, result)
        else:
            part.records = result
            now = node.store.get(name, part.index)  # another log if the topic was deleted and created again meanwhile
            found = _write(node, request, name, part, now_ms, now if now is target else None)
        for field in answer.FIELDS:
            setattr(answer, field.name, getattr(found, field.name))
        left -= 1
        if not left:
            request.connection.hold(-held)
            _finish(request, responses)

    for name, part, answer in delayed:
        target = node.store.get(name, part.index)
        assert target is not None
        part.records = bytes(part.records)  # the frame's memory is reused
        partition = TopicPartition(name, part.index)
        node.recompression.take(
            partition, part.records, target.config, now_ms, partial(done, name, part, answer, target)
        )


def _name_by_id(node: Node, topic_id: UUID) -> str | None:
    topic = node.store.topics_by_id.get(topic_id)
    return topic.name if topic is not None else None


def _refused(node: Node, request: Request[ProduceRequest], name: str | None, acks: int) -> int:
    if acks not in (-1, 0, 1):
        return ErrorCode.INVALID_REQUIRED_ACKS
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if node.authorizer is not None and not node.authorizer.allows(request, AclOperation.WRITE, Resource.TOPIC, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if name[:2] == "__" and node.topics.is_internal(name) and request.client_id != "__admin_client":
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return 0


def _is_transactional(records: Buffer) -> bool:
    """Return whether the first batch is transactional."""
    return len(records) > ATTRIBUTES_AT and bool(records[ATTRIBUTES_AT] & TRANSACTIONAL)


def _append(
    node: Node, request: Request[ProduceRequest], name: str | None, part: _Data, now_ms: int, delayed: list[_Delayed]
) -> _Partition:
    """Append a partition's batches. If they need recompression, fill in the response later."""
    assert name is not None
    target = node.store.get(name, part.index)
    if target is not None and part.records and target.config.compression_type != PRODUCER:
        waits = node.recompression.is_busy(TopicPartition(name, part.index))
        if waits or not is_as_wanted(part.records, target.config):
            answer = _Partition(index=part.index)
            delayed.append((name, part, answer))
            return answer
    return _write(node, request, name, part, now_ms, target)


def _write(
    node: Node, request: Request[ProduceRequest], name: str, part: _Data, now_ms: int, target: PartitionLog | None
) -> _Partition:
    index = part.index
    if target is None:
        return _Partition(index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, base_offset=-1)
    records = part.records
    if not records:
        return _Partition(
            index=index,
            error_code=ErrorCode.INVALID_RECORD,
            base_offset=-1,
            error_message="no record batch",
        )
    try:
        transactional_id = request.message.transactional_id
        if transactional_id is None:
            if _is_transactional(records):
                error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                return _Partition(index=index, error_code=error, base_offset=-1)
        else:
            partition = TopicPartition(name, index)
            node.transactions.check_produce(transactional_id, partition, records, adds=request.version >= 12)
        result = target.append(records, now_ms)
    except KafkaError as error:
        return _refusal(request, index, error)
    except OSError as error:
        log.error("%s-%d could not be written: %s", name, index, error)
        return _Partition(index=index, error_code=ErrorCode.KAFKA_STORAGE_ERROR, base_offset=-1)
    node.waits.appended(target, len(records))
    return _Partition(
        index=index,
        error_code=0,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
        record_errors=_NO_ERRORS,
        current_leader=_NO_LEADER,
    )


def _refusal(request: Request[ProduceRequest], index: int, error: KafkaError) -> _Partition:
    """Return the response for rejected batches."""
    code = error.code
    if code is ErrorCode.INVALID_TXN_STATE and request.version >= ABORTABLE_SINCE:
        code = ErrorCode.TRANSACTION_ABORTABLE
    refused = _Partition(index=index, error_code=code, base_offset=-1, error_message=error.message)
    if isinstance(error, RecordsRefusedError):
        refused.record_errors = [
            _Partition.BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=why)
            for at, why in error.records.items()
        ]
    return refused


HANDLERS: list[Handled[Node]] = [
    handled(ProduceRequest, ProduceResponse, produce),
]
