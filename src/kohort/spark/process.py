"""The driver-side process of a query: how it ends.

Spark starts one Python process per query, as a child of the JVM, and ends it with SIGTERM without waiting. Nobody tells
it when the JVM is killed. A member must leave its group in both cases, or its partitions stand still until the session
times out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from types import FrameType

PARENT_CHECK_S = 0.25
"""How often the process looks whether its parent is still there."""
LAST_WORDS_S = 3.0
"""How long the process may take to leave the group once its parent is gone."""


AGAIN_S = 1.0
"""How long after SIGTERM the process looks whether its end has begun: code that runs for the garbage collector swallows
SystemExit, and the process would go on, in its group, with nobody who knows of it."""
TIMES = 3
"""How often it is told then, before it ends at once."""
LEAVING_S = 10.0
"""How long the reader's `stop` and the interpreter's end may take: two seconds are the most that they should."""


class Ending:
    """How this process ends by SIGTERM: by SystemExit, so that Spark's runner calls the reader's `stop`."""

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._raises = True
        self._told = False

    def install(self) -> None:
        """Take SIGTERM. Only in a main thread."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._exit)

    def begin(self) -> None:
        """The reader's `stop` runs: nothing interrupts it."""
        self._begun.set()

    def end(self) -> None:
        """The reader's `stop` is done: end the process here if its end is Spark's wish.

        Spark's runner would tell the JVM of the SystemExit, or write to a connection that the JVM has closed, and the
        log would have the traceback. Does nothing where an error is on its way to the query.
        """
        if not self._told and sys.exc_info()[0] is not EOFError:  # neither SIGTERM nor the connection's end
            return
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)

    def _exit(self, _number: int, _frame: FrameType | None) -> None:
        """Spark's signal can come twice; the second does not interrupt what the first began."""
        if self._begun.is_set() or not self._raises:
            return
        self._raises, self._told = False, True
        threading.Thread(target=self._insist, name="kohort-ending", daemon=True).start()
        sys.exit(0)

    def _insist(self) -> None:
        for _ in range(TIMES):
            if self._begun.wait(AGAIN_S):
                break
            self._raises = True
            os.kill(os.getpid(), signal.SIGTERM)
        if self._begun.wait(AGAIN_S):
            time.sleep(LEAVING_S)
        os._exit(1)


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
