"""Incremental fetch sessions (KIP-227): the broker remembers a client's partitions, so that requests list only changes.

A session's partitions are kept in the order in which they are served. A partition that returned data moves to the end,
so that it does not starve the others. Sessions are in memory only: a client whose session is lost starts another.

| epoch of the request | session id | result |
|---|---|---|
| 0 | any | the given session is closed, a new one is opened if there is room |
| -1 | any | the given session is closed; a full fetch without a session |
| n > 0 | known, and n is the next epoch | the session's partitions, as changed by the request |
| n > 0 | known, another epoch | INVALID_FETCH_SESSION_EPOCH |
| n > 0 | unknown | FETCH_SESSION_ID_NOT_FOUND |

A session belongs to the principal that opened it, and does not exist for others.
They would learn its topics, or end it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from kohort.broker.security.principals import ANYONE, Principal
from kohort.io.chance import CHANCE

Key: TypeAlias = "tuple[str | uuid.UUID, int]"

EPOCH_MAX = 2**31 - 1
STALE_S = 120.0
"""A session unused for this long may be replaced by a new one (Kafka's own value)."""
PARTITIONS_MAX = 100_000
"""The most partitions of a session, which bounds its memory. A session that grows beyond it is closed."""
ALL_PARTITIONS_MAX = 1_000_000
"""The most partitions of all sessions: about 250 MB. Ten clients that read every partition of a broker."""


class FetchedPartition:
    """One partition of a fetch request, with the high watermark and log start that its client was sent last.

    Attributes:
        key: topic name, or topic id since version 13, and partition.
        epoch: the leader epoch that the client knows; -1: not given.
        read_epoch: the epoch of the last batch that the client has read; -1: not given.
    """

    __slots__ = ("epoch", "high_watermark", "key", "log_start", "max_bytes", "offset", "read_epoch", "sent_error")

    def __init__(self, key: Key, offset: int, max_bytes: int, epoch: int, read_epoch: int = -1) -> None:
        self.key = key
        self.offset = offset
        self.max_bytes = max_bytes
        self.epoch = epoch
        self.read_epoch = read_epoch
        self.high_watermark = -1
        self.log_start = -1
        self.sent_error = False

    def has_nothing_new(self, end_offset: int, log_start: int) -> bool:
        """Return whether a response has nothing new for this partition, which is the most common case."""
        return self.offset == end_offset == self.high_watermark and log_start == self.log_start and not self.sent_error

    def update(self, said: FetchedPartition) -> None:
        """Take over the offset, epochs and size limit that a later fetch of the session names for the partition."""
        if said.read_epoch != self.read_epoch:
            self.high_watermark = -1  # not quiet: the client may have read a truncated log
        self.offset, self.max_bytes = said.offset, said.max_bytes
        self.epoch, self.read_epoch = said.epoch, said.read_epoch


class FetchSession:
    """One client's fetch session (KIP-227): its partitions, and the epoch of its next request."""

    __slots__ = ("by_id", "epoch", "id", "owner", "partitions", "used")

    def __init__(self, session_id: int, by_id: bool, partitions: dict[Key, FetchedPartition], owner: Principal) -> None:
        self.id = session_id
        self.owner = owner
        self.by_id = by_id
        self.epoch = 1
        self.partitions = partitions
        self.used = time.monotonic()

    def next_epoch(self) -> None:
        """Advance to the epoch that the next request must have."""
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1
        self.used = time.monotonic()

    def move_to_end(self, key: Key) -> None:
        """Move a partition to the end of the session's order, so that the others are served first."""
        fetched = self.partitions.pop(key, None)
        if fetched is not None:
            self.partitions[key] = fetched


class FetchSessions:
    """All open fetch sessions (KIP-227), the least recently used first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sessions: dict[int, FetchSession] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: int, owner: Principal = ANYONE) -> FetchSession | None:
        """Return the owner's session of this id, and mark it as used."""
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            return None
        self._sessions[session_id] = self._sessions.pop(session_id)
        return session

    def open(
        self, by_id: bool, partitions: dict[Key, FetchedPartition], owner: Principal = ANYONE
    ) -> FetchSession | None:
        """Open a session, or return None if there is no room: the client then sends full fetch requests."""
        if not partitions or len(partitions) > PARTITIONS_MAX:
            return None
        while len(self._sessions) >= self._limit or self._partitions + len(partitions) > ALL_PARTITIONS_MAX:
            if not self._close_stale():
                return None
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = CHANCE.randint(1, EPOCH_MAX)
        session = FetchSession(session_id, by_id, partitions, owner)
        self._sessions[session_id] = session
        self._partitions += len(partitions)
        return session

    def change_partitions(
        self, session: FetchSession, forgotten: Iterable[Key], wanted: Mapping[Key, FetchedPartition]
    ) -> bool:
        """Apply a fetch's changes to its session's partitions.

        If the session is too large then, close it and return False.
        """
        parts = session.partitions
        before = len(parts)
        for key in forgotten:
            parts.pop(key, None)
        for key, part in wanted.items():
            known = parts.get(key)
            if known is None:
                parts[key] = part
            else:
                known.update(part)
        self._partitions += len(parts) - before
        while self._partitions > ALL_PARTITIONS_MAX and self._close_stale(session):
            pass
        if len(parts) <= PARTITIONS_MAX and self._partitions <= ALL_PARTITIONS_MAX:
            return True
        self.close(session.id)
        return False

    def _close_stale(self, used: FetchSession | None = None) -> bool:
        """Close the least recently used session to make room; return whether that was possible.

        False if that session was used within `STALE_S`, is the one in `used`, or does not exist.
        """
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or oldest is used or oldest.used > time.monotonic() - STALE_S:
            return False
        self.close(oldest.id)
        return True

    def close(self, session_id: int) -> None:
        """Close a fetch session, and forget its partitions."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)
