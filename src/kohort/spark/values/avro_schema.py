"""Avro schemas: the Spark type of each, and the schema for fastavro without logical types.

The types are those of Spark's `from_avro`. Arrow applies logical types to a column at a time. The library fastavro
reads only the plain numbers and bytes beneath them. This is faster, and avoids the limits of Python's dates.
"""

from __future__ import annotations

import json  # not msgspec: text of other programs, with NaN and integers of any size
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from kohort.errors import InvalidInputError
from kohort.schema_registry.avro_limits import decimal_digits, has_reserved_key
from kohort.schema_registry.avro_references import definition_name, full_name
from kohort.spark.values.types import quoted

Schema: TypeAlias = "str | list[Any] | dict[str, Any]"

_PLAIN = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
_TIMES = {
    "timestamp-millis": "timestamp_ltz",
    "timestamp-micros": "timestamp_ltz",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WIDER = ({"int", "long"}, "long"), ({"float", "double"}, "double")
NESTING_MAX = 150
"""Most levels of objects and lists in a schema's JSON: 50 records or 150 arrays.

fastavro, Arrow and Spark process types recursively, and Python's limit of 1,000 calls would end in a RecursionError.
"""
_TOO_DEEP = f"is nested deeper than {NESTING_MAX} levels of JSON; read such values as bytes"
DIGITS = 38
"""Most digits of a decimal in Spark and in Arrow's 128 bits."""


@dataclass(frozen=True, slots=True)
class LeafNode:
    """An Avro type without parts, such as a number or a string.

    Attributes:
        avro: the primitive type, or fixed or enum, without the logical type.
        ddl: the Spark type.
        logical: date, a timestamp, or decimal; "" if there is none.
        precision: the precision of a decimal.
        scale: the scale of a decimal.
    """

    avro: str
    ddl: str
    logical: str = ""
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class RecordNode:
    """An Avro record with named fields, in order."""

    fields: tuple[tuple[str, Node], ...]

    @property
    def ddl(self) -> str:
        return f"struct<{', '.join(f'{quoted(name)}: {node.ddl}' for name, node in self.fields)}>"


@dataclass(frozen=True, slots=True)
class ArrayNode:
    """An Avro array, by the type of its items."""

    item: Node

    @property
    def ddl(self) -> str:
        return f"array<{self.item.ddl}>"


@dataclass(frozen=True, slots=True)
class MapNode:
    """An Avro map, whose keys are strings, by the type of its values."""

    value: Node

    @property
    def ddl(self) -> str:
        return f"map<string, {self.value.ddl}>"


@dataclass(frozen=True, slots=True)
class SkippedNode:
    """A type that only a writer's schema may have, in unread parts: null alone, or a union of several types.

    Attributes:
        empty: whether it takes no bytes.
        ddl: a placeholder for the Spark type.
    """

    empty: bool
    ddl: str = "void"


Node: TypeAlias = LeafNode | RecordNode | ArrayNode | MapNode | SkippedNode


def parse_avro_schema(text: str, name: str = "valueSchema") -> Schema:
    """Parse a schema from its JSON.

    Raises:
        InvalidInputError: the text is not JSON, nested too deep, or has keys by which fastavro would take it for one
            that it has parsed; `name` identifies it in the error.
    """
    try:
        found: Schema = json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"{name} is no Avro schema: {error}") from None
    except RecursionError:
        raise InvalidInputError(f"{name} {_TOO_DEEP}") from None
    level: list[Any] = [found]
    for _ in range(NESTING_MAX):
        if any(has_reserved_key(value) for value in level):
            raise InvalidInputError(f"{name} is no Avro schema: it has keys that are fastavro's own")
        level = [part for value in level for part in _parts(value)]
        if not level:
            return found
    raise InvalidInputError(f"{name} {_TOO_DEEP}")


def _parts(value: Any) -> list[Any]:
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [part for part in parts if isinstance(part, dict | list)]


def schema_to_node(schema: Schema, name: str = "valueSchema", *, written: bool = False) -> Node:
    """Return the type that an Avro schema declares.

    Args:
        schema: the schema.
        name: the schema's name in errors.
        written: whether it is a writer's schema, which may have parts that a reader's may not.

    Raises:
        InvalidInputError: an undefined name, a recursive schema, a union of more than null and one type, an array whose
            items take no bytes, a decimal of more than 38 digits.
    """
    return _SchemaWalk(name, written).node_of_schema(schema, "value", "")


def without_logical_types(schema: Schema) -> Schema:
    """Return the schema without logical types, for fastavro."""
    if isinstance(schema, list):
        return [without_logical_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    left = {key: value for key, value in schema.items() if key not in ("logicalType", "precision", "scale")}
    for key in ("items", "values"):
        if key in left:
            left[key] = without_logical_types(left[key])
    if isinstance(left.get("type"), list | dict):
        left["type"] = without_logical_types(left["type"])
    if isinstance(left.get("fields"), list):
        left["fields"] = [
            {**field, "type": without_logical_types(field["type"])}
            if isinstance(field, dict) and "type" in field
            else field
            for field in left["fields"]
        ]
    return left


def misread_numbers(writer: Node, reader: Node, path: str = "value", *, of_ddl: bool = False) -> Iterator[str]:
    """Yield a text for each number that fastavro would silently misread, such as milliseconds as microseconds.

    Those are parts whose logical types or scales differ between the writer's and the reader's schema.

    Args:
        writer: the writer's type.
        reader: the reader's type.
        path: names the place in the value.
        of_ddl: whether the reader's type was declared in DDL, which has one kind of time for both units.
    """
    if isinstance(writer, RecordNode) and isinstance(reader, RecordNode):
        written = dict(writer.fields)
        for name, node in reader.fields:
            if name in written:
                yield from misread_numbers(written[name], node, f"{path}.{name}", of_ddl=of_ddl)
    elif isinstance(writer, ArrayNode) and isinstance(reader, ArrayNode):
        yield from misread_numbers(writer.item, reader.item, f"{path}[]", of_ddl=of_ddl)
    elif isinstance(writer, MapNode) and isinstance(reader, MapNode):
        yield from misread_numbers(writer.value, reader.value, f"{path}{{}}", of_ddl=of_ddl)
    elif isinstance(writer, LeafNode) and isinstance(reader, LeafNode) and writer.logical and reader.logical:
        written_as, read_as = ((leaf.logical, leaf.scale) for leaf in (writer, reader))
        if written_as != read_as and not (of_ddl and is_ms_read_as_us(writer, reader)):
            yield f"{path} was written as {_logical_name(writer)} and is read as {_logical_name(reader)}"


def is_ms_read_as_us(writer: Node, reader: Node) -> bool:
    """Return whether a time has milliseconds in the writer's schema and microseconds in the reader's."""
    if not isinstance(writer, LeafNode) or not isinstance(reader, LeafNode):
        return False
    kind, _, unit = writer.logical.rpartition("-")
    return unit == "millis" and reader.logical == f"{kind}-micros"


def _logical_name(leaf: LeafNode) -> str:
    return f"decimal with scale {leaf.scale}" if leaf.logical == "decimal" else leaf.logical


class _SchemaWalk:
    """One traversal of an Avro schema, which makes its nodes and checks it; a name must be defined before its use."""

    def __init__(self, name: str, written: bool) -> None:
        self._name = name
        self._written = written
        self._named: dict[str, Node | None] = {}

    def node_of_schema(self, schema: Any, path: str, space: str) -> Node:
        if isinstance(schema, str):
            return self._by_name(schema, path, space)
        if isinstance(schema, list):
            return self._union(schema, path, space)
        if not isinstance(schema, dict) or "type" not in schema:
            raise self._wrong(path, f"is no Avro type: {json.dumps(schema)[:80]}")
        kind = schema["type"]
        if isinstance(kind, list | dict):
            return self.node_of_schema(kind, path, space)
        if kind == "array":
            return self._array(schema, path, space)
        if kind == "map":
            return MapNode(self.node_of_schema(schema.get("values"), f"{path}{{}}", space))
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(schema, kind, path, space)
        logical = schema.get("logicalType")
        if kind == "int" and logical == "date":
            return LeafNode(kind, "date", logical)
        if kind == "long" and logical in _TIMES:
            return LeafNode(kind, _TIMES[logical], logical)
        if kind == "bytes" and logical == "decimal":
            return self._decimal(schema, kind, path)
        return self._by_name(kind, path, space)

    def _by_name(self, name: Any, path: str, space: str) -> Node:
        if isinstance(name, str) and name in _PLAIN:
            return LeafNode(name, _PLAIN[name])
        if name == "null":
            if self._written:
                return SkippedNode(empty=True)
            raise self._wrong(path, "is only ever null")
        full = full_name(str(name), space)
        if full in self._named:
            found = self._named[full]
            if found is None:
                raise self._wrong(path, f"is {name} within {name}: a recursive schema has no Spark type")
            return found
        raise self._wrong(path, f"has a type that is not defined: {json.dumps(name)[:80]}")

    def _union(self, branches: list[Any], path: str, space: str) -> Node:
        left = [branch for branch in branches if branch not in ("null", {"type": "null"})]
        if len(left) == 1:
            found = self.node_of_schema(left[0], path, space)
            return SkippedNode(empty=False) if isinstance(found, SkippedNode) or _takes_no_bytes(found) else found
        for kinds, wider in _WIDER:
            if len(left) == 2 and all(isinstance(branch, str) for branch in left) and set(left) == kinds:
                return LeafNode(wider, _PLAIN[wider])
        if self._written:
            for branch in branches:
                self.node_of_schema(branch, path, space)
            return SkippedNode(empty=False)
        what = "is a union of more than null and one type; read such values as bytes and use Spark's from_avro"
        raise self._wrong(path, what if left else "is only ever null")

    def _array(self, schema: Mapping[str, Any], path: str, space: str) -> Node:
        item = self.node_of_schema(schema.get("items"), f"{path}[]", space)
        if _takes_no_bytes(item):
            raise self._wrong(f"{path}[]", "takes no bytes: a damaged value could hold any number of them")
        return ArrayNode(item)

    def _definition(self, schema: Mapping[str, Any], kind: str, path: str, space: str) -> Node:
        name = schema.get("name")
        if not isinstance(name, str) or not all(_NAME.fullmatch(part) for part in name.split(".")):
            raise self._wrong(path, f"needs a name: {json.dumps(name)[:80]}")
        full, own = definition_name(schema, space)
        no_text = "." not in name and not isinstance(schema.get("namespace") or "", str)
        if no_text or (space and not own):  # fastavro may take such a name for another
            raise self._wrong(path, f"has the type {name} without a namespace within another")
        if full in self._named:
            raise self._wrong(path, f"defines {full} a second time")
        self._named[full] = None
        self._named[full] = made = self._defined(schema, kind, path, own)
        return made

    def _defined(self, schema: Mapping[str, Any], kind: str, path: str, space: str) -> Node:
        if kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or not symbols:
                raise self._wrong(path, "is an enum without symbols")
            return LeafNode(kind, "string")
        if kind == "fixed":
            if not isinstance(schema.get("size"), int) or schema["size"] < 1:
                raise self._wrong(path, "is a fixed without a size of 1 or more")
            if schema.get("logicalType") == "decimal":
                return self._decimal(schema, kind, path)
            return LeafNode(kind, "binary")
        fields = schema.get("fields")
        if not isinstance(fields, list) or not fields or not all(isinstance(field, dict) for field in fields):
            raise self._wrong(path, "is a record without fields")
        names = [field.get("name") for field in fields]
        if len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
            raise self._wrong(path, "has two fields of one name, or one without")
        return RecordNode(
            tuple(
                (field["name"], self.node_of_schema(field.get("type"), f"{path}.{field['name']}", space))
                for field in fields
            )
        )

    def _decimal(self, schema: Mapping[str, Any], kind: str, path: str) -> LeafNode:
        digits = decimal_digits(schema)
        if digits is None:
            return LeafNode(kind, "binary")
        precision, scale = digits
        if precision > DIGITS and not self._written:  # a reader may leave such a field out
            raise self._wrong(path, f"is a decimal of other than 1 to {DIGITS} digits")
        return LeafNode(kind, f"decimal({precision},{scale})", "decimal", precision, scale)

    def _wrong(self, path: str, what: str) -> InvalidInputError:
        return InvalidInputError(f"{self._name}: {path} {what}")


def _takes_no_bytes(node: Node) -> bool:
    if isinstance(node, RecordNode):
        return all(_takes_no_bytes(part) for _, part in node.fields)
    return isinstance(node, SkippedNode) and node.empty
