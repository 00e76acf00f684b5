"""The types of values: Spark's, their text in DDL, and the Arrow types that Spark compares batches with."""

from __future__ import annotations

from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute
import pyarrow.json
from pyspark.sql import types as spark

from kohort.errors import InvalidInputError

# -- Type aliases for Arrow's arrays and types of any kind, and for functions that take them.
#
# The stubs of pyarrow have a class for each type, with only that type's attributes. Code that works with any type, and
# branches on what it is, can use none of them.

Column: TypeAlias = Any
"""A pyarrow.Array."""
Kind: TypeAlias = Any
"""A pyarrow.DataType."""

compute: Any = pyarrow.compute
"""The module pyarrow.compute; the stubs accept only strings or scalars for most of its functions."""
read_json: Any = pyarrow.json.read_json
"""Arrow's JSON reader; the stubs accept only paths and files."""

# -- Arrow types of Spark types

_PLAIN: dict[type[spark.DataType], Kind] = {
    spark.ByteType: pa.int8(),
    spark.ShortType: pa.int16(),
    spark.IntegerType: pa.int32(),
    spark.LongType: pa.int64(),
    spark.FloatType: pa.float32(),
    spark.DoubleType: pa.float64(),
    spark.BooleanType: pa.bool_(),
    spark.StringType: pa.string(),
    spark.BinaryType: pa.binary(),
    spark.DateType: pa.date32(),
    spark.TimestampType: pa.timestamp("us", tz="UTC"),
    spark.TimestampNTZType: pa.timestamp("us"),
}


def arrow_type(kind: spark.DataType, path: str = "value", *, of_protobuf: bool = False) -> Kind:
    """Return the Arrow type of a Spark type.

    Args:
        kind: the type of a value or a part of one.
        path: the name of the part in errors.
        of_protobuf: whether it is a type of Protobuf, which has maps with other keys, and durations.

    Raises:
        InvalidInputError: a type that values can't have, a map whose keys are not strings, or a repeated field name.
    """
    plain = _PLAIN.get(type(kind))
    if plain is not None:
        return plain
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if of_protobuf and isinstance(kind, spark.DayTimeIntervalType):
        return pa.duration("us")
    if isinstance(kind, spark.ArrayType):
        element = arrow_type(kind.elementType, f"{path}[]", of_protobuf=of_protobuf)
        return pa.list_(pa.field("element", element, nullable=kind.containsNull))
    if isinstance(kind, spark.MapType):
        if not isinstance(kind.keyType, spark.StringType) and not of_protobuf:
            raise InvalidInputError(
                f"valueSchema: the map {path} has keys of type {kind.keyType.simpleString()}; keys must be STRING"
            )
        key = arrow_type(kind.keyType, f"{path}{{}}", of_protobuf=of_protobuf)
        value = arrow_type(kind.valueType, f"{path}{{}}", of_protobuf=of_protobuf)
        return pa.map_(key, pa.field("value", value, nullable=kind.valueContainsNull))
    if isinstance(kind, spark.StructType):
        names = kind.fieldNames()
        if not names or len(set(names)) < len(names):
            raise InvalidInputError(f"valueSchema: the struct {path} must have fields, and each name once")
        types = [arrow_type(f.dataType, f"{path}.{f.name}", of_protobuf=of_protobuf) for f in kind.fields]
        parts = zip(kind.fields, types, strict=True)
        return pa.struct([pa.field(f.name, made, nullable=f.nullable) for f, made in parts])
    raise InvalidInputError(
        f"valueSchema: {path} can't be {kind.simpleString()}; there are TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, "
        "DECIMAL, BOOLEAN, STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ, ARRAY, MAP and STRUCT"
    )


def ddl_of(kind: spark.DataType) -> str:
    """Return a type as DDL, which Spark's parser reads back; field names are quoted."""
    if isinstance(kind, spark.ArrayType):
        return f"array<{ddl_of(kind.elementType)}>"
    if isinstance(kind, spark.MapType):
        return f"map<{ddl_of(kind.keyType)}, {ddl_of(kind.valueType)}>"
    if isinstance(kind, spark.StructType):
        fields = (f"{quoted(f.name)}: {ddl_of(f.dataType)}{'' if f.nullable else ' NOT NULL'}" for f in kind.fields)
        return f"struct<{', '.join(fields)}>"
    return "timestamp_ltz" if isinstance(kind, spark.TimestampType) else str(kind.simpleString())


def quoted(name: str) -> str:
    """Return a name quoted for DDL."""
    return "`" + name.replace("`", "``") + "`"


def check_not_null(array: Column, path: str = "value") -> None:
    """Check for nulls where the type allows none: a field or an element that was declared NOT NULL.

    Raises:
        ValueError: there is a null; the text names the field.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        for field, merged in zip(kind, array.flatten(), strict=True):
            if not field.nullable and merged.null_count > array.null_count:
                raise ValueError(f"{path}.{field.name} is null, and was declared NOT NULL")
            check_not_null(merged, f"{path}.{field.name}")
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        items = compute.list_flatten(array) if pa.types.is_list(kind) else array.items
        field = kind.value_field if pa.types.is_list(kind) else kind.item_field
        if not field.nullable and items.null_count:
            raise ValueError(f"{path} has an element that is null, and was declared without")
        check_not_null(items, f"{path}[]")


def has_not_null_part(kind: Kind) -> bool:
    """Return whether a part of the type must not be null."""
    if pa.types.is_struct(kind):
        return any(not field.nullable or has_not_null_part(field.type) for field in kind)
    if pa.types.is_list(kind):
        return not kind.value_field.nullable or has_not_null_part(kind.value_type)
    if pa.types.is_map(kind):
        return not kind.item_field.nullable or has_not_null_part(kind.item_type)
    return False
