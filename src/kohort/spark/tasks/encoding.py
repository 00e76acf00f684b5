"""Values of the sink with a schema id before them: the driver registers the schema once for each batch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from kohort.errors import InvalidInputError
from kohort.spark.sink_options import KafkaSinkOptions


@dataclass(frozen=True, slots=True)
class ValueEncoding:
    """The encoding of the column `value` as bytes, in plain values that are pickled to the workers.

    Attributes:
        form: avro, json or protobuf.
        schema: the Avro schema; of Protobuf a descriptor set in Base64; the JSON Schema to compare values with, or "".
        number: its id.
        message: the full name of Protobuf's message.
    """

    form: str
    schema: str
    number: int
    message: str = ""

    @classmethod
    def register_schema(cls, options: KafkaSinkOptions, kind: DataType) -> ValueEncoding:
        """Register the schema of the column `value` in the schema registry, and return its encoding.

        Raises:
            InvalidInputError: the type has no Avro schema, or the registry refuses the schema; or the message
                lacks a field for a column.
            RetriableError: the registry can't be reached.
        """
        from kohort.schema_registry.avro_values import avro_writer
        from kohort.schema_registry.json_values import json_schema_checker
        from kohort.schema_registry.registry import SchemaRegistry
        from kohort.spark.values.declared import avro_schema_of, json_schema_of
        from kohort.spark.values.types import arrow_type

        if options.value_format == "protobuf":
            return cls._registered_protobuf(options, kind)
        arrow_type(kind)  # which types there are
        assert options.schema_registry_url is not None
        registry, subject = SchemaRegistry(options.schema_registry_url), f"{options.topic}-value"
        schema = options.value_schema
        if options.value_format == "json":
            if schema is not None:
                json_schema_checker(schema)  # an invalid schema is not registered
            written = schema or json.dumps(json_schema_of(kind))
            return cls("json", schema or "", registry.register(subject, written, "JSON"))
        schema = schema or json.dumps(avro_schema_of(kind))
        avro_writer(schema, 0)
        return cls("avro", schema, registry.register(subject, schema))

    @classmethod
    def _registered_protobuf(cls, options: KafkaSinkOptions, kind: DataType) -> ValueEncoding:
        from kohort.schema_registry.protobuf_schemas import compile_protobuf
        from kohort.schema_registry.registry import SchemaRegistry

        assert options.schema_registry_url is not None
        registry, subject = SchemaRegistry(options.schema_registry_url), f"{options.topic}-value"
        found = registry.latest(subject) if options.value_schema is None else None
        if found is not None and found.kind != "PROTOBUF":
            raise InvalidInputError(f"the newest schema of {subject} is of the kind {found.kind}, and not PROTOBUF")
        text, imports = (options.value_schema or "", ()) if found is None else (found.text, found.imports)
        schema = compile_protobuf(text, imports, "valueSchema" if found is None else f"the newest schema of {subject}")
        message = schema.message_named(options.value_message)
        schema.indexes_of(message)
        check_columns(kind, message)
        number = registry.register(subject, text, "PROTOBUF") if found is None else found.id
        return cls("protobuf", schema.descriptor_set_text(), number, str(message.full_name))

    def encode_values(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch whose column `value` is bytes; null stays null.

        Raises:
            InvalidInputError: a value is not of the schema; the text names its row in the batch.
        """
        write = _writer(self)
        at = batch.schema.get_field_index("value")
        column = _in_utc(batch.column(at))
        form_of = (_json_form if self.form == "json" else _with_maps)(column.type)
        found: list[bytes | None] = []
        for row, scalar in enumerate(column):
            try:
                value = scalar.as_py()
                made = form_of(value) if form_of is not None else value
                found.append(None if made is None else write(made))
            except (InvalidInputError, ValueError, OverflowError) as error:
                raise InvalidInputError(f"row {row} of a batch: {error}") from None
        return batch.set_column(at, pa.field("value", pa.binary()), pa.array(found, pa.binary()))


@lru_cache(maxsize=16)
def _writer(encoding: ValueEncoding) -> Callable[[Any], bytes]:
    """Return a function that encodes one value; it is cached, since parsing a schema takes longer than a value."""
    if encoding.form == "json":
        return _json_writer(encoding)
    if encoding.form == "protobuf":
        from kohort.schema_registry.protobuf_schemas import ProtobufSchema
        from kohort.schema_registry.protobuf_values import protobuf_writer

        schema = ProtobufSchema.from_descriptor_set(encoding.schema, "the schema")
        return protobuf_writer(schema, encoding.number, encoding.message)
    from kohort.schema_registry.avro_values import avro_writer

    return avro_writer(encoding.schema, encoding.number)


def _json_writer(encoding: ValueEncoding) -> Callable[[Any], bytes]:
    """Return a function that writes values as Spark's `to_json` does, with times to the microsecond and in UTC."""
    import msgspec

    from kohort.schema_registry.json_values import json_schema_checker
    from kohort.schema_registry.prefix import schema_prefix

    prefix, encode = schema_prefix(encoding.number), msgspec.json.Encoder(decimal_format="number").encode
    if not encoding.schema:
        return lambda value: prefix + encode(value)
    check = json_schema_checker(encoding.schema)

    def write_checked(value: Any) -> bytes:
        data = encode(value)
        check(json.loads(data))
        return prefix + data

    return write_checked


def check_columns(kind: DataType, message: Any, path: str = "value") -> None:
    """Check that a column has no fields beside those of a message.

    Raises:
        InvalidInputError: the column has such fields, or is no struct.
    """
    from kohort.schema_registry.protobuf_values import is_map, well_known_kind

    if not isinstance(kind, StructType):
        raise InvalidInputError(
            f"the column {path} is {kind.simpleString()}, and the message {message.full_name} a struct"
        )
    for column in kind.fields:
        field, inner = message.fields_by_name.get(column.name), f"{path}.{column.name}"
        if field is None:
            names = ", ".join(found.name for found in message.fields)
            raise InvalidInputError(f"{inner} is no field of the message {message.full_name}, which has {names[:300]}")
        part: DataType = column.dataType
        if is_map(field):
            field = field.message_type.fields_by_name["value"]
            part = part.valueType if isinstance(part, MapType) else part
        elif field.is_repeated:
            part = part.elementType if isinstance(part, ArrayType) else part
        if field.message_type is not None and not well_known_kind(field.message_type):
            check_columns(part, field.message_type, inner)


def _in_utc(column: Any) -> Any:
    """Return a column with its times in UTC.

    Spark gives them in the session's time zone. Python has no zone of some names that Spark takes, as GMT+08:00.
    """
    kind = _utc_kind(column.type)
    return column if kind.equals(column.type) else column.cast(kind)


def _utc_kind(kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(_utc_kind(part.type)) for part in kind])
    if pa.types.is_map(kind):
        return pa.map_(_utc_kind(kind.key_type), kind.item_field.with_type(_utc_kind(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_utc_kind(kind.value_type)))
    return kind


def _with_maps(kind: Any) -> Callable[[Any], Any] | None:
    """Return a function that turns Arrow's lists of key-value pairs into dicts; None: the type contains no map."""
    if pa.types.is_map(kind):
        inner = _with_maps(kind.item_type) or (lambda item: item)
        return lambda found: None if found is None else {key: inner(item) for key, item in found}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item_of = _with_maps(kind.value_type)
        return None if item_of is None else lambda found: None if found is None else [item_of(item) for item in found]
    if pa.types.is_struct(kind):
        parts = {field.name: made for field in kind if (made := _with_maps(field.type)) is not None}
        if parts:
            return lambda found: (
                None if found is None else {**found, **{name: part(found[name]) for name, part in parts.items()}}
            )
    return None


def _json_form(kind: Any) -> Callable[[Any], Any] | None:
    """Return a function that converts values of an Arrow type to objects for JSON; None: no conversion is needed.

    Null fields are left out, as in Spark's `to_json`. A 32-bit float gets the shortest digits that stand for it.
    """
    if pa.types.is_floating(kind):
        return _single if kind.bit_width == 32 else _finite
    if pa.types.is_timestamp(kind) and kind.tz:
        return lambda found: None if found is None else found.astimezone(UTC)
    if pa.types.is_map(kind):
        inner = _json_form(kind.item_type) or _same
        return lambda found: None if found is None else {key: inner(item) for key, item in found}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item_of = _json_form(kind.value_type)
        return None if item_of is None else lambda found: None if found is None else [item_of(item) for item in found]
    if pa.types.is_struct(kind):
        parts = {field.name: _json_form(field.type) or _same for field in kind}

        def without_nulls(found: Any) -> Any:
            if found is None:
                return None
            return {name: part(found[name]) for name, part in parts.items() if found[name] is not None}

        return without_nulls
    return None


def _same(found: Any) -> Any:
    return found


def _finite(found: float | None) -> float | None:
    """Return the number, which JSON must be able to express.

    Raises:
        ValueError: it is NaN or infinite.
    """
    if found is not None and not math.isfinite(found):
        raise ValueError(f"JSON has no number {found}: use nanvl, or make it null")
    return found


def _single(found: float | None) -> float | None:
    """Return the shortest decimal number that stands for a 32-bit float: up to six digits, or up to nine if needed."""
    if _finite(found) is None or found is None:
        return None
    for digits in (6, 7, 8):
        short = float(f"{found:.{digits}g}")
        if pa.scalar(short, pa.float32()).as_py() == found:
            return short
    return float(f"{found:.9g}")
