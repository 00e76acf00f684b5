"""The interface of a region's sinks, which are written to exactly once.

A *sequence* is one complete checkpoint with its output; its number is Flink's checkpoint id, or Spark's batch id.
Members stage their rows, each unit under a separate key; staged rows are invisible. When a sequence is complete, its
manifest names the keys that count, and one member publishes them for all. Rows that were staged by a member that died,
slept or reset have a key that no manifest names, and are swept.

After the manifest there is no way back. If a publication could never succeed, its sequence could neither be completed
nor undone. Any permanent failure must therefore happen in `check` or in `stage`; `publish` is retried without limit.

Source: spec 5.4, 5.11.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol, Self
from uuid import UUID

import pyarrow as pa

from kohort.errors import InvalidInputError
from kohort.region.records import Position
from kohort.region.staged import StagedKey


@dataclass(frozen=True, slots=True)
class Keep:
    """The staged rows that a sweep must keep.

    Attributes:
        floor: the oldest epoch in which a member may still stage; rows staged in this or a later epoch are kept.
        keys: keys in a manifest that may still have to be published.
    """

    floor: int
    keys: Collection[StagedKey] = ()


class Sink(Protocol):
    """A destination that is written to exactly once. Several threads and processes may call its methods at once.

    A sink can be pickled: Spark's executors stage too. An `OSError` or a `RetriableError` means that the same call
    may succeed later, when only the disk has changed. Any other error is final.
    """

    @property
    def place(self) -> str:
        """The name of the destination, before and after `bind`: equal for all members that write there, and unique.

        An example is `parquet:/data/out`. Humans read the name, so it contains no password. One of the members with
        this name publishes for all of them. The destination keeps the first name under which it was written; `check`
        and `published` refuse another one.
        """

    def bind(self, region: str, region_id: UUID) -> Self:
        """Return this sink, bound to a region. Every other method needs that first. The destination is not accessed."""

    def check(self, schema: pa.Schema) -> None:
        """Check that tables of this schema can be staged and published; create what is missing.

        Each member calls it before its first record, any number of times. The first schema is fixed.

        Raises:
            InvalidInputError: the schema can't be written, or does not fit the fixed one; the destination belongs to
                another region; it lacks what exactly-once writing needs.
            NotAuthorizedError: a permission is missing.
        """

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        """Stage a table durably and invisibly, even one without rows.

        A caller takes a new key for each call, also after an error. A store may still carry out a request whose answer
        was lost. It would put rows of an earlier call with the key in the place of later ones.

        Raises:
            InvalidInputError: the table does not fit the schema; or the key is another region's.
            OSError: nothing is staged that a reader could see. The key must not be published.
        """

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        """Publish the rows of these keys as this sequence, all at once; they are durable when the call returns.

        The effect happens once per (region, sequence), however often, by however many callers and after whatever
        interruption it is called. Sequences are published in order: a caller knows that the earlier ones are done.

        Raises:
            InvalidInputError: something else is in the place of this sequence.
            CorruptDataError: staged rows of a key are missing, and the sequence is not published.
            OSError: the call failed this time. Nothing is shown, or everything.
        """

    def empty(self, sequence: int, floor: int) -> None:
        """Remove all published rows. This counts as the sequence: earlier ones are never shown again.

        A sink that shows this number may contain rows nevertheless. The topic may be an older copy, and the number
        may come from a sequence that the copy lacks. The call may therefore skip its work only if the sink was
        emptied as this sequence, or shows a later one.

        Rows that were staged in epochs before `floor` are discarded too. Those of later epochs stay, since members may
        be staging them now. The effect is durable when the call returns. The call is retried as `publish` is.

        Another caller may still be publishing an earlier sequence. It may then get an error, or learn that the
        sequence is done.

        Raises:
            InvalidInputError: something else is in the place of a sequence.
            OSError: the call failed this time. Some sequences may be removed, each of them completely.
        """

    def published(self) -> int:
        """Return the last sequence that is certainly published, with or without rows; 0: none."""

    def adopt(self) -> str:
        """Rename the sink in its destination's owner marker, after an operator has said that the destination moved.

        A sink that also has `known` gets this call after the region's topic has the new name
        (`stored_name_and_sequence` explains it).

        Returns:
            The earlier name of the sink; empty: the region has written nothing there yet.

        Raises:
            InvalidInputError: the destination belongs to another region.
        """

    def sweep(self, keep: Keep) -> None:
        """Remove staged rows that will never be published, and leftovers of crashes.

        It may run beside all other methods.
        """


def check_rows(sink: Sink, table: pa.Table) -> None:
    """Check that a sink accepts each row of a table whose schema was checked.

    A sink with a method `check_rows(table)` checks each submitted table. Without one, a bad row is refused when it is
    staged, with all rows of its checkpoint.

    Raises:
        InvalidInputError: the first row that the sink refuses, with its position.
    """
    check = getattr(sink, "check_rows", None)
    if check is not None:
        check(table)


def publish_rows(sink: Sink, sequence: int, keys: Iterable[StagedKey], positions: Iterable[Position]) -> None:
    """Publish a sequence, with `publish_with(sequence, keys, positions)` if the sink can record its end offsets.

    That method keeps the promises of `publish`. `positions` has the next offset of each partition of the region.
    """
    publish: Callable[..., None] | None = getattr(sink, "publish_with", None)
    if publish is None:
        sink.publish(sequence, keys)
    else:
        publish(sequence, keys, positions)


def stored_name_and_sequence(sink: Sink) -> tuple[str, int] | None:
    """Return the sink's name as its destination stores it, and the sequence that the destination shows.

    A sink provides this in a method `known()`. It lets an operator repeat an interrupted `adopt`: the topic has the
    new name before the destination has it. None: the sink has no such method.
    """
    known: Callable[[], tuple[str, int]] | None = getattr(sink, "known", None)
    return None if known is None else known()


def place_of(sink: Sink | None) -> str:
    """Return the name of a sink's destination, by which a control plane identifies the sink; empty without a sink.

    Raises:
        InvalidInputError: the sink has no name.
    """
    if sink is None:
        return ""
    if not (place := sink.place):
        raise InvalidInputError(f"{sink!r} does not name its place: members that write to one are told by it")
    return place
