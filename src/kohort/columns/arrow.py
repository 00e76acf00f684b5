"""The Arrow types of the columns: those of Spark's Kafka source, plain binary and string."""

from __future__ import annotations

import functools
from typing import Any, cast

import pyarrow as pa

from kohort.columns.shapes import DecodeOptions

HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))

_TYPES: dict[str, Any] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestampType": pa.int32(),
    "headers": HEADERS,
}


@functools.lru_cache(maxsize=64)
def schema(options: DecodeOptions) -> Any:
    """Return the schema of the batches that a decode with these options gives.

    Rows without headers have null in the headers column, as in Spark's Kafka source.
    """
    stamp: Any = pa.timestamp(cast(Any, options.timestamp_unit), tz=options.timestamp_zone)
    return pa.schema([pa.field(name, stamp if name == "timestamp" else _TYPES[name]) for name in options.columns])


def arrays(block: Any, options: DecodeOptions) -> list[Any]:
    """Return a decoded block's columns as Arrow arrays over its memory, in the order of the options."""
    return [_array(block, field) for field in schema(options)]


def _array(block: Any, field: Any) -> Any:
    if field.name in ("key", "value"):
        return _binary(block, field.name, field.type, block.rows)
    if field.name == "topic":
        ends, data = block.topic()
        return pa.Array.from_buffers(field.type, block.rows, [None, pa.py_buffer(ends), pa.py_buffer(data)], 0)
    if field.name == "headers":
        return _headers(block)
    return pa.Array.from_buffers(field.type, block.rows, [None, pa.py_buffer(block.fixed(field.name))], 0)


def _binary(block: Any, name: str, kind: Any, length: int) -> Any:
    nulls, buffers = block.nullable(name)
    return pa.Array.from_buffers(
        kind, length, [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers], nulls
    )


def _headers(block: Any) -> Any:
    pair = HEADERS.value_type
    if block.entries:
        fields = [_binary(block, part, pair.field(i).type, block.entries) for i, part in enumerate(("name", "content"))]
    else:
        # Not pa.array([]), which imports pandas where it is installed: seconds, the first time.
        none = [None, pa.py_buffer(bytes(4)), pa.py_buffer(b"")]
        fields = [pa.Array.from_buffers(pair.field(i).type, 0, none) for i in range(2)]
    entries = pa.Array.from_buffers(pair, block.entries, [None], 0, children=fields)
    nulls, (valid, ends, _) = block.nullable("headers")
    buffers = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(ends)]
    return pa.Array.from_buffers(HEADERS, block.rows, buffers, nulls, children=[entries])
