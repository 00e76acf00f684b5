"""`valueFormat=string`: values that are UTF-8."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from kohort.spark.values.columns import Column
from kohort.spark.values.isolate import Parts, convert_in_parts


class TextDecoder:
    """Values as strings; a value that is not UTF-8 is bad."""

    type = pa.string()

    def decode(self, values: Column) -> Parts:
        """Every value, checked.

        Args:
            values: binary.
        """
        parts = Parts(self.type, len(values))
        convert_in_parts(values, range(len(values)), parts, lambda some: some.cast(pa.string()), _one_by_one)
        return parts


def _one_by_one(values: Column, rows: Sequence[int], parts: Parts) -> None:
    for value, row in zip(values.to_pylist(), rows, strict=True):
        text: str | None = None
        try:
            text = None if value is None else value.decode("utf-8")
        except UnicodeDecodeError as error:
            parts.reasons[row] = f"not UTF-8 at byte {error.start}"
        parts.add([row], pa.array([text], pa.string()))
