"""AddOffsetsToTxn and TxnOffsetCommit: group offsets that take effect when a transaction commits.

Versions: TxnOffsetCommit 5 adds the group's partition to the transaction itself (KIP-890). Version 6 names
topics by id, and has errors for a missing group and a stale member epoch (KIP-1319).
"""

from __future__ import annotations

from kohort.broker.api.group_offsets import CommitPlan, topics_to_commit
from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.host import GroupHost
from kohort.broker.server.requests import Request
from kohort.broker.topics import OFFSETS_TOPIC
from kohort.errors import ErrorCode
from kohort.groups import events
from kohort.groups.effects import OffsetCommitReply
from kohort.ids import TopicPartition
from kohort.wire.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

NOT_TAKEN = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
"""The error if transactions can't include offsets here. Producers fail with it instead of retrying."""


KNOWS_LOADING = 2
"""The first TxnOffsetCommit version whose clients all wait for a loading coordinator."""


def error_for_version(error: ErrorCode, knows_fenced: bool) -> ErrorCode:
    """Return the error code for a client's version: PRODUCER_FENCED becomes INVALID_PRODUCER_EPOCH for older ones."""
    return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED and not knows_fenced else error


def add_offsets_to_txn(host: GroupHost, request: Request[AddOffsetsToTxnRequest]) -> AddOffsetsToTxnResponse:
    """Add a group's offsets to a transaction."""
    message = request.message
    if host.transactions is None:
        return AddOffsetsToTxnResponse(error_code=NOT_TAKEN)
    partition = TopicPartition(OFFSETS_TOPIC, host.groups.shard_index_of(message.group_id))
    if host.groups.is_damaged(partition.partition):  # the transaction could not be ended there
        return AddOffsetsToTxnResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    error = host.transactions.add_partitions(
        message.transactional_id, (message.producer_id, message.producer_epoch), [partition]
    )
    return AddOffsetsToTxnResponse(error_code=error_for_version(error, request.version >= 2))


def _known_to_old_clients(
    value: OffsetCommitReply | ErrorCode | None, version: int
) -> OffsetCommitReply | ErrorCode | None:
    """Replace COORDINATOR_LOAD_IN_PROGRESS by COORDINATOR_NOT_AVAILABLE for versions below KNOWS_LOADING.

    Those clients retry only the latter. Source: KAFKA-7296.
    """
    if value is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < KNOWS_LOADING:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return value


def txn_offset_commit(host: GroupHost, request: Request[TxnOffsetCommitRequest]) -> None:
    """Commit offsets as part of a transaction; they take effect when it commits."""
    message, version = request.message, request.version
    by_id = version >= 6
    plan = CommitPlan(topics_to_commit(host, request, message.topics, by_id), by_id)

    def reply_commit(value: OffsetCommitReply | ErrorCode | None) -> None:
        """Send the coordinator's reply, or one error for all partitions; None: the coordinator was not asked."""
        value = _known_to_old_clients(value, version)
        make = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition
        request.reply(
            TxnOffsetCommitResponse(
                topics=[
                    TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                        name="" if by_id else topic.name,
                        topic_id=topic.topic_id,
                        partitions=[make(partition_index=index, error_code=error) for index, error in parts],
                    )
                    for topic, parts in plan.topic_results(value)
                ]
            )
        )

    if (transactions := host.transactions) is None:
        reply_commit(NOT_TAKEN)
        return
    if not message.group_id or not plan.offsets:
        reply_commit(None if message.group_id else ErrorCode.INVALID_GROUP_ID)
        return
    producer = (message.producer_id, message.producer_epoch)
    partition = TopicPartition(OFFSETS_TOPIC, host.groups.shard_index_of(message.group_id))
    if host.groups.is_damaged(partition.partition):
        reply_commit(ErrorCode.UNKNOWN_SERVER_ERROR)
        return
    if not host.groups.accepts_transactional_offsets(partition.partition):
        reply_commit(NOT_TAKEN)
        return
    if version >= 5:
        error = transactions.add_partitions(message.transactional_id, producer, [partition])
    else:
        error = transactions.check_partition_in_transaction(message.transactional_id, producer, partition)
        if error is ErrorCode.INVALID_TXN_STATE and version >= 4:
            error = ErrorCode.TRANSACTION_ABORTABLE
    if error:
        reply_commit(ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error)
        return
    event = events.TxnOffsetCommit(
        request=host.next_request_id(),
        group_id=message.group_id,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        offsets=tuple(plan.offsets),
        member_id=message.member_id,
        generation=message.generation_id_or_member_epoch,
        instance_id=message.group_instance_id,
        transactional_id=message.transactional_id,
        knows_stale_epoch=version >= 6,
    )
    host.groups.ask(request.client, event, reply_commit)


HANDLERS: list[ApiHandler[GroupHost]] = [
    api_handler(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, add_offsets_to_txn),
    api_handler(TxnOffsetCommitRequest, TxnOffsetCommitResponse, txn_offset_commit),
]
