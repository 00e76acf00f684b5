"""Forks the process of each streaming source in the tests' Spark session: `python -m tests.spark.runners SOCKET`.

Spark's JVM starts `python -m pyspark.sql.streaming.python_streaming_source_runner` for each start of a query, which
imports PySpark, PyArrow and kohort for 0.6 s of processor time. In the tests' session that process only sends its
standard files and its environment to this one (`preloaded/sitecustomize.py`). It ends as the fork ends, and the fork
ends with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.spark.preloaded.sitecustomize import IMPORTED, RUNNER, RUNNERS
from tests.support.nursery import ORDER_BYTES, run_forked

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def running() -> Iterator[dict[str, str]]:
    """Run the process; gives the environment that leads Spark's Python processes to it."""
    with tempfile.TemporaryDirectory(prefix="kohort-runners-") as folder:
        path = str(Path(folder, "socket"))
        with subprocess.Popen(
            [sys.executable, "-m", __name__, path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=ROOT
        ) as process:
            try:
                yield {RUNNERS: path}
            finally:
                process.terminate()


class Runners:
    """The forks, by the connection of the process that each stands for."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen()
        self._selector = selectors.DefaultSelector()
        self._wakened, waker = os.pipe()
        for end in (self._wakened, waker):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker)
        for source in (0, self._wakened, self._listener):
            self._selector.register(source, selectors.EVENT_READ)
        self._by_pid: dict[int, socket.socket] = {}

    def serve(self) -> None:
        """Fork and reap until standard input ends, as it does with the tests."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == 0:
                    return
                if key.fileobj == self._wakened:
                    os.read(self._wakened, 4096)
                    self._reap()
                elif key.fileobj is self._listener:
                    self._fork(self._listener.accept()[0])
                elif key.data in self._by_pid:  # its connection has ended, and so has the process it stands for
                    self._selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGTERM)

    def _fork(self, connection: socket.socket) -> None:
        order, descriptors, _, _ = socket.recv_fds(connection, ORDER_BYTES, 3)
        pid = os.fork() if order else 0
        if order and not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            self._listener.close()
            connection.close()
            for other in self._by_pid.values():
                other.close()
            run_forked(json.loads(order), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if not pid:
            connection.close()
            return
        self._by_pid[pid] = connection
        self._selector.register(connection, selectors.EVENT_READ, pid)

    def _reap(self) -> None:
        while self._by_pid:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            connection = self._by_pid.pop(pid)
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(connection)
            with contextlib.suppress(OSError):
                connection.send(b"%d" % (os.waitstatus_to_exitcode(status) & 0xFF))
            connection.close()


def run_source() -> None:
    """Be Spark's process of a streaming source, as its module is when it is run."""
    from pyspark.sql.streaming.python_streaming_source_runner import main as serve_source
    from pyspark.worker_util import get_sock_file_to_executor

    with get_sock_file_to_executor(timeout=None) as file:
        serve_source(file, file)


def main(path: str) -> None:
    """Import what the forks need, and serve."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no threads of NumPy's before a fork
    for name in (RUNNER, *IMPORTED):
        importlib.import_module(name)
    gc.collect()
    gc.disable()
    gc.freeze()
    Runners(path).serve()


if __name__ == "__main__":
    main(sys.argv[1])
