"""The broker as a process of its own: what it takes, what it says, whether it ends and starts again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

CODE = """
import faulthandler, json, resource, signal, sys
faulthandler.register(signal.SIGUSR1)
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[2])))
from kohort.broker.run import run_broker
sys.exit(run_broker(sys.argv[3], sys.argv[1], json.loads(sys.argv[4])))
"""
SETTINGS = {"num.partitions": 2, "group.initial.rebalance.delay.ms": 0}
DESCRIPTORS = 1_024
END_S = 60.0


class Taken(NamedTuple):
    """The resources that the broker uses."""

    resident_kib: int
    descriptors: int
    threads: int
    log_bytes: int


class Watched:
    """A broker with its log in a file."""

    def __init__(self, folder: Path, listen: str = "127.0.0.1:0", settings: Mapping[str, object] = SETTINGS) -> None:
        self._listen, self._settings = listen, json.dumps(dict(settings))
        self.data, self.log = folder / "data", folder / "broker.log"
        folder.mkdir(parents=True, exist_ok=True)
        self._seen = 0
        self.start()

    def start(self) -> None:
        """Start it, on a port of its own."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CODE, str(self.data), str(DESCRIPTORS), self._listen, self._settings],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        words = self.process.stdout.readline().decode().split()
        if words[:1] != ["ready"]:
            self.process.wait(END_S)
            raise AssertionError(f"the broker did not start: {self.log.read_text()[-3_000:]}")
        self.address = words[1]

    def end(self) -> int:
        """Send SIGTERM and return the broker's exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(END_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """Let nothing of it remain."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def taken(self) -> Taken:
        """Return the resources that the broker uses now."""
        proc = Path(f"/proc/{self.process.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        return Taken(
            int(status["VmRSS"].split()[0]),
            len(os.listdir(proc / "fd")),
            int(status["Threads"]),
            self.log.stat().st_size,
        )

    def where(self) -> str:
        """Return the stacks of the broker's threads."""
        before = self.log.stat().st_size
        self.process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        with self.log.open("rb") as log:
            log.seek(before)
            return log.read().decode(errors="replace")

    def complaint(self) -> str:
        """Return new log lines that report a fault in the broker, else ""."""
        with self.log.open("rb") as log:
            log.seek(self._seen)
            new = log.read()
        at = new.rfind(b"\n") + 1
        self._seen += at
        text = new[:at].decode(errors="replace")
        return text if any(word in text for word in ("Traceback", "a fault in", "unexpected error")) else ""
