"""Common bounds of all connections: hostile ones end, and honest ones go on."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import ExitStack
from pathlib import Path

import pytest

from kohort import Broker
from kohort.broker.config.settings import BrokerConfig
from kohort.broker.server import listener
from kohort.broker.server.flow_control import ByteBudget
from kohort.broker.server.listener import Server
from kohort.broker.transport import ipv4_of_mapped
from kohort.wire.data import FetchRequest
from kohort.wire.discovery import MetadataRequest
from kohort.wire.framing import encode_request
from tests.broker.raw import RawClient, batch_of, create_topic, produce, resident_kib
from tests.broker.test_framing import framed
from tests.broker.test_server_requests import WAIT_S, Client, Turning, play
from tests.support.waiting import until

MIB = 1 << 20


def half_a_request(client: RawClient, size: int, sent: int) -> None:
    client.sock.sendall(struct.pack(">i", size) + b"\0" + bytes(sent))


def test_unfinished_requests_of_all_connections_have_a_bound(tmp_path: Path) -> None:
    """Kafka's default has none: 15 connections that stop at 99 MiB each would take 1.5 GB without any login."""
    config = {"socket.request.max.bytes": 20 * MIB, "queued.max.request.bytes": 32 * MIB}
    with Broker(tmp_path / "data", config) as broker, ExitStack() as stack:
        client = stack.enter_context(RawClient(broker.bootstrap_servers))
        create_topic(client, "large", 1, max_message_bytes=str(20 * MIB))
        before = resident_kib(broker)
        hostile = [stack.enter_context(RawClient(broker.bootstrap_servers)) for _ in range(12)]
        for bad in hostile:
            half_a_request(bad, 19 * MIB, 10 * MIB)
            assert client.ask(MetadataRequest(topics=[])).brokers
        for bad in hostile[:-3]:
            assert bad.closed(), "the oldest ends first"
        assert resident_kib(broker) - before < 70 * 1024
        assert produce(client, "large", 0, batch_of(bytes(15 * MIB))).error_code == 0, "an honest one finishes"


def test_a_request_may_always_be_as_large_as_its_own_bound() -> None:
    assert BrokerConfig(request_bytes_max=600 * MIB).unfinished_bytes_max == 600 * MIB
    assert BrokerConfig().unfinished_bytes_max == 512 * MIB
    assert BrokerConfig(queued_request_bytes_max=-1).unfinished_bytes_max > 2**60


def test_responses_behind_one_that_waits_count_toward_flow_control(tmp_path: Path) -> None:
    """A fetch waits for data; each request behind it would be answered with half a megabyte that can't be sent."""
    with Broker(tmp_path / "data", {"queued.max.response.bytes": MIB}) as broker:
        with RawClient(broker.bootstrap_servers) as client, RawClient(broker.bootstrap_servers) as greedy:
            create_topic(client, "wide", 8_000)
            create_topic(client, "quiet")
            waits = FetchRequest.FetchTopic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
            topic = FetchRequest.FetchTopic(topic="quiet", partitions=[waits])
            greedy.send(FetchRequest(max_wait_ms=2**31 - 1, min_bytes=1, topics=[topic]), 12)
            before = resident_kib(broker)
            for _ in range(100):
                greedy.send(MetadataRequest(topics=None), 9)
            for _ in range(20):
                assert client.ask(MetadataRequest(topics=[])).brokers
            assert resident_kib(broker) - before < 30_000, "100 answers would take 43 MB"
            assert produce(client, "quiet", 0, batch_of(b"x")).error_code == 0
            for _ in range(101):
                assert greedy.frame()


def test_responses_that_nobody_takes_have_a_common_bound(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", {"queued.max.response.bytes": MIB}) as broker, ExitStack() as stack:
        client = stack.enter_context(RawClient(broker.bootstrap_servers))
        create_topic(client, "wide", 8_000)
        hostile = [stack.enter_context(RawClient(broker.bootstrap_servers)) for _ in range(40)]
        frame = encode_request(MetadataRequest(topics=None), 9, 1, "greedy")
        for bad in hostile:
            bad.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            bad.sock.sendall(frame * 30)
            assert client.ask(MetadataRequest(topics=[])).brokers

        def open_now() -> bool:
            client.ask(MetadataRequest(topics=[]))
            return int(broker.metrics()["connections"]) <= 20

        until(open_now, "those that take nothing are closed, the oldest first")
        assert client.ask(MetadataRequest(topics=None)).topics


def test_a_connection_that_never_asks_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        turning = Turning()
        host, port = turning.address
        with ExitStack() as stack:
            silent, halfway, asks = (stack.enter_context(socket.create_connection((host, port))) for _ in range(3))
            halfway.sendall(struct.pack(">i", 100) + bytes(10))
            asks.sendall(struct.pack(">i", 4) + b"asks")
            await turning.until(lambda: len(turning.server) == 3 and len(turning.owed) == 1)
            turning.server.close_idle()
            assert len(turning.server) == 3
            monkeypatch.setattr(listener, "FIRST_REQUEST_S", 0.0)
            turning.server.close_idle()
            await turning.until(lambda: turning.closed == [1, 2])
            asks.sendall(struct.pack(">i", 100) + bytes(10))
            await read_by(turning, asks)
            turning.server.close_idle()
            assert len(turning.server) == 1
            monkeypatch.setattr(listener, "UNFINISHED_S", 0.0)
            turning.server.close_idle()
            await turning.until(lambda: turning.closed == [1, 2, 4, 3])
            assert turning.server.unfinished.used == 0
            assert silent.recv(1) == b""
        turning.server.close()

    asyncio.run(asyncio.wait_for(script(), WAIT_S))


def test_a_connection_is_not_idle_just_after_a_response_that_took_long() -> None:
    """A JoinGroup may wait for longer than `connections.max.idle.ms`; its client then needs the connection."""

    async def script(turning: Turning, client: Client) -> None:
        client.writer.write(framed(b"JoinGroup"))
        await turning.until(lambda: len(turning.owed) == 1)
        connection = turning.owed[0][0]
        connection.last_active -= 10_000
        turning.server.close_idle()
        assert len(turning.server) == 1, "it waits for its response"
        turning.answer(0, b"joined")
        assert await client.frame() == b"joined"
        turning.server.close_idle()
        assert len(turning.server) == 1

    play(script)


async def read_by(turning: Turning, sock: socket.socket) -> None:
    """Wait until the server has read what was sent: a request of another connection comes after it."""
    asked = len(turning.owed)
    with socket.create_connection(turning.address) as other:
        other.sendall(struct.pack(">i", 4) + b"asks")
        await turning.until(lambda: len(turning.owed) > asked)
    await turning.until(lambda: len(turning.closed) > 2)


@pytest.mark.parametrize(
    ("host", "config", "most"),
    [
        ("192.0.2.1", {}, 90),
        ("::ffff:127.0.0.1", {}, 100),
        ("127.0.0.9", {}, 100),
        ("::1", {}, 100),
        ("192.0.2.1", {"connections_max_per_ip": 7}, 7),
        ("127.0.0.1", {"connections_max_per_ip": 7}, 7),
    ],
)
def test_one_address_leaves_room_for_others(host: str, config: dict[str, int], most: int) -> None:
    async def script() -> None:
        loop = asyncio.get_running_loop()
        server = Server(loop, BrokerConfig(**config), 100, lambda *_: None, lambda *_: None)
        with ExitStack() as stack:
            listening = listener.ListenerSocket("PLAINTEXT", stack.enter_context(socket.socket()))
            pairs = [socket.socketpair() for _ in range(110)]
            for pair in pairs:
                for end in pair:
                    stack.enter_context(end)
            for _, end in pairs:
                server._admit(_Tcp(end), (ipv4_of_mapped(host), 1), listening)
            assert len(server) == most
            server.close()

    asyncio.run(script())


class _Tcp:
    """A socket pair's end in place of an accepted connection: no test can connect from another host's address."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.fileno, self.setblocking, self.close, self.recv_into = (
            sock.fileno, sock.setblocking, sock.close, sock.recv_into,
        )  # fmt: skip

    def setsockopt(self, *_: int) -> None:
        """A socket pair has no options of TCP."""

    def getsockname(self) -> tuple[str, int]:
        return "192.0.2.2", 9092


class Holder:
    def __init__(self, name: str, closed: list[str]) -> None:
        self.name, self._closed = name, closed
        self.last_active, self.is_reading = 0.0, True
        self.budget: ByteBudget | None = None

    def close(self) -> None:
        self._closed.append(self.name)
        if self.budget is not None:
            self.budget.set_held_bytes(self, 0)


def test_budget_closes_who_has_held_bytes_the_longest() -> None:
    closed: list[str] = []
    budget = ByteBudget("test", 100)
    first, second, third = (Holder(name, closed) for name in ("first", "second", "third"))
    first.budget = second.budget = budget
    budget.set_held_bytes(first, 10)
    budget.set_held_bytes(second, 80)
    budget.set_held_bytes(first, 0)
    budget.set_held_bytes(first, 20)
    assert not closed and budget.used == 100
    budget.set_held_bytes(first, 21)
    assert closed == ["second"] and budget.used == 21
    budget.set_held_bytes(third, 101)
    assert closed == ["second", "first", "third"] and budget.used == 0
