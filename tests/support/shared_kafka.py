"""One Apache Kafka for all workers of a run: `python -m tests.support.shared_kafka SOCKET SETTINGS`.

A node takes eight seconds of processor time to start and to warm up, and two of each hundred while nothing is asked of
it. The first worker that needs a node starts this process, which runs the node and listens at a Unix socket. Each
worker keeps a connection. The node ends with the last of them, also when they were killed. A worker that comes after
that runs a node of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.apache_kafka import ApacheKafka, KafkaTools
from tests.support.maven import MavenUnavailable

LISTENS_WITHIN_S = 60
_LEFT = b"bye\n"
_started: list[subprocess.Popen[bytes]] = []
"""Processes that outlive what this worker asks of them: one that is forgotten while it runs is a warning."""


class SharedKafka(ApacheKafka):
    """A node that another process runs for all workers: no test may end it."""

    def __init__(self, bootstrap_servers: str, folder: Path, pid: int, tools_folder: Path) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.folder = folder
        self.tools = KafkaTools(tools_folder)
        self._pid = pid

    @property
    def pid(self) -> int:
        return self._pid

    def start(self) -> None:
        raise AssertionError("other workers use this node: start one of the test's own")

    def stop(self, timeout_ms: int = 10_000) -> None:
        raise AssertionError("other workers use this node: start one of the test's own")

    def kill(self) -> None:
        raise AssertionError("other workers use this node: start one of the test's own")

    def close(self) -> None:
        """Leave the node to those that still use it."""


@contextlib.contextmanager
def kafka_of_the_run(settings: Mapping[str, str], tools_folder: Path) -> Iterator[ApacheKafka]:
    """The node that all workers of this run share; without workers, or when the shared one ends, one of its own.

    Raises:
        MavenUnavailable: Kafka can't be run on this machine.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    with contextlib.ExitStack() as stack:
        connection = _connected(run, settings) if run is not None else None
        node = {}
        if connection is not None:
            answers = stack.enter_context(stack.enter_context(connection).makefile("r"))
            with contextlib.suppress(OSError):
                node = json.loads(answers.readline() or "{}")
        if connection is None or not node:
            yield stack.enter_context(ApacheKafka(settings=settings))
            return
        if "unavailable" in node:
            raise MavenUnavailable(node["unavailable"])
        yield SharedKafka(node["servers"], Path(node["folder"]), node["pid"], tools_folder)
        with contextlib.suppress(OSError):
            connection.sendall(_LEFT)
            answers.readline()


def _connected(run: str, settings: Mapping[str, str]) -> socket.socket | None:
    """A connection to the process that runs this run's node, which is started when there is none."""
    path = Path(tempfile.gettempdir(), f"kohort-kafka-{run[:12]}")
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _started.append(
                subprocess.Popen(
                    [sys.executable, "-m", __name__, str(path), json.dumps(dict(settings))],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd=Path(__file__).resolve().parents[2],
                    start_new_session=True,
                )
            )
        deadline = time.monotonic() + LISTENS_WITHIN_S
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        while True:
            try:
                connection.connect(str(path))
            except OSError:
                if time.monotonic() > deadline:
                    connection.close()
                    return None
                time.sleep(0.05)
            else:
                return connection


def serve(path: Path, settings: Mapping[str, str]) -> None:
    """Run a node until the last connection to the socket ends."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(str(path))
        stack.callback(path.unlink, missing_ok=True)
        stack.callback(path.with_suffix(".lock").unlink, missing_ok=True)
        listener.listen()
        answer: dict[str, Any]
        try:
            node = stack.enter_context(ApacheKafka(settings=settings))
            answer = {"servers": node.bootstrap_servers, "folder": str(node.folder), "pid": node.pid}
        except MavenUnavailable as error:
            answer = {"unavailable": str(error)}
        _until_the_last_leaves(listener, json.dumps(answer).encode() + b"\n", stack)


def _until_the_last_leaves(listener: socket.socket, answer: bytes, stack: contextlib.ExitStack) -> None:
    """Answer each connection; the last one that leaves is answered when the node has ended."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        users = 0
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    user, _ = listener.accept()
                    user.sendall(answer)
                    selector.register(user, selectors.EVENT_READ)
                    users += 1
                    continue
                user = key.fileobj  # type: ignore[assignment]
                selector.unregister(user)
                users -= 1
                if not users:
                    stack.close()
                with contextlib.suppress(OSError):
                    user.sendall(_LEFT)
                user.close()
                if not users:
                    return


if __name__ == "__main__":
    serve(Path(sys.argv[1]), json.loads(sys.argv[2]))
