"""Produce: batches are checked, and appended to the log unchanged, or recompressed if their topic requires it.

Small batches are checked on the loop, large ones and those to recompress by worker threads (`RecordWorkers`).

Versions: 3 is the first with record batches v2, and 9 is flexible. Version 10 adds the leader to errors. Version 12
adds partitions to a transaction by producing to them (KIP-890). Version 13 names topics by id.
"""

from __future__ import annotations

import contextlib
import logging
import time
from functools import partial
from typing import NamedTuple, TypeAlias
from uuid import UUID

from kohort.broker.authorization import Resource, is_allowed
from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.node import Node
from kohort.broker.record_workers import ProducedBatches
from kohort.broker.server.requests import Request
from kohort.errors import ErrorCode, KafkaError, RecordsRefusedError
from kohort.ids import AclOperation, TopicPartition
from kohort.log import (
    BATCHES_MAX,
    PRODUCER,
    CheckedBatches,
    LoopBudget,
    PartitionLog,
    TooMuchForLoopError,
    has_topic_codec,
)
from kohort.wire.batch import HEADER_SIZE, TRANSACTIONAL, parse_header
from kohort.wire.data import ProduceRequest, ProduceResponse
from kohort.wire.schema import Buffer

log = logging.getLogger("kohort.broker")

_Data: TypeAlias = ProduceRequest.TopicProduceData.PartitionProduceData
_Topic: TypeAlias = ProduceResponse.TopicProduceResponse
_Partition: TypeAlias = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
_NO_ERRORS: list[ProduceResponse.TopicProduceResponse.PartitionProduceResponse.BatchIndexAndErrorMessage] = []
_Delayed: TypeAlias = tuple[str, _Data, _Partition]
"""A topic's name, its batches for a worker thread, and the response that is filled in afterwards."""


class _Turn(NamedTuple):
    """State that is shared by the partitions of one Produce request: its time, decompression budget and worker jobs."""

    now_ms: int
    budget: LoopBudget
    delayed: list[_Delayed]


ABORTABLE_SINCE = 11
"""The first version whose clients know TRANSACTION_ABORTABLE. Source: KIP-890."""
CONCURRENT_SINCE = 12
"""The first version whose clients try again after CONCURRENT_TRANSACTIONS. Source: KAFKA-18662."""
ADDS_SINCE = 12
"""The first version that adds partitions to a transaction by producing to them. Source: KIP-890."""
SIZE_END = 12
"""Position after the size of a batch, which counts the bytes from there."""
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
    turn = _Turn(now_ms, LoopBudget(), delayed)
    names = [_name_by_id(node, topic.topic_id) if by_id else topic.name for topic in message.topic_data]
    errors = [whole or _refused(node, request, name, message.acks) for name in names]
    if message.transactional_id is not None and request.version >= ADDS_SINCE:
        accepted = [None if error else name for name, error in zip(names, errors, strict=True)]
        _add_partitions(node, message, accepted)
    for topic, name, error in zip(message.topic_data, names, errors, strict=True):
        answers = [
            _Partition(index=part.index, error_code=error, base_offset=-1)
            if error
            else _append(node, request, name, part, turn)
            for part in topic.partition_data
        ]
        responses.append(
            _Topic(topic_id=topic.topic_id, partition_responses=answers)
            if by_id
            else _Topic(name=topic.name, partition_responses=answers)
        )
    if delayed:
        _prepare(node, request, delayed, responses, now_ms)
    else:
        _finish(request, responses)


def _refused_transaction(node: Node, request: Request[ProduceRequest]) -> int:
    """Return the error code if the client may not write with the request's transactional id, else 0."""
    transactional_id = request.message.transactional_id
    if transactional_id is None or is_allowed(
        node, request, AclOperation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id
    ):
        return 0
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def _add_partitions(node: Node, message: ProduceRequest, names: list[str | None]) -> None:
    """Add the partitions of a Produce request to its transaction by one write to the log, if there are several.

    Errors are ignored here: the later check of each batch reports them. Topics whose `name` is None were refused
    before.
    """
    added: dict[tuple[int, int], list[TopicPartition]] = {}
    for topic, name in zip(message.topic_data, names, strict=True):
        if name is None:
            continue
        for part in topic.partition_data:
            if part.records and node.store.get(name, part.index) is not None:
                with contextlib.suppress(KafkaError):  # a damaged header
                    header = parse_header(part.records)
                    if header.is_transactional:
                        producer = (header.producer_id, header.producer_epoch)
                        added.setdefault(producer, []).append(TopicPartition(name, part.index))
    for producer, partitions in added.items():
        if len(partitions) > 1:
            node.transactions.add_partitions(message.transactional_id or "", producer, partitions)


def _finish(request: Request[ProduceRequest], responses: list[ProduceResponse.TopicProduceResponse]) -> None:
    """Send the Produce response. With acks=0 send none, and close the connection if a partition was rejected."""
    if request.message.acks != 0:
        request.reply(ProduceResponse(responses=responses))
    elif any(answer.error_code for topic in responses for answer in topic.partition_responses):
        # No response was requested, so only closing the connection makes the client refresh its metadata.
        log.info(
            "records of request %s rejected: it has acks=0, so its connection is closed instead of an answer",
            request.name,
        )
        request.connection.close()
    else:
        request.send_no_response()


def _prepare(
    node: Node,
    request: Request[ProduceRequest],
    delayed: list[_Delayed],
    responses: list[ProduceResponse.TopicProduceResponse],
    now_ms: int,
) -> None:
    """Check or recompress the delayed batches in worker threads, append them, and respond after the last one."""
    left = len(delayed)
    held = sum(len(part.records) for _, part, _ in delayed)
    request.connection.count_retained_bytes(held)

    def on_batches_checked(
        name: str, part: _Data, answer: _Partition, target: object, result: CheckedBatches | KafkaError
    ) -> None:
        nonlocal left
        if isinstance(result, KafkaError):
            found = _rejected_response(request, part.index, result)
        else:
            part.records, _ = result
            now = node.store.get(name, part.index)  # another log if the topic was deleted and created again meanwhile
            found = _append_batches(node, request, name, part, (now if now is target else None, now_ms, result))
        for field in answer.FIELDS:
            setattr(answer, field.name, getattr(found, field.name))
        left -= 1
        if not left:
            request.connection.count_retained_bytes(-held)
            _finish(request, responses)

    for name, part, answer in delayed:
        target = node.store.get(name, part.index)
        assert target is not None
        part.records = bytes(part.records)  # the frame's memory is reused
        partition = TopicPartition(name, part.index)
        batches = ProducedBatches(partition, target, part.records, now_ms)
        node.records.check_produced(batches, partial(on_batches_checked, name, part, answer, target))


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
    """Return whether the first of a partition's batches is transactional."""
    return len(records) > ATTRIBUTES_AT and bool(records[ATTRIBUTES_AT] & TRANSACTIONAL)


def _check_same_producer(records: Buffer) -> None:
    """Reject batches of several producers, or of which only some are transactional.

    Rights and transactions are checked by the first batch. Kafka's producers send only one. Batches beyond the
    `BATCHES_MAX` of a request are left to the validator, which refuses them.

    Raises:
        KafkaError: the batches differ, or a header is damaged.
    """
    if len(records) <= SIZE_END + int.from_bytes(records[SIZE_END - 4 : SIZE_END], "big"):
        return  # one batch, as nearly always, or a damaged one
    first = parse_header(records)
    at = first.size
    for _ in range(BATCHES_MAX):
        if at + HEADER_SIZE > len(records):
            return
        header = parse_header(records, at)
        same_producer = (header.producer_id, header.producer_epoch) == (first.producer_id, first.producer_epoch)
        if not same_producer or header.is_transactional != first.is_transactional:
            raise KafkaError("batches of one partition have different producers", ErrorCode.INVALID_RECORD)
        at += header.size


def _append(node: Node, request: Request[ProduceRequest], name: str | None, part: _Data, turn: _Turn) -> _Partition:
    """Append one partition's batches to its log, and return its part of the response.

    If a worker thread has to check or recompress them first, that part is filled in later.
    """
    assert name is not None
    target = node.store.get(name, part.index)
    if target is None or not part.records:
        return _append_batches(node, request, name, part, (target, turn.now_ms, turn.budget))
    plain = target.config.compression_type == PRODUCER or has_topic_codec(part.records, target.config)
    if plain and not node.records.is_busy(TopicPartition(name, part.index)):
        with contextlib.suppress(TooMuchForLoopError):
            return _append_batches(node, request, name, part, (target, turn.now_ms, turn.budget))
    answer = _Partition(index=part.index)
    turn.delayed.append((name, part, answer))
    return answer


def _append_batches(
    node: Node,
    request: Request[ProduceRequest],
    name: str,
    part: _Data,
    how: tuple[PartitionLog | None, int, LoopBudget | CheckedBatches],
) -> _Partition:
    """Append one partition's batches to its log.

    They are checked on the loop, within the request's budget, unless a worker thread has checked them.
    """
    target, now_ms, checked = how
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
        _check_same_producer(records)
        transactional_id = request.message.transactional_id
        adds = transactional_id is not None and request.version >= ADDS_SINCE
        if transactional_id is None:
            if _is_transactional(records):
                error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                return _Partition(index=index, error_code=error, base_offset=-1)
        else:
            partition = TopicPartition(name, index)
            node.transactions.check_transactional_produce(transactional_id, partition, records, adds=adds)
        # The first batch of such a transaction has sequence 0. Another one overtook a batch that was refused, which
        # would then be refused for ever. Source: KAFKA-18202.
        if isinstance(checked, LoopBudget):
            result = target.append(records, now_ms, budget=checked, from_zero=adds)
        else:
            result = target.append_validated(checked, now_ms, from_zero=adds)
    except KafkaError as error:
        return _rejected_response(request, index, error)
    except OSError as error:
        log.error(
            "[partition %s-%d] could not be written, answering the producer with KAFKA_STORAGE_ERROR: %s",
            name,
            index,
            error,
        )
        return _Partition(index=index, error_code=ErrorCode.KAFKA_STORAGE_ERROR, base_offset=-1)
    node.waits.on_append(target, len(records))
    return _Partition(
        index=index,
        error_code=0,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
        record_errors=_NO_ERRORS,
        current_leader=_NO_LEADER,
    )


def _rejected_response(request: Request[ProduceRequest], index: int, error: KafkaError) -> _Partition:
    """Return the Produce response for a partition whose batches were rejected."""
    code = error.code
    if code is ErrorCode.INVALID_TXN_STATE and request.version >= ABORTABLE_SINCE:
        code = ErrorCode.TRANSACTION_ABORTABLE
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and request.version < CONCURRENT_SINCE:
        code = ErrorCode.NOT_ENOUGH_REPLICAS
    refused = _Partition(index=index, error_code=code, base_offset=-1, error_message=error.message)
    if isinstance(error, RecordsRefusedError):
        refused.record_errors = [
            _Partition.BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=why)
            for at, why in error.records.items()
        ]
    return refused


HANDLERS: list[ApiHandler[Node]] = [
    api_handler(ProduceRequest, ProduceResponse, produce),
]
