"""How a driver program and its test talk: one JSON object a line on standard output, `stop` on standard input."""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import threading
from collections.abc import Iterable
from typing import Any

stopping = threading.Event()
faulthandler.register(signal.SIGUSR1)  # a test that waits in vain asks where every thread stands


def say(event: str, **facts: Any) -> None:
    """Tells the test what happened."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def listen() -> None:
    """Sets `stopping` when the test says stop, or is gone."""

    def wait() -> None:
        sys.stdin.readline()
        stopping.set()

    threading.Thread(target=wait, daemon=True).start()


class AssignmentWatch:
    """Tells the test of each change of the partitions that a member holds."""

    def __init__(self) -> None:
        self._last: list[int] | None = None

    def see(self, partitions: Iterable[int]) -> None:
        now = sorted(partitions)
        if now != self._last:
            self._last = now
            say("assigned", partitions=now)
