"""Work on a store that is done in steps, so that others have their turn between."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Gives way after each step of some microseconds to milliseconds, and returns what came of it."""


def completed(steps: Steps[T]) -> T:
    """What comes of it when nobody else wants a turn."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
