"""Retry without a limit while the failure is temporary."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kohort.errors import RetriableError
from kohort.io.log_throttle import FailureThrottle

T = TypeVar("T")
log = logging.getLogger("kohort.cluster")

AGAIN_S = 1.0


async def retry_forever(what: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Await `attempt` until it succeeds, with a pause of 1 s after each temporary failure.

    Raises:
        KafkaError: a retry does not cure it.
    """
    throttle = FailureThrottle(lambda: time.monotonic() * 1000)
    while True:
        try:
            return await attempt()
        except (RetriableError, OSError) as error:
            if throttle.should_log(what):
                log.warning("retrying every %.0f s: %s is not available: %s", AGAIN_S, what, error)
            await asyncio.sleep(AGAIN_S)
