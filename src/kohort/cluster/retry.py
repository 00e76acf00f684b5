"""What is out of reach is tried again for as long as only time is needed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kohort.errors import RetriableError

T = TypeVar("T")
log = logging.getLogger("kohort.cluster")

AGAIN_S = 1.0
TOLD_EVERY = 30
"""Of tries that failed, the log tells of the first and then of each after so many."""


async def patiently(what: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Try again for as long as only time is needed.

    Raises:
        KafkaError: trying again does not cure it.
    """
    failures = 0
    while True:
        try:
            return await attempt()
        except (RetriableError, OSError) as error:
            if failures % TOLD_EVERY == 0:
                log.warning("%s: %s; it is tried again", what, error)
            failures += 1
            await asyncio.sleep(AGAIN_S)
