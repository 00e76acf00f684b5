"""The members as processes: started in a process group of their own, watched, ended or killed."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from kohort.demo.member_settings import MemberSettings

END_S = 15.0
"""Timeout of a member's shutdown."""


class MemberProcess:
    """The process of one Spark application. Its reports arrive in `events`, as (name, facts)."""

    def __init__(self, settings: MemberSettings, events: queue.Queue[tuple[str, dict[str, Any]]]) -> None:
        self.name, self.settings = settings.name, settings
        self.log = Path(settings.folder) / f"member-{settings.name}.log"
        self._events = events
        self._ending = False
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONWARNINGS": "ignore",
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", settings.module, settings.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._reading = threading.Thread(target=self._read, name=f"member-{self.name}", daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        with self._process.stdout as said:
            for line in said:
                if line.startswith(b"{"):
                    self._events.put((self.name, json.loads(line)))
        code = self._process.wait()
        self._process.stdin.close()
        if not self._ending:
            self._events.put((self.name, {"event": "ended", "code": code, "log": self.last_words()}))

    def last_words(self) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def cpu_s(self) -> float:
        """Return the CPU seconds of the living processes of its session; 0 where there is no /proc."""
        ticks = 0
        for pid in session_processes(self.pid):
            with contextlib.suppress(OSError):  # it ended meanwhile
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def kill(self) -> int:
        """Send SIGKILL to all its processes, the JVM and its Python workers included; return their number."""
        self._ending = True
        members = session_processes(self.pid)
        os.killpg(self.pid, signal.SIGKILL)
        for pid in members:  # Spark's worker daemon has a group of its own in the same session
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        self._reading.join(END_S)
        return len(members)

    def ask_to_end(self) -> None:
        """Close its standard input, on which it shuts down."""
        self._ending = True
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()

    def end(self) -> None:
        """Ask it to end, wait, and kill it if that does not help."""
        self.ask_to_end()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reading.join(END_S)


def session_processes(session: int) -> list[int]:
    """The processes of a session, by /proc where there is one; else the leader alone."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[3]) == session:
            found.append(int(entry.name))
    return found or [session]
