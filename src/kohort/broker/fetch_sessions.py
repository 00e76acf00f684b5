"""Incremental fetch sessions (KIP-227): the broker remembers what a client fetches, so that it need not repeat itself.

A session's partitions are kept in the order in which they are served; those that brought data go to the end, so that
none starves behind a busy one. Sessions are in memory only: a client whose session is gone starts another.

| epoch of the request | session id | what happens |
|---|---|---|
| 0 | any | the session named is closed, a new one is opened if there is room |
| -1 | any | the session named is closed; a plain fetch |
| n > 0 | known, and n is the next epoch | the session's partitions, as the request changes them |
| n > 0 | known, another epoch | INVALID_FETCH_SESSION_EPOCH |
| n > 0 | unknown | FETCH_SESSION_ID_NOT_FOUND |
"""

from __future__ import annotations

import random
import time
import uuid
from typing import TypeAlias

Key: TypeAlias = "tuple[str | uuid.UUID, int]"

EPOCH_MAX = 2**31 - 1
STALE_S = 120.0
"""A session unused for so long may be dropped for a newcomer (Kafka's own value)."""
PARTITIONS_MAX = 100_000
"""Partitions of one session: bounds its memory."""


class Fetched:
    """One partition of a fetch, and what its client was last told of it.

    Attributes:
        key: topic name, or id from version 13 on, and partition.
        epoch: the leader's, as the client knows it; -1: it does not say.
        read_epoch: of the last batch that the client has read; -1: it does not say.
    """

    __slots__ = ("epoch", "high_watermark", "key", "log_start", "max_bytes", "offset", "read_epoch", "told_error")

    def __init__(self, key: Key, offset: int, max_bytes: int, epoch: int, read_epoch: int = -1) -> None:
        self.key = key
        self.offset = offset
        self.max_bytes = max_bytes
        self.epoch = epoch
        self.read_epoch = read_epoch
        self.high_watermark = -1
        self.log_start = -1
        self.told_error = False

    def quiet(self, end_offset: int, log_start: int) -> bool:
        """Whether there is nothing to read and nothing the client was not told; most partitions of most fetches."""
        return self.offset == end_offset == self.high_watermark and log_start == self.log_start and not self.told_error

    def update(self, said: Fetched) -> None:
        """Take over what a request says anew."""
        if said.read_epoch != self.read_epoch:
            self.high_watermark = -1  # not quiet: it is to be looked whether the client has read what is there
        self.offset, self.max_bytes = said.offset, said.max_bytes
        self.epoch, self.read_epoch = said.epoch, said.read_epoch


class FetchSession:
    """What one client fetches."""

    __slots__ = ("by_id", "epoch", "id", "partitions", "used")

    def __init__(self, session_id: int, by_id: bool, partitions: dict[Key, Fetched]) -> None:
        self.id = session_id
        self.by_id = by_id
        self.epoch = 1
        self.partitions = partitions
        self.used = time.monotonic()

    def next_epoch(self) -> None:
        """The epoch that the next request must name."""
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1
        self.used = time.monotonic()

    def to_end(self, key: Key) -> None:
        """Serve this partition after the others."""
        fetched = self.partitions.pop(key, None)
        if fetched is not None:
            self.partitions[key] = fetched


class FetchSessions:
    """Every open session, oldest use first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: int) -> FetchSession | None:
        """The session of this id, which counts as used."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._sessions[session_id] = session
        return session

    def open(self, by_id: bool, partitions: dict[Key, Fetched]) -> FetchSession | None:
        """A new session, or None when there is no room: the client then goes on without one."""
        if not partitions or len(partitions) > PARTITIONS_MAX:
            return None
        if len(self._sessions) >= self._limit:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or oldest.used > time.monotonic() - STALE_S:
                return None
            del self._sessions[oldest.id]
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = random.randint(1, EPOCH_MAX)
        session = FetchSession(session_id, by_id, partitions)
        self._sessions[session_id] = session
        return session

    def close(self, session_id: int) -> None:
        """Forget a session."""
        self._sessions.pop(session_id, None)
