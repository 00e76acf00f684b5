"""The check of Avro schemas, which refuses those that a hostile value could abuse.

Schemas and values of a registry come from others. The check refuses, before a value is read:

- recursive ones. fastavro is compiled and reads recursively. A value of 200 kB overflows the C stack, and the process
  ends by SIGSEGV (seen with fastavro 1.13).
- an array whose item takes no bytes: nine bytes can claim 2^62 items.
- records that name a record twice, which names another twice, and so on: an empty value is of exponential size.
- a name without a namespace within a namespace. fastavro parses some parsed schemas again, where this name becomes
  another.
- keys by which fastavro takes a schema for one that it has parsed.

The check measures fastavro's parsed form, whose names are full. Otherwise a name that fastavro reads differently could
get past it.
"""

from __future__ import annotations

import json  # not msgspec: text of other programs, with NaN and integers of any size
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kohort.errors import InvalidInputError
from kohort.schema_registry.prefix import UnusableSchemaError

DEPTH_MAX = 150
"""Most levels of objects and lists in a schema's JSON; fastavro and Python process them recursively."""
PARTS_MAX = 10_000
"""Most parts of a schema whose names are written out; a value makes an object of each. Large public ones have 3,000."""
PRIMITIVE_SIZES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}
"""The fewest bytes of each type."""


@dataclass(frozen=True, slots=True)
class _TypeSize:
    """The size of an Avro type: the parts of its schema, and the bytes of its smallest value.

    Attributes:
        parts: the number of types in its schema; the name of another type counts as all types in that one.
        size: the bytes of its smallest value.
        free: the maximum number of records and nulls in a value, which take no bytes, outside its arrays and maps.
    """

    parts: int
    size: int
    free: int = 0


def avro_schema(text: str, name: str) -> Any:
    """Parse and check an Avro schema; raise as `check_avro_schema` does."""
    return check_avro_schema(text, name)[0]


def check_avro_schema(text: str, name: str) -> tuple[Any, int]:
    """Parse and check an Avro schema.

    Return it, with the maximum number of records and nulls that one byte of a value can decode to.

    Args:
        text: the JSON.
        name: names the schema in errors.

    Raises:
        InvalidInputError: it is no schema, or a value could abuse it: it is recursive, too deep or too large, or has
            an array of items without bytes. Or fastavro is not installed.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableSchemaError(f"{name} is no Avro schema: {error}") from None
    level: list[Any] = [found]
    for _ in range(DEPTH_MAX):
        if any(has_reserved_key(value) for value in level):
            raise UnusableSchemaError(f"{name} is no Avro schema: it has keys that are fastavro's own")
        level = [part for value in level for part in _children(value)]
        if not level:
            found = _without_invalid_decimals(found)
            measure = _Measure(name)
            measure.measure(parsed_schema(without_defaults(found), name), "")
            return found, measure.density
    raise UnusableSchemaError(f"{name} is nested deeper than {DEPTH_MAX} levels of JSON")


def decimal_digits(schema: Any) -> tuple[int, int] | None:
    """Return precision and scale of a decimal type; None if they are invalid or missing: its values are plain bytes.

    Avro's specification says that readers ignore an invalid logical type. Connectors write such types for database
    numbers without precision and scale.
    """
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or not precision:
        return None
    if schema.get("type") == "fixed":
        size = schema.get("size")
        if type(size) is not int or precision > math.floor((8 * size - 1) * math.log10(2)):
            return None
    return precision, scale


def _without_invalid_decimals(schema: Any) -> Any:
    """Return a schema in which a decimal without valid digits is plain bytes; fastavro refuses it."""
    if isinstance(schema, list):
        return [_without_invalid_decimals(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _without_invalid_decimals(part) for key, part in schema.items()}
    if made.get("logicalType") == "decimal" and decimal_digits(made) is None:
        del made["logicalType"]
    return made


def without_defaults(schema: Any) -> Any:
    """Return a writer's schema without its fields' defaults, which are not needed to read its values.

    fastavro refuses a schema with a default that is invalid for its field; Confluent's registry accepts such a schema.
    """
    return change_fields(schema, lambda field: {key: part for key, part in field.items() if key != "default"})


def change_fields(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a copy of a schema in which `change` has been applied to each field of each record."""
    if isinstance(schema, list):
        return [change_fields(branch, change) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: change_fields(schema[key], change) for key in ("type", "items", "values") if key in schema}
    if isinstance(schema.get("fields"), list):
        made["fields"] = [
            change(field) | {"type": change_fields(field["type"], change)}
            if isinstance(field, dict) and "type" in field
            else field
            for field in schema["fields"]
        ]
    return schema | made


def has_reserved_key(value: Any) -> bool:
    """Return whether a part of a schema has a key that fastavro reserves for schemas which it has parsed itself."""
    return isinstance(value, dict) and ("__fastavro_parsed" in value or "__named_schemas" in value)


def parsed_schema(schema: Any, name: str) -> Any:
    """Return a schema in fastavro's parsed form, with full names.

    Raises:
        InvalidInputError: it is invalid, or fastavro is not installed.
    """
    try:
        from fastavro import parse_schema
    except ImportError:
        raise InvalidInputError("Avro values need fastavro: pip install 'kohort[registry]'") from None
    try:
        return parse_schema(schema)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 (it takes parts for what they should be, and raises nearly anything)
        raise UnusableSchemaError(f"{name} is no Avro schema: {type(error).__name__}: {str(error)[:200]}") from None


def _children(value: Any) -> list[Any]:
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [part for part in parts if isinstance(part, dict | list)]


class _Measure:
    """One traversal of a parsed schema that measures its types. Names are full and defined before their use."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.density = 1
        self._named: dict[str, _TypeSize | None] = {}

    def measure(self, schema: Any, namespace: str) -> _TypeSize:
        found = self._type_size(schema, namespace)
        if found.parts > PARTS_MAX:
            raise self._not_usable(f"has more than {PARTS_MAX} parts when its names are written out")
        return found

    def _type_size(self, schema: Any, namespace: str) -> _TypeSize:
        if isinstance(schema, str):
            return self._by_name(schema)
        if isinstance(schema, list):
            branches = [self.measure(branch, namespace) for branch in schema]
            return _TypeSize(
                1 + sum(branch.parts for branch in branches),
                1 + min((branch.size for branch in branches), default=0),  # a union has its branch's number
                max((branch.free for branch in branches), default=0),
            )
        kind = schema["type"]
        if kind == "array":
            item = self.measure(schema["items"], namespace)
            if not item.size:
                raise self._not_usable("has an array whose item takes no bytes: a damaged value could hold any number")
            return self._repeated(item, item.size)
        if kind == "map":
            item = self.measure(schema["values"], namespace)
            return self._repeated(item, 1 + item.size)
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(schema, kind, namespace)
        return self._by_name(kind)

    def _repeated(self, item: _TypeSize, size: int) -> _TypeSize:
        self.density = max(self.density, -(-item.free // size))
        return _TypeSize(1 + item.parts, 1)

    def _by_name(self, name: str) -> _TypeSize:
        if name in PRIMITIVE_SIZES:
            return _TypeSize(1, PRIMITIVE_SIZES[name], int(name == "null"))
        if name not in self._named:
            raise self._not_usable(f"has a type that is not defined: {name[:80]!r}")
        found = self._named[name]
        if found is None:
            raise self._not_usable(f"is recursive: {name} contains itself; such values can't be read safely")
        return found

    def _definition(self, schema: dict[str, Any], kind: str, namespace: str) -> _TypeSize:
        name = schema["name"]
        if not isinstance(name, str) or not name:
            raise self._not_usable(f"has a type without a name: {json.dumps(name)[:80]}")
        if name in PRIMITIVE_SIZES or (namespace and "." not in name):
            raise self._not_usable(f"has the type {name[:80]!r} without a namespace within another")
        if name in self._named:
            raise self._not_usable(f"defines {name[:80]} a second time")
        self._named[name] = None
        self._named[name] = made = self._defined(schema, kind, name.rpartition(".")[0])
        return made

    def _defined(self, schema: dict[str, Any], kind: str, namespace: str) -> _TypeSize:
        if kind == "enum":
            return _TypeSize(1, 1)
        if kind == "fixed":
            size = schema["size"]
            if type(size) is not int or size < 0:  # -1 would read all that is left, and then nothing without end
                raise self._not_usable("has a fixed without a size of 0 or more")
            return _TypeSize(1, size, int(size == 0))
        parts = [self.measure(field["type"], namespace) for field in schema["fields"]]
        return _TypeSize(
            1 + sum(part.parts for part in parts),
            sum(part.size for part in parts),
            1 + sum(part.free for part in parts),
        )

    def _not_usable(self, what: str) -> UnusableSchemaError:
        return UnusableSchemaError(f"{self._name} {what}")
