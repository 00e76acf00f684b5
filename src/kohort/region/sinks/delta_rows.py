"""Rows as a Delta table stores them: types, partitions and statistics; tables that this package can't write exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kohort.errors import InvalidInputError
from kohort.region.sinks.delta_log import delta_arrow_types
from kohort.region.sinks.parquet_schema import other_type_text
from kohort.region.sinks.rows import PER_S, stored_schema_of_format, with_plain_types

TEXT_MAX: Final = 32
"""Maximum number of characters of a text in a file's statistics; of longer ones a part is a bound, as in Delta's own
writers.
"""
_LAST_CHARACTER: Final = "\U0010ffff"
COLUMNS_MAX: Final = 32
"""Number of columns with statistics: the first ones, as in Delta's own writers."""
_FEATURES: Final = frozenset({
    "appendOnly", "changeDataFeed", "deletionVectors", "domainMetadata", "invariants", "timestampNtz",
    "vacuumProtocolCheck", "v2Checkpoint",
})  # fmt: skip
_LOCAL_TIMES: Final = "timestampNtz"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SETTINGS: Final = {
    "delta.constraints.": "has a constraint",
    "delta.columnMapping.mode": "maps its columns",
    "delta.setTransactionRetentionDuration": "forgets which sequences it has",
}


def delta_stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the Arrow types in which a Delta table gives these columns back to readers.

    Raises:
        InvalidInputError: a Delta table can't store a column unchanged; the message names the columns.
    """
    return stored_schema_of_format(schema, "Delta", _stored_type)


def _stored_type(field: pa.Field[Any]) -> pa.DataType | str:
    try:
        back = delta_arrow_types(pa.schema([field])).field(0).type
    except Exception as error:  # noqa: BLE001 - the library raises plain ones
        return str(error).splitlines()[0]
    if pa.types.is_null(back) or (pa.types.is_timestamp(back) and back.unit == "ns"):
        return ""
    return back if _holds(back, field.type) else other_type_text(back)


def _holds(kept: pa.DataType, given: pa.DataType) -> bool:
    if pa.types.is_timestamp(kept) and pa.types.is_timestamp(given):
        return bool(kept.tz == given.tz and given.unit in ("s", "ms", "us"))
    return bool(kept.equals(given) or with_plain_types(pa.schema([("x", kept)])).field(0).type.equals(given))


def check_partition_columns(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Check that these columns can partition a Delta table's files.

    Raises:
        InvalidInputError: a column has another type than text, integer or date; or no column is left for the files.
    """
    for name in partition_by:
        kind = schema.field(name).type
        if not _can_partition(kind):
            raise InvalidInputError(f"partition_by names {name!r} of type {kind}: take a text, an integer or a date")
    if len(partition_by) == len(schema):
        raise InvalidInputError("partition_by names all columns: one must be left for the files")


def refuse_partition_types(place: str, there: pa.Schema, partition_by: Sequence[str]) -> None:
    """Refuse a Delta table that others have partitioned by a type whose values have no text that all readers take.

    One value in another form makes the whole table unreadable.

    Raises:
        InvalidInputError: a partition column has another type than text, integer, date or boolean.
    """
    for name in partition_by:
        kind = there.field(name).type
        if not (_can_partition(kind) or pa.types.is_boolean(kind)):
            raise InvalidInputError(
                f"{place} is partitioned by {name!r} of type {kind}, whose values can't be written so that all readers "
                "take them: give the region a table that is partitioned by texts, integers, dates or booleans"
            )


def _can_partition(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind))


def check_writable_table(place: str, table: deltalake.DeltaTable, mode: str) -> None:
    """Check that a Delta table has no feature or setting with which this package can't write it exactly once.

    Raises:
        InvalidInputError: it has one; the message names it.
    """
    settings: Mapping[str, str | None] = table.metadata().configuration
    protocol = table.protocol()
    found = [f"{why} ({name})" for name in settings for key, why in _SETTINGS.items()
             if name.startswith(key) and settings[name] != "none"]  # fmt: skip
    unknown = sorted({*(protocol.writer_features or ()), *(protocol.reader_features or ())} - _FEATURES)
    found += [f"needs the feature {name}" for name in unknown]
    if mode == "update" and settings.get("delta.appendOnly") == "true":
        found.append("takes new rows only (delta.appendOnly)")
    for field in msgspec.json.decode(table.schema().to_json())["fields"]:
        rules = [key for key in field["metadata"] if key.startswith(("delta.identity", "delta.gen", "delta.inv"))]
        found += [f"has a rule for column {field['name']!r} ({key})" for key in rules]
    if found:
        raise InvalidInputError(
            f"{place} can't be written exactly once: it {'; it '.join(found)}. Take that away, or give the region "
            "another table"
        )


def check_no_new_feature(place: str, table: deltalake.DeltaTable, columns: Iterable[pa.Field[Any]]) -> None:
    """Check that adding these columns to a Delta table does not enable a table feature that its readers may lack.

    A timestamp without a zone needs `timestampNtz`. The Delta library would enable it, and programs without that
    feature could no longer read the table.

    Raises:
        InvalidInputError: a column needs it; the message says what to do.
    """
    needing = [f"{field.name!r} of type {field.type}" for field in columns if _has_local_time(field.type)]
    if needing and _LOCAL_TIMES not in (table.protocol().reader_features or ()):
        raise InvalidInputError(
            f"{place} can't be given the column {', '.join(needing)}: a time without a zone needs the table feature "
            f"{_LOCAL_TIMES}, and programs that lack it could no longer read the table. Cast the column to a time "
            "with a zone, or enable the feature by hand"
        )


def _has_local_time(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return kind.tz is None
    return any(_has_local_time(kind.field(number).type) for number in range(kind.num_fields))


def file_statistics_json(table: pa.Table) -> str:
    """Return a file's statistics for the log, with which readers can skip the file.

    A file has the bounds of all its first columns or of none. Where one is missing beside others, delta-rs compares
    with null. Filters of its Arrow dataset by that column then skip the file (delta-rs #1411).
    """
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    bounded = True
    for name in table.column_names[:COLUMNS_MAX]:
        column = table.column(name)
        if pa.types.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        if not _has_bounds(column.type) or column.null_count == len(column):
            continue
        try:
            least[name], most[name] = _bounds(column)
        except (ValueError, OverflowError):  # NaN, or a time that Python has no word for
            bounded = False
    found: dict[str, Any] = {"numRecords": table.num_rows}
    if bounded:
        found |= {"minValues": least, "maxValues": most}
    return msgspec.json.encode(found | {"nullCount": nulls}).decode()


def _has_bounds(kind: pa.DataType) -> bool:
    of_numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return of_numbers or pa.types.is_boolean(kind) or pa.types.is_string(kind) or pa.types.is_temporal(kind)


def _bounds(column: Any) -> tuple[object, object]:
    """Return the least and the greatest value of a column that is not all null, as JSON has them.

    Raises:
        ValueError, OverflowError: JSON has no word for one of them.
    """
    if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column)).as_py():
        raise ValueError("NaN and infinities are no numbers in JSON")
    ends = pc.min_max(column)
    least, most = _value_of(ends["min"]), _value_of(ends["max"])
    if isinstance(least, str) and pa.types.is_string(column.type):
        return least[:TEXT_MAX], _shortened_up(str(most))
    if isinstance(least, float):  # some readers order the two zeros
        return least or -0.0, most or 0.0
    return _as_json(least), _as_json(most)


def _shortened_up(text: str) -> str:
    """Return a text of about `TEXT_MAX` characters that is not before the given one, in the order of code points."""
    end = TEXT_MAX
    while text[end : end + 1] == _LAST_CHARACTER:
        end += 1
    return text if len(text) <= end else text[:end] + _LAST_CHARACTER


def _value_of(scalar: Any) -> object:
    """Return a scalar as a Python value; a timestamp becomes text.

    Arrow's `as_py` of a timestamp would import pandas (36 MB).
    """
    kind = scalar.type
    if not pa.types.is_timestamp(kind):
        return scalar.as_py()
    stored = scalar.cast(pa.int64()).as_py()
    if stored is None:
        return None
    time = _EPOCH + timedelta(microseconds=stored * 1_000_000 // PER_S[kind.unit])
    return time.replace(tzinfo=None).isoformat(timespec="microseconds") + ("Z" if kind.tz else "")


def _as_json(value: object) -> object:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return msgspec.Raw(format(value, "f").encode())
    return value


def rows_by_partition(table: pa.Table, partition_by: Sequence[str]) -> list[tuple[dict[str, str | None], pa.Table]]:
    """Return each partition's values and its rows without the partition columns. An empty text is null, as in Delta."""
    if not table.num_rows:
        return []
    if not partition_by:
        return [({}, table)]
    at = "".join(table.column_names) + "_"
    numbered = table.select(partition_by).append_column(at, pa.array(range(table.num_rows), pa.int64()))
    groups = numbered.group_by(list(partition_by)).aggregate([(at, "list")])
    rest = table.drop_columns(list(partition_by))
    found = []
    for row in groups.to_pylist():
        values = {name: _partition(row[name]) for name in partition_by}
        found.append((values, rest.take(pa.array(sorted(row[f"{at}_list"]), pa.int64()))))
    return found


def _partition(value: object) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else str(value)
