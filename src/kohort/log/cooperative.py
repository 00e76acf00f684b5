"""Work on a store in steps, so that other work can run in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""A generator that yields after each step of some microseconds to milliseconds, and returns the result."""


def completed(steps: Steps[T]) -> T:
    """Run all steps without interruption, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
