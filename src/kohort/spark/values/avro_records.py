"""The decoder of `valueFormat=avro`: fastavro decodes values one by one, and Arrow makes columns of the results.

With a schema registry, or a function for writer schemas, a value begins with its schema's id, as Confluent's
serializers write it. Without these, the value is only the datum.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kohort.errors import CorruptDataError, InvalidInputError, KafkaError, NotFoundError
from kohort.schema_registry.avro_limits import check_avro_schema, without_defaults
from kohort.schema_registry.avro_references import inline_avro_references
from kohort.schema_registry.prefix import PREFIX_BYTES, UnusableSchemaError, has_prefix, schema_id
from kohort.schema_registry.registry import SchemaRegistry
from kohort.spark.values.avro_parsed import adapt_reader_schema, parse_for_fastavro
from kohort.spark.values.avro_schema import (
    ArrayNode,
    LeafNode,
    MapNode,
    Node,
    RecordNode,
    SkippedNode,
    is_ms_read_as_us,
    misread_numbers,
    parse_avro_schema,
    schema_to_node,
)
from kohort.spark.values.isolate import VALUE_BYTES, ConvertedParts, check_value_size
from kohort.spark.values.types import Column, Kind

_SCHEMAS = 1_000
"""Most schema ids remembered: damaged values can name any."""
_EXACT = Context(prec=100)
_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_NUMBERED = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}


@dataclass(frozen=True, slots=True)
class _WriterSchema:
    """The schemas and the conversion for values of one writer.

    Attributes:
        schema: the writer's schema, parsed.
        refused: why the schema can't be used; "" if it can.
        most: the maximum size of a value in bytes; a larger one counts as bad.
        reader: the reader's schema, parsed.
        repair: converts a value for Arrow; None if none is needed.
    """

    schema: Any = None
    refused: str = ""
    most: int = 0
    reader: Any = None
    repair: Callable[[Any], Any] | None = None


class AvroDecoder:
    """A decoder of Avro values, for one thread.

    Attributes:
        type: the Arrow type of decoded values.
    """

    def __init__(
        self,
        kind: Kind,
        schema: str,
        writer_schemas: str | None,
        registry: str | None = None,
        *,
        of_ddl: bool = False,
    ) -> None:
        """Prepare the decoder.

        Args:
            kind: the type of values, as Spark compares it.
            schema: the reader's schema, as JSON.
            writer_schemas: module:function, for values with a prefix.
            registry: the URL of a schema registry, for the same.
            of_ddl: whether the type was declared in DDL, so that the schema has names of no meaning.
        """
        text = parse_avro_schema(schema)
        self._text, self._of_ddl = text, of_ddl
        self._schema = parse_for_fastavro(text)
        from fastavro import schemaless_reader

        self.type = kind
        self._read: Callable[..., Any] = schemaless_reader
        self._node = schema_to_node(text)
        self._plain = _plain_type(self._node)
        self._repair = _repair(self._node)
        self._name = writer_schemas
        self._schema_of = None if writer_schemas is None else load_named_function(writer_schemas)
        if registry is not None:
            self._schema_of = _from_registry(registry)
        self._written: dict[int, _WriterSchema] = {}

    def decode(self, values: Column) -> ConvertedParts:
        """Decode every value as the declared type.

        Args:
            values: binary values; a null stays null.
        """
        parts = ConvertedParts(self.type, len(values))
        found: list[Any] = []
        for row, value in enumerate(values.to_pylist()):
            try:
                found.append(None if value is None else self._decode_value(value))
            except _BadValue as error:
                parts.reasons[row] = str(error)
                found.append(None)
        parts.add_converted(found, range(len(values)), lambda some: _finished(pa.array(some, self._plain), self.type))
        return parts

    def _decode_value(self, value: bytes) -> Any:
        try:
            check_value_size(value)
        except ValueError as error:
            raise _BadValue(str(error)) from None
        stream = io.BytesIO(value)
        schema, reader, repair = self._schema, None, self._repair
        if self._schema_of is not None:
            writer = self._writer(value)
            schema, reader, repair = writer.schema, writer.reader, writer.repair
            stream.seek(PREFIX_BYTES)
        try:
            found = self._read(stream, schema, reader)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (damaged bytes make it raise nearly anything)
            raise _BadValue(f"{type(error).__name__}: {str(error)[:200]}") from None
        if stream.tell() != len(value):
            raise _BadValue(f"{len(value) - stream.tell()} bytes follow the datum")
        if repair is None:
            return found
        try:
            return repair(found)
        except ValueError as error:
            raise _BadValue(str(error)) from None

    def _writer(self, value: bytes) -> _WriterSchema:
        try:
            number = schema_id(value)
        except CorruptDataError as error:
            missing = "" if has_prefix(value) else "the prefix is missing: "
            raise _BadValue(missing + error.message) from None
        found = self._written.get(number)
        if found is None:
            if len(self._written) >= _SCHEMAS:
                self._written.clear()
            found = self._written[number] = self._look_up(number)
        if found.refused:
            raise _BadValue(found.refused)
        if len(value) > found.most:
            raise _BadValue(f"{len(value)} bytes are more than the {found.most} that are read of such a schema")
        return found

    def _look_up(self, number: int) -> _WriterSchema:
        """Return the writer's Avro schema with this id, parsed.

        Raises:
            InvalidInputError: the function failed, or returned something other than text; this ends the query.
        """
        assert self._schema_of is not None
        try:
            text = self._schema_of(number)
        except RegistryFailure as failure:
            raise failure.error from None
        except CorruptDataError as error:
            return _WriterSchema(refused=error.message)
        except Exception as error:
            raise InvalidInputError(
                f"valueWriterSchemas: {self._name} failed for the schema {number}: {type(error).__name__}: {error}; "
                "it returns None for an id that does not exist"
            ) from error
        if text is None:
            return _WriterSchema(refused=f"there is no schema {number}")
        if not isinstance(text, str):
            raise InvalidInputError(
                f"valueWriterSchemas: {self._name} gave a {type(text).__name__} for the schema {number}, not its text"
            )
        try:
            _, density = check_avro_schema(text, f"the schema {number}")  # its names are not written out beyond bounds
            schema = parse_avro_schema(text, f"the schema {number}")
            written = schema_to_node(schema, f"the schema {number}", written=True)
            wrong = next(misread_numbers(written, self._node, of_ddl=self._of_ddl), "")
            if wrong:
                return _WriterSchema(refused=f"the schema {number}: {wrong}")
            most, parsed = VALUE_BYTES // density, parse_for_fastavro(without_defaults(schema))
            if not self._of_ddl:
                return _WriterSchema(parsed, "", most, self._schema, self._repair)
            reader = parse_for_fastavro(adapt_reader_schema(self._text, schema))
            return _WriterSchema(parsed, "", most, reader, _repair(self._node, written))
        except InvalidInputError as error:
            return _WriterSchema(refused=error.message)


class RegistryFailure(Exception):
    """Error: the schema registry is unavailable or refuses the client. The task fails; no value counts as bad.

    Attributes:
        error: the failure.
    """

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error.message)
        self.error = error


def _from_registry(url: str) -> Callable[[int], str | None]:
    """Return a function that looks up an Avro schema's text in a registry by id; it returns None for an unknown id."""
    registry = SchemaRegistry(url)

    def schema_text(schema_id: int) -> str | None:
        try:
            found = registry.schema(schema_id)
        except NotFoundError:
            return None
        except CorruptDataError:
            raise
        except KafkaError as error:
            raise RegistryFailure(error) from None
        if found.kind != "AVRO":
            raise CorruptDataError(f"the schema {schema_id} is of the kind {found.kind}, and not AVRO")
        try:
            return inline_avro_references(found.text, found.imports, f"the schema {schema_id}")
        except UnusableSchemaError as error:
            raise CorruptDataError(error.message) from None

    return schema_text


class _BadValue(Exception):
    """A value that does not match the schema."""


def load_named_function(name: str) -> Callable[[int], str | None]:
    """Import and return the function that a text such as `module:function` names.

    Raises:
        InvalidInputError: there is no such function.
    """
    module, colon, function = name.partition(":")
    try:
        if not colon:
            raise ValueError("no colon in it")
        found = getattr(importlib.import_module(module.strip()), function.strip())
    except Exception as error:  # noqa: BLE001 (whatever the module does when it is imported)
        raise InvalidInputError(
            f"valueWriterSchemas must be module:function that Spark's Python can import (here {sys.executable}), "
            f"not {name!r}: {error}"
        ) from None
    if not callable(found):
        raise InvalidInputError(f"valueWriterSchemas: {name} can't be called")
    return found  # type: ignore[no-any-return]


def _plain_type(node: Node) -> Kind:
    """Return the Arrow type in which fastavro's values are collected, before `_finished` converts it."""
    if isinstance(node, RecordNode):
        return pa.struct([pa.field(name, _plain_type(part)) for name, part in node.fields])
    if isinstance(node, ArrayNode):
        return pa.list_(pa.field("element", _plain_type(node.item)))
    if isinstance(node, MapNode):
        return pa.map_(pa.string(), _plain_type(node.value))
    if isinstance(node, SkippedNode):
        raise AssertionError("a reader's schema has a part that can't be read")
    if node.logical == "decimal":
        return pa.decimal128(node.precision, node.scale)
    return _NUMBERED.get(node.logical, _PLAIN[node.avro])


def _repair(node: Node, written: Node | None = None) -> Callable[[Any], Any] | None:
    """Return a function that converts a value for Arrow, such as bytes into decimals; None if none is needed.

    Args:
        node: the reader's type.
        written: the writer's type, whose milliseconds become the microseconds of the reader's; None: it has none.
    """
    if isinstance(node, LeafNode):
        if written is not None and is_ms_read_as_us(written, node):
            return lambda found: None if found is None else found * 1000
        if node.logical != "decimal":
            return None
        scale, limit = node.scale, 10**node.precision
        return lambda found: None if found is None else _decimal(found, scale, limit)
    if isinstance(node, RecordNode):
        parts = dict(written.fields) if isinstance(written, RecordNode) else {}
        repairs = [(name, made) for name, part in node.fields if (made := _repair(part, parts.get(name))) is not None]
        return (lambda found: _repaired_record(found, repairs)) if repairs else None
    if isinstance(node, SkippedNode):
        raise AssertionError("a reader's schema has a part that can't be read")
    if isinstance(node, ArrayNode):
        of_item = _repair(node.item, written.item if isinstance(written, ArrayNode) else None)
        return None if of_item is None else lambda found: None if found is None else [of_item(item) for item in found]
    of_value = _repair(node.value, written.value if isinstance(written, MapNode) else None)
    if of_value is None:
        return None
    return lambda found: None if found is None else [(key, of_value(item)) for key, item in found.items()]


def _repaired_record(found: Any, repairs: list[tuple[str, Callable[[Any], Any]]]) -> Any:
    """Return a copy of a record with some fields converted.

    The record itself may be a default in the schema, which other values share.
    """
    return None if found is None else found | {name: repair(found[name]) for name, repair in repairs}


def _decimal(found: bytes, scale: int, limit: int) -> Decimal:
    number = int.from_bytes(found, "big", signed=True)
    if abs(number) >= limit:
        raise ValueError("a decimal has more digits than its precision")
    return Decimal(number).scaleb(-scale, _EXACT)


def _finished(found: Column, kind: Kind) -> Column:
    """Cast an Arrow column of fastavro's values to the declared type, as milliseconds to microseconds."""
    if found.type.equals(kind):
        return found
    missing = found.is_null() if found.null_count else None
    if pa.types.is_struct(kind):
        parts = [_finished(found.field(i), kind.field(i).type) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=missing)
    if pa.types.is_list(kind):
        items = _finished(found.values, kind.value_type)
        return pa.ListArray.from_arrays(found.offsets, items, type=kind, mask=missing)
    if pa.types.is_map(kind):
        items = _finished(found.items, kind.item_type)
        made: Any = pa.MapArray.from_arrays  # the stubs lack the combination of type and mask
        return made(found.offsets, found.keys, items, type=kind, mask=missing)
    return pc.cast(found, kind)
