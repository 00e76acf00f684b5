"""InitProducerId and the transaction APIs, except those for offsets (`offset_transactions`).

Versions: InitProducerId 3 continues with an id and epoch. AddPartitionsToTxn 4 and later are for brokers and carry
several transactions. EndTxn 5 returns the next epoch (KIP-890). Clients with older versions, which do not know
PRODUCER_FENCED, get INVALID_PRODUCER_EPOCH instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import TypeAlias

from kohort.broker.api.offset_transactions import error_for_version
from kohort.broker.authorization import Resource, is_allowed, may_see, unauthorized_names
from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.node import Node
from kohort.broker.server.requests import Request, without_many_repeats
from kohort.broker.transactions.log import Status, Transaction
from kohort.errors import ErrorCode, InvalidInputError, KafkaError
from kohort.ids import AclOperation, TopicPartition, by_topic
from kohort.wire.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

log = logging.getLogger("kohort.broker")

_Topic: TypeAlias = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic


def init_producer_id(node: Node, request: Request[InitProducerIdRequest]) -> InitProducerIdResponse | None:
    """Answer InitProducerId: assign a producer id and epoch."""
    message, version = request.message, request.version
    transactional_id = message.transactional_id
    if refused := _refused_producer(node, request):
        return InitProducerIdResponse(error_code=refused, producer_epoch=-1)
    if (message.producer_id < 0) != (message.producer_epoch < 0):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    if transactional_id is None:
        try:
            return InitProducerIdResponse(producer_id=node.producer_ids.allocate(), producer_epoch=0)
        except OSError as error:  # the answer is Kafka's while it has no block of ids
            log.error("no producer id could be reserved on the disk, the producer retries: %s", error)
            return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=-1)
    if transactional_id == "":
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)

    def reply_with_producer_id(error: ErrorCode, producer_id: int, epoch: int) -> None:
        request.reply(
            InitProducerIdResponse(
                error_code=error_for_version(error, version >= 4), producer_id=producer_id, producer_epoch=epoch
            )
        )

    producer = (message.producer_id, message.producer_epoch)
    node.transactions.assign_producer_id(
        transactional_id, message.transaction_timeout_ms, producer, reply_with_producer_id
    )
    return None


def _refused_producer(node: Node, request: Request[InitProducerIdRequest]) -> ErrorCode:
    """Return the error if the client has no right to get a producer id, else NONE.

    Without a transactional id, a client may produce if it may write to any topic. Source: KIP-679.
    """
    transactional_id = request.message.transactional_id
    guard = node.authorizer
    if guard is None:
        return ErrorCode.NONE
    if transactional_id is not None:
        may = guard.allows(request, AclOperation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)
        return ErrorCode.NONE if may else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if guard.allows_on_any(request, AclOperation.WRITE, Resource.TOPIC):
        return ErrorCode.NONE
    may = is_allowed(node, request, AclOperation.IDEMPOTENT_WRITE, Resource.CLUSTER)
    return ErrorCode.NONE if may else ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def add_partitions_to_txn(node: Node, request: Request[AddPartitionsToTxnRequest]) -> AddPartitionsToTxnResponse:
    """Add partitions to transactions."""
    message, version = request.message, request.version
    if version >= 4:
        if not is_allowed(node, request, AclOperation.CLUSTER_ACTION, Resource.CLUSTER):
            return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        results = []
        for transaction in message.transactions:
            producer = (transaction.producer_id, transaction.producer_epoch)
            topics = _added(
                node, transaction.transactional_id, producer, transaction.topics, (transaction.verify_only, version)
            )
            results.append(
                AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                    transactional_id=transaction.transactional_id, topic_results=topics
                )
            )
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    producer = (message.v3_and_below_producer_id, message.v3_and_below_producer_epoch)
    transactional_id, asked = message.v3_and_below_transactional_id, message.v3_and_below_topics
    if not is_allowed(node, request, AclOperation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        topics = _results(asked, lambda _: code)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
    hidden = unauthorized_names(node, request, AclOperation.WRITE, Resource.TOPIC, [topic.name for topic in asked])
    topics = _added(node, transactional_id, producer, asked, (False, version), hidden)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)


def _added(
    node: Node,
    transactional_id: str,
    producer: tuple[int, int],
    topics: list[_Topic],
    ways: tuple[bool, int],
    hidden: Collection[str] = (),
) -> list[AddPartitionsToTxnResponse.AddPartitionsToTxnResult.AddPartitionsToTxnTopicResult]:
    """Add partitions to one transaction, or with `verify_only` check them; return the results by topic.

    Args:
        node: the broker.
        transactional_id: the transaction's id.
        producer: its producer id and epoch.
        topics: the partitions to add.
        ways: `verify_only` (check without adding), and the request's version.
        hidden: topics to which the client may not write.
    """
    verify_only, version = ways
    knows_fenced, from_client = version >= 2, version < 4
    wanted = [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]
    refused: dict[TopicPartition, ErrorCode] = {}
    for tp in wanted:
        if tp.topic in hidden or (from_client and node.topics.is_internal(tp.topic)):
            refused[tp] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif node.store.get(*tp) is None:
            refused[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    errors: dict[TopicPartition, ErrorCode] = {}
    if refused:
        errors = {tp: refused.get(tp, ErrorCode.OPERATION_NOT_ATTEMPTED) for tp in wanted}
    elif verify_only:
        errors = {tp: node.transactions.check_partition_in_transaction(transactional_id, producer, tp) for tp in wanted}
    else:
        error = node.transactions.add_partitions(transactional_id, producer, wanted)
        errors = dict.fromkeys(wanted, error)
    return _results(topics, lambda tp: error_for_version(errors[tp], knows_fenced))


def _results(
    topics: list[_Topic], error_of: Callable[[TopicPartition], ErrorCode]
) -> list[AddPartitionsToTxnResponse.AddPartitionsToTxnResult.AddPartitionsToTxnTopicResult]:
    make = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
    return [
        AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                make(partition_index=index, partition_error_code=error_of(TopicPartition(topic.name, index)))
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def end_txn(node: Node, request: Request[EndTxnRequest]) -> None:
    """Commit or abort a transaction."""
    message, version = request.message, request.version

    def reply_with_outcome(error: ErrorCode, producer_id: int, epoch: int) -> None:
        response = EndTxnResponse(error_code=error_for_version(error, version >= 2))
        if version >= 5:
            response.producer_id, response.producer_epoch = producer_id, epoch
        request.reply(response)

    producer = (message.producer_id, message.producer_epoch)
    node.transactions.end_transaction(
        message.transactional_id, producer, message.committed, version >= 5, reply_with_outcome
    )


def describe_transactions(node: Node, request: Request[DescribeTransactionsRequest]) -> DescribeTransactionsResponse:
    """Describe the state of transactional ids."""
    states = []
    for transactional_id in without_many_repeats(request.message.transactional_ids, str):
        known = node.transactions.get(transactional_id)
        state = DescribeTransactionsResponse.TransactionState(transactional_id=transactional_id)
        states.append(state)
        if not is_allowed(node, request, AclOperation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id):
            state.error_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            continue
        if known is None:
            unknown = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if transactional_id else ErrorCode.INVALID_REQUEST
            if not node.transactions.serves(transactional_id):
                unknown = ErrorCode.UNKNOWN_SERVER_ERROR
            state.error_code = unknown
            continue
        state.transaction_state = known.status.admin_name
        state.transaction_timeout_ms = known.timeout_ms
        state.transaction_start_time_ms = known.start_ms
        state.producer_id, state.producer_epoch = known.producer_id, known.epoch
        make = DescribeTransactionsResponse.TopicData
        state.topics = [
            make(topic=topic, partitions=parts)
            for topic, parts in by_topic(known.partitions).items()
            if is_allowed(node, request, AclOperation.DESCRIBE, Resource.TOPIC, topic)
        ]
    return DescribeTransactionsResponse(transaction_states=states)


def list_transactions(node: Node, request: Request[ListTransactionsRequest]) -> ListTransactionsResponse | None:
    """List transactional ids by state, producer, age and name. A pattern is matched in a thread."""
    message = request.message
    wanted = set(message.state_filters)
    producers = set(message.producer_id_filters)
    now_ms = time.time_ns() // 1_000_000
    age = message.duration_filter
    found = [
        transaction
        for transaction in node.transactions.all_transactions()
        if (not wanted or transaction.status.admin_name in wanted)
        and (not producers or transaction.producer_id in producers)
        and (age < 0 or now_ms - transaction.start_ms > age)
        and may_see(node, request, AclOperation.DESCRIBE, Resource.TRANSACTIONAL_ID, transaction.id)
    ]
    pattern = message.transactional_id_pattern if request.version >= 2 else None
    if not pattern:
        return _listed(message, found)

    def send_response(names: list[str] | InvalidInputError) -> None:
        if isinstance(names, InvalidInputError):
            request.reply(ListTransactionsResponse(error_code=names.code))
            return
        named = set(names)
        request.reply(_listed(message, [transaction for transaction in found if transaction.id in named]))

    node.match_names(pattern, [transaction.id for transaction in found], send_response)
    return None


def _listed(message: ListTransactionsRequest, found: list[Transaction]) -> ListTransactionsResponse:
    shown = {status.admin_name for status in Status}
    make = ListTransactionsResponse.TransactionState
    return ListTransactionsResponse(
        unknown_state_filters=[state for state in message.state_filters if state not in shown],
        transaction_states=[
            make(
                transactional_id=transaction.id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.status.admin_name,
            )
            for transaction in found
        ],
    )


def describe_producers(node: Node, request: Request[DescribeProducersRequest]) -> DescribeProducersResponse:
    """Answer DescribeProducers: return the idempotent producers that partitions have state of."""
    topics = []
    names = [topic.name for topic in request.message.topics]
    hidden = unauthorized_names(node, request, AclOperation.READ, Resource.TOPIC, names)
    for topic in request.message.topics:
        parts = []
        missing: tuple[ErrorCode, str | None] | None = None
        for index in dict.fromkeys(topic.partition_indexes):
            part = DescribeProducersResponse.PartitionResponse(partition_index=index)
            target = None if topic.name in hidden else node.store.get(topic.name, index)
            if target is None:
                missing = missing or (_refused_or_invalid if topic.name in hidden else _missing)(node, topic.name)
                part.error_code, part.error_message = missing
            else:
                part.active_producers = [
                    DescribeProducersResponse.ProducerState(
                        producer_id=producer_id,
                        producer_epoch=producer.epoch,
                        last_sequence=producer.batches[-1].last_sequence if producer.batches else -1,
                        last_timestamp=producer.batches[-1].timestamp if producer.batches else -1,
                        coordinator_epoch=producer.coordinator_epoch,
                        current_txn_start_offset=producer.first_open_offset,
                    )
                    for producer_id, producer in target.producers.by_id.items()
                ]
            parts.append(part)
        topics.append(DescribeProducersResponse.TopicResponse(name=topic.name, partitions=parts))
    return DescribeProducersResponse(topics=topics)


def _refused_or_invalid(node: Node, topic: str) -> tuple[ErrorCode, str | None]:
    """Return the error of a topic that the client may not read.

    For a name that no topic can have, that is INVALID_TOPIC_EXCEPTION: it reveals nothing.
    """
    invalid = node.topics.invalid_name_error(topic)
    if invalid is not None and invalid.code is ErrorCode.INVALID_TOPIC_EXCEPTION:
        return invalid.code, invalid.message
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED.text


def _missing(node: Node, topic: str) -> tuple[ErrorCode, str | None]:
    """Return the DescribeProducers error and its text for a partition that does not exist."""
    if topic in node.store.topics:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    try:
        node.store.check_topic(topic, 1)
    except KafkaError as error:
        return error.code, error.message
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic}"


HANDLERS: list[ApiHandler[Node]] = [
    api_handler(InitProducerIdRequest, InitProducerIdResponse, init_producer_id),
    api_handler(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, add_partitions_to_txn),
    api_handler(EndTxnRequest, EndTxnResponse, end_txn),
    api_handler(DescribeTransactionsRequest, DescribeTransactionsResponse, describe_transactions),
    api_handler(ListTransactionsRequest, ListTransactionsResponse, list_transactions),
    api_handler(DescribeProducersRequest, DescribeProducersResponse, describe_producers),
]
