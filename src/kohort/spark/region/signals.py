"""How a program that runs a region is stopped from outside: by SIGINT (Ctrl-C) and SIGTERM.

PySpark's own answer to SIGINT is to cancel all jobs, which fails the batches that run: from there a region can only go
back. So the first signal is only noted, and batches are finished; a second one ends the program as it would without us.
"""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

log = logging.getLogger("kohort.spark")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Notes signals while it is entered; outside the main thread none comes."""

    def __init__(self) -> None:
        self._noted = False
        self._before: dict[signal.Signals, Any] = {}

    def is_set(self) -> bool:
        """Whether one has come."""
        return self._noted

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._restore()
        self._noted = True
        log.info("%s: the region is left with a last sequence", signal.Signals(number).name)

    def _restore(self) -> None:
        while self._before:
            which, before = self._before.popitem()
            signal.signal(which, signal.SIG_DFL if before is None else before)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {one: signal.signal(one, self._note) for one in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
