"""Throttled log of failures that no caller receives.

Heartbeats, refreshes and connections fail in the background, and only this log shows it. A lasting failure must not
fill the log. The same kind is logged again after 10 s, then after twice as long each time, at most every 10 minutes.
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
"""Limit on the kinds of failures remembered: more addresses and groups than one client deals with."""


@dataclass(slots=True)
class _Throttled:
    next_ms: float
    pause_ms: float = FIRST_PAUSE_MS


class FailureThrottle:
    """Throttle by kind of failure."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._kinds: dict[object, _Throttled] = {}

    def due(self, kind: object) -> bool:
        """Return whether a failure of this kind is due to be logged; if so, it counts as logged."""
        now_ms = self._runtime.now_ms
        state = self._kinds.get(kind)
        if state is None:
            while len(self._kinds) >= _KINDS_MAX:
                del self._kinds[next(iter(self._kinds))]
            self._kinds[kind] = _Throttled(now_ms + FIRST_PAUSE_MS)
            return True
        if now_ms < state.next_ms:
            return False
        state.pause_ms = min(state.pause_ms * 2, LONGEST_PAUSE_MS)
        state.next_ms = now_ms + state.pause_ms
        return True

    def over(self, kind: object) -> bool:
        """End a kind of failure, so that the next one is logged at once; return whether one had been logged."""
        return self._kinds.pop(kind, None) is not None


class FailureLog:
    """Log of tasks whose error no one awaits."""

    def __init__(self, runtime: Runtime) -> None:
        self._throttle = FailureThrottle(runtime)

    def __call__(self, task: Steppable, error: Exception) -> None:
        """Log a failed task."""
        if not isinstance(error, KafkaError):
            log.error("%s: unexpected error in the background", task.name, exc_info=error)
        elif self._throttle.due((task.name, error.code)):
            log.warning("%s failed: %s", task.name, error)


def fault(what: str, error: Exception) -> KafkaError:
    """Return the error for the caller of code that failed unexpectedly, kohort's or the application's.

    The traceback is logged.
    """
    if isinstance(error, KafkaError):
        return error
    log.error("%s: unexpected error", what, exc_info=error)
    wrapped = KafkaError(f"{what}: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
