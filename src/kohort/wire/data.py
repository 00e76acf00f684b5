"""Messages about records: produce, fetch, and where a log starts and ends.

Source: Kafka 4.4, message schemas.
"""

from __future__ import annotations

from uuid import UUID

from kohort.wire.message import Message, RequestMessage
from kohort.wire.schema import Records, Struct, array, int8, int16, int32, int64, records, string, struct, uuid


class ProduceRequest(RequestMessage["ProduceResponse"], key=0, versions=(3, 13), flexible=9):
    """A request to append record batches to partitions; topics by id from version 13."""

    class TopicProduceData(Struct):
        """The batches for one topic, which is named until version 12 and given by id later."""

        class PartitionProduceData(Struct):
            """The record batches for one partition."""

            index: int = int32()
            records: Records = records(nullable=True)

        name: str = string(until=12, ignorable=True)
        topic_id: UUID = uuid(since=13, ignorable=True)
        partition_data: list[PartitionProduceData] = array(PartitionProduceData)

    PartitionProduceData = TopicProduceData.PartitionProduceData

    transactional_id: str | None = string(nullable=True, default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


class ProduceResponse(Message, key=0, versions=(3, 13), flexible=9):
    """The response to Produce: the base offset of each partition's batch, or its error and the records to blame."""

    class TopicProduceResponse(Struct):
        """One topic in the response to Produce, with the result for each partition."""

        class PartitionProduceResponse(Struct):
            """The base offset of the appended batch, or why the batch was rejected."""

            class BatchIndexAndErrorMessage(Struct):
                """Why one record of the batch was rejected, by its index."""

                batch_index: int = int32()
                batch_index_error_message: str | None = string(nullable=True, default=None)

            class LeaderIdAndEpoch(Struct):
                """The partition's current leader, sent with an error that says this broker is not the leader."""

                leader_id: int = int32(default=-1)
                leader_epoch: int = int32(default=-1)

            index: int = int32()
            error_code: int = int16()
            base_offset: int = int64()
            log_append_time_ms: int = int64(default=-1)
            log_start_offset: int = int64(since=5, default=-1, ignorable=True)
            record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, since=8, ignorable=True)
            error_message: str | None = string(since=8, nullable=True, default=None, ignorable=True)
            current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, since=10, tag=0)

        name: str = string(until=12, ignorable=True)
        topic_id: UUID = uuid(since=13, ignorable=True)
        partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)

    class NodeEndpoint(Struct):
        """The address of a leader that the response names."""

        node_id: int = int32()
        host: str = string()
        port: int = int32()
        rack: str | None = string(nullable=True, default=None)

    PartitionProduceResponse = TopicProduceResponse.PartitionProduceResponse
    BatchIndexAndErrorMessage = TopicProduceResponse.PartitionProduceResponse.BatchIndexAndErrorMessage
    LeaderIdAndEpoch = TopicProduceResponse.PartitionProduceResponse.LeaderIdAndEpoch

    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32()
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=10, tag=0)


class FetchRequest(RequestMessage["FetchResponse"], key=1, versions=(4, 18), flexible=12):
    """A request for records from positions, in a fetch session or without; topics by id from version 13."""

    class FetchTopic(Struct):
        """The partitions to fetch of one topic, which is named until version 12 and given by id later."""

        class FetchPartition(Struct):
            """The offset to fetch from, with the epochs that reveal a truncated log, and a limit in bytes."""

            partition: int = int32()
            current_leader_epoch: int = int32(since=9, default=-1, ignorable=True)
            fetch_offset: int = int64()
            last_fetched_epoch: int = int32(since=12, default=-1, ignorable=True)
            log_start_offset: int = int64(since=5, default=-1, ignorable=True)
            partition_max_bytes: int = int32()
            replica_directory_id: UUID = uuid(since=17, tag=0, ignorable=True)
            high_watermark: int = int64(since=18, tag=1, default=9223372036854775807, ignorable=True)

        topic: str = string(until=12, ignorable=True)
        topic_id: UUID = uuid(since=13, ignorable=True)
        partitions: list[FetchPartition] = array(FetchPartition)

    class ForgottenTopic(Struct):
        """Partitions to remove from the fetch session."""

        topic: str = string(until=12, ignorable=True)
        topic_id: UUID = uuid(since=13, ignorable=True)
        partitions: list[int] = array(int32)

    class ReplicaState(Struct):
        """The broker that fetches as a follower; -1 for a consumer."""

        replica_id: int = int32(default=-1)
        replica_epoch: int = int64(default=-1)

    FetchPartition = FetchTopic.FetchPartition

    replica_id: int = int32(until=14, default=-1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=2_147_483_647)
    isolation_level: int = int8()
    session_id: int = int32(since=7, ignorable=True)
    session_epoch: int = int32(since=7, default=-1, ignorable=True)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, since=7)
    rack_id: str = string(since=11, ignorable=True)
    cluster_id: str | None = string(since=12, nullable=True, tag=0, default=None, ignorable=True)
    replica_state: ReplicaState = struct(ReplicaState, since=15, tag=1)


class FetchResponse(Message, key=1, versions=(4, 18), flexible=12):
    """The response to Fetch: record sets, high watermarks and aborted transactions.

    `damage` is not Kafka's: with CORRUPT_MESSAGE kohort's broker describes the damage, only to kohort's clients. Its
    tag spells "kq" and is far above Kafka's tags, which are assigned consecutively.
    """

    class FetchableTopicResponse(Struct):
        """One topic in the response to Fetch, with the result for each partition."""

        class PartitionData(Struct):
            """The records of one partition with the bounds of its log, or why there are none."""

            class AbortedTransaction(Struct):
                """An aborted transaction, whose records a read-committed consumer leaves out from `first_offset` on."""

                producer_id: int = int64()
                first_offset: int = int64()

            class EpochEndOffset(Struct):
                """The largest epoch up to the fetcher's last one, and where it ends.

                It tells a fetcher where to truncate.
                """

                epoch: int = int32(default=-1)
                end_offset: int = int64(default=-1)

            class LeaderIdAndEpoch(Struct):
                """The partition's current leader, sent with an error that says this broker is not the leader."""

                leader_id: int = int32(default=-1)
                leader_epoch: int = int32(default=-1)

            class SnapshotId(Struct):
                """The snapshot that a follower of the metadata topic should fetch instead."""

                end_offset: int = int64(default=-1)
                epoch: int = int32(default=-1)

            partition_index: int = int32()
            error_code: int = int16()
            high_watermark: int = int64()
            last_stable_offset: int = int64(default=-1)
            log_start_offset: int = int64(since=5, default=-1, ignorable=True)
            aborted_transactions: list[AbortedTransaction] | None = array(AbortedTransaction, nullable=True)
            preferred_read_replica: int = int32(since=11, default=-1)
            records: Records = records(nullable=True)
            diverging_epoch: EpochEndOffset = struct(EpochEndOffset, since=12, tag=0)
            current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, since=12, tag=1)
            snapshot_id: SnapshotId = struct(SnapshotId, since=12, tag=2)
            damage: str = string(since=12, tag=0x6B71, ignorable=True)

        topic: str = string(until=12, ignorable=True)
        topic_id: UUID = uuid(since=13, ignorable=True)
        partitions: list[PartitionData] = array(PartitionData)

    PartitionData = FetchableTopicResponse.PartitionData
    AbortedTransaction = FetchableTopicResponse.PartitionData.AbortedTransaction
    EpochEndOffset = FetchableTopicResponse.PartitionData.EpochEndOffset
    LeaderIdAndEpoch = FetchableTopicResponse.PartitionData.LeaderIdAndEpoch
    SnapshotId = FetchableTopicResponse.PartitionData.SnapshotId

    throttle_time_ms: int = int32()
    error_code: int = int16(since=7, ignorable=True)
    session_id: int = int32(since=7)
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[ProduceResponse.NodeEndpoint] = array(ProduceResponse.NodeEndpoint, since=16, tag=0)


class ListOffsetsRequest(RequestMessage["ListOffsetsResponse"], key=2, versions=(1, 11), flexible=6):
    """A request for offsets by time, or -1 latest, -2 earliest, -3 largest timestamp, -4 and -5 tiered storage."""

    class ListOffsetsTopic(Struct):
        """A topic, with the partitions whose offsets are asked for."""

        class ListOffsetsPartition(Struct):
            """The time whose offset is asked for: milliseconds, or a negative number: -1 latest, -2 earliest."""

            partition_index: int = int32()
            current_leader_epoch: int = int32(since=4, default=-1, ignorable=True)
            timestamp: int = int64()

        name: str = string()
        partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)

    ListOffsetsPartition = ListOffsetsTopic.ListOffsetsPartition

    replica_id: int = int32()
    isolation_level: int = int8(since=2)
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32(since=10, ignorable=True)


class ListOffsetsResponse(Message, key=2, versions=(1, 11), flexible=6):
    """The response to ListOffsets: for each partition the offset and timestamp found; -1: none."""

    class ListOffsetsTopicResponse(Struct):
        """One topic in the response to ListOffsets, with the result for each partition."""

        class ListOffsetsPartitionResponse(Struct):
            """The offset that was found for one partition, with its timestamp and leader epoch; -1: none."""

            partition_index: int = int32()
            error_code: int = int16()
            timestamp: int = int64(default=-1)
            offset: int = int64(default=-1)
            leader_epoch: int = int32(since=4, default=-1)

        name: str = string()
        partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)

    ListOffsetsPartitionResponse = ListOffsetsTopicResponse.ListOffsetsPartitionResponse

    throttle_time_ms: int = int32(since=2, ignorable=True)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)


class OffsetForLeaderEpochRequest(RequestMessage["OffsetForLeaderEpochResponse"], key=23, versions=(2, 4), flexible=4):
    """A request for the ends of leader epochs, to detect a truncated log."""

    class OffsetForLeaderTopic(Struct):
        """A topic, with the partitions whose epochs are asked for."""

        class OffsetForLeaderPartition(Struct):
            """The epoch whose end is asked for, and the leader epoch that the caller knows."""

            partition: int = int32()
            current_leader_epoch: int = int32(default=-1)
            leader_epoch: int = int32()

        topic: str = string()
        partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)

    OffsetForLeaderPartition = OffsetForLeaderTopic.OffsetForLeaderPartition

    replica_id: int = int32(since=3, default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


class OffsetForLeaderEpochResponse(Message, key=23, versions=(2, 4), flexible=4):
    """The response to OffsetForLeaderEpoch: where each requested leader epoch ends."""

    class OffsetForLeaderTopicResult(Struct):
        """One topic in the response to OffsetForLeaderEpoch, with the result for each partition."""

        class EpochEndOffset(Struct):
            """The largest epoch up to the one asked for, and where it ends; -1: unknown."""

            error_code: int = int16()
            partition: int = int32()
            leader_epoch: int = int32(default=-1)
            end_offset: int = int64(default=-1)

        topic: str = string()
        partitions: list[EpochEndOffset] = array(EpochEndOffset)

    EpochEndOffset = OffsetForLeaderTopicResult.EpochEndOffset

    throttle_time_ms: int = int32()
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)


class DeleteRecordsRequest(RequestMessage["DeleteRecordsResponse"], key=21, versions=(0, 2), flexible=2):
    """A request to delete records before an offset; -1 is the high watermark."""

    class DeleteRecordsTopic(Struct):
        """A topic, with the partitions to delete records of."""

        class DeleteRecordsPartition(Struct):
            """The offset below which to delete; -1: the high-water mark."""

            partition_index: int = int32()
            offset: int = int64()

        name: str = string()
        partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)

    DeleteRecordsPartition = DeleteRecordsTopic.DeleteRecordsPartition

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = int32()


class DeleteRecordsResponse(Message, key=21, versions=(0, 2), flexible=2):
    """The response to DeleteRecords: the new log start offset of each partition, or its error."""

    class DeleteRecordsTopicResult(Struct):
        """One topic in the response to DeleteRecords, with the result for each partition."""

        class DeleteRecordsPartitionResult(Struct):
            """The new first offset of one partition, or why nothing was deleted."""

            partition_index: int = int32()
            low_watermark: int = int64()
            error_code: int = int16()

        name: str = string()
        partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)

    DeleteRecordsPartitionResult = DeleteRecordsTopicResult.DeleteRecordsPartitionResult

    throttle_time_ms: int = int32()
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)
