"""One socket of the thread driver, with a peer that writes and hangs up."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kohort.client.net.buffers import BufferPool, FrameReader
from kohort.client.net.connection import SocketChannel
from tests.support.secured_kafka import make_certificates

FRAMES = [b"refused", b"for a reason"]


@pytest.fixture(params=["plain", "TLS"])
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client's and a server's end of a connection on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        server, _ = listening.accept()
    if request.param == "TLS":
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        make_certificates(tmp_path)
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serving.load_cert_chain(tmp_path / "broker.crt", tmp_path / "broker.key")
        trusting = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        with ThreadPoolExecutor(1) as pool:
            shaken = pool.submit(serving.wrap_socket, server, server_side=True)
            client = trusting.wrap_socket(client, server_hostname="127.0.0.1")
            server = shaken.result()
    with client, server:
        yield client, server


def test_what_a_broker_says_before_it_hangs_up_is_heard_before_the_end(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """A refused login is an answer and the end of the connection at once: the reason must not be lost to the end.

    What a turn receives is worked on after it, so the end belongs to a later one.
    """
    client, server = ends
    for frame in FRAMES:
        server.sendall(len(frame).to_bytes(4, "big") + frame)
    server.close()
    channel = SocketChannel(1, client, FrameReader(BufferPool(), 1_000_000))
    heard: list[bytes] = []
    while len(heard) < len(FRAMES):
        heard += [bytes(frame) for frame in channel.receive()]
    assert heard == FRAMES
    with pytest.raises(ConnectionResetError, match="the broker closed the connection"):
        list(channel.receive())
