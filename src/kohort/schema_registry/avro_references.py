"""References of Avro schemas: named types that stand in other schemas of the registry.

A schema with references uses the full names of types that it does not define. Here each such name is replaced, where it
is used first, by the type's definition. The result is one whole schema, which is measured and read like any other.

Source: Confluent's documentation of schema references.
"""

from __future__ import annotations

import json  # not msgspec, without which clients start
from collections.abc import Iterable, Mapping
from typing import Any

from kohort.schema_registry.avro_limits import DEPTH_MAX, PRIMITIVE_SIZES
from kohort.schema_registry.prefix import UnusableSchemaError

_NAMED = ("record", "error", "enum", "fixed")
_PARTS = ("items", "values")


def definition_name(schema: Mapping[str, Any], space: str) -> tuple[str, str]:
    """Return the full name of a named type's definition, and the namespace of the names in it.

    A name with a dot is full. Otherwise the definition's `namespace` counts, also an empty one. Without it the
    namespace is that of the definition around it.

    Args:
        schema: the definition of a record, an enum or a fixed.
        space: the namespace in which it stands, "" for none.

    Source: Avro's specification, "Names".
    """
    name = str(schema["name"])
    if "." in name:
        return name, name.rpartition(".")[0]
    own = schema.get("namespace", space)
    own = own if isinstance(own, str) else ""
    return full_name(name, own), own


def full_name(name: str, space: str) -> str:
    """Return the full name of a type that is named within a namespace; the name must not be a primitive type's."""
    return name if "." in name or not space else f"{space}.{name}"


def inline_avro_references(text: str, imports: Iterable[tuple[str, str]], name: str) -> str:
    """Return a schema with the definitions of the types that it takes from other schemas.

    Args:
        text: the schema.
        imports: name and text of each schema that it refers to, and of those that they refer to.
        name: names the schema in errors.

    Raises:
        UnusableSchemaError: one of them is no JSON, or the whole is nested too deep.
    """
    texts = [part for _, part in imports]
    if not texts:
        return text
    walk = _Inlining(name)
    try:
        for part in texts:
            walk.learn_types(_parsed(part, name), "", 0)
        return json.dumps(walk.node(_parsed(text, name), "", 0))
    except RecursionError:
        raise UnusableSchemaError(f"{name} is nested too deep with what it refers to") from None


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableSchemaError(f"{name} is no Avro schema, or refers to one that is invalid: {error}") from None


class _Inlining:
    """One traversal of a schema, which replaces the first use of each referenced name by its definition."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[str, dict[str, Any]] = {}  # definitions of the referenced schemas, by full name
        self._defined: set[str] = set()

    def learn_types(self, schema: Any, space: str, depth: int) -> None:
        """Remember the types that a referenced schema defines."""
        self._check_depth(depth)
        if isinstance(schema, list):
            for branch in schema:
                self.learn_types(branch, space, depth + 1)
        if not isinstance(schema, dict):
            return
        kind = schema.get("type")
        if kind in _NAMED and isinstance(schema.get("name"), str):
            full, space = definition_name(schema, space)
            self._known.setdefault(full, schema)
        for part in (kind if isinstance(kind, list | dict) else None, *map(schema.get, _PARTS)):
            self.learn_types(part, space, depth + 1)
        for field in _fields(schema):
            self.learn_types(field.get("type"), space, depth + 1)

    def node(self, schema: Any, space: str, depth: int) -> Any:
        """Return a part of a schema in which names that are first used there are replaced by their definitions."""
        self._check_depth(depth)
        if isinstance(schema, str):
            return self._by_name(schema, space, depth)
        if isinstance(schema, list):
            return [self.node(branch, space, depth + 1) for branch in schema]
        if not isinstance(schema, dict) or "type" not in schema:
            return schema
        kind = schema["type"]
        if kind in _NAMED and isinstance(schema.get("name"), str):
            full, _ = definition_name(schema, space)
            if full in self._defined and full in self._known:
                return full
            return self._definition(schema, space, depth)
        made = dict(schema)
        if isinstance(kind, str) and kind not in PRIMITIVE_SIZES and kind not in ("array", "map"):
            return self._by_name(kind, space, depth)  # what else is said of a type here is said of its definition
        if kind not in ("array", "map"):
            made["type"] = self.node(kind, space, depth + 1)
        return made | {key: self.node(schema[key], space, depth + 1) for key in _PARTS if key in schema}

    def _by_name(self, name: str, space: str, depth: int) -> Any:
        if name in PRIMITIVE_SIZES:
            return name
        full = full_name(name, space)
        if full in self._known and full not in self._defined:
            own = full.rpartition(".")[0]
            return self._definition(self._known[full] | {"name": full}, own, depth)
        return full if full in self._defined else name

    def _definition(self, schema: dict[str, Any], space: str, depth: int) -> dict[str, Any]:
        full, own = definition_name(schema, space)
        self._defined.add(full)
        made = {key: part for key, part in schema.items() if key != "namespace"} | {"name": full}
        if isinstance(schema.get("fields"), list):
            made["fields"] = [
                {**field, "type": self.node(field["type"], own, depth + 1)}
                if isinstance(field, dict) and "type" in field
                else field
                for field in schema["fields"]
            ]
        return made

    def _check_depth(self, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise UnusableSchemaError(f"{self._name} is nested deeper than {DEPTH_MAX} levels with what it refers to")


def _fields(schema: dict[str, Any]) -> list[dict[str, Any]]:
    fields = schema.get("fields")
    return [field for field in fields if isinstance(field, dict)] if isinstance(fields, list) else []
