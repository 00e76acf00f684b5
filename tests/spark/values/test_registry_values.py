"""Values behind a schema's id: the source reads them by a registry, and the sink writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark_types
from tests.schema_registry.raw_registry import http_answer, raw_registry
from tests.spark.conftest import Stage
from tests.support.waiting import LAST_RESORT

from kohort import SchemaRegistry
from kohort.client.producer.producer import Producer
from kohort.errors import InvalidInputError, KafkaError, RetriableError
from kohort.schema_registry.embedded import EmbeddedSchemaRegistry
from kohort.schema_registry.json_values import json_schema_checker
from kohort.spark.options import parse_options
from kohort.spark.sink_options import parse_sink_options
from kohort.spark.tasks.encoding import ValueEncoding
from kohort.spark.values.avro_records import AvroDecoder
from kohort.spark.values.declared import avro_schema_of, parse_declared_values, schema_from_registry
from kohort.spark.values.decoding import PrefixedJsonDecoder
from kohort.spark.values.json_columns import JsonDecoder
from kohort.spark.values.types import arrow_type

FIRST = json.dumps({"type": "record", "name": "P", "fields": [{"name": "id", "type": "long"}]})
SECOND = json.dumps(
    {
        "type": "record",
        "name": "P",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": "-"}],
    }
)
TYPE = pa.struct([("id", pa.int64()), ("note", pa.string())])


@pytest.fixture
def registry() -> Iterator[EmbeddedSchemaRegistry]:
    with EmbeddedSchemaRegistry() as running:
        yield running


def options_of(**given: str) -> Any:
    return parse_options({"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "pay", **given})


def test_values_of_two_schemas_are_one_column(registry: EmbeddedSchemaRegistry) -> None:
    client = SchemaRegistry(registry.url)
    old, new = client.serializer("pay-value", FIRST), client.serializer("pay-value", SECOND)
    other = client.serializer("other-value", '"string"')
    client.register("json-value", '{"type": "object"}', "JSON")
    values = [old({"id": 1}), new({"id": 2, "note": "x"}), None, other("x"), b"\0\0\0\0\x63\2", b"\0\0\0\0\4{}", b"{}"]
    parts = AvroDecoder(TYPE, SECOND, None, registry.url).decode(pa.array(values, pa.binary()))
    assert parts.to_array().to_pylist() == [{"id": 1, "note": "-"}, {"id": 2, "note": "x"}, *[None] * 5]
    assert sorted(parts.reasons) == [3, 4, 5, 6]
    assert parts.reasons[4] == "there is no schema 99"
    assert "kind JSON" in parts.reasons[5] and "prefix is missing" in parts.reasons[6]


@pytest.mark.parametrize("schema", ['{"type": "array", "items": "null"}', "{", '"int"' + " " * (1 << 20)])
def test_hostile_schema_makes_its_records_bad(schema: str) -> None:
    with raw_registry(http_answer({"schema": schema})) as server:
        decoder = AvroDecoder(TYPE, SECOND, None, server.url)
        parts = decoder.decode(pa.array([b"\0\0\0\0\1\2"] * 3, pa.binary()))
        assert sorted(parts.reasons) == [0, 1, 2]
        assert len(server.requests) == 1


@pytest.mark.parametrize("answer", [http_answer({}, "503 Away"), http_answer({}, "302 Found"), http_answer(b"<html>")])
def test_registry_that_fails_makes_no_record_bad(answer: bytes) -> None:
    with raw_registry(answer) as server:
        decoder = AvroDecoder(TYPE, SECOND, None, server.url)
        with pytest.raises(KafkaError, match="regist"):
            decoder.decode(pa.array([b"\0\0\0\0\1\2"], pa.binary()))


def test_id_above_the_highest_is_bad_without_a_request() -> None:
    with raw_registry(http_answer({"error_code": 40403}, "404 Not Found")) as server:
        decoder = AvroDecoder(TYPE, SECOND, None, server.url)
        parts = decoder.decode(pa.array([b"\0\x80\0\0\0\2", b"\0\xff\xff\xff\xff\2"], pa.binary()))
        assert "2147483648 is above" in parts.reasons[0] and "4294967295 is above" in parts.reasons[1]
        assert server.requests == []


def test_items_of_many_objects_and_few_bytes_have_a_lower_bound() -> None:
    item: Any = "boolean"
    for level in range(40):
        item = {"type": "record", "name": f"R{level}", "fields": [{"name": "in", "type": item}]}
    fields = [{"name": "id", "type": "long"}, {"name": "many", "type": {"type": "array", "items": item}}]
    schema = json.dumps({"type": "record", "name": "P", "fields": fields})
    with raw_registry(http_answer({"schema": schema})) as server:
        decoder = AvroDecoder(TYPE, SECOND, None, server.url)
        good = b"\0\0\0\0\1\2\4\1\0\0"
        parts = decoder.decode(pa.array([good, good + bytes(1 << 20)], pa.binary()))
        assert parts.to_array().to_pylist() == [{"id": 1, "note": "-"}, None]
        assert "are more than the 838860 that are read" in parts.reasons[1]


def test_json_is_read_after_its_prefix() -> None:
    kind = pa.struct([("id", pa.int64())])
    values = [b'\0\0\0\0\1{"id": 1}', None, b'{"id": 2}', b"\0\0", b"", b"\0\0\0\0\1x", b'\0\0\0\0\1{"id": 3}']
    parts = PrefixedJsonDecoder(JsonDecoder(kind, UTC)).decode(pa.array(values, pa.binary()))
    assert parts.to_array().to_pylist() == [{"id": 1}, None, None, None, None, None, {"id": 3}]
    assert sorted(parts.reasons) == [2, 3, 4, 5]


@pytest.mark.parametrize("skipped", [0, 700])
def test_many_values_are_read_after_their_prefixes(skipped: int) -> None:
    """Arrow's own cutting of a prefix fails for twenty values, and not for five."""
    values = pa.array([b'\0\0\0\0\1{"id": %d}' % number for number in range(1000)] + [None] * 50, pa.binary())
    parts = PrefixedJsonDecoder(JsonDecoder(pa.struct([("id", pa.int64())]), UTC)).decode(values.slice(skipped))
    assert parts.reasons == {}
    assert parts.to_array().to_pylist() == [{"id": number} for number in range(skipped, 1000)] + [None] * 50


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"valueFormat": "string"}, "belongs to valueFormat=avro, json or protobuf"),
        ({}, "schemaRegistryUrl needs valueFormat"),
        ({"valueFormat": "json"}, "needs valueSchema"),
        ({"valueFormat": "avro", "valueSchema": "a INT", "valueWriterSchemas": "a:b"}, "give one of them"),
        ({"valueFormat": "avro", "valueSchema": "a INT", "schemaRegistryUrl": "registry"}, "schema registry's URL"),
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        parse_declared_values(options_of(**{"schemaRegistryUrl": "http://127.0.0.1:9", **options}))


def test_newest_schema_is_the_type_without_a_valueschema(registry: EmbeddedSchemaRegistry) -> None:
    SchemaRegistry(registry.url).register("pay-value", SECOND)
    given = {"valueFormat": "avro", "schemaRegistryUrl": registry.url}
    assert schema_from_registry(options_of(**given)) == SECOND
    assert schema_from_registry(options_of(**given, valueSchema="a INT")) is None
    with pytest.raises(InvalidInputError, match="needs one topic"):
        schema_from_registry(options_of(**given, subscribe="a,b"))
    with pytest.raises(KafkaError, match="Subject 'none-value' not found"):
        schema_from_registry(options_of(**given, subscribe="none"))
    with pytest.raises(RetriableError, match="can't be reached"):
        schema_from_registry(options_of(**given | {"schemaRegistryUrl": "http://127.0.0.1:9"}))


def test_password_of_the_registry_is_not_shown() -> None:
    given = {"valueFormat": "avro", "valueSchema": "a INT", "schemaRegistryUrl": "http://u:s3cret@127.0.0.1:9"}
    assert "s3cret" not in repr(parse_declared_values(options_of(**given)))


def sink(**given: str) -> Any:
    return parse_sink_options({"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "pay", **given})


def test_column_is_written_and_read_back(registry: EmbeddedSchemaRegistry) -> None:
    types = spark_types
    numbers = types.MapType(types.StringType(), types.IntegerType())
    inner = types.StructType().add("x", types.DoubleType()).add("yes", types.BooleanType())
    kind = (
        types.StructType()
        .add("id", types.LongType())
        .add("day", types.DateType())
        .add("at", types.TimestampType())
        .add("local", types.TimestampNTZType())
        .add("sum", types.DecimalType(9, 2))
        .add("raw", types.BinaryType())
        .add("list", types.ArrayType(numbers))
        .add("inner", inner)
        .add("note", types.StringType())
    )
    row = {
        "id": 2**62,
        "day": date(2024, 2, 29),
        "at": datetime(2024, 2, 29, 12, 0, 0, 123456, UTC),
        "local": datetime(1969, 12, 31, 23, 59, 59),  # noqa: DTZ001
        "sum": Decimal("-1234567.89"),
        "raw": b"\0\xff",
        "list": [[("a", 1), ("b", None)], [], None],
        "inner": {"x": 0.5, "yes": True},
        "note": None,
    }
    empty = dict.fromkeys(row)
    made = pa.array([row, None, empty], arrow_type(kind))
    options = sink(valueFormat="avro", schemaRegistryUrl=registry.url)
    encoding = ValueEncoding.register_schema(options, kind)
    batch = encoding.encode_values(pa.RecordBatch.from_arrays([made, pa.array([1, 2, 3])], ["value", "partition"]))
    assert batch.column("value")[1].as_py() is None
    decoder = AvroDecoder(arrow_type(kind), json.dumps(avro_schema_of(kind)), None, registry.url)
    parts = decoder.decode(batch.column("value"))
    assert parts.reasons == {}
    assert parts.to_array().to_pylist() == [row, None, empty]
    assert SchemaRegistry(registry.url).latest("pay-value").id == encoding.number


def test_column_is_written_as_json_and_read_back(registry: EmbeddedSchemaRegistry) -> None:
    types = spark_types
    kind = (
        types.StructType()
        .add("id", types.LongType(), nullable=False)
        .add("day", types.DateType())
        .add("at", types.TimestampType())
        .add("local", types.TimestampNTZType())
        .add("sum", types.DecimalType(9, 2))
        .add("raw", types.BinaryType())
        .add("single", types.FloatType())
        .add("maps", types.ArrayType(types.MapType(types.StringType(), types.IntegerType())))
        .add("inner", types.StructType().add("x", types.DoubleType()).add("yes", types.BooleanType()))
        .add("note", types.StringType())
    )
    row = {
        "id": 2**62,
        "day": date(2024, 2, 29),
        "at": datetime(2024, 2, 29, 12, 0, 0, 123456, UTC),
        "local": datetime(1969, 12, 31, 23, 59, 59),  # noqa: DTZ001
        "sum": Decimal("-1234567.89"),
        "raw": b"\0\xff",
        "single": 0.10000000149011612,
        "maps": [[("a", 1), ("b", None)], [], None],
        "inner": {"x": 0.5, "yes": None},
        "note": "é",
    }
    empty = {**dict.fromkeys(row), "id": 1}
    berlin = arrow_type(kind).field("at").with_type(pa.timestamp("us", "Europe/Berlin"))
    given = pa.struct([berlin if field.name == "at" else field for field in arrow_type(kind)])
    made = pa.array([row, None, empty], given)
    encoding = ValueEncoding.register_schema(sink(valueFormat="json", schemaRegistryUrl=registry.url), kind)
    written = encoding.encode_values(pa.RecordBatch.from_arrays([made], ["value"])).column("value")
    assert written.to_pylist() == [
        b"\0\0\0\0\1"
        + '{"id":4611686018427387904,"day":"2024-02-29","at":"2024-02-29T12:00:00.123456Z",'
        '"local":"1969-12-31T23:59:59","sum":-1234567.89,"raw":"AP8=","single":0.1,"maps":[{"a":1,"b":null},{},null],"inner":{"x":0.5},"note":"é"}'.encode(),
        None,
        b'\0\0\0\0\1{"id":1}',
    ]
    parts = PrefixedJsonDecoder(JsonDecoder(arrow_type(kind), UTC)).decode(written)
    assert parts.reasons == {} and parts.to_array().to_pylist() == [row, None, empty]
    check = json_schema_checker(SchemaRegistry(registry.url).latest("pay-value").text)
    for data in written.drop_null().to_pylist():
        check(json.loads(data[5:]))
    for wrong in ({"id": 2**63}, {"id": 1, "else": 1}, {"day": "x"}, {"id": 1, "note": None}):
        with pytest.raises(InvalidInputError, match="not of the schema"):
            check(wrong)


@pytest.mark.parametrize("form", ["avro", "json"])
@pytest.mark.parametrize("zone", ["GMT+08:00", "UTC+8", "PST", "Asia/Tokyo"])
def test_times_of_a_session_in_any_zone_are_written(registry: EmbeddedSchemaRegistry, form: str, zone: str) -> None:
    """Spark has zones under more names than Python, and gives times in the session's zone."""
    types, at = spark_types, datetime(2024, 2, 29, 12, 0, 0, 123456, UTC)
    times = types.ArrayType(types.TimestampType())
    maps = types.MapType(types.StringType(), types.TimestampType())
    kind = types.StructType().add("at", types.TimestampType()).add("list", times).add("map", maps)
    row = {"at": at, "list": [at, None], "map": [("a", at)]}
    stamp = pa.timestamp("us", zone)
    given = pa.struct([("at", stamp), ("list", pa.list_(stamp)), ("map", pa.map_(pa.string(), stamp))])
    made = pa.array([row, None], arrow_type(kind)).cast(given)
    encoding = ValueEncoding.register_schema(sink(valueFormat=form, schemaRegistryUrl=registry.url), kind)
    written = encoding.encode_values(pa.RecordBatch.from_arrays([made], ["value"])).column("value")
    decoder: Any = AvroDecoder(arrow_type(kind), json.dumps(avro_schema_of(kind)), None, registry.url)
    if form == "json":
        decoder = PrefixedJsonDecoder(JsonDecoder(arrow_type(kind), UTC))
    parts = decoder.decode(written)
    assert parts.reasons == {} and parts.to_array().to_pylist() == [row, None]


@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        (0.1, "0.1"), (1 / 3, "0.33333334"), (3.4028234e38, "3.4028235e38"), (1e-45, "1.4013e-45"),
        (16777217.0, "16777216.0"), (-0.0, "-0.0"), (None, None),
    ],
)  # fmt: skip
def test_number_of_32_bits_has_its_own_digits(
    registry: EmbeddedSchemaRegistry, number: float | None, wanted: str | None
) -> None:
    kind = spark_types.FloatType()
    encoding = ValueEncoding.register_schema(sink(valueFormat="json", schemaRegistryUrl=registry.url), kind)
    values = pa.array([number], pa.float32())
    written = encoding.encode_values(pa.RecordBatch.from_arrays([values], ["value"])).column("value")[0].as_py()
    assert (written and written[5:].decode()) == wanted
    assert wanted is None or pa.array([float(wanted)], pa.float32()).equals(values)


@pytest.mark.parametrize("number", [float("nan"), float("inf")], ids=["NaN", "infinity"])
def test_number_that_json_does_not_have_is_named(registry: EmbeddedSchemaRegistry, number: float) -> None:
    kind = spark_types.DoubleType()
    encoding = ValueEncoding.register_schema(sink(valueFormat="json", schemaRegistryUrl=registry.url), kind)
    with pytest.raises(InvalidInputError, match=f"row 1 of a batch: JSON has no number {number}"):
        encoding.encode_values(pa.RecordBatch.from_arrays([pa.array([1.0, number])], ["value"]))


def test_rows_are_compared_with_a_json_schema_that_is_given(registry: EmbeddedSchemaRegistry) -> None:
    schema = '{"type": "object", "properties": {"id": {"type": "integer", "minimum": 1}}, "required": ["id"]}'
    options = sink(valueFormat="json", schemaRegistryUrl=registry.url, valueSchema=schema)
    encoding = ValueEncoding.register_schema(options, spark_types.StructType().add("id", spark_types.LongType()))
    assert SchemaRegistry(registry.url).latest("pay-value").text == schema
    for value, reason in (({"id": 0}, "0 is less than the minimum"), ({"id": None}, "'id' is a required property")):
        values = pa.array([{"id": 1}, value], pa.struct([("id", pa.int64())]))
        with pytest.raises(InvalidInputError, match=f"row 1 of a batch: the value is not of the schema: .*{reason}"):
            encoding.encode_values(pa.RecordBatch.from_arrays([values], ["value"]))


def test_row_that_is_not_of_the_schema_is_named(registry: EmbeddedSchemaRegistry) -> None:
    options = sink(valueFormat="avro", schemaRegistryUrl=registry.url, valueSchema=FIRST)
    encoding = ValueEncoding.register_schema(options, spark_types.StructType().add("id", spark_types.LongType()))
    values = pa.array([{"id": 1}, {"id": None}], pa.struct([("id", pa.int64())]))
    with pytest.raises(InvalidInputError, match=r"row 1 of a batch: the value is not of the schema: .*id"):
        encoding.encode_values(pa.RecordBatch.from_arrays([values], ["value"]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"valueFormat": "avro"}, "needs schemaRegistryUrl"),
        ({"schemaRegistryUrl": "http://127.0.0.1:9"}, "needs valueFormat=avro"),
        ({"valueSchema": FIRST}, "needs valueFormat=avro"),
        ({"valueFormat": "avro", "schemaRegistryUrl": "registry"}, "schema registry's URL"),
        ({"valueFormat": "json"}, "needs schemaRegistryUrl"),
        (
            {"valueFormat": "json", "valueMessage": "M", "schemaRegistryUrl": "http://127.0.0.1:9"},
            "valueMessage belongs",
        ),
    ],
)
def test_sink_options_that_contradict_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        sink(**options)


def test_sink_needs_the_topic_of_the_subject() -> None:
    given = {"valueFormat": "avro", "schemaRegistryUrl": "http://127.0.0.1:9"}
    with pytest.raises(InvalidInputError, match="needs the option topic"):
        parse_sink_options({"kafka.bootstrap.servers": "127.0.0.1:9", **given})


@pytest.mark.spark
@LAST_RESORT
def test_sparks_rows_go_through_the_registry_as_json(
    spark: Any, stage: Stage, registry: EmbeddedSchemaRegistry
) -> None:
    given = {"kafka.bootstrap.servers": stage.servers, "valueFormat": "json", "schemaRegistryUrl": registry.url}
    rows = spark.range(20).selectExpr(
        "named_struct('id', id, 'at', timestamp_micros(id), 'note', cast(null AS string)) AS value"
    )
    rows.write.format("kohort").options(**given, topic=stage.topic).mode("append").save()
    schema = "id BIGINT, at TIMESTAMP, note STRING"
    frame = spark.read.format("kohort").options(**given, subscribe=stage.topic, valueSchema=schema).load()
    found = sorted(map(tuple, frame.selectExpr("value.id", "unix_micros(value.at)", "value.note").collect()))
    assert found == [(number, number, None) for number in range(20)]
    assert SchemaRegistry(registry.url).latest(f"{stage.topic}-value").kind == "JSON"


@pytest.mark.spark
@LAST_RESORT
@pytest.mark.filterwarnings("default")
def test_sparks_rows_go_through_the_registry(
    spark: Any, stage: Stage, run: Callable[..., Any], registry: EmbeddedSchemaRegistry
) -> None:
    """The sink writes structs with their schema; a stream and a batch read them typed; an older value is among them."""
    given = {"kafka.bootstrap.servers": stage.servers, "valueFormat": "avro", "schemaRegistryUrl": registry.url}
    write = SchemaRegistry(registry.url).serializer(f"{stage.topic}-value", FIRST)
    with Producer(stage.servers, value_serializer=write) as producer:
        producer.send(stage.topic, {"id": 100})
    rows = spark.range(20).selectExpr("named_struct('id', id, 'note', concat('n', id)) AS value")
    rows.write.format("kohort").options(**given, topic=stage.topic, valueSchema=SECOND).mode("append").save()
    wanted = sorted([(100, "-"), *((number, f"n{number}") for number in range(20))])
    frame = spark.read.format("kohort").options(**given, subscribe=stage.topic).load()
    assert dict(frame.dtypes)["value"] == "struct<id:bigint,note:string>"
    assert sorted(map(tuple, frame.select("value.*").collect())) == wanted
    found: list[Any] = []
    query = run(
        lambda batch, _: found.extend(batch.select("value.*").collect()),
        trigger={"availableNow": True},
        valueFormat="avro",
        schemaRegistryUrl=registry.url,
    )
    stage.finished(query)
    assert sorted(map(tuple, found)) == wanted
