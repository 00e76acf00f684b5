"""What makes methods of a blocking and of an asyncio face out of one coroutine function of the core.

    async def list_topics(cluster: Cluster, *, internal: bool = False) -> list[TopicInfo]: ...

    class Admin:
        list_topics = blocking(list_topics)           # admin.list_topics(internal=True)

    class AsyncAdmin:
        list_topics = awaiting(list_topics)           # await admin.list_topics(internal=True)

Names, parameters, types and documentation are the function's; a face adds how it waits. It has `_core`, which every
function takes first, and `_call`, which runs a coroutine of the core.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from kohort.client.net.runtime import Work

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")


class Blocking(Protocol[C_co]):
    """What `blocking` makes methods for."""

    @property
    def _core(self) -> C_co: ...

    def _call(self, coro: Work[T], /) -> T: ...


class Awaiting(Protocol[C_co]):
    """What `awaiting` makes methods for."""

    @property
    def _core(self) -> C_co: ...

    async def _call(self, coro: Work[T], /) -> T: ...


def blocking(function: Callable[Concatenate[C, P], Work[T]]) -> Callable[Concatenate[Blocking[C], P], T]:
    """The function as a method that waits for its value."""

    def method(self: Blocking[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(function(self._core, *args, **kwargs))

    return _like(method, function)


def awaiting(
    function: Callable[Concatenate[C, P], Work[T]],
) -> Callable[Concatenate[Awaiting[C], P], Work[T]]:
    """The function as a coroutine method."""

    async def method(self: Awaiting[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._call(function(self._core, *args, **kwargs))

    return _like(method, function)


def _like(method: Callable[P, T], function: Callable[..., object]) -> Callable[P, T]:
    """The method with the function's name, documentation and signature, its first parameter being `self`."""
    update_wrapper(method, function)
    signature = inspect.signature(function)
    first, *others = signature.parameters.values()
    shown = signature.replace(parameters=[first.replace(name="self"), *others])
    method.__signature__ = shown  # type: ignore[attr-defined]
    return method
