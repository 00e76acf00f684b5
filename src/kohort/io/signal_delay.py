"""A section of code in whose middle no signal handler of Python runs: it runs at the section's end.

Python runs handlers on the main thread, between any two instructions. The exception of a handler, such as
KeyboardInterrupt, ends the coroutine that is being stepped there. Nothing would start that coroutine again, although
the program may catch the exception and go on, as a notebook does.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import Any

_plain: Any = import_module("_signal")
"""Without the enumerations of `signal`, which take ten times as long."""
_NUMBERS = tuple(
    int(getattr(signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
"""Signals whose handlers raise exceptions in usual programs: to stop, and after a time limit."""


class SignalDelay:
    """A context manager that delays Python's signal handlers to its end. Entering and leaving it takes 2 µs."""

    __slots__ = ("_came", "_handlers")

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._came: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return  # handlers run elsewhere
        try:
            for number in _NUMBERS:
                handler = _plain.getsignal(number)
                if callable(handler) and getattr(handler, "__func__", None) is not SignalDelay._record:
                    self._handlers[number] = handler
                    _plain.signal(number, self._record)
        except ValueError:  # not the main interpreter: no handler runs here
            self._handlers.clear()
        except BaseException:
            self._restore()
            raise

    def __exit__(self, *_: object) -> None:
        if self._handlers:
            try:
                self._restore()
            except BaseException:
                self._restore()
                raise
            self._deliver()

    def _deliver(self) -> None:
        """Call the handlers of the signals that came, in their order, also after one that raises."""
        while self._came:
            number, frame = self._came.pop(0)
            try:
                self._handlers[number](number, frame)
            except BaseException:
                self._deliver()
                raise

    def _record(self, number: int, frame: FrameType | None) -> None:
        self._came.append((number, frame))

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            if _plain.getsignal(number) == self._record:  # else a callback of the application has set another one
                _plain.signal(number, handler)
