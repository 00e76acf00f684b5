"""Hive's partitions of files: rows whose values are in the names of folders, such as `day=2026-11-26/country=AT`.

Values are written as Hive and Spark write them, and readers decode them again. Null is `__HIVE_DEFAULT_PARTITION__`.
An empty text has no name of its own, so it is null too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from kohort.errors import InvalidInputError
from kohort.region.sinks.rows import (
    check_column_names,
    refuse_out_of_range_times,
    refused_rows_error,
    row_indices_where,
)

NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
"""Characters that Hive's `FileUtils.escapePathName` escapes, and zero."""
PARTITIONS_MAX: Final = 10_000
"""Limit on the partitions of one submitted table: each costs a file with an fsync, or a request to the store.

In many topics a producer chooses the values by which rows are partitioned."""
SEGMENT_BYTES_MAX: Final = 255
"""Limit on `name=value`, escaped, in UTF-8: file systems accept no longer name."""
FOLDERS_BYTES_MAX: Final = 600
"""Limit on all folders of a row together. With a key and a prefix of `PREFIX_BYTES_MAX` an object's name stays below
S3's 1,024 bytes."""
PREFIX_BYTES_MAX: Final = 150


def parse_partition_by(partition_by: Sequence[str]) -> tuple[str, ...]:
    """Return the value of the option `partition_by` as a tuple of column names.

    Raises:
        InvalidInputError: it is a text and not a list, or names a column twice.
    """
    if isinstance(partition_by, str):
        raise InvalidInputError(f"partition_by is {partition_by!r}: give a list, partition_by=[{partition_by!r}]")
    if len(set(partition_by)) < len(partition_by):
        raise InvalidInputError(f"partition_by names a column twice: {', '.join(partition_by)}")
    return tuple(partition_by)


def check_partition_columns(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Check that these columns of a schema can be Hive partition columns.

    Raises:
        InvalidInputError: a column is missing, or has another type than text, integer, date or boolean; or its name
            can't be a folder's; or no column is left for the files.
    """
    if not partition_by:
        return
    check_column_names(schema, partition_by, "partition_by")
    for name in partition_by:
        kind = schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date(kind) or _is_text(kind)):
            raise InvalidInputError(
                f"partition_by names {name!r} of type {kind}: take a text, an integer, a date or a boolean"
            )
        if name.startswith(("_", ".")):
            raise InvalidInputError(f"partition_by names {name!r}: readers skip folders whose names begin like that")
        if len(_segment(name, NULL).encode()) > SEGMENT_BYTES_MAX:
            raise InvalidInputError(f"partition_by names {name[:40]!r}…, which is too long for the name of a folder")
    if len(partition_by) == len(schema):
        raise InvalidInputError("partition_by names all columns: one must be left for the files")


def without_partition_columns(schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
    """Return the schema without the partition columns: the columns that the Parquet files have."""
    return pa.schema([field for field in schema if field.name not in partition_by])


def split_by_partition(table: pa.Table, partition_by: Sequence[str]) -> dict[str, pa.Table]:
    """Split rows by their Hive partition: the result maps its folders, such as `day=2026-11-26`, to its rows.

    The rows keep their order, and lack the partition columns.
    """
    rest = table.drop_columns(list(partition_by))
    return {folder: rest.take(pa.array(rows, pa.int64())) for folder, rows in _rows_of(table, partition_by).items()}


def check_partition_values(table: pa.Table, partition_by: Sequence[str], sink_schema: pa.Schema) -> None:
    """Check that each row's values of the partition columns can be the names of folders.

    Raises:
        RowRefusedError: the table has more than 10,000 partitions; a value is too long, or a date beyond the years 1 to
            9999; or a text that readers take for null is in a column that may not be null.
    """
    refuse_out_of_range_times(table, partition_by)
    if partition_by and table.num_rows > PARTITIONS_MAX:
        partitions = list(_rows_of(table, partition_by).values())
        if beyond := sorted(row for rows in partitions[PARTITIONS_MAX:] for row in rows):
            why = f"A table has more than {PARTITIONS_MAX} partitions by {', '.join(partition_by)}"
            raise refused_rows_error(dict.fromkeys(beyond, why), table, partition_by[0])
    for name in partition_by:
        if _is_text(sink_schema.field(name).type):
            _refuse_texts(table, name, nullable=sink_schema.field(name).nullable)
    folders_bytes_max = sum(_segment_bytes_max(table, name) + 1 for name in partition_by) - 1
    if folders_bytes_max > FOLDERS_BYTES_MAX:
        folders = _rows_of(table, partition_by)
        bad = {row for folder, rows in folders.items() if len(folder.encode()) > FOLDERS_BYTES_MAX for row in rows}
        if bad:
            why = f"The folders of {', '.join(partition_by)} would have more than {FOLDERS_BYTES_MAX} bytes"
            raise refused_rows_error(dict.fromkeys(sorted(bad), why), table, partition_by[0])


def _refuse_texts(table: pa.Table, name: str, *, nullable: bool) -> None:
    column = table.column(name)
    reasons: dict[int, str] = {}
    if not nullable:
        nameless = pc.is_in(column, pa.array(["", NULL], column.type))
        why = f"{name!r} is empty or {NULL}, which readers of partitions take for null"
        reasons = dict.fromkeys(row_indices_where(nameless), why)
    if _segment_bytes_max(table, name) > SEGMENT_BYTES_MAX:
        unique = [value for value in pc.unique(column).to_pylist() if value is not None]
        long = [value for value in unique if len(_segment(name, value).encode()) > SEGMENT_BYTES_MAX]
        if long:
            why = f"{name!r} is too long for the name of a folder ({SEGMENT_BYTES_MAX} bytes with its escapes)"
            reasons |= dict.fromkeys(row_indices_where(pc.is_in(column, pa.array(long, column.type))), why)
    if reasons:
        raise refused_rows_error(dict(sorted(reasons.items())), table, name)


def _segment_bytes_max(table: pa.Table, name: str) -> int:
    """Return an upper bound of the bytes of `name=value`, without a look at each value: escapes at most treble a text.

    Values of other types are shorter than the text for null.
    """
    column, longest = table.column(name), 0
    if _is_text(column.type) and len(column):
        longest = 3 * (pc.max(pc.binary_length(column)).as_py() or 0)
    return len(f"{_escape(name)}=".encode()) + max(len(NULL), longest)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _rows_of(table: pa.Table, partition_by: Sequence[str]) -> dict[str, list[int]]:
    """Return the indices of the rows of each Hive partition, by the partition's folders such as `day=2026-11-26`."""
    at = "".join(table.column_names) + "_"
    numbered = table.select(partition_by).append_column(at, pa.array(range(table.num_rows), pa.int64()))
    found: dict[str, list[int]] = {}
    for row in numbered.group_by(list(partition_by)).aggregate([(at, "list")]).to_pylist():
        folder = "/".join(_segment(name, _value_text(row[name])) for name in partition_by)
        found.setdefault(folder, []).extend(row[f"{at}_list"])  # null and an empty text have one folder
    return {folder: sorted(rows) for folder, rows in sorted(found.items())}


def _value_text(value: object) -> str:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else str(value)


def _segment(name: str, value: str) -> str:
    return f"{_escape(name)}={_escape(value) or NULL}"


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
