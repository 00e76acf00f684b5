"""The result of `poll`: records, created lazily from the decoded columns."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from kohort.client.consumer.fetch_buffer import DecodedRows, RowSlice
from kohort.columns import Record
from kohort.ids import TopicPartition
from kohort.settings.arguments import checks_arguments

if TYPE_CHECKING:
    import pyarrow as pa


@checks_arguments
class Records:
    """The records of one poll, grouped by partition, in the order of their offsets within each.

    Iterating creates each `Record` when the loop reaches it; `to_arrow` creates none.
    """

    __slots__ = ("_key", "_slices", "_value")

    def __init__(
        self,
        slices: Sequence[RowSlice] = (),
        key_deserializer: Callable[[bytes], Any] | None = None,
        value_deserializer: Callable[[bytes], Any] | None = None,
    ) -> None:
        self._slices = slices
        self._key = key_deserializer
        self._value = value_deserializer

    def __len__(self) -> int:
        return sum(map(len, self._slices))

    def __bool__(self) -> bool:
        return any(map(len, self._slices))

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(map(self._iterate, self._slices))

    @overload
    def __getitem__(self, index: SupportsIndex) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Record | list[Record]:
        """Return the record at a place, or a list of those in a slice. Each call creates them anew."""
        if isinstance(index, slice):
            return list(self)[index]
        place = operator.index(index)
        left = place + len(self) if place < 0 else place
        for part in self._slices:
            if 0 <= left < len(part):
                start = part.start + left
                return next(self._iterate(replace(part, start=start, stop=start + 1)))
            left -= len(part)
        raise IndexError(f"there is no record {place} among {len(self)}")

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that have records here."""
        return list(dict.fromkeys(part.partition for part in self._slices))

    def records(self, partition: TopicPartition) -> list[Record]:
        """Return the records of one partition."""
        mine = [part for part in self._slices if part.partition == partition]
        return [record for part in mine for record in self._iterate(part)]

    def by_partition(self) -> dict[TopicPartition, list[Record]]:
        """Return all records, by partition."""
        return {partition: self.records(partition) for partition in self.partitions()}

    def to_arrow(self) -> pa.RecordBatch | None:
        """Return these records as one Arrow batch; None if there are none. Deserializers are not applied."""
        return slices_to_arrow(self._slices)

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{partition}: {sum(len(s) for s in self._slices if s.partition == partition)}"
            for partition in self.partitions()
        )
        return f"Records({parts})"

    def _iterate(self, part: RowSlice) -> Iterator[Record]:
        records = part.block.iter_records(part.start, part.stop)
        return records if self._key is None and self._value is None else self._deserialize(records)

    def _deserialize(self, records: Iterator[Record]) -> Iterator[Record]:
        for record in records:
            apply_deserializers(record, self._key, self._value)
            yield record


def apply_deserializers(
    record: Record, key: Callable[[bytes], Any] | None, value: Callable[[bytes], Any] | None
) -> None:
    """Deserialize key and value in place; None stays None. An error has a note that names the record."""
    part = "key"
    try:
        if key is not None and record.key is not None:
            record.key = key(record.key)
        part = "value"
        if value is not None and record.value is not None:
            record.value = value(record.value)
    except Exception as error:
        error.add_note(
            f"The {part} of the record at offset {record.offset} of {record.topic}-{record.partition} can't be "
            "deserialized. To pass the record over, seek to the next offset."
        )
        raise


def slices_to_arrow(slices: Sequence[RowSlice]) -> pa.RecordBatch | None:
    """Join all slices into one Arrow batch, without a copy if they are adjacent in one block."""
    runs: list[tuple[DecodedRows, int, int]] = []
    for part in sorted(slices, key=lambda part: part.start) if _one_block(slices) else slices:
        if runs and runs[-1][0] is part.block and runs[-1][2] == part.start:
            runs[-1] = (part.block, runs[-1][1], part.stop)
        elif len(part):
            runs.append((part.block, part.start, part.stop))
    batches = [block.to_arrow(start, stop) for block, start, stop in runs]
    if len(batches) <= 1:
        return batches[0] if batches else None
    import pyarrow as pa

    joined: pa.RecordBatch = pa.concat_batches(batches)  # type: ignore[attr-defined]
    return joined


def _one_block(slices: Sequence[RowSlice]) -> bool:
    return all(part.block is slices[0].block for part in slices)
