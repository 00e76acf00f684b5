"""The driver-side process of a query: how it ends.

Spark starts one Python process per query, as a child of the JVM, and ends it with SIGTERM without waiting. Nobody tells
it when the JVM is killed. A member must leave its group in both cases, or its partitions stand still until the session
times out.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

PARENT_CHECK_S = 0.25
"""How often the process looks whether its parent is still there."""
LAST_WORDS_S = 3.0
"""How long the process may take to leave the group once its parent is gone."""


def end_on_sigterm() -> None:
    """Make SIGTERM end this process by SystemExit, so that Spark's runner calls the reader's `stop`.

    Only in a main thread; a second signal does not interrupt the leaving that the first began.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit)


def _exit(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


class ParentWatch:
    """Ends this process when its parent ends: by SIGTERM to itself, and if that does not help, at once."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kohort-parent-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def orphaned(self) -> bool:
        """Whether the parent has ended: nothing more will be heard of the query."""
        return os.getppid() != self._parent

    def end(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(PARENT_CHECK_S):
            if self.orphaned:
                os.kill(os.getpid(), signal.SIGTERM)
                self._ended.wait(LAST_WORDS_S)
                os._exit(1)
