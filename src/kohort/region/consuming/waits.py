"""Retries of an operation on something that is unavailable: their delays, and what is logged meanwhile."""

from __future__ import annotations

import logging
import time

from kohort.io.log_throttle import IntervalThrottle

log = logging.getLogger("kohort.region")

AGAIN_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Delays in seconds; the last one repeats."""
SAY_S = 30.0
"""Seconds between two log lines of one wait."""


class RetryWait:
    """The state of one operation that is retried: its failures, its backoff, and its throttled log."""

    def __init__(self, waits: str, works: str = "", level: int = logging.WARNING) -> None:
        """Set the log lines: `waits` when the operation fails, at this level, and `works` when it succeeds again."""
        self._waits, self._works, self._level = waits, works, level
        self.failures = 0
        self.again_s = 0.0
        self._throttle = IntervalThrottle(SAY_S)

    def record_failure(self, error: BaseException) -> str:
        """Record that the operation failed: log it throttled, set the time of the next attempt, return the cause.

        The cause is the exception's type and text.
        """
        now_s, cause = time.monotonic(), f"{type(error).__name__}: {error}"
        if not self.failures:
            self._throttle.forget()
        if self._throttle.count_event():
            log.log(logging.WARNING if self.failures else self._level, "%s: %s", self._waits, cause)
        self.again_s = now_s + AGAIN_S[min(self.failures, len(AGAIN_S) - 1)]
        self.failures += 1
        return cause

    def end_wait(self, *, works: bool = True) -> bool:
        """Reset failures and backoff; return whether there were failures.

        `works` is whether the operation has succeeded, rather than been given up.
        """
        if self.failures and works and self._works:
            log.info("%s: the operation succeeded after %s failures", self._works, self.failures)
        failed, self.failures, self.again_s = bool(self.failures), 0, 0.0
        return failed
