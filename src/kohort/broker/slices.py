"""Long work on the loop's own thread, in slices: requests of other clients are served between."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from kohort.broker.server.dispatch import Handler
from kohort.broker.server.requests import Request
from kohort.errors import TimedOutError
from kohort.log import Steps
from kohort.wire.message import Message

T = TypeVar("T")

SLICE_S = 0.005
"""What others wait for one slice of it at most, but for the write of the catalog at its end."""
WAITING_MAX = 1_000
"""Beyond it work is refused, with an error that clients retry: memory stays bounded."""


class Turns:
    """Does one thing after the other, in the order in which they came. All methods run on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: deque[tuple[Steps[Any], Callable[[Any], None], Callable[[], None]]] = deque()
        self._busy = False

    def run(self, steps: Steps[T], done: Callable[[T], None], failed: Callable[[], None]) -> None:
        """Take the steps; the first of them at once when nothing else is under way.

        Args:
            steps: what is to be done.
            done: called with what came of it, perhaps before this returns.
            failed: called when the steps raise, which is a fault in the broker.

        Raises:
            TimedOutError: too much is waiting already.
        """
        if len(self._jobs) >= WAITING_MAX:
            raise TimedOutError(f"{WAITING_MAX} changes are waiting for their turn already")
        self._jobs.append((steps, done, failed))
        if not self._busy:
            self._go_on()

    def close(self) -> None:
        """Leave undone what is under way and what waits."""
        for steps, _, _ in self._jobs:
            steps.close()
        self._jobs.clear()

    def _go_on(self) -> None:
        self._busy = True
        until = time.monotonic() + SLICE_S
        while self._jobs:
            if time.monotonic() >= until:
                self._loop.call_soon(self._go_on)
                return
            steps, done, failed = job = self._jobs.popleft()
            try:
                result = _go_through(steps, until)
                if result is None:
                    self._jobs.appendleft(job)
                else:
                    done(*result)
            except BaseException:
                self._loop.call_soon(self._go_on)
                failed()
                raise
        self._busy = False


def _go_through(steps: Steps[T], until: float) -> tuple[T] | None:
    """What came of the steps, None when the time was over before."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return (end.value,)
        if time.monotonic() >= until:
            return None


class HasTurns(Protocol):
    """A host that does long work in turns."""

    @property
    def turns(self) -> Turns: ...


N = TypeVar("N", bound=HasTurns)
Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)


def in_turn(handler: Callable[[N, Request[Q]], Steps[A]]) -> Handler[N, Q, A]:
    """A handler whose work is done in steps, after that of the requests before it."""

    def begin(node: N, request: Request[Q]) -> A | None:
        node.turns.run(handler(node, request), request.reply, request.connection.close)
        return None

    return begin
