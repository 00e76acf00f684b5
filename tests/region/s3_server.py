"""A real server of S3's protocol in a process of its own, and a proxy before it that keeps answers back."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO

import pyarrow.fs as pafs
import pytest

from kohort.zookeeper import free_ports
from tests.support.waiting import until

ACCESS = {"s3.access-key-id": "kohort", "s3.secret-access-key": "kohort-secret", "s3.region": "us-east-1"}
BUCKET = "lake"


@contextlib.contextmanager
def running(folder: Path) -> Iterator[str]:
    """The address of a server with the bucket `lake`: versitygw where it is installed, else moto's."""
    (port,) = free_ports(1)
    if gateway := shutil.which("versitygw"):
        os.makedirs(folder / "objects")
        command = [gateway, "--access", ACCESS["s3.access-key-id"], "--secret", ACCESS["s3.secret-access-key"],
                   "--port", f"127.0.0.1:{port}", "posix", str(folder / "objects")]  # fmt: skip
    elif importlib.util.find_spec("moto") and importlib.util.find_spec("flask_cors"):
        command = [sys.executable, "-m", "tests.region.moto_server", str(port)]
    else:
        pytest.skip("no object store: neither versitygw on PATH nor moto's server is installed")
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(lambda: listens(port), f"{command[0]} listens, see {folder}/log")
        address = f"http://127.0.0.1:{port}"
        files_of(address).create_dir(BUCKET)
        yield address
    finally:
        server.kill()
        server.wait()


def listens(port: int) -> bool:
    """Return whether something listens on a port of this machine."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def files_of(address: str) -> pafs.S3FileSystem:
    """Return the server's objects, as Arrow reaches them."""
    return pafs.S3FileSystem(
        access_key=ACCESS["s3.access-key-id"], secret_key=ACCESS["s3.secret-access-key"], region=ACCESS["s3.region"],
        endpoint_override=address, allow_bucket_creation=True,
    )  # fmt: skip


_EXPECT = re.compile(rb"(?i)expect: *100-continue\r\n")
_SLOW_DOWN = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"


class LossyProxy:
    """A proxy before a server. For a request that `loses` names, the server answers and the client hears nothing.

    `before` is called with each request before the server hears of it. If it returns True, the answer is 503.
    `refuses` may return an answer in place of the server, which hears nothing, or None for none. `instead` may return
    an answer in place of the server's. `rewrites` returns what the server hears of a request's first line and headers.
    If `cuts` returns True, the connection ends after two thirds of the answer. `sees` gets each whole request.
    """

    def __init__(
        self,
        upstream: str,
        loses: Callable[[str, str], bool],
        before: Callable[[str, str], bool] = lambda method, path: False,
        refuses: Callable[[str, str], bytes | None] = lambda method, path: b"",
        instead: Callable[[str, str], bytes] = lambda method, path: b"",
        rewrites: Callable[[bytes], bytes] = lambda head: head,
        cuts: Callable[[str, str], bool] = lambda method, path: False,
        sees: Callable[[bytes], object] = lambda request: None,
    ) -> None:
        port = int(upstream.rpartition(":")[2])
        self.lost: list[str] = []
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with socket.create_connection(("127.0.0.1", port)) as server, server.makefile("rb") as answers:
                    while head := _head(self.rfile):
                        if asked := _EXPECT.search(head):  # Arrow waits a second for this before it sends a body
                            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                            head = head.replace(asked[0], b"")
                        body = _body(self.rfile, head)
                        sees(head + body)
                        method, path, *_ = head.decode("latin-1").split(" ")
                        if before(method, path):
                            self.wfile.write(_SLOW_DOWN)
                            continue
                        if (refusal := refuses(method, path)) is None:
                            return
                        if refusal:
                            self.wfile.write(refusal)
                            continue
                        server.sendall(rewrites(head) + body)
                        answer = _head(answers)
                        if method != "HEAD" and answer[9:12] not in (b"204", b"304"):
                            answer += _body(answers, answer)
                        if loses(method, path):
                            outer.lost.append(f"{method} {path}")
                            return
                        if cuts(method, path):
                            self.wfile.write(answer[: -(len(answer) // 3)])
                            return
                        self.wfile.write(instead(method, path) or answer)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)


def send_again(upstream: str, request: bytes) -> bytes:
    """Send a server a request once more; return the first line of its answer."""
    with socket.create_connection(("127.0.0.1", int(upstream.rpartition(":")[2]))) as server:
        server.sendall(request)
        with server.makefile("rb") as answers:
            return answers.readline()


def _head(stream: BinaryIO | BufferedIOBase) -> bytes:
    lines = []
    while line := stream.readline():
        lines.append(line)
        if line == b"\r\n":
            return b"".join(lines)
    return b""


def _body(stream: BinaryIO | BufferedIOBase, head: bytes) -> bytes:
    fields = dict(line.lower().split(b":", 1) for line in head.splitlines()[1:] if b":" in line)
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        data = b""
        while True:
            line = stream.readline()
            chunk = stream.read(int(line, 16) + 2)
            data += line + chunk
            if int(line, 16) == 0:
                return data
    return stream.read(int(fields.get(b"content-length", b"0")))
