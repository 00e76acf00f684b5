"""Selection and conversion of rows, for sinks other than Parquet."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc

from kohort.errors import InvalidInputError
from kohort.region.sinks.parquet_schema import schema_differences, unsupported_column_reason
from kohort.region.staged import StagedKey

Mode: TypeAlias = Literal["append", "update"]
_MODES: Final = get_args(Mode)
Evolution: TypeAlias = Literal["refuse", "add"]
SOURCE: Final = ("topic", "partition", "offset")
"""Columns by which a row names the record that it was made from."""
VALUE_CHARS: Final = 200
"""Limit on a value in an error's text: the value may be a whole document."""


def check_mode(mode: str, keys: Sequence[str]) -> None:
    """Check a sink's options `mode` and `keys`: `update` needs key columns, and `append` takes none.

    Raises:
        InvalidInputError: an option is invalid; the message says what to do.
    """
    if mode == "complete":
        raise InvalidInputError(
            "mode='complete' would write the whole result again with each sequence: take 'update' with keys=[…], "
            "which replaces the rows that changed"
        )
    if mode not in _MODES:
        raise InvalidInputError(f"mode is {mode!r}: choose one of {', '.join(_MODES)}")
    if isinstance(keys, str):
        raise InvalidInputError(f"keys is {keys!r}: give a list of columns, keys=[{keys!r}]")
    if mode == "update" and not keys:
        raise InvalidInputError("mode='update' needs keys=[…]: the columns that say which row a later one replaces")
    if mode == "append" and keys:
        raise InvalidInputError("keys=[…] are for mode='update'; in mode='append' all rows are kept")
    if len(set(keys)) < len(keys):
        raise InvalidInputError(f"keys names a column twice: {', '.join(keys)}")


def check_column_names(schema: pa.Schema, required_names: Iterable[str], option: str) -> None:
    """Check that column names are unique without regard to case, and that the schema has all columns of an option.

    Raises:
        InvalidInputError: there is no column, one is missing, or a name is not unique; the message names it.
    """
    if not schema.names:
        raise InvalidInputError("A table without columns has no rows: give it a column")
    twice = [name for name, count in Counter(name.lower() for name in schema.names).items() if count > 1]
    if twice:
        raise InvalidInputError(f"Columns of one name (case does not tell them apart): {', '.join(twice)}: rename them")
    missing = [name for name in required_names if name not in schema.names]
    if missing:
        raise InvalidInputError(
            f"{option} names {', '.join(missing)}, and the rows have only {', '.join(schema.names)}"
        )


def check_keys(schema: pa.Schema, keys: Iterable[str]) -> None:
    """Check that these columns can be the keys of rows with `mode="update"`.

    Raises:
        InvalidInputError: a column is missing, or it is floating-point, nested or null, whose values can't be compared.
    """
    check_column_names(schema, keys, "keys=[…]")
    for name in keys:
        kind = schema.field(name).type
        if pa.types.is_floating(kind) or pa.types.is_nested(kind) or pa.types.is_null(kind):
            raise InvalidInputError(f"keys names {name!r} of type {kind}: rows can't be told apart by it; cast it")


def with_plain_types(schema: pa.Schema) -> pa.Schema:
    """Return the schema with plain types in place of dictionary, view and large types, which differ only in memory."""
    return pa.schema([pa.field(field.name, _plain(field.type), field.nullable) for field in schema])


def _plain(kind: Any) -> Any:  # the stubs know types one by one
    if isinstance(kind, pa.DictionaryType):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(field.name, _plain(field.type), field.nullable) for field in kind])
    if isinstance(kind, pa.ListType | pa.LargeListType):
        of = kind.value_field
        return pa.list_(pa.field("element", _plain(of.type), of.nullable))
    if isinstance(kind, pa.MapType):
        item = kind.item_field
        return pa.map_(_plain(kind.key_type), pa.field("value", _plain(item.type), item.nullable))
    return kind


def stored_schema_of_format(
    schema: pa.Schema, table_format: str, stored_type: Callable[[pa.Field[Any]], pa.DataType | str]
) -> pa.Schema:
    """Return the Arrow types in which a table format (Delta, Iceberg, DuckLake) gives these columns back to readers.

    Args:
        schema: the columns as given.
        table_format: the format's name, for messages.
        stored_type: returns the type that the format gives back for a column of a plain type; or a text with the reason
            why it can't store the column unchanged.

    Raises:
        InvalidInputError: the format can't store a column unchanged; the message names the columns.
    """
    kept, refused = [], []
    for given, field in zip(schema, with_plain_types(schema), strict=True):
        if refusal := unsupported_column_reason(given):
            refused.append(refusal)
        elif isinstance(found := stored_type(field), str):
            refused.append(f"column {given.name!r} of type {given.type}{found and f' ({found})'}")
        else:
            kept.append(pa.field(field.name, found, field.nullable))
    if refused:
        raise InvalidInputError(f"{table_format} does not take {'; '.join(refused)}: cast these columns")
    return pa.schema(kept)


def check_schema_fits(place: str, sink_schema: pa.Schema, rows_schema: pa.Schema) -> None:
    """Check that tables of one schema (`rows_schema`) can be rows of a sink with another (`sink_schema`).

    Raises:
        InvalidInputError: columns are missing, new or of other types; the message names them.
    """
    if not rows_schema.equals(sink_schema) and (found := schema_differences(sink_schema, rows_schema)):
        raise InvalidInputError(
            f"The schema does not fit the rows of {place}: {'; '.join(found)}. Cast the columns, or write into "
            "another table"
        )


def check_evolution(evolve: str) -> None:
    """Check a sink's option `evolve`: `add` adds new columns to its schema, `refuse` raises an error for them.

    Raises:
        InvalidInputError: the option has another value.
    """
    if evolve not in get_args(Evolution):
        raise InvalidInputError(f"evolve is {evolve!r}: choose one of {', '.join(get_args(Evolution))}")


def new_columns(place: str, sink_schema: pa.Schema, table_schema: pa.Schema) -> list[pa.Field[Any]]:
    """Return the columns of a table's schema (`table_schema`) that a sink's schema (`sink_schema`) lacks.

    Raises:
        InvalidInputError: a new column may not be null, or the other columns do not fit; the message names them.
    """
    new = [field for field in table_schema if field.name not in sink_schema.names]
    if never := [f"{field.name!r} of type {field.type}" for field in new if not field.nullable]:
        raise InvalidInputError(
            f"The new column {', '.join(never)} may not be null, and the rows of {place} have none yet: evolve='add' "
            "adds columns that may be null"
        )
    check_schema_fits(place, pa.schema([*sink_schema, *new]), table_schema)
    check_column_names(pa.schema([*sink_schema, *new]), (), "")
    return new


def refuse_conflicting_columns(place: str, present_schema: pa.Schema, new_fields: Iterable[pa.Field[Any]]) -> None:
    """Check that new columns do not conflict with columns that other programs have added to the destination's table.

    Raises:
        InvalidInputError: the table has such a column with another type, or as one that may not be null.
    """
    for field in new_fields:
        if field.name in present_schema.names and (
            present_schema.field(field.name).type != field.type or not present_schema.field(field.name).nullable
        ):
            raise InvalidInputError(
                f"{place} has a column {field.name!r} of type {present_schema.field(field.name)} that others have "
                f"added, and the rows have it as {field.type}: cast the column"
            )


def refuse_changed_columns(place: str, present_schema: pa.Schema, sink_schema: pa.Schema) -> None:
    """Check that the destination's table still has all columns of a region's rows with their types.

    Raises:
        InvalidInputError: others have dropped or changed a column; the message names it.
    """
    if lost := [
        f"{field.name!r} of type {field.type}" for field in sink_schema if field.name not in present_schema.names
    ]:
        raise dropped_columns_error(place, lost)
    for field in sink_schema:
        if (kind := present_schema.field(field.name).type) != field.type:
            raise InvalidInputError(
                f"{place} has a column {field.name!r} of type {kind}, which others have changed: the region's rows "
                f"have it as {field.type}. Change it back, or drop it and add it again with that type"
            )


def dropped_columns_error(place: str, lost: Iterable[str]) -> InvalidInputError:
    """Return the error for a table in which others have dropped columns; `lost` has their names and types as texts."""
    return InvalidInputError(
        f"{place} lacks the column {', '.join(lost)}, which others have dropped or renamed: rename it back, or add "
        "it again as one that may be null"
    )


def with_added_fields(table_schema: pa.Schema, sink_schema: pa.Schema, added_names: Iterable[str]) -> pa.Schema:
    """Return a table's schema, completed by those columns that the sink has added and the table lacks."""
    return pa.schema(
        [*table_schema, *(sink_schema.field(name) for name in added_names if name not in table_schema.names)]
    )


def with_added_columns(table: pa.Table, sink_schema: pa.Schema, added_names: Iterable[str]) -> pa.Table:
    """Return the table, completed by columns of nulls for those columns that the sink has added and it lacks."""
    for name in added_names:
        if name not in table.column_names:
            table = table.append_column(sink_schema.field(name), pa.nulls(table.num_rows, sink_schema.field(name).type))
    return table


def cast_to_sink_schema(table: pa.Table, sink_schema: pa.Schema, keys: Iterable[str]) -> pa.Table:
    """Return the table with its columns cast to a sink's schema, in that order.

    Raises:
        RowRefusedError: a row has null in a key or in a column that may not be null, or a value that can't be cast.
    """
    refuse_nulls(table, [*keys, *(field.name for field in sink_schema if not field.nullable)])
    try:
        return table.select(sink_schema.names).cast(sink_schema, safe=True)
    except (pa.ArrowException, ValueError) as error:
        raise _uncastable(table, sink_schema) or InvalidInputError(f"A table does not fit: {error}") from error


class RowRefusedError(InvalidInputError):
    """The error of a row that a sink refuses. The message counts rows from 1.

    Remedy: mend or drop the rows in `reasons`, and submit the rest again. docs/region-spark.md shows bad rows set
    aside.

    Attributes:
        row: the index of the first refused row in the submitted table, from 0.
        column: the column with the refused value.
        offset: the offset of the row's Kafka record, if the table has the columns topic, partition and offset; else
            None.
        reasons: the reason for each refused row, by its index. All rows are there that one check has found; rows that
            only a later check would refuse are missing.
    """

    def __init__(
        self,
        message: str,
        row: int = 0,
        column: str = "",
        offset: int | None = None,
        reasons: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.row, self.column, self.offset = row, column, offset
        self.reasons = {row: message} if reasons is None else dict(reasons)


def refused_rows_error(reasons: Mapping[int, str], table: pa.Table, column: str) -> RowRefusedError:
    """Return the error for these refused rows. Its message names the first, with its Kafka record if that is known.

    Args:
        reasons: the reason for each refused row, by its index in the table, from 0.
        table: the submitted table.
        column: the column with the refused values.
    """
    row = min(reasons)
    where, offset = f"row {row + 1} of {table.num_rows}", None
    if has_source_columns(table):
        topic, partition, offset = (table.column(name)[row].as_py() for name in SOURCE)
        where += f" (topic {topic}, partition {partition}, offset {offset})"
    return RowRefusedError(f"{reasons[row]}: {where}", row, column, offset, reasons)


def has_source_columns(table: pa.Table) -> bool:
    """Return whether a table has the columns topic, partition and offset, which name the Kafka record of each row."""
    return all(table.column_names.count(name) == 1 for name in SOURCE)


def refuse_nulls(table: pa.Table, names: Iterable[str]) -> None:
    """Check that no row has null in these columns.

    Raises:
        RowRefusedError: rows have null in the first such column.
    """
    bare = [name for name in dict.fromkeys(names) if table.column(name).null_count]
    if bare:
        why = f"Null in columns that may not be: {', '.join(bare)}"
        raise refused_rows_error(
            dict.fromkeys(row_indices_where(pc.is_null(table.column(bare[0]))), why), table, bare[0]
        )


_YEARS_S: Final = (-62_135_596_800, 253_402_300_799)
"""Seconds since 1970 of the years 1 to 9999, the first second and the last."""
PER_S: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_S: Final = 86_400


def refuse_out_of_range_times(table: pa.Table, names: Iterable[str]) -> None:
    """Check that all dates and times in these columns, also in nested ones, are of the years 1 to 9999.

    Libraries of sinks convert them to Python's dates, which have no other years.

    Raises:
        RowRefusedError: rows of the first such column have another year.
    """
    for name in names:
        column: Any = table.column(name)  # the stubs know types one by one
        if _has_times(column.type):
            whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
            if found := row_indices_where(out_of_range_times(whole)):
                why = f"{name!r} can't be written: it is a date or time beyond the years 1 to 9999"
                raise refused_rows_error(dict.fromkeys(found, why), table, name)


def _has_times(kind: Any) -> bool:
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return True
    return any(_has_times(kind.field(number).type) for number in range(kind.num_fields))


def out_of_range_times(values: Any) -> Any:
    """Return a mask: whether each value is, or contains, a date or time outside the years 1 to 9999; false for null."""
    kind = values.type
    if pa.types.is_date(kind):
        return _beyond(values.cast(pa.date32(), safe=False).cast(pa.int32()), 1, _DAY_S)
    if pa.types.is_timestamp(kind):
        return _beyond(values.cast(pa.int64()), PER_S[kind.unit], 1)
    if isinstance(kind, pa.StructType):
        parts = [out_of_range_times(part) for part in values.flatten() if _has_times(part.type)]
        return functools.reduce(pc.or_, parts)
    rows = pc.indices_nonzero(values.is_valid())
    lists = values.take(rows) if values.null_count else values  # values in the place of a null do not count
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays([lists.keys, lists.items], names=["key", "value"])
        lists = pa.ListArray.from_arrays(lists.offsets, entries)
    bad = pc.filter(pc.list_parent_indices(lists), out_of_range_times(pc.list_flatten(lists)))
    return pc.is_in(pa.array(range(len(values)), rows.type), rows.take(bad))


def _beyond(numbers: Any, per_s: int, unit_s: int) -> Any:
    """Return a mask of the times outside the years 1 to 9999; numbers count units of `unit_s / per_s` s since 1970."""
    low, high = _YEARS_S
    first = max(-(2**63), low * per_s // unit_s)
    last = min(2**63 - 1, ((high + 1) * per_s - 1) // unit_s)
    bad: Any = pc.or_(pc.less(numbers, pa.scalar(first)), pc.greater(numbers, pa.scalar(last)))
    return bad.fill_null(False)


def row_indices_where(mask: Any) -> list[int]:
    """Return the indices of the rows for which a mask is true."""
    return [int(row) for row in pc.indices_nonzero(mask).to_pylist()]


def _uncastable(table: pa.Table, sink_schema: pa.Schema) -> RowRefusedError | None:
    """Return the error for rows of the first column in which a cast fails; None: each column can be cast by itself."""
    for field in sink_schema:
        column = table.column(field.name)
        rows = _rows_that_fail(column, functools.partial(_casts, kind=field.type))
        found = {
            row: f"{field.name!r} can't keep {value_text(column[row])[:VALUE_CHARS]} as {field.type}" for row in rows
        }
        if found:
            return refused_rows_error(found, table, field.name)
    return None


def refuse_invalid_values(table: pa.Table) -> None:
    """Check that each value is valid for its Arrow type, above all that texts are UTF-8.

    Spark's strings may have any bytes, for example those of a Kafka record that is cast to STRING. Readers fail for all
    rows of a file if one text is not UTF-8.

    Raises:
        RowRefusedError: rows of the first such column have an invalid value.
    """
    if not _is_invalid(table):
        return
    for name in table.column_names:
        column = table.column(name)
        if rows := _rows_that_fail(column, lambda part: not _is_invalid(part)):
            kind = "text that is not UTF-8" if pa.types.is_string(column.type) else "value that is none of its type"
            raise refused_rows_error(dict.fromkeys(rows, f"{name!r} can't be written: it has a {kind}"), table, name)


def _is_invalid(values: Any) -> bool:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return True
    return False


def _rows_that_fail(column: Any, is_good: Callable[[Any], bool]) -> list[int]:
    """Return the indices of the rows that fail a check, found by bisection: `is_good` tests a whole slice at once."""
    found, parts = list[int](), [(0, len(column))]
    while parts:
        first, end = parts.pop()
        part = column.slice(first, end - first)
        if pa.types.is_nested(column.type):  # a slice of lists or structs keeps what is in the others
            part = part.take(pa.array(range(len(part)), pa.int64()))
        if first == end or is_good(part):
            continue
        if end - first > 1:
            middle = (first + end) // 2
            parts += [(middle, end), (first, middle)]
        else:
            found.append(first)
    return found


def value_text(value: Any) -> str:
    """Return an Arrow scalar as text for a message, also if Python can't represent it."""
    try:
        return str(value.as_py())
    except (OverflowError, ValueError):
        return f"a {value.type} that Python can't tell"


def _casts(column: pa.ChunkedArray[Any], kind: Any) -> bool:
    try:
        column.cast(kind, safe=True)
    except (pa.ArrowException, ValueError):
        return False
    return True


def sort_staged_keys(keys: Iterable[StagedKey]) -> list[StagedKey]:
    """Sort the staged keys of a checkpoint so that rows of a later key replace those of an earlier one.

    The order is by epoch, then by unit number, then by member. So what a member staged last wins over what it staged
    before. Between members the higher unit number wins.
    """
    return sorted(set(keys), key=lambda key: (key.epoch, key.unit, key.member))


def last_row_of_each_key(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Keep only the last row of each key (`mode="update"`); the rows stay in the order of the table."""
    at = "".join(table.column_names) + "_"
    numbered = table.select(keys).append_column(at, pa.array(range(table.num_rows), pa.int64()))
    last = numbered.group_by(list(keys)).aggregate([(at, "max")]).column(f"{at}_max")
    return table.take(last.combine_chunks().sort())
