"""`valueFormat=protobuf`: the types of messages, values with and without a schema's id, and the sink."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark_types
from tests.schema_registry.raw_registry import http_answer, raw_registry
from tests.spark.conftest import Stage
from tests.support.waiting import LAST_RESORT

from kohort import SchemaReference, SchemaRegistry
from kohort.client.producer.producer import Producer
from kohort.errors import CorruptDataError, InvalidInputError, KafkaError, RetriableError
from kohort.schema_registry.embedded import EmbeddedSchemaRegistry
from kohort.schema_registry.protobuf_schemas import compile_protobuf
from kohort.schema_registry.protobuf_values import protobuf_writer
from kohort.spark.options import parse_options
from kohort.spark.sink_options import parse_sink_options
from kohort.spark.tasks.encoding import ValueEncoding
from kohort.spark.values import protobuf_records
from kohort.spark.values.declared import parse_declared_values, schema_from_registry
from kohort.spark.values.decoding import Values
from kohort.spark.values.protobuf_records import ProtobufDecoder, ddl_of_message

EVERY = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/empty.proto";
enum Color { RED = 0; BLUE = 3; }
message Inner { string name = 1; optional double price = 2; }
message Every {
  int32 i = 1; sint32 si = 2; sfixed32 sf = 3; uint32 ui = 4; fixed32 f = 5;
  int64 l = 6; sint64 sl = 7; sfixed64 sfl = 8; uint64 ul = 9; fixed64 fl = 10;
  float fp = 11; double d = 12; bool b = 13; string s = 14; bytes raw = 15;
  Color color = 16; Inner inner = 17; repeated int32 numbers = 18; repeated Inner list = 19;
  map<string, Inner> by_name = 20; map<int32, Color> by_number = 21; optional int32 maybe = 22;
  oneof choice { int32 left = 23; string right = 24; }
  google.protobuf.Timestamp at = 25; google.protobuf.Duration took = 26; google.protobuf.UInt64Value big = 27;
  google.protobuf.StringValue label = 28; google.protobuf.Empty nothing = 29; repeated uint64 bigs = 30;
}
message Other { int32 x = 1; }
"""
TYPE = (
    "struct<`i`: int, `si`: int, `sf`: int, `ui`: bigint, `f`: bigint, "
    "`l`: bigint, `sl`: bigint, `sfl`: bigint, `ul`: decimal(20,0), `fl`: decimal(20,0), "
    "`fp`: float, `d`: double, `b`: boolean, `s`: string, `raw`: binary, "
    "`color`: string, `inner`: struct<`name`: string, `price`: double>, `numbers`: array<int>, "
    "`list`: array<struct<`name`: string, `price`: double>>, "
    "`by_name`: map<string, struct<`name`: string, `price`: double>>, `by_number`: map<int, string>, `maybe`: int, "
    "`left`: int, `right`: string, "
    "`at`: timestamp_ltz, `took`: interval day to second, `big`: decimal(20,0), "
    "`label`: string, `bigs`: array<decimal(20,0)>>"
)
ROW: dict[str, Any] = {
    "i": -1, "si": -2, "sf": -3, "ui": 2**32 - 1, "f": 5,
    "l": -(2**63), "sl": 7, "sfl": 8, "ul": Decimal(2**64 - 1), "fl": Decimal(10),
    "fp": 0.5, "d": 12.5, "b": True, "s": "x", "raw": b"\xff",
    "color": "BLUE", "inner": {"name": "n", "price": None}, "numbers": [1, 2], "list": [{"name": "", "price": 0.0}],
    "by_name": [("a", {"name": "b", "price": None})], "by_number": [(-1, "RED")], "maybe": 0,
    "left": None, "right": "",
    "at": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), "took": timedelta(seconds=-1.5), "big": Decimal(2**63),
    "label": "", "bigs": [Decimal(2**64 - 1)],
}  # fmt: skip
EMPTY: dict[str, Any] = {
    **dict.fromkeys(ROW), "i": 0, "si": 0, "sf": 0, "ui": 0, "f": 0, "l": 0, "sl": 0, "sfl": 0, "ul": Decimal(0),
    "fl": Decimal(0), "fp": 0.0, "d": 0.0, "b": False, "s": "", "raw": b"", "color": "RED", "numbers": [], "list": [],
    "by_name": [], "by_number": [], "bigs": [],
}  # fmt: skip
INNER = pa.struct([("name", pa.string()), ("price", pa.float64())])
BIG = pa.decimal128(20, 0)
ARROW = pa.struct(
    [
        *((name, pa.int32()) for name in ("i", "si", "sf")), ("ui", pa.int64()), ("f", pa.int64()),
        *((name, pa.int64()) for name in ("l", "sl", "sfl")), ("ul", BIG), ("fl", BIG),
        ("fp", pa.float32()), ("d", pa.float64()), ("b", pa.bool_()), ("s", pa.string()), ("raw", pa.binary()),
        ("color", pa.string()), ("inner", INNER), ("numbers", pa.list_(pa.int32())), ("list", pa.list_(INNER)),
        ("by_name", pa.map_(pa.string(), INNER)), ("by_number", pa.map_(pa.int32(), pa.string())),
        ("maybe", pa.int32()), ("left", pa.int32()), ("right", pa.string()), ("at", pa.timestamp("us", tz="UTC")),
        ("took", pa.duration("us")), ("big", BIG), ("label", pa.string()), ("bigs", pa.list_(BIG)),
    ]
)  # fmt: skip
PREFIX = b"\0\0\0\0\1"
P3 = 'syntax = "proto3"; '
FIRST = 'syntax = "proto3"; message P { int64 id = 1; }'
SECOND = 'syntax = "proto3"; message P { int64 id = 1; string note = 2; }'


@pytest.fixture
def registry() -> Iterator[EmbeddedSchemaRegistry]:
    with EmbeddedSchemaRegistry() as running:
        yield running


def options_of(**given: str) -> Any:
    return parse_options({"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "pay", **given})


def decoder_of(text: str, kind: Any, registry: str | None = None, message: str | None = None) -> ProtobufDecoder:
    schema = compile_protobuf(text, (), "the schema")
    return ProtobufDecoder(kind, schema.descriptor_set_text(), schema.message_named(message).full_name, registry)


def test_types_of_fields() -> None:
    schema = compile_protobuf(EVERY, (), "the schema")
    assert ddl_of_message(schema.message_named("Every")) == TYPE


def written(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "by_name": dict(value["by_name"] or ()), "by_number": dict(value["by_number"] or ())}


def test_values_of_every_type_become_columns() -> None:
    write = protobuf_writer(compile_protobuf(EVERY, (), "the schema"), 1, "Every")
    values = [write(written(ROW))[7:], None, b"", b"\x82\1\2\x09", b"\x0a\1", b"\x80\1\x4d"]
    parts = decoder_of(EVERY, ARROW, message="Every").decode(pa.array(values, pa.binary()))
    assert parts.to_array().to_pylist() == [
        ROW,
        None,
        EMPTY,
        None,
        None,
        {**EMPTY, "color": "UNKNOWN_ENUM_VALUE_Color_77"},
    ]
    assert sorted(parts.reasons) == [3, 4]
    assert all("no value of the message shop.Every" in reason for reason in parts.reasons.values())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('syntax = "proto3"; message A { B b = 1; } message B { repeated A a = 1; }', "the message A contains itself"),
        ('syntax = "proto3"; message A {}', "the message A has no fields"),
        ('syntax = "proto3"; message A { int32 a = 1; ', "protoc refuses valueSchema"),
        ("a INT", "no descriptor set of Protobuf in Base64"),
        (
            'syntax = "proto3"; message A0 { int32 x = 1; }'
            + "".join(f" message A{level} {{ A{level - 1} a = 1; A{level - 1} b = 2; }}" for level in range(1, 20)),
            "more than 10000 parts",
        ),
        (
            'syntax = "proto3"; message A0 { int32 x = 1; }'
            + "".join(f" message A{level} {{ A{level - 1} a = 1; }}" for level in range(1, 60)),
            "nested deeper than 50 levels",
        ),
    ],
)
def test_schema_without_a_spark_type_is_refused(text: str, words: str) -> None:
    last = text.rpartition("message A")[2].split(" ")[0] if text.startswith('syntax = "proto3"; message A0') else ""
    given = {"valueMessage": f"A{last}"} if last else {}
    with pytest.raises(InvalidInputError, match=words):
        parse_declared_values(options_of(valueFormat="protobuf", valueSchema=text, **given))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"valueFormat": "protobuf"}, "needs valueSchema: the text of a .proto file"),
        ({"valueFormat": "protobuf", "valueSchema": FIRST, "valueMessage": "Q"}, "no message 'Q'"),
        ({"valueFormat": "json", "valueSchema": "a INT", "valueMessage": "Q"}, "belongs to valueFormat=protobuf"),
        ({"valueMessage": "Q"}, "valueMessage needs valueFormat"),
        ({"valueFormat": "protobuf", "valueSchema": FIRST, "valueWriterSchemas": "a:b"}, "belongs to valueFormat=avro"),
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        parse_declared_values(options_of(**options))


def test_values_of_other_versions_are_read_or_bad(registry: EmbeddedSchemaRegistry) -> None:
    client = SchemaRegistry(registry.url)
    old, new = (client.serializer("pay-value", text, kind="PROTOBUF") for text in (FIRST, SECOND))
    other = client.serializer("o-value", SECOND.replace("P", "Q"), kind="PROTOBUF")
    narrow = client.serializer("n-value", FIRST.replace("int64", "sint64"), kind="PROTOBUF")
    client.register("avro-value", '"string"')
    values = [
        old({"id": 1}), new({"id": 2, "note": "x"}), None, other({"id": 3}), narrow({"id": 4}), b"\0\0\0\0\5x",
        b"\0\0\0\0\x63\0", b"{}", PREFIX, PREFIX + b"\2\2", PREFIX + b"\0\x0a\5a", old({"id": 5}),
    ]  # fmt: skip
    kind = pa.struct([("id", pa.int64()), ("note", pa.string())])
    parts = decoder_of(SECOND, kind, registry.url).decode(pa.array(values, pa.binary()))
    good = {0: {"id": 1, "note": ""}, 1: {"id": 2, "note": "x"}, 11: {"id": 5, "note": ""}}
    assert parts.to_array().to_pylist() == [good.get(row) for row in range(len(values))]
    words = {
        3: "a Q was written, and P is read",
        4: "P.id was written as sint64 and is read as int64",
        5: "indexes",
        6: "there is no schema 99",
        7: "no schema's id",
        8: "truncated",
        9: r"no message at the indexes [1]",
        10: "no value of the message P",
    }
    assert parts.reasons.keys() == words.keys()
    for row, text in words.items():
        assert text in parts.reasons[row], row
    values_of = Values("protobuf", kind, "fail", "UTC", None, None, registry.url, ("", ""))
    assert registry.url not in repr(values_of)


def test_bad_value_names_its_place(registry: EmbeddedSchemaRegistry) -> None:
    schema = compile_protobuf(FIRST, (), "the schema")
    SchemaRegistry(registry.url).register("pay-value", FIRST, "PROTOBUF")
    kind = pa.struct([("id", pa.int64())])
    values = Values("protobuf", kind, "fail", "UTC", None, None, registry.url, (schema.descriptor_set_text(), "P"))
    with pytest.raises(
        CorruptDataError, match="pay-0 at 7: the value is no protobuf of the declared type: no value of"
    ):
        values.decode_values(pa.array([PREFIX + b"\0\x08"], pa.binary()), lambda row: f"pay-0 at {row + 7}")


@pytest.mark.parametrize(
    "answer",
    [
        {"schema": "{", "schemaType": "PROTOBUF"},
        {"schema": FIRST + " " * (1 << 20), "schemaType": "PROTOBUF"},
        {"schema": FIRST, "schemaType": "PROTOBUF", "references": [{"name": "a"}]},
        {"schema": "{}", "schemaType": "JSON"},
    ],
)
def test_hostile_schema_makes_its_records_bad(answer: Any) -> None:
    with raw_registry(http_answer(answer)) as server:
        decoder = decoder_of(FIRST, pa.struct([("id", pa.int64())]), server.url)
        parts = decoder.decode(pa.array([PREFIX + b"\0\x08\1"] * 3, pa.binary()))
        assert sorted(parts.reasons) == [0, 1, 2]
        assert len(server.requests) == 1


@pytest.mark.parametrize("answer", [http_answer({}, "503 Away"), http_answer({}, "302 Found"), http_answer(b"<html>")])
def test_registry_that_fails_makes_no_record_bad(answer: bytes) -> None:
    with raw_registry(answer) as server:
        decoder = decoder_of(FIRST, pa.struct([("id", pa.int64())]), server.url)
        with pytest.raises(KafkaError, match="regist"):
            decoder.decode(pa.array([PREFIX + b"\0\x08\1"], pa.binary()))


def test_machine_that_fails_makes_no_record_bad(
    registry: EmbeddedSchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = SchemaRegistry(registry.url).serializer("pay-value", FIRST, kind="PROTOBUF")
    values, kind = pa.array([write({"id": 5})], pa.binary()), pa.struct([("id", pa.int64())])
    decoder = decoder_of(FIRST, kind, registry.url)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(RetriableError, match="protoc failed for the schema 1"):
            decoder.decode(values)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "grpc_tools", None)
        with pytest.raises(InvalidInputError, match=r"pip install 'kohort\[protobuf\]'"):
            decoder.decode(values)
    assert decoder.decode(values).to_array().to_pylist() == [{"id": 5}]


@pytest.mark.parametrize("module", ["grpc_tools", "google.protobuf.descriptor_pb2"])
def test_worker_without_a_library_names_the_extra(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schema, kind = compile_protobuf(FIRST, (), "the schema").descriptor_set_text(), pa.struct([("id", pa.int64())])
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidInputError, match=r"pip install 'kohort\[protobuf\]'"):
        ProtobufDecoder(kind, schema, "P", "http://127.0.0.1:9")
    if module == "grpc_tools":  # without a registry it is not needed
        assert ProtobufDecoder(kind, schema, "P").decode(pa.array([b"\x08\5"])).to_array().to_pylist() == [{"id": 5}]


def test_schemas_of_writers_leave_memory(registry: EmbeddedSchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short schema may import the whole of descriptor.proto, of which there are 130 kB in memory."""
    text = 'import "google/protobuf/descriptor.proto"; message P { int64 id = 1; string note = %d; }'
    values = [
        SchemaRegistry(registry.url).serializer(f"{number}-value", P3 + text % number, kind="PROTOBUF")({"id": number})
        for number in range(2, 6)
    ]
    monkeypatch.setattr(protobuf_records, "WRITERS_BYTES_MAX", 300_000)
    decoder = decoder_of(FIRST, pa.struct([("id", pa.int64())]), registry.url)
    assert [row["id"] for row in decoder.decode(pa.array(values)).to_array().to_pylist()] == [2, 3, 4, 5]
    assert list(decoder._written) == [3, 4]


def test_values_that_a_reader_would_lose_are_bad(registry: EmbeddedSchemaRegistry) -> None:
    client = SchemaRegistry(registry.url)
    color = "enum C { RED = 0; BLUE = 1; GREEN = 2; } message P { C c = 1; }"
    data = client.serializer("pay-value", P3 + color, kind="PROTOBUF")({"c": "GREEN"})
    closed = 'syntax = "proto2"; enum C { RED = 0; BLUE = 1; } message P { optional C c = 1 [default = RED]; }'
    parts = decoder_of(closed, pa.struct([("c", pa.string())]), registry.url).decode(pa.array([data]))
    assert "C has no GREEN = 2, and is closed" in parts.reasons[0]


def test_text_of_proto2_that_is_not_utf8_is_bad() -> None:
    text = 'syntax = "proto2"; message P { optional string s = 1; map<string, string> m = 2; }'
    kind = pa.struct([("s", pa.string()), ("m", pa.map_(pa.string(), pa.string()))])
    values = [b"\x0a\1\xff", b"\x12\6\x0a\1\xff\x12\1a", b"\x0a\1a\x12\6\x0a\1b\x12\1c"]
    parts = decoder_of(text, kind).decode(pa.array(values, pa.binary()))
    assert parts.to_array().to_pylist() == [None, None, {"s": "a", "m": [("b", "c")]}]


def test_newest_schema_is_the_type_without_a_valueschema(registry: EmbeddedSchemaRegistry) -> None:
    client = SchemaRegistry(registry.url)
    client.register("base", 'syntax = "proto3"; package p; message A { int32 a = 1; }', "PROTOBUF")
    uses = 'syntax = "proto3"; package p; import "a.proto"; message U { A a = 1; } message V { int32 v = 1; }'
    client.register("pay-value", uses, "PROTOBUF", references=[SchemaReference("a.proto", "base", 1)])
    given = {"valueFormat": "protobuf", "schemaRegistryUrl": registry.url}
    found = schema_from_registry(options_of(**given))
    assert found is not None
    assert parse_declared_values(options_of(**given, valueSchema=found)).ddl == "struct<`a`: struct<`a`: int>>"
    assert parse_declared_values(options_of(**given, valueSchema=found, valueMessage="V")).ddl == "struct<`v`: int>"
    with pytest.raises(InvalidInputError, match="of the kind PROTOBUF, and not AVRO"):
        schema_from_registry(options_of(**given | {"valueFormat": "avro"}))


# -- The sink


def sink(**given: str) -> Any:
    return parse_sink_options({"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "pay", **given})


def spark_type(of: dict[str, Any]) -> Any:
    found = spark_types.StructType()
    for name, kind in of.items():
        found.add(name, kind)
    return found


def test_column_is_written_and_read_back(registry: EmbeddedSchemaRegistry) -> None:
    given = {"valueFormat": "protobuf", "schemaRegistryUrl": registry.url}
    inner = spark_type({"name": spark_types.StringType(), "price": spark_types.DoubleType()})
    columns = {
        "i": spark_types.IntegerType(), "ul": spark_types.DecimalType(20, 0), "inner": inner,
        "by_name": spark_types.MapType(spark_types.StringType(), inner), "list": spark_types.ArrayType(inner),
        "at": spark_types.TimestampType(), "took": spark_types.DayTimeIntervalType(), "color": spark_types.StringType(),
        "big": spark_types.DecimalType(20, 0), "label": spark_types.StringType(), "maybe": spark_types.IntegerType(),
    }  # fmt: skip
    rows = [{name: ROW[name] for name in columns}, None, dict.fromkeys(columns)]
    arrow = pa.struct([ARROW.field(name) for name in columns])
    options = sink(**given, valueSchema=EVERY, valueMessage="Every")
    encoding = ValueEncoding.register_schema(options, spark_type(columns))
    batch = encoding.encode_values(pa.RecordBatch.from_arrays([pa.array(rows, arrow)], ["value"]))
    assert batch.column("value")[1].as_py() is None
    parts = decoder_of(EVERY, ARROW, registry.url, "Every").decode(batch.column("value"))
    assert parts.reasons == {}
    assert parts.to_array().to_pylist() == [{**EMPTY, **rows[0]}, None, EMPTY]
    assert SchemaRegistry(registry.url).latest("pay-value").id == encoding.number
    again = ValueEncoding.register_schema(sink(**given, valueMessage="Every"), spark_type(columns))
    assert again.number == encoding.number, "the newest schema of the subject"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": spark_types.LongType(), "x": spark_types.LongType()}, r"value.x is no field of the message P, .* id"),
        ({"n": spark_types.LongType()}, r"the column value.n is bigint, and the message N a struct"),
        ({"n": spark_type({"y": spark_types.LongType()})}, "value.n.y is no field of the message N"),
    ],
)
def test_columns_that_are_no_fields_are_refused(
    registry: EmbeddedSchemaRegistry, columns: dict[str, Any], words: str
) -> None:
    text = 'syntax = "proto3"; message P { int64 id = 1; N n = 2; } message N { int32 x = 1; }'
    options = sink(valueFormat="protobuf", schemaRegistryUrl=registry.url, valueSchema=text)
    with pytest.raises(InvalidInputError, match=words):
        ValueEncoding.register_schema(options, spark_type(columns))


def test_row_that_is_not_of_the_schema_is_named(registry: EmbeddedSchemaRegistry) -> None:
    options = sink(valueFormat="protobuf", schemaRegistryUrl=registry.url, valueSchema=FIRST.replace("int64", "uint32"))
    encoding = ValueEncoding.register_schema(options, spark_type({"id": spark_types.LongType()}))
    values = pa.array([{"id": 1}, {"id": -1}], pa.struct([("id", pa.int64())]))
    with pytest.raises(InvalidInputError, match=r"row 1 of a batch: the value is not of the schema: .*out of range"):
        encoding.encode_values(pa.RecordBatch.from_arrays([values], ["value"]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"valueFormat": "protobuf"}, "needs schemaRegistryUrl"),
        ({"valueMessage": "P"}, "needs valueFormat=avro, json or protobuf"),
        (
            {"valueFormat": "avro", "schemaRegistryUrl": "http://127.0.0.1:9", "valueMessage": "P"},
            "belongs to valueFormat=protobuf",
        ),
    ],
)
def test_sink_options_that_contradict_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        sink(**options)


@pytest.mark.spark
@LAST_RESORT
@pytest.mark.filterwarnings("default")
def test_sparks_rows_go_through_the_registry(
    spark: Any, stage: Stage, run: Callable[..., Any], registry: EmbeddedSchemaRegistry
) -> None:
    """The sink writes structs; a stream and a batch read every type of Protobuf; an older value is among them."""
    servers = stage.servers
    given = {"kafka.bootstrap.servers": servers, "valueFormat": "protobuf", "schemaRegistryUrl": registry.url}
    old = SchemaRegistry(registry.url).serializer(f"{stage.topic}-value", FIRST, kind="PROTOBUF")
    every = FIRST.replace("int64 id = 1;", "int64 id = 1; string note = 2; google.protobuf.Duration took = 3; "
                          "uint64 big = 4; map<int32, string> names = 5; google.protobuf.Timestamp at = 6;").replace(
        'message', 'import "google/protobuf/duration.proto"; import "google/protobuf/timestamp.proto"; message', 1
    )  # fmt: skip
    with Producer(servers, value_serializer=old) as producer:
        producer.send(stage.topic, {"id": 100})
    rows = spark.range(20).selectExpr(
        "named_struct('id', id, 'note', concat('n', id), 'took', make_dt_interval(0, 0, 0, id), 'big', "
        "cast(18446744073709551615 as decimal(20, 0)), 'names', map(cast(id as int), 'x'), "
        "'at', timestamp'1999-12-31 23:59:59Z') AS value"
    )
    rows.write.format("kohort").options(**given, topic=stage.topic, valueSchema=every).mode("append").save()
    frame = spark.read.format("kohort").options(**given, subscribe=stage.topic).load()
    assert dict(frame.dtypes)["value"] == (
        "struct<id:bigint,note:string,took:interval day to second,big:decimal(20,0),names:map<int,string>,at:timestamp>"
    )
    flat = ("value.id", "value.note", "value.took", "cast(value.big as string)", "value.names", "unix_micros(value.at)")
    top, instant = str(2**64 - 1), 946_684_799_000_000
    wanted = [
        *((row, f"n{row}", timedelta(seconds=row), top, {row: "x"}, instant) for row in range(20)),
        (100, "", None, "0", {}, None),
    ]
    assert sorted(map(tuple, frame.selectExpr(*flat).collect())) == wanted
    found: list[Any] = []
    query = run(
        lambda batch, _: found.extend(batch.selectExpr(*flat).collect()),
        trigger={"availableNow": True},
        valueFormat="protobuf",
        schemaRegistryUrl=registry.url,
    )
    stage.finished(query)
    assert sorted(map(tuple, found)) == wanted
