"""Transactions and the producers behind them, as coroutines over a `Cluster`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kohort.client.admin.routing import error_of_result, send_to_coordinators, send_to_leaders
from kohort.client.admin.values import (
    PartitionResults,
    ProducerIdentity,
    ProducerState,
    Results,
    TransactionDescription,
    TransactionListing,
)
from kohort.client.net.cluster import TRANSACTION, Between, BrokerById, Cluster, Coordinator
from kohort.errors import ErrorCode, KafkaError, NotAuthorizedError, error_for
from kohort.ids import TopicPartition, by_topic
from kohort.wire.transactions import (
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)

_HIGHEST_ADD_BY_CLIENTS = 3
"""Later versions of AddPartitionsToTxn are for brokers only."""
_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
_FENCE_TIMEOUT_MS = 30_000
"""Transaction timeout of a producer that only fences another one, and begins no transaction.

Kafka's coordinator waits this long for its replicas when it stores the new epoch: with 1 ms, a cluster of three brokers
refuses most requests. Source: KAFKA-16047.
"""


async def check_transaction_rights(cluster: Cluster, transactional_id: str, topics: Iterable[str]) -> None:
    """Check that this client may use a transactional id and write to topics, without a transaction or fencing.

    An AddPartitionsToTxn request with the invalid producer id -1 is sent: brokers check its rights before the id.
    Nothing is checked at a broker that has only the versions of this request which are for brokers.

    Raises:
        NotAuthorizedError: A right is missing; names the topic or the transactional id.
    """
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=-1,
        v3_and_below_producer_epoch=-1,
        v3_and_below_topics=[topic(name=name, partitions=[0]) for name in topics],
    )

    async def check_rights_once() -> None:
        to = Coordinator(transactional_id, TRANSACTION)
        await cluster.coordinator(to)  # whose own errors count
        try:
            answer = await cluster.send(Between(request, highest=_HIGHEST_ADD_BY_CLIENTS), to)
        except KafkaError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                return
            raise
        for entry in answer.results_by_topic_v3_and_below:
            for part in entry.results_by_partition:
                code = ErrorCode.of(part.partition_error_code)
                if code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                    raise NotAuthorizedError(f"No right to WRITE with the transactional id {transactional_id}", code)
                if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    raise NotAuthorizedError(f"No right to WRITE to topic {entry.name}", code)
                if code in _MOVED:
                    cluster.forget_coordinator(to)
                    raise error_for(code, f"rights of transactional id {transactional_id}: {code.text}")

    await cluster.retry_call(check_rights_once, "check of rights", None)


async def list_transactions(
    cluster: Cluster,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    open_for_ms: int | None = None,
    pattern: str | None = None,
    timeout_ms: float | None = None,
) -> list[TransactionListing]:
    """List the transactional ids of every coordinator, sorted; each once, also while its coordinator changes.

    Args:
        states: Only of these states (Ongoing, PrepareAbort …).
        producer_ids: Only of these producers.
        open_for_ms: Only those whose transaction is open for longer.
        pattern: Only ids that this regular expression matches in full (Kafka 4.1 and later).
    """
    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=-1 if open_for_ms is None else open_for_ms,
        transactional_id_pattern=pattern,
    )

    async def list_transactions_once() -> list[TransactionListing]:
        listings: dict[str, TransactionListing] = {}
        for node in sorted((await cluster.refresh_metadata(timeout_ms)).brokers):
            answer = await cluster.send(request, BrokerById(node))
            if answer.error_code:
                raise error_for(answer.error_code, f"broker {node} did not list its transactions")
            if answer.unknown_state_filters:
                unknown = ", ".join(answer.unknown_state_filters)
                raise error_for(ErrorCode.INVALID_REQUEST, f"no states of transactions: {unknown}")
            for state in answer.transaction_states:
                listings[state.transactional_id] = TransactionListing(
                    state.transactional_id, state.producer_id, state.transaction_state, node
                )
        return [listing for _, listing in sorted(listings.items())]

    return await cluster.retry_call(list_transactions_once, "list transactions", timeout_ms)


async def describe_transactions(
    cluster: Cluster, transactional_ids: Iterable[str], *, timeout_ms: float | None = None
) -> Results[str, TransactionDescription]:
    """Describe state, producer and partitions of transactional ids."""

    async def send_describe_transactions(node: int, names: list[str]) -> dict[str, TransactionDescription | KafkaError]:
        answer = await cluster.send(DescribeTransactionsRequest(transactional_ids=names), BrokerById(node))
        return {state.transactional_id: _described(state, node) for state in answer.transaction_states}

    return await send_to_coordinators(
        cluster, list(transactional_ids), send_describe_transactions, "describe transactions", timeout_ms, TRANSACTION
    )


def _described(state: DescribeTransactionsResponse.TransactionState, node: int) -> TransactionDescription | KafkaError:
    if state.error_code:
        return error_of_result(state, f"transactional id {state.transactional_id!r}")
    return TransactionDescription(
        state.transactional_id,
        state.transaction_state,
        state.producer_id,
        state.producer_epoch,
        state.transaction_timeout_ms,
        None if state.transaction_start_time_ms < 0 else state.transaction_start_time_ms,
        tuple(sorted(TopicPartition(topic.topic, number) for topic in state.topics for number in topic.partitions)),
        node,
    )


async def fence_producers(
    cluster: Cluster, transactional_ids: Iterable[str], *, timeout_ms: float | None = None
) -> Results[str, ProducerIdentity]:
    """Fence the producers of transactional ids, and abort their open transactions.

    Returns:
        The new identities.
    """

    async def send_fence_producers(node: int, names: list[str]) -> dict[str, ProducerIdentity | KafkaError]:
        outcomes: dict[str, ProducerIdentity | KafkaError] = {}
        for name in names:
            request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=_FENCE_TIMEOUT_MS)
            answer = await cluster.send(request, BrokerById(node))
            outcomes[name] = (
                error_of_result(answer, f"transactional id {name!r}")
                if answer.error_code
                else ProducerIdentity(answer.producer_id, answer.producer_epoch)
            )
        return outcomes

    return await send_to_coordinators(
        cluster, list(transactional_ids), send_fence_producers, "fence producers", timeout_ms, TRANSACTION
    )


async def describe_producers(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, timeout_ms: float | None = None
) -> PartitionResults[tuple[ProducerState, ...]]:
    """Describe the producers that recently wrote to partitions, with the start of each open transaction there."""

    async def send_describe_producers(
        node: int, wanted: list[TopicPartition]
    ) -> dict[TopicPartition, tuple[ProducerState, ...] | KafkaError]:
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=numbers)
                for topic, numbers in by_topic(wanted).items()
            ]
        )
        answer = await cluster.send(request, BrokerById(node))
        return {
            TopicPartition(topic.name, part.partition_index): error_of_result(
                part, f"{topic.name}-{part.partition_index}"
            )
            if part.error_code
            else tuple(_producer(producer) for producer in part.active_producers)
            for topic in answer.topics
            for part in topic.partitions
        }

    chosen = [TopicPartition(*partition) for partition in partitions]
    return PartitionResults.of(
        await send_to_leaders(cluster, chosen, send_describe_producers, "describe producers", timeout_ms)
    )


def _producer(state: DescribeProducersResponse.TopicResponse.PartitionResponse.ProducerState) -> ProducerState:
    return ProducerState(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch,
        None if state.current_txn_start_offset < 0 else state.current_txn_start_offset,
    )


async def abort_transaction(
    cluster: Cluster, partition: TopicPartition, producer: ProducerState, *, timeout_ms: float | None = None
) -> None:
    """Abort a hanging transaction in one partition, which its coordinator no longer knows (KIP-664).

    The marker is written to this partition alone. Use it for a transaction that `describe_producers` shows as open
    while `describe_transactions` does not. `fence_producers` ends a transaction that its coordinator knows.

    Raises:
        KafkaError: The partition's leader refused, for example because it is another transaction by now.
    """
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transaction_result=False,
        topics=[
            WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])
        ],
        coordinator_epoch=max(0, producer.coordinator_epoch),
    )

    async def send_abort_transaction(node: int, _: list[TopicPartition]) -> dict[TopicPartition, KafkaError | None]:
        answer = await cluster.send(WriteTxnMarkersRequest(markers=[marker]), BrokerById(node))
        return {
            TopicPartition(topic.name, part.partition_index): error_for(
                part.error_code, f"transaction of producer {producer.producer_id} in {partition}"
            )
            if part.error_code
            else None
            for written in answer.markers
            for topic in written.topics
            for part in topic.partitions
        }

    chosen = TopicPartition(*partition)
    outcomes = await send_to_leaders(cluster, [chosen], send_abort_transaction, "abort transaction", timeout_ms)
    outcome = outcomes[chosen]
    if outcome is not None:
        raise outcome
