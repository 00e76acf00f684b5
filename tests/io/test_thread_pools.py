"""Pools of threads while the system starts no thread."""

from __future__ import annotations

import asyncio
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kohort.io import thread_pools
from kohort.io.thread_pools import run_in_pool


class Limit:
    """A limit of threads, as that of a container, until it has refused so many."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refusals: float) -> None:
        self.refused = 0
        start = threading.Thread.start

        def start_if_allowed(thread: threading.Thread) -> None:
            if self.refused < refusals:
                self.refused += 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_if_allowed)
        monkeypatch.setattr(thread_pools, "RETRY_S", 0.01)


@pytest.mark.parametrize("outcome", ["a result", "an error"])
def test_work_is_done_once_a_thread_can_be_started(outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Limit(monkeypatch, 3)
    runs: list[None] = []

    def work() -> int:
        runs.append(None)
        return 42 if outcome == "a result" else int("no number")

    async def play() -> None:
        pool = ThreadPoolExecutor(1)
        waiting = run_in_pool(asyncio.get_running_loop(), pool, work)
        if outcome == "a result":
            assert await waiting == 42
        else:
            with pytest.raises(ValueError, match="no number"):
                await waiting
        assert limit.refused == 3
        pool.shutdown()
        assert len(runs) == 1

    asyncio.run(play())


def test_work_that_a_busy_thread_takes_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool has queued it, although it could start no second thread for it."""
    gate = threading.Event()
    runs: list[None] = []

    async def play() -> None:
        loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(2)
        busy = run_in_pool(loop, pool, gate.wait)
        Limit(monkeypatch, math.inf)
        waiting = run_in_pool(loop, pool, lambda: runs.append(None))
        gate.set()
        await asyncio.gather(busy, waiting)
        pool.shutdown()
        assert len(runs) == 1

    asyncio.run(play())


def test_closed_pool_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    Limit(monkeypatch, math.inf)

    async def play() -> None:
        pool = ThreadPoolExecutor(1)
        waiting = run_in_pool(asyncio.get_running_loop(), pool, int)
        pool.shutdown(wait=False)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(RuntimeError, match="shutdown"):
            run_in_pool(asyncio.get_running_loop(), pool, int)

    asyncio.run(play())
