"""One connection's actions, drawn from a seed, and the responses that the broker owes for them."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from kohort.wire.batch import BatchRecord, build_batch
from kohort.wire.data import ProduceRequest
from kohort.wire.discovery import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, MetadataRequest
from kohort.wire.framing import APIS, Api, decode_response, encode_request
from kohort.wire.schema import WireError
from tests.broker.fuzz import making

ANSWER_S = 60.0
"""An answer that takes longer is missing: what may wait longer is not asked for (see `making`)."""
WAITS = ("JoinGroup", "SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat")
"""Requests that wait for other members: nobody waits for their answers before going on."""


class Finding(Exception):
    """A broken promise: the broker did something that must not happen."""


@dataclass
class Line:
    """One connection, what was sent on it, and the answers that are owed: number, API and version."""

    address: tuple[str, int]
    sent: bytearray = field(default_factory=bytearray)
    owed: list[tuple[int, Api, int]] = field(default_factory=list)
    since: float = 0.0
    buffer: bytearray = field(default_factory=bytearray)
    ended: bool = False

    def __post_init__(self) -> None:
        self.sock = socket.create_connection(self.address, ANSWER_S)

    def send(self, data: bytes) -> None:
        """Send, as far as the broker takes it."""
        self.sent += data
        self.since = time.monotonic()
        try:
            self.sock.sendall(data)
        except ConnectionError:
            pass
        except TimeoutError:
            raise Finding("the broker took no more bytes, and did not close the connection") from None

    def take(self) -> None:
        """Read once, and check the answers that are whole.

        Raises:
            Finding: an answer that can't be read, that nobody asked for, or none in time.
        """
        self.sock.settimeout(max(0.01, self.since + ANSWER_S - time.monotonic()))
        try:
            piece = self.sock.recv(1 << 18)
        except ConnectionError:
            piece = b""
        except TimeoutError:
            names = [f"{api.name} {version}" for _, api, version in self.owed]
            raise Finding(f"no answer, and the connection is open; owed: {names}") from None
        self.ended = not piece
        self.buffer += piece
        while len(self.buffer) >= 4:
            size = int.from_bytes(self.buffer[:4], "big")
            if len(self.buffer) < 4 + size:
                return
            frame = bytes(self.buffer[4 : 4 + size])
            del self.buffer[: 4 + size]
            self._check(frame)

    def _check(self, frame: bytes) -> None:
        if not self.owed:
            raise Finding(f"an answer that nobody asked for: {frame[:60].hex()}")
        number, api, version = self.owed.pop(0)
        if version > api.max_version:
            return
        try:
            found, answer = decode_response(api.response, version, frame)
        except WireError as error:
            raise Finding(f"the answer to {api.name} {version} can't be read: {error}: {frame[:200].hex()}") from None
        if found != number:
            raise Finding(f"the answer to {api.name} {version} has number {found}, not {number}")
        for topic in getattr(answer, "topics", None) or ():
            if getattr(topic, "topic_id", None) and str(topic.name).startswith("fuzz") and len(making.ids) < 50:
                making.ids.append(topic.topic_id)

    def settle(self) -> None:
        """Wait until all that is owed has come, or the connection has ended."""
        while self.owed and not self.ended:
            self.take()

    def close(self, *, reset: bool = False) -> None:
        """End the connection, with a reset or in order."""
        if reset and self.sock.fileno() >= 0:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def _ask(line: Line, pick: random.Random, number: int, api: Api | None = None) -> Api:
    api, version, frame = making.request(pick, number, api)
    if api.name != "Produce" or not _wants_no_answer(frame):
        line.owed.append((number, api, version))
    line.send(frame)
    return api


def _wants_no_answer(frame: bytes) -> bool:
    from kohort.wire.framing import decode_request_header

    header, body = decode_request_header(frame[4:])
    return bool(APIS[0].request.decode_prefix(body, header.api_version)[0].acks == 0)


def one(line: Line, pick: random.Random) -> bool:
    """A request and its answer; whether the connection stays open with an answer owed."""
    api = _ask(line, pick, 1)
    if api.name in WAITS:
        return True
    line.settle()
    return False


def several(line: Line, pick: random.Random) -> bool:
    """Many requests before the first answer is read: they come in the order of the requests."""
    for number in range(pick.choice((2, 5, 30))):
        _ask(line, pick, number)
    return True


def mutated(line: Line, pick: random.Random) -> bool:
    """A request with damage: answered, or the connection ends; when bytes are missing, it ends with our side."""
    _, _, frame = making.request(pick, 1)
    line.send(pick.choice(making.MUTATIONS)(pick, frame))
    with suppress(OSError):
        line.sock.shutdown(socket.SHUT_WR)
    while not line.ended:
        with suppress(Finding):
            line.take()
            continue
        line.buffer.clear()
        if line.since + ANSWER_S < time.monotonic():
            raise Finding("the connection was not closed after our side of it")
    return False


def torn(line: Line, pick: random.Random) -> bool:
    """A request in pieces, of which the last may never come."""
    api, version, frame = making.request(pick, 1)
    cuts = sorted(pick.randrange(len(frame)) for _ in range(3))
    for start, stop in zip([0, *cuts], cuts, strict=False):
        line.send(frame[start:stop])
    if pick.random() < 0.5 and api.name not in ("Produce", *WAITS):
        line.owed.append((1, api, version))
        line.send(frame[cuts[-1] :])
        line.settle()
    return False


def idle(line: Line, pick: random.Random) -> bool:
    """Nothing, or a frame that is only announced; it stays open for a while."""
    line.send(struct.pack(">i", 100 << 20)[: pick.choice((0, 1, 4))] + bytes(pick.choice((0, 0, 10))))
    return not line.sent or len(line.sent) >= 4


def lazy(line: Line, pick: random.Random) -> bool:
    """Much is asked, nothing is read."""
    frame = encode_request(MetadataRequest(topics=None), 9, 1, "lazy")
    line.sock.setblocking(False)
    with suppress(BlockingIOError, ConnectionError):
        for _ in range(200):
            line.sock.send(frame * 20)
    return False


def large(line: Line, pick: random.Random) -> bool:
    """Topics with thousands of partitions: made, grown, deleted, one after the other without a look at answers."""
    name = pick.choice(making.TOPICS)
    count = pick.choice((1_000, 5_000, 10_000))
    make = CreateTopicsRequest.CreatableTopic
    more = [make(name=f"{name}-{i}", num_partitions=1, replication_factor=1) for i in range(pick.choice((0, 300)))]
    grow = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count + 1_000, assignments=None)
    steps = (
        CreateTopicsRequest(topics=[make(name=name, num_partitions=count, replication_factor=1), *more]),
        CreatePartitionsRequest(topics=[grow]),
        DeleteTopicsRequest(topic_names=[name, *(case.name for case in more)]),
    )
    for number, message in enumerate(steps):
        version = min(5, message.MAX_VERSION)
        line.owed.append((number, APIS[message.API_KEY], version))
        line.send(encode_request(message, version, number, "large"))
    line.settle()
    return False


def bulky(line: Line, pick: random.Random) -> bool:
    """A produce request of megabytes, most of it refused."""
    size = pick.choice((500_000, 1_000_000, 4_000_000))
    batch = build_batch([BatchRecord(0, int(time.time() * 1000), b"k", pick.randbytes(size))])
    part = ProduceRequest.PartitionProduceData(index=pick.choice((0, 1, 77)), records=batch)
    topic = ProduceRequest.TopicProduceData(name=pick.choice(making.TOPICS), partition_data=[part])
    line.owed.append((1, APIS[0], 9))
    line.send(encode_request(ProduceRequest(acks=-1, timeout_ms=1, topic_data=[topic]), 9, 1, "bulky"))
    line.settle()
    return False


def stream(line: Line, pick: random.Random) -> bool:
    """More than one read brings, of requests that take long and requests that are long; all are answered, in order."""
    batch = build_batch([BatchRecord(0, int(time.time() * 1000), b"k", bytes(pick.choice((1_000, 100_000))))])
    part = ProduceRequest.PartitionProduceData(index=0, records=batch)
    topic = ProduceRequest.TopicProduceData(name=pick.choice(making.TOPICS), partition_data=[part])
    long = ProduceRequest(acks=-1, timeout_ms=1, topic_data=[topic])
    whole = bytearray()
    for number in range(pick.choice((20, 60))):
        message = long if pick.random() < 0.7 else MetadataRequest(topics=None)
        line.owed.append((number, APIS[message.API_KEY], 9))
        whole += encode_request(message, 9, number, "s" * 3_000)
    sender = threading.Thread(target=line.send, args=[bytes(whole)])
    line.since = time.monotonic()
    sender.start()
    try:
        line.settle()
    finally:
        line.ended = line.ended or bool(line.owed)
        if line.ended:
            line.close()
        sender.join()
    if line.owed:
        raise Finding(f"the connection ended with {len(line.owed)} answers owed, though nothing was wrong")
    return False


KINDS: tuple[tuple[int, Callable[[Line, random.Random], bool]], ...] = (
    (40, one), (12, several), (35, mutated), (8, torn), (6, idle), (1, lazy), (1, large), (2, bulky), (3, stream),
)  # fmt: skip
