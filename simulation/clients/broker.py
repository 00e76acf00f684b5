"""Simulated brokers as clients see them: answers come late, not at all, twice, or after the connection has ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from kohort.errors import ErrorCode
from kohort.ids import TopicPartition
from kohort.wire import framing
from kohort.wire.batch import parse_header
from kohort.wire.data import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from kohort.wire.discovery import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse
from kohort.wire.groups import FindCoordinatorRequest, FindCoordinatorResponse
from kohort.wire.offsets import OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse
from kohort.wire.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from simulation.clients.partition import PartitionModel, StoredBatch
from simulation.clients.refusals import refusal
from simulation.clients.transactions import Committed, Coordinator
from simulation.harness.network import Connection, Network
from simulation.harness.world import World
from simulation.remote.kafka import FIRST_PORT, HOST

Respond = Callable[[memoryview], None]
NODES = (1, 2)
TOPIC, TOPIC_ID = "t", UUID(int=0x29)
FETCH_BYTES = (1, 300, 1 << 20)
"""The approximate size of a node's answer to a fetch; at least one batch is returned."""
LATEST = -1
"""The timestamp in ListOffsets that asks for the log's end."""
REFUSED, UNSURE, LOST, DROPPED, SLOW, TWICE = "refused", "unsure", "lost", "dropped", "slow", "twice"
FAULTS = (REFUSED, UNSURE, LOST, DROPPED, SLOW, SLOW, TWICE)
"""Faults of a request: rejected; carried out with an error that leaves the outcome open; carried out without an answer;
not carried out; carried out late; answered twice.
"""
SLOW_MS = (300, 2_000, 6_000)
"""The maximum delays of a slow request: the last exceeds the clients' timeouts."""
TRANSACTION_VERSION = "transaction.version"


class Brokers:
    """Two brokers that lead the partitions of one topic and coordinate one group and all transactions.

    Attributes:
        partitions: the partitions' logs.
        coordinator: of the group and the transactions; all nodes share its state, one of them answers for it.
        network: between the brokers and their clients.
        fails: probability of a fault in a request.
        late_ms: the maximum delay before a request is carried out.
        down: nodes that refuse connections.
        on_append: called with each new batch and its partition.
        on_commit: called with each commit's client id, partition, offset and metadata.
    """

    def __init__(self, world: World, partitions: int, version: int) -> None:
        self.world = world
        self.chance = world.stream("brokers")
        self.network = Network(world)
        self.network.server_sees_close = lambda connection: None
        self.partitions = {
            TopicPartition(TOPIC, number): PartitionModel(NODES[number % len(NODES)]) for number in range(partitions)
        }
        self.coordinator = Coordinator(world, self.partitions, version)
        self.coordinator_node = NODES[0]
        self.fails = 0.0
        self.late_ms = 2
        self.down: set[int] = set()
        self.on_commit: Callable[[str, TopicPartition, int, str], None] = lambda client, partition, offset, text: None
        self.on_append: Callable[[TopicPartition, StoredBatch], None] = lambda partition, batch: None
        self._version = version
        self._busy_ms: dict[int, int] = {}
        self._handlers: dict[type, Callable[[int, Any], Any]] = {
            ApiVersionsRequest: self._api_versions,
            MetadataRequest: self._metadata,
            FindCoordinatorRequest: self._find_coordinator,
            ProduceRequest: self._produce,
            ListOffsetsRequest: self._list_offsets,
            OffsetFetchRequest: self._committed,
            InitProducerIdRequest: self._init,
            AddPartitionsToTxnRequest: self._add_partitions,
            AddOffsetsToTxnRequest: self._add_offsets,
            TxnOffsetCommitRequest: self._commit_in_transaction,
            EndTxnRequest: self._end,
        }

    # Faults.

    def move(self, partition: TopicPartition, away_ms: int) -> None:
        """Give a partition another leader, after a time without any."""
        model = self.partitions[partition]
        before = model.leader
        if before < 0:
            return
        model.leader = -1

        def elected() -> None:
            model.leader = NODES[0] if before != NODES[0] else NODES[1]
            model.leader_epoch += 1

        self.world.after(away_ms, elected)

    def move_coordinator(self) -> None:
        """Make the other node the coordinator."""
        self.coordinator_node = NODES[0] if self.coordinator_node != NODES[0] else NODES[1]

    def heal(self) -> None:
        """End all faults."""
        self.fails, self.late_ms = 0.0, 2
        self.down.clear()

    # Requests.

    def receive(self, node: int, connection: Connection, frame: bytes, respond: Respond) -> None:
        """Receive a frame at a node; requests of one connection are carried out one after the other."""
        if node in self.down:
            connection.break_()
            return
        fault = self.chance.choice(FAULTS) if self.fails and self.chance.likely(self.fails) else None
        late_ms = self.chance.upto(self.chance.choice(SLOW_MS) if fault is SLOW else self.late_ms)
        due = max(self.world.now_ms + late_ms, self._busy_ms.get(connection.id, 0))
        self._busy_ms[connection.id] = due
        self.world.after(due - self.world.now_ms, partial(self._carry_out, node, connection, frame, respond, fault))

    def _carry_out(self, node: int, connection: Connection, frame: bytes, respond: Respond, fault: str | None) -> None:
        header, body = framing.decode_request_header(memoryview(frame)[4:])
        message = framing.APIS[header.api_key].request.decode(body, header.api_version)
        if node in self.down or fault is DROPPED:
            connection.break_()
            return
        if isinstance(message, OffsetCommitRequest) and not connection.open:
            return  # Kafka gives commits no order: one that comes after a later one on another connection undoes it

        def reply(answer: Any) -> None:
            if fault is LOST:
                connection.break_()
                return
            parts = framing.encode_response(answer, header.api_version, header.correlation_id)
            data = b"".join(bytes(part) for part in parts)[4:]
            respond(memoryview(data))
            if fault is TWICE:
                respond(memoryview(data))

        if isinstance(message, FetchRequest):
            self._fetch(node, message, fault, reply)
            return
        answer = refusal(message) if fault is REFUSED else None
        if answer is None:
            if isinstance(message, OffsetCommitRequest):
                answer = self._commit(node, header.client_id or "", message)
            else:
                answer = self._handlers[type(message)](node, message)
            if fault is UNSURE:
                answer = refusal(message, unsure=True) or answer
        reply(answer)

    def _api_versions(self, node: int, message: ApiVersionsRequest) -> ApiVersionsResponse:
        known = {kind.API_KEY for kind in (*self._handlers, FetchRequest, OffsetCommitRequest)}  # type: ignore[attr-defined]
        make, feature = ApiVersionsResponse.ApiVersion, ApiVersionsResponse.FinalizedFeatureKey
        return ApiVersionsResponse(
            api_keys=[
                make(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
                for api in framing.APIS.values()
                if api.key in known
            ],
            finalized_features_epoch=1,
            finalized_features=[
                feature(name=TRANSACTION_VERSION, max_version_level=self._version, min_version_level=self._version)
            ],
        )

    def _metadata(self, node: int, message: MetadataRequest) -> MetadataResponse:
        make, topic_type = MetadataResponse.MetadataResponseBroker, MetadataResponse.MetadataResponseTopic
        parts = [
            topic_type.MetadataResponsePartition(
                error_code=int(ErrorCode.NONE if model.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE),
                partition_index=partition.partition,
                leader_id=model.leader,
                leader_epoch=model.leader_epoch,
                replica_nodes=list(NODES),
                isr_nodes=list(NODES),
            )
            for partition, model in self.partitions.items()
        ]
        brokers = [make(node_id=node, host=HOST, port=FIRST_PORT + node) for node in NODES]
        topic = topic_type(name=TOPIC, topic_id=TOPIC_ID, partitions=parts)
        return MetadataResponse(brokers=brokers, controller_id=NODES[0], topics=[topic])

    def _find_coordinator(self, node: int, message: FindCoordinatorRequest) -> FindCoordinatorResponse:
        key = message.coordinator_keys[0] if message.coordinator_keys else message.key
        found = FindCoordinatorResponse.Coordinator(
            key=key, node_id=self.coordinator_node, host=HOST, port=FIRST_PORT + self.coordinator_node
        )
        return FindCoordinatorResponse(coordinators=[found])

    # Records.

    def _produce(self, node: int, message: ProduceRequest) -> ProduceResponse:
        answer_type = ProduceResponse.TopicProduceResponse
        topics = []
        for topic in message.topic_data:
            reported = []
            for part in topic.partition_data:
                code, offset = self._append(
                    node, TopicPartition(TOPIC, part.index), message.transactional_id, bytes(part.records or b"")
                )
                reported.append(
                    ProduceResponse.PartitionProduceResponse(index=part.index, error_code=int(code), base_offset=offset)
                )
            topics.append(answer_type(name=topic.name, topic_id=topic.topic_id, partition_responses=reported))
        return ProduceResponse(responses=topics)

    def _append(
        self, node: int, partition: TopicPartition, transactional_id: str | None, data: bytes
    ) -> tuple[ErrorCode, int]:
        model = self.partitions[partition]
        if model.leader != node:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        if transactional_id is not None:
            header = parse_header(memoryview(data))
            step = self.coordinator.add if self._version >= 2 else self.coordinator.holds
            code = step(transactional_id, header.producer_id, header.producer_epoch, partition)
            if code:
                return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code, -1
        code, offset, stored = model.append(data)
        if stored is not None:
            self.on_append(partition, stored)
        return code, offset

    def _fetch(
        self, node: int, message: FetchRequest, fault: str | None, reply: Callable[[Any], None], waited: bool = False
    ) -> None:
        found: dict[UUID, FetchResponse.FetchableTopicResponse] = {}
        size, some = self.chance.choice(FETCH_BYTES), False
        committed = message.isolation_level == 1
        for topic in message.topics:
            for part in topic.partitions:
                model = self.partitions[TopicPartition(TOPIC, part.partition)]
                code, data = ErrorCode.NONE, b""
                if fault is REFUSED or fault is UNSURE:
                    code = ErrorCode.KAFKA_STORAGE_ERROR
                elif node != model.leader:
                    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                elif part.fetch_offset > model.end:
                    code = ErrorCode.OFFSET_OUT_OF_RANGE
                else:
                    data = model.read(part.fetch_offset, size, committed=committed)
                some = some or bool(data) or code is not ErrorCode.NONE
                aborted = [
                    FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=first)
                    for producer_id, first, last in model.aborted
                    if last >= part.fetch_offset
                ]
                entry = FetchResponse.PartitionData(
                    partition_index=part.partition,
                    error_code=int(code),
                    high_watermark=model.end,
                    last_stable_offset=model.last_stable,
                    log_start_offset=0,
                    aborted_transactions=aborted if committed else None,
                    records=data,
                )
                make = FetchResponse.FetchableTopicResponse
                found.setdefault(topic.topic_id, make(topic=topic.topic, topic_id=topic.topic_id)).partitions.append(
                    entry
                )
        if not some and not waited:
            self.world.after(message.max_wait_ms, partial(self._fetch, node, message, fault, reply, waited=True))
        else:
            reply(FetchResponse(responses=list(found.values())))

    def _list_offsets(self, node: int, message: ListOffsetsRequest) -> ListOffsetsResponse:
        make = ListOffsetsResponse.ListOffsetsPartitionResponse
        topics = []
        for topic in message.topics:
            parts = []
            for part in topic.partitions:
                model = self.partitions[TopicPartition(TOPIC, part.partition_index)]
                code = ErrorCode.NONE if node == model.leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
                end = model.last_stable if message.isolation_level == 1 else model.end
                offset = end if part.timestamp == LATEST else 0
                parts.append(make(partition_index=part.partition_index, error_code=int(code), offset=offset))
            topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=parts))
        return ListOffsetsResponse(topics=topics)

    # The group.

    def _code_of(self, node: int) -> ErrorCode:
        return ErrorCode.NONE if node == self.coordinator_node else ErrorCode.NOT_COORDINATOR

    def _commit(self, node: int, client: str, message: OffsetCommitRequest) -> OffsetCommitResponse:
        code = self._code_of(node)
        topic_type = OffsetCommitResponse.OffsetCommitResponseTopic
        topics = []
        for topic in message.topics:
            reported = []
            for part in topic.partitions:
                if not code:
                    partition = TopicPartition(TOPIC, part.partition_index)
                    self.coordinator.offsets[partition] = Committed(
                        part.committed_offset, part.committed_metadata or ""
                    )
                    self.on_commit(client, partition, part.committed_offset, part.committed_metadata or "")
                    self.coordinator.on_offsets(partition)
                reported.append(
                    topic_type.OffsetCommitResponsePartition(partition_index=part.partition_index, error_code=int(code))
                )
            topics.append(topic_type(name=topic.name, topic_id=topic.topic_id, partitions=reported))
        return OffsetCommitResponse(topics=topics)

    def _committed(self, node: int, message: OffsetFetchRequest) -> OffsetFetchResponse:
        asked = message.groups[0]
        code = self._code_of(node)
        topic_type = OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics
        topics = []
        for topic in asked.topics or ():
            reported = []
            for number in topic.partition_indexes:
                partition = TopicPartition(TOPIC, number)
                unstable = message.require_stable and self.coordinator.pending(partition)
                value = None if unstable else self.coordinator.offsets.get(partition)
                reported.append(
                    topic_type.OffsetFetchResponsePartitions(
                        partition_index=number,
                        committed_offset=-1 if value is None else value.offset,
                        metadata="" if value is None else value.metadata,
                        error_code=int(ErrorCode.UNSTABLE_OFFSET_COMMIT if unstable else ErrorCode.NONE),
                    )
                )
            topics.append(topic_type(name=topic.name, topic_id=topic.topic_id, partitions=reported))
        make = OffsetFetchResponse.OffsetFetchResponseGroup
        found = make(group_id=asked.group_id, topics=[] if code else topics, error_code=int(code))
        return OffsetFetchResponse(groups=[found])

    # Transactions.

    def _init(self, node: int, message: InitProducerIdRequest) -> InitProducerIdResponse:
        code = self._code_of(node) if message.transactional_id is not None else ErrorCode.NONE
        if code:
            return InitProducerIdResponse(error_code=int(code))
        own = (message.producer_id, message.producer_epoch)
        code, producer_id, epoch = self.coordinator.init(message.transactional_id, own, message.transaction_timeout_ms)
        return InitProducerIdResponse(error_code=int(code), producer_id=producer_id, producer_epoch=epoch)

    def _add_partitions(self, node: int, message: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        partitions = [
            TopicPartition(TOPIC, number) for topic in message.v3_and_below_topics for number in topic.partitions
        ]
        code = self._code_of(node) or self.coordinator.add(
            message.v3_and_below_transactional_id,
            message.v3_and_below_producer_id,
            message.v3_and_below_producer_epoch,
            *partitions,
        )
        topic_type = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        make = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
        parts = [make(partition_index=part.partition, partition_error_code=int(code)) for part in partitions]
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[topic_type(name=TOPIC, results_by_partition=parts)]
        )

    def _add_offsets(self, node: int, message: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
        code = self._code_of(node) or self.coordinator.add(
            message.transactional_id, message.producer_id, message.producer_epoch
        )
        return AddOffsetsToTxnResponse(error_code=int(code))

    def _commit_in_transaction(self, node: int, message: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
        own = (message.transactional_id, message.producer_id, message.producer_epoch)
        offsets = {
            TopicPartition(TOPIC, part.partition_index): Committed(part.committed_offset, part.committed_metadata or "")
            for topic in message.topics
            for part in topic.partitions
        }
        code = self._code_of(node)
        if not code and self._version >= 2:
            code = self.coordinator.add(*own)
        code = code or self.coordinator.add_offsets(*own, offsets)
        code = ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code
        topic_type = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
        make = topic_type.TxnOffsetCommitResponsePartition
        parts = [make(partition_index=part.partition, error_code=int(code)) for part in offsets]
        return TxnOffsetCommitResponse(topics=[topic_type(name=TOPIC, partitions=parts)])

    def _end(self, node: int, message: EndTxnRequest) -> EndTxnResponse:
        code = self._code_of(node)
        if code:
            return EndTxnResponse(error_code=int(code))
        code, producer_id, epoch = self.coordinator.end(
            message.transactional_id, message.producer_id, message.producer_epoch, commit=message.committed
        )
        if self._version < 2:
            return EndTxnResponse(error_code=int(code))
        return EndTxnResponse(error_code=int(code), producer_id=producer_id, producer_epoch=epoch)
