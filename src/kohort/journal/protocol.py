"""What a coordinator asks of the place where its records live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from kohort.groups.records import Record


class Owner(Protocol):
    """Who has begun a term, as a journal that answers later calls it: in a turn of its own, never within `append`."""

    def durable(self, token: int, sent_ms: int) -> None:
        """The append of this token is durable.

        At `sent_ms` (monotonic clock), when it was sent, the term still was its owner's.
        """

    def lost(self, reason: Exception) -> None:
        """The append on its way, if there is one, is not known to be durable, and nothing more of this term is.

        Not called before all has been read. The cause is a FencedError, an OSError or a KafkaError.
        """

    def more(self) -> None:
        """Reading may go on."""


class Journal(Protocol):
    """An ordered, durable list of group records with one writer at a time, told apart by its term."""

    @property
    def holds_transactions(self) -> bool:
        """Whether offsets can wait here for the end of a transaction.

        They are batches of the application's own producer, and the end is a control batch: a client of a topic can
        write neither.
        """

    @property
    def append_bytes_max(self) -> int | None:
        """No further step should go into an append of so many bytes; None: never so many that it need be counted."""

    @property
    def proof_ms(self) -> int | None:
        """How old the proof may be, in ms, on which an owner's answers stand.

        None: who has begun a term is told at once when another begins. Otherwise an owner learns it from its next
        append only, and what it answers stands while an append that was sent at most so long ago is known to be
        durable.
        """

    def begin(self, term: int, owner: Owner) -> Iterator[Sequence[Record] | None]:
        """Begin a term: every append of an earlier one is refused from now on, and what it wrote is read.

        What was on its way is part of that now, or never will be: its owner is not called any more.

        Returns:
            Every committed record that is still current or not yet compacted away, oldest first, in lists; None:
            nothing is there yet, and `owner.more` is called when it is worth while to go on. At its end all of them are
            as durable as an append that returned.

        Raises:
            FencedError: a later term has begun. As all errors also raised by the iterator.
            OSError: it can't be reached or read now.
            CorruptDataError: it is damaged, and is not to be gone on without what can't be read.
        """

    def append(self, term: int, records: Sequence[Record], now_ms: int) -> int | None:
        """Append all records or none. Not called again before the append on its way is durable.

        Without records, where there is a `proof_ms`, it is proof that the term is not over, and nothing else.

        Returns:
            None when they are durable; else a token, larger than those before, that `owner.durable` will name.

        Raises:
            FencedError: a later term has begun.
            OSError: not durable, perhaps there all the same; throw the state machine away and begin again.
            KafkaError: records that can't be written (too many bytes, RECORD_LIST_TOO_LARGE): nothing was.
        """
