"""Places of a listener: many for connections that have proved themselves, few for strangers, counted from the start.

A stranger never costs an authenticated connection its place. Strangers that hold their places in silence cost a new
connection nothing either: for a newcomer the oldest of them is closed. A handshake takes milliseconds.
"""

from __future__ import annotations

import errno
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

STRANGERS_MAX = 256
"""Limit on connections in their handshake: descriptors, or threads, that strangers can hold."""
STRANGERS_OF_ADDRESS_MAX = 128
"""The most strangers of one address, so that one host can't take all."""

ACCEPT_PAUSE_S: Final = 0.5
_LACKS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class PausingServer(socketserver.TCPServer):
    """A server of the standard library that pauses when it can't accept a connection.

    Without descriptors, the connection stays in the system's queue, and the library's loop would try without end.
    """

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        Raises:
            OSError: it can't be accepted; the server tries again.
        """
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _LACKS:
                time.sleep(ACCEPT_PAUSE_S)
            raise


class _Phase(Enum):
    STRANGER = "in its handshake"
    MEMBER = "authenticated"
    GONE = "closed"


class ConnectionSlot:
    """One connection's slot among the limited number that a listener accepts."""

    def __init__(self, gate: ConnectionGate, address: str, close: Callable[[], None]) -> None:
        self._gate, self.address, self.close = gate, address, close
        self.phase = _Phase.STRANGER

    def mark_authenticated(self) -> bool:
        """Count the connection as authenticated; return False if it must be closed.

        That is so if all slots for authenticated ones are taken, or it was closed to make room.
        """
        return self._gate._prove(self)

    def release_slot(self) -> None:
        """Release the place of a closed connection; a second call does nothing."""
        self._gate._leave(self)


class ConnectionGate:
    """A limit on the connections of one listener, authenticated or not. Any thread may call its methods."""

    def __init__(
        self, members_max: int, strangers_max: int = STRANGERS_MAX, of_address_max: int = STRANGERS_OF_ADDRESS_MAX
    ) -> None:
        self._members_max, self._strangers_max, self._of_address_max = members_max, strangers_max, of_address_max
        self._lock = threading.Lock()
        self._strangers: dict[ConnectionSlot, None] = {}  # the oldest first
        self._members = 0

    def admit_connection(self, address: str, close: Callable[[], None]) -> ConnectionSlot:
        """Give a new connection a place; if there are too many unauthenticated ones, close the oldest.

        Args:
            address: The other end's, without its port.
            close: Closes the connection; called at most once, by any thread.
        """
        place = ConnectionSlot(self, address, close)
        with self._lock:
            evicted = self._too_many(address)
            if evicted is not None:
                self._remove(evicted)
            self._strangers[place] = None
        if evicted is not None:
            evicted.close()
        return place

    def _too_many(self, address: str) -> ConnectionSlot | None:
        """Return the unauthenticated connection to close in favour of a new one from `address`; None: there is room."""
        counts = Counter(place.address for place in self._strangers)
        if counts[address] >= self._of_address_max:
            busiest = address
        elif len(self._strangers) >= self._strangers_max:
            busiest = max(counts, key=lambda name: counts[name])
        else:
            return None
        return next(place for place in self._strangers if place.address == busiest)

    def _prove(self, place: ConnectionSlot) -> bool:
        with self._lock:
            if place.phase is not _Phase.STRANGER or self._members >= self._members_max:
                return False
            del self._strangers[place]
            place.phase = _Phase.MEMBER
            self._members += 1
            return True

    def _leave(self, place: ConnectionSlot) -> None:
        with self._lock:
            self._remove(place)

    def _remove(self, place: ConnectionSlot) -> None:
        if place.phase is _Phase.STRANGER:
            del self._strangers[place]
        elif place.phase is _Phase.MEMBER:
            self._members -= 1
        place.phase = _Phase.GONE
