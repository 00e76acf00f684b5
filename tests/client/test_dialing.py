"""Names that stand for several addresses, of which some answer nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from kohort import Admin, AsyncAdmin, Broker
from kohort.client.net.connection import Address, connect
from kohort.client.settings import ConnectionConfig, client_config

SILENT, NAME = "127.0.0.2", "several.addresses.test"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 and a full queue of connections")


@contextlib.contextmanager
def silent_listener(port: int) -> Iterator[None]:
    """Listen at SILENT, where the system accepts no further connection and refuses none."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((SILENT, port))
        listener.listen(0)
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((SILENT, port))
        yield


@pytest.fixture
def name(kohort_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A name of which the first address is silent, and the last is the broker's."""
    port = int(kohort_broker.bootstrap_servers.rpartition(":")[2])
    resolve = socket.getaddrinfo

    def resolve_name(host: Any, *args: Any, **named: Any) -> Any:
        hosts = [SILENT, SILENT, "127.0.0.1"] if host == NAME else [host]
        return [found for host in hosts for found in resolve(host, *args, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve_name)
    with silent_listener(port):
        yield f"{NAME}:{port}"


def test_client_reaches_the_address_of_a_name_that_answers(name: str) -> None:
    with Admin(name, default_api_timeout_ms=8_000, socket_connection_setup_timeout_ms=4_000) as admin:
        assert admin.list_topics() == []


def test_asyncio_client_reaches_the_address_of_a_name_that_answers(name: str) -> None:
    async def list_topics() -> Any:
        async with AsyncAdmin(name, default_api_timeout_ms=8_000, socket_connection_setup_timeout_ms=4_000) as admin:
            return await admin.list_topics()

    assert asyncio.run(list_topics()) == []


def test_connection_is_given_up_when_its_time_is_over() -> None:
    config = client_config(ConnectionConfig, SILENT, {"socket_connection_setup_timeout_ms": 300})
    with socket.socket() as probe:
        probe.bind((SILENT, 0))
        port = probe.getsockname()[1]
    with silent_listener(port), pytest.raises(TimeoutError):
        connect(Address(SILENT, port), config, None)


def test_refusal_of_all_addresses_is_the_error() -> None:
    with pytest.raises(ConnectionRefusedError):
        connect(Address("localhost", 1), client_config(ConnectionConfig, "localhost:1", {}), None)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["thread", "asyncio"])
def test_sockets_have_the_configured_buffers_and_are_probed(
    kohort_broker: Broker, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    connected: list[socket.socket] = []
    made = socket.socket

    class Recorded(made):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            connected.append(self)

    monkeypatch.setattr(socket, "socket", Recorded)
    servers, settings = kohort_broker.bootstrap_servers, {"receive_buffer_bytes": 54_321, "send_buffer_bytes": 43_210}

    def buffers() -> list[tuple[int, ...]]:
        options = socket.SO_RCVBUF, socket.SO_SNDBUF, socket.SO_KEEPALIVE
        return [
            tuple(sock.getsockopt(socket.SOL_SOCKET, option) for option in options)
            for sock in connected
            if sock.fileno() >= 0
        ]

    async def list_topics() -> list[tuple[int, ...]]:
        async with AsyncAdmin(servers, **settings) as admin:
            await admin.list_topics()
            return buffers()

    if asynchronous:
        found = asyncio.run(list_topics())
    else:
        with Admin(servers, **settings) as admin:
            admin.list_topics()
            found = buffers()
    assert (2 * 54_321, 2 * 43_210, 1) in found  # Linux gives twice as much, for its own use
