"""Java programs as child processes: found, started, watched, and ended with the program that started them."""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, TypeAlias

from kohort.errors import KafkaError, NotFoundError, TimedOutError
from kohort.io.platforms import require_posix

JAVA_VERSION_MIN = 17
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9

# Runs in the child before Java: the kernel then kills the child when the thread that started it has ended in any way.
_TIED_TO_PARENT = f"""
import ctypes, os, sys
parent = int(sys.argv[1])
try:
    ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {_SIGKILL})
except (OSError, AttributeError):
    pass
if os.getppid() != parent:
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""

_LOG_SETTINGS = """
appenders = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
rootLogger.level = LEVEL
rootLogger.appenderRefs = console
rootLogger.appenderRef.console.ref = console
"""


def log4j_properties(level: str = "warn") -> str:
    """Return the properties of Log4j 2 that log to standard error, from this level on."""
    return _LOG_SETTINGS.replace("LEVEL", level)


def java_path() -> Path:
    """Return the `java` that Spark and Kafka would use: JAVA_HOME's, then PATH's.

    Raises:
        NotFoundError: there is none, or it is older than Java 17.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    if found is None and home:
        raise NotFoundError(f"JAVA_HOME is {home}, which has no bin/java: correct it, or unset it to use PATH's Java")
    if found is None:
        raise NotFoundError(f"no Java found; install Java {JAVA_VERSION_MIN} or newer, or set JAVA_HOME")
    version = java_version(Path(found))
    if version < JAVA_VERSION_MIN:
        raise NotFoundError(f"{found} is Java {version}; {JAVA_VERSION_MIN} or newer is needed (JAVA_HOME chooses)")
    return Path(found)


def java_version(java: Path) -> int:
    """Return the major version that `java -version` states; 0 when it states none."""
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(match[1]) if match else 0


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """A Java program to run: a main class with its classpath, arguments and options of the virtual machine."""

    main: str
    classpath: str
    args: Sequence[str] = ()
    options: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def command_line(self) -> list[str]:
        return [str(java_path()), *self.options, "-cp", self.classpath, self.main, *self.args]


def start_dependent_child(
    command: Sequence[str],
    *,
    stdin: int | IO[bytes] | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child process in its own session; on Linux the kernel kills the child when this process ends.

    The child goes on when the calling thread ends. Only Linux kills it. On macOS a child outlives a parent that
    SIGKILL has ended.

    Raises:
        InvalidInputError: the system is neither Linux nor macOS.
    """
    require_posix(f"starting {command[0]}")
    return _in_lasting_thread(
        lambda: subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _TIED_TO_PARENT, str(os.getpid()), *command],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    )


_Child: TypeAlias = "subprocess.Popen[bytes]"
_Starts: TypeAlias = "queue.SimpleQueue[tuple[Callable[[], _Child], Future[_Child]]]"


def _in_lasting_thread(start: Callable[[], _Child]) -> _Child:
    """Start a child from a thread that ends with the process, and not before.

    Linux sends the signal of PR_SET_PDEATHSIG when the thread that forked ends. That may be a pool's worker.
    """
    if threading.current_thread() is threading.main_thread():
        return start()
    started: Future[_Child] = Future()
    _starts_of(os.getpid()).put((start, started))
    return started.result()


@cache
def _starts_of(pid: int) -> _Starts:
    """Start the thread that forks child processes for process `pid`, and return its queue.

    A forked process needs its own thread.
    """
    starts: _Starts = queue.SimpleQueue()
    threading.Thread(target=_start_each, args=(starts,), name=f"kohort-starts-children-{pid}", daemon=True).start()
    return starts


def _start_each(starts: _Starts) -> None:
    while True:
        start, started = starts.get()
        try:
            started.set_result(start())
        except BaseException as error:  # noqa: BLE001 - it belongs to the thread that asked
            started.set_exception(error)
        del start, started


class JavaServer:
    """A running Java server whose output goes to a file.

    Args:
        program: the program to run.
        log: the file for its output.
        name: its name in errors.
    """

    def __init__(self, program: JavaProgram, log: Path, name: str) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._process = start_dependent_child(
                program.command_line(), stdout=output, stderr=subprocess.STDOUT, cwd=log.parent, env=program.env
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, ready: Callable[[], bool], timeout_ms: int) -> None:
        """Wait until `ready()`; stop the server when it does not come up.

        Raises:
            KafkaError: the server exited by itself; the message has its last lines.
            TimedOutError: it was not ready in time.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        while not ready():
            if self._process.poll() is not None:
                raise KafkaError(f"{self.name} ended with code {self._process.returncode}:\n{self.last_lines()}")
            if time.monotonic() > deadline:
                self.kill()
                raise TimedOutError(f"{self.name} was not ready after {timeout_ms} ms:\n{self.last_lines()}")
            time.sleep(0.02)

    def last_lines(self, count: int = 15) -> str:
        """Return the end of the server's output."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])

    def stop(self, timeout_ms: int = 10_000) -> None:
        """Stop the server with SIGTERM, and with SIGKILL when that takes too long."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout_ms / 1000)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Kill the server as a crash would, together with its child processes."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, _SIGKILL)
        self._process.wait()
