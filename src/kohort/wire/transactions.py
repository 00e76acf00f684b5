"""Idempotent and transactional producers.

Source: Kafka 4.4, message schemas.
"""

from __future__ import annotations

from uuid import UUID

from kohort.wire.message import Message, RequestMessage
from kohort.wire.schema import Struct, array, boolean, int8, int16, int32, int64, string, uuid


class InitProducerIdRequest(RequestMessage["InitProducerIdResponse"], key=22, versions=(0, 6), flexible=2):
    """A request for a producer id, or for a new epoch that fences the older producer."""

    transactional_id: str | None = string(nullable=True)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(since=3, default=-1)
    producer_epoch: int = int16(since=3, default=-1)
    enable2_pc: bool = boolean(since=6)
    keep_prepared_txn: bool = boolean(since=6)


class InitProducerIdResponse(Message, key=22, versions=(0, 6), flexible=2):
    """The response to InitProducerId: the producer id and epoch.

    From version 6 on, also those of an ongoing transaction (KIP-939).
    """

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64(since=6, default=-1)
    ongoing_txn_producer_epoch: int = int16(since=6, default=-1)


class AddPartitionsToTxnRequest(RequestMessage["AddPartitionsToTxnResponse"], key=24, versions=(0, 5), flexible=3):
    """A request to add partitions to a transaction; brokers batch transactions from version 4."""

    class AddPartitionsToTxnTransaction(Struct):
        """A transaction, with the partitions to add to it. `verify_only` asks whether they belong to it already."""

        class AddPartitionsToTxnTopic(Struct):
            """A topic, with the partitions to add."""

            name: str = string()
            partitions: list[int] = array(int32)

        transactional_id: str = string()
        producer_id: int = int64()
        producer_epoch: int = int16()
        verify_only: bool = boolean()
        topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic)

    AddPartitionsToTxnTopic = AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic

    v3_and_below_transactional_id: str = string(until=3)
    v3_and_below_producer_id: int = int64(until=3)
    v3_and_below_producer_epoch: int = int16(until=3)
    v3_and_below_topics: list[AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic] = array(
        AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic, until=3
    )
    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, since=4)


class AddPartitionsToTxnResponse(Message, key=24, versions=(0, 5), flexible=3):
    """The response to AddPartitionsToTxn: an error code for each partition, by topic, from version 4 by transaction."""

    class AddPartitionsToTxnResult(Struct):
        """One transaction in the response to AddPartitionsToTxn, with the results by topic."""

        class AddPartitionsToTxnTopicResult(Struct):
            """One topic in the response to AddPartitionsToTxn, with the result for each partition."""

            class AddPartitionsToTxnPartitionResult(Struct):
                """One partition in the response to AddPartitionsToTxn: its error code."""

                partition_index: int = int32()
                partition_error_code: int = int16()

            name: str = string()
            results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(AddPartitionsToTxnPartitionResult)

        transactional_id: str = string()
        topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult)

    AddPartitionsToTxnTopicResult = AddPartitionsToTxnResult.AddPartitionsToTxnTopicResult
    AddPartitionsToTxnPartitionResult = (
        AddPartitionsToTxnResult.AddPartitionsToTxnTopicResult.AddPartitionsToTxnPartitionResult
    )

    throttle_time_ms: int = int32()
    results_by_topic_v3_and_below: list[AddPartitionsToTxnResult.AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnResult.AddPartitionsToTxnTopicResult, until=3
    )
    error_code: int = int16(since=4, ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, since=4)


class AddOffsetsToTxnRequest(RequestMessage["AddOffsetsToTxnResponse"], key=25, versions=(0, 4), flexible=3):
    """A request to add a group's offsets to a transaction."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Message, key=25, versions=(0, 4), flexible=3):
    """The response to AddOffsetsToTxn: an error code."""

    throttle_time_ms: int = int32()
    error_code: int = int16()


class EndTxnRequest(RequestMessage["EndTxnResponse"], key=26, versions=(0, 5), flexible=3):
    """A request to commit or abort a transaction."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Message, key=26, versions=(0, 5), flexible=3):
    """The response to EndTxn: an error code, and from version 5 the producer's next id and epoch."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(since=5, default=-1, ignorable=True)
    producer_epoch: int = int16(since=5, default=-1, ignorable=True)


class WriteTxnMarkersRequest(RequestMessage["WriteTxnMarkersResponse"], key=27, versions=(1, 2), flexible=1):
    """The coordinator's order to write commit or abort markers."""

    class WritableTxnMarker(Struct):
        """The end of one producer's transaction, to write into its partitions. `transaction_result`: true commits."""

        class WritableTxnMarkerTopic(Struct):
            """A topic, with the partitions to write the marker into."""

            name: str = string()
            partition_indexes: list[int] = array(int32)

        producer_id: int = int64()
        producer_epoch: int = int16()
        transaction_result: bool = boolean()
        topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
        coordinator_epoch: int = int32()
        transaction_version: int = int8(since=2, ignorable=True)

    WritableTxnMarkerTopic = WritableTxnMarker.WritableTxnMarkerTopic

    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


class WriteTxnMarkersResponse(Message, key=27, versions=(1, 2), flexible=1):
    """The response to WriteTxnMarkers: an error code for each partition, by topic."""

    class WritableTxnMarkerResult(Struct):
        """One producer in the response to WriteTxnMarkers, with the results by topic."""

        class WritableTxnMarkerTopicResult(Struct):
            """One topic in the response to WriteTxnMarkers, with the result for each partition."""

            class WritableTxnMarkerPartitionResult(Struct):
                """One partition in the response to WriteTxnMarkers: its error code."""

                partition_index: int = int32()
                error_code: int = int16()

            name: str = string()
            partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)

        producer_id: int = int64()
        topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)

    WritableTxnMarkerTopicResult = WritableTxnMarkerResult.WritableTxnMarkerTopicResult
    WritableTxnMarkerPartitionResult = (
        WritableTxnMarkerResult.WritableTxnMarkerTopicResult.WritableTxnMarkerPartitionResult
    )

    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)


class TxnOffsetCommitRequest(RequestMessage["TxnOffsetCommitResponse"], key=28, versions=(0, 6), flexible=3):
    """A request to commit a group's offsets as part of a transaction."""

    class TxnOffsetCommitRequestTopic(Struct):
        """The offsets of one topic, which is named until version 5 and given by id later."""

        class TxnOffsetCommitRequestPartition(Struct):
            """The offset to commit for one partition, with the leader epoch of the last record and metadata."""

            partition_index: int = int32()
            committed_offset: int = int64()
            committed_leader_epoch: int = int32(since=2, default=-1, ignorable=True)
            committed_metadata: str | None = string(nullable=True)

        name: str = string(until=5, ignorable=True)
        topic_id: UUID = uuid(since=6, ignorable=True)
        partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)

    TxnOffsetCommitRequestPartition = TxnOffsetCommitRequestTopic.TxnOffsetCommitRequestPartition

    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id_or_member_epoch: int = int32(since=3, default=-1)
    member_id: str = string(since=3)
    group_instance_id: str | None = string(since=3, nullable=True, default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


class TxnOffsetCommitResponse(Message, key=28, versions=(0, 6), flexible=3):
    """The response to TxnOffsetCommit: an error code for each partition, by topic."""

    class TxnOffsetCommitResponseTopic(Struct):
        """One topic in the response to TxnOffsetCommit, with the result for each partition."""

        class TxnOffsetCommitResponsePartition(Struct):
            """One partition in the response to TxnOffsetCommit: its error code."""

            partition_index: int = int32()
            error_code: int = int16()

        name: str = string(until=5, ignorable=True)
        topic_id: UUID = uuid(since=6, ignorable=True)
        partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)

    TxnOffsetCommitResponsePartition = TxnOffsetCommitResponseTopic.TxnOffsetCommitResponsePartition

    throttle_time_ms: int = int32()
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)


class DescribeProducersRequest(RequestMessage["DescribeProducersResponse"], key=61, versions=(0, 0), flexible=0):
    """A request for the active producers of partitions."""

    class TopicRequest(Struct):
        """A topic, with the partitions whose producers are asked for."""

        name: str = string()
        partition_indexes: list[int] = array(int32)

    topics: list[TopicRequest] = array(TopicRequest)


class DescribeProducersResponse(Message, key=61, versions=(0, 0), flexible=0):
    """Active producers with their sequences and open transactions."""

    class TopicResponse(Struct):
        """One topic in the response to DescribeProducers, with the result for each partition."""

        class PartitionResponse(Struct):
            """The active producers of one partition, or why they can't be described."""

            class ProducerState(Struct):
                """A producer's last batch, and where its open transaction begins; -1: none is open."""

                producer_id: int = int64()
                producer_epoch: int = int32()
                last_sequence: int = int32(default=-1)
                last_timestamp: int = int64(default=-1)
                coordinator_epoch: int = int32()
                current_txn_start_offset: int = int64(default=-1)

            partition_index: int = int32()
            error_code: int = int16()
            error_message: str | None = string(nullable=True, default=None)
            active_producers: list[ProducerState] = array(ProducerState)

        name: str = string()
        partitions: list[PartitionResponse] = array(PartitionResponse)

    PartitionResponse = TopicResponse.PartitionResponse
    ProducerState = TopicResponse.PartitionResponse.ProducerState

    throttle_time_ms: int = int32()
    topics: list[TopicResponse] = array(TopicResponse)


class DescribeTransactionsRequest(RequestMessage["DescribeTransactionsResponse"], key=65, versions=(0, 0), flexible=0):
    """A request for the state of transactional ids."""

    transactional_ids: list[str] = array(string)


class DescribeTransactionsResponse(Message, key=65, versions=(0, 0), flexible=0):
    """State, timeout and partitions of each transaction."""

    class TransactionState(Struct):
        """A transaction's state, timeout, producer and partitions, or why it can't be described."""

        class TopicData(Struct):
            """Partitions of one topic in the transaction."""

            topic: str = string()
            partitions: list[int] = array(int32)

        error_code: int = int16()
        transactional_id: str = string()
        transaction_state: str = string()
        transaction_timeout_ms: int = int32()
        transaction_start_time_ms: int = int64()
        producer_id: int = int64()
        producer_epoch: int = int16()
        topics: list[TopicData] = array(TopicData)

    TopicData = TransactionState.TopicData

    throttle_time_ms: int = int32()
    transaction_states: list[TransactionState] = array(TransactionState)


class ListTransactionsRequest(RequestMessage["ListTransactionsResponse"], key=66, versions=(0, 2), flexible=0):
    """A request for the transactions of a coordinator."""

    state_filters: list[str] = array(string)
    producer_id_filters: list[int] = array(int64)
    duration_filter: int = int64(since=1, default=-1)
    transactional_id_pattern: str | None = string(since=2, nullable=True, default=None)


class ListTransactionsResponse(Message, key=66, versions=(0, 2), flexible=0):
    """The response to ListTransactions: transactional ids with producer and state."""

    class TransactionState(Struct):
        """A transactional id, with its producer and state."""

        transactional_id: str = string()
        producer_id: int = int64()
        transaction_state: str = string()

    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array(string)
    transaction_states: list[TransactionState] = array(TransactionState)
