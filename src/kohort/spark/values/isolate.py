"""The search for the few values that keep a chunk from being converted as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa

from kohort.spark.values.types import Column, Kind

REFUSALS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError, OverflowError)
"""Errors of a conversion about values that it can't take; ArrowMemoryError and KeyboardInterrupt are not among them."""
VALUE_BYTES = 32 * 1024 * 1024
"""Size of the largest value that is parsed: as Python objects a value may take about two hundred times its size."""
ONE_BY_ONE_MAX = 128
"""Values that are converted one by one instead of being split again, which costs as much."""
PIECES = 10
"""Pieces into which an unconvertible chunk is split; each level converts the good values once more."""


def check_value_size(value: bytes) -> None:
    """Check the size of a value before it is parsed.

    Raises:
        ValueError: the value is too large.
    """
    if len(value) > VALUE_BYTES:
        raise ValueError(f"{len(value)} bytes are more than the {VALUE_BYTES} that are parsed")


@dataclass(slots=True)
class ConvertedParts:
    """The converted values of a column in several Arrow arrays, each with its row numbers; `to_array` joins them.

    Attributes:
        kind: the type.
        length: the number of rows.
        arrays: the arrays.
        rows: the row numbers of each array.
        reasons: why a row is bad, by row; bad rows are null.
    """

    kind: Kind
    length: int
    arrays: list[Column] = field(default_factory=list)
    rows: list[Sequence[int]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)

    def add_array(self, rows: Sequence[int], array: Column) -> None:
        """Add an array of converted values, with their row numbers.

        Args:
            rows: the row numbers.
            array: the rows' values.
        """
        if len(rows) != len(array):
            raise AssertionError(f"{len(array)} values for {len(rows)} rows")
        self.rows.append(rows)
        self.arrays.append(array)

    def add_converted(
        self, found: Sequence[Any], rows: Sequence[int], build: Callable[[Sequence[Any]], Column]
    ) -> None:
        """Add Python values as an Arrow array; values that do not fit are found by bisection, and their rows are bad.

        Args:
            found: the values.
            rows: their row numbers.
            build: makes the array; raises one of `REFUSALS` if it can't take a value.
        """
        try:
            self.add_array(rows, build(found))
        except REFUSALS as error:
            if len(found) > 1:
                half = len(found) // 2
                self.add_converted(found[:half], rows[:half], build)
                self.add_converted(found[half:], rows[half:], build)
            else:
                self.reasons[rows[0]] = str(error)
                self.add_array(rows, pa.nulls(1, self.kind))

    def to_array(self) -> Column:
        """Return all parts as one array; rows that were never added are null."""
        if len(self.arrays) == 1 and len(self.arrays[0]) == self.length:
            return self.arrays[0]
        if not self.arrays:
            return pa.nulls(self.length, self.kind)
        joined = pa.concat_arrays(self.arrays)
        indices: list[int | None] = [None] * self.length
        for at, row in enumerate(chain.from_iterable(self.rows)):
            indices[row] = at
        return joined.take(pa.array(indices, pa.int64()))


Convert: TypeAlias = Callable[[Column], Column]
OneByOne: TypeAlias = Callable[[Column, Sequence[int], ConvertedParts], None]


def convert_in_parts(
    values: Column, rows: Sequence[int], parts: ConvertedParts, convert: Convert, one_by_one: OneByOne
) -> None:
    """Convert a whole array at once; if that fails, convert smaller and smaller pieces, at last single values.

    Args:
        values: the values.
        rows: their row numbers.
        parts: collects the results.
        convert: converts an array; raises one of `REFUSALS` if it can't convert a value.
        one_by_one: converts a small piece value by value, given values, rows and parts.
    """
    try:
        parts.add_array(rows, convert(values))
    except REFUSALS:
        if len(values) <= ONE_BY_ONE_MAX:
            one_by_one(values, rows, parts)
            return
        size = -(-len(values) // PIECES)
        for start in range(0, len(values), size):
            piece = values.slice(start, size)
            convert_in_parts(piece, rows[start : start + size], parts, convert, one_by_one)
