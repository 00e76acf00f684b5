"""Which of a table's rows count, and in what types: what the sinks beside Parquet ask of Arrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import pyarrow as pa

from kohort.errors import InvalidInputError
from kohort.region.sinks.parquet_schema import misfits
from kohort.region.staged import StagedKey

Mode: TypeAlias = Literal["append", "update"]
_MODES: Final = get_args(Mode)


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
        InvalidInputError: null where none may be, or a value that the type does not hold.
    """
    must = [*keys, *(each.name for each in kept if not each.nullable)]
    bare = [name for name in dict.fromkeys(must) if table.column(name).null_count]
    if bare:
        raise InvalidInputError(f"Null in columns that may not be: {', '.join(bare)}")
    try:
        return table.select(kept.names).cast(kept, safe=True)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidInputError(f"A table does not fit: {error}") from error


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
