"""Effects: the operations that a script of the core requests from its facade.

The synchronous and the asynchronous facade share the scripts. A script is a generator: it yields an effect and gets its
outcome back. Between two yields it runs without interruption (under the driver's lock, or in the loop's thread).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from kohort.client.net.runtime import Work
from kohort.columns.shapes import DecodeOptions, RecordSet
from kohort.ids import TopicPartition

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AwaitCoroutine:
    """Effect of a script of the core: run this coroutine of the core; the outcome is its value or its error."""

    coro: Work[Any]


@dataclass(frozen=True, slots=True)
class CallApplication:
    """Effect of a script of the core: call this function of the application, without holding the client's lock.

    An exception of the function is raised in the script.
    """

    function: Callable[[list[TopicPartition]], Awaitable[None] | None]
    argument: list[TopicPartition]


@dataclass(frozen=True, slots=True)
class DecodeRecordSets:
    """Effect of a script of the core: decode record sets without the client's lock; the outcome is the `Decoded`."""

    sets: Sequence[RecordSet]
    options: DecodeOptions


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Effect of a script of the core: wait until `ready()` is true, at most until `deadline_ms` of the core's clock.

    The outcome is `ready()` at that time.
    """

    ready: Callable[[], bool]
    deadline_ms: float


Effect: TypeAlias = AwaitCoroutine | CallApplication | DecodeRecordSets | WaitUntil
Script: TypeAlias = Generator[Effect, Any, T]


class RunningScript(Generic[T]):
    """A script of the core while it runs: a generator that yields effects, and gets the outcome of each.

    `step` runs it to its next effect; `store_result` or `store_error` stores the outcome for the next `step`.

    Attributes:
        value: The script's return value, once `step` has returned None.
    """

    def __init__(self, script: Script[T]) -> None:
        self._script = script
        self._outcome: Any = None
        self._error: BaseException | None = None
        self.value: T | None = None

    def step(self) -> Effect | None:
        """Return the next effect, or None at the script's end; raise the script's exception."""
        error, self._error = self._error, None
        outcome, self._outcome = self._outcome, None
        try:
            return self._script.send(outcome) if error is None else self._script.throw(error)
        except StopIteration as stop:
            self.value = stop.value
            return None

    def store_result(self, outcome: Any) -> None:
        self._outcome = outcome

    def store_error(self, error: BaseException) -> None:
        self._error = error
