"""Ports that a server has alone."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from kohort.io.metrics_http import _Server
from kohort.io.platforms import reserve_port

pytest.importorskip("uvicorn", reason="the extra `dashboard` is not installed")

from kohort.dashboard.guard import OPEN
from kohort.dashboard.server import _listening_socket


def reserved() -> socket.socket:
    sock = socket.socket()
    reserve_port(sock)
    return sock


BINDS: dict[str, Callable[[], socket.socket]] = {
    "reserved": reserved,
    "dashboard": lambda: _listening_socket("127.0.0.1", 0, OPEN),
    "metrics": lambda: _Server(("127.0.0.1", 0), None).socket,
}


@pytest.mark.parametrize("bind", BINDS.values(), ids=BINDS)
def test_port_is_exclusive_where_reuse_would_let_others_in(
    bind: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux has no such option, so another one stands for that of Windows."""
    monkeypatch.setattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_KEEPALIVE, raising=False)
    with bind() as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert not sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)


def test_port_of_a_server_that_has_ended_is_bound_at_once() -> None:
    with reserved() as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
