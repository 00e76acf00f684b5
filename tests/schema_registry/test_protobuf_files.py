"""Files that Confluent's registry has built in, and that its clients register no reference for."""

from __future__ import annotations

import base64
import pkgutil
from importlib import import_module

import pytest
from google.protobuf import descriptor_pb2

from kohort import SchemaReference, SchemaRegistry
from kohort.schema_registry.embedded import EmbeddedSchemaRegistry
from kohort.schema_registry.protobuf_files import KNOWN_FILES
from kohort.schema_registry.protobuf_schemas import compile_protobuf
from tests.schema_registry.test_protobuf import confluent, embedded, message_class, value_context

__all__ = ["embedded"]

ORDER = """
syntax = "proto3"; package shop;
import "google/type/date.proto"; import "google/type/timeofday.proto";
import "confluent/meta.proto"; import "confluent/type/decimal.proto";
message Order {
  google.type.Date day = 1;
  google.type.TimeOfDay at = 2;
  confluent.type.Decimal price = 3 [(confluent.field_meta) = {
    params: [{key: "precision", value: "10"}, {key: "scale", value: "2"}]
  }];
}
"""
"""The schema that Kafka Connect's converter makes of a date, a time of day and a decimal."""
VALUE = {
    "day": {"year": 2024, "month": 2, "day": 29},
    "at": {"hours": 7, "minutes": 8, "seconds": 9, "nanos": 0},
    "price": {"value": b"\x04\xd2", "precision": 10, "scale": 2},
}


def lines(file: descriptor_pb2.FileDescriptorProto) -> list[str]:
    return [line for line in str(file).splitlines() if "json_name:" not in line]


def test_known_files_are_those_of_google_and_confluent() -> None:
    google = pytest.importorskip("google.type", reason="googleapis-common-protos is not installed")
    names = [found.name.removesuffix("_pb2") for found in pkgutil.iter_modules(google.__path__)]
    modules = {f"google/type/{name}.proto": f"google.type.{name}_pb2" for name in names}
    for name in ("meta", "type.decimal", "type.variant", "types.decimal"):
        path = f"confluent/{name.replace('.', '/')}.proto"
        modules[path] = f"confluent_kafka.schema_registry.confluent.{name}_pb2"
    assert modules.keys() == KNOWN_FILES.keys()
    for path, module in modules.items():
        text = f'syntax = "proto3"; import "{path}"; message M {{ int32 a = 1; }}'
        theirs, ours = descriptor_pb2.FileDescriptorProto(), descriptor_pb2.FileDescriptorProto()
        import_module(module).DESCRIPTOR.CopyToProto(theirs)
        compile_protobuf(text, (), "the schema").file.dependencies[0].CopyToProto(ours)
        for file in (theirs, ours):
            file.ClearField("options")
        assert lines(ours) == lines(theirs), path


def test_schema_of_kafka_connect_needs_no_reference(embedded: EmbeddedSchemaRegistry) -> None:
    data = SchemaRegistry(embedded.url).serializer("t-value", ORDER, kind="PROTOBUF")(VALUE)
    assert SchemaRegistry(embedded.url).deserialize(data) == VALUE


def test_values_of_confluents_client_need_no_reference(embedded: EmbeddedSchemaRegistry) -> None:
    """The client registers its schema as a descriptor in Base64, and none of the files."""
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

    made = message_class(compile_protobuf(ORDER, (), "the schema"), "Order")
    with confluent(embedded.url) as client:
        data = ProtobufSerializer(made, client)(made(**VALUE), value_context("t"))
    registry = SchemaRegistry(embedded.url)
    assert registry.latest("t-value").references == ()
    assert registry.deserialize(data) == VALUE


def test_file_of_the_registry_comes_before_the_known_one(embedded: EmbeddedSchemaRegistry) -> None:
    registry = SchemaRegistry(embedded.url)
    own = 'syntax = "proto3"; package google.type; message Date { string text = 1; }'
    registry.register("date", own, "PROTOBUF")
    uses = 'syntax = "proto3"; import "google/type/date.proto"; message M { google.type.Date day = 1; }'
    reference = SchemaReference("google/type/date.proto", "date", 1)
    write = registry.serializer("t-value", uses, kind="PROTOBUF", references=[reference])
    assert registry.deserialize(write({"day": {"text": "x"}})) == {"day": {"text": "x"}}


def test_reference_may_import_a_known_file() -> None:
    a = 'syntax = "proto3"; package p; import "google/type/money.proto"; message A { google.type.Money m = 1; }'
    file = descriptor_pb2.FileDescriptorProto(name="u.proto", package="p", syntax="proto3", dependency=["a.proto"])
    file.message_type.add(name="U").field.add(name="a", number=1, type=11, label=1, type_name=".p.A")
    for text in (
        'syntax = "proto3"; package p; import "a.proto"; message U { A a = 1; }',
        base64.b64encode(file.SerializeToString()).decode(),
    ):
        schema = compile_protobuf(text, (("a.proto", a),), "the schema")
        assert [found.name for found in schema.set.file[:-1]] == ["google/type/money.proto", "a.proto"]
