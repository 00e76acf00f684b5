"""Work in the threads of a pool, also while the system starts none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

T = TypeVar("T")

RETRY_S: Final = 1.0

log = logging.getLogger("kohort")


def run_in_pool(
    loop: asyncio.AbstractEventLoop, pool: ThreadPoolExecutor | None, work: Callable[[], T]
) -> asyncio.Future[T]:
    """Run a function in a thread of a pool (None: the loop's own), and return its future on the loop.

    Pools start a thread when it is first needed. When the system allows no more threads or memory, try again every
    second: work that is dropped would leave its partition or group waiting for ever.

    Raises:
        RuntimeError: the pool or the loop is closed.
    """
    try:
        return loop.run_in_executor(pool, work)
    except RuntimeError as error:
        if not _lacks_thread(error):
            raise
        log.error("no thread can be started (limit of processes or memory?), retrying every %g s: %s", RETRY_S, error)
    later: asyncio.Future[T] = loop.create_future()
    loop.call_later(RETRY_S, _try_again, loop, pool, work, later)
    return later


def _try_again(
    loop: asyncio.AbstractEventLoop, pool: ThreadPoolExecutor | None, work: Callable[[], T], later: asyncio.Future[T]
) -> None:
    if later.done():
        return
    try:
        running = loop.run_in_executor(pool, work)
    except RuntimeError as error:
        if _lacks_thread(error):
            loop.call_later(RETRY_S, _try_again, loop, pool, work, later)
        else:
            later.cancel()
        return
    running.add_done_callback(partial(_deliver, later))


def _deliver(later: asyncio.Future[T], running: asyncio.Future[T]) -> None:
    if later.done():
        return
    if running.cancelled():
        later.cancel()
    elif (error := running.exception()) is not None:
        later.set_exception(error)
    else:
        later.set_result(running.result())


def _lacks_thread(error: RuntimeError) -> bool:
    return "can't start new thread" in str(error)  # by text: a closed pool raises the same class
