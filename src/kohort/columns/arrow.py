"""The Arrow types of the columns: those of Spark's Kafka source, plain binary and string."""

from __future__ import annotations

import functools

import pyarrow as pa

from kohort.columns.shapes import DecodeOptions

HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))

_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestampType": pa.int32(),
    "headers": HEADERS,
}


@functools.lru_cache(maxsize=64)
def schema(options: DecodeOptions) -> pa.Schema:
    """The schema of the batches that a decode with these options gives.

    Rows without headers have null in the headers column, as in Spark's Kafka source.
    """
    stamp = pa.timestamp(options.timestamp_unit, tz=options.timestamp_zone)
    return pa.schema([pa.field(name, stamp if name == "timestamp" else _TYPES[name]) for name in options.columns])
