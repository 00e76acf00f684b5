"""A common bound on bytes that many connections hold: beyond it, the connection that has held some the longest is closed.

Each connection has bounds of its own, but thousands of connections that each stay below theirs could still take all
memory. Honest requests and answers are unfinished for milliseconds, those of a client that stopped for ever, so the
oldest holder is the right one to close. Connections that hold nothing, which are nearly all, are not listed and cost
nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Protocol

log = logging.getLogger("kohort.broker")


class ByteHolder(Protocol):
    """A connection.

    Attributes:
        last_active: when it last received or sent bytes (monotonic clock).
    """

    last_active: float

    @property
    def name(self) -> str:
        """The client's address for log lines."""

    @property
    def is_reading(self) -> bool:
        """Whether the client's next bytes would be read now."""

    def close(self) -> None:
        """Close the connection, which releases its bytes."""


class ByteBudget:
    """The bytes of one kind that connections hold.

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

    def hold(self, holder: ByteHolder, size: int) -> None:
        """Set how many bytes a connection holds; 0: none. Closes the oldest holders while the limit is exceeded."""
        self.used += size - self._sizes.pop(holder, 0)
        if size == 0:
            self._since.pop(holder, None)
            return
        self._sizes[holder] = size
        self._since.setdefault(holder, time.monotonic())
        while self.used > self.limit:
            self._shed()

    def since(self) -> Iterator[tuple[ByteHolder, float]]:
        """Return the holders and since when each has held bytes, the oldest first."""
        return iter(self._since.items())

    def _shed(self) -> None:
        holder, since = next(iter(self._since.items()))
        log.warning(
            "closing the connection from %s: %d bytes of %s for %.0f s, and all connections have %d; at most %d are kept",
            holder.name,
            self._sizes[holder],
            self._what,
            time.monotonic() - since,
            self.used,
            self.limit,
        )
        holder.close()
        if holder in self._sizes:  # it was closed already
            self.hold(holder, 0)
