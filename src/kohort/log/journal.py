"""Where the group coordinator's records live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from kohort.log.partition import PartitionLog

GroupRecord = Any


class Journal(Protocol):
    """An ordered, durable list of group records with one writer at a time, told apart by its term."""

    def append(self, term: int, records: Sequence[GroupRecord], now_ms: int) -> int:
        """Append all records or none; durable when returned.

        Returns:
            A token; later appends have larger ones.

        Raises:
            FencedError: a later term has begun.
            OSError: nothing was written; throw the state machine away and replay.
        """

    def begin(self, term: int) -> None:
        """Begin a term: every append of an earlier one is refused from now on."""

    def replay(self) -> Iterator[Sequence[GroupRecord]]:
        """Every committed record that is still current or not yet compacted away, oldest first, in lists."""

    def barrier(self, term: int) -> int:
        """The last token, if `term` is still the current one: what an authoritative read must wait for.

        Raises:
            FencedError: a later term has begun.
        """

    def compact(self, now_ms: int) -> int:
        """Drop records that later ones replace; returns bytes saved."""


class LogJournal:
    """A journal in one partition of `__consumer_offsets`, in Kafka's own record schemas."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
