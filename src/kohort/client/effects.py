"""What a script of the core asks its face to do, so that the synchronous and the asynchronous face share the script.

A script is a generator: it yields one of these and gets the outcome back. Between two yields it runs without
interruption (under the driver's lock, in the loop's thread).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from kohort.columns.shapes import DecodeOptions, RecordSet

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Await:
    """Run a coroutine of the core; gives its value or raises its error."""

    coro: Coroutine[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class CallUser:
    """Call the application, without the lock; what it raises is raised in the script."""

    function: Callable[..., Any]
    argument: Any


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
