"""A consumer written from the design's text and its decisions alone: it shares no code with the package.

It asks one broker for the coordinator, registers, and answers Ping, Stop and Start in a thread. Instead of fetching it
counts its positions up when the test says so. Source: spec 4.3, 4.10.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable

WAIT_S = 30.0
CLUSTER_METADATA, REGISTER, PING, STOP, START = range(20480, 20485)


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">h", len(raw)) + raw


def read_text(data: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", data, at)
    return data[at + 2 : at + 2 + size].decode(), at + 2 + size


def read_frame(sock: socket.socket) -> bytes:
    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = sock.recv(size - len(data))
            if not piece:
                raise ConnectionResetError("closed")
            data += piece
        return data

    return exactly(struct.unpack(">i", exactly(4))[0])


def ask(sock: socket.socket, body: bytes) -> bytes:
    sock.sendall(struct.pack(">i", len(body)) + body)
    return read_frame(sock)


def coordinator(host: str, port: int, group: str | None = None) -> tuple[int, tuple[str, int] | None]:
    """The error, and the address of the coordinator."""
    with socket.create_connection((host, port), WAIT_S) as sock:
        answer = ask(sock, struct.pack(">h", CLUSTER_METADATA) + (text(group) if group is not None else b""))
    error, coordinator_id, count = struct.unpack_from(">hhh", answer)
    at, brokers = 6, {}
    for _ in range(count):
        (broker_id,) = struct.unpack_from(">i", answer, at)
        name, at = read_text(answer, at + 4)
        (number,) = struct.unpack_from(">i", answer, at)
        brokers[broker_id], at = (name, number), at + 4
    assert at == len(answer)
    return error, brokers.get(coordinator_id)


class LiteralConsumer:
    """One consumer.

    Attributes:
        error: the answer to its registration.
        registry: position by (topic, partition string), as the text's topicRegistry.
        fetching: its fetchers run.
        asked: what it was asked, in order: "ping", "stop", "start".
        silent: it answers nothing.
        ended: its connection has ended.
    """

    def __init__(self, bootstrap: str, group: str, name: str, topic_count: str, **more: object) -> None:
        host, _, port = bootstrap.rpartition(":")
        error, address = coordinator(host, int(port), group if more.get("of_group") else None)
        assert error == 0
        assert address is not None
        self.name = name
        self.auto_commit = bool(more.get("auto_commit", True))
        self.registry: dict[tuple[str, str], int] = {}
        self.fetching = False
        self.asked: list[str] = []
        self.silent = False
        self.ended = False
        self.changed = threading.Condition()
        self.sock = socket.create_connection(address, WAIT_S)
        body = b"".join(
            (
                struct.pack(">h", REGISTER),
                text(group),
                text(name),
                text(topic_count),
                bytes((self.auto_commit,)),
                text(str(more.get("auto_offset_reset", "smallest"))),
                struct.pack(">i", int(str(more.get("session_timeout_ms", 6000)))),
            )
        )
        try:
            (self.error,) = struct.unpack(">h", ask(self.sock, body))
        except BaseException:
            self.sock.close()
            raise
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                frame = read_frame(self.sock)
                with self.changed:
                    answer = self._handle(frame)
                    self.changed.notify_all()
                    if answer is not None and not self.silent:
                        self.sock.sendall(struct.pack(">i", len(answer)) + answer)
        with self.changed:
            self.ended, self.fetching = True, False
            self.changed.notify_all()

    def _handle(self, frame: bytes) -> bytes | None:
        (kind,) = struct.unpack_from(">h", frame)
        if self.silent:
            return None
        if kind == PING:
            self.asked.append("ping")
            if not self.auto_commit:
                return b""
            parts = [text(topic) + text(part) + struct.pack(">q", at) for (topic, part), at in self.registry.items()]
            return struct.pack(">h", len(parts)) + b"".join(parts)
        if kind == STOP:
            self.asked.append("stop")
            self.fetching = False
            return struct.pack(">h", 0)
        assert kind == START
        self.asked.append("start")
        (count,) = struct.unpack_from(">h", frame, 2)
        at, reported = 4, {}
        for _ in range(count):
            topic, at = read_text(frame, at)
            part, at = read_text(frame, at)
            (reported[topic, part],) = struct.unpack_from(">q", frame, at)
            at += 8
        assert at == len(frame)
        if self.fetching and reported.keys() != self.registry.keys():
            return struct.pack(">h", -1)  # the text's IllegalStateException
        if not self.fetching:
            self.registry = reported
        self.fetching = True
        return struct.pack(">h", 0)

    def until(self, condition: Callable[[LiteralConsumer], bool]) -> None:
        """Wait for it."""
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self), WAIT_S), (self.name, self.asked, self.registry)

    def read(self, count: int) -> None:
        """Move on in each partition."""
        with self.changed:
            self.registry = {part: at + count for part, at in self.registry.items()}

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join(WAIT_S)
        self.sock.close()


def eventually(condition: Callable[[], bool]) -> None:
    """Look until it holds."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
