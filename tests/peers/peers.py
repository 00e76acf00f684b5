"""The clients of other projects, as driver programs that all talk alike (`drivers/speak.py`)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kohort.io.java import start_dependent_child

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "peers"
_BUILD_TIMEOUT_S = 420


class PeerUnavailable(Exception):
    """This client can't be had here; the text says why in a few words."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A client under its name, and how to get the command that runs its driver."""

    name: str
    command: Callable[[], list[str]]


def _python(driver: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, "-W", "ignore", str(HERE / "drivers" / driver)]


def _kcat() -> list[str]:
    if shutil.which("kcat") is None:
        raise PeerUnavailable("kcat is not installed")
    return _python("kcat_driver.py")()


def _kafkajs() -> list[str]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise PeerUnavailable("node or npm is not installed")
    sources = [HERE / "js" / name for name in ("package.json", "package-lock.json", "driver.js")]
    folder = CACHE / f"js-{digest(sources)}"
    if not (folder / "node_modules" / "kafkajs").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            shutil.copy(source, folder)
        build([npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"], folder, "npm")
    return [node, str(folder / "driver.js")]


def _franz_go() -> list[str]:
    go = shutil.which("go")
    if go is None:
        raise PeerUnavailable("go is not installed")
    sources = [HERE / "go" / name for name in ("go.mod", "go.sum", "main.go")]
    program = CACHE / f"franz-go-{digest(sources)}"
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        build([go, "build", "-mod=readonly", "-o", str(program), "."], HERE / "go", "go")
    return [str(program)]


def digest(files: list[Path]) -> str:
    """Names a build after what it was made from."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def build(command: list[str], folder: Path, tool: str) -> None:
    """Runs a build tool to its end.

    Raises:
        PeerUnavailable: it failed, or took too long.
    """
    try:
        run = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_BUILD_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PeerUnavailable(f"{tool} took longer than {_BUILD_TIMEOUT_S} s") from error
    if run.returncode != 0:
        raise PeerUnavailable(f"{tool} failed: {' '.join((run.stderr or run.stdout).split())[-300:]}")


PEERS = (
    Peer("confluent-kafka", _python("confluent_kafka_driver.py")),
    Peer("kafka-python", _python("kafka_python_driver.py")),
    Peer("aiokafka", _python("aiokafka_driver.py")),
    Peer("kcat", _kcat),
    Peer("kafkajs", _kafkajs),
    Peer("franz-go", _franz_go),
)
KOHORT = Peer("kohort", _python("kohort_driver.py"))


class Driver:
    """A driver program under way, and what it has said so far.

    Args:
        command: the program with its arguments.
        log: the file that takes its standard error.
    """

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        self.said: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        with log.open("wb") as errors:
            self._process = start_dependent_child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.said.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the reports under one name."""
        with self._changed:
            return [event for event in self.said if event["event"] == kind]

    @property
    def assigned(self) -> list[int] | None:
        """The partitions that it holds, as it last said."""
        events = self.events("assigned")
        return events[-1]["partitions"] if events else None

    @property
    def records(self) -> list[tuple[int, int]]:
        """Partition and offset of each record that it got, in its order."""
        return [(event["partition"], event["offset"]) for event in self.events("record")]

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = 90) -> None:
        """Waits until what it says makes the condition true.

        Fails with its story when it has said nothing for so long.
        """
        with self._changed:
            said, deadline = len(self.said), time.monotonic() + timeout_s
            while not condition():
                if len(self.said) != said:
                    said, deadline = len(self.said), time.monotonic() + timeout_s
                left = deadline - time.monotonic()
                if left <= 0 or (self._process.poll() is not None and not self._reader.is_alive()):
                    raise AssertionError(f"{what} did not happen; {self._story()}")
                self._changed.wait(min(left, 0.2))

    def finish(self, timeout_s: float = 30) -> None:
        """Tells it to stop and waits for its clean end."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"stop\n")
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not end; {self._story()}") from None
        self._reader.join(5)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()
        assert code == 0, f"it ended with code {code}; {self._story()}"

    def kill(self) -> None:
        """Ends it as a crash would."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _story(self) -> str:
        """Describe the last events; add the stacks of a Python driver that is still running."""
        if self._process.poll() is None and "_driver.py" in str(self._process.args):
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
        errors = self.log.read_text(errors="replace")[-6000:]
        return f"last said: {self.said[-5:]}, exit code {self._process.poll()}, standard error: {errors}"
