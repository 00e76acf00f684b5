"""Which threads are inside an object's methods: a signal's handler that interrupts one must not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Inside:
    """Threads that are inside. Takes no lock: a handler may have interrupted any moment."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    def is_here(self) -> bool:
        """Whether the calling thread is inside already, below a handler or a callback that calls again."""
        return threading.get_ident() in self._threads

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Be inside; a thread that is already stays so until its first call ends."""
        ident = threading.get_ident()
        if ident in self._threads:
            yield
            return
        try:
            self._threads.add(ident)  # within `try`: a handler may raise as soon as it is in
            yield
        finally:
            self._threads.discard(ident)
