"""A client that is nothing but a socket and the codecs: what it sends is what the test says."""

from __future__ import annotations

import itertools
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kohort import Broker
from kohort.wire import framing
from kohort.wire.batch import BatchRecord, build_batch
from kohort.wire.data import FetchRequest, ListOffsetsRequest, ProduceRequest
from kohort.wire.discovery import CreateTopicsRequest, MetadataRequest

TIMEOUT_S = 20.0


class RawClient:
    """One connection; answers are read in the order of the requests."""

    def __init__(
        self, address: str, client_id: str = "raw", *, timeout_s: float = TIMEOUT_S, host: str | None = None
    ) -> None:
        """Connect; `host` is the address to connect from, such as 127.0.0.2."""
        to, _, port = address.rpartition(":")
        source = (host, 0) if host else None
        self.sock = socket.create_connection((to.strip("[]"), int(port)), timeout_s, source)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client_id = client_id
        self._ids = itertools.count(1)
        self._owed: list[tuple[int, Any, int]] = []

    def send(self, message: Any, version: int | None = None) -> None:
        """Send a request; its answer is owed."""
        version = message.MAX_VERSION if version is None else version
        number = next(self._ids)
        self.sock.sendall(framing.encode_request(message, version, number, self._client_id))
        self._owed.append((number, framing.APIS[message.API_KEY].response, version))

    def receive(self) -> Any:
        """The answer to the oldest request that is owed one."""
        number, response, version = self._owed.pop(0)
        found, message = framing.decode_response(response, version, self.frame())
        assert found == number
        return message

    def ask(self, message: Any, version: int | None = None) -> Any:
        """Send and receive."""
        self.send(message, version)
        return self.receive()

    def frame(self) -> bytes:
        """One frame, without its length."""
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                raise ConnectionResetError("the broker closed the connection")
            data += piece
        return bytes(data)

    def closed(self) -> bool:
        """Whether the broker closed this connection (waits for something to come)."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def batch_of(*values: bytes, **facts: Any) -> bytes:
    """A record batch of these values, with null keys."""
    return build_batch([BatchRecord(0, int(time.time() * 1000), None, value) for value in values], **facts)


def create_topic(client: RawClient, name: str, partitions: int = 1, **configs: str) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    (result,) = client.ask(CreateTopicsRequest(topics=[topic])).topics
    assert result.error_code == 0, result


def topic_id(client: RawClient, name: str) -> Any:
    asked = MetadataRequest.MetadataRequestTopic(name=name)
    return client.ask(MetadataRequest(topics=[asked])).topics[0].topic_id


def produce_request(topic: str, partition: int, records: Any, acks: int = -1, **fields: Any) -> ProduceRequest:
    """For version 12 and below."""
    part = ProduceRequest.PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[part])],
        **fields,
    )


def produce(client: RawClient, topic: str, partition: int, records: Any, **fields: Any) -> Any:
    """The answer for the one partition."""
    answer = client.ask(produce_request(topic, partition, records, **fields), 11)
    return answer.responses[0].partition_responses[0]


def fetch_request(topic: str, partition: int, offset: int, **fields: Any) -> FetchRequest:
    """For version 12 and below."""
    part = FetchRequest.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    values: dict[str, Any] = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 50 << 20, **fields}
    return FetchRequest(topics=[FetchRequest.FetchTopic(topic=topic, partitions=[part])], **values)


def fetch(client: RawClient, topic: str, partition: int, offset: int, **fields: Any) -> Any:
    """The answer for the one partition."""
    answer = client.ask(fetch_request(topic, partition, offset, **fields), 12)
    return answer.responses[0].partitions[0]


def end_offset(client: RawClient, topic: str, partition: int, timestamp: int = -1) -> int:
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])
    answer = client.ask(ListOffsetsRequest(replica_id=-1, topics=[asked]), 7)
    found = answer.topics[0].partitions[0]
    assert found.error_code == 0
    return int(found.offset)


def resident_kib(broker: Broker) -> int:
    """Return the resident memory of the broker's process."""
    status = Path(f"/proc/{broker.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
