"""The declaration of values in a query's options: checked first, and turned into types once Spark has parsed them."""

from __future__ import annotations

import json  # not msgspec: text of other programs, with NaN and integers of any size
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from pyspark.sql import types as spark
from pyspark.sql.types import DataType, StructType, _parse_datatype_json_string

from kohort.errors import InvalidInputError
from kohort.schema_registry.avro_references import inline_avro_references
from kohort.schema_registry.protobuf_schemas import ProtobufSchema, compile_protobuf
from kohort.schema_registry.registry import SchemaRegistry
from kohort.spark.options import SourceOptions
from kohort.spark.values.avro_parsed import parse_for_fastavro
from kohort.spark.values.avro_records import load_named_function
from kohort.spark.values.avro_schema import parse_avro_schema, schema_to_node
from kohort.spark.values.decoding import Values
from kohort.spark.values.moments import iana_zone
from kohort.spark.values.protobuf_records import ddl_of_message
from kohort.spark.values.types import arrow_type, ddl_of

_ONE_TYPE = re.compile(r"\s*(?:(?:array|map|struct)\s*<.*>|\w+\s*(?:\([\d\s,]*\))?)\s*", re.IGNORECASE | re.DOTALL)
"""A type by itself, such as INT, DECIMAL(10, 2) or ARRAY<INT>; anything else is a list of fields."""


@dataclass(frozen=True, slots=True)
class DeclaredValues:
    """The format and type of values.

    Attributes:
        format: string, json, avro or protobuf.
        on_bad: fail, null or column.
        zone: the zone of times that name none.
        ddl: the type in DDL, for Spark's parser.
        avro: the schema of values, if it was given as an Avro schema.
        writer_schemas: module:function, with the format avro.
        registry: the URL of a schema registry; a value begins with its schema's id.
        protobuf: the schema of values as a descriptor set in Base64, and the message's full name.
    """

    format: str
    on_bad: str
    zone: str
    ddl: str
    avro: str | None = None
    writer_schemas: str | None = None
    registry: str | None = field(default=None, repr=False)
    protobuf: tuple[str, str] | None = field(default=None, repr=False)

    def values(self, schema: StructType, columns: tuple[str, ...]) -> Values:
        """Return the settings by which tasks decode values.

        Args:
            schema: the source's schema, as Spark has parsed it.
            columns: the names that it must have.

        Raises:
            InvalidInputError: values can't have the type, or the text was more than one type.
        """
        if tuple(schema.fieldNames()) != columns:
            raise InvalidInputError(
                f"the columns are {', '.join(schema.fieldNames())}, and not {', '.join(columns)}: valueSchema must be "
                "one type, or fields as in `a INT, b STRING`, and the read can't have a schema of its own"
            )
        kind = schema["value"].dataType
        made = arrow_type(kind, of_protobuf=self.protobuf is not None)
        avro = self.avro
        if self.format == "avro" and avro is None:
            schema = avro_schema_of(kind)
            schema_to_node(schema)
            avro = json.dumps(schema)
        return Values(
            self.format,
            made,
            self.on_bad,
            self.zone,
            avro,
            self.writer_schemas,
            self.registry,
            self.protobuf,
            of_ddl=self.avro is None,
        )


_FIELDS = "fields as in `a INT, b STRING`, or one type as ARRAY<INT>"
_SCHEMA_FORMS = {
    "json": _FIELDS,
    "avro": f"{_FIELDS}, or an Avro schema",
    "protobuf": "the text of a .proto file",
}
_KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF"}
"""The registry's name of each format whose newest schema can be the type of values."""


def parse_declared_values(options: SourceOptions) -> DeclaredValues:
    """Check the options about typed values, and return what they declare.

    Raises:
        InvalidInputError: options do not belong together, a schema is invalid, or a library is not installed.
    """
    form, text = options.value_format, options.value_schema
    if form is None:
        given = {
            "valueSchema": text is not None,
            "valueTimeZone": options.value_time_zone is not None,
            "valueWriterSchemas": options.value_writer_schemas is not None,
            "valueMessage": options.value_message is not None,
            "schemaRegistryUrl": options.schema_registry_url is not None,
            "onBadRecord": True,
        }
        name = next(name for name, is_given in given.items() if is_given)
        raise InvalidInputError(f"the option {name} needs valueFormat: string, json, avro or protobuf")
    for name, value, only in (
        ("valueTimeZone", options.value_time_zone, "json"),
        ("valueWriterSchemas", options.value_writer_schemas, "avro"),
        ("valueMessage", options.value_message, "protobuf"),
    ):
        if value is not None and form != only:
            raise InvalidInputError(f"the option {name} belongs to valueFormat={only}, and valueFormat is {form}")
    if options.schema_registry_url is not None:
        _check_registry(options)
    if form == "string":
        if text is not None:
            raise InvalidInputError("valueFormat=string takes no valueSchema: values are strings as they are")
        return DeclaredValues(form, options.on_bad_record, "UTC", "string")
    if text is None or not text.strip():
        raise InvalidInputError(f"valueFormat={form} needs valueSchema: {_SCHEMA_FORMS[form]}")
    if form == "json":
        declared = DeclaredValues(form, options.on_bad_record, _zone(options.value_time_zone), _ddl(text))
        return replace(declared, registry=options.schema_registry_url)
    if form == "protobuf":
        return replace(_protobuf(text, options), registry=options.schema_registry_url)
    return replace(_avro(text, options), registry=options.schema_registry_url)


def _check_registry(options: SourceOptions) -> None:
    """Check the options that go with schemaRegistryUrl.

    Raises:
        InvalidInputError: the URL is invalid, or another option contradicts it.
    """
    assert options.schema_registry_url is not None
    SchemaRegistry(options.schema_registry_url)
    if options.value_format == "string":
        raise InvalidInputError("the option schemaRegistryUrl belongs to valueFormat=avro, json or protobuf")
    if options.value_writer_schemas is not None:
        raise InvalidInputError("schemaRegistryUrl and valueWriterSchemas both have writers' schemas: give one of them")


def schema_from_registry(options: SourceOptions) -> str | None:
    """Return the newest schema of the topic's values, for a read that has a registry and no valueSchema.

    Returns:
        The schema's text, of Protobuf a descriptor set in Base64; None if the options name a schema, or need none.

    Raises:
        InvalidInputError: the read has several topics, or the newest schema is of another kind.
        NotFoundError: the registry has no subject of the topic's values.
        RetriableError: the registry can't be reached.
    """
    kind = _KINDS.get(options.value_format or "")
    if options.schema_registry_url is None or kind is None or options.value_schema is not None:
        return None
    _check_registry(options)
    if options.subscribe is None or len(options.subscribe) != 1:
        raise InvalidInputError("schemaRegistryUrl without valueSchema needs one topic, named by subscribe")
    found = SchemaRegistry(options.schema_registry_url).latest(f"{options.subscribe[0]}-value")
    if found.kind != kind:
        raise InvalidInputError(f"the newest schema of {found.subject} is of the kind {found.kind}, and not {kind}")
    if kind == "AVRO":
        return inline_avro_references(found.text, found.imports, f"the newest schema of {found.subject}")
    return compile_protobuf(found.text, found.imports, f"the newest schema of {found.subject}").descriptor_set_text()


def _avro(text: str, options: SourceOptions) -> DeclaredValues:
    parse_for_fastavro("int")  # fails now if fastavro is not installed
    avro = parse_avro_schema(text) if text.lstrip().startswith(("{", "[", '"')) else None
    if avro is None or (isinstance(avro, dict) and avro.get("type") == "struct"):
        return DeclaredValues("avro", options.on_bad_record, "UTC", _ddl(text), None, options.value_writer_schemas)
    ddl = schema_to_node(avro).ddl
    parse_for_fastavro(avro)
    return DeclaredValues("avro", options.on_bad_record, "UTC", ddl, text, options.value_writer_schemas)


def _protobuf(text: str, options: SourceOptions) -> DeclaredValues:
    schema = _protobuf_schema(text)
    message = schema.message_named(options.value_message)
    ddl = ddl_of_message(message)
    protobuf = (schema.descriptor_set_text(), str(message.full_name))
    return DeclaredValues("protobuf", options.on_bad_record, "UTC", ddl, protobuf=protobuf)


@lru_cache(maxsize=4)
def _protobuf_schema(text: str) -> ProtobufSchema:
    """Return the schema of a .proto file, or of a descriptor set in Base64, which has neither braces nor semicolons."""
    is_file = "{" in text or ";" in text
    return (
        compile_protobuf(text, (), "valueSchema")
        if is_file
        else ProtobufSchema.from_descriptor_set(text, "valueSchema")
    )


def check_writer_schema_function(options: SourceOptions) -> None:
    """Check that the function of valueWriterSchemas exists.

    Call this where the source returns its schema: there, as in the workers, Spark has set up the files that users add
    to a session. In a stream's own process it has not.

    Raises:
        InvalidInputError: there is no such function.
    """
    if options.value_writer_schemas is not None:
        load_named_function(options.value_writer_schemas)


def _zone(name: str | None) -> str:
    try:
        return str(iana_zone(name or "UTC"))
    except ValueError:
        raise InvalidInputError(
            f"valueTimeZone: there is no time zone {name!r}; give a name like Europe/Berlin"
        ) from None


def _ddl(text: str) -> str:
    """Return the DDL of the declared type unchecked: Spark's parser checks it when the source returns its schema."""
    if text.lstrip().startswith("{"):
        return ddl_of(_from_json(text))
    return text.strip() if _ONE_TYPE.fullmatch(text) else f"struct<{text.strip()}>"


def _from_json(text: str) -> DataType:
    """Parse a type from the text of Spark's `DataType.json()`."""
    try:
        return _parse_datatype_json_string(json.dumps(json.loads(text)))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidInputError("valueSchema begins with { and is not what StructType.json() gives") from None


_AVRO: dict[type[DataType], Any] = {
    spark.ByteType: "int",
    spark.ShortType: "int",
    spark.IntegerType: "int",
    spark.LongType: "long",
    spark.FloatType: "float",
    spark.DoubleType: "double",
    spark.BooleanType: "boolean",
    spark.StringType: "string",
    spark.BinaryType: "bytes",
    spark.DateType: {"type": "int", "logicalType": "date"},
    spark.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    spark.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def avro_schema_of(kind: DataType, name: str = "topLevelRecord") -> Any:
    """Return the Avro schema with which Spark's `to_avro` writes a type.

    Args:
        kind: a type that `arrow_type` takes.
        name: the name of the first record.
    """
    if isinstance(kind, spark.DecimalType):
        size = ((10**kind.precision).bit_length() + 8) // 8
        logical = {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        return {"type": "fixed", "name": f"{name}.fixed", "size": size, **logical}
    if isinstance(kind, spark.ArrayType):
        return {"type": "array", "items": _optional(kind.elementType, kind.containsNull, name)}
    if isinstance(kind, spark.MapType):
        return {"type": "map", "values": _optional(kind.valueType, kind.valueContainsNull, name)}
    if isinstance(kind, StructType):
        fields = [
            {"name": field.name, "type": _optional(field.dataType, field.nullable, f"{name}.{field.name}")}
            for field in kind.fields
        ]
        return {"type": "record", "name": name, "fields": fields}
    return _AVRO[type(kind)]


def _optional(kind: DataType, nullable: bool, name: str) -> Any:
    made = avro_schema_of(kind, name)
    return [made, "null"] if nullable else made


_JSON: dict[type[DataType], Mapping[str, str]] = {
    spark.FloatType: {"type": "number"},
    spark.DoubleType: {"type": "number"},
    spark.DecimalType: {"type": "number"},
    spark.BooleanType: {"type": "boolean"},
    spark.StringType: {"type": "string"},
    spark.BinaryType: {"type": "string", "contentEncoding": "base64"},
    spark.DateType: {"type": "string", "format": "date"},
    spark.TimestampType: {"type": "string", "format": "date-time"},
    spark.TimestampNTZType: {"type": "string"},
}


def json_schema_of(kind: DataType) -> dict[str, Any]:
    """Return the JSON Schema, of draft 7, of a type whose values `ValueEncoding` writes as JSON.

    An object has no other properties than the struct's fields. Fields that may be null are not required, since they are
    left out; other parts that may be null also allow the type null.

    Args:
        kind: a type that `arrow_type` takes.
    """
    return {"$schema": "http://json-schema.org/draft-07/schema#", **_json_schema(kind)}


def _json_schema(kind: DataType, *, nullable: bool = False) -> Mapping[str, Any]:
    if nullable:
        return {"oneOf": [{"type": "null"}, _json_schema(kind)]}
    if isinstance(kind, StructType):
        made: dict[str, Any] = {
            "type": "object",
            "properties": {field.name: _json_schema(field.dataType) for field in kind.fields},
            "additionalProperties": False,
        }
        required = [field.name for field in kind.fields if not field.nullable]
        return {**made, "required": required} if required else made
    if isinstance(kind, spark.ArrayType):
        return {"type": "array", "items": _json_schema(kind.elementType, nullable=kind.containsNull)}
    if isinstance(kind, spark.MapType):
        return {"type": "object", "additionalProperties": _json_schema(kind.valueType, nullable=kind.valueContainsNull)}
    if isinstance(kind, spark.IntegralType):
        bits = {spark.ByteType: 8, spark.ShortType: 16, spark.IntegerType: 32}.get(type(kind), 64)
        return {"type": "integer", "minimum": -(1 << bits - 1), "maximum": (1 << bits - 1) - 1}
    return _JSON[type(kind)]
