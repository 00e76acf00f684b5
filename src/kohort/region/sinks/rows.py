"""Which of a table's rows count, and in what types: what the sinks beside Parquet ask of Arrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc

from kohort.errors import InvalidInputError
from kohort.region.sinks.parquet_schema import misfits
from kohort.region.staged import StagedKey

Mode: TypeAlias = Literal["append", "update"]
_MODES: Final = get_args(Mode)
_SOURCE: Final = ("topic", "partition", "offset")
VALUE_CHARS: Final = 200
"""Bound on a value in an error's text: it may be a whole document."""


def check_mode(mode: str, keys: Sequence[str]) -> None:
    """See that rows can be written so.

    Raises:
        InvalidInputError: it says how they can.
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


def check_names(schema: pa.Schema, named: Iterable[str], option: str) -> None:
    """See that there are columns, each of a name of its own, and those that an option names among them.

    Raises:
        InvalidInputError: it names the columns.
    """
    if not schema.names:
        raise InvalidInputError("A table without columns has no rows: give it a column")
    twice = [name for name, count in Counter(name.lower() for name in schema.names).items() if count > 1]
    if twice:
        raise InvalidInputError(f"Columns of one name (case does not tell them apart): {', '.join(twice)}: rename them")
    missing = [name for name in named if name not in schema.names]
    if missing:
        raise InvalidInputError(
            f"{option} names {', '.join(missing)}, and the rows have only {', '.join(schema.names)}"
        )


def check_keys(schema: pa.Schema, keys: Iterable[str]) -> None:
    """See that rows can be told apart by these columns.

    Raises:
        InvalidInputError: a column is not there, or of a type whose values are not simply equal or not.
    """
    check_names(schema, keys, "keys=[…]")
    for name in keys:
        kind = schema.field(name).type
        if pa.types.is_floating(kind) or pa.types.is_nested(kind) or pa.types.is_null(kind):
            raise InvalidInputError(f"keys names {name!r} of type {kind}: rows can't be told apart by it; cast it")


def plain(schema: pa.Schema) -> pa.Schema:
    """The same columns without what is only a form in memory: dictionaries, views and 64-bit lengths."""
    return pa.schema([pa.field(each.name, _plain(each.type), each.nullable) for each in schema])


def _plain(kind: Any) -> Any:  # the stubs know types one by one
    if isinstance(kind, pa.DictionaryType):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(each.name, _plain(each.type), each.nullable) for each in kind])
    if isinstance(kind, pa.ListType | pa.LargeListType):
        of = kind.value_field
        return pa.list_(pa.field("element", _plain(of.type), of.nullable))
    if isinstance(kind, pa.MapType):
        item = kind.item_field
        return pa.map_(_plain(kind.key_type), pa.field("value", _plain(item.type), item.nullable))
    return kind


def check_fits(place: str, kept: pa.Schema, given: pa.Schema) -> None:
    """See that tables of one schema can be rows of a place.

    Raises:
        InvalidInputError: it names the columns that differ.
    """
    if not given.equals(kept) and (found := misfits(kept, given)):
        raise InvalidInputError(
            f"The schema does not fit the rows of {place}: {'; '.join(found)}. Cast the columns, or write into "
            "another table"
        )


def shaped(table: pa.Table, kept: pa.Schema, keys: Iterable[str]) -> pa.Table:
    """The table with the columns of a place, in its order and its types.

    Raises:
        RowRefusedError: null where none may be, or a value that the type does not hold.
    """
    refuse_nulls(table, [*keys, *(field.name for field in kept if not field.nullable)])
    try:
        return table.select(kept.names).cast(kept, safe=True)
    except (pa.ArrowException, ValueError) as error:
        raise _uncastable(table, kept) or InvalidInputError(f"A table does not fit: {error}") from error


class RowRefusedError(InvalidInputError):
    """A row that a sink can't take.

    Attributes:
        row: its index in the table that was submitted.
        column: that has the value.
        offset: of the record, where the table has the source's columns topic, partition and offset; None where not.
    """

    def __init__(self, message: str, row: int = 0, column: str = "", offset: int | None = None) -> None:
        super().__init__(message)
        self.row, self.column, self.offset = row, column, offset


def refusal_of(why: str, table: pa.Table, row: int, column: str) -> RowRefusedError:
    """The refusal of one row, which says where its record is, if the table does."""
    where, offset = f"row {row} of {table.num_rows}", None
    if all(table.column_names.count(name) == 1 for name in _SOURCE):
        topic, partition, offset = (table.column(name)[row].as_py() for name in _SOURCE)
        where += f" (topic {topic}, partition {partition}, offset {offset})"
    return RowRefusedError(f"{why}: {where}", row, column, offset)


def refuse_nulls(table: pa.Table, names: Iterable[str]) -> None:
    """See that no row has null in these columns.

    Raises:
        RowRefusedError: the first one that does.
    """
    bare = [name for name in dict.fromkeys(names) if table.column(name).null_count]
    if bare:
        first = pc.index(pc.is_null(table.column(bare[0])), value=True).as_py()
        raise refusal_of(f"Null in columns that may not be: {', '.join(bare)}", table, first, bare[0])


def _uncastable(table: pa.Table, kept: pa.Schema) -> RowRefusedError | None:
    """The first row whose value a column's type does not hold."""
    for field in kept:
        column = table.column(field.name)
        if _casts(column, field.type):
            continue
        first, end = 0, len(column)  # the first bad one is from first up to and without end
        while end - first > 1:
            middle = (first + end) // 2
            if _casts(column.slice(first, middle - first), field.type):
                first = middle
            else:
                end = middle
        value = _value_text(column[first])
        return refusal_of(f"{field.name!r} can't keep {value} as {field.type}", table, first, field.name)
    return None


def _value_text(value: Any) -> str:
    try:
        return str(value.as_py())[:VALUE_CHARS]
    except (OverflowError, ValueError):
        return f"a {value.type} that Python can't tell"


def _casts(column: pa.ChunkedArray[Any], kind: Any) -> bool:
    try:
        column.cast(kind, safe=True)
    except (pa.ArrowException, ValueError):
        return False
    return True


def in_order(keys: Iterable[StagedKey]) -> list[StagedKey]:
    """In the order in which rows replace one another: of two rows of a sequence the one of the later key counts.

    By epoch, then by unit, then by member. So of one member the piece that it staged last counts, and of batches that
    are units of several members the last batch.
    """
    return sorted(set(keys), key=lambda key: (key.epoch, key.unit, key.member))


def last_of_each(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Of rows that have the same key the last one, in the order of the table."""
    at = "".join(table.column_names) + "_"
    numbered = table.select(keys).append_column(at, pa.array(range(table.num_rows), pa.int64()))
    last = numbered.group_by(list(keys)).aggregate([(at, "max")]).column(f"{at}_max")
    return table.take(last.combine_chunks().sort())
