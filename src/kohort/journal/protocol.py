"""What a coordinator asks of the place where its records live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from kohort.groups.records import Record


class Journal(Protocol):
    """An ordered, durable list of group records with one writer at a time, told apart by its term."""

    def append(self, term: int, records: Sequence[Record], now_ms: int) -> int:
        """Append all records or none; durable when returned.

        Returns:
            A token; later appends have larger ones.

        Raises:
            FencedError: a later term has begun.
            OSError: not durable, perhaps there all the same; throw the state machine away and replay.
            KafkaError: records that can't be written (too many bytes, RECORD_LIST_TOO_LARGE): nothing was.
        """

    def begin(self, term: int) -> None:
        """Begin a term: every append of an earlier one is refused from now on."""

    def replay(self) -> Iterator[Sequence[Record]]:
        """Every committed record that is still current or not yet compacted away, oldest first, in lists.

        Raises:
            CorruptDataError: it is damaged, and is not to be gone on without what can't be read.
        """

    def barrier(self, term: int) -> int:
        """The last token, if `term` is still the current one: what an authoritative read must wait for.

        Raises:
            FencedError: a later term has begun.
        """

    def compact(self, now_ms: int) -> int:
        """Drop records that later ones replace; returns bytes saved."""
