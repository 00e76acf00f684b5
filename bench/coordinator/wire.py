"""One connection of a load member: requests out in order, replies matched by correlation id."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Final, Self, TypeVar, cast

from bench.harness import RunFailed
from kohort.wire import framing
from kohort.wire.discovery import ApiVersionsRequest

Response = TypeVar("Response")
RAW = -1
"""In place of the api key of a response that is not decoded."""
IN_FLIGHT: Final = 8
"""Requests of one repeating connection at a time."""
OWN_CLIENT: Final = "kohort"
"""The software that coordinators apart from the brokers serve: they refuse all others."""
INTRODUCTION: Final = 3
"""The version of ApiVersions that has the client's software."""
_SETTLED_ANSWERS: Final = 3
"""This many equal answers in a row show that a member has nothing left to learn."""


def introduction(software: str) -> ApiVersionsRequest:
    """Return the request in which a client says which software it is."""
    return ApiVersionsRequest(client_software_name=software, client_software_version="1")


class Link(asyncio.Protocol):
    """Pipelines requests on one socket. A closed socket fails what is outstanding with ConnectionError."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[int, int, int, asyncio.Future[Any]]] = deque()
        self._buffer = bytearray()
        self._next = 0
        self._idle: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, host: str, port: int, client_id: str, software: str = "") -> Self:
        """Connect, and say which software this is; empty: say nothing, as clients of old did."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: cls(client_id), host, port)
        if software:
            await link.ask(introduction(software), INTRODUCTION)
        return link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for _, _, _, future in self._waiting:
            if not future.done():
                future.set_exception(ConnectionError("connection closed"))
        self._waiting.clear()
        if self._idle is not None and not self._idle.done():
            self._idle.set_exception(ConnectionError("connection closed"))

    async def idle(self, seconds: float) -> None:
        """Send nothing for some seconds.

        Raises ConnectionError as soon as the connection ends: clients watch their sockets.
        """
        if self._transport is None:
            raise ConnectionError("connection closed")
        loop = asyncio.get_running_loop()
        idle: asyncio.Future[None] = loop.create_future()
        self._idle = idle
        timer = loop.call_later(max(0.0, seconds), _over, idle)
        try:
            await idle
        finally:
            timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < 4 + size:
                return
            frame = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            self.take(frame)

    def take(self, frame: bytes) -> None:
        """A whole frame has come: the answer to what was asked first."""
        _, key, version, future = self._waiting.popleft()
        if future.done():
            return
        if key == RAW:
            future.set_result(frame)
        else:
            _, message = framing.decode_response(framing.APIS[key].response, version, frame)
            future.set_result(message)

    def ask(self, request: Any, version: int) -> asyncio.Future[Any]:
        """Send now; the future holds the decoded response."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._transport is None:
            future.set_exception(ConnectionError("connection closed"))
            return future
        self._next += 1
        self._waiting.append((self._next, request.API_KEY, version, future))
        self._transport.write(framing.encode_request(request, version, self._next, self._client_id))
        return future

    def repeat(self, frame: bytes) -> asyncio.Future[bytes]:
        """Send a whole request that was encoded before; the future holds the response's frame as it came."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._transport is None:
            future.set_exception(ConnectionError("connection closed"))
            return future
        self._waiting.append((0, RAW, 0, future))
        self._transport.write(frame)
        return future

    def abort(self) -> None:
        """Close as a killed process would: nothing more is said."""
        if self._transport is not None:
            self._transport.abort()


def _over(idle: asyncio.Future[None]) -> None:
    if not idle.done():
        idle.set_result(None)


class Repeating(asyncio.Protocol):
    """One connection that repeats a request, with at most `IN_FLIGHT` unanswered.

    Attributes:
        answers: the number of answers that were as expected.
    """

    def __init__(self) -> None:
        self.answers = 0
        self._transport: asyncio.Transport | None = None
        self._wanted = self._burst = b""
        self._taken = bytearray()
        self._until = 0.0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("the connection was closed")

    async def introduce(self, software: str) -> None:
        """Say which software this is; empty: say nothing."""
        if software:
            self._begin(framing.encode_request(introduction(software), INTRODUCTION, 0, ""), None, 0.0)
            await self._done

    async def settle(self, frame: bytes) -> bytes:
        """Repeat a request one by one until its answers are equal, and return the answer."""
        answers: list[bytes] = []
        while answers[-_SETTLED_ANSWERS:].count(answers[-1] if answers else b"") < _SETTLED_ANSWERS:
            self._begin(frame, None, 0.0)
            await self._done
            answers.append(bytes(self._taken))
            await asyncio.sleep(0.01)
        return answers[-1]

    async def repeat(self, frame: bytes, answer: bytes, seconds: float) -> None:
        """Repeat a request until the time is over."""
        self._begin(frame * IN_FLIGHT, answer * IN_FLIGHT, time.monotonic() + seconds)
        await self._done

    def abort(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _begin(self, burst: bytes, wanted: bytes | None, until: float) -> None:
        assert self._transport is not None
        self._burst, self._wanted, self._until = burst, wanted or b"", until
        self._taken.clear()
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(burst)

    def data_received(self, data: bytes) -> None:
        taken = self._taken
        taken += data
        if not self._wanted:
            if len(taken) >= 4 and len(taken) == 4 + int.from_bytes(taken[:4], "big"):
                self._end()
            return
        if len(taken) < len(self._wanted):
            return
        if taken != self._wanted:
            self._end(f"another answer: {taken[:200].hex()}")
            return
        taken.clear()
        self.answers += IN_FLIGHT
        if time.monotonic() < self._until and self._transport is not None:
            self._transport.write(self._burst)
        else:
            self._end()

    def _end(self, why: str = "") -> None:
        if not self._done.done():
            self._done.set_exception(RunFailed(why)) if why else self._done.set_result(None)
