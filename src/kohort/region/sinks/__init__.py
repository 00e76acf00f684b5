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
    """The staged rows that `Sink.sweep` must not remove, because they may still be published.

    Attributes:
        floor: the minimum valid epoch; rows that were staged in this epoch or a later one are kept.
        keys: keys that a manifest names and that are perhaps not published yet; they are kept too.
    """

    floor: int
    keys: Collection[StagedKey] = ()


class Sink(Protocol):
    """The interface of a destination (folder, table or topic) in which a region's rows appear exactly once.

    Members call `stage`, which readers do not see. When a checkpoint is complete, one member calls `publish` with its
    number, the sequence. Several threads and processes may call the methods at once. A sink can be pickled, because
    Spark's executors stage too.

    An `OSError` or a `RetriableError` means that the same call may succeed later, for example when the disk has space
    again. Any other error is final.
    """

    @property
    def place(self) -> str:
        """The unique name of the destination: equal for all members that write there, before and after `bind`.

        An example is `parquet:/data/out`. Humans read the name, so it contains no password. One of the members with
        this name publishes for all of them. The destination stores the name under which it was first written; `check`
        and `published` refuse another one.
        """

    def bind(self, region: str, region_id: UUID) -> Self:
        """Return a copy of this sink that is bound to a region.

        All other methods need it. The destination is not accessed.
        """

    def check(self, schema: pa.Schema) -> None:
        """Check that tables of this schema can be staged and published; create the destination if it is missing.

        Each member calls this before its first record, and may repeat it. The schema of the first call is stored, and
        holds for all later rows; only an option such as `evolve` adds columns to it.

        Raises:
            InvalidInputError: the schema can't be written, or does not fit the fixed one; the destination belongs to
                another region; it lacks what exactly-once writing needs.
            NotAuthorizedError: a permission is missing.
        """

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        """Stage a table durably under a key, so that readers do not see it; a table without rows too.

        A caller takes a new key for each call, also after an error. A store may still carry out a request whose answer
        was lost. It would put rows of an earlier call with the key in the place of later ones.

        Raises:
            InvalidInputError: the table does not fit the schema; or the key belongs to another region.
            OSError: nothing is staged that a reader could see. The key must not be published.
        """

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        """Publish the rows staged under these keys atomically, as one sequence (checkpoint).

        The rows are durable when the call returns. They appear once per region and sequence, even if the call is
        repeated, interrupted, or made by several processes at once. Sequences are published in order: the caller
        guarantees that all earlier ones are published.

        Raises:
            InvalidInputError: the destination has something else under this sequence's name.
            CorruptDataError: staged rows of a key are missing; nothing is published.
            OSError: the call failed this time. Readers see all rows of the sequence or none.
        """

    def empty(self, sequence: int, floor: int) -> None:
        """Remove all published rows, and record this sequence (checkpoint) as published.

        Earlier sequences can't be published any more.

        A region does so when it resets to its initial state. A sink that shows this number may contain rows
        nevertheless. The topic may be an older copy, and the number may come from a sequence that the copy lacks. The
        call may therefore skip its work only if the sink was emptied as this sequence, or shows a later one.

        Rows that were staged in epochs before `floor`, the minimum valid epoch, are discarded too. Those of later
        epochs stay, since members may be staging them now. The effect is durable when the call returns. The call is
        retried as `publish` is.

        Another caller may still be publishing an earlier sequence. Its call may then fail, or find the sequence done.

        Raises:
            InvalidInputError: the destination has something else under a sequence's name.
            OSError: the call failed this time. Some sequences may be removed, each of them completely.
        """

    def published(self) -> int:
        """Return the last sequence (checkpoint number) that is published or emptied, and durable; 0: none."""

    def adopt(self) -> str:
        """Store this sink's present name in the destination, after an operator has declared that the destination moved.

        A sink that also has `known` gets this call after the region's topic has the new name
        (`stored_name_and_sequence` explains it).

        Returns:
            The name that was stored before; empty: the region has written nothing there yet.

        Raises:
            InvalidInputError: the destination belongs to another region.
        """

    def sweep(self, keep: Keep) -> None:
        """Remove staged rows that will never be published, and temporary files of processes that crashed.

        Other processes may call any method meanwhile.
        """


def check_rows(sink: Sink, table: pa.Table) -> None:
    """Check each row of a table that is submitted to a sink, if the sink has a method `check_rows(table)`.

    Without that method a bad row is refused only when it is staged, together with all rows of its checkpoint.

    Raises:
        InvalidInputError: the sink refuses a row; the message has the position of the first one.
    """
    check = getattr(sink, "check_rows", None)
    if check is not None:
        check(table)


def publish_rows(sink: Sink, sequence: int, keys: Iterable[StagedKey], positions: Iterable[Position]) -> None:
    """Publish a checkpoint's rows; call `publish_with` instead of `publish` if the sink can store the end offsets too.

    Args:
        sink: the sink; its `publish_with(sequence, keys, positions)` must keep the promises of `publish`.
        sequence: the checkpoint's number.
        keys: the staged keys to publish.
        positions: the next offset of each partition of the region after this checkpoint.
    """
    publish: Callable[..., None] | None = getattr(sink, "publish_with", None)
    if publish is None:
        sink.publish(sequence, keys)
    else:
        publish(sequence, keys, positions)


def stored_name_and_sequence(sink: Sink) -> tuple[str, int] | None:
    """Return the sink's name as stored in its destination, and the last sequence (checkpoint) published there.

    None: the sink has no method `known()`, which returns them.

    An operator's `adopt` writes the new name into the region's topic first, then into the destination. With the stored
    name, an adoption that was interrupted in between can be repeated.
    """
    known: Callable[[], tuple[str, int]] | None = getattr(sink, "known", None)
    return None if known is None else known()


def name_of_sink(sink: Sink | None) -> str:
    """Return the unique name of a sink's destination, such as `parquet:/data/out`; empty if there is no sink.

    Raises:
        InvalidInputError: the sink has no name.
    """
    if sink is None:
        return ""
    if not (place := sink.place):
        raise InvalidInputError(f"{sink!r} does not name its place: members that write to one are told by it")
    return place
