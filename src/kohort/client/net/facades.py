"""Methods of a blocking and of an asyncio facade, made from one coroutine function of the core.

    async def list_topics(cluster: Cluster, *, internal: bool = False) -> list[TopicInfo]: ...

    class Admin:
        list_topics = blocking(list_topics)           # admin.list_topics(internal=True)

    class AsyncAdmin:
        list_topics = awaiting(list_topics)           # await admin.list_topics(internal=True)

Names, parameters, types and documentation are the function's; a facade adds how it waits. A facade has `_core`, which
every function takes first, and `_call`, which runs a coroutine of the core.
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


class BlockingFacade(Protocol[C_co]):
    """An interface: a facade such as `Admin`, whose methods (made by `blocking`) block until a coroutine is done."""

    @property
    def _core(self) -> C_co: ...

    def _call(self, coro: Work[T], /) -> T: ...


class AwaitingFacade(Protocol[C_co]):
    """An interface: a facade such as `AsyncAdmin`, whose methods (made by `awaiting`) await a coroutine."""

    @property
    def _core(self) -> C_co: ...

    async def _call(self, coro: Work[T], /) -> T: ...


def blocking(function: Callable[Concatenate[C, P], Work[T]]) -> Callable[Concatenate[BlockingFacade[C], P], T]:
    """Make a facade's blocking method of a coroutine function, whose first argument is the client's core."""

    def facade_method(self: BlockingFacade[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(function(self._core, *args, **kwargs))

    return _like(facade_method, function)


def awaiting(
    function: Callable[Concatenate[C, P], Work[T]],
) -> Callable[Concatenate[AwaitingFacade[C], P], Work[T]]:
    """Make a facade's asyncio method of a coroutine function, whose first argument is the client's core."""

    async def facade_method(self: AwaitingFacade[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._call(function(self._core, *args, **kwargs))

    return _like(facade_method, function)


def _like(method: Callable[P, T], function: Callable[..., object]) -> Callable[P, T]:
    """Give a facade's method the name, docstring and signature of the core's function; `self` replaces the core."""
    update_wrapper(method, function)
    signature = inspect.signature(function)
    first, *others = signature.parameters.values()
    shown = signature.replace(parameters=[first.replace(name="self"), *others])
    method.__signature__ = shown  # type: ignore[attr-defined]
    return method
