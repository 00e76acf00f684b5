"""Ranges and offsets of a topic that nothing else refreshes: which broker is asked when the leader says or dies."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from kohort.client.consumer.range_reader import RangeReader, _ReadTarget
from kohort.client.offsets import LATEST, list_offsets
from kohort.errors import ErrorCode
from kohort.ids import TopicPartition
from kohort.wire.batch import BatchRecord, build_batch
from kohort.wire.data import FetchResponse, ListOffsetsResponse
from kohort.wire.discovery import MetadataResponse
from tests.client.virtual import VirtualCluster

A0 = TopicPartition("a", 0)
END = 30
PORTS = {1: 9092, 2: 9093}


@dataclass
class TwoBrokers(VirtualCluster):
    """Brokers 1 and 2 with one partition of thirty records.

    Attributes:
        leader: The broker that leads.
        names: How often the leader names the other broker to a client with a rack, as Kafka without sending records.
        lagging: Whether the other broker does not have the records yet.
    """

    leader: int = 1
    names: int = 0
    lagging: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.topics = {"a": 1}
        self.handlers |= {"Metadata": self.metadata, "Fetch": self.fetch, "ListOffsets": self.list_offsets}

    def asked(self) -> int:
        """Return the broker that has the last request."""
        port = self.port_of(self.requests[-1].link)
        return next(node for node, at in PORTS.items() if at == port)

    def metadata(self, message: Any, version: int) -> Any:
        answer = super()._metadata(message, version)
        broker = MetadataResponse.MetadataResponseBroker
        alive = {node: port for node, port in PORTS.items() if port not in self.refuse}
        answer.brokers = [broker(node_id=node, host="127.0.0.1", port=port) for node, port in alive.items()]
        for topic in answer.topics:
            for part in topic.partitions:
                part.leader_id, part.replica_nodes = self.leader, list(PORTS)
        return answer

    def fetch(self, message: Any, version: int) -> Any:
        (topic,) = message.topics
        (wanted,) = topic.partitions
        kind = FetchResponse.FetchableTopicResponse
        part = kind.PartitionData(partition_index=0, aborted_transactions=[], records=b"", high_watermark=END)
        if self.asked() != self.leader and self.lagging:
            part.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        elif self.asked() == self.leader and message.rack_id and self.names:
            self.names -= 1
            part.preferred_read_replica = next(node for node in PORTS if node != self.leader)
        else:
            at = wanted.fetch_offset
            records = [BatchRecord(at + number, 1000, None, b"v") for number in range(10)]
            part.records = build_batch(records, base_offset=at, leader_epoch=3)
        return FetchResponse(responses=[kind(topic="a", topic_id=topic.topic_id, partitions=[part])])

    def list_offsets(self, message: Any, version: int) -> Any:
        kind = ListOffsetsResponse.ListOffsetsTopicResponse
        part = kind.ListOffsetsPartitionResponse(partition_index=0, offset=END)
        return ListOffsetsResponse(topics=[kind(name="a", partitions=[part])])

    def kill(self, node: int) -> None:
        """End a broker; if it leads, the other one leads now."""
        self.refuse.add(PORTS[node])
        self.leader = next(other for other in PORTS if other != node)
        self.cut()


class RangeInParts:
    """A reader of one range that fetches when the test says so, by the real reader's coroutine."""

    def __init__(self, world: TwoBrokers, rack: str = "") -> None:
        self._world = world
        self._reader: Any = RangeReader("127.0.0.1:1", client_rack=rack)
        self._reader.close()
        self._reader._client = SimpleNamespace(cluster=world.cluster)
        self.at = 0

    def fetch(self) -> list[int]:
        """Fetch ten records, and return the brokers that were asked for them."""
        before = len(self._world.sent("Fetch"))
        answer = self._world.call(self._reader._fetch(_ReadTarget(A0, None), self.at, END, "all"))
        assert (answer.start, answer.next_offset) == (self.at, self.at + 10)
        self.at += 10
        ports = [self._world.port_of(request.link) for request in self._world.sent("Fetch")[before:]]
        return [next(node for node, port in PORTS.items() if port == found) for found in ports]


@pytest.mark.parametrize("rack", ["", "north"])
def test_a_range_is_read_from_the_replica_that_its_leader_names(rack: str) -> None:
    """SPARK-46798, sarama #2076: a leader that names a nearer replica sends no records, however often it is asked."""
    world = TwoBrokers(names=100)
    part = RangeInParts(world, rack)
    assert [part.fetch(), part.fetch(), part.fetch()] == ([[1, 2], [2], [2]] if rack else [[1], [1], [1]])


def test_a_range_that_its_replica_does_not_have_yet_is_read_from_the_leader() -> None:
    part = RangeInParts(TwoBrokers(names=1, lagging=True), "north")
    assert [part.fetch(), part.fetch()] == [[1, 2, 1], [1]]


def test_a_range_whose_replica_dies_is_read_from_the_leader() -> None:
    world = TwoBrokers(names=1)
    part = RangeInParts(world, "north")
    assert part.fetch() == [1, 2]
    world.refuse.add(PORTS[2])
    world.cut()
    assert part.fetch() == [1]


def test_a_range_whose_leader_dies_is_read_from_the_next_one() -> None:
    """From librdkafka #2363: nothing but the failed request tells that another broker leads."""
    world = TwoBrokers()
    part = RangeInParts(world)
    assert part.fetch() == [1]
    world.kill(1)
    before_ms = world.runtime.now_ms
    assert part.fetch() == [2]
    assert world.runtime.now_ms - before_ms < world.config.default_api_timeout_ms / 10


@pytest.mark.parametrize("skip_missing_partitions", [False, True])
def test_offsets_are_found_where_the_leader_has_died(skip_missing_partitions: bool) -> None:
    """From apache/kafka #7660: endOffsets timed out after a leader had been killed."""
    world = TwoBrokers()
    assert world.call(list_offsets(world.cluster, {A0: LATEST}))[A0].offset == END
    world.kill(1)
    before_ms = world.runtime.now_ms
    found = world.call(list_offsets(world.cluster, {A0: LATEST}, skip_missing_partitions=skip_missing_partitions))
    assert found[A0].offset == END
    assert world.runtime.now_ms - before_ms < world.config.default_api_timeout_ms / 10
