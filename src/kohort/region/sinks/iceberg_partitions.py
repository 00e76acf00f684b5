"""Partition fields of an Iceberg table, as a user writes them and as the table has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BooleanType,
    DateType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from kohort.errors import InvalidInputError

_CALL: Final = re.compile(r"(\w+)\((?:\s*(\d+)\s*,)?\s*(.+?)\s*\)")
_TIMES: Final[dict[str, Callable[[], Transform[Any, Any]]]] = {
    "year": YearTransform, "month": MonthTransform, "day": DayTransform, "hour": HourTransform,
}  # fmt: skip
_SUFFIXES: Final = {"bucket": "bucket", "truncate": "trunc", **{name: name for name in _TIMES}}
_VALUES: Final = (BooleanType, DateType, IntegerType, LongType, StringType, TimestampType, TimestamptzType)
_KNOWN: Final = (
    BucketTransform, DayTransform, HourTransform, IdentityTransform, MonthTransform, TruncateTransform, YearTransform,
)  # fmt: skip


class PartitionBy(NamedTuple):
    """An Iceberg partition field: its source column, its name and its transform."""

    column: str
    name: str
    transform: Transform[Any, Any]


def parse_partition_fields(given: Iterable[str]) -> tuple[PartitionBy, ...]:
    """Parse the texts of the option `partition_by`, such as `day(at)`, `bucket(16, id)` or `country`.

    Raises:
        InvalidInputError: a text has another form.
    """
    return tuple(_parsed(text) for text in given)


def _parsed(text: str) -> PartitionBy:
    call = _CALL.fullmatch(text)
    if call is None:
        return PartitionBy(text, text, IdentityTransform())
    kind, number, column = call[1].lower().removesuffix("s"), call[2], call[3]
    name = f"{column}_{_SUFFIXES.get(kind, kind)}"
    if kind in _TIMES and number is None:
        return PartitionBy(column, name, _TIMES[kind]())
    if kind == "bucket" and number and int(number):
        return PartitionBy(column, name, BucketTransform(int(number)))
    if kind == "truncate" and number and int(number):
        return PartitionBy(column, name, TruncateTransform(int(number)))
    raise InvalidInputError(
        f"partition_by has {text!r}: give a column, year(c), month(c), day(c), hour(c), bucket(16, c) or truncate(4, c)"
    )


def with_ascii_field_names(fields: Iterable[PartitionBy], columns: Sequence[str]) -> tuple[PartitionBy, ...]:
    """Rename the partition fields of a new table: ASCII letters only, and no name of a column.

    A manifest has these names in its Avro schema, and some readers refuse other letters there (iceberg-python #2123).

    Args:
        fields: the partition fields.
        columns: the table's columns. A field with the identity transform may have its own column's name.
    """
    found: list[PartitionBy] = []
    for field in fields:
        name = re.sub(r"[^\x00-\x7f]", lambda letter: f"_x{ord(letter[0]):X}", field.name)
        taken = {column for column in columns if column != field.column} | {other.name for other in found}
        if not isinstance(field.transform, IdentityTransform):
            taken.add(field.column)
        while name in taken:
            name += "_"
        found.append(field._replace(name=name))
    return tuple(found)


def partition_fields_of(table: Table) -> tuple[PartitionBy, ...]:
    """Return the fields of an Iceberg table's current partition spec."""
    schema = table.schema()
    return tuple(
        PartitionBy(schema.find_column_name(field.source_id) or "", field.name, field.transform)
        for field in table.spec().fields
    )


def check_partition_fields(place: str, schema: Schema, fields: Sequence[PartitionBy]) -> None:
    """Check that pyiceberg can divide rows of this schema by these partition fields.

    Raises:
        InvalidInputError: a column is missing, a transform is not supported or does not fit its column, or two fields
            have one column.
    """
    columns: dict[str, NestedField] = {field.name: field for field in schema.fields}
    for field in fields:
        column = columns.get(field.column)
        if column is None:
            raise InvalidInputError(f"{place} is partitioned by {field.column!r}, which is no column of its own")
        if not isinstance(field.transform, _KNOWN):
            raise InvalidInputError(f"{place} is partitioned by {field.transform} of {field.column!r}: not supported")
        if (
            isinstance(column.field_type, TimeType)  # pyiceberg takes a bucket's number for a time of day
            or not field.transform.can_transform(column.field_type)
            or not isinstance(field.transform.result_type(column.field_type), _VALUES)
        ):
            raise InvalidInputError(
                f"partition_by names {field.column!r} of type {column.field_type}, which {field.transform} can't divide"
            )
    if len({field.column for field in fields}) < len(fields):
        raise InvalidInputError(f"{place} is partitioned twice by one column: not supported")


def columns_and_transforms(fields: Iterable[PartitionBy]) -> list[tuple[str, str]]:
    """Return the column and the transform's text of each partition field, to compare two partition specs."""
    return [(field.column, str(field.transform)) for field in fields]
