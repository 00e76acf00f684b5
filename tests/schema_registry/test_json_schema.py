"""JSON Schema: values that are written, those that are refused, and Confluent's client at the other end."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from kohort import SchemaReference, SchemaRegistry
from kohort.errors import InvalidInputError, NotFoundError
from kohort.schema_registry import json_values
from kohort.schema_registry.embedded import EmbeddedSchemaRegistry
from kohort.schema_registry.json_values import json_schema_checker, json_writer
from tests.schema_registry.raw_registry import http_answer, raw_registry

DRAFT_3 = "http://json-schema.org/draft-03/schema#"
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
        pytest.param({"$schema": DRAFT_3, "type": "objekt"}, 1, id="unknown type of draft 3"),
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


CUSTOMER = '{"$id": "https://crm.example/c", "type": "object", "properties": {"age": {"$ref": "age.json"}}}'
AGE = '{"type": "integer", "minimum": 0}'


@pytest.mark.parametrize(
    ("identity", "name", "reference"),
    [
        (None, "customer.json", "customer.json"),
        ("https://shop.example/schemas/order.json", "customer.json", "customer.json"),
        ("https://shop.example/schemas/order.json", "https://shop.example/x/c.json", "/x/c.json"),
        (None, "any name", "https://crm.example/c"),
    ],
)
def test_references_to_other_schemas_are_followed(
    embedded: EmbeddedSchemaRegistry, identity: str | None, name: str, reference: str
) -> None:
    """A name is one beside the schema's $id, as for Confluent's serializers, or the other schema's own $id."""
    registry = SchemaRegistry(embedded.url)
    registry.register("age", AGE, "JSON")
    to_age = SchemaReference("age.json", "age", 1)
    registry.register("customer", CUSTOMER, "JSON", references=[to_age])
    order = {"type": "object", "properties": {"of": {"$ref": reference}}} | ({"$id": identity} if identity else {})
    to_customer = SchemaReference(name, "customer", 1)
    registry.serializer("t-value", json.dumps(order), kind="JSON", references=[to_customer])
    fresh = SchemaRegistry(embedded.url)
    write = fresh.serializer("t-value")
    data = write({"of": {"age": 7}})
    assert fresh.deserialize(data) == {"of": {"age": 7}}
    assert fresh.latest("t-value").references == (to_customer,)
    with pytest.raises(InvalidInputError, match=r"\$.of.age: -1 is less than the minimum of 0"):
        write({"of": {"age": -1}})


def test_reading_needs_no_reference() -> None:
    """The value is not compared with its schema, so the schemas that this refers to are not asked for."""
    answer = {"schema": "{}", "schemaType": "JSON", "references": [{"name": "a", "subject": "gone", "version": 3}]}
    with raw_registry(http_answer(answer)) as server:
        assert SchemaRegistry(server.url).deserialize(b"\0\0\0\0\1[7]") == [7]
        assert len(server.requests) == 1


@pytest.mark.parametrize("text", ["[]", "7", '{"$schema": 7}', '{"$id": 7}'])
def test_reference_to_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="no JSON Schema"):
        json_writer("{}", 1, (("a.json", text),))


def test_reference_that_is_not_there_is_refused(embedded: EmbeddedSchemaRegistry) -> None:
    registry = SchemaRegistry(embedded.url)
    reference = [SchemaReference("a.json", "gone", 3)]
    with pytest.raises(InvalidInputError, match="version 3 of gone, which does not exist"):
        registry.serializer("t-value", "{}", kind="JSON", references=reference)
    with pytest.raises(InvalidInputError, match="version 3 of gone, which does not exist"):
        registry.register("t-value", "{}", "JSON", references=reference)


def test_references_of_confluents_client_are_read(embedded: EmbeddedSchemaRegistry) -> None:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
    from confluent_kafka.schema_registry import SchemaReference as TheirReference
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    order = '{"title": "Order", "type": "object", "properties": {"age": {"$ref": "age.json"}}}'
    registry = SchemaRegistry(embedded.url)
    registry.register("age", AGE, "JSON")
    with SchemaRegistryClient({"url": embedded.url}) as client:
        schema = Schema(order, "JSON", [TheirReference("age.json", "age", 1)])
        data = JSONSerializer(schema, client)({"age": 7}, SerializationContext("t", MessageField.VALUE))
    assert data is not None and registry.deserialize(data) == {"age": 7}
    assert registry.serializer("t-value")({"age": 7})[:5] == data[:5]


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


HOSTILE = "^(a+)+$"
TEXT = "a" * 40 + "!"
DRAFT = "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        pytest.param({"pattern": HOSTILE}, TEXT, id="pattern"),
        pytest.param({"pattern": HOSTILE.replace("^", "^(?=a)")}, TEXT, id="lookahead"),
        pytest.param({"pattern": "^" + "a?" * 40 + "(?!!)" + "a" * 40 + "$"}, "a" * 39 + "!", id="options"),
        pytest.param({"pattern": "^" + "(a|a)" * 40 + "(?!!)$"}, "a" * 40 + "!", id="alternatives"),
        pytest.param({"pattern": r"(a*)*\1b"}, TEXT, id="back reference"),
        pytest.param({"pattern": "(?=a*a*a*a*a*a*b)"}, "a" * 3_000, id="powers"),
        pytest.param({"patternProperties": {HOSTILE: False}, "required": ["b"]}, {TEXT: 1}, id="names"),
        pytest.param({"patternProperties": {HOSTILE: {}}, "additionalProperties": False}, {TEXT: 1}, id="other names"),
        pytest.param({"allOf": [{"$schema": DRAFT, "pattern": HOSTILE}]}, TEXT, id="part of another draft"),
        pytest.param(
            {"$schema": DRAFT, "patternProperties": {HOSTILE: {}}, "unevaluatedProperties": False},
            {TEXT: 1},
            id="unevaluated names",
        ),
        pytest.param(
            {"$schema": DRAFT, "$defs": {"a": {"pattern": HOSTILE}}, "$ref": "#/$defs/a"}, TEXT, id="reference"
        ),
    ],
)
def test_hostile_pattern_is_searched_in_bounded_time(schema: Any, value: Any) -> None:
    """Python's engine alone needs hours for each of them."""
    with pytest.raises(InvalidInputError, match="is not of the schema|could take too long"):
        json_writer(json.dumps(schema), 1)(value)


def doubling(keyword: str, levels: int = 40) -> dict[str, Any]:
    """A small schema whose parts are compared 2**levels times, because each refers to the next one twice."""
    parts = {f"a{level}": {keyword: 2 * [{"$ref": f"#/definitions/a{level + 1}"}]} for level in range(levels)}
    return {"definitions": {**parts, f"a{levels}": {"type": "string"}}, "$ref": "#/definitions/a0"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        pytest.param(doubling("allOf"), "x", id="references"),
        pytest.param(doubling("anyOf"), 1, id="references in alternatives"),
        pytest.param({"items": {"pattern": "^(?=a{0,99}$)"}}, ["a" * 90] * 100_000, id="counted steps of many texts"),
    ],
)
def test_a_check_takes_bounded_time(monkeypatch: pytest.MonkeyPatch, schema: Any, value: Any) -> None:
    monkeypatch.setattr(json_values, "CHECK_CPU_S", 0.5)
    check = json_schema_checker(json.dumps(schema))
    with pytest.raises(InvalidInputError, match=r"more than 0.5 s of processor time"):
        check(value)
    assert json_schema_checker("{}")(value) is None, "the next check has a time of its own"


def test_a_pattern_of_many_instructions_is_not_searched_for_in_long_texts() -> None:
    """RE2 takes 14 s for this one where each state has hundreds of places, and can't be stopped."""
    check = json_schema_checker(json.dumps({"pattern": "(?:a{0,100}){10}b"}))
    check("a" * 10_000 + "b")
    with pytest.raises(InvalidInputError, match="could take too long for a text of 1000000 characters"):
        check("a" * 1_000_000)
    json_schema_checker(json.dumps({"pattern": "^[a-z]+$"}))("a" * 1_000_000)


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "type"])
def test_errors_of_alternatives_are_not_kept(keyword: str) -> None:
    """The text of each has the value in it: 2,000 of them took 400 MB for this one."""
    branches = [{"type": "integer", "title": f"branch {number}"} for number in range(2_000)]
    check = json_schema_checker(json.dumps({keyword: branches, **({"$schema": DRAFT_3} if keyword == "type" else {})}))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInputError, match="is not of the schema"):
            check("x" * 200_000)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("schema", "value", "is_valid"),
    [
        ({"oneOf": [{"type": "integer"}, {"minimum": 5}]}, 3, True),
        ({"oneOf": [{"type": "integer"}, {"minimum": 5}]}, 7, False),
        ({"oneOf": [{"type": "integer"}, {"minimum": 5}]}, 1.5, False),
        ({"anyOf": [{"type": "integer"}, {"minimum": 5}]}, 7, True),
        ({"uniqueItems": True}, [1, True, "1", None, [1], {"a": 1}, 1.5, 10**400, "null", 0, False, ""], True),
        ({"uniqueItems": True}, [{"a": [1, {}]}, {"a": [1.0, {}]}], False),
        ({"uniqueItems": True}, [10**22, 1e22], False),
        ({"uniqueItems": False}, [1, 1], True),
        ({"$schema": DRAFT_3, "type": ["string", {"minimum": 5}]}, 7, True),
        ({"$schema": DRAFT_3, "type": ["string", {"minimum": 5}]}, 4, False),
        ({"$schema": DRAFT_3, "disallow": "string"}, "x", False),
    ],
    ids=str,
)
def test_keywords_of_our_own_decide_as_jsonschema_does(schema: Any, value: Any, is_valid: bool) -> None:
    from jsonschema.validators import validator_for

    assert validator_for(schema)(schema).is_valid(value) is is_valid
    try:
        json_schema_checker(json.dumps(schema))(value)
    except InvalidInputError:
        assert not is_valid
    else:
        assert is_valid


def test_unique_items_are_compared_in_one_pass() -> None:
    """The library compares every pair of 20,000 objects: minutes."""
    check = json_schema_checker('{"uniqueItems": true}')
    check([{"id": number} for number in range(20_000)])
    with pytest.raises(InvalidInputError, match="is not of the schema"):
        check([{"id": number % 19_999} for number in range(20_000)])


@pytest.mark.parametrize(
    ("pattern", "found", "missed"),
    [
        pytest.param(r"^(?!\s*$).+", "x ", "  ", id="not blank"),
        pytest.param(r"^(?=.*[A-Z])(?=.*\d)(?=.*[a-z]).{8,}$", "aBcdefg1", "abcdefg1", id="password"),
        pytest.param(r"^[\w.+-]+@[\w-]+(\.[\w-]+)+$", "a.b@c.de", "a@b", id="address"),
        pytest.param(r"^[^\u0000-\u001f]*$", "é", "a\tb", id="escaped characters"),
        pytest.param(r"^\\u0041$", r"\u0041", "A", id="backslash before u"),
        pytest.param(r"^(\d{4})-\1$", "2024-2024", "2024-2025", id="back reference"),
        pytest.param("b", "abc", "ac", id="anywhere"),
        pytest.param("^x{2000}$", "x" * 2_000, "x" * 1_999, id="many times"),
    ],
)
def test_pattern_finds_what_java_finds(pattern: str, found: str, missed: str) -> None:
    write = json_writer(json.dumps({"pattern": pattern}), 1)
    assert write(found)
    with pytest.raises(InvalidInputError, match="is not of the schema"):
        write(missed)


@pytest.mark.parametrize("draft", ["", DRAFT], ids=["draft 7", "draft 2020-12"])
def test_properties_by_pattern_and_all_others(draft: str) -> None:
    schema = {"properties": {"id": {}}, "patternProperties": {"^x-": {"type": "integer"}}}
    schema |= {"$schema": draft} if draft else {}
    closed, typed = ({**schema, "additionalProperties": more} for more in (False, {"type": "string"}))
    assert json_writer(json.dumps(closed), 1)({"id": None, "x-a": 1})
    assert json_writer(json.dumps(typed), 1)({"id": None, "x-a": 1, "y": "z"})
    for text, value, reason in (
        (closed, {"y": 1}, "additional properties are not allowed: 'y'"),
        (closed, {"x-a": "b"}, r"\$\['x-a'\]: 'b' is not of type 'integer'|\$\.x-a: 'b' is not of type 'integer'"),
        (typed, {"y": 1}, r"\$\.y: 1 is not of type 'string'"),
    ):
        with pytest.raises(InvalidInputError, match=reason):
            json_writer(json.dumps(text), 1)(value)


def test_without_re2_only_patterns_of_few_steps_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "load_re2", lambda: None)
    json_values._searcher.cache_clear()
    try:
        assert json_writer('{"pattern": "^[a-z]+-[0-9]+$"}', 1)("abc-123")
        with pytest.raises(InvalidInputError, match="could take too long"):
            json_writer(json.dumps({"pattern": HOSTILE}), 1)(TEXT)
    finally:
        json_values._searcher.cache_clear()
