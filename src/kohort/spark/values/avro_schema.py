"""Avro schemas: what Spark type each stands for, and what is left for fastavro once logical types are taken out.

The types are those of Spark's `from_avro`. Logical types are applied by Arrow, a column at a time: fastavro reads the
plain numbers and bytes beneath them, which is faster and knows no limits of Python's dates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from kohort.errors import InvalidInputError
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
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WIDER = ({"int", "long"}, "long"), ({"float", "double"}, "double")
NESTING_MAX = 150
"""Objects and lists within one another in a schema's JSON: 50 records or 150 arrays. fastavro, Arrow and Spark go
through types by recursion, and Python's own limit of 1,000 calls ends in a RecursionError."""
_TOO_DEEP = f"is nested deeper than {NESTING_MAX} levels of JSON; read such values as bytes"
DIGITS = 38
"""What a decimal of Spark and of Arrow's 128 bits holds."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value without parts.

    Attributes:
        avro: the type beneath the logical one.
        logical: date, a timestamp, decimal; "" for none that counts.
        precision: of a decimal.
        scale: of a decimal.
    """

    avro: str
    ddl: str
    logical: str = ""
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """Named parts, in order."""

    fields: tuple[tuple[str, Node], ...]

    @property
    def ddl(self) -> str:
        return f"struct<{', '.join(f'{quoted(name)}: {node.ddl}' for name, node in self.fields)}>"


@dataclass(frozen=True, slots=True)
class Items:
    """An array."""

    item: Node

    @property
    def ddl(self) -> str:
        return f"array<{self.item.ddl}>"


@dataclass(frozen=True, slots=True)
class Entries:
    """A map; keys are strings."""

    value: Node

    @property
    def ddl(self) -> str:
        return f"map<string, {self.value.ddl}>"


@dataclass(frozen=True, slots=True)
class Skipped:
    """What only a writer's schema may have, in parts that are not read: null alone, or a union of several types.

    Attributes:
        empty: whether it takes no bytes.
    """

    empty: bool
    ddl: str = "void"


Node: TypeAlias = Leaf | Record | Items | Entries | Skipped


def schema_of(text: str, name: str = "valueSchema") -> Schema:
    """A schema from its JSON.

    Raises:
        InvalidInputError: it is no JSON, or nested too deep; `name` says whose it was.
    """
    try:
        found: Schema = json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"{name} is no Avro schema: {error}") from None
    except RecursionError:
        raise InvalidInputError(f"{name} {_TOO_DEEP}") from None
    level: list[Any] = [found]
    for _ in range(NESTING_MAX):
        level = [part for value in level for part in _parts(value)]
        if not level:
            return found
    raise InvalidInputError(f"{name} {_TOO_DEEP}")


def _parts(value: Any) -> list[Any]:
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [part for part in parts if isinstance(part, dict | list)]


def node_of(schema: Schema, name: str = "valueSchema", *, written: bool = False) -> Node:
    """What a schema stands for.

    Args:
        schema: to look through.
        name: whose it is, for errors.
        written: it is a writer's, which may have parts that no reader can have.

    Raises:
        InvalidInputError: a name that is not defined, a recursive schema, a union of more than null and one type, an
            array whose items take no bytes, a decimal of more than 38 digits.
    """
    return _Walk(name, written).node(schema, "value", "")


def without_logical(schema: Schema) -> Schema:
    """The schema that fastavro reads by."""
    if isinstance(schema, list):
        return [without_logical(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    left = {key: value for key, value in schema.items() if key not in ("logicalType", "precision", "scale")}
    for key in ("items", "values"):
        if key in left:
            left[key] = without_logical(left[key])
    if isinstance(left.get("type"), list | dict):
        left["type"] = without_logical(left["type"])
    if isinstance(left.get("fields"), list):
        left["fields"] = [
            {**one, "type": without_logical(one["type"])} if isinstance(one, dict) and "type" in one else one
            for one in left["fields"]
        ]
    return left


def differences(writer: Node, reader: Node, path: str = "value") -> Iterator[str]:
    """Where numbers that were written mean something else than they are read as: fastavro does not see it."""
    if isinstance(writer, Record) and isinstance(reader, Record):
        written = dict(writer.fields)
        for name, node in reader.fields:
            if name in written:
                yield from differences(written[name], node, f"{path}.{name}")
    elif isinstance(writer, Items) and isinstance(reader, Items):
        yield from differences(writer.item, reader.item, f"{path}[]")
    elif isinstance(writer, Entries) and isinstance(reader, Entries):
        yield from differences(writer.value, reader.value, f"{path}{{}}")
    elif isinstance(writer, Leaf) and isinstance(reader, Leaf) and writer.logical and reader.logical:
        one, other = ((leaf.logical, leaf.scale) for leaf in (writer, reader))
        if one != other:
            yield f"{path} was written as {_told(writer)} and is read as {_told(reader)}"


def _told(leaf: Leaf) -> str:
    return f"decimal with scale {leaf.scale}" if leaf.logical == "decimal" else leaf.logical


class _Walk:
    """One walk through a schema; names are defined before they are used, as Avro demands."""

    def __init__(self, name: str, written: bool) -> None:
        self._name = name
        self._written = written
        self._named: dict[str, Node | None] = {}

    def node(self, schema: Any, path: str, space: str) -> Node:
        if isinstance(schema, str):
            return self._by_name(schema, path, space)
        if isinstance(schema, list):
            return self._union(schema, path, space)
        if not isinstance(schema, dict) or "type" not in schema:
            raise self._wrong(path, f"is no Avro type: {json.dumps(schema)[:80]}")
        kind = schema["type"]
        if isinstance(kind, list | dict):
            return self.node(kind, path, space)
        if kind == "array":
            return self._array(schema, path, space)
        if kind == "map":
            return Entries(self.node(schema.get("values"), f"{path}{{}}", space))
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(schema, kind, path, space)
        logical = schema.get("logicalType")
        if kind == "int" and logical == "date":
            return Leaf(kind, "date", logical)
        if kind == "long" and logical in _TIMES:
            return Leaf(kind, _TIMES[logical], logical)
        if kind == "bytes" and logical == "decimal":
            return self._decimal(schema, kind, path)
        return self._by_name(kind, path, space)

    def _by_name(self, name: Any, path: str, space: str) -> Node:
        if isinstance(name, str) and name in _PLAIN:
            return Leaf(name, _PLAIN[name])
        if name == "null":
            if self._written:
                return Skipped(empty=True)
            raise self._wrong(path, "is only ever null")
        for full in (f"{space}.{name}", str(name)):
            if full in self._named:
                found = self._named[full]
                if found is None:
                    raise self._wrong(path, f"is {name} within {name}: a recursive schema has no Spark type")
                return found
        raise self._wrong(path, f"has a type that is not defined: {json.dumps(name)[:80]}")

    def _union(self, branches: list[Any], path: str, space: str) -> Node:
        left = [branch for branch in branches if branch not in ("null", {"type": "null"})]
        if len(left) == 1:
            found = self.node(left[0], path, space)
            return Skipped(empty=False) if isinstance(found, Skipped) or _takes_no_bytes(found) else found
        for kinds, wider in _WIDER:
            if len(left) == 2 and all(isinstance(branch, str) for branch in left) and set(left) == kinds:
                return Leaf(wider, _PLAIN[wider])
        if self._written:
            for branch in branches:
                self.node(branch, path, space)
            return Skipped(empty=False)
        what = "is a union of more than null and one type; read such values as bytes and use Spark's from_avro"
        raise self._wrong(path, what if left else "is only ever null")

    def _array(self, schema: Mapping[str, Any], path: str, space: str) -> Node:
        item = self.node(schema.get("items"), f"{path}[]", space)
        if _takes_no_bytes(item):
            raise self._wrong(f"{path}[]", "takes no bytes: a damaged value could hold any number of them")
        return Items(item)

    def _definition(self, schema: Mapping[str, Any], kind: str, path: str, space: str) -> Node:
        name = schema.get("name")
        if not isinstance(name, str) or not all(_NAME.fullmatch(part) for part in name.split(".")):
            raise self._wrong(path, f"needs a name: {json.dumps(name)[:80]}")
        if "." in name:
            space, _, name = name.rpartition(".")
        else:
            space = schema.get("namespace") or space
        full = f"{space}.{name}"
        if full in self._named:
            raise self._wrong(path, f"defines {full.strip('.')} a second time")
        self._named[full] = None
        self._named[full] = made = self._defined(schema, kind, path, space)
        return made

    def _defined(self, schema: Mapping[str, Any], kind: str, path: str, space: str) -> Node:
        if kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or not symbols:
                raise self._wrong(path, "is an enum without symbols")
            return Leaf(kind, "string")
        if kind == "fixed":
            if not isinstance(schema.get("size"), int) or schema["size"] < 1:
                raise self._wrong(path, "is a fixed without a size of 1 or more")
            if schema.get("logicalType") == "decimal":
                return self._decimal(schema, kind, path)
            return Leaf(kind, "binary")
        fields = schema.get("fields")
        if not isinstance(fields, list) or not fields or not all(isinstance(one, dict) for one in fields):
            raise self._wrong(path, "is a record without fields")
        names = [one.get("name") for one in fields]
        if len(set(names)) < len(names) or not all(isinstance(one, str) for one in names):
            raise self._wrong(path, "has two fields of one name, or one without")
        return Record(
            tuple((one["name"], self.node(one.get("type"), f"{path}.{one['name']}", space)) for one in fields)
        )

    def _decimal(self, schema: Mapping[str, Any], kind: str, path: str) -> Leaf:
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision <= DIGITS:
            raise self._wrong(path, f"is a decimal of other than 1 to {DIGITS} digits")
        return Leaf(kind, f"decimal({precision},{scale})", "decimal", precision, scale)

    def _wrong(self, path: str, what: str) -> InvalidInputError:
        return InvalidInputError(f"{self._name}: {path} {what}")


def _takes_no_bytes(node: Node) -> bool:
    if isinstance(node, Record):
        return all(_takes_no_bytes(one) for _, one in node.fields)
    return isinstance(node, Skipped) and node.empty
