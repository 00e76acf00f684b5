"""Fetches that wait for data (long polls).

A wait ends when enough bytes were appended to its partitions, when something happened that its client must learn
(a topic deleted, a transaction ended), or when its time is over. What it then answers is read anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from kohort.log import PartitionLog


class Wait:
    """One parked fetch."""

    __slots__ = ("_done", "logs", "missing", "timer")

    def __init__(self, logs: list[PartitionLog], missing: int, done: Callable[[], None]) -> None:
        self.logs = logs
        self.missing = missing
        self.timer: asyncio.TimerHandle | None = None
        self._done = done

    def finish(self) -> None:
        """Answer; the registry has let go of the wait already."""
        self._done()


class Waits:
    """Every parked fetch, by the partitions it waits for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._by_log: dict[PartitionLog, dict[Wait, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, wait: Wait, seconds: float) -> None:
        """Park a fetch for at most so long."""
        self._count += 1
        for log in wait.logs:
            self._by_log.setdefault(log, {})[wait] = None
        wait.timer = self._loop.call_later(seconds, self._end, wait)

    def appended(self, log: PartitionLog, size: int) -> None:
        """`size` bytes arrived in a partition."""
        waits = self._by_log.get(log)
        if not waits:
            return
        ended = []
        for wait in waits:
            wait.missing -= size
            if wait.missing <= 0:
                ended.append(wait)
        for wait in ended:
            self._end(wait)

    def changed(self, logs: Iterable[PartitionLog]) -> None:
        """Something else than data happened to these partitions: answer everyone who waits for them."""
        for log in logs:
            for wait in list(self._by_log.get(log, ())):
                self._end(wait)

    def cancel(self, wait: Wait) -> None:
        """Forget a wait without an answer: its client is gone."""
        self._remove(wait)

    def end_all(self) -> None:
        """Answer everyone (the broker ends)."""
        self.changed(list(self._by_log))

    def _end(self, wait: Wait) -> None:
        if self._remove(wait):
            wait.finish()

    def _remove(self, wait: Wait) -> bool:
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
