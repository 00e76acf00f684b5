"""A process with kohort imported, which forks brokers and coordinators of the tests: `python -m tests.support.nursery`.

A run starts six hundred embedded brokers, and a hundred times `kohort coordinator` or `kohort broker`. Five sixths of
the processor time of each start are imports. Each worker therefore keeps one process that has them. Its forks are the
worker's own children, as brokers are of any program. A process in between forks each and ends, so that the worker
adopts it.

The long run, and each test that starts a program of its own, starts brokers as a user's program does.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NoReturn

from tests.support.processes import KOHORT
from tests.support.supervise import PR_SET_CHILD_SUBREAPER

ROOT = Path(__file__).resolve().parents[2]
ORDER_BYTES = 1 << 20
PRELOADED = (
    "kohort.broker.child",
    "uvloop",
    "encodings.idna",
    "cyclopts",
    "kohort.cli.broker",
    "kohort.cli.coordinator",
    "kohort.cluster.run",
)
_running: list[Nursery] = []
"""The nursery of this process while `of_this_process` runs, else nothing."""


_adopting = threading.Lock()
"""One at a time: whether a process adopts others is a setting of the whole process."""


class AdoptedProcess(subprocess.Popen[Any]):
    """A child of this process that another one has forked."""

    def __init__(self, pid: int, args: Sequence[str], pipes: Sequence[int | None], text: bool) -> None:
        self.args = args
        self.pid = pid
        self.returncode = None
        modes = ("w", "r", "r") if text else ("wb", "rb", "rb")
        self.stdin, self.stdout, self.stderr = (
            None if pipe is None else os.fdopen(pipe, mode) for pipe, mode in zip(pipes, modes, strict=True)
        )
        self.text_mode = text
        self._child_created = True
        self._communication_started = False
        self._input = None
        self._waitpid_lock = threading.Lock()
        self._sigint_wait_secs = 0.25


class Nursery:
    """The process that forks, started when it is first needed. For several threads.

    Args:
        preloaded: the modules that the process imports at its start.
    """

    def __init__(self, preloaded: Sequence[str] = PRELOADED) -> None:
        self._preloaded = preloaded
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._libc = ctypes.CDLL(None, use_errno=True)

    def start_broker(self) -> subprocess.Popen[bytes]:
        """Start a broker's process, as `kohort.broker.embedded.start_process` does."""
        return self.fork("kohort.broker.child:main", piped=(True, True, False), session=True)

    def start_command(self, arguments: Sequence[str]) -> subprocess.Popen[str]:
        """Start `kohort …` with pipes at its output and errors, as text."""
        return self.fork("kohort.cli:main", arguments, piped=(False, True, True), text=True)

    def fork(
        self,
        function: str,
        arguments: Sequence[str] = (),
        *,
        piped: Sequence[bool],
        files: Mapping[int, IO[Any]] = MappingProxyType({}),
        text: bool = False,
        session: bool = False,
    ) -> subprocess.Popen[Any]:
        """Run a function in a process with this one's environment, folder, umask and limit of open files.

        Args:
            function: MODULE:NAME.
            arguments: what it finds in `sys.argv`.
            piped: which of standard input, output and errors is a pipe; the others are this process's.
            files: the open files that stand for some of the others, by number.
            text: whether the pipes give text.
            session: whether the process begins a session.
        """
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        order = {
            "function": function,
            "arguments": list(arguments),
            "session": session,
            "environment": dict(os.environ),
            "folder": str(Path.cwd()),
            "umask": int(re.findall(r"^Umask:\s*(\d+)", status, re.MULTILINE)[0], 8),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        pipes = [os.pipe() if wanted else None for wanted in piped]
        opened = {number: file.fileno() for number, file in files.items()}
        its = [opened.get(number, number) if pipe is None else pipe[number > 0] for number, pipe in enumerate(pipes)]
        ours = [None if pipe is None else pipe[number == 0] for number, pipe in enumerate(pipes)]
        try:
            with _adopting:
                pid = self._adopt(json.dumps(order).encode(), its)
        except BaseException:
            for end in filter(None, ours):
                os.close(end)
            raise
        finally:
            for number, end in enumerate(its):
                if piped[number]:
                    os.close(end)
        return AdoptedProcess(pid, [function, *arguments], ours, text)

    def _adopt(self, order: bytes, descriptors: Sequence[int]) -> int:
        if self._socket is None:
            self._socket = self._connected()
        self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self._socket, [order], descriptors)
            return int(self._socket.recv(64))
        finally:
            self._libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def _connected(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *self._preloaded],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                start_new_session=True,
            )
        return ours

    def close(self) -> None:
        """End the process. Those who started its children end them."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()


@contextlib.contextmanager
def of_this_process() -> Iterator[Nursery]:
    """Let `start_command` fork in this process."""
    nursery = Nursery()
    _running.append(nursery)
    try:
        yield nursery
    finally:
        _running.remove(nursery)
        nursery.close()


def start_command(command: Sequence[str]) -> subprocess.Popen[str]:
    """Start a command with pipes at its output and errors; `kohort …` by this process's nursery, where there is one."""
    if _running and list(command[: len(KOHORT)]) == KOHORT:
        return _running[-1].start_command(command[len(KOHORT) :])
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_command(command: Sequence[str], timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, started as by `start_command`; what it has written, and its exit code."""
    with start_command(command) as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def serve(orders: socket.socket) -> None:
    """Fork a process for each order, until the socket closes."""
    while True:
        order, descriptors, _, _ = socket.recv_fds(orders, ORDER_BYTES, 3)
        if not order:
            return
        told, tells = os.pipe()
        adopted, adopts = os.pipe()
        between = os.fork()
        if not between:
            forked = os.fork()
            if forked:
                os.write(tells, b"%d" % forked)
                os._exit(0)
            orders.close()
            for end in (told, tells, adopts):
                os.close(end)
            os.read(adopted, 1)  # its end: the process in between has ended
            os.close(adopted)
            run_forked(json.loads(order), descriptors)
        os.close(tells)
        os.close(adopted)
        pid = os.read(told, 64)
        os.close(told)
        os.waitpid(between, 0)
        orders.send(pid)
        os.close(adopts)
        for descriptor in descriptors:
            os.close(descriptor)


def run_forked(order: dict[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """Run an order's function, and end."""
    code: Any = 1
    try:
        if order["session"]:
            os.setsid()
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(order["environment"])
        os.chdir(order["folder"])
        os.umask(order["umask"])
        resource.setrlimit(resource.RLIMIT_NOFILE, tuple(order["files"]))
        time.tzset()
        gc.enable()
        module, name = order["function"].split(":")
        sys.argv[1:] = order["arguments"]
        getattr(importlib.import_module(module), name)()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:  # noqa: BLE001 - the end of a forked process, which must not return into its parent's code
        sys.excepthook(*sys.exc_info())
    finally:
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)


def main() -> None:
    """Import what the forks need, and serve at standard input."""
    orders = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for name in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.disable()
    gc.freeze()
    serve(orders)


if __name__ == "__main__":
    main()
