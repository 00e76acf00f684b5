"""A server on loopback that answers every connection with given bytes, at a given pace."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class RawRegistry:
    """A server, and the requests that it got.

    Attributes:
        url: the address.
        requests: the first lines of the requests.
    """

    def __init__(self, answer: bytes, pace_s: float) -> None:
        self.requests: list[str] = []
        self._answer, self._pace_s = answer, pace_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                self.requests.append(connection.recv(65536).decode().partition("\r\n")[0])
                if not self._pace_s:
                    connection.sendall(self._answer)
                    continue
                for at in range(len(self._answer)):
                    connection.sendall(self._answer[at : at + 1])
                    if self._ended.is_set():
                        return
                    time.sleep(self._pace_s)

    def close(self) -> None:
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def http_answer(body: Any, status: str = "200 OK", *headers: str) -> bytes:
    """Return an HTTP answer with a JSON body."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + data


@contextmanager
def raw_registry(answer: bytes, pace_s: float = 0.0) -> Iterator[RawRegistry]:
    """Serve an answer; with a pace, byte by byte."""
    server = RawRegistry(answer, pace_s)
    try:
        yield server
    finally:
        server.close()
