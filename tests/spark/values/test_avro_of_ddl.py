"""Avro values of other writers, read as a type that was declared in DDL: by the names of fields alone."""

from __future__ import annotations

import io
import json
import struct
import sys
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from kohort.spark.options import parse_options
from kohort.spark.values.avro_records import AvroDecoder
from kohort.spark.values.declared import avro_schema_of, parse_declared_values
from kohort.spark.values.types import arrow_type

PAYMENT = {
    "type": "record",
    "name": "Payment",
    "namespace": "shop.events",
    "fields": [
        {"name": "id", "type": "int"},
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        },
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["CARD", "CASH"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "by", "type": {"type": "record", "name": "Person", "fields": [{"name": "name", "type": "string"}]}},
        {"name": "others", "type": {"type": "array", "items": ["null", "Person"]}},
        {"name": "shares", "type": {"type": "map", "values": "Person"}},
        {"name": "not_read", "type": ["null", "string", "int"]},
    ],
}
PERSON = spark.StructType([spark.StructField("name", spark.StringType())])
FIELDS: dict[str, spark.DataType] = {
    "id": spark.LongType(),
    "amount": spark.DecimalType(10, 2),
    "at": spark.TimestampType(),
    "kind": spark.StringType(),
    "hash": spark.BinaryType(),
    "by": PERSON,
    "others": spark.ArrayType(PERSON),
    "shares": spark.MapType(spark.StringType(), PERSON),
    "later": PERSON,
}
VALUE: dict[str, Any] = {
    "id": 7,
    "amount": b"\x04\xe2",
    "at": 1_700_000_000_123,
    "kind": "CASH",
    "hash": b"\x00\xff",
    "by": {"name": "Ada"},
    "others": [None, {"name": "Bob"}],
    "shares": {"x": {"name": "Cy"}},
    "not_read": 5,
}


def schemas(number: int) -> str:
    """The schemas of two writers."""
    return json.dumps([PAYMENT, "long"][number])


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(sys.modules, "writers_of_a_test", sys.modules[__name__])
    return "writers_of_a_test:schemas"


def framed(number: int, schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return b"\0" + struct.pack(">I", number) + stream.getvalue()


def plain(schema: Any) -> Any:
    """The schema without logical types: the values above are the numbers and bytes beneath them."""
    text = json.dumps(schema)
    for word in ("timestamp-millis", "decimal"):
        text = text.replace(f'"logicalType": "{word}"', '"was": ""')
    return json.loads(text)


def decoder(kind: spark.DataType, function: str) -> AvroDecoder:
    return AvroDecoder(arrow_type(kind), json.dumps(avro_schema_of(kind)), function, of_ddl=True)


def test_fields_of_another_writer_are_read_by_their_names(function: str) -> None:
    kind = spark.StructType([spark.StructField(name, part) for name, part in FIELDS.items()])
    parts = decoder(kind, function).decode(pa.array([framed(0, plain(PAYMENT), VALUE), None], pa.binary()))
    assert parts.reasons == {}
    row, nothing = parts.to_array().to_pylist()
    assert nothing is None and row.pop("at").timestamp() == 1_700_000_000.123
    assert row == {
        "id": 7,
        "amount": Decimal("12.50"),
        "kind": "CASH",
        "hash": b"\x00\xff",
        "by": {"name": "Ada"},
        "others": [None, {"name": "Bob"}],
        "shares": [("x", {"name": "Cy"})],
        "later": None,
    }


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("id", spark.StringType(), "Schema mismatch"),
        ("amount", spark.DecimalType(10, 3), "written as decimal with scale 2"),
        ("amount", spark.DecimalType(3, 2), "more digits than its precision"),
        ("by", spark.StringType(), "Schema mismatch"),
        ("not_read", spark.StringType(), "schema mismatch"),
    ],
    ids=["number as text", "scale", "digits", "record as text", "two types"],
)
def test_field_of_another_type_makes_the_value_bad(function: str, name: str, kind: spark.DataType, reason: str) -> None:
    made = decoder(spark.StructType([spark.StructField(name, kind)]), function)
    parts = made.decode(pa.array([framed(0, plain(PAYMENT), VALUE)], pa.binary()))
    assert reason in parts.reasons[0] and parts.to_array().to_pylist() == [None]


def test_field_that_may_not_be_null_must_be_written(function: str) -> None:
    kind = spark.StructType([spark.StructField("later", spark.IntegerType(), nullable=False)])
    parts = decoder(kind, function).decode(pa.array([framed(0, plain(PAYMENT), VALUE)], pa.binary()))
    assert "No default value for field later" in parts.reasons[0]


def test_value_that_is_no_record_is_read(function: str) -> None:
    made = decoder(spark.TimestampType(), function)
    parts = made.decode(pa.array([framed(1, "long", 5)], pa.binary()))
    assert parts.to_array().cast(pa.int64()).to_pylist() == [5]


@pytest.mark.parametrize(
    ("schema", "of_ddl"),
    [("id BIGINT", True), ('{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}', False)],
    ids=["ddl", "avro"],
)
def test_ddl_is_known_as_such(schema: str, of_ddl: bool) -> None:
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "valueFormat": "avro", "valueSchema": schema}
    value = spark.StructType([spark.StructField("id", spark.LongType())])
    kind = spark.StructType([spark.StructField("value", value)])
    assert parse_declared_values(parse_options(given)).values(kind, ("value",)).of_ddl == of_ddl
