"""Work on a store in steps, so that other work can run in between, and the part of it that another thread does."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias, TypeVar

LOOP_BYTES_MAX: Final = 2 << 20
"""Decompressed bytes of one request that are checked on the event loop: some milliseconds with the slowest codec."""
_LOOP_BATCH_MAX: Final = 256 << 10
_LOOP_COMPRESSED_MAX: Final = 64 << 10
"""Larger compressed batches go to a worker thread at once."""
_WALKED_PER_DECOMPRESSED: Final = 4
_BATCH_COST: Final = 256
"""The cost of a batch beside its records, as decompressed bytes: a request may have a batch for each 74 bytes."""

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""A generator that yields after each step of some microseconds to milliseconds, and returns the result."""


def run_steps(steps: Steps[T]) -> T:
    """Run all steps of an operation at once, without yielding to the event loop, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


# -- Work on records: a little of it on the event loop, the rest in worker threads

Search: TypeAlias = Generator[Callable[[], Any], Any, T]
"""A generator that yields jobs for another thread, takes their results, and returns the result of the whole."""


def run_search(search: Search[T]) -> T:
    """Run all jobs that a search yields in this thread, and return the search's result."""
    found = None
    while True:
        try:
            job = search.send(found)
        except StopIteration as end:
            result: T = end.value
            return result
        found = job()


class LoopBudget:
    """The budget of one request on the event loop: what it may still decompress and walk. Worker threads do the rest.

    Attributes:
        left: bytes of decompressed records. Records that are not compressed cost a quarter of the time.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = LOOP_BYTES_MAX

    def decompressed_bytes_max(self, size: int, codec: int) -> int:
        """Return the most bytes that a batch may decompress to on the loop.

        Args:
            size: bytes of the batch.
            codec: the number of its codec; 0: it is not compressed.

        Raises:
            TooMuchForLoopError: the batch is left to a worker thread.
        """
        if codec == 0:
            self.left -= _BATCH_COST + size // _WALKED_PER_DECOMPRESSED
            if self.left < 0:
                raise TooMuchForLoopError
            return size
        if size > _LOOP_COMPRESSED_MAX or self.left < _LOOP_BATCH_MAX:
            raise TooMuchForLoopError
        self.left -= _LOOP_BATCH_MAX
        return _LOOP_BATCH_MAX


class TooMuchForLoopError(Exception):
    """Control flow: checking the batches would block the event loop for too long."""
