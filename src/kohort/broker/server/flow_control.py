"""Flow control: how much is kept of clients that do not finish their requests, or do not take their responses.

Reading from a connection stops while it is full (`FlowControl`). All connections together have bounds as well
(`ByteBudget`): thousands of connections that each stay below their own could still take all memory. Beyond a common
bound, the connection that has held bytes the longest is closed. Honest requests and answers are unfinished for
milliseconds, those of a client that stopped for ever. Connections that hold nothing, which are nearly all, are not
listed and cost nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Protocol

log = logging.getLogger("kohort.broker")


ANSWERS_HELD = 256
"""Responses collected before they are sent, while a read is processed."""


class Limits(Protocol):
    """The limits of one connection, from the broker's settings."""

    @property
    def request_bytes_max(self) -> int: ...
    @property
    def queued_requests_max(self) -> int: ...
    @property
    def queued_bytes_max(self) -> int: ...


class FlowControl:
    """The flow control of one connection: reading stops while the connection is full.

    Attributes:
        requests_max: the most unanswered requests.
        bytes_max: the most bytes of unsent responses.
        high_water_mark: with this many unanswered requests, send completed responses before the next request.
    """

    __slots__ = ("bytes_max", "high_water_mark", "requests_max")

    def __init__(self, limits: Limits) -> None:
        self.requests_max = limits.queued_requests_max
        self.bytes_max = limits.queued_bytes_max
        self.high_water_mark = min(ANSWERS_HELD, self.requests_max)

    def must_stop_reading(self, requests: int, size: int) -> bool:
        """Return whether reading must stop with this many unanswered requests and unsent bytes."""
        return requests >= self.requests_max or size >= self.bytes_max


class ByteHolder(Protocol):
    """The interface of a connection whose buffered bytes count toward a `ByteBudget`.

    Attributes:
        last_active: when it last received or sent bytes (monotonic clock).
    """

    last_active: float

    @property
    def name(self) -> str:
        """The client's address for log lines."""

    @property
    def is_reading(self) -> bool:
        """Whether the connection is read now: its client could send the rest of its request."""

    def close(self) -> None:
        """Close the connection, which releases its bytes."""


class ByteBudget:
    """The bytes of one kind that all connections hold together, and their limit.

    Attributes:
        limit: the most bytes of all connections.
        used: the bytes that they hold.
    """

    __slots__ = ("_since", "_sizes", "_what", "limit", "used")

    def __init__(self, what: str, limit: int) -> None:
        """Create an empty budget. `what` names the bytes and their bound in log lines."""
        self._what = what
        self.limit = limit
        self.used = 0
        self._sizes: dict[ByteHolder, int] = {}
        self._since: dict[ByteHolder, float] = {}  # in the order in which they began

    def set_held_bytes(self, holder: ByteHolder, size: int) -> None:
        """Set how many bytes a connection holds; 0: none. Closes the oldest holders while the limit is exceeded."""
        self.used += size - self._sizes.pop(holder, 0)
        if size == 0:
            self._since.pop(holder, None)
            return
        self._sizes[holder] = size
        self._since.setdefault(holder, time.monotonic())
        while self.used > self.limit:
            self._shed()

    def holders_by_age(self) -> Iterator[tuple[ByteHolder, float]]:
        """Yield each connection that holds bytes, with the time since when it has held some, the oldest first."""
        return iter(self._since.items())

    def _shed(self) -> None:
        holder, since = next(iter(self._since.items()))
        log.warning(
            "closing the connection from %s: it has held %d bytes of %s for %.0f s, and all connections hold %d of at "
            "most %d",
            holder.name,
            self._sizes[holder],
            self._what,
            time.monotonic() - since,
            self.used,
            self.limit,
        )
        holder.close()
        if holder in self._sizes:  # it was closed already
            self.set_held_bytes(holder, 0)
