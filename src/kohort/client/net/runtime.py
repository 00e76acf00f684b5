"""Runtime for the client's coroutines on events and time that a driver supplies: no sockets, no threads, no clock.

The client's core is written as ordinary ``async def`` functions, but nothing here is asyncio. A `Runtime` steps them.
They can await only a `Promise` (a value that a later event supplies) and what is built on it: `Runtime.sleep` and
another `Task`. A driver (a thread, asyncio, the simulation) delivers events and then calls `Runtime.advance(now_ms)`.
`next_deadline_ms()` tells it when to call again.

Tasks run in the order in which they became ready. The same events at the same times always cause the same requests.

Heartbeats, refreshes and connections fail in the background, where no caller receives the error: `FailureLog` shows it.
It logs a lasting failure sparingly, by `FailureThrottle`.
"""

from __future__ import annotations

import heapq
import inspect
import itertools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from kohort.errors import KafkaError, TimedOutError
from kohort.io.log_throttle import FailureThrottle

T = TypeVar("T")
Work: TypeAlias = Coroutine[Any, Any, T]
"""The coroutine that a task runs; it awaits promises only."""
PAUSE_MS = 200
"""A timer that is late by this much shows that the process stood still; a busy machine causes shorter delays."""
_TIMERS_MIN = 1_000
"""Timers that are done are removed when there are twice as many timers as after the last time, and at least this many.
Each answered request leaves one: by its deadline, 30 s and more later, thousands would wait for theirs."""
_PAUSES = 32
"""Number of late timers kept, newest first: many are late at once."""


class TaskCancelled(BaseException):
    """The exception that is thrown into a coroutine when its task is cancelled, as `asyncio.CancelledError`.

    It is a BaseException, so that `except Exception` does not catch it.
    """


class Awaited(Protocol):
    """An interface: a `Promise` of any type, for code that needs its state and not its value."""

    @property
    def done(self) -> bool: ...

    @property
    def handled(self) -> bool: ...

    @property
    def error(self) -> BaseException | None: ...

    def on_done(self, callback: Callable[[Awaited], None], /) -> None: ...

    def remove_callback(self, callback: Callable[[Awaited], None], /) -> None: ...


class Steppable(Awaited, Protocol):
    """An interface: a `Task` of any type, for the scheduler."""

    name: str

    def step(self) -> None: ...

    def cancel(self) -> None: ...


class Promise(Generic[T]):
    """A value that a later event supplies, once. Awaiting it returns the value or raises the error."""

    __slots__ = ("_callbacks", "_error", "_handled", "_kept", "_value")
    _value: T

    def __init__(self) -> None:
        self._kept = False
        self._error: BaseException | None = None
        self._handled = False
        self._callbacks: list[Callable[[Promise[T]], None]] = []

    @property
    def done(self) -> bool:
        return self._kept or self._error is not None

    @property
    def error(self) -> BaseException | None:
        """Return the error that a failed promise has instead of a value. Reading it counts as handling the error."""
        self._handled = self._handled or self._error is not None
        return self._error

    @property
    def handled(self) -> bool:
        """Return whether anyone has read the error, or declared to read it (`mark_handled`)."""
        return self._handled

    def mark_handled(self) -> None:
        """Declare that the caller reads the error later, so that it is not logged as unhandled."""
        self._handled = True

    def result(self) -> T:
        """Return the value or raise the error; only when `done`."""
        if self._error is not None:
            self._handled = True
            raise self._error
        if not self._kept:
            raise RuntimeError("promise is not done")
        return self._value

    def resolve(self, value: T) -> None:
        """Set the value; a promise that is already done stays as it is."""
        if not self.done:
            self._value = value
            self._kept = True
            self._fire()

    def fail(self, error: BaseException) -> None:
        """Set the error; a promise that is already done stays as it is."""
        if not self.done:
            self._error = error
            self._fire()

    def on_done(self, callback: Callable[[Promise[T]], None]) -> None:
        """Call `callback` when the promise is done, at once if it is."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def remove_callback(self, callback: Callable[[Promise[T]], None]) -> None:
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def _fire(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def __await__(self) -> Generator[Promise[T], None, T]:
        if not self.done:
            yield self
        return self.result()


class Task(Promise[T]):
    """A running coroutine, and the promise of its result."""

    __slots__ = ("_coro", "_runtime", "_waiting", "name")

    def __init__(self, runtime: Runtime, coro: Work[T], name: str) -> None:
        super().__init__()
        self._runtime = runtime
        self._coro = coro
        self._waiting: Awaited | None = None
        self.name = name

    @property
    def is_unstarted(self) -> bool:
        """Return whether the coroutine has not run yet."""
        return inspect.getcoroutinestate(self._coro) == inspect.CORO_CREATED

    def cancel(self) -> None:
        """Throw `TaskCancelled` into the coroutine where it awaits; it may clean up, but not await again."""
        if self.done:
            return
        if self._waiting is not None:
            self._waiting.remove_callback(self._wake)
            self._waiting = None
        state = inspect.getcoroutinestate(self._coro)
        if state == inspect.CORO_RUNNING:  # it cancels itself: ends at its next await
            self._runtime.cancel_later(self)
            return
        if state == inspect.CORO_CLOSED:  # Ctrl-C has ended it in the middle of a step
            self.fail(TaskCancelled())
            return
        try:
            self._coro.throw(TaskCancelled())
        except (TaskCancelled, StopIteration):
            self.fail(TaskCancelled())
        except Exception as error:  # noqa: BLE001 - its cleanup failed
            self.fail(error)
            self._runtime.task_failed(self)
        else:
            self.fail(TaskCancelled())

    def step(self) -> None:
        """Run until the next await that must wait."""
        if self.done:
            return
        try:
            waiting = self._coro.send(None)
        except StopIteration as stop:
            self.resolve(stop.value)
        except TaskCancelled as cancelled:
            self.fail(cancelled)
        except Exception as error:  # noqa: BLE001 - the task's awaiter gets it
            self.fail(error)
            self._runtime.task_failed(self)
        else:
            self._waiting = waiting
            waiting.on_done(self._wake)

    def _wake(self, _: Awaited) -> None:
        self._waiting = None
        self._runtime.schedule_task(self)


class Runtime:
    """Scheduler of tasks and timers, on time that a driver supplies.

    Attributes:
        now_ms: The monotonic time of the running step, in milliseconds.
        on_task_failed: Called with (task, error) when a task has failed and nothing has read the error by the end of
            the `advance`.
        clock_with_sleep_ms: Returns the time in ms of a clock that also runs while the machine sleeps; drivers set it.
    """

    def __init__(self, now_ms: float = 0.0) -> None:
        self.now_ms = now_ms
        self.on_task_failed: Callable[[Steppable, Exception], None] | None = None
        self.clock_with_sleep_ms: Callable[[], float] = lambda: self.now_ms
        self._ready: deque[Steppable] = deque()
        self._timers: list[tuple[float, int, Promise[None]]] = []
        self._sweep_at = _TIMERS_MIN
        self._order = itertools.count()
        self._cancelling: list[Steppable] = []
        self._failed: list[Steppable] = []
        self._paused: deque[tuple[float, float]] = deque(maxlen=_PAUSES)

    def spawn(self, coro: Work[T], name: str = "") -> Task[T]:
        """Start a coroutine; it first runs in the next `advance`, or later in the running one."""
        task = Task(self, coro, name or getattr(coro, "__qualname__", "task"))
        self._ready.append(task)
        return task

    def schedule_task(self, task: Steppable) -> None:
        self._ready.append(task)

    def task_failed(self, task: Steppable) -> None:
        """Record a failed task; its error is logged unless something reads it during this `advance`."""
        self._failed.append(task)

    def cancel_later(self, task: Steppable) -> None:
        self._cancelling.append(task)

    def promise_at(self, when_ms: float) -> Promise[None]:
        """Return a promise that resolves when time reaches `when_ms`."""
        promise: Promise[None] = Promise()
        heapq.heappush(self._timers, (when_ms, next(self._order), promise))
        if len(self._timers) >= self._sweep_at:
            self._timers = [timer for timer in self._timers if not timer[2].done]
            heapq.heapify(self._timers)
            self._sweep_at = max(_TIMERS_MIN, 2 * len(self._timers))
        return promise

    async def sleep(self, delay_ms: float) -> None:
        await self.promise_at(self.now_ms + delay_ms)

    async def wait_first(self, *promises: Awaited, timeout_ms: float | None = None) -> Awaited | None:
        """Return the first of the promises that is done, or None on timeout. Cancels none of them."""
        for promise in promises:
            if promise.done:
                return promise
        gate: Promise[Awaited | None] = Promise()
        timer = None if timeout_ms is None else self.promise_at(self.now_ms + timeout_ms)
        if timer is not None:
            timer.on_done(lambda _: gate.resolve(None))
        for promise in promises:
            promise.on_done(gate.resolve)
        try:
            return await gate
        finally:
            for promise in promises:
                promise.remove_callback(gate.resolve)
            if timer is not None:
                timer.resolve(None)

    async def run_within(self, coro: Work[T], timeout_ms: float, what: str) -> T:
        """Return the coroutine's value; after `timeout_ms` cancel it and raise TimedOutError naming `what`."""
        task = self.spawn(coro, what)
        try:
            if await self.wait_first(task, timeout_ms=timeout_ms) is None:
                raise TimedOutError(f"{what}: no answer within {timeout_ms:g} ms")
            return task.result()
        finally:
            task.cancel()

    def cancel_unstarted(self) -> None:
        """Cancel the tasks that have not run yet and, after a fault, never will."""
        for task in list(self._ready):
            if isinstance(task, Task) and task.is_unstarted:
                task.cancel()

    @property
    def has_ready_tasks(self) -> bool:
        """Return whether a task could run now."""
        return bool(self._ready)

    def set_time(self, now_ms: float) -> None:
        """Advance the time without running anything."""
        self.now_ms = max(self.now_ms, now_ms)

    def paused_ms(self, since_ms: float) -> float:
        """Return the longest time in ms, since `since_ms`, that the process did not run while it should have.

        A delay means that the process was stopped, starved of its processor, or blocked.
        """
        return max((late_ms for at_ms, late_ms in self._paused if at_ms >= since_ms), default=0.0)

    def next_deadline_ms(self) -> float | None:
        """Return when `advance` must be called at the latest, if nothing else happens; None: never."""
        if self._ready:
            return self.now_ms
        while self._timers and self._timers[0][2].done:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def advance(self, now_ms: float) -> None:
        """Run everything that can run at this time."""
        self.now_ms = max(self.now_ms, now_ms)
        while True:
            while self._timers and self._timers[0][0] <= self.now_ms:
                due_ms, _, promise = heapq.heappop(self._timers)
                if self.now_ms - due_ms >= PAUSE_MS and not promise.done:
                    self._paused.append((self.now_ms, self.now_ms - due_ms))
                promise.resolve(None)
            if not self._ready:
                self._report_failed()
                return
            self._ready.popleft().step()
            while self._cancelling:
                self._cancelling.pop().cancel()

    def _report_failed(self) -> None:
        failed, self._failed = self._failed, []
        for task in failed:
            if not task.handled and isinstance(error := task.error, Exception) and self.on_task_failed is not None:
                self.on_task_failed(task, error)


log = logging.getLogger("kohort.client")


class FailureLog:
    """Log of tasks whose error no one awaits."""

    def __init__(self, runtime: Runtime) -> None:
        self._throttle = FailureThrottle(lambda: runtime.now_ms)

    def __call__(self, task: Steppable, error: Exception) -> None:
        """Log the error of a failed task that nobody awaits; lines about a KafkaError are throttled."""
        if not isinstance(error, KafkaError):
            log.error("unexpected error has ended the background task: %s", task.name, exc_info=error)
        elif self._throttle.should_log((task.name, error.code)):
            log.warning("background task %s failed: %s", task.name, error)


def logged_kafka_error(what: str, error: Exception) -> KafkaError:
    """Log an unexpected exception with its traceback, and return a KafkaError about it for the caller.

    A KafkaError is returned unchanged, and not logged.
    """
    if isinstance(error, KafkaError):
        return error
    log.error("unexpected error during the call %r, which gets it as a KafkaError", what, exc_info=error)
    wrapped = KafkaError(f"{what}: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
