"""What a region asks of a place that it writes to exactly once.

Members stage what they were given, each piece under a key of its own; nothing of it can be seen. When a sequence is
complete, its manifest names the keys that count, and one member publishes them for all. What was staged by somebody
who died, slept or went back has a key that no manifest names, and is swept.

After the manifest there is no way back: a publish that can never succeed would leave a sequence that can neither go
on nor be undone. So whatever can fail for good must fail in `check` or in `stage`; `publish` is repeated without end.

Source: spec 5.4, 5.11.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol, Self
from uuid import UUID

import pyarrow as pa

from kohort.errors import InvalidInputError
from kohort.region.staged import StagedKey


@dataclass(frozen=True, slots=True)
class Keep:
    """What a sweep must leave.

    Attributes:
        floor: the oldest epoch in which somebody may still stage: all of it, and of newer ones, stays.
        keys: what a manifest names that may still have to be published.
    """

    floor: int
    keys: Collection[StagedKey] = ()


class Sink(Protocol):
    """A place that is written to exactly once. All methods may be called from several threads and processes at once.

    A sink can be pickled: Spark's executors stage too. An `OSError` or a `RetriableError` says that the same call may
    succeed later, with nothing changed by then but the disk; any other error is final.
    """

    @property
    def place(self) -> str:
        """Names the place, before and after `bind`: the same text for all members that write there, another for no two.

        Such as `parquet:/data/out`; people read it, so it holds no password. What a sequence staged for a place is
        published by one of the members that say it. The place keeps the first name that it was written under, and
        `check` and `published` refuse another one.
        """

    def bind(self, region: str, region_id: UUID) -> Self:
        """The same place as this region writes to it. Every other method needs that first. Touches nothing."""

    def check(self, schema: pa.Schema) -> None:
        """See that tables of this schema can be staged and published; make what is missing.

        Called by each member before its first record, and any number of times. The first schema is fixed.

        Raises:
            InvalidInputError: the schema can't be written, or does not fit the one that was fixed; the place belongs to
                another region; it can't do what exactness needs.
            NotAuthorizedError: a right is missing.
        """

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        """Put a table where nobody sees it, durably; also one without rows. Again under one key: the last counts.

        Raises:
            InvalidInputError: the table does not fit the schema; the key is not of this region.
            OSError: nothing is staged.
        """

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        """Show the rows of these keys, all at once, as this sequence; durable when it returns.

        Done once per (region, sequence), however often, by however many, and after whatever interruption it is called.
        Sequences are published in order: whoever calls for one knows that those before it are done.

        Raises:
            InvalidInputError: something else has the place of this sequence.
            CorruptDataError: what a key names is not there, and the sequence is not published.
            OSError: not now. Nothing is shown, or all of it.
        """

    def empty(self, sequence: int, floor: int) -> None:
        """Take out all that was published, as this sequence: of those before it nothing is shown any more, for ever.

        A place that shows this number may hold rows nevertheless: the topic may be from an older copy, and the place
        has the number from a sequence that the copy lacks. So nothing is to be done only where the place was emptied
        as this sequence, or shows a later one.

        What was staged in epochs before `floor` is void; in later ones members stage meanwhile. Durable when it
        returns, and repeated as `publish` is; also while somebody still publishes a sequence before it, who then may be
        told that it can't be done, or that it is done.

        Raises:
            InvalidInputError: something else has the place of a sequence.
            OSError: not now. Some sequences may be gone, each of them whole.
        """

    def published(self) -> int:
        """The last sequence that is published for certain, with or without rows; 0: none yet."""

    def adopt(self) -> str:
        """Write this sink's name into the place, in place of the one that it has: a person says that it has moved.

        The topic has the new name by then, if the sink also has `known` (see `known_there`).

        Returns:
            The name that it had; empty: nothing of the region is there yet.

        Raises:
            InvalidInputError: the place belongs to another region.
        """

    def sweep(self, keep: Keep) -> None:
        """Remove what was staged and will never be published, and what crashes left. May run beside all the others."""


def check_rows(sink: Sink, table: pa.Table) -> None:
    """See that a sink can take each row of a table, of a schema that was checked.

    A sink says that in a method `check_rows(table)`, which is asked of each table that is submitted. Without one, a row
    that can't be taken is refused when it is staged, with the others of its checkpoint.

    Raises:
        InvalidInputError: it names the first row that can't be taken.
    """
    check = getattr(sink, "check_rows", None)
    if check is not None:
        check(table)


def known_there(sink: Sink) -> tuple[str, int] | None:
    """The name that a place has, whatever the sink calls it, and the sequence that it shows; nothing is changed.

    A sink says that in a method `known()`, so that a person's `adopt` which is interrupted can be repeated: the topic
    has the new name before the place has it. None: the sink has no such method.
    """
    known: Callable[[], tuple[str, int]] | None = getattr(sink, "known", None)
    return None if known is None else known()


def place_of(sink: Sink | None) -> str:
    """Where a member writes to, as its control plane tells sinks apart.

    Raises:
        InvalidInputError: the sink does not say.
    """
    if sink is None:
        return ""
    if not (place := sink.place):
        raise InvalidInputError(f"{sink!r} does not name its place: members that write to one are told by it")
    return place
