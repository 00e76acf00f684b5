"""The decoder of `valueFormat=protobuf`: protobuf parses values one by one, and Arrow makes columns of them.

Types are those of Spark's `from_protobuf` with its options `emit.default.values`, `upcast.unsigned.ints` and
`unwrap.primitive.wrapper.types`, so that no value is lost or becomes negative. With a schema registry a value begins
with its schema's id and the message's indexes. It is parsed by the reader's version of the message, after the writer's
was compared with it. Without a registry, the value is only the message.
"""

from __future__ import annotations

from collections import OrderedDict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kohort.errors import CorruptDataError, InvalidInputError, NotFoundError
from kohort.schema_registry.prefix import UnusableSchemaError, schema_id
from kohort.schema_registry.protobuf_changes import reading_differences
from kohort.schema_registry.protobuf_schemas import (
    PARTS_MAX,
    ProtobufSchema,
    check_installed,
    compile_protobuf,
    read_indexes,
)
from kohort.schema_registry.protobuf_values import (
    Convert,
    MessageBudget,
    MessageReaders,
    duration_us,
    enum_names,
    is_map,
    max_value_bytes_of,
    message_class_of,
    parsed_message,
    timestamp_us,
    unknown_enum_prefix,
    well_known_kind,
)
from kohort.schema_registry.registry import SchemaRegistry
from kohort.spark.values.isolate import VALUE_BYTES, ConvertedParts
from kohort.spark.values.types import Column, Kind, quoted

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

WRITERS_MAX = 1_000
"""Most messages of writers' schemas remembered: damaged values can name any."""
WRITERS_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of writers' schemas that are kept, as they are in memory; the one that was used least recently goes first."""
NESTING_MAX = 50
"""Most messages within each other: Arrow and Spark process types recursively."""
_DDL = (
    "", "double", "float", "bigint", "decimal(20,0)", "int", "decimal(20,0)", "bigint", "boolean", "string", "", "",
    "binary", "bigint", "string", "int", "bigint", "int", "bigint",
)  # fmt: skip
"""The Spark type of each type of a field, by its number in descriptor.proto; "" for messages."""
_UNSIGNED_64 = (4, 6)


def ddl_of_message(message: Descriptor) -> str:
    """Return the Spark type of a message as DDL. Fields whose message has no fields are left out, as Spark does.

    Raises:
        InvalidInputError: the message contains itself, has no fields, or has too many.
    """
    found = _TypeWalk().message_ddl(message, ())
    if found is None:
        raise InvalidInputError(f"the message {message.full_name} has no fields")
    return found


class _TypeWalk:
    """One traversal of a message that writes its type as DDL; nested messages are repeated at each use."""

    def __init__(self) -> None:
        self._parts = 0

    def message_ddl(self, message: Descriptor, outer: tuple[str, ...]) -> str | None:
        if message.full_name in outer:
            raise InvalidInputError(
                f"the message {message.full_name} contains itself, and has no Spark type: read such values as bytes"
            )
        if len(outer) >= NESTING_MAX:
            raise InvalidInputError(f"messages are nested deeper than {NESTING_MAX} levels in {outer[0]}")
        self._parts += 1 + len(message.fields)
        if self._parts > PARTS_MAX:
            raise InvalidInputError(f"the message has more than {PARTS_MAX} parts when its types are written out")
        inner = (*outer, message.full_name)
        found = [(field.name, made) for field in message.fields if (made := self._field_ddl(field, inner)) is not None]
        return f"struct<{', '.join(f'{quoted(name)}: {made}' for name, made in found)}>" if found else None

    def _field_ddl(self, field: FieldDescriptor, outer: tuple[str, ...]) -> str | None:
        if is_map(field):
            parts = [self._item_ddl(field.message_type.fields_by_name[name], outer) for name in ("key", "value")]
            return None if parts[1] is None else f"map<{parts[0]}, {parts[1]}>"
        item = self._item_ddl(field, outer)
        return f"array<{item}>" if field.is_repeated and item is not None else item

    def _item_ddl(self, field: FieldDescriptor, outer: tuple[str, ...]) -> str | None:
        message = field.message_type
        if message is None:
            return _DDL[field.type]
        kind = well_known_kind(message)
        if kind == "wrapper":
            return _DDL[message.fields_by_name["value"].type]
        return {"timestamp": "timestamp_ltz", "duration": "interval day to second"}.get(kind) or self.message_ddl(
            message, outer
        )


class _ArrowReaders(MessageReaders):
    """Readers of Protobuf fields that produce the Python values which Arrow accepts."""

    def scalar_converter(self, field: FieldDescriptor) -> Convert | None:
        if field.enum_type is not None:
            names, unknown = enum_names(field), unknown_enum_prefix(field.enum_type)
            return lambda number, _budget: names.get(number) or f"{unknown}{number}"
        if field.type in _UNSIGNED_64:
            return lambda number, _budget: Decimal(number)
        return super().scalar_converter(field)

    def time_converter(self, kind: str) -> Convert:
        read_us = timestamp_us if kind == "timestamp" else duration_us
        return lambda found, _budget: read_us(found)

    def map_converter(self, key: Convert | None, item: Convert | None) -> Convert:
        to_dict = super().map_converter(key, item)
        return lambda found, budget: list(to_dict(found, budget).items())


class ProtobufDecoder:
    """A decoder of Protobuf values, for one thread.

    Attributes:
        type: the Arrow type of decoded values.
    """

    def __init__(self, kind: Kind, schema: str, message: str, registry: str | None = None) -> None:
        """Prepare the decoder.

        Args:
            kind: the type of values.
            schema: the reader's schema, as a descriptor set in Base64.
            message: the message's full name.
            registry: the URL of a schema registry, for values with a prefix.

        Raises:
            InvalidInputError: the schema can't be used, or a library is not installed.
        """
        if registry is not None:
            check_installed()  # without it every schema of a writer would fail
        self.type = kind
        self._schema = ProtobufSchema.from_descriptor_set(schema, "valueSchema")  # keeps the descriptors
        self._message = self._schema.message_named(message)
        self._name = f"the message {message}"
        try:
            self._class = message_class_of(self._message)
            self._read = _ArrowReaders().message_converter(self._message)
        except ValueError as error:
            raise InvalidInputError(f"valueSchema: {error}") from None
        self._most = max_value_bytes_of(self._message, VALUE_BYTES)
        self._registry = None if registry is None else SchemaRegistry(registry)
        self._written: OrderedDict[int, ProtobufSchema | str] = OrderedDict()
        self._written_bytes = 0
        self._refused: dict[tuple[int, tuple[int, ...]], str] = {}

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
            except CorruptDataError as error:
                parts.reasons[row] = error.message
                found.append(None)
        parts.add_converted(found, range(len(values)), lambda some: pa.array(some, self.type))
        return parts

    def _decode_value(self, value: bytes) -> dict[str, Any]:
        if len(value) > self._most:
            raise CorruptDataError(f"{len(value)} bytes are more than the {self._most} that are read of such a schema")
        at = 0
        if self._registry is not None:
            number = schema_id(value)
            indexes, at = read_indexes(value)
            refused = self._refused.get((number, indexes))
            if refused is None:
                refused = self._reason_against(number, indexes)
            if refused:
                raise CorruptDataError(refused)
        message = parsed_message(self._class, value[at:], self._name)
        try:
            return self._read(message, MessageBudget())
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise CorruptDataError(f"no value of {self._name}: {str(error)[:200]}") from None

    def _reason_against(self, number: int, indexes: tuple[int, ...]) -> str:
        """Return why values of a writer's message can't be read as the declared message; "" if they can.

        Args:
            number: the id of the writer's schema.
            indexes: the message in that schema, as in the values' prefix.

        Raises:
            KafkaError: the registry failed, which makes no value bad.
        """
        if len(self._refused) >= WRITERS_MAX:
            self._refused.clear()
        schema = self._writers_schema(number)
        reason = schema if isinstance(schema, str) else self._difference(schema, indexes)
        self._refused[number, indexes] = reason
        return reason

    def _writers_schema(self, number: int) -> ProtobufSchema | str:
        """Return the schema with this id, from the cache or the registry, or a text that says why it can't be used."""
        if number in self._written:
            self._written.move_to_end(number)
            return self._written[number]
        found = self._written[number] = self._look_up(number)
        self._written_bytes += _bytes_of(found)
        while len(self._written) > 1 and self._written_bytes > WRITERS_BYTES_MAX:
            self._written_bytes -= _bytes_of(self._written.popitem(last=False)[1])
        return found

    def _difference(self, schema: ProtobufSchema, indexes: tuple[int, ...]) -> str:
        try:
            message = schema.message_at(indexes)
        except CorruptDataError as error:
            return error.message
        if message.full_name != self._message.full_name:
            return f"{schema.name}: a {message.full_name} was written, and {self._message.full_name} is read"
        difference = next(reading_differences(message, self._message), "")
        return difference and f"{schema.name}: {difference}"

    def _look_up(self, number: int) -> ProtobufSchema | str:
        """Ask the registry for the schema with this id; return it, or why it can't be used."""
        assert self._registry is not None
        try:
            found = self._registry.schema(number)
        except NotFoundError:
            return f"there is no schema {number}"
        except CorruptDataError as error:
            return error.message
        if found.kind != "PROTOBUF":
            return f"the schema {number} is of the kind {found.kind}, and not PROTOBUF"
        try:
            return compile_protobuf(found.text, found.imports, f"the schema {number}")
        except UnusableSchemaError as error:
            return error.message


def _bytes_of(schema: ProtobufSchema | str) -> int:
    return 200 + (len(schema) if isinstance(schema, str) else schema.counted_bytes)
