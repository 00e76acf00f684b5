"""Purgatory: fetch requests that wait for data.

A wait ends when enough bytes were appended to its partitions or its time is over. It also ends when something else
happens that the client must learn (a topic deleted, a transaction ended). The partitions are then read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from kohort.log import PartitionLog

WAIT_S_MAX: Final = 60.0
"""The longest wait; a request may name 24 days. While the waiting fetches of a connection fill its limit, nothing is
read from it, so that the broker does not notice that its client has gone."""


class WaitingFetch:
    """One fetch request that waits in purgatory for data, or for its time limit."""

    __slots__ = ("_done", "_may_read", "logs", "missing", "timer")

    def __init__(
        self,
        logs: list[PartitionLog],
        missing: int,
        done: Callable[[], None],
        may_read: Callable[[], bool] = lambda: True,
    ) -> None:
        """Create the entry of one fetch that has to wait.

        Args:
            logs: the logs of the fetched partitions.
            missing: the bytes that have to be appended.
            done: called once, at the end.
            may_read: returns whether the client may read enough of what the partitions have by now.
        """
        self.logs = logs
        self.missing = missing
        self.timer: asyncio.TimerHandle | None = None
        self._done = done
        self._may_read = may_read

    @property
    def has_enough_data(self) -> bool:
        """Whether enough bytes were appended, and the client may read enough."""
        return self.missing <= 0 and self._may_read()

    def finish(self) -> None:
        """Send the response of a fetch that was just removed from purgatory."""
        self._done()


class Purgatory:
    """The purgatory of Fetch requests that wait for data, by partition."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._by_log: dict[PartitionLog, dict[WaitingFetch, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, wait: WaitingFetch, seconds: float) -> None:
        """Hold a fetch in purgatory for at most `seconds`, and never for more than `WAIT_S_MAX`."""
        self._count += 1
        for log in wait.logs:
            self._by_log.setdefault(log, {})[wait] = None
        wait.timer = self._loop.call_later(min(seconds, WAIT_S_MAX), self._end_wait, wait)

    def on_append(self, log: PartitionLog, size: int) -> None:
        """Count appended bytes of a partition, and answer fetches that have enough."""
        waits = self._by_log.get(log)
        if not waits:
            return
        ended = []
        for wait in waits:
            wait.missing -= size
            if wait.has_enough_data:
                ended.append(wait)
        for wait in ended:
            self._end_wait(wait)

    def on_append_after_step(self, log: PartitionLog, size: int) -> None:
        """Count bytes that a coordinator has appended to a partition; do it after the coordinator's current step."""
        if log in self._by_log:
            self._loop.call_soon(self.on_append, log, size)

    def answer_waiting(self, logs: Iterable[PartitionLog]) -> None:
        """Answer all fetches that wait for these partitions, because something other than an append happened."""
        for log in logs:
            for wait in list(self._by_log.get(log, ())):
                self._end_wait(wait)

    def cancel(self, wait: WaitingFetch) -> None:
        """Remove a fetch without an answer, because its client has disconnected."""
        self._remove(wait)

    def end_all(self) -> None:
        """Answer all fetches, because the broker is shutting down."""
        self.answer_waiting(list(self._by_log))

    def _end_wait(self, wait: WaitingFetch) -> None:
        if self._remove(wait):
            wait.finish()

    def _remove(self, wait: WaitingFetch) -> bool:
        if wait.timer is None:
            return False
        wait.timer.cancel()
        wait.timer = None
        self._count -= 1
        for log in wait.logs:
            waits = self._by_log.get(log)
            if waits is not None:
                waits.pop(wait, None)
                if not waits:
                    del self._by_log[log]
        return True
