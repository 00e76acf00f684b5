"""Dead letters: rows that a sink refuses, each with its record and the reason, as rows of another sink.

A dead letter is staged beside the good rows of its table and published by the same sequence, so it is there exactly
once. Its sink is like any other: a folder, a table, or one of the user's own.
"""

from __future__ import annotations

import json  # not msgspec, which refuses integers of more than 64 bits
import logging
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kohort.errors import InvalidInputError
from kohort.io.log_throttle import IntervalThrottle
from kohort.region.sinks import Sink, check_rows
from kohort.region.sinks.rows import SOURCE, RowRefusedError, has_source_columns, out_of_range_times, value_text

log = logging.getLogger("kohort.region")

FAIL: Final = "fail"
DEAD_LETTER: Final = "dead-letter"
_FIELDS: list[pa.Field[Any]] = [
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("row", pa.string()),
    pa.field("reason", pa.string()),
    pa.field("member", pa.string()),
]
LETTERS: Final = pa.schema(_FIELDS)
"""Columns of a dead-letter sink. `row` is the row as JSON, or null if the letter is an unchanged record. Columns of
the record are null if the row did not name its record."""
RECORD: Final = tuple(LETTERS.names[:6])
SAY_S: Final = 30.0
"""Seconds between two log lines of one member about its dead letters."""


def check_dead_letters(on_bad_record: str, into: Sink | None, dead_letters: Sink | None) -> None:
    """Check a member's options for bad records: `on_bad_record`, its sink `into`, and the sink `dead_letters`.

    Raises:
        InvalidInputError: the options are invalid; the message says what to do.
    """
    if on_bad_record not in (FAIL, DEAD_LETTER):
        raise InvalidInputError(f"on_bad_record={on_bad_record!r}: say {FAIL!r} or {DEAD_LETTER!r}")
    if dead_letters is None:
        if on_bad_record == DEAD_LETTER:
            raise InvalidInputError(
                "on_bad_record='dead-letter' needs dead_letters=..., the place where bad rows go: a sink, such as "
                "ParquetFolder(path)"
            )
        return
    if not hasattr(dead_letters, "bind"):
        raise InvalidInputError(
            f"dead_letters={dead_letters!r} is no sink of a region: give one of kohort.region, as ParquetFolder(path), "
            "or a class of your own with the methods of kohort.region.sinks.Sink"
        )
    if into is None:
        raise InvalidInputError("dead_letters=... is for members that write: say into=... too")
    if into.place == dead_letters.place:
        raise InvalidInputError(f"dead_letters={dead_letters!r} is the place of the rows: give a place of its own")
    if keys := tuple(getattr(dead_letters, "keys", ())):
        raise InvalidInputError(
            f"dead_letters={dead_letters!r} replaces rows by {', '.join(keys)}, which a dead letter may not have: "
            "give a sink that adds rows, without mode='update' and keys"
        )


def split_refused_rows(sink: Sink, table: pa.Table) -> tuple[pa.Table, dict[int, str]]:
    """Return the rows of a table that a sink accepts, and the reason for each refused row, by its index in the table.

    Raises:
        InvalidInputError: the sink rejects the table with an error that names no row.
    """
    refused: dict[int, str] = {}
    rest, at = table, list(range(table.num_rows))
    while True:
        try:
            check_rows(sink, rest)
        except RowRefusedError as error:
            bad = {row: why for row, why in error.reasons.items() if 0 <= row < rest.num_rows}
            if not bad:
                raise
            refused |= {at[row]: why for row, why in bad.items()}
            kept = [row for row in range(rest.num_rows) if row not in bad]
            rest, at = rest.take(pa.array(kept, pa.int64())), [at[row] for row in kept]
        else:
            return rest, dict(sorted(refused.items()))


def make_dead_letters(
    table: pa.Table,
    reasons: Mapping[int, str],
    member: str,
    *,
    records: pa.Table | None = None,
    read: pa.Table | None = None,
) -> pa.Table:
    """Return the dead letters of refused rows: the row as JSON, the reason, the member and the Kafka record behind it.

    Args:
        table: the table with the rows.
        reasons: the reason for each refused row, by its index in the table.
        member: the member that submitted the table.
        records: the Kafka records of all rows of the table, in the same order; None: they are found by the rows'
            columns `topic`, `partition` and `offset`, or are null without these.
        read: records in which to look up those columns; None: the record is taken from the row's own columns.
    """
    rows = list(reasons)
    bad = table.take(pa.array(rows, pa.int64()))
    if records is not None:
        found = _as_record(records.take(pa.array(rows, pa.int64())))
    elif _says_its_record(bad):
        found = _as_record(bad) if read is None or _is_record(bad) else _looked_up(bad, read)
    else:
        found = {name: pa.nulls(len(rows), LETTERS.field(name).type) for name in RECORD}
    texts = [None] * len(rows) if _is_record(bad) else [_row_text(bad, row) for row in range(len(rows))]
    columns = [found[name] for name in RECORD]
    columns += [pa.array(texts, pa.string()), _without_zeros(pa.array(reasons.values(), pa.string()))]
    return pa.Table.from_arrays([*columns, pa.array([member] * len(rows), pa.string())], schema=LETTERS)


def make_undecoded_dead_letters(letters: pa.ChunkedArray[Any], member: str) -> pa.Table:
    """Return the dead letters of Kafka records whose values could not be decoded.

    Args:
        letters: a struct of the record's columns and the reason for each such record; null for other records.
        member: the member that read them.
    """
    found = letters.drop_null()
    columns = [
        _without_far_times(pc.struct_field(found, name).cast(LETTERS.field(name).type)) for name in (*RECORD, "reason")
    ]
    rows, names = pa.nulls(len(found), pa.string()), pa.array([member] * len(found), pa.string())
    return pa.Table.from_arrays([*columns[:-1], rows, _without_zeros(columns[-1]), names], schema=LETTERS)


def _without_zeros(texts: Any) -> Any:
    """Escape zero bytes in texts of errors, which may quote a value: PostgreSQL can't store them."""
    return pc.replace_substring(texts, "\0", "\\0")


def _without_far_times(column: Any) -> Any:
    """Replace timestamps outside the years 1 to 9999, which some sinks can't store, by null."""
    if not pa.types.is_timestamp(column.type):
        return column
    return pc.if_else(out_of_range_times(column), pa.scalar(None, column.type), column)


def _is_record(rows: pa.Table) -> bool:
    """Return whether the rows are unchanged Kafka records, with topic, partition, offset, and binary key and value."""
    return _says_its_record(rows) and all(
        rows.column_names.count(name) == 1 and rows.schema.field(name).type.equals(pa.binary())
        for name in ("key", "value")
    )


def _says_its_record(rows: pa.Table) -> bool:
    if not has_source_columns(rows):
        return False
    topic, *numbers = (rows.schema.field(name).type for name in SOURCE)
    return pa.types.is_string(topic) and all(map(pa.types.is_integer, numbers))


def _as_record(rows: pa.Table) -> dict[str, Any]:
    """Return the Kafka record's columns (topic to value) as far as the rows have them; the others are null."""
    found: dict[str, Any] = {}
    for name in RECORD:
        kind = LETTERS.field(name).type
        column = rows.column(name) if rows.column_names.count(name) == 1 else None
        if column is not None and _is_alike(column.type, kind):
            found[name] = _without_far_times(column.cast(kind, safe=False))
        else:
            found[name] = pa.nulls(rows.num_rows, kind)
    return found


def _is_alike(given: pa.DataType, kind: pa.DataType) -> bool:
    return (
        given.equals(kind)
        or (pa.types.is_integer(given) and pa.types.is_integer(kind))
        or (pa.types.is_timestamp(given) and pa.types.is_timestamp(kind))
    )


def _looked_up(bad: pa.Table, read: pa.Table) -> dict[str, Any]:
    """Return the Kafka records of refused rows, found in `read` by the rows' topic, partition and offset."""
    near = read.filter(pc.is_in(read.column("offset"), bad.column("offset").cast(pa.int64())))
    where = {record: row for row, record in enumerate(_names_of(near))}
    rows = pa.array([where.get(record) for record in _names_of(bad)], pa.int64())
    return _as_record(near.take(rows)) | {name: _as_record(bad)[name] for name in SOURCE}


def _names_of(rows: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(rows.column(name).to_pylist() for name in SOURCE), strict=True))


def _row_text(table: pa.Table, row: int) -> str:
    """Return a refused row as a JSON object for its dead letter; a value that JSON can't express becomes text."""
    values = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            values[name] = _plain(column[row].as_py())
        except (OverflowError, ValueError):
            values[name] = value_text(column[row])
    return json.dumps(values, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Sequence):
        return [_plain(part) for part in value]
    return str(value)


class DeadLetterLog:
    """Warnings of a member about its dead letters, at most one in 30 s, with the number of rows since the last."""

    def __init__(self, member: str, place: str) -> None:
        self._member, self._place = member, place
        self._throttle = IntervalThrottle(SAY_S)

    def add(self, count: int, reason: str = "see the column reason there") -> None:
        """Count dead letters; log the count since the last warning, unless that is less than 30 s ago."""
        if since := self._throttle.count_event(number=count):
            log.warning(
                "[member %s] refused rows become dead letters in %s with the next checkpoint: %s rows since "
                "the last such line, one of them because: %s",
                self._member,
                self._place,
                since,
                reason,
            )
