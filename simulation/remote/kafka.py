"""A Kafka cluster of three nodes as clients see it: frames in, frames out, with one partition of the journal's topic.

It delays, rejects and does not answer, may have appended what it does not acknowledge, and elects leaders. A request
that has arrived is carried out even if its connection has ended by then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from kohort.cluster.journal.journal_partition import JournalTopic
from kohort.errors import ErrorCode
from kohort.wire import framing
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
from kohort.wire.transactions import InitProducerIdRequest, InitProducerIdResponse
from simulation.harness.network import Connection, Network
from simulation.harness.world import World
from simulation.remote.partition import Partition

Respond = Callable[[memoryview], None]
HOST = "10.0.0.9"
NODES = (1, 2, 3)
FIRST_PORT = 9_100
TOPIC = JournalTopic("__kohort_groups", UUID(int=0x17), 1)
KEYS = frozenset((0, 1, 2, 3, 10, 18, 22))
FETCH_BYTES = (1, 600, 1 << 20, 1 << 20)
"""The approximate size of a node's answer to a fetch; at least one batch is returned."""
EPOCH_LAST = 32_766
"""The epoch after which Kafka assigns another producer id."""
LATEST = -1
"""The timestamp in ListOffsets that asks for the log's end."""
REFUSED, UNSURE, LOST, DROPPED = "refused", "unsure", "lost", "dropped"
FAULTS = (REFUSED, UNSURE, LOST, DROPPED)
"""Faults of an append: rejected; written with an error that leaves the outcome open; written without an answer;
neither.
"""
TRUNCATED = 0.5
"""The probability that a new leader lacks records that the last one had written and not acknowledged."""


class Kafka:
    """The cluster.

    Attributes:
        partition: the journal's partition.
        network: between it and its clients.
        leader: of the partition, -1 while there is none.
        fails: probability of a fault in a Produce.
        late_ms: the maximum delay before a request is carried out.
        commit_ms: the maximum delay of replication.
        down: nodes that refuse connections.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.stream("kafka")
        self.network = Network(world)
        self.network.server_sees_close = lambda connection: None
        self.partition = Partition(lambda: world.now_ms)
        self.leader = NODES[0]
        self.leader_epoch = 0
        self.fails = 0.0
        self.late_ms = 2
        self.commit_ms = 3
        self.down: set[int] = set()
        self._next_id = 1_000
        self._transactional: dict[str, tuple[int, int]] = {}
        self._busy_ms: dict[int, int] = {}

    # -- what is done to it

    def elect(self, away_ms: int, *, kills: bool) -> None:
        """Give the partition another leader, after a time without any; the old leader's node may be down meanwhile."""
        before = self.leader
        if before < 0:
            return
        self.world.log(f"kafka: node {before} leads no more, another in {away_ms} ms")
        self.leader = -1
        if kills:
            self.down.add(before)
        kept = self.partition.committed if self.chance.likely(TRUNCATED) else self.partition.end
        self.partition.lead_elsewhere(kept)
        lags = self.chance.upto(self.partition.end - self.partition.shown) if self.partition.end else 0
        self.partition.shown = max(0, self.partition.shown - self.chance.choice((0, 0, 1, 5)))
        self.world.after(away_ms, partial(self._elected, before, lags))

    def _elected(self, before: int, lags: int) -> None:
        self.leader_epoch += 1
        self.leader = NODES[(NODES.index(before) + 1) % len(NODES)]
        self.down.discard(before)
        self.down.discard(self.leader)
        self.world.log(f"kafka: node {self.leader} leads, at offset {self.partition.end}")
        self.world.after(self.chance.choice((0, 0, 200, 2_000)) + lags, self._show)

    def _show(self) -> None:
        self.partition.shown = self.partition.committed

    def forget(self) -> None:
        """Forget the transactional ids, as Kafka does after a week without use."""
        self.world.log("kafka: transactional ids are forgotten")
        self._transactional.clear()

    def heal(self) -> None:
        """End all faults."""
        self.fails, self.late_ms, self.commit_ms = 0.0, 2, 3
        self.down.clear()
        if self.leader >= 0:
            self._show()

    # -- requests

    def receive(self, node: int, connection: Connection, frame: bytes, respond: Respond) -> None:
        """Receive a frame at a node; requests of one connection are carried out one after the other."""
        if node in self.down:
            connection.break_()
            return
        due = max(self.world.now_ms + self.chance.upto(self.late_ms), self._busy_ms.get(connection.id, 0))
        self._busy_ms[connection.id] = due
        self.world.after(due - self.world.now_ms, partial(self._carry_out, node, connection, frame, respond))

    def _carry_out(self, node: int, connection: Connection, frame: bytes, respond: Respond) -> None:
        if node in self.down:
            connection.break_()
            return
        header, body = framing.decode_request_header(memoryview(frame)[4:])
        message = framing.APIS[header.api_key].request.decode(body, header.api_version)

        def reply(answer: Any) -> None:
            parts = framing.encode_response(answer, header.api_version, header.correlation_id)
            respond(memoryview(b"".join(bytes(part) for part in parts))[4:])

        if isinstance(message, ProduceRequest):
            self._produce(node, connection, message, reply)
        elif isinstance(message, FetchRequest):
            self._fetch(node, message, reply)
        elif isinstance(message, ListOffsetsRequest):
            reply(self._start(node, message))
        elif isinstance(message, InitProducerIdRequest):
            reply(self._init(message))
        elif isinstance(message, FindCoordinatorRequest):
            reply(self._coordinator(message))
        elif isinstance(message, MetadataRequest):
            reply(self._metadata())
        else:
            assert isinstance(message, ApiVersionsRequest), message
            make = ApiVersionsResponse.ApiVersion
            apis = [api for api in framing.APIS.values() if api.key in KEYS]
            keys = [make(api_key=api.key, min_version=api.min_version, max_version=api.max_version) for api in apis]
            reply(ApiVersionsResponse(api_keys=keys))

    def _produce(
        self, node: int, connection: Connection, message: ProduceRequest, reply: Callable[[Any], None]
    ) -> None:
        (topic,) = message.topic_data
        (part,) = topic.partition_data
        answer_type = ProduceResponse.TopicProduceResponse

        def reported(code: ErrorCode, offset: int = -1) -> None:
            found = ProduceResponse.PartitionProduceResponse(index=part.index, error_code=int(code), base_offset=offset)
            reply(
                ProduceResponse(
                    responses=[answer_type(name=topic.name, topic_id=topic.topic_id, partition_responses=[found])]
                )
            )

        if node != self.leader:
            reported(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        fault = self.chance.choice(FAULTS) if self.fails and self.chance.likely(self.fails) else None
        if fault is not None:
            self.world.log(f"kafka: an append is {fault}")
        if fault is REFUSED:
            reported(ErrorCode.NOT_ENOUGH_REPLICAS)
        elif fault is DROPPED:
            connection.break_()
        else:
            code, offset = self.partition.append(bytes(part.records or b""))
            if code is not ErrorCode.NONE:
                reported(code)
                return
            epoch, end = self.leader_epoch, self.partition.end
            if fault is LOST:
                connection.break_()
            elif fault is UNSURE:
                reported(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            answer = None if fault is not None else partial(reported, ErrorCode.NONE, offset)
            self.world.after(self.chance.upto(self.commit_ms), partial(self._committed, epoch, end, answer, reported))

    def _committed(
        self, epoch: int, end: int, answer: Callable[[], None] | None, reported: Callable[[ErrorCode], None]
    ) -> None:
        if epoch != self.leader_epoch or self.leader < 0:
            if answer is not None:
                reported(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        lags = self.partition.shown < self.partition.committed
        self.partition.commit(end)
        if not lags:
            self._show()
        if answer is not None:
            answer()

    def _fetch(self, node: int, message: FetchRequest, reply: Callable[[Any], None], waited: bool = False) -> None:
        (topic,) = message.topics
        (part,) = topic.partitions
        at = part.fetch_offset
        if node == self.leader and at >= self.partition.shown and at <= self.partition.end and not waited:
            self.world.after(message.max_wait_ms, partial(self._fetch, node, message, reply, waited=True))
            return
        code, data = ErrorCode.NONE, b""
        if node != self.leader:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif at > self.partition.end:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            size, most = 0, self.chance.choice(FETCH_BYTES)
            for batch in self.partition.batches:
                if batch.end > at and batch.end <= self.partition.shown and size < most:
                    data += batch.data
                    size += len(batch.data)
                elif size:
                    break
        found = FetchResponse.PartitionData(
            partition_index=part.partition,
            error_code=int(code),
            high_watermark=self.partition.shown,
            records=data,
        )
        one = FetchResponse.FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[found])
        reply(FetchResponse(responses=[one]))

    def _start(self, node: int, message: ListOffsetsRequest) -> ListOffsetsResponse:
        code = ErrorCode.NONE if node == self.leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
        is_end = message.topics[0].partitions[0].timestamp == LATEST
        offset = self.partition.shown if is_end else 0
        found = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, error_code=int(code), offset=offset)
        one = ListOffsetsResponse.ListOffsetsTopicResponse(name=message.topics[0].name, partitions=[found])
        return ListOffsetsResponse(topics=[one])

    def _init(self, message: InitProducerIdRequest) -> InitProducerIdResponse:
        """Return the next epoch, or a new producer id; no transaction is ever open."""
        name = message.transactional_id or ""
        producer_id, epoch = self._transactional.get(name, (-1, -1))
        own = (message.producer_id, message.producer_epoch)
        if own[0] >= 0 and own != (producer_id, epoch):
            if own == (producer_id, epoch - 1):
                return InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)
            return InitProducerIdResponse(error_code=int(ErrorCode.PRODUCER_FENCED))
        if producer_id < 0 or epoch >= EPOCH_LAST:
            self._next_id += 1
            producer_id, epoch = self._next_id, -1
        self._transactional[name] = producer_id, epoch + 1
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch + 1)

    def _coordinator(self, message: FindCoordinatorRequest) -> FindCoordinatorResponse:
        node = next(node for node in NODES if node not in self.down)
        key = message.coordinator_keys[0] if message.coordinator_keys else message.key
        one = FindCoordinatorResponse.Coordinator(key=key, node_id=node, host=HOST, port=FIRST_PORT + node)
        return FindCoordinatorResponse(coordinators=[one])

    def _metadata(self) -> MetadataResponse:
        make = MetadataResponse.MetadataResponseBroker
        brokers = [make(node_id=node, host=HOST, port=FIRST_PORT + node) for node in NODES if node not in self.down]
        topic_type = MetadataResponse.MetadataResponseTopic
        code = ErrorCode.NONE if self.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE
        part = topic_type.MetadataResponsePartition(
            error_code=int(code),
            partition_index=0,
            leader_id=self.leader,
            leader_epoch=self.leader_epoch,
            replica_nodes=list(NODES),
            isr_nodes=list(NODES),
        )
        topic = topic_type(name=TOPIC.name, topic_id=TOPIC.id, partitions=[part])
        return MetadataResponse(brokers=brokers, controller_id=brokers[0].node_id, topics=[topic])
