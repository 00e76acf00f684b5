"""What the log is told of failures that no caller is told of: at once, and then sparingly.

Who holds a client can see what goes wrong in the background (heartbeats, refreshes, connections) only here. A failure
that lasts must not fill the log either: the same kind is told again after 10 s, then after twice as long each time, at
most every 10 minutes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from kohort.client.net.runtime import Runtime, Steppable
from kohort.errors import KafkaError

log = logging.getLogger("kohort.client")
FIRST_PAUSE_MS = 10_000
LONGEST_PAUSE_MS = 600_000
_KINDS_MAX = 1_000
"""Kinds of failures that are remembered: more addresses and groups than one client deals with."""


@dataclass(slots=True)
class _Told:
    next_ms: float
    pause_ms: float = FIRST_PAUSE_MS


class Sparingly:
    """Which failures are due to be told, by kind."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._told: dict[object, _Told] = {}

    def due(self, kind: object) -> bool:
        """Whether a failure of this kind is to be told now; if so, it counts as told."""
        now_ms = self._runtime.now_ms
        told = self._told.get(kind)
        if told is None:
            while len(self._told) >= _KINDS_MAX:
                del self._told[next(iter(self._told))]
            self._told[kind] = _Told(now_ms + FIRST_PAUSE_MS)
            return True
        if now_ms < told.next_ms:
            return False
        told.pause_ms = min(told.pause_ms * 2, LONGEST_PAUSE_MS)
        told.next_ms = now_ms + told.pause_ms
        return True

    def over(self, kind: object) -> bool:
        """A failure of this kind is over, the next one is told at once; whether one had been told."""
        return self._told.pop(kind, None) is not None


class FailureLog:
    """Tells the log of tasks whose error no one awaits."""

    def __init__(self, runtime: Runtime) -> None:
        self._sparingly = Sparingly(runtime)

    def __call__(self, task: Steppable, error: Exception) -> None:
        """One task has failed."""
        if not isinstance(error, KafkaError):
            log.error("%s: a fault in the background", task.name, exc_info=error)
        elif self._sparingly.due((task.name, error.code)):
            log.warning("%s failed: %s", task.name, error)


def fault(what: str, error: Exception) -> KafkaError:
    """What the caller gets for an error that no one foresaw, ours or of code the application plugged in.

    The traceback is logged.
    """
    if isinstance(error, KafkaError):
        return error
    log.error("%s: a fault", what, exc_info=error)
    told = KafkaError(f"{what}: {type(error).__name__}: {error}")
    told.__cause__ = error
    return told
