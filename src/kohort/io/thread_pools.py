"""Work in the threads of a pool, also while the system starts none."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

T = TypeVar("T")

RETRY_S: Final = 1.0

log = logging.getLogger("kohort")


def run_in_pool(loop: asyncio.AbstractEventLoop, pool: ThreadPoolExecutor, work: Callable[[], T]) -> asyncio.Future[T]:
    """Run a function once in a thread of a pool, and return its future on the loop.

    Pools start a thread when it is first needed. When the system allows no more threads or memory, try again every
    second: work that is dropped would leave its partition or group waiting for ever.

    Raises:
        RuntimeError: the pool is closed.
    """
    task: Future[T] = Future()
    claim = threading.Lock()

    def run_once() -> None:
        """Do the work, unless it is done: a pool that could start no thread has queued it all the same."""
        if not claim.acquire(blocking=False) or not task.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - the future carries it
            task.set_exception(error)
        else:
            task.set_result(result)

    try:
        _submit(pool, run_once, task)
    except RuntimeError as error:
        if not _lacks_thread(error):
            raise
        log.error("no thread can be started (limit of processes or memory?), retrying every %g s: %s", RETRY_S, error)
        loop.call_later(RETRY_S, _try_again, loop, pool, run_once, task)
    return asyncio.wrap_future(task, loop=loop)


def _submit(pool: ThreadPoolExecutor, run_once: Callable[[], None], task: Future[Any]) -> None:
    def cancel_with(submitted: Future[None]) -> None:
        if submitted.cancelled():
            task.cancel()

    pool.submit(run_once).add_done_callback(cancel_with)


def _try_again(
    loop: asyncio.AbstractEventLoop, pool: ThreadPoolExecutor, run_once: Callable[[], None], task: Future[Any]
) -> None:
    if task.running() or task.done():  # a thread that was busy has taken it
        return
    try:
        _submit(pool, run_once, task)
    except RuntimeError as error:
        if _lacks_thread(error):
            loop.call_later(RETRY_S, _try_again, loop, pool, run_once, task)
        else:
            task.cancel()


def _lacks_thread(error: RuntimeError) -> bool:
    return "can't start new thread" in str(error)  # by text: a closed pool raises the same class
