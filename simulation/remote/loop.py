"""An asyncio loop in virtual time, for what of a coordinator is written for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any

from simulation.harness.world import Happening, World
from simulation.remote.life import Life


class VirtualHandle(asyncio.TimerHandle):
    """One call that is due, and may be cancelled."""

    happening: Happening | None = None

    def cancel(self) -> None:
        """Cancel the call."""
        super().cancel()
        if self.happening is not None:
            self.happening.cancel()


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs callbacks and tasks of one process, in its turns: none while it is stopped.

    Attributes:
        faults: what tasks and callbacks raised; whoever drives the process raises it.
    """

    def __init__(self, world: World, life: Life) -> None:
        self._world = world
        self._life = life
        self.faults: list[BaseException] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._world.now_ms / 1000

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        """In a turn of its own, now."""
        return self.call_later(0, callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        """In a turn of its own, later."""
        handle = VirtualHandle(self.time() + delay, callback, args, self, context)
        handle.happening = self._life.after(max(0.0, delay) * 1000, lambda: self._run(handle))
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        """In a turn of its own, at a time."""
        return self.call_later(when - self.time(), callback, *args, context=context)

    def _run(self, handle: VirtualHandle) -> None:
        if not handle.cancelled():
            with_loop(self, handle._run)

    def create_future(self) -> asyncio.Future[Any]:
        """Of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **more: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        """Of this loop."""
        del more
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing is counted."""

    def get_debug(self) -> bool:
        """Never."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A fault that nobody took."""
        fault = context.get("exception")
        if isinstance(fault, BaseException):
            self.faults.append(fault)

    def die(self) -> None:
        """Drop everything under way: the process has ended."""
        for task in list(self._tasks):
            setattr(task, "_log_destroy_pending", False)  # noqa: B010  # it is dropped on purpose
            coro: Any = task.get_coro()
            if inspect.getcoroutinestate(coro) == inspect.CORO_CREATED:
                with contextlib.suppress(Exception):  # what it would wait for is awaited, and comes never
                    with_loop(self, partial(coro.send, None))
            with contextlib.suppress(RuntimeError):  # one that would wait for something more on its way out
                with_loop(self, coro.close)
        self._tasks.clear()


def with_loop(loop: VirtualLoop, call: Callable[[], object]) -> None:
    """Call while the loop counts as running."""
    before = events._get_running_loop()
    events._set_running_loop(loop)
    try:
        call()
    finally:
        events._set_running_loop(before)
