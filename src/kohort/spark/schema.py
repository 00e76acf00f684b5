"""The columns of the source, under the names and types of Spark's Kafka source, and as Arrow types."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING

from kohort.columns.shapes import COLUMNS as RECORD_COLUMNS
from kohort.errors import InvalidInputError
from kohort.spark.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SPAN_COLUMNS = ("generation", "rangeStart", "rangeEnd")
"""Columns on request: the group's generation when the record's batch was planned, and the offsets that the batch covers
of the record's partition. With them a sink can decide which of two writers of one offset counts.
"""
BAD_VALUE = "badValue"
"""The column for the bytes of values that do not match the declared type, with onBadRecord=column."""

BAD_REASON = "badReason"
"""The column for the reason why a value is bad, on request."""

_SPARK = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp_ltz",
    "timestampType": "int",
    "headers": "array<struct<key: string, value: binary>>",
    "generation": "int",
    "rangeStart": "bigint",
    "rangeEnd": "bigint",
    BAD_VALUE: "binary",
    BAD_REASON: "string",
}


def column_names_of(options: SourceOptions) -> tuple[str, ...]:
    """Return the names of the columns that a read delivers, in order.

    Raises:
        InvalidInputError: a column is unknown or named twice.
    """
    bad = (BAD_VALUE,) if options.on_bad_record == "column" else ()
    reason = (BAD_REASON,) if bad else ()
    if options.columns is None:
        return (RECORD_COLUMNS if options.include_headers else RECORD_COLUMNS[:-1]) + bad
    spelling = {name.lower(): name for name in (*RECORD_COLUMNS, *SPAN_COLUMNS, *bad, *reason)}
    try:
        names = tuple(spelling[name.strip().lower()] for name in options.columns)
    except KeyError as error:
        raise InvalidInputError(f"columns: unknown column {error}; there are {', '.join(spelling.values())}") from None
    if len(set(names)) < len(names) or not names:
        raise InvalidInputError(f"columns must name each column once, not {','.join(options.columns)!r}")
    if options.value_format is not None and "value" not in names:
        raise InvalidInputError(f"valueFormat needs the column value, and columns is {','.join(options.columns)!r}")
    if options.include_headers and "headers" not in names:
        names = (*names, "headers")
    return names if BAD_VALUE in names else names + bad


def spark_schema(columns: tuple[str, ...], value: str = "binary") -> str:
    """Return the schema as Spark's DDL.

    Args:
        columns: names, in order.
        value: the type of the column value.
    """
    types = {**_SPARK, "value": value}
    return ", ".join(f"`{name}` {types[name]}" for name in columns)


@cache
def _arrow_types() -> dict[str, pa.DataType]:
    """Return the Arrow type of each column. It imports pyarrow itself, which the names of columns do not need."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.field("element", header, nullable=True)),
        "generation": pa.int32(),
        "rangeStart": pa.int64(),
        "rangeEnd": pa.int64(),
        BAD_VALUE: pa.binary(),
        BAD_REASON: pa.string(),
    }


@cache
def arrow_schema(columns: tuple[str, ...], value: pa.DataType | None = None) -> pa.Schema:
    """Return the schema of the record batches, exactly as Spark compares it.

    Args:
        columns: names, in order.
        value: the type of the column value; None: bytes.
    """
    import pyarrow as pa

    types = _arrow_types() if value is None else {**_arrow_types(), "value": value}
    return pa.schema([pa.field(name, types[name], nullable=True) for name in columns])


def refuse_other_schema(given: StructType, declared: pa.Schema, remedy: str, typed: Collection[str] = ()) -> None:
    """Refuse a schema from `schema(...)` that differs from the read's own: Spark would fail at the first record.

    Args:
        given: the schema that Spark passes.
        declared: the schema of the record batches.
        remedy: the text that says what to do instead.
        typed: columns whose type the user may choose.

    Raises:
        InvalidInputError: names, types, order or nullability differ.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    own = from_arrow_schema(declared)
    if _shape(given, typed) != _shape(own, typed):
        raise InvalidInputError(
            f"schema(...) says {given.simpleString()}, and the read gives {own.simpleString()}, each of which may be "
            f"null: leave schema(...) out{remedy}"
        )


def _shape(schema: StructType, typed: Collection[str]) -> list[tuple[object, ...]]:
    return [(field.name, None if field.name in typed else field.dataType, field.nullable) for field in schema.fields]
