"""Retry without a limit while the failure is temporary."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kohort.errors import RetriableError

T = TypeVar("T")
log = logging.getLogger("kohort.cluster")

AGAIN_S = 1.0
LOGGED_EVERY = 30
"""Log the first failed attempt, then every 30th."""


async def retry_forever(what: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Await `attempt` until it succeeds, with a pause of 1 s after each temporary failure.

    Raises:
        KafkaError: a retry does not cure it.
    """
    failures = 0
    while True:
        try:
            return await attempt()
        except (RetriableError, OSError) as error:
            if failures % LOGGED_EVERY == 0:
                log.warning("%s: %s; retrying", what, error)
            failures += 1
            await asyncio.sleep(AGAIN_S)
