"""HTTP servers of this package while no descriptor and no thread is to be had."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kohort.io import connection_gate
from kohort.io.metrics_http import MetricsServer
from kohort.schema_registry.embedded import CONNECTIONS_MAX
from kohort.testing import EmbeddedSchemaRegistry

REFUSALS = 3


def status_of(address: str) -> int:
    """Return the status of an answer."""
    with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request("GET", "/subjects")
        return connection.getresponse().status


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE], ids=["of the process", "of the machine"])
def test_server_pauses_while_it_has_no_descriptors(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its thread would try without end, and keep a processor busy."""
    story: list[str] = []
    real, done = socket.socket.accept, threading.Event()

    def accept(sock: socket.socket) -> Any:
        if story.count("refused") < REFUSALS:
            story.append("refused")
            raise OSError(code, os.strerror(code))
        story.append("accepted")
        done.set()
        return real(sock)

    monkeypatch.setattr(socket.socket, "accept", accept)
    monkeypatch.setattr(connection_gate, "time", SimpleNamespace(sleep=lambda _: story.append("pause")))
    server = MetricsServer("127.0.0.1", 0, CollectorRegistry())
    try:
        scrape = http.client.HTTPConnection(server.address, timeout=60)
        scrape.request("GET", "/metrics")
        assert scrape.getresponse().status == 200
        scrape.close()
    finally:
        server.close()
    assert story[: 2 * REFUSALS] == ["refused", "pause"] * REFUSALS


def test_registry_serves_again_after_threads_could_not_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    with EmbeddedSchemaRegistry(tmp_path) as registry:
        address = registry.url.removeprefix("http://")
        with monkeypatch.context() as patch:
            refused = threading.Semaphore(0)

            def never(thread: threading.Thread) -> None:
                if "process_request" not in thread.name:
                    return start(thread)
                refused.release()
                raise RuntimeError("can't start new thread")

            patch.setattr(threading.Thread, "start", never)
            for _ in range(CONNECTIONS_MAX + 1):
                with pytest.raises((OSError, http.client.HTTPException)):
                    status_of(address)
                assert refused.acquire(timeout=60)
        assert status_of(address) == 200
