"""The dashboard's connections: their number, the time that each may wait, and the bytes that wait for readers.

uvicorn's own limit answers 503 to everyone while it is reached, and closes nothing. Here a connection without a request
makes room for a new one, so that nobody is kept out by connections that only wait.
"""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX = 256
"""The most connections. A further one replaces the one that has waited longest for a request, or is closed."""
WAIT_S = 10.0
"""How long a connection may be without a whole request, or an answer without progress."""
UNSENT_BYTES_MAX = 64 << 20
"""The most bytes of answers that wait for their readers; then the connection with most of them is closed."""
_CHECK_PARTS = 10
"""Number of checks in `WAIT_S`."""


class LimitedProtocol(H11Protocol):
    """A connection that is closed when it waits for too long, or when others need its place."""

    _check: asyncio.TimerHandle | None = None
    _waits_since_s = 0.0
    _unsent_then, _stands_since_s = 0, 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection's place, that of a waiting one if there is no other."""
        if len(self.connections) >= CONNECTIONS_MAX and not self._make_room():
            transport.abort()
            return
        super().connection_made(transport)
        self._waits_since_s = self._stands_since_s = self.loop.time()
        self._check_later()

    def _make_room(self) -> bool:
        waiting = [found for found in self._others() if found.is_waiting()]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda found: found._waits_since_s)
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True

    def _others(self) -> list[LimitedProtocol]:
        return [cast(LimitedProtocol, found) for found in self.connections]

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        if self._check is not None:
            self._check.cancel()
        if self.transport is not None:  # it had a place
            super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._waits_since_s = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Stop the answer until its reader has read, and close those that have too much unread."""
        super().pause_writing()
        others = self._others()
        unsent = sum(found.unsent() for found in others)
        while unsent > UNSENT_BYTES_MAX:
            most = max(others, key=LimitedProtocol.unsent)
            unsent -= most.unsent()
            others.remove(most)
            most.transport.abort()

    def unsent(self) -> int:
        """Return the number of bytes that the reader has not taken."""
        return self.transport.get_write_buffer_size()

    def is_waiting(self) -> bool:
        """Return whether there is neither a request nor an answer."""
        return (self.cycle is None or self.cycle.response_complete) and not self.unsent()

    def _check_later(self) -> None:
        self._check = self.loop.call_later(WAIT_S / _CHECK_PARTS, self._end_if_stuck)

    def _end_if_stuck(self) -> None:
        """Close a connection that waits for a request, or for its reader, for longer than `WAIT_S`."""
        now_s, unsent = self.loop.time(), self.unsent()
        if not unsent or unsent < self._unsent_then:
            self._stands_since_s = now_s
        self._unsent_then = unsent
        if unsent:
            self._waits_since_s = now_s  # the answer is not over yet
        if now_s - (self._waits_since_s if self.is_waiting() else self._stands_since_s) >= WAIT_S:
            self.transport.abort()
        else:
            self._check_later()
