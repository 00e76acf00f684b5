"""Avro schemas in fastavro's parsed form, with what a reader's schema lacks there; readers' schemas of DDL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from kohort.errors import InvalidInputError
from kohort.schema_registry.avro_limits import PRIMITIVE_SIZES, change_fields
from kohort.schema_registry.avro_references import definition_name, full_name
from kohort.spark.values.avro_schema import Schema, without_logical_types


def parse_for_fastavro(schema: Schema) -> Any:
    """Return the schema in fastavro's parsed form.

    Raises:
        InvalidInputError: fastavro refuses the schema, or is not installed.
    """
    try:
        from fastavro.schema import SchemaParseException, UnknownType, parse_schema
    except ModuleNotFoundError:
        raise InvalidInputError(
            "valueFormat=avro needs fastavro, here and in Spark's workers: pip install 'kohort[spark]'"
        ) from None
    try:
        parsed = parse_schema(_with_defaults_aside(without_logical_types(schema)))
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"fastavro refuses the schema: {type(error).__name__}: {error}") from None
    _make_defaults(parsed)
    named = _named_types(parsed)
    for part in (parsed, *named.values()):
        _write_names_out(part, named)
    return parsed


def _named_types(parsed: Any) -> dict[str, Any]:
    """Return the types that a parsed schema defines, by their full names."""
    return parsed.get("__named_schemas", {}) if isinstance(parsed, dict) else {}


def _write_names_out(schema: Any, named: Mapping[str, Any]) -> Any:
    """Replace type names in a schema by the definitions that they stand for; return the schema.

    fastavro fails if one of two schemas has a type by its name, and the other one in a union with null (#601). The
    schema must not be recursive.
    """
    if isinstance(schema, str):
        return named.get(schema, schema)
    if isinstance(schema, list):
        schema[:] = [_write_names_out(branch, named) for branch in schema]
    elif isinstance(schema, dict):
        for key in ("items", "values"):
            if key in schema:
                schema[key] = _write_names_out(schema[key], named)
        for field in schema.get("fields", ()):
            field["type"] = _write_names_out(field["type"], named)
    return schema


# -- Defaults of fields, which a reader's schema has and a writer's lacks
#
# fastavro gives a default as it stands in the schema: bytes as text of JSON, a record without fields that have defaults
# of their own. It refuses a schema with a default that is no value of its field. Registries have such schemas,
# and only a value without the field needs the default. Source: Avro's specification, "Complex Types".

_ASIDE = "kohort-default"
"""The key under which fastavro passes a default through unchecked."""


def _with_defaults_aside(schema: Any) -> Any:
    """Return a copy of a schema with the fields' defaults under another key, so that fastavro does not check them."""
    return change_fields(
        schema, lambda field: {_ASIDE if key == "default" else key: part for key, part in field.items()}
    )


def _make_defaults(parsed: Any) -> None:
    """Convert the defaults that `_with_defaults_aside` has moved, and put them back; drop invalid ones."""
    named = _named_types(parsed)
    for field in [field for part in (parsed, *named.values()) for field in _fields(part)]:
        if _ASIDE in field:
            with contextlib.suppress(_NoValue):
                field["default"] = _default(field["type"], field[_ASIDE], named)


def _fields(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields of the records that a parsed schema defines, with those in them."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _fields(branch)
    elif isinstance(schema, dict):
        for part in (schema.get("items"), schema.get("values"), schema["type"]):
            yield from _fields(part)
        for field in schema.get("fields", ()):
            yield field
            yield from _fields(field["type"])


class _NoValue(Exception):
    """Exception for control flow: a field's default is no value of the field's type."""


_JSON_KINDS: dict[str, type | tuple[type, ...]] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": (int, float),
    "double": (int, float),
    "bytes": str,
    "string": str,
    "enum": str,
    "fixed": str,
    "array": list,
    "map": dict,
    "record": dict,
    "error": dict,
}
"""The type that the default of each Avro type has in JSON."""


def _default(schema: Any, found: Any, named: Mapping[str, Any]) -> Any:
    """Return a default as fastavro reads such a value.

    Args:
        schema: the type, parsed.
        found: the default in JSON; of a union it belongs to the first type that has such values.
        named: parsed schemas by their full names.

    Raises:
        _NoValue: the default is no value of the type.
    """
    for branch in schema if isinstance(schema, list) else [schema]:
        kind = named.get(branch, branch) if isinstance(branch, str) else branch
        name = kind["type"] if isinstance(kind, dict) else kind
        expected = _JSON_KINDS.get(name if isinstance(name, str) else "", ())
        if isinstance(found, expected) and (name == "boolean") == isinstance(found, bool):
            return _default_of(name, kind, found, named)
    raise _NoValue


def _default_of(name: str, kind: Any, found: Any, named: Mapping[str, Any]) -> Any:
    if name in ("bytes", "fixed"):
        try:
            return found.encode("latin-1")
        except UnicodeEncodeError:
            raise _NoValue from None
    if name == "array":
        return [_default(kind["items"], item, named) for item in found]
    if name == "map":
        return {key: _default(kind["values"], item, named) for key, item in found.items()}
    if name not in ("record", "error"):
        return found
    fields = {field["name"]: field for field in kind["fields"]}
    given = {field: part[_ASIDE] for field, part in fields.items() if _ASIDE in part} | found
    if fields.keys() - given.keys():
        raise _NoValue
    return {field: _default(part["type"], given[field], named) for field, part in fields.items()}


# -- The reader's schema of a type that was declared in DDL, for one writer's schema
#
# DDL names columns, and nothing that only Avro has: names of records, bytes or fixed beneath a decimal, the unit of a
# time, enums. So these are the writer's. Fields go by their names. One that the writer lacks is null, if it may be.

_NAMED = ("record", "error", "enum", "fixed")


def adapt_reader_schema(reader: Schema, writer: Schema) -> Schema:
    """Return the reader's schema in the form that fastavro needs to read values of this writer's schema.

    Args:
        reader: the schema of the declared type, as `avro_schema_of` makes it: each type is defined where it is used.
        writer: the writer's schema, checked by `schema_to_node`.
    """
    made: Schema = _Adaptation(writer).adapt_part(reader, writer, "")
    return made


class _Adaptation:
    """One traversal of a reader's and a writer's schema, for `adapt_reader_schema`."""

    def __init__(self, writer: Schema) -> None:
        self._numbers = count()
        self._named_types = dict(_definitions(writer, ""))

    def adapt_part(self, reader: Any, writer: Any, space: str) -> Any:
        """Return a part of the reader's schema, adapted to the writer's type in the same place.

        Args:
            reader: the part.
            writer: the writer's type; None: the writer has no such part.
            space: the namespace of names in the writer's type.
        """
        if isinstance(reader, list):
            return [branch if branch == "null" else self.adapt_part(branch, writer, space) for branch in reader]
        writer, space = self._definition(writer, space)
        kind, written = _kind_of(reader), _kind_of(writer)
        if kind == "record":
            return self._record(reader, writer if written in ("record", "error") else None, space)
        for container, items in (("array", "items"), ("map", "values")):
            if kind == container:
                part = writer[items] if written == container else None
                return {"type": container, items: self.adapt_part(reader[items], part, space)}
        if written == "fixed" and kind in ("fixed", "bytes"):
            return {"type": "fixed", "name": self._name_like(writer["name"]), "size": writer["size"]}
        if written == "enum" and kind == "string":
            return {"type": "enum", "name": self._name_like(writer["name"]), "symbols": writer["symbols"]}
        if written == "bytes" and kind == "fixed":
            return "bytes"
        return {**reader, "name": self._name_like(reader["name"])} if kind in _NAMED else reader

    def _record(self, reader: Any, writer: Any, space: str) -> Any:
        written = {} if writer is None else {field["name"]: field["type"] for field in writer["fields"]}
        fields = []
        for field in reader["fields"]:
            made = {"name": field["name"], "type": self.adapt_part(field["type"], written.get(field["name"]), space)}
            if isinstance(field["type"], list) and field["name"] not in written:
                made["default"] = None
            fields.append(made)
        name = self._name_like((reader if writer is None else writer)["name"])
        return {"type": "record", "name": name, "fields": fields}

    def _definition(self, writer: Any, space: str) -> tuple[Any, str]:
        """Resolve a part of the writer's schema to its type, without null, and the namespace inside the type.

        The type is None for a union with several other types, or with none.
        """
        while True:
            if isinstance(writer, list):
                others = [branch for branch in writer if branch not in ("null", {"type": "null"})]
                if len(others) != 1:
                    return None, space
                writer = others[0]
            elif isinstance(writer, str) and writer not in PRIMITIVE_SIZES:
                return self._named_types[full_name(writer, space)]
            elif isinstance(writer, dict) and writer["type"] in _NAMED:
                return writer, definition_name(writer, space)[1]
            elif isinstance(writer, dict) and writer["type"] not in ("array", "map"):
                writer = writer["type"]
            else:
                return writer, space

    def _name_like(self, name: str) -> str:
        """Return a unique full name that ends with the writer's name: fastavro compares the last parts of names."""
        return f"n{next(self._numbers)}.{name.rpartition('.')[2]}"


def _kind_of(schema: Any) -> Any:
    return schema["type"] if isinstance(schema, dict) else schema


def _definitions(schema: Any, space: str) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yield the types that a schema defines by their full names, each with the namespace of the names in it."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _definitions(branch, space)
    elif isinstance(schema, dict):
        if schema["type"] in _NAMED:
            full, space = definition_name(schema, space)
            yield full, (schema, space)
        for part in (schema["type"], schema.get("items"), schema.get("values")):
            yield from _definitions(part, space)
        for field in schema.get("fields", ()):
            yield from _definitions(field["type"], space)
