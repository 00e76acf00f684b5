"""Avro schemas that no value can abuse.

Schemas and values of a registry come from others. Three kinds of schemas are refused before a value is read:

- recursive ones. fastavro is compiled and reads recursively. A value of 200 kB overflows the C stack, and the process
  ends by SIGSEGV (seen with fastavro 1.13).
- an array whose item takes no bytes: nine bytes can claim 2^62 items.
- records that name a record twice, which names another twice, and so on: an empty value is of exponential size.
"""

from __future__ import annotations

import json  # not msgspec: text of other programs, with NaN and integers of any size
from dataclasses import dataclass
from typing import Any

from kohort.errors import InvalidInputError

DEPTH_MAX = 150
"""Most levels of objects and lists in a schema's JSON; fastavro and Python process them recursively."""
PARTS_MAX = 10_000
"""Most parts of a schema whose names are written out; a value makes an object of each. Large public ones have 3,000."""
_PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))


@dataclass(frozen=True, slots=True)
class _Extent:
    """How much a type takes: parts with its names written out, and whether its value has no bytes."""

    parts: int
    empty: bool


def avro_schema(text: str, name: str) -> Any:
    """Return an Avro schema from its JSON.

    Args:
        text: the JSON.
        name: names the schema in errors.

    Raises:
        InvalidInputError: it is no schema, or a value could abuse it: it is recursive, too deep or too large, or has
            an array of items without bytes.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{name} is no Avro schema: {error}") from None
    level: list[Any] = [found]
    for _ in range(DEPTH_MAX):
        level = [part for value in level for part in _children(value)]
        if not level:
            _Measure(name).extent(found, "")
            return found
    raise InvalidInputError(f"{name} is nested deeper than {DEPTH_MAX} levels of JSON")


def _children(value: Any) -> list[Any]:
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [part for part in parts if isinstance(part, dict | list)]


class _Measure:
    """One traversal of a schema; names are defined before they are used, as Avro requires."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._named: dict[str, _Extent | None] = {}

    def extent(self, schema: Any, space: str) -> _Extent:
        found = self._extent(schema, space)
        if found.parts > PARTS_MAX:
            raise self._not_usable(f"has more than {PARTS_MAX} parts when its names are written out")
        return found

    def _extent(self, schema: Any, space: str) -> _Extent:
        if isinstance(schema, str):
            return self._by_name(schema, space)
        if isinstance(schema, list):
            branches = [self.extent(branch, space) for branch in schema]
            return _Extent(1 + sum(branch.parts for branch in branches), False)  # a union has its branch's number
        kind = schema.get("type") if isinstance(schema, dict) else None
        if isinstance(kind, list | dict):
            return self.extent(kind, space)
        if kind == "array":
            item = self.extent(schema.get("items"), space)
            if item.empty:
                raise self._not_usable("has an array whose item takes no bytes: a damaged value could hold any number")
            return _Extent(1 + item.parts, False)
        if kind == "map":
            return _Extent(1 + self.extent(schema.get("values"), space).parts, False)
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(schema, kind, space)
        if isinstance(kind, str):
            return self._by_name(kind, space)
        raise self._not_usable(f"has a part that is no Avro type: {json.dumps(schema)[:80]}")

    def _by_name(self, name: str, space: str) -> _Extent:
        if name in _PRIMITIVES:
            return _Extent(1, name == "null")
        for full in (f"{space}.{name}", name):
            if full in self._named:
                found = self._named[full]
                if found is None:
                    raise self._not_usable(f"is recursive: {name} contains itself; such values can't be read safely")
                return found
        raise self._not_usable(f"has a type that is not defined: {name[:80]!r}")

    def _definition(self, schema: dict[str, Any], kind: str, space: str) -> _Extent:
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise self._not_usable(f"has a type without a name: {json.dumps(schema)[:80]}")
        if "." in name:
            space, _, name = name.rpartition(".")
        else:
            space = schema.get("namespace") or space
        full = f"{space}.{name}" if space else name
        if full in self._named:
            raise self._not_usable(f"defines {full} a second time")
        self._named[full] = None
        self._named[full] = made = self._defined(schema, kind, str(space))
        return made

    def _defined(self, schema: dict[str, Any], kind: str, space: str) -> _Extent:
        if kind == "enum":
            return _Extent(1, False)
        if kind == "fixed":
            return _Extent(1, not schema.get("size"))
        fields = schema.get("fields")
        if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
            raise self._not_usable("has a record without fields")
        parts = [self.extent(field.get("type"), space) for field in fields]
        return _Extent(1 + sum(part.parts for part in parts), all(part.empty for part in parts))

    def _not_usable(self, what: str) -> InvalidInputError:
        return InvalidInputError(f"{self._name} {what}")
