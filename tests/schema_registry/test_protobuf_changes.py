"""Changes of Protobuf schemas: those that a registry refuses, and those that change what written values mean."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kohort import SchemaReference, SchemaRegistry
from kohort.errors import InvalidInputError
from kohort.schema_registry.embedded import EmbeddedSchemaRegistry
from kohort.schema_registry.protobuf_changes import protobuf_incompatibilities, reading_differences
from kohort.schema_registry.protobuf_schemas import ProtobufSchema, compile_protobuf

M = "int32 id = 1; string name = 2;"
NESTED = "message N { int32 x = 1; } N n = 1;"
ONEOF = "oneof o { int32 a = 1; int32 b = 2; }"
CASES: list[tuple[str, str, str]] = [
    # the old fields of M, the new ones, why the new can't follow ("": it can)
    (M, M, ""),
    (M, M + " int64 more = 3;", ""),
    (M, "int32 id = 1;", ""),
    (M, "int32 other = 1; string name = 2;", ""),
    (M, "int32 id = 3; string name = 2;", ""),
    (M, "int64 id = 1; bytes name = 2;", ""),
    (M, "bool id = 1; string name = 2;", ""),
    (M, "sint32 id = 1; string name = 2;", "M.id: int32 became sint32"),
    (M, "string id = 1; string name = 2;", "M.id: int32 became string"),
    (M, "fixed32 id = 1; string name = 2;", "M.id: int32 became fixed32"),
    (M, "string id = 2; int32 name = 1;", ""),
    (M, "int32 id = 2; string name = 1;", "M.id: int32 became string"),
    ("fixed32 id = 1;", "sfixed32 id = 1;", ""),
    ("float id = 1;", "double id = 1;", "float became double"),
    ("enum E { A = 0; } E e = 1;", "int32 e = 1;", ""),
    ("enum E { A = 0; } E e = 1;", "enum E { A = 0; B = 1; } E e = 1;", ""),
    ("map<string, int32> m = 1;", "map<string, int64> m = 1;", ""),
    ("map<string, int32> m = 1;", "map<string, string> m = 1;", "M.m{value}: int32 became string"),
    ("map<string, int32> m = 1;", "int32 m = 1;", "M.m: a map became int32"),
    (NESTED, NESTED + " int32 y = 2;", ""),
    (NESTED, "message N { string x = 1; } N n = 1;", "M.N.x: int32 became string"),
    (NESTED, "int32 n = 1;", "M.n: M.N became int32"),
    (NESTED, "message O { int32 x = 1; } O n = 1;", "M.n: M.N became M.O"),
    (NESTED, "", "the message M.N was removed"),
    (ONEOF, "oneof o { int32 a = 1; int32 b = 2; int32 c = 3; }", ""),
    (ONEOF, "oneof o { int32 a = 1; }", "M.b: the field 2 was removed from its oneof"),
    (ONEOF, "int32 z = 3;", ""),
    ("int32 a = 1;", "oneof o { int32 a = 1; }", ""),
    ("int32 a = 1; int32 b = 2;", ONEOF, "M.o: 2 fields moved into it"),
    ("oneof o { int32 a = 1; } int32 b = 2;", ONEOF, "M.o: b moved into a oneof that was there before"),
    ("optional int32 a = 1; optional int32 b = 2;", "int32 a = 1; int32 b = 2;", ""),
    ("repeated M m = 1; int32 x = 2;", "repeated M m = 1; string x = 2;", "M.x: int32 became string"),
]


def proto3(fields: str, package: str = "") -> ProtobufSchema:
    return compile_protobuf(f'syntax = "proto3"; {package} message M {{ {fields} }}', (), "the schema")


@pytest.mark.parametrize(("old", "new", "reason"), CASES)
def test_changes_are_refused_as_by_confluents_registry(old: str, new: str, reason: str) -> None:
    first, second = proto3(old), proto3(new)
    found = "; ".join(protobuf_incompatibilities("BACKWARD", second, [first]))
    assert (reason in found) if reason else not found, found
    assert bool(protobuf_incompatibilities("FORWARD", first, [second])) == bool(found)
    assert not protobuf_incompatibilities("NONE", second, [first])


def test_levels_choose_the_versions_and_the_direction() -> None:
    first, second, third = proto3("string a = 1;"), proto3("int32 b = 2;"), proto3("int32 a = 1;")
    assert not protobuf_incompatibilities("BACKWARD", third, [first, second])
    assert protobuf_incompatibilities("BACKWARD_TRANSITIVE", third, [first, second])
    two = compile_protobuf('syntax = "proto3"; message M { int32 b = 2; } message N {}', (), "the schema")
    assert not protobuf_incompatibilities("BACKWARD", two, [second])
    for level in ("FORWARD", "FULL", "FULL_TRANSITIVE"):
        assert protobuf_incompatibilities(level, two, [second]) == ["the message N was removed"], level
    renamed = proto3("int32 b = 2;", "package p;")
    assert protobuf_incompatibilities("BACKWARD", renamed, [second]) == ["the package (none) became p"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("required int32 a = 1;", "required int32 a = 1;", ""),
        ("required int32 a = 1;", "optional int32 b = 2;", "the required field 1 was removed"),
        ("optional int32 a = 1;", "required int32 b = 2;", "the required field 2 was added"),
        ("optional group G = 1 { optional int32 x = 1; }", "optional group G = 1 { optional bytes x = 1; }", "int32"),
    ],
)
def test_required_fields(old: str, new: str, reason: str) -> None:
    first, second = (compile_protobuf(f"message M {{ {fields} }}", (), "the schema") for fields in (old, new))
    found = "; ".join(protobuf_incompatibilities("BACKWARD", second, [first]))
    assert (reason in found) if reason else not found, found


@pytest.mark.parametrize(
    ("written", "read", "reason"),
    [
        (M, M, ""),
        ("int32 a = 1;", "int64 a = 1;", ""),
        ("uint32 a = 1;", "int64 a = 1;", ""),
        ("bool a = 1;", "int32 a = 1;", ""),
        ("string a = 1;", "bytes a = 1;", ""),
        ("int32 a = 1;", "repeated int32 a = 1;", ""),
        ("enum E { A = 0; } E e = 1;", "int32 e = 1;", ""),
        ("int64 a = 1;", "int32 a = 1;", "M.a was written as int64 and is read as int32"),
        ("int32 a = 1;", "uint32 a = 1;", "M.a was written as int32 and is read as uint32"),
        ("int32 a = 1;", "sint32 a = 1;", "M.a was written as int32"),
        ("int32 a = 1;", "enum E { A = 0; } E a = 1;", "read as enum"),
        ("repeated int32 a = 1;", "int32 a = 1;", "written as repeated int32"),
        ("map<string, int32> a = 1;", "map<string, sint32> a = 1;", "AEntry.value was written as int32"),
        ("string a = 1;", "int32 a = 1;", "M.a was written as string"),
        ("message N { int32 x = 1; M m = 2; } N a = 1;", "message N { string x = 1; M m = 2; } N a = 1;", "M.N.x"),
    ],
)
def test_readers_of_another_version_get_what_was_written(written: str, read: str, reason: str) -> None:
    found = list(reading_differences(proto3(written).message_named("M"), proto3(read).message_named("M")))
    assert (reason in "; ".join(found)) if reason else not found, found


P2, P3 = 'syntax = "proto2"; ', 'syntax = "proto3"; '
RGB = "enum E { RED = 0; GREEN = 1; BLUE = 2; }"


@pytest.mark.parametrize(
    ("written", "read", "reason"),
    [
        ("string a = 1; string b = 2;", "oneof x { string a = 1; string b = 2; }", "M.x: 2 fields were written"),
        ("string a = 1;", "oneof x { string a = 1; string b = 2; }", ""),
        ("oneof y { string a = 1; string b = 2; }", "oneof x { string a = 1; string b = 2; }", ""),
        ("oneof x { string a = 1; } string b = 2;", "oneof x { string a = 1; string b = 2; }", "M.x: 2 fields"),
        ("oneof x { string a = 1; } oneof y { string b = 2; }", "oneof x { string a = 1; string b = 2; }", "M.x: 2"),
        ("oneof x { string a = 1; string b = 2; }", "string a = 1; string b = 2;", ""),
        (f"{RGB} E e = 1;", "enum E { RED = 0; BLUE = 1; GREEN = 2; } E e = 1;", "M.E: GREEN was 1, which is BLUE now"),
        (f"{RGB} E e = 1;", "enum E { RED = 0; LIME = 1; BLUE = 2; } E e = 1;", ""),
        (f"{RGB} E e = 1;", "enum E { RED = 0; } E e = 1;", ""),
        (
            f"{RGB} map<int32, E> e = 1;",
            "enum E { RED = 0; BLUE = 1; } map<int32, E> e = 1;",
            "M.E: GREEN was 1, which is BLUE",
        ),
        ("int32 n = 1;", "optional int32 n = 1;", ""),
        ("optional int32 n = 1;", "int32 n = 1;", ""),
    ],
)
def test_changes_that_keep_types_may_lose_values(written: str, read: str, reason: str) -> None:
    found = list(reading_differences(proto3(written).message_named("M"), proto3(read).message_named("M")))
    assert (reason in "; ".join(found)) if reason else not found, found


@pytest.mark.parametrize(
    ("written", "read", "reason"),
    [
        (P2 + "message M { optional int32 n = 1 [default = 5]; }", P3 + "message M { int32 n = 1; }", "5 became 0"),
        (P3 + "message M { int32 n = 1; }", P2 + "message M { optional int32 n = 1 [default = 5]; }", "0 became 5"),
        (P2 + "message M { optional string n = 1 [default = 'x']; }",
         P2 + "message M { optional bytes n = 1 [default = 'x']; }", ""),
        (P2 + "message M { optional float n = 1 [default = nan]; }",
         P2 + "message M { optional float n = 1 [default = nan]; }", ""),
        (P2 + "message M { optional int32 n = 1; }", P3 + "message M { int32 n = 1; }", ""),
        (P2 + "message M { oneof o { int32 n = 1 [default = 5]; } }", P3 + "message M { int32 n = 1; }", ""),
        (P3 + RGB + "message M { E e = 1; }", P2 + "enum E { RED = 0; GREEN = 1; } message M { optional E e = 1; }",
         "E has no BLUE = 2, and is closed"),
        (P3 + RGB + "message M { repeated E e = 1; }", P2 + "enum E { RED = 0; } message M { repeated E e = 1; }",
         "E has no GREEN = 1, and is closed"),
        (P3 + RGB + "message M { E e = 1; }", P2 + RGB + "message M { optional E e = 1; }", ""),
    ],
)  # fmt: skip
def test_syntaxes_read_each_other_where_nothing_is_lost(written: str, read: str, reason: str) -> None:
    schemas = [compile_protobuf(text, (), "the schema") for text in (written, read)]
    found = list(reading_differences(*(schema.message_named("M") for schema in schemas)))
    assert (reason in "; ".join(found)) if reason else not found, found


# -- The embedded registry


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[EmbeddedSchemaRegistry]:
    with EmbeddedSchemaRegistry(tmp_path / "registry") as running:
        yield running


def ask(registry: EmbeddedSchemaRegistry, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    made = http.client.HTTPConnection(registry.url.removeprefix("http://"), timeout=60)
    try:
        made.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        answer = made.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        made.close()


def test_registry_refuses_a_version_that_can_not_follow(registry: EmbeddedSchemaRegistry) -> None:
    client = SchemaRegistry(registry.url)
    first = f'syntax = "proto3"; message M {{ {M} }}'
    assert client.register("m", first, "PROTOBUF") == 1
    assert client.register("m", first + " // the same", "PROTOBUF") == 1
    assert client.register("m", first.replace("int32", "int64"), "PROTOBUF") == 2
    with pytest.raises(InvalidInputError, match="incompatible with an earlier schema: M.id: int64 became string"):
        client.register("m", first.replace("int32", "string"), "PROTOBUF")
    with pytest.raises(InvalidInputError, match="of the kind PROTOBUF"):
        client.register("m", '"int"')
    body = {"schema": first.replace("int32", "string"), "schemaType": "PROTOBUF"}
    status, answer = ask(registry, "POST", "/compatibility/subjects/m/versions/1", body)
    assert (status, answer["is_compatible"]) == (200, False) and "M.id" in answer["messages"][0]
    assert ask(registry, "PUT", "/config/m", {"compatibility": "NONE"})[0] == 200
    assert client.register("m", first.replace("int32", "string"), "PROTOBUF") == 3
    status, answer = ask(registry, "POST", "/subjects/m", {"schema": "message", "schemaType": "PROTOBUF"})
    assert (status, answer["error_code"]) == (422, 42201) and "protoc refuses the schema" in answer["message"]


def test_references_are_kept_and_shown(registry: EmbeddedSchemaRegistry, tmp_path: Path) -> None:
    client = SchemaRegistry(registry.url)
    base = 'syntax = "proto3"; package p; message A { int32 a = 1; }'
    uses = 'syntax = "proto3"; package p; import "a.proto"; message U { A a = 1; }'
    client.register("base", base, "PROTOBUF")
    number = client.register("uses", uses, "PROTOBUF", references=[SchemaReference("a.proto", "base", 1)])
    shown = [{"name": "a.proto", "subject": "base", "version": 1}]
    registry.close()
    with EmbeddedSchemaRegistry(tmp_path / "registry") as again:
        status, answer = ask(again, "GET", f"/schemas/ids/{number}")
        assert (status, answer) == (200, {"schema": uses, "schemaType": "PROTOBUF", "references": shown})
        status, answer = ask(again, "GET", "/subjects/uses/versions/1?format=serialized")
        assert (status, answer["references"]) == (200, shown)
        assert compile_protobuf(answer["schema"], (("a.proto", base),), "it").message_named("p.U").full_name == "p.U"
        assert ask(again, "GET", "/subjects/base/versions/1/referencedby") == (200, [number])
        assert ask(again, "GET", "/subjects/base/versions/9/referencedby")[0] == 404
        body = {"schema": '"int"', "references": shown}
        status, answer = ask(again, "POST", "/subjects/avro/versions", body)
        assert status == 422 and "is of the kind PROTOBUF" in answer["message"]
        other = SchemaRegistry(again.url)
        with pytest.raises(InvalidInputError, match="M.x|A.a: int32 became string"):
            other.register(
                "uses",
                base.replace("int32", "string").replace("message A", "message U { A a = 1; } message A"),
                "PROTOBUF",
            )
