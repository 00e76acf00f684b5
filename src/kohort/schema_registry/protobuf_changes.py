"""Changes of Protobuf schemas: which a registry refuses in a subject, and which change what written values mean.

A registry's rules are Confluent's for Protobuf (Schema Registry 8.1): fields are known by their numbers, messages by
their names. They allow what Protobuf can parse. `reading_differences` is stricter, and allows what keeps its value. It
also allows that a field gains or loses presence. A field that was not set is then read as its default or as None, as
the reader's schema says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kohort.schema_registry.protobuf_files import is_built_in
from kohort.schema_registry.protobuf_schemas import ProtobufSchema
from kohort.schema_registry.protobuf_values import decodes_unset_as_default, is_map

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, OneofDescriptor

_TYPE_NAMES = (
    "", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message",
    "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
"""Names of the types of fields, by their numbers in descriptor.proto."""
_GROUPS = (
    {"int32", "int64", "uint32", "uint64", "bool", "enum"},
    {"sint32", "sint64"},
    {"string", "bytes"},
    {"fixed32", "sfixed32"},
    {"fixed64", "sfixed64"},
    {"message", "group"},
)
"""Types that a registry takes for each other."""
_KEPT = {
    "int32": ("int64",),
    "uint32": ("uint64", "int64"),
    "sint32": ("sint64",),
    "bool": ("int32", "int64", "uint32", "uint64"),
    "enum": ("int32", "int64"),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""Types that a reader may have for each type of a writer, beside the same one, because every value stays itself."""


def protobuf_incompatibilities(level: str, new: ProtobufSchema, olds: Sequence[ProtobufSchema]) -> list[str]:
    """Return why a schema can't follow others in a subject; an empty list if it can.

    Args:
        level: one of the registry's levels of compatibility.
        new: the schema to add.
        olds: the subject's versions, the newest last.
    """
    reasons: list[str] = []
    for old in olds if level.endswith("_TRANSITIVE") else olds[-1:]:
        if level.startswith(("BACKWARD", "FULL")):
            reasons += _Comparison().files(old, new)
        if level.startswith(("FORWARD", "FULL")):
            reasons += _Comparison().files(new, old)
    return reasons


class _Comparison:
    """One comparison of two versions of a Protobuf schema: `new` must be able to read the values that `old` wrote.

    For the level FORWARD, `old` is the version that is added.
    """

    def __init__(self) -> None:
        self._compared: set[tuple[str, str]] = set()

    def files(self, old: ProtobufSchema, new: ProtobufSchema) -> Iterator[str]:
        if old.file.package != new.file.package:
            yield f"the package {old.file.package or '(none)'} became {new.file.package or '(none)'}"
        yield from self._messages(
            list(old.file.message_types_by_name.values()), list(new.file.message_types_by_name.values())
        )

    def _messages(self, olds: Sequence[Descriptor], news: Sequence[Descriptor]) -> Iterator[str]:
        by_name = {message.name: message for message in news}
        for old in olds:
            if old.GetOptions().map_entry:
                continue
            if old.name not in by_name:
                yield f"the message {old.full_name} was removed"
            else:
                yield from self._message(old, by_name[old.name])

    def _message(self, old: Descriptor, new: Descriptor) -> Iterator[str]:
        if (old.full_name, new.full_name) in self._compared or is_built_in(old.file.name):
            return
        self._compared.add((old.full_name, new.full_name))
        fields = new.fields_by_number
        for field in old.fields:
            path = f"{old.full_name}.{field.name}"
            if field.number in fields:
                yield from self._field(field, fields[field.number], path)
            elif field.is_required:
                yield f"{path}: the required field {field.number} was removed"
            elif _oneof_is_kept(field, new):
                yield f"{path}: the field {field.number} was removed from its oneof"
        for field in new.fields:
            if field.is_required and field.number not in old.fields_by_number:
                yield f"{new.full_name}.{field.name}: the required field {field.number} was added"
        for oneof in _oneofs(new):
            moved = [
                field
                for field in oneof.fields
                if field.number in old.fields_by_number and _oneof(old.fields_by_number[field.number]) is None
            ]
            if len(moved) > 1:
                yield f"{new.full_name}.{oneof.name}: {len(moved)} fields moved into it, of which one can be set"
            elif moved and any(_oneof(field) is not None for field in _old_fields(oneof, old)):
                yield f"{new.full_name}.{oneof.name}: {moved[0].name} moved into a oneof that was there before"
        yield from self._messages(list(old.nested_types), list(new.nested_types))

    def _field(self, old: FieldDescriptor, new: FieldDescriptor, path: str) -> Iterator[str]:
        if is_map(old) or is_map(new):
            if is_map(old) != is_map(new):
                yield f"{path}: {_shown(old)} became {_shown(new)}"
                return
            for part in ("key", "value"):
                parts = [field.message_type.fields_by_name[part] for field in (old, new)]
                yield from self._field(parts[0], parts[1], f"{path}{{{part}}}")
            return
        kinds = (_TYPE_NAMES[old.type], _TYPE_NAMES[new.type])
        if kinds[0] != kinds[1] and not any(group.issuperset(kinds) for group in _GROUPS):
            yield f"{path}: {_shown(old)} became {_shown(new)}"
        elif old.message_type is not None and new.message_type is not None:
            if _local_name(old.message_type) != _local_name(new.message_type):
                yield f"{path}: {old.message_type.full_name} became {new.message_type.full_name}"
            else:
                yield from self._message(old.message_type, new.message_type)


def reading_differences(writer: Descriptor, reader: Descriptor) -> Iterator[str]:
    """Yield a text for each difference between two versions of a message by which the reader misreads values."""
    yield from _reading_differences(writer, reader, set())


def _reading_differences(writer: Descriptor, reader: Descriptor, compared: set[tuple[str, str]]) -> Iterator[str]:
    if (writer.full_name, reader.full_name) in compared:
        return
    compared.add((writer.full_name, reader.full_name))
    if is_built_in(writer.file.name) != is_built_in(reader.file.name) or (
        is_built_in(reader.file.name) and writer.full_name != reader.full_name
    ):
        yield f"{writer.full_name} was written, and {reader.full_name} is read"
        return
    for field in reader.fields:
        old: Any = writer.fields_by_number.get(field.number)
        if old is None:
            continue
        kinds = (_TYPE_NAMES[old.type], _TYPE_NAMES[field.type])
        is_other = kinds[0] != kinds[1] and kinds[1] not in _KEPT.get(kinds[0], ())
        if is_other or is_map(old) != is_map(field) or (old.is_repeated and not field.is_repeated):
            yield f"{reader.full_name}.{field.name} was written as {_shown(old)} and is read as {_shown(field)}"
        elif field.message_type is not None:
            yield from _reading_differences(old.message_type, field.message_type, compared)
        else:
            yield from _default_differences(old, field, f"{reader.full_name}.{field.name}")
            if old.enum_type is not None and field.enum_type is not None:
                yield from _enum_differences(old.enum_type, field.enum_type)
    for oneof in _oneofs(reader):
        olds = _old_fields(oneof, writer)
        places = [_oneof(old) for old in olds]
        if len(olds) > 1 and (None in places or len({place.name for place in places if place is not None}) > 1):
            yield f"{reader.full_name}.{oneof.name}: {len(olds)} fields were written that are read as one oneof"


def _default_differences(old: Any, new: FieldDescriptor, path: str) -> Iterator[str]:
    """Yield a text if two versions of a field decode as different defaults when the field is not set."""
    if not (new.is_repeated or old.is_repeated) and any(
        field.has_default_value and decodes_unset_as_default(field) for field in (old, new)
    ):
        defaults = [
            field.default_value.encode() if isinstance(field.default_value, str) else field.default_value
            for field in (old, new)
        ]
        if repr(defaults[0]) != repr(defaults[1]) and defaults[0] != defaults[1]:  # repr: NaN is not NaN
            yield f"{path}: the default {defaults[0]!r} became {defaults[1]!r}"


def _enum_differences(old: EnumDescriptor, new: EnumDescriptor) -> Iterator[str]:
    """Yield a text for each number of an enum that has another meaning in the new version, or that readers drop."""
    old_names, new_names = ({value.name for value in enum.values} for enum in (old, new))
    names: dict[int, set[str]] = {}
    for value in new.values:
        names.setdefault(value.number, set()).add(value.name)
    for value in old.values:
        there = names.get(value.number)
        if there is None and new.is_closed:
            yield f"{new.full_name} has no {value.name} = {value.number}, and is closed: protobuf would drop it"
        elif there is not None and value.name not in there and (value.name in new_names or there & old_names):
            yield f"{new.full_name}: {value.name} was {value.number}, which is {min(there)} now"


def _shown(field: FieldDescriptor) -> str:
    if is_map(field):
        return "a map"
    kind = _TYPE_NAMES[field.type]
    name = kind if field.message_type is None else str(field.message_type.full_name)
    return f"repeated {name}" if field.is_repeated else name


def _local_name(message: Descriptor) -> str:
    """Return a message's name without its package, which files may change."""
    package, name = message.file.package, str(message.full_name)
    return name.removeprefix(f"{package}.") if package else name


def _oneof(field: FieldDescriptor) -> OneofDescriptor | None:
    """Return the oneof that a field belongs to; None without one, or if protoc generated it for `optional`."""
    found = field.containing_oneof
    is_made = found is not None and len(found.fields) == 1 and found.name.lstrip("X") == f"_{field.name}"
    return None if is_made else found


def _oneofs(message: Descriptor) -> list[OneofDescriptor]:
    return [oneof for oneof in message.oneofs if _oneof(oneof.fields[0]) is not None]


def _oneof_is_kept(field: FieldDescriptor, new: Descriptor) -> bool:
    """Return whether the new version of a message still has the oneof, by name, of a field that was removed."""
    oneof = _oneof(field)
    return oneof is not None and any(found.name == oneof.name for found in _oneofs(new))


def _old_fields(oneof: OneofDescriptor, old: Descriptor) -> list[FieldDescriptor]:
    """Return those fields of a message's old version whose numbers the fields of a oneof in the new version have."""
    found = [old.fields_by_number.get(field.number) for field in oneof.fields]
    return [field for field in found if field is not None]
