"""Errors that show their reason: raised by what Spark calls, without the frames inside this package.

Spark hands a Python error on as text, traceback and all, and a notebook puts its own frames around it: with ours the
reason stood some fifty lines down. Errors that are raised on purpose say all that there is to know; others keep their
frames.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from kohort.errors import KafkaError

P = ParamSpec("P")
T = TypeVar("T")


def reason_first(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that Spark calls: what it raises on purpose comes without inner frames and causes."""

    @functools.wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except KafkaError as error:
            raise error.with_traceback(None) from None

    return called


def reason_first_each(method: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Decorate a method that gives an iterator, whose steps may raise too."""

    @functools.wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from method(*args, **kwargs)
        except KafkaError as error:
            raise error.with_traceback(None) from None

    return called
