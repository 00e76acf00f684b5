"""Conversion of tables to a sink's schema: columns in another order, and columns that hold only nulls.

A column of nulls has no type: it is `pa.null()`, also within lists and structs, as `Table.from_pylist` creates it.
Such a column gets the sink's type. If no table has fixed the type yet, it is unknown, and the column is refused: a
guess would be fixed for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from kohort.errors import InvalidInputError


def reorder_columns(table: pa.Table, schema: pa.Schema) -> pa.Table | None:
    """Return the table with its columns reordered to a schema; None: it has other columns, or columns of other types.

    Args:
        table: the table. A column that holds only nulls may have Arrow's null type: it is cast to the schema's type.
        schema: the sink's schema.
    """
    if table.schema.equals(schema):
        return table
    if sorted(table.column_names) != sorted(schema.names) or len(set(schema.names)) < len(schema.names):
        return None
    fitting = all(_fits(table.schema.field(field.name), field) for field in schema)
    return table.select(schema.names).cast(schema) if fitting else None


def _fits(table_field: pa.Field[Any], sink_field: pa.Field[Any]) -> bool:
    return fill_nested_null_types(table_field.type, sink_field.type).equals(sink_field.type) and (
        sink_field.nullable or not table_field.nullable
    )


def resolve_null_types(
    table_schema: pa.Schema, sink_schema_of: Callable[[], pa.Schema | None], evolve: str = "refuse"
) -> pa.Schema:
    """Replace Arrow's null type in a schema by the types that the sink's columns have.

    A table's column has the null type if it holds only nulls. With `evolve="add"` a new column of that type is left
    out: a later table may give it a type.

    Args:
        table_schema: the schema of a table.
        sink_schema_of: returns the sink's columns; None: no table has fixed them yet.
        evolve: add or refuse.

    Raises:
        InvalidInputError: a column has the null type, and the sink does not know its type.
    """
    if any(contains_null_type(field.type) for field in table_schema):
        if (there := sink_schema_of()) is not None:
            table_schema = fill_null_types(table_schema, there)
            if evolve == "add":
                table_schema = pa.schema([field for field in table_schema if not is_empty(field)])
        refuse_null_types(table_schema)
    return table_schema


def fill_null_types(table_schema: pa.Schema, sink_schema: pa.Schema) -> pa.Schema:
    """Return the schema with the sink's types in place of Arrow's null type; other columns are unchanged."""
    return pa.schema(
        [
            field.with_type(fill_nested_null_types(field.type, sink_schema.field(field.name).type))
            if sink_schema.names.count(field.name) == 1 and table_schema.names.count(field.name) == 1
            else field
            for field in table_schema
        ]
    )


def fill_nested_null_types(table_type: pa.DataType, sink_type: pa.DataType) -> pa.DataType:
    """Return the sink's type if the given one differs from it only by Arrow's null type, else the given one.

    Null types in lists and structs count too.
    """
    if pa.types.is_null(table_type):
        return sink_type
    if isinstance(table_type, pa.ListType) and isinstance(sink_type, pa.ListType):
        return (
            sink_type
            if fill_nested_null_types(table_type.value_type, sink_type.value_type).equals(sink_type.value_type)
            else table_type
        )
    if isinstance(table_type, pa.StructType) and isinstance(sink_type, pa.StructType):
        names = [field.name for field in sink_type]
        if [field.name for field in table_type] == names and all(
            fill_nested_null_types(table_type.field(name).type, sink_type.field(name).type).equals(
                sink_type.field(name).type
            )
            for name in names
        ):
            return sink_type
    return table_type


def is_empty(field: pa.Field[Any]) -> bool:
    """Return whether a column has Arrow's null type, so that a table holds only nulls there."""
    return pa.types.is_null(field.type) and field.nullable


def contains_null_type(kind: pa.DataType) -> bool:
    """Return whether a type is Arrow's null type, or is a list or struct that contains it."""
    if isinstance(kind, pa.ListType):
        return contains_null_type(kind.value_type)
    if isinstance(kind, pa.StructType):
        return any(contains_null_type(field.type) for field in kind)
    return pa.types.is_null(kind)


def refuse_null_types(schema: pa.Schema) -> None:
    """Check that no column has Arrow's null type: the first table that a sink gets fixes the types of its columns.

    Raises:
        InvalidInputError: a column has it, since it holds only nulls.
    """
    names = [repr(field.name) for field in schema if contains_null_type(field.type)]
    if names:
        raise InvalidInputError(
            f"Nothing says the type of {', '.join(names)}: the first table fixes the types, and has no value there. "
            "Give them one, as table.cast(schema) or pa.Table.from_pylist(rows, schema=schema); later tables may leave "
            "them empty"
        )
