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


def in_column_order(table: pa.Table, schema: pa.Schema) -> pa.Table | None:
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


def _fits(given: pa.Field[Any], kept: pa.Field[Any]) -> bool:
    return with_types_filled(given.type, kept.type).equals(kept.type) and (kept.nullable or not given.nullable)


def typed_schema(given: pa.Schema, kept: Callable[[], pa.Schema | None], evolve: str = "refuse") -> pa.Schema:
    """Replace Arrow's null type in a schema by the types that the sink's columns have.

    A table's column has the null type if it holds only nulls. With `evolve="add"` a new column of that type is left
    out: a later table may give it a type.

    Args:
        given: the schema of a table.
        kept: returns the sink's columns; None: no table has fixed them yet.
        evolve: add or refuse.

    Raises:
        InvalidInputError: a column has the null type, and the sink does not know its type.
    """
    if any(has_null_type(field.type) for field in given):
        if (there := kept()) is not None:
            given = filled_schema(given, there)
            if evolve == "add":
                given = pa.schema([field for field in given if not is_empty(field)])
        refuse_untyped(given)
    return given


def filled_schema(given: pa.Schema, kept: pa.Schema) -> pa.Schema:
    """Return the schema with the sink's types in place of Arrow's null type; other columns are unchanged."""
    return pa.schema(
        [
            field.with_type(with_types_filled(field.type, kept.field(field.name).type))
            if kept.names.count(field.name) == 1 and given.names.count(field.name) == 1
            else field
            for field in given
        ]
    )


def with_types_filled(given: pa.DataType, kept: pa.DataType) -> pa.DataType:
    """Return the sink's type if the given one differs from it only by Arrow's null type, else the given one.

    Null types in lists and structs count too.
    """
    if pa.types.is_null(given):
        return kept
    if isinstance(given, pa.ListType) and isinstance(kept, pa.ListType):
        return kept if with_types_filled(given.value_type, kept.value_type).equals(kept.value_type) else given
    if isinstance(given, pa.StructType) and isinstance(kept, pa.StructType):
        names = [field.name for field in kept]
        if [field.name for field in given] == names and all(
            with_types_filled(given.field(name).type, kept.field(name).type).equals(kept.field(name).type)
            for name in names
        ):
            return kept
    return given


def is_empty(field: pa.Field[Any]) -> bool:
    """Return whether a column has Arrow's null type, so that a table holds only nulls there."""
    return pa.types.is_null(field.type) and field.nullable


def has_null_type(kind: pa.DataType) -> bool:
    """Return whether a type is Arrow's null type, or is a list or struct that contains it."""
    if isinstance(kind, pa.ListType):
        return has_null_type(kind.value_type)
    if isinstance(kind, pa.StructType):
        return any(has_null_type(field.type) for field in kind)
    return pa.types.is_null(kind)


def refuse_untyped(schema: pa.Schema) -> None:
    """Check that no column has Arrow's null type: the first table that a sink gets fixes the types of its columns.

    Raises:
        InvalidInputError: a column has it, since it holds only nulls.
    """
    names = [repr(field.name) for field in schema if has_null_type(field.type)]
    if names:
        raise InvalidInputError(
            f"Nothing says the type of {', '.join(names)}: the first table fixes the types, and has no value there. "
            "Give them one, as table.cast(schema) or pa.Table.from_pylist(rows, schema=schema); later tables may leave "
            "them empty"
        )
