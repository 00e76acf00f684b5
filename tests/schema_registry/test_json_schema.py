"""JSON Schema: values that are written, those that are refused, and Confluent's client at the other end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from kohort import SchemaRegistry
from kohort.errors import InvalidInputError, NotFoundError
from kohort.schema_registry.embedded import EmbeddedSchemaRegistry
from kohort.schema_registry.json_values import json_writer
from tests.schema_registry.raw_registry import raw_registry

PAYMENT = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Payment",
        "type": "object",
        "definitions": {"Item": {"type": "object", "properties": {"price": {"type": "number", "minimum": 0}}}},
        "properties": {
            "id": {"type": "integer"},
            "note": {"type": ["string", "null"]},
            "items": {"type": "array", "items": {"$ref": "#/definitions/Item"}},
        },
        "required": ["id"],
    }
)
FULL: dict[str, Any] = {"id": 2**63, "note": "é\U0001f600", "items": [{"price": 0.1}, {}], "more": [None, True]}


@pytest.fixture
def embedded() -> Iterator[EmbeddedSchemaRegistry]:
    with EmbeddedSchemaRegistry() as running:
        yield running


def test_value_goes_through_its_schema_and_back(embedded: EmbeddedSchemaRegistry) -> None:
    registry = SchemaRegistry(embedded.url)
    write = registry.serializer("pay-value", PAYMENT, kind="JSON")
    data = write(FULL)
    assert data == b"\0\0\0\0\1" + json.dumps(FULL, ensure_ascii=False, separators=(",", ":")).encode()
    assert registry.deserialize(data) == FULL
    assert registry.latest("pay-value").kind == "JSON"
    assert SchemaRegistry(embedded.url).serializer("pay-value")({"id": 1})[:5] == data[:5], "the subject's newest"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param({"id": "1"}, r"\$\.id: '1' is not of type 'integer'", id="type"),
        pytest.param({}, "'id' is a required property", id="required"),
        pytest.param({"id": True}, "is not of type 'integer'", id="boolean"),
        pytest.param(
            {"id": 1, "items": [{"price": -1}]}, r"\$\.items\[0\]\.price: -1 is less", id="behind a reference"
        ),
        pytest.param({"id": 1, "items": ({},)}, "would change as JSON", id="tuple"),
        pytest.param({"id": 1, 2: 3}, "would change as JSON", id="number as key"),
        pytest.param({"id": 1, "x": float("nan")}, "can't be JSON", id="NaN"),
        pytest.param({"id": 1, "x": b"x"}, "can't be JSON", id="bytes"),
        pytest.param({"id": 1, "x": "\ud800"}, "can't be JSON", id="half a surrogate pair"),
        pytest.param(7, "is not of type 'object'", id="number"),
    ],
)
def test_value_that_is_not_of_the_schema_is_refused(value: Any, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        json_writer(PAYMENT, 1)(value)


def test_long_value_is_not_shown_whole() -> None:
    with pytest.raises(InvalidInputError) as caught:
        json_writer(PAYMENT, 1)({"id": "x" * 10_000})
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "schema", ["{", '{"type": "objekt"}', "7", '{"properties": []}', "[" * 100_000, '{"$ref": 7}'],
    ids=["no JSON", "unknown type", "a number", "properties in a list", "too deep", "reference to a number"],
)  # fmt: skip
def test_invalid_schema_is_not_registered(embedded: EmbeddedSchemaRegistry, schema: str) -> None:
    registry = SchemaRegistry(embedded.url)
    with pytest.raises(InvalidInputError, match="no JSON Schema"):
        registry.serializer("bad-value", schema, kind="JSON")
    with pytest.raises(NotFoundError):
        registry.latest("bad-value")


def test_reference_to_elsewhere_fetches_nothing() -> None:
    with raw_registry(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as server:
        write = json_writer(json.dumps({"properties": {"a": {"$ref": f"{server.url}/schema.json"}}}), 1)
        with pytest.raises(InvalidInputError, match="which it does not have: nothing is fetched"):
            write({"a": 1})
        assert server.requests == []


def test_schema_that_refers_to_itself_without_an_end_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="refers to itself without an end"):
        json_writer('{"allOf": [{"$ref": "#"}]}', 1)({})


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        pytest.param({"$schema": 7}, 1, id="schema of another kind"),
        pytest.param({"definitions": {"a": {"const": 7}}, "$ref": "#/definitions/a/const"}, 1, id="number"),
        pytest.param({"definitions": {"a": {"const": "x"}}, "$ref": "#/definitions/a/const"}, 1, id="text"),
        pytest.param({"definitions": {"a": {"const": 7}}, "$ref": "#/definitions/a/const/b"}, 1, id="behind a number"),
        pytest.param({"allOf": [{}], "$ref": "#/allOf/x"}, 1, id="no index"),
        pytest.param({"multipleOf": 0.5}, 10**400, id="beyond a float"),
        pytest.param(
            {"$schema": "http://json-schema.org/draft-04/schema#", "patternProperties": {"(": {}}},
            {"a": 1},
            id="pattern of draft 4",
        ),
    ],
)
def test_schema_that_jsonschema_fails_at_is_refused(schema: Any, value: Any) -> None:
    """No error of another kind reaches the application."""
    with pytest.raises(InvalidInputError, match="no JSON Schema|can't be compared with the schema"):
        json_writer(json.dumps(schema), 1)(value)


def test_recursive_schema_reads_a_tree() -> None:
    write = json_writer('{"properties": {"next": {"$ref": "#"}}, "required": ["id"]}', 1)
    assert write({"id": 1, "next": {"id": 2}}).endswith(b'{"id":1,"next":{"id":2}}')
    with pytest.raises(InvalidInputError, match="'id' is a required property"):
        write({"id": 1, "next": {}})


def test_newer_draft_is_followed() -> None:
    later = {"$schema": "https://json-schema.org/draft/2020-12/schema", "prefixItems": [{"type": "string"}]}
    with pytest.raises(InvalidInputError, match="is not of type 'string'"):
        json_writer(json.dumps(later), 1)([1])
    assert json_writer(json.dumps({"prefixItems": [{"type": "string"}]}), 1)([1]), "draft 7 does not know it"


def test_schema_of_json_has_no_messages(embedded: EmbeddedSchemaRegistry) -> None:
    with pytest.raises(InvalidInputError, match="PROTOBUF alone has messages"):
        SchemaRegistry(embedded.url).serializer("pay-value", PAYMENT, kind="JSON", message="Payment")


def test_library_that_is_not_installed_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(InvalidInputError, match=r"pip install 'kohort\[registry\]'"):
        json_writer("{}", 1)


def test_confluents_client_reads_and_writes_the_same(embedded: EmbeddedSchemaRegistry) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    context, registry = SerializationContext("pay", MessageField.VALUE), SchemaRegistry(embedded.url)
    write = registry.serializer("pay-value", PAYMENT, kind="JSON")
    with SchemaRegistryClient({"url": embedded.url}) as client:
        assert JSONDeserializer(PAYMENT, schema_registry_client=client)(write(FULL), context) == FULL
        data = JSONSerializer(PAYMENT, client)(FULL, context)
    assert data is not None and data[:5] == write(FULL)[:5]
    assert registry.deserialize(data) == FULL
