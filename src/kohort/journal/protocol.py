"""The interface of a journal: the durable store of a coordinator's records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from kohort.groups.records import Record


class Owner(Protocol):
    """The owner of a term. A journal that answers later calls it in a separate turn, never within `append`."""

    def on_append_durable(self, token: int, sent_ms: int) -> None:
        """Report that the append with this token is durable.

        At `sent_ms` (monotonic clock), when it was sent, the term was still its owner's.
        """

    def on_journal_lost(self, reason: Exception) -> None:
        """Report that a possible append under way may not be durable, and that the term takes no more.

        Not called before all records are read. The cause is a FencedError, an OSError or a KafkaError.
        """

    def on_records_available(self) -> None:
        """Report that the iterator of `begin_term`, which yielded None to wait, has records, its end or an error."""


class Journal(Protocol):
    """An ordered, durable list of group records with one writer at a time, identified by its term."""

    @property
    def holds_transactions(self) -> bool:
        """Whether the journal can hold offsets until the end of a transaction.

        Such offsets are batches of the application's own producer, and the end is a control batch. A client of a topic
        can write neither.
        """

    @property
    def append_bytes_max(self) -> int | None:
        """The size in bytes from which an append should not include the records of a further step; None: no limit."""

    @property
    def ownership_proof_ms(self) -> int | None:
        """The greatest age, in ms, of the ownership proof on which an owner's replies rely.

        None: an owner learns immediately that another term begins. Otherwise it learns so only from its next append.
        Its replies are then valid if an append that was sent at most this long ago is known to be durable.
        """

    def begin_term(self, term: int, owner: Owner) -> Iterator[Sequence[Record] | None]:
        """Begin a term: refuse every append of an earlier term from now on, and read what was written.

        An append that was under way is part of that, or never will be. Its owner is not called any more.

        Returns:
            Every committed record that is current or not yet compacted away, oldest first, in lists. None means that
            nothing is available yet; `owner.on_records_available` is called when something is. At the end all records
            are as durable as those of an append that returned.

        Raises:
            FencedError: a later term has begun. The iterator raises all errors too.
            OSError: the journal cannot be reached or read now.
            CorruptDataError: the journal is damaged, and the unreadable part must not be skipped.
        """

    def append(self, term: int, records: Sequence[Record], now_ms: int) -> int | None:
        """Append all records or none. Not called again before the append under way is durable.

        Without records, if there is a `ownership_proof_ms`, the append only proves that the term is not over.

        Returns:
            None if the records are durable, else a token, larger than earlier ones, that
            `owner.on_append_durable` will name.

        Raises:
            FencedError: a later term has begun.
            OSError: the records are not known to be durable; discard the state machine and begin again.
            KafkaError: the records cannot be written (too many bytes: RECORD_LIST_TOO_LARGE), and none was.
        """
