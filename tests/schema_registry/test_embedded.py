"""The embedded registry: its REST interface, its file, and requests that mean harm."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kohort import SchemaRegistry
from kohort.errors import CorruptDataError
from kohort.schema_registry.embedded import BODY_BYTES_MAX, CONNECTIONS_MAX, FILE
from kohort.schema_registry.subjects import _Resolution
from kohort.testing import EmbeddedSchemaRegistry
from tests.broker.driven import files_up_to

V1 = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "b", "type": "string", "default": ""}]}
V3 = {**V1, "fields": [*V1["fields"], {"name": "c", "type": "string"}]}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[EmbeddedSchemaRegistry]:
    with EmbeddedSchemaRegistry(tmp_path / "registry") as running:
        yield running


def ask(registry: EmbeddedSchemaRegistry, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Return status and JSON of an answer."""
    made = http.client.HTTPConnection(registry.url.removeprefix("http://"), timeout=60)
    try:
        headers = {} if body is None else {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        made.request(method, path, None if body is None else json.dumps(body), headers)
        answer = made.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        made.close()


def schema(found: Any, **more: Any) -> dict[str, Any]:
    return {"schema": found if isinstance(found, str) else json.dumps(found), **more}


def test_subjects_versions_and_ids(registry: EmbeddedSchemaRegistry) -> None:
    assert ask(registry, "GET", "/") == (200, {})
    assert ask(registry, "GET", "/subjects") == (200, [])
    assert ask(registry, "POST", "/subjects/t-value/versions", schema(V1)) == (200, {"id": 1})
    spaced = json.dumps(V1, indent=2)
    assert ask(registry, "POST", "/subjects/t-value/versions", schema(spaced)) == (200, {"id": 1}), (
        "blanks do not count"
    )
    assert ask(registry, "POST", "/subjects/other/versions", schema(V1)) == (200, {"id": 1}), "ids are of schemas"
    assert ask(registry, "POST", "/subjects/t-value/versions", schema(V2)) == (200, {"id": 2})
    assert ask(registry, "GET", "/subjects") == (200, ["other", "t-value"])
    assert ask(registry, "GET", "/subjects/t-value/versions") == (200, [1, 2])
    latest = {"subject": "t-value", "version": 2, "id": 2, "schema": json.dumps(V2)}
    for version in ("latest", "2", "-1"):
        assert ask(registry, "GET", f"/subjects/t-value/versions/{version}") == (200, latest)
    assert ask(registry, "GET", "/schemas/ids/1") == (200, {"schema": json.dumps(V1)})
    assert ask(registry, "POST", "/subjects/t-value", schema(V2)) == (200, latest)
    assert ask(registry, "GET", "/schemas/types") == (200, ["AVRO", "JSON", "PROTOBUF"])


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/subjects/none/versions", None, 404, 40401),
        ("GET", "/subjects/none/versions/latest", None, 404, 40401),
        ("GET", "/subjects/t/versions/9", None, 404, 40402),
        ("GET", "/subjects/t/versions/x", None, 422, 42202),
        ("GET", "/subjects/none/versions/0", None, 422, 42202),
        ("GET", "/subjects/t/versions/2147483648", None, 422, 42202),
        ("POST", "/subjects/t/versions", schema(" "), 422, 42201),
        ("POST", "/subjects/t/versions", schema(" ", schemaType="PROTOBUF"), 422, 42201),
        ("PATCH", "/config", {"compatibility": "NONE"}, 405, 405),
        ("GET", "/schemas/ids/7", None, 404, 40403),
        ("GET", "/nothing", None, 404, 404),
        ("POST", "/subjects/t", schema(V2), 404, 40403),
        ("POST", "/subjects/t/versions", schema("{"), 422, 42201),
        ("POST", "/subjects/t/versions", schema('{"type": "recorb"}'), 422, 42201),
        ("POST", "/subjects/t/versions", {"schema": 1}, 422, 42201),
        ("POST", "/subjects/t/versions", schema(V2, schemaType="XML"), 422, 42201),
        ("POST", "/subjects/t/versions", schema(V2, references=[{"name": "x"}]), 422, 42201),
        ("POST", "/subjects/t/versions", [], 400, 400),
        ("POST", "/subjects/t/versions", schema(V3), 409, 409),
        ("PUT", "/config", {"compatibility": "SOME"}, 422, 42203),
    ],
)
def test_refusals_have_confluents_codes(
    registry: EmbeddedSchemaRegistry, method: str, path: str, body: Any, status: int, code: int
) -> None:
    ask(registry, "POST", "/subjects/t/versions", schema(V1))
    found, answer = ask(registry, method, path, body)
    assert (found, answer["error_code"]) == (status, code)
    assert ask(registry, "GET", "/subjects/t/versions") == (200, [1])


def test_protobuf_file_without_a_message_is_registered_for_files_that_import_it(
    registry: EmbeddedSchemaRegistry,
) -> None:
    kinds = schema('syntax = "proto3"; enum Kind { NONE = 0; CARD = 1; }', schemaType="PROTOBUF")
    assert ask(registry, "POST", "/subjects/kind.proto/versions", kinds) == (200, {"id": 1})
    reference = {"name": "kind.proto", "subject": "kind.proto", "version": 1}
    forwards = schema('syntax = "proto3"; import public "kind.proto";', schemaType="PROTOBUF", references=[reference])
    assert ask(registry, "POST", "/subjects/forwards.proto/versions", forwards) == (200, {"id": 2})
    reference = {"name": "forwards.proto", "subject": "forwards.proto", "version": 1}
    text = 'syntax = "proto3"; import "forwards.proto"; message Payment { Kind kind = 1; }'
    payment = schema(text, schemaType="PROTOBUF", references=[reference])
    assert ask(registry, "POST", "/subjects/payments-value/versions", payment) == (200, {"id": 3})
    client = SchemaRegistry(registry.url)
    value = client.serializer("payments-value")({"kind": "CARD"})
    assert client.deserialize(value) == {"kind": "CARD"}


def test_compatibility_is_by_subject_and_asked_beforehand(registry: EmbeddedSchemaRegistry) -> None:
    ask(registry, "POST", "/subjects/t/versions", schema(V1))
    path = "/compatibility/subjects/t/versions/latest"
    assert ask(registry, "POST", path, schema(V2))[1]["is_compatible"] is True
    found = ask(registry, "POST", path, schema(V3))[1]
    assert found == {"is_compatible": False, "messages": ["value.c: it was not written, and has no default"]}
    assert ask(registry, "GET", "/config/t") == (200, {"compatibilityLevel": "BACKWARD"})
    assert ask(registry, "PUT", "/config/t", {"compatibility": "FORWARD"}) == (200, {"compatibility": "FORWARD"})
    assert ask(registry, "POST", path, schema(V3))[1]["is_compatible"] is True
    assert ask(registry, "GET", "/config") == (200, {"compatibilityLevel": "BACKWARD"})


def test_other_kinds_need_the_level_none(registry: EmbeddedSchemaRegistry) -> None:
    objects = schema({"type": "object"}, schemaType="JSON")
    assert ask(registry, "POST", "/subjects/j/versions", objects) == (200, {"id": 1})
    assert ask(registry, "POST", "/subjects/j/versions", objects) == (200, {"id": 1})
    more = schema({"type": "object", "required": ["a"]}, schemaType="JSON")
    status, answer = ask(registry, "POST", "/subjects/j/versions", more)
    assert status == 409 and "compares Avro and Protobuf only" in answer["message"]
    ask(registry, "PUT", "/config/j", {"compatibility": "NONE"})
    assert ask(registry, "POST", "/subjects/j/versions", more) == (200, {"id": 2})
    assert ask(registry, "GET", "/schemas/ids/2")[1]["schemaType"] == "JSON"


def test_schemas_outlive_the_registry_and_a_torn_line(tmp_path: Path) -> None:
    with EmbeddedSchemaRegistry(tmp_path) as registry:
        ask(registry, "POST", "/subjects/t/versions", schema(V1))
        ask(registry, "PUT", "/config/t", {"compatibility": "NONE"})
        ask(registry, "POST", "/subjects/t/versions", schema(V3))
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"subject": "t", "id": 3, "ki')
    for _ in range(2):
        with EmbeddedSchemaRegistry(tmp_path) as registry:
            assert ask(registry, "GET", "/subjects/t/versions") == (200, [1, 2])
            assert ask(registry, "GET", "/schemas/ids/2") == (200, {"schema": json.dumps(V3)})
            assert ask(registry, "GET", "/config/t") == (200, {"compatibilityLevel": "NONE"})
            assert ask(registry, "POST", "/subjects/u/versions", schema(V2))[1] == {"id": 3}


def test_version_is_deleted_and_then_removed(registry: EmbeddedSchemaRegistry) -> None:
    for found in (V1, V2):
        ask(registry, "POST", "/subjects/t/versions", schema(found))
    first = {"subject": "t", "version": 1, "id": 1, "schema": json.dumps(V1)}
    assert ask(registry, "DELETE", "/subjects/t/versions/1?permanent=true")[1]["error_code"] == 40407
    assert ask(registry, "DELETE", "/subjects/t/versions/1") == (200, 1)
    assert ask(registry, "DELETE", "/subjects/t/versions/1")[1]["error_code"] == 40406
    assert ask(registry, "GET", "/subjects/t/versions") == (200, [2])
    assert ask(registry, "GET", "/subjects/t/versions?deleted=true") == (200, [1, 2])
    assert ask(registry, "GET", "/subjects/t/versions/1")[1]["error_code"] == 40402
    assert ask(registry, "GET", "/subjects/t/versions/1?deleted=true") == (200, first)
    assert ask(registry, "POST", "/subjects/t", schema(V1))[1]["error_code"] == 40403
    assert ask(registry, "POST", "/subjects/t?deleted=true", schema(V1)) == (200, first)
    assert ask(registry, "GET", "/schemas/ids/1") == (200, {"schema": json.dumps(V1)}), "its values can be read"
    assert ask(registry, "DELETE", "/subjects/t/versions/1?permanent=true") == (200, 1)
    assert ask(registry, "GET", "/schemas/ids/1")[1]["error_code"] == 40403
    assert ask(registry, "DELETE", "/subjects/t/versions/latest") == (200, 2)
    assert ask(registry, "GET", "/subjects") == (200, [])
    assert ask(registry, "DELETE", "/subjects/t/versions/7")[1]["error_code"] == 40402
    assert ask(registry, "DELETE", "/subjects/t/versions/x")[1]["error_code"] == 42202


def test_subject_is_deleted_with_its_level_and_its_ids_are_not_given_again(tmp_path: Path) -> None:
    with EmbeddedSchemaRegistry(tmp_path) as registry:
        for found in (V1, V2):
            ask(registry, "POST", "/subjects/t/versions", schema(found))
        ask(registry, "PUT", "/config/t", {"compatibility": "FULL"})
        assert ask(registry, "DELETE", "/subjects/t?permanent=true")[1]["error_code"] == 40405
        assert ask(registry, "DELETE", "/subjects/none")[1]["error_code"] == 40401
        assert ask(registry, "DELETE", "/subjects/t") == (200, [1, 2])
        assert ask(registry, "DELETE", "/subjects/t")[1]["error_code"] == 40404
        assert ask(registry, "GET", "/subjects") == (200, [])
        assert ask(registry, "GET", "/subjects?deleted=true") == (200, ["t"])
        assert ask(registry, "GET", "/config/t") == (200, {"compatibilityLevel": "BACKWARD"})
        assert ask(registry, "POST", "/subjects/t/versions", schema(V3)) == (200, {"id": 3}), "with nothing to compare"
        assert ask(registry, "POST", "/subjects/other/versions", schema(V1)) == (200, {"id": 1}), "the id is kept"
        assert ask(registry, "GET", "/subjects/t/versions") == (200, [3])
        assert ask(registry, "DELETE", "/subjects/t") == (200, [3])
        assert ask(registry, "DELETE", "/subjects/t?permanent=true") == (200, [1, 2, 3])
    with EmbeddedSchemaRegistry(tmp_path) as registry:
        assert ask(registry, "GET", "/subjects?deleted=true") == (200, ["other"])
        assert ask(registry, "GET", "/schemas/ids/2")[0] == 404
        assert ask(registry, "GET", "/schemas/ids/1") == (200, {"schema": json.dumps(V1)})
        assert ask(registry, "POST", "/subjects/t/versions", schema(V2)) == (200, {"id": 4})
        assert ask(registry, "GET", "/subjects/t/versions") == (200, [1])


def test_version_that_another_schema_refers_to_is_not_deleted(registry: EmbeddedSchemaRegistry) -> None:
    ask(registry, "POST", "/subjects/r/versions", schema(V1))
    user = {"type": "record", "name": "U", "fields": [{"name": "r", "type": "R"}]}
    referring = schema(user, references=[{"name": "R", "subject": "r", "version": 1}])
    assert ask(registry, "POST", "/subjects/u/versions", referring) == (200, {"id": 2})
    for path in ("/subjects/r", "/subjects/r/versions/1"):
        assert ask(registry, "DELETE", path)[1]["error_code"] == 42206
    assert ask(registry, "DELETE", "/subjects/u") == (200, [1])
    assert ask(registry, "DELETE", "/subjects/r") == (200, [1])


def test_body_of_a_deletion_is_not_taken_for_the_next_request(registry: EmbeddedSchemaRegistry) -> None:
    hidden = "DELETE /subjects/t HTTP/1.1\r\nHost: localhost\r\n\r\n"
    ask(registry, "POST", "/subjects/t/versions", schema(V1))
    with socket.create_connection(("127.0.0.1", int(registry.url.rpartition(":")[2])), timeout=10) as made:
        head = f"DELETE /subjects/none HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(hidden)}\r\n\r\n"
        made.sendall((head + hidden).encode())
        with made.makefile("rb") as answer:
            assert answer.read().count(b"HTTP/1.1") == 1
    assert ask(registry, "GET", "/subjects") == (200, ["t"])


def test_damaged_line_is_reported(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"subject": "t"}\n')
    with pytest.raises(CorruptDataError, match="a line is damaged"):
        EmbeddedSchemaRegistry(tmp_path)


def test_hostile_requests_are_refused_and_others_served(registry: EmbeddedSchemaRegistry) -> None:
    address = ("127.0.0.1", int(registry.url.rpartition(":")[2]))
    head = "POST /subjects/t/versions HTTP/1.1\r\nHost: localhost\r\n"
    too_large = f"{head}Content-Length: {BODY_BYTES_MAX + 1}\r\n\r\n"
    of_a_page = head + "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}"
    negative = f"{head}Content-Length: -1\r\n\r\n"
    for request, status in ((too_large, b"413"), (negative, b"413"), (of_a_page, b"415"), ("\0\1\2\r\n\r\n", b"400")):
        with socket.create_connection(address, timeout=60) as connection:
            connection.sendall(request.encode())
            assert status in connection.recv(1000).partition(b"\r\n")[0]
    silent = [socket.create_connection(address) for _ in range(CONNECTIONS_MAX - 1)]
    assert ask(registry, "GET", "/subjects") == (200, [])
    for connection in silent:
        connection.close()


def status_of(registry: EmbeddedSchemaRegistry, path: str, headers: dict[str, str], body: bytes | None = None) -> int:
    """Return the status of an answer to a request with these headers."""
    made = http.client.HTTPConnection(registry.url.removeprefix("http://"), timeout=60)
    try:
        made.request("GET" if body is None else "POST", path, body, headers)
        return made.getresponse().status
    finally:
        made.close()


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("text/plain; x=json", 415),
        ("text/plain+json; a", 415),
        ("text/json", 415),
        ("application/x-www-form-urlencoded; json", 415),
        ("jsonp", 415),
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/vnd.schemaregistry.v1+json", 200),
        ("text/plain, application/json", 415),
    ],
)
def test_only_json_is_taken(registry: EmbeddedSchemaRegistry, kind: str, status: int) -> None:
    body = json.dumps(schema(V1)).encode()
    assert status_of(registry, "/subjects/t/versions", {"Content-Type": kind}, body) == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421),
        ("evil.example:8081", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
        ("localhost", 200),
        ("localhost:1", 200),
        ("127.0.0.1:99", 200),
        ("[::1]:99", 200),
    ],
)
def test_only_names_of_this_machine_are_served(registry: EmbeddedSchemaRegistry, host: str, status: int) -> None:
    assert status_of(registry, "/subjects", {"Host": host}) == status
    kind = {"Content-Type": "application/json"}
    assert (
        status_of(registry, "/subjects/t/versions", {"Host": host, **kind}, json.dumps(schema(V1)).encode()) == status
    )
    assert ask(registry, "GET", "/subjects") == (200, ["t"] if status == 200 else [])


def test_enums_are_compared_by_a_set() -> None:
    class Symbols(list[str]):
        asked = 0

        def __contains__(self, symbol: object) -> bool:
            Symbols.asked += 1
            return super().__contains__(symbol)

    old = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    new = {"type": "enum", "name": "E", "symbols": Symbols(["A", "C"])}
    assert list(_Resolution().compare(new, old)) == [
        "value: the symbol B is not known to the reader, which has no default"
    ]
    assert Symbols.asked == 0, "a search of the list for each symbol is quadratic"


def test_type_named_like_a_primitive_in_a_namespace_is_no_primitive(registry: EmbeddedSchemaRegistry) -> None:
    named = {"type": "record", "name": "shop.string", "fields": [{"name": "s", "type": "string"}]}
    assert ask(registry, "POST", "/subjects/named/versions", schema(named)) == (200, {"id": 1})
    more = {**named, "fields": [*named["fields"], {"name": "n", "type": "int", "default": 0}]}
    assert ask(registry, "POST", "/subjects/named/versions", schema(more)) == (200, {"id": 2})


def test_fixture_is_a_registry(kohort_schema_registry: EmbeddedSchemaRegistry) -> None:
    assert ask(kohort_schema_registry, "GET", "/subjects") == (200, [])


def test_full_disk_leaves_nothing_of_a_schema_whose_id_another_one_gets(tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    long = {**V1, "name": "L" * 5_000}
    with EmbeddedSchemaRegistry(folder) as running:
        assert ask(running, "POST", "/subjects/a/versions", schema(V1)) == (200, {"id": 1})
        size = (folder / FILE).stat().st_size
        with files_up_to(size + 100):
            for _ in range(2):
                status, answer = ask(running, "POST", "/subjects/b/versions", schema(long))
                assert (status, answer["error_code"]) == (500, 50001)
                assert "nothing was changed" in answer["message"]
        assert ask(running, "POST", "/subjects/c/versions", schema(V2)) == (200, {"id": 2})
    with EmbeddedSchemaRegistry(folder) as running:
        assert ask(running, "GET", "/subjects") == (200, ["a", "c"])
        assert ask(running, "GET", "/schemas/ids/2") == (200, {"schema": json.dumps(V2)})
