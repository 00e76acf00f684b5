"""Embedded brokers of the tests as forks of a process that has imported them: `python -m tests.support.broker_nursery`.

A run starts six hundred embedded brokers. Five sixths of the processor time of a start are imports. Each worker
therefore keeps one process that has them, and each broker is a fork of it. In the kernel's eyes that broker is the
worker's own child, as it is of any program: a process in between forks it and ends, and the worker adopts it.

The long run starts each broker as a user's program does.
"""

from __future__ import annotations

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
from pathlib import Path
from typing import Any, NoReturn

from tests.support.supervise import PR_SET_CHILD_SUBREAPER

ROOT = Path(__file__).resolve().parents[2]
ORDER_BYTES = 1 << 20
PRELOADED = ("kohort.broker.child", "uvloop", "encodings.idna")


class AdoptedProcess(subprocess.Popen[bytes]):
    """A child of this process that another one has forked."""

    def __init__(self, pid: int, stdin: int, stdout: int) -> None:
        self.args = ["kohort.broker.child"]
        self.pid = pid
        self.returncode = None
        self.stdin = os.fdopen(stdin, "wb")
        self.stdout = os.fdopen(stdout, "rb")
        self.stderr = None
        self._child_created = True
        self._waitpid_lock = threading.Lock()
        self._sigint_wait_secs = 0.25


class BrokerNursery:
    """A process that forks brokers, started with the first of them. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._libc = ctypes.CDLL(None, use_errno=True)

    def start_process(self) -> subprocess.Popen[bytes]:
        """Start a broker's process, as `kohort.broker.embedded.start_process` does."""
        return self.fork("kohort.broker.child:main")

    def fork(self, function: str) -> subprocess.Popen[bytes]:
        """Run a function, MODULE:NAME, in a process with this one's environment, folder, limits and standard error."""
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        order = {
            "function": function,
            "environment": dict(os.environ),
            "folder": str(Path.cwd()),
            "umask": int(re.findall(r"^Umask:\s*(\d+)", status, re.MULTILINE)[0], 8),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        its_input, to_it = os.pipe()
        from_it, its_output = os.pipe()
        try:
            with self._lock:
                pid = self._adopt(json.dumps(order).encode(), [its_input, its_output, 2])
        except BaseException:
            os.close(to_it)
            os.close(from_it)
            raise
        finally:
            os.close(its_input)
            os.close(its_output)
        return AdoptedProcess(pid, to_it, from_it)

    def _adopt(self, order: bytes, descriptors: list[int]) -> int:
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
                [sys.executable, "-m", __name__],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                start_new_session=True,
            )
        return ours

    def close(self) -> None:
        """End the process; its brokers are ended by those who started them."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()


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


def run_forked(order: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Run an order's function, and end."""
    code: Any = 1
    try:
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
        getattr(importlib.import_module(module), name)()
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - the end of a forked process, which must not return into its parent's code
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Import what a broker needs, and serve at standard input."""
    orders = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.disable()
    gc.freeze()
    serve(orders)


if __name__ == "__main__":
    main()
