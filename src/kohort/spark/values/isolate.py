"""Finding the few values that keep a chunk from being converted as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

import pyarrow as pa

from kohort.spark.values.columns import Column, Kind

REFUSALS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError, OverflowError)
"""What a conversion raises for values that it can't take. ArrowMemoryError and KeyboardInterrupt are none of them."""
VALUE_BYTES = 32 * 1024 * 1024
"""The largest value that is parsed: as Python's objects one may take up to about two hundred times its size."""
FEW = 128
"""Values that are looked at one by one rather than cut again: to convert so few as a whole costs as much."""
CUTS = 10
"""Pieces of what can't be converted as a whole: each level converts the good ones once more."""


def check_size(value: bytes) -> None:
    """Look at the size before anything is made of a value.

    Raises:
        ValueError: it is larger than what is parsed.
    """
    if len(value) > VALUE_BYTES:
        raise ValueError(f"{len(value)} bytes are more than the {VALUE_BYTES} that are parsed")


@dataclass(slots=True)
class Parts:
    """Arrays of one type, and which rows they are; together they make one array of `length` rows.

    Attributes:
        reasons: why a row is bad, by row; bad rows are null.
    """

    kind: Kind
    length: int
    arrays: list[Column] = field(default_factory=list)
    rows: list[Sequence[int]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)

    def add(self, rows: Sequence[int], array: Column) -> None:
        """Add rows that are done.

        Args:
            rows: which.
            array: what they are, of the same length.
        """
        if len(rows) != len(array):
            raise AssertionError(f"{len(array)} values for {len(rows)} rows")
        self.rows.append(rows)
        self.arrays.append(array)

    def joined(self) -> Column:
        """The array; rows that were never added are null."""
        if len(self.arrays) == 1 and len(self.arrays[0]) == self.length:
            return self.arrays[0]
        if not self.arrays:
            return pa.nulls(self.length, self.kind)
        whole = pa.concat_arrays(self.arrays)
        places: list[int | None] = [None] * self.length
        for at, row in enumerate(chain.from_iterable(self.rows)):
            places[row] = at
        return whole.take(pa.array(places, pa.int64()))


Convert: TypeAlias = Callable[[Column], Column]
OneByOne: TypeAlias = Callable[[Column, Sequence[int], Parts], None]


def convert_in_parts(values: Column, rows: Sequence[int], parts: Parts, convert: Convert, one_by_one: OneByOne) -> None:
    """Convert values as a whole, or in pieces until what can't be converted stands alone.

    Args:
        values: to convert.
        rows: which they are.
        parts: takes the results.
        convert: a whole array; raises one of `REFUSALS` when it can't take some value.
        one_by_one: takes what is left: values, rows, parts.
    """
    try:
        parts.add(rows, convert(values))
    except REFUSALS:
        if len(values) <= FEW:
            one_by_one(values, rows, parts)
            return
        size = -(-len(values) // CUTS)
        for start in range(0, len(values), size):
            piece = values.slice(start, size)
            convert_in_parts(piece, rows[start : start + size], parts, convert, one_by_one)
