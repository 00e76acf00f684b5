"""The decoding of a batch's values in a task."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import pyarrow as pa

from kohort.errors import CorruptDataError
from kohort.schema_registry.prefix import NO_PREFIX, PREFIX_BYTES
from kohort.spark.values.isolate import ConvertedParts, convert_in_parts
from kohort.spark.values.json_columns import JsonDecoder
from kohort.spark.values.moments import iana_zone
from kohort.spark.values.types import Column, Kind, compute

# -- `valueFormat=string`: values that are UTF-8


class TextDecoder:
    """A decoder of strings; a value that is not UTF-8 is bad."""

    type = pa.string()

    def decode(self, values: Column) -> ConvertedParts:
        """Decode and check every value.

        Args:
            values: binary values.
        """
        parts = ConvertedParts(self.type, len(values))
        convert_in_parts(values, range(len(values)), parts, lambda some: some.cast(pa.string()), _one_by_one)
        return parts


def _one_by_one(values: Column, rows: Sequence[int], parts: ConvertedParts) -> None:
    for value, row in zip(values.to_pylist(), rows, strict=True):
        text: str | None = None
        try:
            text = None if value is None else value.decode("utf-8")
        except UnicodeDecodeError as error:
            parts.reasons[row] = f"not UTF-8 at byte {error.start}"
        parts.add_array([row], pa.array([text], pa.string()))


class PrefixedJsonDecoder:
    """A decoder of JSON with a schema id before it, as Confluent's serializer of JSON Schema writes it.

    The type of values is declared, so that the schemas themselves are not needed.
    """

    def __init__(self, decoder: JsonDecoder) -> None:
        self._decoder = decoder

    def decode(self, values: Column) -> ConvertedParts:
        """Decode every value after its prefix; a value without a prefix is bad.

        Args:
            values: binary values.
        """
        starts = compute.binary_slice(values, 0, 1)
        enough = compute.greater_equal(compute.binary_length(values), PREFIX_BYTES)
        is_good = compute.or_kleene(values.is_null(), compute.and_(compute.equal(starts, b"\0"), enough))
        # Not binary_slice without an end: pyarrow 26 fails for an array of more than a few values (negative buffer).
        without_prefix = compute.binary_replace_slice(values, 0, PREFIX_BYTES, b"")
        bare = compute.if_else(is_good, without_prefix, pa.scalar(None, pa.binary()))
        parts = self._decoder.decode(bare)
        for row in compute.indices_nonzero(compute.invert(is_good)).to_pylist():
            parts.reasons[row] = NO_PREFIX
        return parts


class Decoder(Protocol):
    """The interface of a decoder of one value format."""

    def decode(self, values: Column) -> ConvertedParts:
        """Decode every value of a binary array as the declared type."""


@dataclass(frozen=True, slots=True)
class Values:
    """The declared type of values, and the handling of bad ones, as plain values that are pickled to the workers.

    Attributes:
        format: string, json, avro or protobuf.
        kind: the Arrow type.
        on_bad: fail, null or column.
        zone: the zone of times that name none.
        avro: the schema that values are read with, as JSON.
        writer_schemas: module:function, which returns the schema that a value was written with.
        registry: the URL of a schema registry; a value begins with its schema's id.
        protobuf: the schema that values are read with, as a descriptor set in Base64, and the message's full name.
        of_ddl: whether `avro` was made of DDL.
    """

    format: str
    kind: Kind
    on_bad: str
    zone: str
    avro: str | None = None
    writer_schemas: str | None = None
    registry: str | None = field(default=None, repr=False)
    protobuf: tuple[str, str] | None = field(default=None, repr=False)
    of_ddl: bool = False

    def decode_values(self, values: Column, place: Callable[[int], str]) -> tuple[Column, Column, Column]:
        """Return values as the declared type, the bytes of bad ones, and the reasons; a bad value is null.

        Args:
            values: binary values.
            place: names a row in errors.

        Raises:
            CorruptDataError: a value is bad, and on_bad is fail.
        """
        parts = _decoder(self, os.getpid()).decode(values)
        if parts.reasons and self.on_bad == "fail":
            row, reason = min(parts.reasons.items())
            raise CorruptDataError(
                f"{place(row)}: the value is no {self.format} of the declared type: {reason}; onBadRecord=null makes "
                "such values null, onBadRecord=column keeps their bytes in the column badValue"
            )
        return parts.to_array(), _bad_values(values, parts), _reasons(len(values), parts)


def _bad_values(values: Column, parts: ConvertedParts) -> Column:
    if not parts.reasons:
        return pa.nulls(len(values), pa.binary())
    indices = [row if row in parts.reasons else None for row in range(len(values))]
    return values.take(pa.array(indices, pa.int64()))


def _reasons(count: int, parts: ConvertedParts) -> Column:
    if not parts.reasons:
        return pa.nulls(count, pa.string())
    return pa.array([parts.reasons.get(row) for row in range(count)], pa.string())


@lru_cache(maxsize=16)
def _decoder(values: Values, _process: int) -> Decoder:
    """Return the decoder for declared values, made once in each process: a worker runs one task at a time."""
    if values.format == "string":
        return TextDecoder()
    if values.avro is not None:
        from kohort.spark.values.avro_records import AvroDecoder  # imports only needed for Avro

        return AvroDecoder(values.kind, values.avro, values.writer_schemas, values.registry, of_ddl=values.of_ddl)
    if values.protobuf is not None:
        from kohort.spark.values.protobuf_records import ProtobufDecoder

        return ProtobufDecoder(values.kind, *values.protobuf, values.registry)
    decoder = JsonDecoder(values.kind, iana_zone(values.zone))
    return decoder if values.registry is None else PrefixedJsonDecoder(decoder)
