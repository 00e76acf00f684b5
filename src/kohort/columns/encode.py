"""The encoder of records and Arrow columns into record batches."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kohort.columns.choice import COMPILED, Chunk, compiled_encode, murmur2
from kohort.errors import InvalidInputError
from kohort.wire.checksum import crc32c

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Chunk", "ColumnNames", "encode_arrow", "highest_partition", "murmur2", "partition_for_key", "restamp"]

_PRODUCER_AT = 43
_CRC_AT = 17
_CRC_START = 21
INT32_MAX = 2**31 - 1
_PER_MS = {"s": None, "ms": 1, "us": 1000, "ns": 1_000_000}


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """The columns of a table that become the parts of a record; None: the record lacks the part.

    Attributes:
        key: Bytes or strings.
        value: Bytes or strings.
        partition: Whole numbers; None: `murmur2` of the key chooses, and rows without a key go together.
        timestamp: Timestamps; None: now.
        headers: list<struct<key: string, value: binary>>, as `decode` gives them.
    """

    key: str | None = "key"
    value: str | None = "value"
    partition: str | None = None
    timestamp: str | None = None
    headers: str | None = None


def partition_for_key(key: bytes | bytearray | memoryview, count: int) -> int:
    """Return the partition that Kafka's own producers choose for a key among `count` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % count


def restamp(batch: memoryview, producer_id: int, producer_epoch: int, sequence: int) -> None:
    """Change the producer id, epoch and sequence of a sealed batch, in place."""
    struct.pack_into(">qhi", batch, _PRODUCER_AT, producer_id, producer_epoch, sequence)
    struct.pack_into(">I", batch, _CRC_AT, crc32c(batch[_CRC_START:]))


def encode_arrow(
    batch: pa.RecordBatch, names: ColumnNames, count: int, pick_sticky: Callable[[], int], now: int, limit: int
) -> list[tuple[int, Chunk]]:
    """Return the rows of an Arrow batch as record batches for partitions, in the order in which they were filled.

    Args:
        batch: The rows.
        names: The column of each part of a record.
        count: Partitions of the topic.
        pick_sticky: Gives the partition of rows without a key; called again after each full batch.
        now: Milliseconds, for rows without a time of their own.
        limit: Bytes of a batch with its header.

    Raises:
        InvalidInputError: a column is missing or of a type that can't be sent, or a partition does not exist.
    """
    if not COMPILED:
        return _encode_plain(batch, names, count, pick_sticky, now, limit)
    columns = (_bytes(batch, names.key), _bytes(batch, names.value), _headers(batch, names.headers))
    chunks: list[tuple[int, Chunk]] = compiled_encode.encode_columns(
        len(batch),
        columns,
        _times(batch, names.timestamp),
        _partitions(batch, names.partition),
        count,
        pick_sticky,
        now,
        limit,
    )
    return chunks


def highest_partition(batch: pa.RecordBatch | pa.Table, name: str | None) -> int:
    """Return the highest number in the column of partitions; -1 if there is none, or the column can't be sent."""
    at = -1 if name is None else batch.schema.get_field_index(name)
    if at < 0:
        return -1
    import pyarrow as pa
    import pyarrow.compute as pc

    column = batch.column(at)
    highest = pc.max(column).as_py() if pa.types.is_integer(column.type) else None
    return highest if highest is not None and highest <= INT32_MAX else -1


def _column(batch: pa.RecordBatch, name: str) -> Any:
    at = batch.schema.get_field_index(name)
    if at < 0:
        raise InvalidInputError(f"there is no column {name!r}; there are {', '.join(batch.schema.names)}")
    return batch.column(at)


def _as_bytes(array: Any, name: str) -> Any:
    """Convert an Arrow array of keys or values to a binary or string type that the compiled encoder reads.

    Raises:
        InvalidInputError: the column has another type.
    """
    import pyarrow as pa

    kind = array.type
    plain = (pa.types.is_binary, pa.types.is_string, pa.types.is_large_binary, pa.types.is_large_string)
    if any(test(kind) for test in plain) or pa.types.is_fixed_size_binary(kind):
        return array
    if pa.types.is_dictionary(kind):
        return _as_bytes(array.dictionary_decode(), name)
    if pa.types.is_null(kind):
        return array.cast(pa.binary())
    try:
        views = kind in (pa.binary_view(), pa.string_view())
    except AttributeError:
        views = False
    if views:
        return array.cast(pa.large_binary())
    raise InvalidInputError(
        f"column {name!r} is of type {kind}; keys and values are bytes or strings: convert it first"
    )


def _buffers(array: Any) -> Any:
    """Return the compiled encoder's `Column` for an Arrow array of binary or strings, without copying its memory."""
    import pyarrow as pa

    column = compiled_encode.Column
    kind = array.type
    buffers = array.buffers()
    if pa.types.is_fixed_size_binary(kind):
        return column(buffers, array.offset, 0, kind.byte_width)
    if buffers[1] is None or buffers[1].size == 0:
        return column([None, None, None], 0, -1)
    large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    return column(buffers, array.offset, 8 if large else 4)


def _bytes(batch: pa.RecordBatch, name: str | None) -> Any:
    return None if name is None else _buffers(_as_bytes(_column(batch, name), name))


def _headers(batch: pa.RecordBatch, name: str | None) -> Any:
    if name is None:
        return None
    lists, names, contents = _header_arrays(_column(batch, name), name)
    places = compiled_encode.Column(lists.buffers()[:2], lists.offset, 4)
    return compiled_encode.HeaderColumn(places, _buffers(names), _buffers(contents))


def _header_arrays(lists: Any, name: str) -> tuple[Any, Any, Any]:
    """Split an Arrow column of headers into its lists, the header names, and the header values."""
    import pyarrow as pa

    from kohort.columns.arrow import HEADERS

    if lists.type != HEADERS:
        try:
            lists = lists.cast(HEADERS)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidInputError(f"column {name!r} is of type {lists.type}; headers are {HEADERS}") from error
    _refuse_headers_without_name(lists, name)
    entries = lists.values
    return lists, entries.field(0), entries.field(1)


def _refuse_headers_without_name(lists: Any, name: str) -> None:
    """Refuse headers without a name, as `Producer.send` does; content may be missing."""
    if not lists.flatten().flatten()[0].null_count:
        return
    rows = lists.to_pylist()
    at = next(at for at, row in enumerate(rows) if any(not header or header["key"] is None for header in row or ()))
    raise InvalidInputError(f"column {name!r}, row {at}: a header has no key: {rows[at]!r:.200}")


def _times(batch: pa.RecordBatch, name: str | None) -> Any:
    if name is None:
        return None
    import pyarrow as pa

    array = _column(batch, name)
    kind = array.type
    if pa.types.is_timestamp(kind):
        if kind.unit == "s":
            array = array.cast(pa.timestamp("ms", kind.tz))
        per_ms = _PER_MS[array.type.unit]
    elif kind == pa.int64():
        per_ms = 1
    else:
        raise InvalidInputError(f"column {name!r} is of type {kind}; times are timestamps, or int64 in milliseconds")
    _refuse_nulls(array, name)
    _refuse_before_1970(array, name)
    return array.buffers()[1], array.offset, per_ms


def _refuse_before_1970(array: Any, name: str) -> None:
    """Refuse negative timestamps, as `Producer.send` does: Kafka takes -1 for "none"."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = array.cast(pa.int64())
    first = pc.min(numbers).as_py()
    if first is not None and first < 0:
        at = pc.index(numbers, first).as_py()
        shown = array[at]
        if pa.types.is_timestamp(array.type) and array.type.tz is not None:  # Python may have no zone of its name
            shown = shown.cast(pa.timestamp(array.type.unit, "UTC"))
        raise InvalidInputError(f"column {name!r}, row {at}: {shown} is before 1970, and no record's time can be")


def _partitions(batch: pa.RecordBatch, name: str | None) -> Any:
    if name is None:
        return None
    import pyarrow as pa

    array = _column(batch, name)
    if not pa.types.is_integer(array.type):
        raise InvalidInputError(f"column {name!r} is of type {array.type}; partitions are whole numbers")
    _refuse_nulls(array, name)
    try:
        array = array.cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise InvalidInputError(f"column {name!r}: {error}") from error
    return array.buffers()[1], array.offset


def _refuse_nulls(array: Any, name: str) -> None:
    if array.null_count:
        raise InvalidInputError(f"column {name!r} has nulls")


def _encode_plain(
    batch: pa.RecordBatch, names: ColumnNames, count: int, pick_sticky: Callable[[], int], now: int, limit: int
) -> list[tuple[int, Chunk]]:
    from kohort.columns.reference_encode import encode_rows

    rows: dict[str, list[Any]] = {"": [None] * len(batch)}
    for part, name in (("key", names.key), ("value", names.value)):
        if name is not None:
            cells = _as_bytes(_column(batch, name), name).to_pylist()
            rows[part] = [cell.encode() if isinstance(cell, str) else cell for cell in cells]
    if names.headers is not None:
        lists, _, _ = _header_arrays(_column(batch, names.headers), names.headers)
        rows["headers"] = [[(header["key"], header["value"]) for header in row or ()] for row in lists.to_pylist()]
    if names.timestamp is not None:
        _, _, per_ms = _times(batch, names.timestamp)
        array = _column(batch, names.timestamp)
        if str(array.type).startswith("timestamp[s"):
            import pyarrow as pa

            array = array.cast(pa.timestamp("ms", array.type.tz))
        rows["timestamp"] = [stamp // per_ms for stamp in array.cast("int64").to_pylist()]
    if names.partition is not None:
        _partitions(batch, names.partition)
        rows["partition"] = _column(batch, names.partition).to_pylist()
    return encode_rows(rows, count, pick_sticky, now, limit)
