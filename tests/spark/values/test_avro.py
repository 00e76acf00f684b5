"""Avro values: what fastavro reads one by one, as columns; damage, writers' schemas, and schemas that can't be."""

from __future__ import annotations

import io
import json
import struct
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark
from tests.schema_registry.raw_registry import http_answer, raw_registry
from tests.support.long_runs import examples

from kohort.errors import InvalidInputError
from kohort.schema_registry.avro_limits import without_defaults
from kohort.spark.options import parse_options
from kohort.spark.values.avro_parsed import parse_for_fastavro
from kohort.spark.values.avro_records import AvroDecoder
from kohort.spark.values.avro_schema import NESTING_MAX, parse_avro_schema, schema_to_node, without_logical_types
from kohort.spark.values.declared import avro_schema_of, parse_declared_values
from kohort.spark.values.isolate import VALUE_BYTES
from kohort.spark.values.types import arrow_type

SUIT = {"type": "enum", "name": "Suit", "symbols": ["HEARTS", "SPADES"]}
EVERY: dict[str, Any] = {
    "type": "record",
    "name": "Every",
    "namespace": "tests",
    "fields": [
        {"name": "yes", "type": "boolean"},
        {"name": "i", "type": "int"},
        {"name": "l", "type": ["null", "long"]},
        {"name": "f", "type": "float"},
        {"name": "d", "type": "double"},
        {"name": "b", "type": ["bytes", "null"]},
        {"name": "s", "type": "string"},
        {"name": "suit", "type": SUIT},
        {"name": "other", "type": ["null", "Suit"]},
        {"name": "four", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {
            "name": "fixed_sum",
            "type": [
                "null",
                {"type": "fixed", "name": "Sum", "size": 8, "logicalType": "decimal", "precision": 12, "scale": 3},
            ],
        },
        {"name": "either", "type": ["int", "long"]},
        {"name": "real", "type": ["null", "float", "double"]},
        {"name": "list", "type": {"type": "array", "items": ["null", {"type": "int", "logicalType": "date"}]}},
        {"name": "map", "type": {"type": "map", "values": {"type": "long", "logicalType": "timestamp-millis"}}},
        {
            "name": "inner",
            "type": [
                "null",
                {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": ["null", "tests.Four"]}]},
            ],
        },
    ],
}
DDL = (
    "struct<`yes`: boolean, `i`: int, `l`: bigint, `f`: float, `d`: double, `b`: binary, `s`: string, `suit`: string, "
    "`other`: string, `four`: binary, `day`: date, `ms`: timestamp_ltz, `us`: timestamp_ltz, `local`: timestamp_ntz, "
    "`id`: string, `clock`: int, `sum`: decimal(10,2), `fixed_sum`: decimal(12,3), `either`: bigint, `real`: double, "
    "`list`: array<date>, `map`: map<string, timestamp_ltz>, `inner`: struct<`x`: binary>>"
)
KIND = pa.struct(
    [
        ("yes", pa.bool_()),
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("b", pa.binary()),
        ("s", pa.string()),
        ("suit", pa.string()),
        ("other", pa.string()),
        ("four", pa.binary()),
        ("day", pa.date32()),
        ("ms", pa.timestamp("us", tz="UTC")),
        ("us", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("id", pa.string()),
        ("clock", pa.int32()),
        ("sum", pa.decimal128(10, 2)),
        ("fixed_sum", pa.decimal128(12, 3)),
        ("either", pa.int64()),
        ("real", pa.float64()),
        ("list", pa.list_(pa.field("element", pa.date32()))),
        ("map", pa.map_(pa.string(), pa.timestamp("us", tz="UTC"))),
        ("inner", pa.struct([("x", pa.binary())])),
    ]
)
moments = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001
instants = moments.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000, tzinfo=UTC))
maybe = st.none()
RECORDS = st.fixed_dictionaries(
    {
        "yes": st.booleans(),
        "i": st.integers(-(2**31), 2**31 - 1),
        "l": maybe | st.integers(-(2**63), 2**63 - 1),
        "f": st.floats(width=32, allow_nan=False),
        "d": st.floats(allow_nan=False),
        "b": maybe | st.binary(max_size=5),
        "s": st.text(max_size=5),
        "suit": st.sampled_from(SUIT["symbols"]),
        "other": maybe | st.sampled_from(SUIT["symbols"]),
        "four": st.binary(min_size=4, max_size=4),
        "day": st.dates(),
        "ms": instants,
        "us": maybe | moments.map(lambda at: at.replace(tzinfo=UTC)),
        "local": instants.map(lambda at: at.replace(tzinfo=None)),
        "id": st.uuids().map(str),
        "clock": st.integers(0, 86_399_999),
        "sum": st.decimals("-99999999.99", "99999999.99", places=2),
        "fixed_sum": maybe | st.decimals("-999999999.999", "999999999.999", places=3),
        "either": st.integers(-(2**63), 2**63 - 1),
        "real": maybe | st.floats(allow_nan=False),
        "list": st.lists(maybe | st.dates(), max_size=3),
        "map": st.dictionaries(st.text(max_size=2), instants, max_size=3),
        "inner": maybe | st.fixed_dictionaries({"x": maybe | st.binary(min_size=4, max_size=4)}),
    }
)


def plain(schema: Any) -> Any:
    """Uuids and times of day stay what they are beneath, as in the columns."""
    text = json.dumps(schema)
    return fastavro.parse_schema(
        json.loads(text.replace('"logicalType": "uuid"', '"x": 1').replace('"logicalType": "time-millis"', '"x": 1'))
    )


def written(schema: Any, record: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, plain(schema), record)
    return stream.getvalue()


def one_by_one(value: bytes | None) -> Any:
    """A record as fastavro reads it, with its own logical types; "bad" when it is none."""
    if value is None:
        return None
    stream = io.BytesIO(value)
    try:
        found = fastavro.schemaless_reader(stream, plain(EVERY), None)
        if stream.tell() != len(value):
            return "bad"
        pa.array([found], KIND)
    except Exception:  # noqa: BLE001
        return "bad"
    found["map"] = list(found["map"].items())
    return found


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_column_is_what_its_records_are_one_by_one(data: st.DataObject) -> None:
    """Damaged, cut and prolonged values stand between good ones; none shifts another, and good ones are equal."""
    values: list[bytes | None] = []
    for record in data.draw(st.lists(RECORDS, max_size=6)):
        values.append(written(EVERY, record))
        whole = values[-1]
        assert whole is not None
        at = data.draw(st.integers(0, len(whole)))
        more = data.draw(st.binary(max_size=3))
        values.append(
            data.draw(st.sampled_from([None, b"", whole[:at], whole + b"\0", whole[:at] + more + whole[at:]]))
        )
    parts = AvroDecoder(KIND, json.dumps(EVERY), None).decode(pa.array(values, pa.binary()))
    found = parts.to_array()
    found.validate(full=True)
    assert found.type.equals(KIND)
    expected = [one_by_one(value) for value in values]
    for row in range(0, len(values), 2):
        assert row not in parts.reasons
        assert found[row].as_py() == expected[row]
    # Between: fastavro's own dates end at year 9999, and there ours go on; what it reads must be the same.
    for row in range(1, len(values), 2):
        if expected[row] != "bad":
            assert repr(found[row].as_py()) == repr(pa.array([expected[row]], KIND)[0].as_py())


def test_types_are_those_of_from_avro() -> None:
    assert schema_to_node(EVERY).ddl == DDL


def test_times_beyond_pythons_are_read() -> None:
    schema = {"type": "long", "logicalType": "timestamp-millis"}
    value = written("long", 253_402_300_800_000)
    found = AvroDecoder(pa.timestamp("us", tz="UTC"), json.dumps(schema), None).decode(pa.array([value], pa.binary()))
    assert found.to_array().cast(pa.int64()).to_pylist() == [253_402_300_800_000_000]


@pytest.mark.parametrize(
    ("schema", "value", "kind", "reason"),
    [
        ("int", b"\xff\xff\xff\xff\xff\x01", pa.int32(), "int32|range|large"),
        ("string", b"\x04\xff\xff", pa.string(), "UnicodeDecodeError"),
        ("string", b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", pa.string(), "EOFError|Overflow|Memory"),
        ("bytes", b"\x03", pa.binary(), "EOFError"),
        (["null", "int"], b"\x08\x02", pa.int32(), "IndexError"),
        (SUIT, b"\x08", pa.string(), "IndexError"),
        ("int", b"", pa.int32(), "EOFError"),
        ("int", b"\x02\x02", pa.int32(), "1 bytes follow the datum"),
        (
            {"type": "array", "items": "int"},
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02",
            pa.list_(pa.field("element", pa.int32())),
            "EOFError",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 1},
            b"\x02\x64",
            pa.decimal128(2, 1),
            "more digits",
        ),
        ("bytes", b"\0" * (VALUE_BYTES + 1), pa.binary(), "are more than the"),
    ],
    ids=lambda one: str(one)[:40],
)
def test_a_damaged_value_says_why_and_leaves_its_neighbours(
    schema: Any, value: bytes, kind: pa.DataType, reason: str
) -> None:
    decoder = AvroDecoder(kind, json.dumps(schema), None)
    parts = decoder.decode(pa.array([None, value, None], pa.binary()))
    assert list(parts.reasons) == [1]
    with pytest.raises(ValueError, match=reason):
        raise ValueError(parts.reasons[1])
    assert parts.to_array().to_pylist() == [None, None, None]


def record(name: str, *fields: Any, **more: Any) -> dict[str, Any]:
    parts = [{"name": f"f{at}", "type": field} for at, field in enumerate(fields)]
    return {"type": "record", "name": name, "fields": parts, **more}


LETTER = {"type": "enum", "name": "Node", "symbols": ["A"]}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            record("Node", record("shop.Top", LETTER, record("Inner", ["null", "Node"], namespace=""))),
            "without a namespace",
        ),
        (record("Top", LETTER, record("shop.Inner", "Node")), "not defined"),
        ("nothing", "has a type that is not defined"),
        ("null", "is only ever null"),
        ({"type": "record", "name": "R", "fields": []}, "without fields"),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}, "a recursive schema"),
        ({"type": "array", "items": "null"}, r"value\[\] is only ever null"),
        (["string", "int"], "a union of more than null and one type"),
        ({"type": "fixed", "name": "F", "size": 0}, "a size of 1 or more"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 39}, "1 to 38 digits"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]},
            "one name",
        ),
    ],
    ids=lambda one: str(one)[:40],
)
def test_a_schema_that_can_not_be_is_refused(schema: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        schema_to_node(schema)


WIDE = {"type": "bytes", "logicalType": "decimal", "precision": 65, "scale": 2}
INVALID = [
    {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 127},
    {"type": "bytes", "logicalType": "decimal"},
    {"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 9},
]


@pytest.mark.parametrize("kind", [WIDE, *INVALID], ids=["65 digits", "scale above precision", "no precision", "fixed"])
def test_decimal_that_spark_does_not_have_is_left_out(kind: Any) -> None:
    """Connectors write them for numbers of a database without digits; the other fields are read."""
    schema = record("Top", "int", kind)
    value = b"\0\0\0\0\1" + written(without_logical_types(schema), {"f0": 7, "f1": b"\x05"})
    with raw_registry(http_answer({"schema": json.dumps(schema)})) as server:
        decoder = AvroDecoder(pa.struct([("f0", pa.int32())]), json.dumps(record("Top", "int")), None, server.url)
        parts = decoder.decode(pa.array([value], pa.binary()))
    assert parts.reasons == {} and parts.to_array().to_pylist() == [{"f0": 7}]


@pytest.mark.parametrize("kind", INVALID, ids=["scale above precision", "no precision", "fixed"])
def test_invalid_decimal_is_bytes(kind: Any) -> None:
    assert schema_to_node(kind).ddl == "binary"
    value = b"\x05" if kind["type"] == "fixed" else b"\x02\x05"
    parts = AvroDecoder(pa.binary(), json.dumps(kind), None).decode(pa.array([value], pa.binary()))
    assert parts.reasons == {} and parts.to_array().to_pylist() == [b"\x05"]


def test_decimal_of_another_scale_is_not_read_as_it_is() -> None:
    schema = record("Top", {"type": "bytes", "logicalType": "decimal", "precision": 65, "scale": 3})
    value = b"\0\0\0\0\1\x02\x05"
    with raw_registry(http_answer({"schema": json.dumps(schema)})) as server:
        reader = record("Top", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2})
        decoder = AvroDecoder(pa.struct([("f0", pa.decimal128(38, 2))]), json.dumps(reader), None, server.url)
        assert "written as decimal with scale 3" in decoder.decode(pa.array([value], pa.binary())).reasons[0]


def test_schema_with_keys_of_fastavros_own_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="fastavro's own"):
        parse_avro_schema(json.dumps(record("Top", "int", __fastavro_parsed=True, __named_schemas={})))


OLD = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "gone", "type": ["null", "string", "int"]}, {"name": "n", "type": "int"}],
}
NEW = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "n", "type": "long"}, {"name": "s", "type": ["null", "string"], "default": None}],
}
OTHER_TIME = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}],
}
NULLS = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}, {"name": "n", "type": "int"}],
}
ODD_DEFAULT = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "n", "type": "long"}, {"name": "f1", "type": "string", "default": None}],
}
TWICE = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "first", "type": {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}},
        {"name": "second", "type": "Inner"},
    ],
}
ASKED: list[int] = []


def schemas(number: int) -> str | None:
    """Return the answers of a schema registry."""
    ASKED.append(number)
    if number == 500:
        raise ConnectionError("the registry is down")
    known = {1: OLD, 2: NEW, 3: {"type": "no"}, 4: NULLS, 5: OTHER_TIME, 6: ODD_DEFAULT, 7: TWICE}
    return json.dumps(known[number]) if number in known else None


def framed(number: int, schema: Any, record: Any) -> bytes:
    return b"\0" + struct.pack(">I", number) + written(schema, record)


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(sys.modules, "registry_of_a_test", sys.modules[__name__])
    ASKED.clear()
    return "registry_of_a_test:schemas"


def test_values_are_read_by_the_schemas_that_wrote_them(function: str) -> None:
    kind = pa.struct([("n", pa.int64()), ("s", pa.string())])
    decoder = AvroDecoder(kind, json.dumps(NEW), function)
    values = [
        *(framed(1, OLD, {"gone": "x", "n": 1}), framed(2, NEW, {"n": 2, "s": "two"}), b"\1\0\0\0\2\2", b"\0\0"),
        *(framed(9, NEW, {"n": 2, "s": "two"}), framed(3, NEW, {"n": 2, "s": ""}), framed(1, OLD, {"gone": 5, "n": 3})),
        framed(4, NEW, {"n": 4, "s": ""}),
        None,
    ]
    parts = decoder.decode(pa.array(values, pa.binary()))
    assert [row and (row["n"], row["s"]) for row in parts.to_array().to_pylist()] == [
        *((1, None), (2, "two"), None, None, None, None, (3, None), None, None)
    ]
    assert sorted(parts.reasons) == [2, 3, 4, 5, 7]
    assert "the prefix is missing" in parts.reasons[3]
    assert parts.reasons[4] == "there is no schema 9"
    assert "the schema 3" in parts.reasons[5]
    assert "takes no bytes" in parts.reasons[7]
    assert ASKED == [1, 2, 9, 3, 4]


def test_a_time_that_was_written_in_another_unit_is_not_read_as_it_is(function: str) -> None:
    schema = json.dumps(OTHER_TIME).replace("micros", "millis")
    decoder = AvroDecoder(pa.struct([("at", pa.timestamp("us", tz="UTC"))]), schema, function)
    parts = decoder.decode(pa.array([framed(5, "long", 0)], pa.binary()))
    assert "was written as timestamp-micros and is read as timestamp-millis" in parts.reasons[0]


INNER = {
    "type": "record",
    "name": "Inner",
    "fields": [{"name": "raw", "type": "bytes", "default": "\u00fe"}, {"name": "sum", "type": "Sum"}],
}
SUM = {"type": "fixed", "name": "Sum", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 2}
LATER = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "raw", "type": "bytes", "default": "\u00ff\u0001"},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
            "default": "\u0001\u0000",
        },
        {"name": "sum", "type": SUM, "default": "\u0000\u0005"},
        {"name": "either", "type": ["null", "bytes"], "default": "\u00ff"},
        {"name": "inner", "type": INNER, "default": {"sum": "\u0000\u0007"}},
        {"name": "every", "type": {"type": "array", "items": "Inner"}, "default": [{"sum": "\u0000\u0001"}]},
        {"name": "by", "type": {"type": "map", "values": "bytes"}, "default": {"k": "\u00e9"}},
    ],
}


def test_fields_that_were_not_written_have_the_defaults_of_their_schema(function: str) -> None:
    """Bytes and decimals stand in a schema as text of JSON, and one default stands for many values."""
    inner = pa.struct([("raw", pa.binary()), ("sum", pa.decimal128(4, 2))])
    kind = pa.struct([
        ("n", pa.int64()), ("raw", pa.binary()), ("price", pa.decimal128(5, 2)), ("sum", pa.decimal128(4, 2)),
        ("either", pa.binary()), ("inner", inner), ("every", pa.list_(pa.field("element", inner))),
        ("by", pa.map_(pa.string(), pa.binary())),
    ])  # fmt: skip
    values = [framed(1, OLD, {"gone": None, "n": number}) for number in (1, 2)]
    parts = AvroDecoder(kind, json.dumps(LATER), function).decode(pa.array(values, pa.binary()))
    assert parts.reasons == {}
    rows = parts.to_array().to_pylist()
    assert [row.pop("n") for row in rows] == [1, 2]
    assert rows == 2 * [
        {
            "raw": b"\xff\x01",
            "price": Decimal("2.56"),
            "sum": Decimal("0.05"),
            "either": b"\xff",
            "inner": {"raw": b"\xfe", "sum": Decimal("0.07")},
            "every": [{"raw": b"\xfe", "sum": Decimal("0.01")}],
            "by": [("k", b"\xe9")],
        }
    ]


def test_type_that_one_schema_names_and_the_other_defines_in_a_union_is_read(function: str) -> None:
    """The reader has left a field out, and may have null in the other (fastavro #601)."""
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
    reader = record("R", ["null", inner])
    reader["fields"][0]["name"] = "second"
    kind = pa.struct([("second", pa.struct([("x", pa.int32())]))])
    decoder = AvroDecoder(kind, json.dumps(reader), function)
    parts = decoder.decode(pa.array([framed(7, TWICE, {"first": {"x": 1}, "second": {"x": 2}})], pa.binary()))
    assert parts.reasons == {} and parts.to_array().to_pylist() == [{"second": {"x": 2}}]


def test_default_that_is_no_value_of_its_field_matters_to_values_without_the_field_alone(function: str) -> None:
    """Registries have such schemas, of writers that no later library would let register them."""
    kind = pa.struct([("n", pa.int64()), ("f1", pa.string())])
    decoder = AvroDecoder(kind, json.dumps(ODD_DEFAULT), function)
    values = [framed(6, without_defaults(ODD_DEFAULT), {"n": 1, "f1": "x"}), framed(1, OLD, {"gone": None, "n": 2})]
    parts = decoder.decode(pa.array(values, pa.binary()))
    assert parts.to_array().to_pylist() == [{"n": 1, "f1": "x"}, None]
    assert "No default value for field f1" in parts.reasons[1] and sorted(parts.reasons) == [1]


def test_a_function_that_fails_ends_the_query(function: str) -> None:
    decoder = AvroDecoder(pa.int64(), '"long"', function)
    with pytest.raises(InvalidInputError, match="failed for the schema 500: ConnectionError: the registry is down"):
        decoder.decode(pa.array([framed(500, "long", 1)], pa.binary()))


def nested(kind: str, levels: int) -> str:
    """A schema in which arrays, maps or records lie within one another, as its text."""
    head = {"array": '{"type": "array", "items": ', "map": '{"type": "map", "values": '}
    if kind != "record":
        return head[kind] * levels + '"int"' + "}" * levels
    record = '{"type": "record", "name": "R%d", "fields": [{"name": "f", "type": '
    return "".join(record % number for number in range(levels)) + '"int"' + "}]}" * levels


@pytest.mark.parametrize("kind", ["array", "map", "record"])
@pytest.mark.parametrize("levels", [60, 200, 900, 100_000])
def test_schema_nested_too_deep_is_refused_and_one_just_below_is_read(kind: str, levels: int) -> None:
    deepest = NESTING_MAX // (3 if kind == "record" else 1)
    if levels == 60:
        text = nested(kind, deepest)
        assert schema_to_node(parse_avro_schema(text)).ddl.count("<") == deepest
        parse_for_fastavro(parse_avro_schema(text))
        levels = deepest + 1
    for name in ("valueSchema", "the schema 7"):
        with pytest.raises(InvalidInputError, match=f"{name} is nested deeper than {NESTING_MAX} levels"):
            parse_avro_schema(nested(kind, levels), name)


@pytest.mark.parametrize("name", ["no-colon", "no.such.module:f", "json:nothing", "json:__doc__", ":", "..:x"])
def test_a_function_that_can_not_be_found_is_named(name: str) -> None:
    with pytest.raises(InvalidInputError, match="valueWriterSchemas"):
        AvroDecoder(pa.int64(), '"long"', name)


def test_ddl_stands_for_the_schema_that_to_avro_writes() -> None:
    kind = spark.StructType(
        [
            spark.StructField("i8", spark.ByteType()),
            spark.StructField("must", spark.StringType(), nullable=False),
            spark.StructField("sum", spark.DecimalType(10, 2)),
            spark.StructField("at", spark.TimestampType()),
            spark.StructField("list", spark.ArrayType(spark.DateType())),
            spark.StructField(
                "inner", spark.StructType([spark.StructField("m", spark.MapType(spark.StringType(), spark.LongType()))])
            ),
        ]
    )
    schema = avro_schema_of(kind)
    record = {
        "i8": 5,
        "must": "x",
        "sum": Decimal("1.25"),
        "at": datetime(2024, 2, 29, tzinfo=UTC),
        "list": [date(2024, 2, 29), None],
        "inner": {"m": {"k": 1}},
    }
    empty = dict.fromkeys(record) | {"must": ""}
    values = [written(schema, record), written(schema, empty), written(schema, record | {"i8": 128})]
    parts = AvroDecoder(arrow_type(kind), json.dumps(schema), None).decode(pa.array(values, pa.binary()))
    first, second, _ = parts.to_array().to_pylist()
    assert first == record | {"inner": {"m": [("k", 1)]}}
    assert second == empty
    assert list(parts.reasons) == [2]
    assert timedelta(0) == first["at"].utcoffset()


def test_fastavro_that_is_not_installed_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    monkeypatch.setitem(sys.modules, "fastavro.schema", None)
    given = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "t", "valueFormat": "avro"}
    with pytest.raises(InvalidInputError, match=r"needs fastavro.*pip install 'kohort\[spark\]'"):
        parse_declared_values(parse_options({**given, "valueSchema": '"long"'}))
