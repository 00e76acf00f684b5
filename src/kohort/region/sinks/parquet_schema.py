"""Schemas of Parquet folders: which are supported, and which fit one another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from kohort.errors import InvalidInputError

PARTITION: Final = "sequence"
"""Name of the column that readers of a partitioned folder derive from the folders' names."""


def check_parquet_columns(schema: pa.Schema) -> None:
    """Check that Parquet files can store these columns, so that readers get them back with the same types.

    Raises:
        InvalidInputError: a column is not supported; the message names it.
    """
    if not schema.names:
        raise InvalidInputError("A table without columns has no rows for Parquet's readers: give it a column")
    twice = [name for name, count in Counter(name.lower() for name in schema.names).items() if count > 1]
    if twice:
        raise InvalidInputError(f"Columns of one name (Spark does not tell case apart): {_listed(twice)}: rename them")
    if PARTITION in (name.lower() for name in schema.names):
        raise InvalidInputError(
            f"Readers make the column {PARTITION!r} of the folders' names: give the column of the table another name"
        )
    refused = [reason for field in schema if (reason := _refusal(field))]
    if refused:
        raise InvalidInputError(f"Parquet does not take {'; '.join(refused)}: cast these columns")


def _refusal(field: pa.Field[pa.DataType]) -> str:
    if refusal := unsupported_column_reason(field):
        return refusal
    schema = pa.schema([field])
    try:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_batches([], schema), sink)  # not `empty_table`, which imports pandas
        back = pq.read_schema(pa.BufferReader(sink.getvalue())).field(0)
    except (pa.ArrowException, NotImplementedError) as error:
        return f"column {field.name!r} of type {field.type} ({error})"
    if back.type != field.type:
        return f"column {field.name!r} of type {field.type} ({other_type_text(back.type)})"
    return ""


def unsupported_column_reason(field: pa.Field[pa.DataType]) -> str:
    """Return why no file format of the sinks can store a column; empty: they can, as far as is known here.

    The libraries accept these types in a schema, and fail at the first row, or with an internal error.
    """
    why = "a zero character in its name" if "\0" in field.name else _unsupported_part(field.type)
    return f"column {field.name!r} of type {field.type} ({why})" if why else ""


def other_type_text(kind: pa.DataType) -> str:
    """Return the text of an error for a column that would be read back as another type (`kind`)."""
    return f"it would come back as {kind}"


def _unsupported_part(kind: Any) -> str:  # the stubs know types one by one
    """Return which part of an Arrow type no file format can store, for an error's text; empty: there is none."""
    if isinstance(kind, pa.DictionaryType):
        return _unsupported_part(kind.value_type)
    if pa.types.is_decimal(kind) and kind.scale < 0:
        return "a decimal of a negative scale"
    if isinstance(kind, pa.StructType):
        if not kind.num_fields:
            return "a struct without fields"
        if len({field.name.lower() for field in kind}) < kind.num_fields:
            return "a struct with fields of one name; case does not tell them apart"
        if any("\0" in field.name for field in kind):
            return "a field with a zero character in its name"
    parts = (_unsupported_part(kind.field(number).type) for number in range(kind.num_fields))
    return next((why for why in parts if why), "")


def schema_differences(sink_schema: pa.Schema, table_schema: pa.Schema) -> list[str]:
    """Return why tables of one schema (`table_schema`) can't be rows of another (`sink_schema`); empty: they can.

    The order of columns and metadata do not matter.
    """
    found = []
    for name in sink_schema.names:
        if name not in table_schema.names:
            found.append(f"{name!r} is missing ({_said(sink_schema.field(name))} before)")
        elif table_schema.names.count(name) > 1:
            found.append(f"{name!r} is there twice")
        elif sink_schema.field(name).type != table_schema.field(name).type:
            found.append(f"{name!r} is {table_schema.field(name).type} ({sink_schema.field(name).type} before)")
        elif table_schema.field(name).nullable and not sink_schema.field(name).nullable:
            found.append(f"{name!r} may be null now, and could not before")
    found += [f"{name!r} is new" for name in table_schema.names if name not in sink_schema.names]
    return found


def to_sink_schema(table: pa.Table, sink_schema: pa.Schema) -> pa.Table:
    """Return the table with the sink's columns in their order and types, without metadata. Its schema must fit."""
    columns = [table.column(field.name) for field in sink_schema]
    filled = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(columns, sink_schema, strict=True)
    ]
    return pa.Table.from_arrays(filled, schema=sink_schema)


def _said(field: pa.Field[pa.DataType]) -> str:
    return f"{field.type}" if field.nullable else f"{field.type} not null"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
