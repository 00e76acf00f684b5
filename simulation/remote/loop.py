"""An asyncio loop in virtual time, for the parts of a coordinator that are written for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any

from simulation.harness.world import ScheduledCall, World
from simulation.remote.life import ProcessLife


class VirtualHandle(asyncio.TimerHandle):
    """A scheduled call that may be cancelled."""

    happening: ScheduledCall | None = None

    def cancel(self) -> None:
        """Cancel the call."""
        super().cancel()
        if self.happening is not None:
            self.happening.cancel()


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs callbacks and tasks of one process, in its turns: none while it is stopped.

    Attributes:
        faults: exceptions of tasks and callbacks; the driver of the process raises them.
    """

    def __init__(self, world: World, life: ProcessLife) -> None:
        self._world = world
        self._life = life
        self.faults: list[BaseException] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def time(self) -> float:
        """Return seconds of virtual time."""
        return self._world.now_ms / 1000

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        """Run a callback in a turn of its own, soon."""
        return self.call_later(0, callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        """Run a callback in a turn of its own, after a delay."""
        handle = VirtualHandle(self.time() + delay, callback, args, self, context)
        handle.happening = self._life.after(max(0.0, delay) * 1000, lambda: self._run(handle))
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        """Run a callback in a turn of its own, at a time."""
        return self.call_later(when - self.time(), callback, *args, context=context)

    def _run(self, handle: VirtualHandle) -> None:
        if not handle.cancelled():
            with_loop(self, handle._run)

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **more: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        """Return a task of this loop."""
        del more
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: cancelled timers are not counted."""

    def get_debug(self) -> bool:
        """Return False."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep an exception that no caller handled."""
        fault = context.get("exception")
        if isinstance(fault, BaseException):
            self.faults.append(fault)

    def die(self) -> None:
        """Drop all callbacks and tasks: the process has ended."""
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
    """Call while this loop counts as the running one."""
    before = events._get_running_loop()
    events._set_running_loop(loop)
    try:
        call()
    finally:
        events._set_running_loop(before)
