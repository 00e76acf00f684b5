"""Which of a table's rows count, and in what types: what the sinks beside Parquet ask of Arrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc

from kohort.errors import InvalidInputError
from kohort.region.sinks.parquet_schema import misfits
from kohort.region.staged import StagedKey

Mode: TypeAlias = Literal["append", "update"]
_MODES: Final = get_args(Mode)
SOURCE: Final = ("topic", "partition", "offset")
"""Columns by which a row says of which record it was made."""
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
    """A row that a sink can't take. The message counts rows from 1.

    Attributes:
        row: its index in the table that was submitted, from 0.
        column: that has the value.
        offset: of the record, where the table has the source's columns topic, partition and offset; None where not.
        reasons: why a row is refused, by its index: of this row, and of others that the same check has found. Rows
            that another check would refuse may be missing.
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


def refusal_of(reasons: Mapping[int, str], table: pa.Table, column: str) -> RowRefusedError:
    """The refusal of the first of these rows, which says where its record is, if the table does.

    Args:
        reasons: why, by the row's index in the table, from 0.
        table: that was submitted.
        column: that has the value.
    """
    row = min(reasons)
    where, offset = f"row {row + 1} of {table.num_rows}", None
    if has_source(table):
        topic, partition, offset = (table.column(name)[row].as_py() for name in SOURCE)
        where += f" (topic {topic}, partition {partition}, offset {offset})"
    return RowRefusedError(f"{reasons[row]}: {where}", row, column, offset, reasons)


def has_source(table: pa.Table) -> bool:
    """Whether rows say of which record they were made."""
    return all(table.column_names.count(name) == 1 for name in SOURCE)


def refuse_nulls(table: pa.Table, names: Iterable[str]) -> None:
    """See that no row has null in these columns.

    Raises:
        RowRefusedError: the first one that does.
    """
    bare = [name for name in dict.fromkeys(names) if table.column(name).null_count]
    if bare:
        why = f"Null in columns that may not be: {', '.join(bare)}"
        raise refusal_of(dict.fromkeys(rows_where(pc.is_null(table.column(bare[0]))), why), table, bare[0])


def rows_where(mask: Any) -> list[int]:
    """The indices of the rows for which a column of booleans says yes."""
    return [int(row) for row in pc.indices_nonzero(mask).to_pylist()]


def _uncastable(table: pa.Table, kept: pa.Schema) -> RowRefusedError | None:
    """The rows whose values the type of a column does not hold: of the first such column."""
    for field in kept:
        column, found = table.column(field.name), dict[int, str]()
        parts = [(0, len(column))]  # of which at least one value may be bad
        while parts:
            first, end = parts.pop()
            if _casts(column.slice(first, end - first), field.type):
                continue
            if end - first > 1:
                middle = (first + end) // 2
                parts += [(middle, end), (first, middle)]
            else:
                found[first] = f"{field.name!r} can't keep {value_text(column[first])[:VALUE_CHARS]} as {field.type}"
        if found:
            return refusal_of(found, table, field.name)
    return None


def value_text(value: Any) -> str:
    """A value for people."""
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
