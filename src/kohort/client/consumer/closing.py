"""The time of a close, shared out among its steps."""

from __future__ import annotations

from kohort.client.net.runtime import Runtime

LAST_COMMIT_MS = 5_000
"""What the last commit of partitions that are given up may take."""
GOODBYE_MS = 200
"""What the end of fetch sessions may take."""
KEPT_TO_LEAVE = 0.25
"""Share of a close's time that the last commit may not use: a coordinator that does not answer it may answer the
leave."""


class Closing:
    """How long a step may take: its own limit, or less when a close has less left."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._until_ms = float("inf")

    def begin(self, timeout_ms: float | None) -> None:
        """The close begins; None: each step may take its own time."""
        if timeout_ms is not None:
            self._until_ms = self._runtime.now_ms + timeout_ms

    def leave_out(self, since_ms: float) -> None:
        """What has passed since then was the application's time."""
        self._until_ms += self._runtime.now_ms - since_ms

    def at_most(self, limit_ms: float, keep: float = 0.0) -> float:
        """Milliseconds for a step.

        Args:
            limit_ms: its own limit.
            keep: share of what is left that is not for it.
        """
        return max(0.0, min(limit_ms, (self._until_ms - self._runtime.now_ms) * (1 - keep)))
