"""Avro schemas that take types from other schemas of the registry."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kohort import SchemaReference, SchemaRegistry
from kohort.errors import CorruptDataError, InvalidInputError
from kohort.schema_registry.avro_limits import check_avro_schema
from kohort.schema_registry.avro_references import definition_name, full_name, inline_avro_references
from kohort.schema_registry.embedded import EmbeddedSchemaRegistry
from kohort.schema_registry.prefix import UnusableSchemaError
from kohort.spark.options import parse_options
from kohort.spark.values.avro_records import AvroDecoder
from kohort.spark.values.declared import schema_from_registry
from tests.schema_registry.raw_registry import http_answer, raw_registry


def record(name: str, /, **fields: Any) -> str:
    made = [{"name": field, "type": kind} for field, kind in fields.items()]
    return json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": made})


CITY = record("City", name="string")
ADDRESS = record("Address", city="City", zip={"type": "fixed", "name": "Zip", "size": 2})
MORE = {"type": "array", "items": "Address"}
ORDER = record("Order", id="long", to=["null", "shop.Address"], origin="City", zip="Zip", more=MORE)
VALUE = {
    "id": 7,
    "to": {"city": {"name": "Bonn"}, "zip": b"53"},
    "origin": {"name": "Köln"},
    "zip": b"50",
    "more": [{"city": {"name": "Ulm"}, "zip": b"89"}],
}
TO_CITY = SchemaReference("shop.City", "city", 1)
TO_ADDRESS = SchemaReference("shop.Address", "address", 1)


@pytest.fixture
def embedded() -> Iterator[EmbeddedSchemaRegistry]:
    with EmbeddedSchemaRegistry() as running:
        yield running


def registered(embedded: EmbeddedSchemaRegistry) -> SchemaRegistry:
    registry = SchemaRegistry(embedded.url)
    registry.register("city", CITY)
    registry.register("address", ADDRESS, references=[TO_CITY])
    return registry


def test_value_goes_through_a_schema_with_references(embedded: EmbeddedSchemaRegistry) -> None:
    write = registered(embedded).serializer("orders-value", ORDER, references=[TO_ADDRESS])
    data = write(VALUE)
    fresh = SchemaRegistry(embedded.url)
    assert fresh.deserialize(data) == VALUE
    assert fresh.serializer("orders-value")(VALUE) == data
    found = fresh.latest("orders-value")
    assert (found.text, found.references) == (ORDER, (TO_ADDRESS,))
    assert dict(found.imports) == {"shop.Address": ADDRESS, "shop.City": CITY}


def test_spark_reads_values_of_a_schema_with_references(embedded: EmbeddedSchemaRegistry) -> None:
    data = registered(embedded).serializer("orders-value", ORDER, references=[TO_ADDRESS])(VALUE)
    given = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "orders", "valueFormat": "avro"}
    schema = schema_from_registry(parse_options({**given, "schemaRegistryUrl": embedded.url}))
    assert schema is not None
    city = pa.struct([("name", pa.string())])
    kind = pa.struct([("id", pa.int64()), ("origin", city)])
    part = record("Order", id="long", origin=json.loads(CITY))
    for reader in (schema, part):
        decoder = AvroDecoder(kind, part, None, embedded.url)
        parts = decoder.decode(pa.array([data, None], pa.binary()))
        assert parts.reasons == {}, reader
        assert parts.to_array().to_pylist() == [{"id": 7, "origin": {"name": "Köln"}}, None]
    assert json.loads(schema)["fields"][1]["type"][1]["name"] == "shop.Address"


def test_confluents_client_and_ours_read_each_other(embedded: EmbeddedSchemaRegistry) -> None:
    confluent = pytest.importorskip("confluent_kafka.schema_registry")
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    registry = registered(embedded)
    ours = registry.serializer("orders-value", ORDER, references=[TO_ADDRESS])(VALUE)
    context = SerializationContext("orders", MessageField.VALUE)
    with confluent.SchemaRegistryClient({"url": embedded.url}) as client:
        assert AvroDeserializer(client)(ours, context) == VALUE
        references = [
            confluent.SchemaReference("shop.City", "city", 1),
            confluent.SchemaReference("shop.Address", "address", 1),
        ]
        written = AvroSerializer(client, confluent.Schema(ORDER, "AVRO", references))(VALUE, context)
    assert SchemaRegistry(embedded.url).deserialize(written) == VALUE


def test_embedded_registry_keeps_and_compares_references(tmp_path: Path) -> None:
    with EmbeddedSchemaRegistry(tmp_path) as running:
        registry = registered(running)
        number = registry.register("orders-value", ORDER, references=[TO_ADDRESS])
        assert registry.register("orders-value", ORDER, references=[TO_ADDRESS]) == number
        state = {"name": "state", "type": ["null", "string"], "default": None}
        city = json.loads(CITY)
        registry.register("city", json.dumps({**city, "fields": [*city["fields"], state]}))
        newer = [SchemaReference("shop.City", "city", 2), SchemaReference("shop.Address", "address", 1)]
        with pytest.raises(InvalidInputError, match="two schemas as 'shop.City'"):
            registry.register("orders-value", ORDER, references=newer)
        wrong = record("Order", id="long", to=["null", "shop.Address"], origin="long", zip="Zip", more=MORE)
        with pytest.raises(InvalidInputError, match="origin"):
            registry.register("orders-value", wrong, references=[TO_ADDRESS])
        with pytest.raises(InvalidInputError, match="version 9 of address, which does not exist"):
            registry.register("other-value", ORDER, references=[SchemaReference("shop.Address", "address", 9)])
        with pytest.raises(InvalidInputError, match=r"shop\.Address"):
            registry.register("other-value", ORDER)
    with EmbeddedSchemaRegistry(tmp_path) as running:
        assert SchemaRegistry(running.url).schema(number).references == (TO_ADDRESS,)


def test_types_stand_where_they_are_used_first() -> None:
    letters = {"type": "enum", "name": "E", "symbols": ["X"]}
    inner = {"type": "record", "name": "Outer", "namespace": "a", "fields": [{"name": "in", "type": letters}]}
    text = '{"type": "map", "values": ["null", "a.E", "a.Outer", {"type": "a.E"}]}'
    whole = json.loads(inline_avro_references(text, [("a.Outer", json.dumps(inner))], "the schema"))
    assert whole["values"][1] == {"type": "enum", "name": "a.E", "symbols": ["X"]}
    assert whole["values"][2]["fields"] == [{"name": "in", "type": "a.E"}]
    assert whole["values"][3] == "a.E"
    assert inline_avro_references('"int"', [], "the schema") == '"int"'
    assert json.loads(inline_avro_references('"a.Outer"', [("a.Outer", json.dumps(inner))], "it"))["name"] == "a.Outer"


def nested(levels: int, inner: str) -> str:
    return '{"type": "array", "items": ' * levels + inner + "}" * levels


def test_type_that_is_named_within_an_object_is_defined_there() -> None:
    """Generators write `{"type": "a.E", "doc": …}` for a field's type."""
    letters = json.dumps({"type": "enum", "name": "a.E", "symbols": ["X"]})
    fields = [{"name": name, "type": {"type": "a.E", "doc": "a letter"}} for name in ("first", "second")]
    text = json.dumps({"type": "record", "name": "b.R", "fields": fields})
    made, _ = check_avro_schema(inline_avro_references(text, [("a.E", letters)], "the schema"), "the schema")
    assert [field["type"] for field in made["fields"]] == [{**json.loads(letters)}, "a.E"]


def test_no_nesting_ends_in_an_error_of_python() -> None:
    for depth in range(800, 1000):
        text = '{"type": "record", "name": "b.R", "other": ' + "[" * depth + "]" * depth + ', "fields": []}'
        with contextlib.suppress(UnusableSchemaError):
            inline_avro_references(text, [("b", '"int"')], "the schema")


DEEP = {"type": "record", "name": "b", "fields": [{"name": "x", "type": json.loads(nested(100, '"int"'))}]}
HOSTILE = {
    "no JSON": ('"b"', "{"),
    "no JSON, too deep": ('"b"', "[" * 100_000),
    "too deep together": (nested(100, '"b"'), json.dumps(DEEP)),
    "reference too deep": ('"b"', nested(200, '"int"')),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_reference_is_refused(kind: str) -> None:
    text, part = HOSTILE[kind]
    with pytest.raises(UnusableSchemaError, match="is no Avro schema|nested deeper than 150"):
        inline_avro_references(text, [("b", part)], "the schema")


def test_recursive_reference_makes_the_record_bad() -> None:
    """Every answer is the same schema, which refers to itself."""
    references = [{"name": "shop.A", "subject": "a", "version": 1}]
    answer = {"schema": record("A", more=["null", "A"]), "references": references, "id": 1, "version": 1}
    with raw_registry(http_answer(answer)) as server:
        registry = SchemaRegistry(server.url)
        for _ in range(2):
            with pytest.raises(CorruptDataError, match="recursive"):
                registry.deserialize(b"\0\0\0\0\1\0")
        assert len(server.requests) == 2


def test_json_schema_refers_to_no_schema_of_another_kind(embedded: EmbeddedSchemaRegistry) -> None:
    registry = registered(embedded)
    with pytest.raises(InvalidInputError, match="of the kind AVRO"):
        registry.register("json-value", "{}", "JSON", references=[TO_CITY])


@pytest.mark.parametrize("space", ["", "a", "a.b"], ids=["outside", "in a", "in a.b"])
@pytest.mark.parametrize(
    "given",
    [
        {"name": "X"},
        {"name": "X", "namespace": "c"},
        {"name": "X", "namespace": ""},
        {"name": "X", "namespace": None},
        {"name": "d.X"},
        {"name": "d.X", "namespace": "c"},
        {"name": "d.X", "namespace": ""},
    ],
    ids=json.dumps,
)
def test_name_of_a_definition_is_what_fastavro_makes_of_it(given: dict[str, Any], space: str) -> None:
    """Avro's rule, read by the library that reads the values: an empty namespace is none, not that around it."""
    from fastavro import parse_schema

    definition = {"type": "record", "fields": [{"name": "self", "type": "Y"}], **given}
    inner = [{"name": "y", "type": {"type": "fixed", "size": 1, "name": "Y", "namespace": ""}}]
    inner += [
        {"name": space.replace(".", "_"), "type": {"type": "fixed", "size": 1, "name": f"{space}.Y"}}
        for space in ("a", "a.b", "c", "d")
    ]
    fields = [*inner, {"name": "x", "type": definition}]
    parsed: Any = parse_schema({"type": "record", "name": "Top", "namespace": space, "fields": fields})
    made = parsed["fields"][-1]["type"]
    full, own = definition_name(definition, space)
    assert full == made["name"]
    assert full_name("Y", own) == made["fields"][0]["type"]
    assert full_name("d.Y", own) == "d.Y"
