"""The stepping of coroutines on given time."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future

import pytest

from kohort.client.net.runtime import Promise, Runtime, Task, TaskCancelled
from kohort.client.net.thread_driver import transfer_outcome
from kohort.errors import KafkaError, TimedOutError


def test_tasks_run_in_the_order_in_which_they_became_ready() -> None:
    runtime, seen = Runtime(), []

    async def say(name: str, wait: float) -> None:
        await runtime.sleep(wait)
        seen.append((name, runtime.now_ms))

    for name, wait in (("late", 20), ("early", 10), ("also early", 10)):
        runtime.spawn(say(name, wait))
    runtime.advance(0)
    assert runtime.next_deadline_ms() == 10
    runtime.advance(10)
    runtime.advance(25)
    assert seen == [("early", 10), ("also early", 10), ("late", 25)]
    assert runtime.next_deadline_ms() is None


def test_within_cancels_what_takes_too_long_and_lets_it_clean_up() -> None:
    runtime, cleaned = Runtime(), []

    async def slow() -> None:
        try:
            await Promise[None]()
        finally:
            cleaned.append(runtime.now_ms)

    task = runtime.spawn(runtime.run_within(slow(), 50, "slow thing"))
    runtime.advance(0)
    runtime.advance(49)
    assert not task.done
    runtime.advance(50)
    with pytest.raises(TimedOutError, match="slow thing"):
        task.result()
    assert cleaned == [50]


def test_an_error_reaches_whoever_awaits() -> None:
    runtime = Runtime()

    async def fails() -> None:
        raise ValueError("no")

    async def waits() -> str:
        try:
            await runtime.spawn(fails())
        except ValueError as error:
            return str(error)
        return "nothing"

    task = runtime.spawn(waits())
    runtime.advance(0)
    assert task.result() == "no"


def test_a_cancelled_task_never_runs_again() -> None:
    runtime, seen = Runtime(), []
    gate: Promise[None] = Promise()

    async def waits() -> None:
        await gate
        seen.append("ran")

    task = runtime.spawn(waits())
    runtime.advance(0)
    task.cancel()
    gate.resolve(None)
    runtime.advance(1)
    assert seen == []
    with pytest.raises(TaskCancelled):
        task.result()


def test_first_gives_none_when_time_is_over_first() -> None:
    runtime = Runtime()
    never: Promise[None] = Promise()
    task = runtime.spawn(runtime.wait_first(never, timeout_ms=5))
    runtime.advance(0)
    runtime.advance(5)
    assert task.result() is None


def test_timers_of_answered_requests_do_not_pile_up() -> None:
    """One that is due earlier hides them until their own time."""
    runtime = Runtime()
    soon, late = runtime.promise_at(1_000), runtime.promise_at(700_000)

    async def request_often() -> None:
        for _ in range(20_000):
            answer: Promise[None] = Promise()
            waiting = runtime.spawn(runtime.wait_first(answer, timeout_ms=600_000))
            await runtime.sleep(0)
            answer.resolve(None)
            await waiting

    task = runtime.spawn(request_often())
    runtime.advance(0)
    assert task.done
    assert len(runtime._timers) < 2_000
    runtime.advance(1_000)
    assert (soon.done, late.done) == (True, False)
    runtime.advance(700_000)
    assert late.done


def test_a_timer_that_fires_late_tells_that_nothing_ran() -> None:
    runtime = Runtime()
    for when in (100, 200, 5_000):
        runtime.promise_at(when)
    over = runtime.promise_at(300)
    over.resolve(None)
    runtime.advance(100)
    runtime.advance(350)
    assert runtime.paused_ms(0) == 0
    runtime.promise_at(400)
    runtime.advance(1_900)
    assert runtime.paused_ms(0) == runtime.paused_ms(1_900) == 1_500
    runtime.advance(5_000)
    assert runtime.paused_ms(1_901) == 0


def test_a_failed_task_is_reported_unless_someone_hears_of_it() -> None:
    reported: list[str] = []
    runtime = Runtime()
    runtime.on_task_failed = lambda task, error: reported.append(f"{task.name}: {error}")

    async def fail() -> None:
        raise ValueError("no")

    async def hear(task: Task[None]) -> None:
        with contextlib.suppress(ValueError):
            await task

    async def wait_only(task: Task[None]) -> None:
        await runtime.wait_first(task)

    async def break_while_ending() -> None:
        try:
            await runtime.sleep(1_000)
        finally:
            raise ValueError("in the end")

    runtime.spawn(fail(), "unheard")
    runtime.spawn(hear(runtime.spawn(fail(), "heard")))
    runtime.spawn(wait_only(runtime.spawn(fail(), "waited for and not looked at")))
    runtime.spawn(fail(), "to be heard later").mark_handled()
    ending = runtime.spawn(break_while_ending(), "ending")
    runtime.advance(0)
    assert reported == ["unheard: no", "waited for and not looked at: no"]
    ending.cancel()
    runtime.advance(1)
    assert reported[2:] == ["ending: in the end"]


@pytest.mark.parametrize("error", [None, KafkaError("refused"), TaskCancelled()], ids=["value", "error", "cancelled"])
def test_a_call_that_another_thread_cancels_just_when_it_ends_ends_no_client(error: BaseException | None) -> None:
    """Ctrl-C or a time limit cancels the future on the application's thread, without the lock of the client."""

    class CancelledMeanwhile(Future[int]):
        def done(self) -> bool:
            before = super().done()
            self.cancel()
            return before

    promise, future = Promise[int](), CancelledMeanwhile()
    promise.on_done(lambda kept: transfer_outcome(kept, future))
    if error is None:
        promise.resolve(1)
    else:
        promise.fail(error)
    assert future.cancelled()
