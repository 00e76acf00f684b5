"""The threads that are inside an object's methods: a signal handler that interrupted one must not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CallingThreads:
    """The threads that are inside an object's methods. It takes no lock: a signal handler may interrupt anywhere."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    def include_this_thread(self) -> bool:
        """Return whether this thread is inside a method already: a signal handler or callback interrupts it there."""
        return threading.get_ident() in self._threads

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Count this thread as inside a method until the block ends; a nested block changes nothing."""
        ident = threading.get_ident()
        if ident in self._threads:
            yield
            return
        try:
            self._threads.add(ident)  # within `try`: a handler may raise as soon as it is in
            yield
        finally:
            self._threads.discard(ident)
