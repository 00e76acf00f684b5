"""A record of the threads inside an object's methods: a signal handler that interrupts one must not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Inside:
    """The threads inside an object's methods. It takes no lock, because a signal handler may interrupt anywhere."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    def is_here(self) -> bool:
        """Return whether the calling thread is inside a method already, and runs a handler or callback within it."""
        return threading.get_ident() in self._threads

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Mark the calling thread as inside a method; a nested call leaves it so until the outer one ends."""
        ident = threading.get_ident()
        if ident in self._threads:
            yield
            return
        try:
            self._threads.add(ident)  # within `try`: a handler may raise as soon as it is in
            yield
        finally:
            self._threads.discard(ident)
