"""Protobuf values: both ways, beside Confluent's own serializer and deserializer, and with schemas that mean harm."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message_factory import GetMessageClass

from kohort import AsyncConsumer, Broker, Consumer, Producer, SchemaReference, SchemaRegistry
from kohort.errors import CorruptDataError, InvalidInputError, KafkaError
from kohort.schema_registry.embedded import EmbeddedSchemaRegistry
from kohort.schema_registry.protobuf_schemas import (
    IMPORTS_MAX,
    ProtobufSchema,
    compile_protobuf,
    encode_indexes,
    read_indexes,
)
from kohort.schema_registry.protobuf_values import MESSAGES_MAX, protobuf_reader, protobuf_writer
from tests.schema_registry.raw_registry import http_answer, raw_registry

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
enum Color { RED = 0; BLUE = 3; }
message Order {
  message Item { string name = 1; double price = 2; }
  uint64 id = 1;
  optional string note = 2;
  repeated int32 counts = 3;
  map<string, Item> items = 4;
  oneof pay { string card = 5; bytes cash = 6; }
  Color color = 7;
  repeated Color colors = 8;
  google.protobuf.Timestamp at = 9;
  google.protobuf.Duration took = 10;
  google.protobuf.StringValue label = 11;
  google.protobuf.UInt64Value big = 12;
  Order parent = 13;
  repeated Item list = 14;
  map<int32, google.protobuf.Timestamp> times = 15;
  string DESCRIPTOR = 16;
  string SerializeToString = 17;
}
message Receipt { int32 number = 1; message Line { bool paid = 1; } }
"""
EMPTY: dict[str, Any] = {
    "id": 0, "note": None, "counts": [], "items": {}, "card": None, "cash": None, "color": "RED", "colors": [],
    "at": None, "took": None, "label": None, "big": None, "parent": None, "list": [], "times": {}, "DESCRIPTOR": "",
    "SerializeToString": "",
}  # fmt: skip
FULL: dict[str, Any] = {
    "id": 2**64 - 1,
    "note": "",
    "counts": [1, -2],
    "items": {"a": {"name": "x", "price": 0.0}},
    "card": None,
    "cash": b"\xff",
    "color": "BLUE",
    "colors": ["RED", 77],
    "at": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    "took": timedelta(seconds=-1.5),
    "label": "",
    "big": 2**63,
    "parent": {**EMPTY, "id": 1},
    "list": [{"name": "", "price": 1.5}],
    "times": {-1: datetime(2024, 2, 29, tzinfo=UTC)},
    "DESCRIPTOR": "d",
    "SerializeToString": "s",
}
PREFIX = b"\0\0\0\0\1"


@pytest.fixture(scope="module")
def order() -> ProtobufSchema:
    return compile_protobuf(ORDER, (), "the schema 1")


@pytest.fixture
def embedded() -> Iterator[EmbeddedSchemaRegistry]:
    with EmbeddedSchemaRegistry() as running:
        yield running


def message_class(schema: ProtobufSchema, name: str) -> Any:
    return GetMessageClass(schema.message_named(name))


def test_value_goes_through_its_schema_and_back(embedded: EmbeddedSchemaRegistry) -> None:
    registry = SchemaRegistry(embedded.url)
    write = registry.serializer("order-value", ORDER, kind="PROTOBUF")
    assert write({})[:6] == PREFIX + b"\0"
    assert registry.deserialize(write({})) == EMPTY
    assert registry.deserialize(write(FULL)) == FULL
    assert SchemaRegistry(embedded.url).serializer("order-value")(FULL) == write(FULL)
    receipt = SchemaRegistry(embedded.url).serializer("order-value", message="Receipt")
    assert receipt({"number": 3}) == PREFIX + b"\2\2\x08\3"
    assert registry.deserialize(receipt({"number": 3})) == {"number": 3}
    line = registry.serializer("order-value", message="shop.Receipt.Line")
    assert line({"paid": True}) == PREFIX + b"\4\2\0\x08\1"
    assert registry.deserialize(line({"paid": True})) == {"paid": True}


def test_defaults_and_required_fields_of_proto2() -> None:
    schema = compile_protobuf(
        'syntax = "proto2"; enum E { A = 1; B = 2; } message M { required int32 id = 1; optional E e = 2 [default = B];'
        " optional group G = 3 { optional string s = 1 [default = 'x']; } extensions 100 to 200; }"
        " extend M { optional int32 more = 100; }",
        (),
        "the schema 1",
    )
    read, write = protobuf_reader(schema, 1 << 20), protobuf_writer(schema, 1)
    assert read(write({"id": 1})) == {"id": 1, "e": "B", "g": None}
    assert read(write({"id": 1, "g": {}}) + b"\xa0\6\1") == {"id": 1, "e": "B", "g": {"s": "x"}}
    with pytest.raises(CorruptDataError, match="required fields are missing: id"):
        read(PREFIX + b"\0")
    with pytest.raises(InvalidInputError, match="missing required field"):
        write({})


def test_default_that_is_no_text_is_refused() -> None:
    schema = compile_protobuf(
        r'message M { optional string s = 1 [default = "\xff"]; optional int32 i = 2; }', (), "the schema 1"
    )
    with pytest.raises(CorruptDataError, match="the message M of the schema 1 can't be read"):
        protobuf_reader(schema, 1 << 20)(PREFIX + b"\0\x10\1")


def test_descriptor_of_a_map_without_values_is_refused() -> None:
    schema = compile_protobuf('syntax = "proto3"; message M { map<string, int32> m = 1; }', (), "the schema 1")
    files = descriptor_pb2.FileDescriptorSet.FromString(schema.set.SerializeToString())
    files.file[0].message_type[0].nested_type[0].field[1].name = "other"
    with pytest.raises(InvalidInputError, match="no key and value"):
        ProtobufSchema(files, "it")
    with pytest.raises(InvalidInputError, match="protoc refuses the schema"):
        compile_protobuf(base64.b64encode(files.file[0].SerializeToString()).decode(), (), "the schema")


@pytest.mark.parametrize("field", ["name", "package", "dependency"])
def test_descriptor_whose_names_are_no_text_is_refused(field: str) -> None:
    tag = {"name": b"\x0a", "package": b"\x12", "dependency": b"\x1a"}[field]
    file = descriptor_pb2.FileDescriptorProto.FromString(tag + b"\1\xff")
    file.message_type.add(name="M")
    with pytest.raises(InvalidInputError, match="no Protobuf schema"):
        ProtobufSchema(descriptor_pb2.FileDescriptorSet(file=[file]), "it")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"id": -1}, "out of range"),
        ({"id": 1.5}, "integer"),
        ({"x": 1}, "shop.Order has no field 'x'"),
        ({"counts": [None]}, "counts: an element is None"),
        ({"counts": 3}, "counts: .*not iterable"),
        ({"counts": "12"}, "counts: a list is needed"),
        ({"color": "GREEN"}, "color: the enum has no value 'GREEN'"),
        ({"at": datetime(2020, 1, 1)}, "at: a Timestamp .* time zone"),  # noqa: DTZ001
        ({"took": 3}, "took: a Duration"),
        ({"items": [1]}, "items: "),
        ({"items": {"a": None}}, "items: an element is None"),
        ({"parent": {"parent": {"x": 1}}}, "parent: parent: shop.Order has no field 'x'"),
        ({"note": 3}, "not of the schema"),
        (5, "written from a dict, not from int"),
    ],
)
def test_value_that_is_not_of_the_schema_is_refused(order: ProtobufSchema, value: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        protobuf_writer(order, 1)(value)


def test_message_of_another_type_is_refused(order: ProtobufSchema) -> None:
    write = protobuf_writer(order, 1, "Receipt")
    assert write(message_class(order, "Receipt")(number=3)) == write({"number": 3})
    with pytest.raises(InvalidInputError, match="^the value is a shop.Order, and not shop.Receipt"):
        write(message_class(order, "Order")())


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        pytest.param("int32 number = 1;", "int32 number = 1; string more = 2;", "the field more", id="one more"),
        pytest.param("int32 number = 1;", "", "the field number", id="one less"),
        pytest.param("int32 number = 1;", "sint32 number = 1;", "the field number", id="another type"),
        pytest.param("int32 number = 1;", "optional int32 number = 1;", "the field number", id="optional"),
        pytest.param("int32 number = 1;", "int32 count = 1;", "the field number", id="another name"),
        pytest.param("BLUE = 3;", "BLUE = 3; GREEN = 4;", "the field color", id="enum"),
        pytest.param("double price = 2;", "float price = 2;", r"Order\.Item: the field price", id="within"),
        pytest.param("bytes cash = 6; }", "} bytes cash = 6;", "the field cash", id="out of a oneof"),
    ],
)
def test_object_of_another_version_is_refused(order: ProtobufSchema, old: str, new: str, differs: str) -> None:
    """Protobuf would write bytes that the registered schema reads otherwise or not at all."""
    assert old in ORDER
    name = "Receipt" if "number" in old else "Order"
    other = GetMessageClass(compile_protobuf(ORDER.replace(old, new), (), "it").message_named(name))()
    write = protobuf_writer(order, 1, name)
    with pytest.raises(InvalidInputError, match=f"another version of .*{differs}"):
        write(other)
    assert write(message_class(order, name)()) == write({})


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param("required int32 a = 1;", "optional int32 a = 1;", id="required"),
        pytest.param("optional int32 a = 1 [default = 5];", "optional int32 a = 1 [default = 6];", id="default"),
        pytest.param("repeated E a = 1; enum E { X = 0; }", "repeated E a = 1; enum E { X = 0; } // open", id="closed"),
    ],
)
def test_object_that_proto2_reads_otherwise_is_refused(ours: str, theirs: str) -> None:
    """Unset, it has no value that the schema demands, or another default; or a number that a closed enum drops."""
    syntax = "proto3" if "open" in theirs else "proto2"
    schema = compile_protobuf(f'syntax = "proto2"; message M {{ {ours} }}', (), "it")
    other = compile_protobuf(f'syntax = "{syntax}"; message M {{\n{theirs}\n}}', (), "it")
    with pytest.raises(InvalidInputError, match="another version of M: the field a"):
        protobuf_writer(schema, 1)(GetMessageClass(other.message_named(None))())


def test_object_of_the_same_text_is_written(order: ProtobufSchema) -> None:
    """A generated class is of another pool, and has other comments and options."""
    text = ORDER.replace("package shop;", 'package shop; option java_package = "x"; // says nothing')
    for name in ("Order", "Receipt"):
        other = GetMessageClass(compile_protobuf(text, (), "it").message_named(name))()
        assert protobuf_writer(order, 1, name)(other) == protobuf_writer(order, 1, name)({})


def test_number_without_a_name_is_written_as_spark_names_it(order: ProtobufSchema) -> None:
    write = protobuf_writer(order, 1, "Order")
    for number in (77, -1, 2**31 - 1):
        assert write({"color": f"UNKNOWN_ENUM_VALUE_Color_{number}"}) == write({"color": number})
    for name in ("UNKNOWN_ENUM_VALUE_Other_7", "UNKNOWN_ENUM_VALUE_Color_", "UNKNOWN_ENUM_VALUE_Color_7x"):
        with pytest.raises(InvalidInputError, match="the enum has no value"):
            write({"color": name})
    with pytest.raises(InvalidInputError, match="not of the schema"):
        write({"color": f"UNKNOWN_ENUM_VALUE_Color_{2**31}"})


def test_value_without_end_is_refused(order: ProtobufSchema) -> None:
    value: dict[str, Any] = {}
    value["parent"] = value
    with pytest.raises(InvalidInputError, match="not of the schema"):
        protobuf_writer(order, 1)(value)


def nested(levels: int) -> bytes:
    """Return an order within as many others."""
    data = b""
    for _ in range(levels):
        size = len(data)
        data = b"\x6a" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + data
    return data


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (PREFIX, "truncated"),
        (PREFIX + b"\2", "truncated"),
        (PREFIX + b"\2\x80", "truncated"),
        (PREFIX + b"\1", "their number is -1"),
        (PREFIX + b"\x7e", "their number is 63"),
        (PREFIX + b"\2\1", "no index of a message: -1"),
        (PREFIX + b"\2\x08", r"no message at the indexes \[4\]"),
        (PREFIX + b"\2\xfe\xff\xff\xff\x0f", r"no message at the indexes \[2147483647\]"),
        (PREFIX + b"\4\2\2", r"no message at the indexes \[1, 1\]"),
        (PREFIX + b"\xff\xff\xff\xff\xff\1", "more than 32 bits"),
        (PREFIX + b"\0\x0a\xff\xff\xff\xff\x0f", "no value of the message shop.Order"),
        (PREFIX + b"\0\x0a\5ab", "no value of the message shop.Order"),
        (PREFIX + b"\0\x08\xff", "no value of the message shop.Order"),
        (PREFIX + b"\0\x12\1\xff", "UTF-8"),
        (PREFIX + b"\0" + nested(300), "Depth"),
        (PREFIX + b"\0" + b"\x6b" * 100_000, "no value of the message shop.Order"),
        (PREFIX + b"\0\x4a\x0b\x08" + b"\xff" * 8 + b"\x7f", "no value of the message shop.Order"),
        (PREFIX + b"\0\x4a\7\x08\xff\xff\xff\xff\xff\x7f", "a Timestamp of 4398046511103 seconds"),
        (PREFIX + b"\0\x52\x04\x08\1\x10" + b"\xff", "no value of"),
        (PREFIX + b"\0" + b"\x72\0" * (MESSAGES_MAX + 1), "more than 500000 messages"),
    ],
)
def test_damaged_value_is_refused(order: ProtobufSchema, data: bytes, reason: str) -> None:
    read = protobuf_reader(order, 1 << 22)
    with pytest.raises(CorruptDataError, match=reason):
        read(data)


def test_messages_of_many_fields_within_others_have_a_lower_bound() -> None:
    fields = " ".join(f"int32 f{number} = {number};" for number in range(1, 101))
    schema = compile_protobuf(
        f'syntax = "proto3"; message A {{ repeated B b = 1; }} message B {{ {fields} }}', (), "the schema 1"
    )
    read = protobuf_reader(schema, 1 << 20)
    assert len(read(PREFIX + b"\0" + b"\x0a\0" * 1000)["b"]) == 1000
    with pytest.raises(CorruptDataError, match="more than the 80659 that are read"):
        read(PREFIX + b"\0" + b"\x0a\0" * 50_000)
    assert len(read(PREFIX + b"\2\2" + b"\x08\1" * 50_000)) == 100, "alone it makes one dict"


def test_indexes_are_zigzag_varints() -> None:
    for indexes in ((0,), (1,), (0, 0), (3, 64, 8191), (2**31 - 1,)):
        data = PREFIX + encode_indexes(indexes) + b"x"
        assert read_indexes(data) == (indexes, len(data) - 1)
    assert read_indexes(PREFIX + b"\2\0x") == ((0,), 7), "the long form of the first message"


def test_message_that_clients_count_differently_is_refused() -> None:
    """Clients in Python count the message that a map makes, those in Java do not."""
    schema = compile_protobuf(
        'syntax = "proto3"; message A { map<string, int32> m = 1; message X { int32 x = 1; }'
        " message Y { int32 y = 1; } }",
        (),
        "the schema 1",
    )
    read = protobuf_reader(schema, 1 << 20)
    assert read(PREFIX + b"\4\0\4\x08\1") == {"y": 1}, "Python's count of the last"
    assert read(PREFIX + b"\4\0\0\x08\1") == {"x": 1}, "Java's count of the first"
    with pytest.raises(CorruptDataError, match=r"\[0, 1\] are A.X for clients in Python and A.Y for those in Java"):
        read(PREFIX + b"\4\0\2\x08\1")
    for name in ("A.X", "A.Y"):
        with pytest.raises(InvalidInputError, match="first level"):
            protobuf_writer(schema, 1, name)


DEEP = "message A { " * 100 + "}" * 100


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no message"),
        ("{", "protoc refuses the schema 1: kohort-schema.proto:1:1"),
        ("AAAA", "protoc refuses the schema 1"),
        (base64.b64encode(b"\x0a\1x").decode(), "has no message"),
        ('syntax = "proto3"; message A { B b = 1; }', '"B" is not defined'),
        ('syntax = "proto3"; message A { int32 a = 1; int32 b = 1; }', "already been used"),
        (f'syntax = "proto3"; {DEEP}', "recursion limit"),
        ('syntax = "proto3"; import "other.proto"; message A {}', "other.proto: File not found"),
        ('syntax = "proto3"; import "/etc/passwd"; message A {}', "protoc refuses"),
        ('syntax = "proto3"; import "../../../etc/passwd"; message A {}', "protoc refuses"),
        ('syntax = "proto3"; import "kohort-schema.proto"; message A {}', "recursively imports itself"),
        ('syntax = "proto3"; message A {}' + " " * (1 << 20), "more than 1048576 bytes"),
        (
            'syntax = "proto3"; message A {'
            + "".join(f" int32 f{number} = {number};" for number in range(1, 10_001))
            + "}",
            "more than 10000 messages, fields",
        ),
    ],
)  # fmt: skip
def test_hostile_schema_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        compile_protobuf(text, (), "the schema 1")


A = 'syntax = "proto3"; package p; message A { int32 a = 1; }'
USES_A = 'syntax = "proto3"; package p; import "x/a.proto"; message U { A a = 1; }'


@pytest.mark.parametrize(
    ("imports", "words"),
    [
        ((("../a.proto", A),), "not like folder/file.proto"),
        ((("/tmp/a.proto", A),), "not like folder/file.proto"),
        ((("x/./a.proto", A),), "not like folder/file.proto"),
        ((("grpc_tools/protoc.py", A),), "not like folder/file.proto"),
        ((("kohort-schema.proto", A),), "not like folder/file.proto"),
        ((("x/a.proto", A), ("x/a.proto", A)), "two files of the name"),
        ((("x.proto", A), ("x.proto/a.proto", A)), "whose folder 'x.proto' is a file"),
        ((("kohort-schema.proto/a.proto", A),), "whose folder 'kohort-schema.proto' is a file"),
        ((("google/type/date.proto/a.proto", A),), "whose folder 'google/type/date.proto' is a file"),
        ((("x/a.proto", USES_A.replace("x/a", "y/a")), ("y/a.proto", USES_A)), "imports itself"),
        ((("x/a.proto", "{"),), "protoc refuses"),
        ((("x/a.proto", A + " " * (1 << 20)),), "more than 1048576 bytes"),
        (tuple((f"x{number}.proto", A) for number in range(IMPORTS_MAX + 1)), "more than 64 files"),
    ],
)
def test_hostile_imports_are_refused(imports: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        compile_protobuf(USES_A, imports, "the schema 1")


def test_well_known_types_are_protobufs_own() -> None:
    """A registry's file of that name is not used."""
    other = 'syntax = "proto3"; package google.protobuf; message Timestamp { string seconds = 1; }'
    text = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message A { google.protobuf.Timestamp t = 1; }'
    schema = compile_protobuf(text, (("google/protobuf/timestamp.proto", other),), "the schema 1")
    assert protobuf_reader(schema, 1 << 20)(PREFIX + b"\0\x0a\2\x08\1") == {
        "t": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    }
    own = compile_protobuf(other, (), "the schema 1")
    assert protobuf_reader(own, 1 << 20)(PREFIX + b"\0\x0a\1x") == {"seconds": "x"}


def test_schema_with_references(embedded: EmbeddedSchemaRegistry) -> None:
    registry = SchemaRegistry(embedded.url)
    registry.register("base", A, "PROTOBUF")
    middle = 'syntax = "proto3"; package p; import "x/a.proto"; message B { A a = 1; }'
    uses = 'syntax = "proto3"; package p; import "b.proto"; message U { repeated B b = 1; }'
    to_base = SchemaReference("x/a.proto", "base", 1)
    registry.register("middle", middle, "PROTOBUF", references=[to_base])
    to_middle = SchemaReference("b.proto", "middle", 1)
    write = registry.serializer("uses-value", uses, kind="PROTOBUF", references=[to_middle])
    data = write({"b": [{"a": {"a": 7}}]})
    fresh = SchemaRegistry(embedded.url)
    assert fresh.deserialize(data) == {"b": [{"a": {"a": 7}}]}
    found = fresh.latest("uses-value")
    assert found.references == (to_middle,)
    assert dict(found.imports) == {"b.proto": middle, "x/a.proto": A}
    with pytest.raises(InvalidInputError, match="version 2 of base, which does not exist"):
        fresh.serializer("other", uses, kind="PROTOBUF", references=[SchemaReference("b.proto", "base", 2)])
    with pytest.raises(InvalidInputError, match="refers to version 9 of base, which does not exist"):
        fresh.register("other", uses, "PROTOBUF", references=[SchemaReference("b.proto", "base", 9)])


@pytest.mark.parametrize(
    ("references", "words"),
    [
        ([{"name": "a.proto", "subject": "s", "version": 1}], "imports itself"),
        ([{"name": "a.proto", "subject": "s", "version": 1}] * 65, "more than 64 files"),
        (
            [{"name": "a.proto", "subject": "s", "version": 1}, {"name": "a.proto", "subject": "t", "version": 1}],
            "two schemas as 'a.proto'",
        ),
        ([{"name": "a.proto"}], "malformed references"),
        ([{"name": "a.proto", "subject": "s", "version": "1"}], "malformed references"),
        (7, "malformed references"),
    ],
)
def test_references_without_end_are_refused(references: Any, words: str) -> None:
    """Every answer is the same schema, which refers to itself."""
    text = 'syntax = "proto3"; import "a.proto"; message A { int32 a = 1; }'
    answer = {"schema": text, "schemaType": "PROTOBUF", "references": references, "id": 1, "version": 1}
    with raw_registry(http_answer(answer)) as server:
        registry = SchemaRegistry(server.url)
        for _ in range(2):
            with pytest.raises(CorruptDataError, match=words):
                registry.deserialize(PREFIX + b"\0")
        assert len(server.requests) <= 2


def test_consumers_name_the_record_of_a_damaged_value(our_broker: Broker, embedded: EmbeddedSchemaRegistry) -> None:
    servers, topic = our_broker.bootstrap_servers, "protobuf-reads"
    write = SchemaRegistry(embedded.url).serializer(f"{topic}-value", ORDER, kind="PROTOBUF")
    with Producer(servers) as producer:
        for data in (write({"id": 5}), PREFIX + b"\0\x0a\5ab"):
            producer.send(topic, data, partition=0)
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "schema_registry_url": embedded.url}
    found: list[Any] = []

    def check(records: Any) -> None:
        iterator = iter(records)
        found.append(next(iterator).value["id"])
        with pytest.raises(CorruptDataError, match=rf"(?s)the message shop.Order.*offset 1 of {topic}-0"):
            next(iterator)

    with Consumer(servers, group_id="protobuf-reads", **settings) as consumer:
        consumer.subscribe([topic])
        while not (records := consumer.poll()):
            pass
        check(records)

    async def read() -> None:
        async with AsyncConsumer(servers, group_id="protobuf-reads-async", **settings) as consumer:
            consumer.subscribe([topic])
            while not (records := await consumer.poll()):
                pass
            check(records)

    asyncio.run(read())
    assert found == [5, 5]


# -- Confluent's client for Python


HIDING = ("  string DESCRIPTOR = 16;\n", "  string SerializeToString = 17;\n")
"""Fields that hide what Confluent's client calls: it can't write such messages."""
PLAIN = ORDER.replace(HIDING[0], "").replace(HIDING[1], "")
VALUES: dict[str, Any] = {
    "Order": {**FULL, "parent": None},
    "Receipt": {"number": 3},
    "Receipt.Line": {"paid": True},
    "Order.Item": {"name": "n", "price": 1.0},
}
del VALUES["Order"]["DESCRIPTOR"], VALUES["Order"]["SerializeToString"]


@contextmanager
def confluent(url: str) -> Iterator[Any]:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    with SchemaRegistryClient({"url": url}) as client:
        yield client


def value_context(topic: str) -> Any:
    from confluent_kafka.serialization import MessageField, SerializationContext

    return SerializationContext(topic, MessageField.VALUE)


@pytest.mark.parametrize("name", VALUES)
def test_confluents_client_reads_what_is_written(embedded: EmbeddedSchemaRegistry, name: str) -> None:
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

    made = message_class(compile_protobuf(PLAIN, (), "the schema"), name)
    write = SchemaRegistry(embedded.url).serializer("t-value", PLAIN, kind="PROTOBUF", message=name)
    with confluent(embedded.url) as client:
        found = ProtobufDeserializer(made, {}, client)(write(VALUES[name]), value_context("t"))
    assert type(found).DESCRIPTOR.name == name.rpartition(".")[2]
    assert write(found) == write(VALUES[name])


@pytest.mark.parametrize("name", VALUES)
def test_what_confluents_client_writes_is_read(embedded: EmbeddedSchemaRegistry, name: str) -> None:
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

    schema = compile_protobuf(PLAIN, (), "the schema")
    made = message_class(schema, name)
    body = protobuf_writer(schema, 1, name)(VALUES[name])
    message = made.FromString(body[read_indexes(body)[1] :])
    with confluent(embedded.url) as client:
        data = ProtobufSerializer(made, client)(message, value_context("t"))
    assert data == body
    registry = SchemaRegistry(embedded.url)
    assert registry.deserialize(data) == VALUES[name]
    assert registry.latest("t-value").kind == "PROTOBUF"
    assert registry.register("t-value", PLAIN, "PROTOBUF") == 1, "its descriptor is the same schema"


def test_references_of_confluents_client_are_read(embedded: EmbeddedSchemaRegistry) -> None:
    """Confluent's client registers each file that is imported under the file's name, as descriptors."""
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer

    made = message_class(compile_protobuf(USES_A, (("x/a.proto", A),), "the schema"), "U")
    registry = SchemaRegistry(embedded.url)
    with confluent(embedded.url) as client:
        data = ProtobufSerializer(made, client)(made(a={"a": 7}), value_context("t"))
        assert registry.deserialize(data) == {"a": {"a": 7}}
        assert [reference.name for reference in registry.latest("t-value").references] == ["x/a.proto"]
        assert registry.serializer("t-value")({"a": {"a": 7}}) == data
        assert ProtobufDeserializer(made, {}, client)(data, value_context("t")).a.a == 7


def test_descriptor_in_base64_is_a_schema() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="else.proto", package="p", syntax="proto3", dependency=["x/a.proto"])
    message = file.message_type.add(name="U")
    message.field.add(name="a", number=1, type=11, label=1, type_name=".p.A")
    text = base64.b64encode(file.SerializeToString()).decode()
    schema = compile_protobuf(text, (("x/a.proto", A),), "the schema")
    assert protobuf_reader(schema, 1 << 20)(PREFIX + b"\0\x0a\2\x08\7") == {"a": {"a": 7}}
    assert schema.identity_text() == compile_protobuf(USES_A, (("x/a.proto", A),), "the schema").identity_text()
    assert (
        ProtobufSchema.from_descriptor_set(schema.descriptor_set_text(), "it").message_named("p.U").full_name == "p.U"
    )
    with pytest.raises(KafkaError, match="no descriptor set"):
        ProtobufSchema.from_descriptor_set("%", "it")
