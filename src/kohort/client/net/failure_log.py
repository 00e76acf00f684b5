"""Log of failures that no caller receives.

Heartbeats, refreshes and connections fail in the background, and only this log shows it. A lasting failure is logged
sparingly, by `FailureThrottle`.
"""

from __future__ import annotations

import logging

from kohort.client.net.runtime import Runtime, Steppable
from kohort.errors import KafkaError
from kohort.io.log_throttle import FailureThrottle

log = logging.getLogger("kohort.client")


class FailureLog:
    """Log of tasks whose error no one awaits."""

    def __init__(self, runtime: Runtime) -> None:
        self._throttle = FailureThrottle(lambda: runtime.now_ms)

    def __call__(self, task: Steppable, error: Exception) -> None:
        """Log a failed task."""
        if not isinstance(error, KafkaError):
            log.error("unexpected error has ended the background task: %s", task.name, exc_info=error)
        elif self._throttle.due((task.name, error.code)):
            log.warning("background task %s failed: %s", task.name, error)


def logged_kafka_error(what: str, error: Exception) -> KafkaError:
    """Log an unexpected exception with its traceback, and return a KafkaError about it for the caller.

    A KafkaError is returned unchanged, and not logged.
    """
    if isinstance(error, KafkaError):
        return error
    log.error("unexpected error during the call %r, which gets it as a KafkaError", what, exc_info=error)
    wrapped = KafkaError(f"{what}: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
