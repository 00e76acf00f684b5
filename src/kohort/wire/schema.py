"""The declaration of messages: one class per message, all its versions in the metadata of its fields.

    class HeartbeatRequest(Message, key=12, versions=(0, 4), flexible=4):
        group_id: str = string()
        generation_id: int = int32()
        member_id: str = string()
        group_instance_id: str | None = string(since=3, nullable=True, default=None)

A class attribute made by `int32`, `string`, `array`, `struct` … is a field. Its optional facts are:

- `since`, `until`: the versions that have it on the wire;
- `nullable`, or `null_since` a version: whether it may be null;
- `tag`: the number of a tagged field;
- `default`: its value when none is given;
- `ignorable`: a version that lacks the field drops a value silently instead of refusing it;
- `columns`: a long array is decoded to `StructRows`, and one of `StructRows` is encoded by column.

Nested structures are nested classes. Instances are mutable, compare by value, take keywords, and hold no dictionary.

The codec of one version is compiled when that version is first used, in `kohort.wire.message`.

Source: Kafka, "Kafka protocol guide" and KIP-482 (flexible versions, tagged fields).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Final, TypeAlias, TypedDict, Unpack, cast, dataclass_transform
from uuid import UUID

from kohort.errors import CorruptDataError, ErrorCode

Buffer: TypeAlias = bytes | bytearray | memoryview
Records: TypeAlias = Any
"""A record set. Decoding gives a memoryview into the frame (no copy) or None. Encoding takes bytes, bytearray,
memoryview, a list of these that is sent in order, or None."""

NEVER: Final = 1 << 15
"""A version that no message reaches: `FLEXIBLE_SINCE` of a message without flexible versions."""
ZERO_UUID: Final = UUID(int=0)
"""The UUID that Kafka sends for "no id"."""


class WireError(CorruptDataError):
    """Bytes that are not the expected message: too short, too long, or with impossible lengths."""

    default_code = ErrorCode.INVALID_REQUEST


class FieldProperties(TypedDict, total=False):
    """The optional properties of a message field: versions, nullability, tag, default. See the module's docstring."""

    since: int
    until: int
    nullable: bool
    null_since: int
    tag: int
    default: Any
    ignorable: bool
    columns: bool


_UNSET: Final = object()
_ZERO: Final[dict[str, Any]] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": None,
    "uuid": ZERO_UUID,
}


@dataclass(slots=True, eq=False)
class Field:
    """The schema of one message field, for every version of its message.

    Attributes:
        kind: int8 … uint32, float64, bool, string, bytes, records, uuid, struct or array.
        since: first version that has the field.
        until: last version that has it.
        null_since: first version in which it may be null; NEVER where it may not.
        tag: its number when it is a tagged field, else None.
        default: its value when none is given. Each instance gets its own lists and structures.
        ignorable: a version without the field drops a value instead of refusing it.
        columns: whether a long array of structures is decoded to `StructRows`, and encoded by column if it is one.
        element: an array's element.
        struct: the class of a structure.
        name: the attribute it was assigned to.
    """

    kind: str
    since: int = 0
    until: int = NEVER
    null_since: int = NEVER
    tag: int | None = None
    default: Any = None
    ignorable: bool = False
    columns: bool = False
    element: Field | None = None
    struct: type[Struct] | None = None
    name: str = ""

    def is_in_version(self, version: int) -> bool:
        """Return whether a version has this field."""
        return self.since <= version <= self.until

    def fresh_default(self) -> Any:
        """Return the default; a new list or structure each time."""
        if self.default is not _UNSET:
            return self.default
        return [] if self.kind == "array" else self.struct() if self.struct else None


def _field(kind: str, facts: FieldProperties, element: Field | None = None, struct: type[Struct] | None = None) -> Any:
    null_since = 0 if facts.get("nullable") else facts.get("null_since", NEVER)
    default = facts.get("default", _UNSET if kind in ("array", "struct") else _ZERO.get(kind, 0))
    return Field(
        kind,
        facts.get("since", 0),
        facts.get("until", NEVER),
        null_since,
        facts.get("tag"),
        default,
        facts.get("ignorable", False),
        facts.get("columns", False),
        element,
        struct,
    )


def int8(**facts: Unpack[FieldProperties]) -> Any:
    """Declare a signed byte."""
    return _field("int8", facts)


def int16(**facts: Unpack[FieldProperties]) -> Any:
    """Declare a signed 16-bit number."""
    return _field("int16", facts)


def int32(**facts: Unpack[FieldProperties]) -> Any:
    """Declare a signed 32-bit number."""
    return _field("int32", facts)


def int64(**facts: Unpack[FieldProperties]) -> Any:
    """Declare a signed 64-bit number."""
    return _field("int64", facts)


def uint16(**facts: Unpack[FieldProperties]) -> Any:
    """Declare an unsigned 16-bit number."""
    return _field("uint16", facts)


def float64(**facts: Unpack[FieldProperties]) -> Any:
    """Declare a double."""
    return _field("float64", facts)


def boolean(**facts: Unpack[FieldProperties]) -> Any:
    """Declare a boolean: one byte, zero or not."""
    return _field("bool", facts)


def string(**facts: Unpack[FieldProperties]) -> Any:
    """Declare UTF-8 text."""
    return _field("string", facts)


def binary(**facts: Unpack[FieldProperties]) -> Any:
    """Declare opaque bytes."""
    return _field("bytes", facts)


def records(**facts: Unpack[FieldProperties]) -> Any:
    """Declare a record set (`Records`), which is never copied."""
    return _field("records", facts)


def uuid(**facts: Unpack[FieldProperties]) -> Any:
    """Declare a UUID of sixteen bytes; "no id" is the zero one."""
    return _field("uuid", facts)


def array(of: Callable[..., Any] | type[Struct], **facts: Unpack[FieldProperties]) -> Any:
    """Declare a list of a primitive (`array(int32)`) or of a structure (`array(TopicPartitions)`)."""
    if isinstance(of, StructType):
        element = Field("struct", struct=cast("type[Struct]", of))
    else:
        element = of()
    return _field("array", facts, element=element)


def struct(of: type[Struct], **facts: Unpack[FieldProperties]) -> Any:
    """Declare one nested structure."""
    return _field("struct", facts, struct=of)


def _init_first(self: Any, **values: Any) -> None:
    """Compile the keyword initialiser of a message class at its first use, put it in this one's place, and run it."""
    cls = type(self)
    cls.__init__ = compile_init(cls)
    cls.__init__(self, **values)


@dataclass_transform(kw_only_default=True)
class StructType(type):
    """The metaclass of message structures: turns the fields of a class body into slots, and lists them in FIELDS."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        key: int = -1,
        versions: tuple[int, int] = (0, 0),
        flexible: int = NEVER,
    ) -> StructType:
        """Make the class; `key`, `versions` and `flexible` are a message's API key, range and first flexible one."""
        fields = []
        for attribute, value in list(namespace.items()):
            if isinstance(value, Field):
                value.name = attribute
                fields.append(value)
                del namespace[attribute]
        namespace["__slots__"] = tuple(field.name for field in fields)
        namespace["FIELDS"] = tuple(fields)
        namespace["API_KEY"] = key
        namespace["MIN_VERSION"], namespace["MAX_VERSION"] = versions
        namespace["FLEXIBLE_SINCE"] = flexible
        namespace["ENCODERS"], namespace["DECODERS"] = {}, {}
        namespace.setdefault("__init__", _init_first)  # not inherited: a base's compiled one has other fields
        return super().__new__(mcs, name, bases, namespace)


class Struct(metaclass=StructType):
    """A structure inside a message; equal to another of its class with equal fields."""

    FIELDS: ClassVar[tuple[Field, ...]]
    API_KEY: ClassVar[int]
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_SINCE: ClassVar[int]
    ENCODERS: ClassVar[dict[int, Callable[[Any], list[Buffer]]]]
    DECODERS: ClassVar[dict[int, Callable[[Buffer], tuple[Any, int]]]]

    def __init__(self, **values: Any) -> None:
        """Take the fields as keywords; the real initialiser is compiled when a class is first instantiated."""
        _init_first(self, **values)

    def __eq__(self, other: object) -> bool:
        """Compare by class and fields; a record set compares by its bytes."""
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Show the fields that differ from their defaults."""
        values = ((field, getattr(self, field.name)) for field in self.FIELDS)
        shown = ", ".join(f"{field.name}={_brief(value)}" for field, value in values if value != field.fresh_default())
        return f"{type(self).__qualname__}({shown})"


class StructRows(Sequence[Any]):
    """The structures of a decoded array as columns: one sequence of values for each field, by the field's name.

    A commit names hundreds of partitions, and its handler needs the columns only. The structures are made when one of
    them is used; they must not be modified. Decoding takes a third of the time of a list.
    """

    __slots__ = ("_made", "_struct", "columns")

    def __init__(self, struct: type[Struct], columns: Mapping[str, Sequence[Any]]) -> None:
        self._struct = struct
        self.columns = columns
        self._made: list[Struct] | None = None

    @property
    def _structures(self) -> list[Struct]:
        if self._made is None:
            rows = zip(*self.columns.values(), strict=True)
            self._made = [self._struct(**dict(zip(self.columns, row, strict=True))) for row in rows]
        return self._made

    def __len__(self) -> int:
        return len(self.columns[self._struct.FIELDS[0].name])

    def __getitem__(self, index: Any) -> Any:
        return self._structures[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._structures)

    def __eq__(self, other: object) -> bool:
        """Compare with the structures of any other sequence."""
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._structures)


def columns_of(rows: Sequence[Any], names: tuple[str, ...]) -> Sequence[Sequence[Any]]:
    """Return the values of two or more fields as columns, from `StructRows` or from a list of structures.

    Without structures there are no columns.
    """
    if type(rows) is StructRows:
        columns = rows.columns
        return [columns[name] for name in names]
    return list(zip(*map(_getter(names), rows), strict=True))


@cache
def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    getter: Callable[[Any], tuple[Any, ...]] = attrgetter(*names)
    return getter


def compile_init(cls: type[Struct]) -> Callable[..., None]:
    """Return the keyword initialiser of a class, compiled from plain source once."""
    names: dict[str, Any] = {"unset": _UNSET}
    parameters, lines = [], []
    for field in cls.FIELDS:
        if field.default is not _UNSET:
            names[f"default_{field.name}"] = field.default
            parameters.append(f"{field.name}=default_{field.name}")
            lines.append(f"    self.{field.name} = {field.name}")
            continue
        names[f"make_{field.name}"] = list if field.kind == "array" else field.struct
        parameters.append(f"{field.name}=unset")
        lines.append(f"    self.{field.name} = make_{field.name}() if {field.name} is unset else {field.name}")
    head = f"def __init__(self, {'*, ' if parameters else ''}{', '.join(parameters)}):"
    exec(compile("\n".join([head, *lines, "    return None"]), f"<{cls.__qualname__}.__init__>", "exec"), names)
    init: Callable[..., None] = names["__init__"]
    return init


def _brief(value: Any) -> str:
    if isinstance(value, memoryview):
        return f"<{value.nbytes} bytes>"
    if isinstance(value, (bytes, bytearray)) and len(value) > 64:
        return f"<{len(value)} bytes>"
    return repr(value)
