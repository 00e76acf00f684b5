"""Errors without this package's stack frames, so that their reason comes first.

Spark passes a Python error on as text with its traceback, and a notebook adds its own frames. With kohort's frames the
reason stood some fifty lines down. Errors that are raised on purpose say everything in their message; other errors keep
their frames.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from kohort.errors import KafkaError

P = ParamSpec("P")
T = TypeVar("T")


def show_reason_first(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that Spark calls, so that its KafkaErrors show their reason without inner stack frames."""

    @functools.wraps(method)
    def call_with_plain_errors(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except KafkaError as error:
            raise error.with_traceback(None) from None

    return call_with_plain_errors


def show_reason_first_each(method: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Decorate a method that returns an iterator, as `show_reason_first` does; the iterator's steps may raise too."""

    @functools.wraps(method)
    def call_with_plain_errors(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from method(*args, **kwargs)
        except KafkaError as error:
            raise error.with_traceback(None) from None

    return call_with_plain_errors
