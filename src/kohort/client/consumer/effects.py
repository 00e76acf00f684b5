"""What a script of the core asks its face to do, so that the synchronous and the asynchronous face share the script.

A script is a generator: it yields one of these and gets the outcome back. Between two yields it runs without
interruption (under the driver's lock, in the loop's thread).
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
class Await:
    """Run a coroutine of the core; gives its value or raises its error."""

    coro: Work[Any]


@dataclass(frozen=True, slots=True)
class CallUser:
    """Call the application, without the lock; what it raises is raised in the script."""

    function: Callable[[list[TopicPartition]], Awaitable[None] | None]
    argument: list[TopicPartition]


@dataclass(frozen=True, slots=True)
class Decode:
    """Decode record sets, without the lock; gives the `Decoded`."""

    sets: Sequence[RecordSet]
    options: DecodeOptions


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until `ready()` or until the core's clock reads `deadline_ms`; gives what `ready()` says then."""

    ready: Callable[[], bool]
    deadline_ms: float


Effect: TypeAlias = Await | CallUser | Decode | Wait
Script: TypeAlias = Generator[Effect, Any, T]


class Running(Generic[T]):
    """A script under way: `step` runs it to its next effect, and the outcome of that goes into the next `step`.

    Attributes:
        value: What the script returned, once `step` gave None.
    """

    def __init__(self, script: Script[T]) -> None:
        self._script = script
        self._outcome: Any = None
        self._error: BaseException | None = None
        self.value: T | None = None

    def step(self) -> Effect | None:
        """The next effect, or None at the script's end; raises what the script raises."""
        error, self._error = self._error, None
        outcome, self._outcome = self._outcome, None
        try:
            return self._script.send(outcome) if error is None else self._script.throw(error)
        except StopIteration as stop:
            self.value = stop.value
            return None

    def succeeded(self, outcome: Any) -> None:
        self._outcome = outcome

    def failed(self, error: BaseException) -> None:
        self._error = error
