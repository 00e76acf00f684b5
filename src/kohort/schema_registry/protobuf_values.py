"""Protobuf values with a schema id before them, as Python objects, by Google's protobuf.

A message is a dict of its fields by name. A field that is not set has its default, or None where Protobuf can tell
that it was not set: messages, `optional`, `oneof`. Enums are names, and numbers without a name stay numbers, except in
the closed enums of proto2, where protobuf drops them. A Timestamp is a datetime, a Duration a timedelta, and a wrapper
its value or None.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.schema_registry.prefix import check_value_size, schema_prefix
from kohort.schema_registry.protobuf_files import is_built_in
from kohort.schema_registry.protobuf_schemas import ProtobufSchema, encode_indexes, read_indexes

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
    from google.protobuf.message import Message

FIELDS_PER_SHARE = 8
"""Fields of a message within another that make a value's limit smaller, each time that there are so many more.

A message of two bytes can be empty, and makes a dict of all its fields and an object of protobuf: 500 bytes for eight.
That is as much for each byte as Avro's limits count on.
"""
MESSAGES_MAX = 500_000
"""Most messages within a value, which take a second of CPU; empty ones in a list would be 2,000,000 in 4 MiB. A message
with more than eight fields counts as one for each eight, because it makes as many objects.
"""
NANOS = 1_000_000_000
FLOAT_LIMIT = (2 - 2**-24) * 2.0**127
"""Magnitude from which on a number becomes infinite in 32 bits."""
DURATION_MAX_S = 315_576_000_000
"""Seconds of the longest Duration: 10,000 years."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CLASSES_MAX = 16
"""Classes of one writer's objects that it has compared with its schema; a program has one, or two after an update."""
_NUMBER = re.compile(r"-?\d{1,10}", re.ASCII)
_TIMES = {"google.protobuf.Timestamp": "timestamp", "google.protobuf.Duration": "duration"}
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


def well_known_kind(message: Descriptor) -> str:
    """Return the kind of one of Protobuf's own messages: timestamp, duration, wrapper; "" for any other message."""
    names = set(message.fields_by_name)
    if not is_built_in(message.file.name):
        return ""
    if message.full_name in _TIMES and names == {"seconds", "nanos"}:
        return _TIMES[message.full_name]
    return "wrapper" if message.full_name in _WRAPPERS and names == {"value"} else ""


def is_map(field: FieldDescriptor) -> bool:
    """Return whether a field is a map, which Protobuf has as repeated entries."""
    message = field.message_type
    return message is not None and bool(message.GetOptions().map_entry) and field.is_repeated


def max_value_bytes_of(message: Descriptor, max_bytes: int) -> int:
    """Return the maximum size of a value of a message: `max_bytes`, or less if a message within it has many fields.

    Few bytes of such a message make a large object.
    """
    fields = max((len(found.fields) for found in _messages_within(message)), default=0)
    return max_bytes // max(1, -(-fields // FIELDS_PER_SHARE))


def message_class_of(message: Descriptor) -> Any:
    """Return the Python class of a message type.

    Classes of the messages within it are made first, because protobuf would make them by recursion.

    Raises:
        ValueError: messages are nested too deep.
    """
    from google.protobuf.message_factory import GetMessageClass

    try:
        for inner in reversed(_messages_within(message)):
            GetMessageClass(inner)
        return GetMessageClass(message)
    except RecursionError:
        raise ValueError("its messages are nested too deep") from None


def _messages_within(message: Descriptor) -> list[Descriptor]:
    """Return all message types that can occur inside a message, at any depth, outer ones first."""
    seen: dict[str, Descriptor] = {}
    left = deque([message])
    while left:
        for field in left.popleft().fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in seen:
                seen[inner.full_name] = inner
                left.append(inner)
    return list(seen.values())


def parsed_message(message_class: Any, data: bytes, name: str) -> Message:
    """Parse a message from its bytes.

    Raises:
        CorruptDataError: the bytes are no such message, or a required field is missing.
    """
    from google.protobuf.message import DecodeError

    methods = empty_message_class()
    found: Message = message_class()
    try:
        methods.MergeFromString(found, data)
    except (DecodeError, ValueError) as error:
        raise CorruptDataError(f"no value of {name}: {str(error)[:200]}") from None
    if not methods.IsInitialized(found):
        missing = ", ".join(methods.FindInitializationErrors(found))[:200]
        raise CorruptDataError(f"no value of {name}: required fields are missing: {missing}")
    return found


@lru_cache(maxsize=1)
def empty_message_class() -> Any:
    """Return the message class `Empty`, through which methods of any message are called.

    A message's own attribute may be a field that has the name of a method.
    """
    from google.protobuf.empty_pb2 import Empty

    return Empty


# -- Reading


def protobuf_reader(schema: ProtobufSchema, max_bytes: int) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that reads values of a schema, after a schema id and a message's indexes.

    Args:
        schema: the schema.
        max_bytes: size of the largest value that is read. It is divided where messages within others have more than
            eight fields.
    """
    known: dict[tuple[int, ...], tuple[Any, _MessageReader, int, str]] = {}
    refused: dict[tuple[int, ...], str] = {}
    readers = MessageReaders()

    def reader_at_indexes(indexes: tuple[int, ...]) -> tuple[Any, _MessageReader, int, str]:
        message = schema.message_at(indexes)
        name = f"the message {message.full_name} of {schema.name}"
        try:
            message_class, to_dict = message_class_of(message), readers.message_converter(message)
        except ValueError as error:
            refused[indexes] = f"{name} can't be read: {str(error)[:200]}"
            raise CorruptDataError(refused[indexes]) from None
        return message_class, to_dict, max_value_bytes_of(message, max_bytes), name

    def read_value(data: bytes) -> dict[str, Any]:
        check_value_size(data, max_bytes)
        indexes, at = read_indexes(data)
        if indexes in refused:
            raise CorruptDataError(refused[indexes])
        found = known.get(indexes)
        if found is None:
            found = known[indexes] = reader_at_indexes(indexes)
        message_class, to_dict, most, name = found
        check_value_size(data, most)
        parsed = parsed_message(message_class, data[at:], name)
        try:
            return to_dict(parsed, MessageBudget())
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise CorruptDataError(f"no value of {name}: {str(error)[:200]}") from None

    return read_value


class _MessageReader:
    """A converter of messages of one type to dicts."""

    def build_field_converters(self, message: Descriptor, readers: MessageReaders) -> None:
        """Make the readers of the message's fields.

        Raises:
            ValueError: a default is not UTF-8.
        """
        self._cost = max(1, len(message.fields) // FIELDS_PER_SHARE)
        self._defaults: dict[str, Any] = {}
        self._empty: list[tuple[str, type]] = []
        self._convert: dict[int, Convert | None] = {}
        for field in message.fields:
            convert = readers.field_converter(field)
            self._convert[field.number] = convert
            if field.is_repeated:
                self._defaults[field.name] = None
                self._empty.append((field.name, dict if is_map(field) else list))
            elif not decodes_unset_as_default(field):
                self._defaults[field.name] = None
            else:
                default = field.default_value
                if field.type == field.TYPE_STRING and not isinstance(default, str):
                    raise ValueError(f"the default of {field.name} is not UTF-8")
                self._defaults[field.name] = default if convert is None else convert(default, MessageBudget())

    def __call__(self, message: Message, budget: MessageBudget) -> dict[str, Any]:
        budget.count_messages(self._cost)
        found = dict(self._defaults)
        for name, kind in self._empty:
            found[name] = kind()
        for field, value in empty_message_class().ListFields(message):
            if not field.is_extension:
                convert = self._convert[field.number]
                found[field.name] = value if convert is None else convert(value, budget)
        return found


Convert: TypeAlias = Callable[[Any, "MessageBudget"], Any]
"""A function that converts what protobuf has, and takes the messages in it from a budget."""


class MessageBudget:
    """The number of messages that the rest of a value may contain: a limit against values that make large objects."""

    def __init__(self) -> None:
        self._left = MESSAGES_MAX

    def count_messages(self, count: int) -> None:
        """Count messages against the budget.

        Raises:
            ValueError: there are too many.
        """
        self._left -= count
        if self._left < 0:
            raise ValueError(f"it has more than {MESSAGES_MAX} messages within it")


class MessageReaders:
    """The functions that convert messages and fields of a schema to Python values, made at the first use and kept.

    Messages may contain themselves and each other. Threads may share the object.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._complete: dict[str, _MessageReader] = {}
        self._begun: dict[str, _MessageReader] = {}
        self._left: list[tuple[Descriptor, _MessageReader]] = []
        self._checks_text: dict[str, bool] = {}

    def message_converter(self, message: Descriptor) -> _MessageReader:
        """Return the reader of a message, which makes a dict. It is kept once all messages in it have readers.

        Raises:
            ValueError: a message can't be read.
        """
        with self._lock:
            self._begun, self._left = {}, []
            found = self._inner_reader(message)
            while self._left:  # not recursive: a schema may have a chain of 10,000 messages
                inner, reader = self._left.pop()
                reader.build_field_converters(inner, self)
            self._complete.update(self._begun)
            return found

    def _inner_reader(self, message: Descriptor) -> _MessageReader:
        found = self._complete.get(message.full_name) or self._begun.get(message.full_name)
        if found is None:
            found = self._begun[message.full_name] = _MessageReader()
            self._left.append((message, found))
        return found

    def field_converter(self, field: FieldDescriptor) -> Convert | None:
        """Return a function that converts a field's value in protobuf; None: the value needs no conversion."""
        if is_map(field):
            key, value = (self._item_reader(field.message_type.fields_by_name[part]) for part in ("key", "value"))
            return self.map_converter(key, value)
        item = self._item_reader(field)
        if not field.is_repeated:
            return item
        return (lambda found, _budget: list(found)) if item is None else _list_reader(item)

    def _item_reader(self, field: FieldDescriptor) -> Convert | None:
        message = field.message_type
        if message is None:
            return self.scalar_converter(field)
        kind = well_known_kind(message)
        if kind == "wrapper":
            return _counted(self.scalar_converter(message.fields_by_name["value"]), lambda found: found.value)
        return _counted(self.time_converter(kind)) if kind else self._inner_reader(message)

    def scalar_converter(self, field: FieldDescriptor) -> Convert | None:
        """Return a function that converts a value that is no message; None: the value needs no conversion."""
        if field.type == field.TYPE_STRING and not self._is_checked(field):
            return _checked_text
        if field.enum_type is None:
            return None
        names = enum_names(field)
        return lambda number, _budget: names.get(number, number)

    def _is_checked(self, field: FieldDescriptor) -> bool:
        """Return whether protobuf refuses text that is not UTF-8, as in proto3; in proto2 it makes bytes of it."""
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        name = field.file.name
        if name not in self._checks_text:
            file = FileDescriptorProto()
            field.file.CopyToProto(file)
            self._checks_text[name] = file.syntax == "proto3"
        return self._checks_text[name]

    def time_converter(self, kind: str) -> Convert:
        """Return a function that converts a timestamp or duration."""
        if kind == "timestamp":
            return lambda found, _budget: EPOCH + timedelta(microseconds=timestamp_us(found))
        return lambda found, _budget: timedelta(microseconds=duration_us(found))

    def map_converter(self, key: Convert | None, item: Convert | None) -> Convert:
        """Return a function that converts a map by the functions for its keys and values."""
        if key is None and item is None:
            return lambda found, _budget: dict(found)
        key_of, item_of = key or _unconverted, item or _unconverted
        return lambda found, budget: {key_of(name, budget): item_of(found[name], budget) for name in found}


def _list_reader(item: Convert) -> Convert:
    return lambda found, budget: [item(value, budget) for value in found]


def _unconverted(found: Any, _budget: MessageBudget) -> Any:
    return found


def _counted(item: Convert | None, value_of: Callable[[Any], Any] = lambda found: found) -> Convert:
    """Wrap a converter so that each call first counts one message against the value's `MessageBudget`."""
    convert = item or _unconverted

    def convert_counted(found: Any, budget: MessageBudget) -> Any:
        budget.count_messages(1)
        return convert(value_of(found), budget)

    return convert_counted


def _checked_text(found: Any, _budget: MessageBudget) -> str:
    if not isinstance(found, str):
        raise ValueError("a text is not UTF-8")
    return found


def decodes_unset_as_default(field: FieldDescriptor) -> bool:
    """Return whether an unset Protobuf field is decoded as its default value; otherwise it is decoded as None."""
    if field.message_type is not None or field.is_repeated or field.containing_oneof is not None:
        return False
    return field.has_default_value or not field.has_presence


def enum_names(field: FieldDescriptor) -> dict[int, str]:
    """Return the name of each number of an enum; of several names for one number the first."""
    return {value.number: value.name for value in reversed(field.enum_type.values)}


def timestamp_us(found: Any) -> int:
    """Return a Timestamp as microseconds since 1970; nanoseconds are cut off.

    Raises:
        ValueError: it is outside the years 1 to 9999, or its nanoseconds are out of range.
    """
    if not (-62_135_596_800 <= found.seconds <= 253_402_300_799 and 0 <= found.nanos < NANOS):
        raise ValueError(f"a Timestamp of {found.seconds} seconds and {found.nanos} nanoseconds")
    return int(found.seconds * 1_000_000 + found.nanos // 1000)


def duration_us(found: Any) -> int:
    """Return a Duration as microseconds; nanoseconds are cut off.

    Raises:
        ValueError: it is longer than 10,000 years, or its nanoseconds are out of range.
    """
    seconds, nanos = found.seconds, found.nanos
    if abs(seconds) > DURATION_MAX_S or abs(nanos) >= NANOS or seconds * nanos < 0:
        raise ValueError(f"a Duration of {seconds} seconds and {nanos} nanoseconds")
    return int(seconds * 1_000_000 + (abs(nanos) // 1000) * (1 if nanos > 0 else -1))


# -- Writing


def protobuf_writer(schema: ProtobufSchema, number: int, message: str | None = None) -> Callable[[Any], bytes]:
    """Return a function that writes a schema id, a message's indexes and a value of that schema.

    Args:
        schema: the schema.
        number: the schema's id.
        message: the message's name, with or without the package; None: the file's first.

    Raises:
        InvalidInputError: there is no such message.
    """
    from google.protobuf.message import EncodeError, Message

    found = schema.message_named(message)
    prefix = schema_prefix(number) + encode_indexes(schema.indexes_of(found))
    build = _MessageWriter(found)
    try:
        made, serialize = message_class_of(found), empty_message_class().SerializeToString
    except ValueError as error:
        raise InvalidInputError(f"{found.full_name} can't be written: {error}") from None

    of_schema: dict[Descriptor, str] = {found: ""}

    def write_value(value: Any) -> bytes:
        if isinstance(value, Message):
            given = type(value).DESCRIPTOR
            differs = of_schema.get(given)  # other threads may clear it
            if differs is None:
                if len(of_schema) >= CLASSES_MAX:
                    of_schema.clear()
                differs = of_schema[given] = _difference(found, given)
            if differs:
                raise InvalidInputError(differs)
        try:
            if isinstance(value, Message):
                return prefix + bytes(serialize(value))
            return prefix + bytes(serialize(made(**build(value))))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, AttributeError, EncodeError) as error:
            raise InvalidInputError(f"the value is not of the schema: {str(error)[:200]}") from None

    return write_value


def _difference(wanted: Descriptor, given: Descriptor) -> str:
    """Return why objects of the message class `given` can't be written by the schema's message; "" if they can.

    Otherwise fields that the schema does not have would be lost, and those of another type would be misread.
    """
    if given.full_name != wanted.full_name:
        return f"the value is a {given.full_name}, and not {wanted.full_name}"
    left, seen = [(wanted, given)], {wanted.full_name}
    while left:
        one, other = left.pop()
        ours, theirs = ({field.number: field for field in message.fields} for message in (one, other))
        for number in sorted(ours.keys() | theirs.keys()):
            field, twin = ours.get(number), theirs.get(number)
            if field is None or twin is None or _shape(field) != _shape(twin):
                name = next(found.name for found in (field, twin) if found is not None)
                return f"the value is of another version of {one.full_name}: the field {name} (number {number}) differs"
            if field.message_type is not None and field.message_type.full_name not in seen:
                seen.add(field.message_type.full_name)
                left.append((field.message_type, twin.message_type))
    return ""


def _shape(field: FieldDescriptor) -> tuple[Any, ...]:
    """Return the properties of a field that must be equal so that objects of one schema version fit another.

    They include required and default: readers refuse a value without a required field, and use their own defaults. And
    the enum's numbers: readers drop a number that a closed enum does not have.
    """
    kind = field.enum_type
    enum = None if kind is None else (kind.is_closed, sorted((part.name, part.number) for part in kind.values))
    message = None if field.message_type is None else field.message_type.full_name
    oneof = None if field.containing_oneof is None else field.containing_oneof.name
    default = None if field.is_repeated or field.message_type is not None else field.default_value
    is_same = (field.is_repeated, field.is_required, field.has_presence, oneof, repr(default))
    return (field.name, field.type, enum, message, *is_same)


class _MessageWriter:
    """A converter of mappings to the constructor arguments of one message type."""

    def __init__(self, message: Descriptor) -> None:
        self._message = message
        self._fields: dict[str, tuple[Callable[[Any], Any], str | None]] | None = None

    def __call__(self, value: Any) -> dict[str, Any]:
        """Return the arguments that construct a message with the fields of a mapping.

        Raises:
            ValueError: a field is unknown, or its value is not of the type; or two fields of one oneof are set.
        """
        if self._fields is None:  # not before: the type may contain itself
            self._fields = {
                field.name: (_field_writer(field), field.containing_oneof and field.containing_oneof.name)
                for field in self._message.fields
            }
        if not isinstance(value, Mapping):
            raise ValueError(f"{self._message.full_name} is written from a dict, not from {type(value).__name__}")
        made: dict[str, Any] = {}
        set_members: dict[str, str] = {}
        for name, found in value.items():
            if name not in self._fields:
                raise ValueError(f"{self._message.full_name} has no field {str(name)[:80]!r}")
            if found is not None:
                write_field, oneof = self._fields[name]
                if oneof is not None and set_members.setdefault(oneof, name) != name:
                    raise ValueError(f"{set_members[oneof]} and {name} are of the oneof {oneof}: one can be set")
                try:
                    made[name] = write_field(found)
                except (ValueError, TypeError, OverflowError, AttributeError) as error:
                    raise ValueError(f"{name}: {error}") from None
        return made


def _field_writer(field: FieldDescriptor) -> Callable[[Any], Any]:
    if is_map(field):
        entry = field.message_type.fields_by_name["value"]
        item = _item_writer(entry, in_map=True)
        return lambda found: {key: _present(item, value) for key, value in found.items()}
    item = _item_writer(field, in_map=False)
    if not field.is_repeated:
        return item

    def all_items(found: Any) -> list[Any]:
        if isinstance(found, str | bytes | Mapping):
            raise ValueError(f"a list is needed, not {type(found).__name__}")
        return [_present(item, value) for value in found]

    return all_items


def _present(item: Callable[[Any], Any], value: Any) -> Any:
    if value is None:
        raise ValueError("an element is None, which Protobuf has not")
    return item(value)


def _item_writer(field: FieldDescriptor, *, in_map: bool) -> Callable[[Any], Any]:
    from google.protobuf.message_factory import GetMessageClass

    if field.enum_type is not None:
        return _enum_writer(field.enum_type)
    message = field.message_type
    if message is None:
        if field.cpp_type == field.CPPTYPE_FLOAT:
            return _float
        integers = (field.CPPTYPE_INT32, field.CPPTYPE_INT64, field.CPPTYPE_UINT32, field.CPPTYPE_UINT64)
        return _scalar if field.cpp_type in integers else _unchanged
    kind = well_known_kind(message)
    builders: dict[str, Callable[[Any], Any]] = {"timestamp": _timestamp, "duration": _duration}
    if kind == "wrapper":
        builders[kind] = _wrapper_of(_item_writer(message.fields_by_name["value"], in_map=False))
    build = builders.get(kind) or _MessageWriter(message)
    if not in_map:
        return build
    made = GetMessageClass(message)
    return lambda found: made(**build(found))


def _unchanged(found: Any) -> Any:
    return found


def _float(found: Any) -> Any:
    """Return a number within a float's range; protobuf would turn a larger one into infinity."""
    if isinstance(found, int | float | Decimal) and FLOAT_LIMIT <= abs(float(found)) < float("inf"):
        raise ValueError(f"{found} is beyond a float")
    return found


def _scalar(found: Any) -> Any:
    """Convert an integral decimal, as Spark has for unsigned 64-bit integers, to an int; return other values as is."""
    if isinstance(found, Decimal):
        if not found.is_finite() or found != found.to_integral_value():
            raise ValueError(f"{found} is no integer")
        return int(found)
    return found


def unknown_enum_prefix(enum: EnumDescriptor) -> str:
    """Return the prefix of the name that Spark gives to an unnamed number of an enum; the number follows it."""
    return f"UNKNOWN_ENUM_VALUE_{enum.name}_"


def _enum_writer(enum: EnumDescriptor) -> Callable[[Any], int]:
    """Return a function that turns an enum's names into numbers, and leaves numbers unchanged."""
    numbers: dict[str, int] = {value.name: value.number for value in enum.values}
    unknown = unknown_enum_prefix(enum)

    def number_of(found: Any) -> int:
        if isinstance(found, str) and found in numbers:
            return numbers[found]
        if isinstance(found, str) and found.startswith(unknown) and _NUMBER.fullmatch(found[len(unknown) :]):
            return int(found[len(unknown) :])
        if isinstance(found, bool) or not isinstance(found, int):
            raise ValueError(f"the enum has no value {str(found)[:80]!r}")
        return found

    return number_of


def _wrapper_of(item: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    return lambda found: {"value": item(found)}


def _timestamp(found: Any) -> dict[str, Any]:
    if not isinstance(found, datetime) or found.tzinfo is None:
        raise ValueError("a Timestamp is written from a datetime with a time zone")
    seconds, micros = divmod((found - EPOCH) // timedelta(microseconds=1), 1_000_000)
    return {"seconds": seconds, "nanos": micros * 1000}


def _duration(found: Any) -> dict[str, Any]:
    if not isinstance(found, timedelta):
        raise ValueError("a Duration is written from a timedelta")
    total = found // timedelta(microseconds=1)
    seconds, micros = divmod(abs(total), 1_000_000)
    if seconds > DURATION_MAX_S:
        raise ValueError("a Duration has at most 10,000 years")
    sign = 1 if total >= 0 else -1
    return {"seconds": sign * seconds, "nanos": sign * micros * 1000}
