"""The result of a decode: one block of columns, seen as an Arrow batch or as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kohort.columns.record import Record
from kohort.columns.shapes import BATCH_BYTES_NAME, Damage, DamageKind, DecodeOptions, RecordSet, RowRange
from kohort.errors import CorruptDataError, ErrorCode

if TYPE_CHECKING:
    import pyarrow as pa

_DAMAGE_TEXT = {
    DamageKind.CRC: "its checksum does not fit its bytes",
    DamageKind.HEADER: "its header contradicts itself",
    DamageKind.OLD_FORMAT: "it is a message set of format 0 or 1, which brokers before 0.11 wrote",
    DamageKind.CODEC: "its compressed records do not decompress",
    DamageKind.RECORD: "its records run past its end, or it past theirs, or their offsets do not rise",
}


class Block(Protocol):
    """The columns of one decode, independent of how they are stored."""

    @property
    def nbytes(self) -> int:
        """The memory of the columns in bytes, without the surplus of rounding."""

    def arrow_arrays(self, options: DecodeOptions) -> list[Any]:
        """Return one pyarrow.Array per column of `options.columns`, over memory that the block owns."""

    def records(self, start: int, stop: int) -> list[Record]:
        """Return the records of rows start to stop; fields whose column was not decoded are None, -1 or empty."""

    def iter_records(self, start: int, stop: int) -> Iterator[Record]:
        """Yield the records of rows start to stop, each made only when the loop reaches it."""

    def offset(self, row: int) -> int:
        """Return the offset of a row."""


class Decoded:
    """Columns of all record sets of one decode, in the order of the record sets.

    Attributes:
        sets: The record sets as given; without their bytes after `release_fetched_bytes`.
        options: The options as given.
        ranges: The result of each record set, in their order.
        num_rows: Rows altogether.
    """

    __slots__ = ("_batch", "_block", "num_rows", "options", "ranges", "sets")

    def __init__(self, sets: Sequence[RecordSet], options: DecodeOptions, ranges: list[RowRange], block: Block) -> None:
        self.sets = sets
        self.options = options
        self.ranges = ranges
        self.num_rows = ranges[-1].stop if ranges else 0
        self._block = block
        self._batch: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return self.num_rows

    @property
    def nbytes(self) -> int:
        """The memory of the decoded columns in bytes."""
        return self._block.nbytes

    @property
    def finished(self) -> bool:
        """Whether the decode reached the end; False when a limit ended it early, and `remaining()` is the rest."""
        return all(part.finished for part in self.ranges)

    def remaining(self) -> list[RecordSet]:
        """Return the record sets that a limit left unfinished, each from where the decode stopped."""
        return [
            RecordSet(given.topic, given.partition, given.buffer, part.next_offset, given.end_offset, given.aborted)
            for given, part in zip(self.sets, self.ranges, strict=True)
            if not part.finished
        ]

    def release_fetched_bytes(self) -> None:
        """Release the fetched bytes, which a finished decode no longer needs: the columns hold copies."""
        if self.finished:
            self.sets = [RecordSet(given.topic, given.partition, b"", given.first_offset) for given in self.sets]

    def to_arrow(self, start: int = 0, stop: int | None = None) -> pa.RecordBatch:
        """Return rows start to stop (exclusive; None: the last) as an Arrow batch, without copying."""
        import pyarrow as pa

        from kohort.columns.arrow import schema

        if self._batch is None:
            arrays = self._block.arrow_arrays(self.options)
            self._batch = pa.RecordBatch.from_arrays(arrays, schema=schema(self.options))
        end = self.num_rows if stop is None else min(stop, self.num_rows)
        if start == 0 and end == self.num_rows:
            return self._batch
        return self._batch.slice(start, max(0, end - start))

    def records(self, start: int = 0, stop: int | None = None) -> list[Record]:
        """Return rows start to stop (exclusive; None: the last) as records, which own their bytes."""
        end = self.num_rows if stop is None else min(stop, self.num_rows)
        return self._block.records(start, end) if start < end else []

    def iter_records(self, start: int = 0, stop: int | None = None) -> Iterator[Record]:
        """Yield the records of rows start to stop, each made only when the loop reaches it.

        A loop that keeps none of them runs in a few kilobytes: 1 KiB takes half the time of `records`.
        """
        end = self.num_rows if stop is None else min(stop, self.num_rows)
        return self._block.iter_records(start, end) if start < end else iter(())

    def next_offset_at(self, index: int, row: int) -> int:
        """Return the offset to continue from once the rows of record set `index` below `row` are consumed.

        Args:
            index: Index of the record set.
            row: From the range's start to its stop.
        """
        part = self.ranges[index]
        if row >= part.stop:
            return part.next_offset
        if row <= part.start:
            return self.sets[index].first_offset
        return self._block.offset(row - 1) + 1

    def damage_of(self, index: int) -> CorruptDataError | None:
        """Return the exception to raise once the rows before a record set's damage are consumed; None: no damage."""
        damage = self.ranges[index].damage
        return None if damage is None else damage_error(self.sets[index], damage, self.options)


def damage_error(given: RecordSet, damage: Damage, options: DecodeOptions) -> CorruptDataError:
    """Return an exception that names the partition, the reason and the offset after the damage."""
    old = damage.kind is DamageKind.OLD_FORMAT
    if damage.kind is DamageKind.TOO_LARGE:
        reason = f"it decompresses to more than {options.max_batch_bytes} bytes: raise {BATCH_BYTES_NAME}, or"
    else:
        reason = f"{_DAMAGE_TEXT[damage.kind]};"
    return CorruptDataError(
        f"{given.topic}-{given.partition}: the batch at offset {damage.offset} can't be read: "
        f"{reason} seek to {damage.skip_offset} to step over it",
        code=ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT if old else ErrorCode.CORRUPT_MESSAGE,
    )
