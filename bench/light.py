"""The speed of light: what the machine does without any of our code: loopback sockets, memory copies, fsync.

docs/performance.md relates other figures to these, so that a reader sees how far there is to go.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from bench.harness import Contender, Figure, Options, RunFailed, Sample, compare

ECHOED_BYTES = 100
_CHUNK = bytes(256 * 1024)
_COPIED_BYTES = 64 * 1024 * 1024
_WRITTEN = bytes(4096)
_RUN_S = 1.0
_END_S = 10
BYTES, REQUESTS, COPY, FSYNC = (
    "bytes over a loopback socket",
    f"requests of {ECHOED_BYTES} B over a loopback socket, one at a time",
    "bytes copied in memory",
    "writes of 4 KiB, each with fsync",
)


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """One figure for each limit."""
    run_s = max(0.1, min(1.0, options.scale) * _RUN_S)
    limits: dict[str, tuple[str, Callable[[float], Sample]]] = {
        BYTES: ("bytes/s", _sent_bytes),
        REQUESTS: ("requests/s", _echoes),
        COPY: ("bytes/s", _copies),
        FSYNC: ("writes/s", _fsyncs),
    }
    for title, (unit, run) in limits.items():
        if options.only in title:
            contenders = [Contender("the machine", partial(run, run_s))]
            yield compare(title, contenders, rounds=options.rounds, unit=unit, console=console)


@contextmanager
def _peer(job: str) -> Iterator[socket.socket]:
    """Start a process that answers as `bench.runners.light` does, and connect to it."""
    command = [sys.executable, "-m", "bench.runners.light", job, str(ECHOED_BYTES)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        words = process.stdout.readline().split()
        if words[:1] != ["ready"]:
            raise RunFailed("the peer of a socket did not start")
        with socket.create_connection(("127.0.0.1", int(words[1])), _END_S) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield connection
    finally:
        process.terminate()
        process.wait(_END_S)
        process.stdout.close()


def _sent_bytes(run_s: float) -> Sample:
    """Send until the time is over, then wait until the peer has read everything."""
    with _peer("read") as connection:
        began, sent = time.perf_counter(), 0
        while time.perf_counter() - began < run_s:
            connection.sendall(_CHUNK)
            sent += len(_CHUNK)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        return Sample(sent, time.perf_counter() - began)


def _echoes(run_s: float) -> Sample:
    request = bytes(ECHOED_BYTES)
    with _peer("echo") as connection:
        began, done = time.perf_counter(), 0
        while (now := time.perf_counter()) - began < run_s:
            connection.sendall(request)
            got = 0
            while got < ECHOED_BYTES:
                got += len(connection.recv(ECHOED_BYTES - got))
            done += 1
        return Sample(done, now - began)


def _copies(run_s: float) -> Sample:
    source, target = memoryview(bytearray(_COPIED_BYTES)), memoryview(bytearray(_COPIED_BYTES))
    target[:] = source
    began, done = time.perf_counter(), 0
    while (now := time.perf_counter()) - began < run_s:
        target[:] = source
        done += _COPIED_BYTES
    return Sample(done, now - began)


def _fsyncs(run_s: float) -> Sample:
    """Append to a file in the folder for temporary files, where brokers of benchmarks have their data."""
    with tempfile.TemporaryDirectory(prefix="kohort-bench-") as folder, (Path(folder) / "log").open("wb", 0) as file:
        began, done = time.perf_counter(), 0
        while (now := time.perf_counter()) - began < run_s:
            file.write(_WRITTEN)
            os.fsync(file.fileno())
            done += 1
        return Sample(done, now - began)
