"""Connections that only take a place: they wait, trickle, or don't read."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.dashboard.conftest import Dashboard
from tests.support.waiting import until

from kohort import Admin, Broker, Producer
from kohort.client.admin.values import NewTopic

pytest.importorskip("uvicorn", reason="the extra `dashboard` is not installed")

from kohort.dashboard import server
from kohort.dashboard.guard import DashboardAccess

Serve = Callable[..., Dashboard]
BIG = 3 << 20
UNENDED = (
    b"POST /api/preview HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nContent-Type: application/json\r\n"
    b'Content-Length: 50\r\n\r\n{"ch'
)
"""A request whose body never ends."""


@pytest.fixture
def sockets() -> Iterator[Callable[[Dashboard, bytes], socket.socket]]:
    """Connects to a dashboard and sends some bytes."""
    with ExitStack() as stack:

        def connected(dashboard: Dashboard, data: bytes = b"") -> socket.socket:
            host, port = dashboard.server.address.rsplit(":", 1)
            sock = stack.enter_context(socket.socket())
            sock.settimeout(60)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect((host, int(port)))
            sock.sendall(data)
            return sock

        yield connected


Connect = Callable[..., socket.socket]


@pytest.fixture
def big(our_broker: Broker, name: str) -> bytes:
    """A request for records whose answer has 6 MiB."""
    with Admin(our_broker.bootstrap_servers) as admin, Producer(our_broker.bootstrap_servers) as producer:
        admin.create_topics([NewTopic(name, 1, 1)]).all()
        for _ in range(6):
            producer.send(name, b"", partition=0, headers=[("h", b"\0" * 4096)] * 50)
        producer.flush()
    return b"GET /api/records?topic=%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % name.encode()


def is_closed(sock: socket.socket) -> bool:
    """Whether the other end has closed the connection, after what it sent."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    return True


def test_connections_that_wait_keep_nobody_out(
    serve: Serve, sockets: Connect, our_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 5)
    dashboard = serve(our_broker.bootstrap_servers)
    waiting = [sockets(dashboard) for _ in range(20)]
    assert dashboard.send("/")[0] == 200
    assert dashboard.server.connections <= 5
    assert is_closed(waiting[0])


def test_connection_is_closed_while_all_others_have_requests(
    serve: Serve, sockets: Connect, our_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 2)
    dashboard = serve(our_broker.bootstrap_servers)
    events = b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    streams = [sockets(dashboard, events) for _ in range(2)]
    for stream in streams:
        assert stream.recv(12) == b"HTTP/1.1 200"
    assert is_closed(sockets(dashboard))
    streams.pop().close()
    until(lambda: dashboard.server.connections == 1, "the end of a stream is noticed")
    assert dashboard.send("/")[0] == 200


@pytest.mark.parametrize(
    "data",
    [b"", b"GET / HTTP/1.1\r\nHost: loc", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET /", UNENDED],
)
def test_connection_without_a_whole_request_is_closed(
    serve: Serve,
    sockets: Connect,
    our_broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    data: bytes,
) -> None:
    monkeypatch.setattr(server, "WAIT_S", 0.5)
    dashboard = serve(our_broker.bootstrap_servers, access=DashboardAccess(allows_changes=True))
    assert is_closed(sockets(dashboard, data))
    until(lambda: dashboard.server.connections == 0, "its place is free")
    assert "Traceback" not in caplog.text


def test_bodies_that_never_end_keep_nobody_out(
    serve: Serve, sockets: Connect, our_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 5)
    dashboard = serve(our_broker.bootstrap_servers, access=DashboardAccess(allows_changes=True))
    unended = [sockets(dashboard, UNENDED) for _ in range(20)]
    assert dashboard.send("/")[0] == 200
    assert dashboard.server.connections <= 5
    assert is_closed(unended[0])


@pytest.mark.parametrize("path", ["/", "/api/preview", "/api/nothing"])
def test_body_in_chunks_is_refused_before_it_is_read(
    serve: Serve, sockets: Connect, our_broker: Broker, path: str
) -> None:
    """A chunk of one byte takes 6 on the wire, and the server as long as a request line."""
    dashboard = serve(our_broker.bootstrap_servers, access=DashboardAccess(allows_changes=True))
    head = UNENDED.partition(b"Content-Length")[0].replace(b"/api/preview", path.encode())
    sock = sockets(dashboard, head + b"Transfer-Encoding: chunked\r\n\r\n")
    assert sock.recv(100).startswith(b"HTTP/1.1 400")
    assert is_closed(sock)


@pytest.mark.parametrize(
    "data",
    [
        b"\0\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5_000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n",
    ],
    ids=["no request", "long head", "upgrade"],
)
def test_requests_that_can_t_be_served_write_no_lines(
    serve: Serve, sockets: Connect, our_broker: Broker, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """A client sends them without end, and so would the log grow."""
    dashboard = serve(our_broker.bootstrap_servers)
    assert is_closed(sockets(dashboard, data))
    dashboard.server.close()
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


def test_bodies_that_never_end_hold_up_no_change(serve: Serve, sockets: Connect, our_broker: Broker, name: str) -> None:
    dashboard = serve(our_broker.bootstrap_servers, access=DashboardAccess(allows_changes=True))
    for _ in range(server.CHANGES_MAX):
        sockets(dashboard, UNENDED)
    until(lambda: dashboard.server.connections == server.CHANGES_MAX, "they are open")
    assert dashboard.post("preview", {"change": "delete", "group": name})[0] != 429


def test_client_that_leaves_in_its_body_is_no_error(
    serve: Serve, sockets: Connect, our_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    dashboard = serve(our_broker.bootstrap_servers, access=DashboardAccess(allows_changes=True))
    sockets(dashboard, UNENDED).close()
    dashboard.get("overview")
    until(lambda: dashboard.server.connections == 0, "its place is free")
    dashboard.server.close()
    assert "Traceback" not in caplog.text


def test_stream_of_events_outlasts_the_wait(
    serve: Serve, sockets: Connect, our_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "WAIT_S", 0.2)
    dashboard = serve(our_broker.bootstrap_servers)
    stream = sockets(dashboard, b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    text = b""
    while text.count(b"event: read") < 8:
        data = stream.recv(1 << 16)
        assert data
        text += data


def test_answer_that_nobody_reads_is_given_up(
    serve: Serve, sockets: Connect, our_broker: Broker, big: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "WAIT_S", 0.5)
    dashboard = serve(our_broker.bootstrap_servers)
    stuck = sockets(dashboard, big)
    assert stuck.recv(12) == b"HTTP/1.1 200"
    until(lambda: dashboard.server.connections == 0, "it is closed")


def test_answer_that_is_read_slowly_arrives(
    serve: Serve, sockets: Connect, our_broker: Broker, big: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "WAIT_S", 1.0)
    dashboard = serve(our_broker.bootstrap_servers)
    slow = sockets(dashboard, big.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    got = 0
    while data := slow.recv(1 << 15):
        got += len(data)
    assert got > BIG


def test_answers_that_nobody_reads_are_bounded_together(
    serve: Serve, sockets: Connect, our_broker: Broker, big: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "UNSENT_BYTES_MAX", 10 << 20)
    dashboard = serve(our_broker.bootstrap_servers)
    for _ in range(4):
        assert sockets(dashboard, big).recv(12) == b"HTTP/1.1 200"
    until(lambda: dashboard.server.connections <= 2, "the others are closed")
