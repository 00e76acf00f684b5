"""Handshakes and frames: what an end takes that knows the token, and what it takes from nobody else."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kohort.io import channel
from kohort.io.channel import (
    FRAME_BYTES_MAX,
    NONCE_BYTES,
    PROOF_BYTES,
    AsyncLink,
    CallerHandshake,
    Link,
    LinkFrames,
    ListenerHandshake,
    authenticate_caller,
    authenticate_caller_async,
    authenticate_listener,
)
from kohort.io.pinned_tls import listener_tls_context
from kohort.io.tls_records import SILENT_RECORDS_MAX
from tests.support.tls_record_client import TlsRecordClient

TOKEN = b"t" * 32
BODIES = [b"one", b"", b"three" * 1000]


def both() -> tuple[LinkFrames, LinkFrames]:
    nonces = secrets.token_bytes(2 * NONCE_BYTES)
    return LinkFrames(TOKEN, nonces, is_caller=True), LinkFrames(TOKEN, nonces, is_caller=False)


@pytest.mark.parametrize("size", [1, 3, 7, 1000, 100_000])
def test_bodies_come_whole_from_any_pieces(size: int) -> None:
    caller, listener = both()
    data = b"".join(caller.sealer.seal_frame(body) for body in BODIES)
    found = [body for at in range(0, len(data), size) for body in listener.parser.feed(data[at : at + size])]
    assert found == BODIES


TAMPERINGS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "a body is changed": lambda frames: [frames[0][:4] + b"0ne" + frames[0][7:]],
    "a length is changed": lambda frames: [b"\0\0\0\2" + frames[0][4:] + bytes(100)],
    "a check is changed": lambda frames: [frames[0][:-1] + bytes([frames[0][-1] ^ 1])],
    "a frame comes twice": lambda frames: [frames[0], frames[0]],
    "a frame is left out": lambda frames: [frames[0], frames[2]],
    "frames change places": lambda frames: [frames[1], frames[0]],
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_frame_that_is_not_the_next_of_the_other_end_is_refused(name: str) -> None:
    caller, listener = both()
    frames = [caller.sealer.seal_frame(body) for body in BODIES]
    with pytest.raises(ValueError, match="is not what the other end sent"):
        listener.parser.feed(b"".join(TAMPERINGS[name](frames)))


def test_frame_that_is_sent_back_or_into_another_connection_is_refused() -> None:
    caller, listener = both()
    other, _ = both()
    with pytest.raises(ValueError, match="not what the other end sent"):
        caller.parser.feed(caller.sealer.seal_frame(b"mine"))
    with pytest.raises(ValueError, match="not what the other end sent"):
        listener.parser.feed(other.sealer.seal_frame(b"of another connection"))


@pytest.mark.parametrize("data", [(FRAME_BYTES_MAX + 1).to_bytes(4, "big"), b"GET / HTTP/1.1\r\n"])
def test_frame_that_is_too_long_is_refused_before_it_is_kept(data: bytes) -> None:
    _, listener = both()
    with pytest.raises(ValueError, match="longer than"):
        listener.parser.feed(data)


def test_body_longer_than_a_frame_is_refused_by_its_sender() -> None:
    caller, listener = both()
    with pytest.raises(ValueError, match="longer than"):
        caller.sealer.seal_frame(bytes(FRAME_BYTES_MAX + 1))
    assert listener.parser.feed(caller.sealer.seal_frame(b"next")) == [b"next"], "it has not counted"


def test_ends_with_different_tokens_refuse_each_other() -> None:
    listener = ListenerHandshake(TOKEN)
    caller = CallerHandshake(b"x" * 32, listener.nonce)
    with pytest.raises(PermissionError):
        listener.check_and_answer(caller.says)
    with pytest.raises(PermissionError):
        caller.check_answer(caller.says[NONCE_BYTES:])  # its own proof, played back


@pytest.fixture
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        caller = socket.create_connection(server.getsockname())
        listener, _ = server.accept()
    with caller, listener:
        yield caller, listener


def test_link_that_was_closed_before_it_is_read_has_nothing_to_say(
    connected: tuple[socket.socket, socket.socket],
) -> None:
    link = Link(connected[0], both()[0])
    link.close()
    assert list(link.receive_bodies(1.0)) == []


def test_handshake_has_one_deadline_however_the_bytes_come(
    connected: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte for each timeout held a place for ten minutes."""
    monkeypatch.setattr(channel, "GREETING_S", 1.0)
    caller, listener = connected
    ended, sent = threading.Event(), list[bytes]()

    def drip() -> None:
        while not ended.wait(0.3) and len(sent) < NONCE_BYTES + PROOF_BYTES - 1:
            try:
                caller.sendall(b"x")
            except OSError:
                return
            sent.append(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(TimeoutError):
        authenticate_caller(listener, TOKEN)
    ended.set()
    thread.join(60)
    assert len(sent) < NONCE_BYTES + PROOF_BYTES - 1, "it ended while bytes were still coming"


async def _accept(server: socket.socket, tls: object) -> AsyncLink:
    server.setblocking(False)
    sock, _ = await asyncio.get_running_loop().sock_accept(server)
    return await authenticate_caller_async(sock, TOKEN, tls)  # type: ignore[arg-type]


async def _echo(server: socket.socket, tls: object) -> None:
    link = await _accept(server, tls)
    try:
        async for body in link.receive_bodies(60):
            link.send(body)
    finally:
        link.close()


@pytest.mark.parametrize("with_tls", [False, True])
def test_link_on_an_event_loop_and_one_on_threads_speak_one_channel(with_tls: bool) -> None:
    tls, pin = listener_tls_context() if with_tls else (None, b"")
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        served = pool.submit(asyncio.run, _echo(server, tls))
        sock = socket.create_connection(server.getsockname(), 60)
        link = authenticate_listener(sock, TOKEN, 60, pin)
        bodies = [*BODIES, secrets.token_bytes(3_000_000)]
        threads = [threading.Thread(target=link.send, args=(body,)) for body in bodies for _ in range(3)]
        for thread in threads:
            thread.start()
        echoes = link.receive_bodies(60)
        found = [next(echoes) for _ in threads]
        for thread in threads:
            thread.join(60)
        assert sorted(found) == sorted(bodies * 3)
        link.close()
        served.result(60)


def test_listener_with_another_certificate_is_refused() -> None:
    """Somebody in between, who shows a certificate of its own and would pass the handshake on."""
    (tls, _), (_, pin) = listener_tls_context(), listener_tls_context()
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        served = pool.submit(asyncio.run, _accept(server, tls))
        with socket.create_connection(server.getsockname(), 60) as sock:
            with pytest.raises(PermissionError, match="another certificate"):
                authenticate_listener(sock, TOKEN, 60, pin)
        with pytest.raises(OSError):  # noqa: PT011 - reset or ended
            served.result(60)


def test_listener_without_tls_is_refused_where_a_certificate_is_pinned() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        served = pool.submit(asyncio.run, _accept(server, None))
        with socket.create_connection(server.getsockname(), 60) as sock:
            with pytest.raises(OSError):  # noqa: PT011 - any error of TLS
                authenticate_listener(sock, TOKEN, 60, b"p" * 32)
        with pytest.raises(OSError):  # noqa: PT011 - reset, or no proof
            served.result(60)


def test_stranger_of_an_event_loop_is_closed_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "GREETING_S", 0.2)
    tls, _ = listener_tls_context()
    for context in (None, tls):  # with TLS it is silent before the first byte of that
        with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
            served = pool.submit(asyncio.run, _accept(server, context))
            with socket.create_connection(server.getsockname(), 60) as sock:
                with pytest.raises(TimeoutError):
                    served.result(60)
                assert sock.recv(100)[NONCE_BYTES:] == b"" and sock.recv(1) == b""


# -- A caller over TLS that gives OpenSSL work


def _tls_handshake(client: TlsRecordClient) -> LinkFrames:
    handshake = CallerHandshake(TOKEN, client.read())
    client.sock.sendall(client.encrypted(handshake.says))
    return handshake.check_answer(client.read())


def test_stranger_over_tls_that_does_nothing_but_change_its_keys_is_closed() -> None:
    tls, _ = listener_tls_context()
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        served = pool.submit(asyncio.run, _accept(server, tls))
        with TlsRecordClient(server.getsockname()) as client:
            client.sock.sendall(client.key_updates(2 * SILENT_RECORDS_MAX))
            with pytest.raises(ConnectionAbortedError, match="too many TLS records without data"):
                served.result(60)


def test_caller_over_tls_changes_its_keys_now_and_then_and_no_more() -> None:
    tls, _ = listener_tls_context()
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        served = pool.submit(asyncio.run, _echo(server, tls))
        with TlsRecordClient(server.getsockname()) as client:
            frames, heard = _tls_handshake(client), list[bytes]()
            for _ in range(5):
                client.sock.sendall(client.key_updates(10) + client.encrypted(frames.sealer.seal_frame(b"body")))
                while not (found := frames.parser.feed(client.read())):
                    pass
                heard += found
            assert heard == [b"body"] * 5
            client.sock.sendall(client.key_updates(2 * SILENT_RECORDS_MAX))
            with pytest.raises(ConnectionAbortedError, match="too many TLS records without data"):
                served.result(60)


def test_loop_serves_others_between_the_records_of_one_caller() -> None:
    """A burst of 540 KB of tiny records held the loop for 177 ms."""
    tls, _ = listener_tls_context()
    bodies_sent = 150

    async def turns_between_the_first_and_the_last_body(server: socket.socket) -> int:
        link, turns, ended = await _accept(server, tls), 0, False

        async def others() -> None:
            nonlocal turns
            while not ended:
                turns += 1
                await asyncio.sleep(0)

        background = asyncio.ensure_future(others())
        bodies, first = 0, 0
        async for _ in link.receive_bodies(60):
            bodies += 1
            first = first or turns
            if bodies == bodies_sent:
                break
        ended = True
        await background
        link.abort()
        return turns - first

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        served = pool.submit(asyncio.run, turns_between_the_first_and_the_last_body(server))
        with TlsRecordClient(server.getsockname()) as client:
            frames = _tls_handshake(client)
            stream = b"".join(frames.sealer.seal_frame(b"") for _ in range(bodies_sent))
            records = [client.encrypted(stream[at : at + 1]) for at in range(len(stream))]
            client.sock.sendall(b"".join(records))
            assert served.result(60) >= len(records) // SILENT_RECORDS_MAX - 3
