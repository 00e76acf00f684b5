"""Forks the Python processes of the tests' Spark applications: `python -m tests.spark.runners`.

Spark's JVM starts `python -m pyspark.sql.streaming.python_streaming_source_runner` for each start of a query, and a
`python -m pyspark.daemon` for each step of planning. Each imports PySpark, PyArrow and kohort for 0.6 to 1.2 s of
processor time, six times in an application that runs one query. Here they only send their standard files and their
environment to this process (`preloaded/sitecustomize.py`). Such a process ends as its fork ends, passes SIGTERM on to
it, and has it killed when it is killed.
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
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.spark.preloaded.sitecustomize import DAEMON, RUNNER, RUNNERS
from tests.support.nursery import ORDER_BYTES, run_forked

ROOT = Path(__file__).resolve().parents[2]


IMPORTED = (
    RUNNER,
    DAEMON,
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.pandas.serializers",
    "pandas",
    "pyarrow",
    "kohort.spark.data_source",
    "kohort.spark.source.query",
    "kohort.spark.source.readers",
    "kohort.spark.tasks.write",
)


@contextlib.contextmanager
def running() -> Iterator[dict[str, str]]:
    """Run the process from the first request on; gives the environment that leads Spark's Python processes to it."""
    with tempfile.TemporaryDirectory(prefix="kohort-runners-") as folder, contextlib.ExitStack() as ends:
        path = str(Path(folder, "socket"))
        listener = ends.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(path)
        listener.listen()
        end, begin_end = socket.socketpair()
        waiting = threading.Thread(target=_run_when_asked, args=(listener, end), name="forks of Spark", daemon=True)
        waiting.start()
        try:
            preloaded = Path(__file__).with_name("preloaded")
            paths = [str(preloaded), *filter(None, [os.environ.get("PYTHONPATH")])]
            yield {RUNNERS: path, "PYTHONPATH": os.pathsep.join(paths)}
        finally:
            begin_end.close()
            waiting.join()
            end.close()


def _run_when_asked(listener: socket.socket, end: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(end, selectors.EVENT_READ)
        if any(key.fileobj is end for key, _ in selector.select()):
            return
    command = [sys.executable, "-m", __name__, str(listener.fileno())]
    environment = os.environ | {"PYTHONHASHSEED": "0"}  # as Spark sets it for the processes that are forked
    environment.pop(RUNNERS, None)
    with subprocess.Popen(
        command, stdin=end, stdout=subprocess.DEVNULL, cwd=ROOT, env=environment, pass_fds=[listener.fileno()]
    ):
        pass


class Runners:
    """The forks, by the connection of the process that each stands for."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
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
                elif key.data in self._by_pid:
                    self._pass_on(self._by_pid[key.data], key.data)

    def _pass_on(self, connection: socket.socket, pid: int) -> None:
        """Send a fork the signal that the process it stands for has got, or end it where that process was killed."""
        number = connection.recv(64)
        if not number:
            self._selector.unregister(connection)
        os.kill(pid, int(number or signal.SIGKILL))

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
            work = json.loads(order)
            given = work["environment"].get("PYTHONPATH", "").split(os.pathsep)
            sys.path[:1] = [work["folder"], *(path for path in given if path and path not in sys.path)]
            run_forked(work, descriptors)
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


def run_daemon() -> None:
    """Be Spark's daemon, as its module is when it is run."""
    from pyspark.daemon import manager

    manager()


def main(listener: int) -> None:
    """Import what the forks need, and serve."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no threads of NumPy's before a fork
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.disable()
    gc.freeze()
    Runners(socket.socket(fileno=listener)).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
