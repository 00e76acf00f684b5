"""Cooperative slices: long work on the loop's own thread, divided so that other requests are served in between."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from kohort.broker.dispatch import Handler
from kohort.broker.server.requests import Request
from kohort.errors import TimedOutError
from kohort.log import Steps
from kohort.wire.message import Message

T = TypeVar("T")

SLICE_S = 0.005
"""The longest slice, which other requests wait for. Only the catalog write at the end of the work may take longer."""
WAITING_MAX = 1_000
"""The most queued jobs. More are rejected with a retriable error, which bounds memory."""


class SliceQueue:
    """A queue of jobs that run one after the other. All methods run on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: deque[tuple[Steps[Any], Callable[[Any], None], Callable[[], None]]] = deque()
        self._busy = False

    def add_job(self, steps: Steps[T], done: Callable[[T], None], failed: Callable[[], None]) -> None:
        """Run a job in slices. Its first slice runs at once if no other job is in progress.

        Args:
            steps: the job.
            done: called with the result, perhaps before this method returns.
            failed: called if the job raises, which is a bug in the broker.

        Raises:
            TimedOutError: the queue is full.
        """
        if len(self._jobs) >= WAITING_MAX:
            raise TimedOutError(f"{WAITING_MAX} changes are waiting for their turn already")
        self._jobs.append((steps, done, failed))
        if not self._busy:
            self._run_slice()

    def close(self) -> None:
        """Discard the current job and all queued jobs."""
        for steps, _, _ in self._jobs:
            steps.close()
        self._jobs.clear()

    def _run_slice(self) -> None:
        self._busy = True
        until = time.monotonic() + SLICE_S
        while self._jobs:
            if time.monotonic() >= until:
                self._loop.call_soon(self._run_slice)
                return
            steps, done, failed = job = self._jobs.popleft()
            try:
                result = _run_until(steps, until)
                if result is None:
                    self._jobs.appendleft(job)
                else:
                    done(*result)
            except BaseException:
                self._loop.call_soon(self._run_slice)
                failed()
                raise
        self._busy = False


def _run_until(steps: Steps[T], until: float) -> tuple[T] | None:
    """Run a job's steps until the job is finished, or until this time of the monotonic clock.

    Returns:
        The result in a tuple, or None if the job has not ended.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return (end.value,)
        if time.monotonic() >= until:
            return None


class HasSliceQueue(Protocol):
    """A host with a queue of cooperative jobs."""

    @property
    def slices(self) -> SliceQueue: ...


N = TypeVar("N", bound=HasSliceQueue)
Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)


def run_in_slices(handler: Callable[[N, Request[Q]], Steps[A]]) -> Handler[N, Q, A]:
    """Wrap a handler so that it runs in slices, after the jobs of earlier requests."""

    def begin_in_slices(node: N, request: Request[Q]) -> A | None:
        node.slices.add_job(handler(node, request), request.reply, request.connection.close)
        return None

    return begin_in_slices
