"""Avro's schema resolution, and the levels of compatibility; fastavro reads what is said to be readable."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from kohort.schema_registry.subjects import LEVELS, avro_incompatibilities, read_incompatibilities


def record(*fields: tuple[Any, ...], name: str = "R", **more: Any) -> Any:
    made = [{"name": field[0], "type": field[1], **(field[2] if len(field) > 2 else {})} for field in fields]
    return {"type": "record", "name": name, "fields": made, **more}


FIXED = {"type": "fixed", "name": "F", "size": 2}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
CASES: list[tuple[Any, Any, Any, str]] = [
    # reader, writer, a value of the writer, the reason ("": readable)
    ("long", "int", 3, ""),
    ("double", "long", 3, ""),
    ("int", "long", 2**40, "long was written"),
    ("bytes", "string", "x", ""),
    ("string", "bytes", b"x", ""),
    ("string", "int", 3, "int was written"),
    (["null", "long"], "int", 3, ""),
    (["null", "string"], "int", 3, "no branch"),
    ("int", ["null", "int"], None, "null was written"),
    (["int", "null"], ["null", "int"], None, ""),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, [1], ""),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "string"}, ["x"], "value\\[\\]: string"),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, {"a": "x"}, "value{}: string"),
    (FIXED, FIXED, b"ab", ""),
    ({**FIXED, "size": 3}, FIXED, b"ab", "2 bytes were written"),
    (ENUM, ENUM, "B", ""),
    ({**ENUM, "symbols": ["A"]}, ENUM, "B", "the symbol B"),
    ({**ENUM, "symbols": ["A"], "default": "A"}, ENUM, "B", ""),
    (record(("a", "int"), ("b", "int", {"default": 1})), record(("a", "int")), {"a": 1}, ""),
    (record(("a", "int"), ("b", "int")), record(("a", "int")), {"a": 1}, "value.b: it was not written"),
    (record(("a", "int")), record(("a", "int"), ("b", "int")), {"a": 1, "b": 2}, ""),
    (record(("n", "int", {"aliases": ["a"]})), record(("a", "int")), {"a": 1}, ""),
    (record(("a", "int"), name="S"), record(("a", "int")), {"a": 1}, "another name"),
    (record(("a", "int"), name="S", aliases=["R"]), record(("a", "int")), {"a": 1}, ""),
    (
        record(("a", record(("x", "int"), name="I")), ("b", "I")),
        record(("a", record(("x", "int"), name="I")), ("b", "I")),
        {"a": {"x": 1}, "b": {"x": 2}},
        "",
    ),
    (
        record(("a", record(("x", "int"), ("y", "int"), name="I")), ("b", "I")),
        record(("a", record(("x", "int"), name="I")), ("b", "I")),
        {"a": {"x": 1}, "b": {"x": 2}},
        "value.a.y",
    ),
    (
        record(("a", ["null", {**ENUM, "name": "n.I"}]), namespace="n"),
        record(("a", ["null", {**ENUM, "name": "I"}]), namespace="n"),
        {"a": "A"},
        "",
    ),
    ({"type": "int", "logicalType": "date"}, "int", 3, ""),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "writer", "value", "reason"), CASES)
def test_resolution_is_avros(reader: Any, writer: Any, value: Any, reason: str) -> None:
    found = read_incompatibilities(json.dumps(reader), json.dumps(writer))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(writer), value)
    stream.seek(0)
    if reason:
        assert found and pytest.raises(AssertionError, match=reason).matches(AssertionError("; ".join(found))), found
        with pytest.raises(Exception):  # noqa: B017, PT011 (fastavro has no common class of errors)
            fastavro.schemaless_reader(stream, fastavro.parse_schema(writer), fastavro.parse_schema(reader))
    else:
        assert found == []
        fastavro.schemaless_reader(stream, fastavro.parse_schema(writer), fastavro.parse_schema(reader))


OLD, OPTIONAL = json.dumps(record(("a", "int"))), json.dumps(record(("a", "int"), ("b", "int", {"default": 1})))
NEEDED = json.dumps(record(("a", "int"), ("b", "int")))


@pytest.mark.parametrize(
    ("level", "new", "olds", "fits"),
    [
        ("NONE", '"string"', [OLD], True),
        ("BACKWARD", OPTIONAL, [OLD], True),
        ("BACKWARD", NEEDED, [OLD], False),
        ("BACKWARD", NEEDED, [OLD, OPTIONAL], True),
        ("BACKWARD_TRANSITIVE", NEEDED, [OLD, OPTIONAL], False),
        ("FORWARD", NEEDED, [OLD], True),
        ("FORWARD", OLD, [NEEDED], False),
        ("FORWARD", OLD, [NEEDED, OPTIONAL], True),
        ("FORWARD_TRANSITIVE", OLD, [NEEDED, OPTIONAL], False),
        ("FULL", OPTIONAL, [OLD], True),
        ("FULL", NEEDED, [OLD], False),
        ("FULL_TRANSITIVE", NEEDED, [OLD, OPTIONAL], False),
    ],
)
def test_level_says_what_is_compared(level: str, new: str, olds: list[str], fits: bool) -> None:
    assert level in LEVELS
    assert (avro_incompatibilities(level, new, olds) == []) is fits
