"""Typed values in real Spark: batch reads and streams, every onBadRecord, errors at `load()`, beside `from_json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.spark.conftest import Stage
from tests.support.waiting import LAST_RESORT

from kohort.client.producer.producer import Producer

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default"), LAST_RESORT]
NOW = {"availableNow": True}
MIXED = [
    b'{"a":1,"b":"x"}',
    None,
    b'{\n "a": 2,\n "b": "y"\n}',
    b"",
    b'{"a":"no number"}',
    b'{"a":3',
    b'{"a":4}{"a":5}',
    b'{"a":6,"b":"z"}',
    b"\xff",
]
GOOD = {0: (1, "x"), 2: (2, "y"), 7: (6, "z")}
BAD = [4, 5, 6, 8]


def fill(stage: Stage, values: list[bytes | None], partition: int = 0) -> None:
    with Producer(stage.servers) as producer:
        for value in values:
            producer.send(stage.topic, value, partition=partition)


def read(spark: Any, stage: Stage, **options: str) -> Any:
    given = {"kafka.bootstrap.servers": stage.servers, "subscribe": stage.topic, "columns": "value,offset", **options}
    return spark.read.format("kohort").options(**given).load()


def test_good_values_are_columns_and_bad_ones_null(spark: Any, stage: Stage) -> None:
    fill(stage, MIXED)
    frame = read(spark, stage, valueFormat="json", valueSchema="a INT, b STRING", onBadRecord="null")
    assert frame.schema.simpleString() == "struct<value:struct<a:int,b:string>,offset:bigint>"
    rows = {row["offset"]: row["value"] for row in frame.collect()}
    assert len(rows) == len(MIXED)
    assert {offset: tuple(value) for offset, value in rows.items() if value is not None} == GOOD
    assert frame.where("value.a = 6").select("value.b").first()[0] == "z"


def test_bad_values_are_kept_in_a_column(spark: Any, stage: Stage) -> None:
    fill(stage, MIXED)
    frame = read(spark, stage, valueFormat="json", valueSchema="a INT, b STRING", onBadRecord="column")
    assert frame.columns == ["value", "offset", "badValue"]
    rows = sorted(frame.collect(), key=lambda row: row["offset"])
    kept = {row["offset"]: bytes(row["badValue"]) for row in rows if row["badValue"] is not None}
    assert kept == {offset: MIXED[offset] for offset in BAD}
    assert {row["offset"]: tuple(row["value"]) for row in rows if row["value"] is not None} == GOOD


def test_a_bad_value_ends_the_query_and_is_named(spark: Any, stage: Stage) -> None:
    fill(stage, MIXED)
    words = rf"{stage.topic}-0 at offset 4: .*value\.a is the string 'no number'.*onBadRecord=null"
    with pytest.raises(Exception, match=words):
        read(spark, stage, valueFormat="json", valueSchema="a INT, b STRING").collect()


def test_a_stream_has_the_same_values(run: Callable[..., Any], stage: Stage) -> None:
    fill(stage, MIXED)
    found: dict[int, Any] = {}

    def sink(frame: Any, _number: int) -> None:
        found.update({row["offset"]: row for row in frame.collect()})

    options = {"columns": "value,offset", "valueFormat": "json", "valueSchema": "a INT, b STRING"}
    stage.finished(run(sink, trigger=NOW, onBadRecord="column", **options))
    assert {o: tuple(row["value"]) for o, row in found.items() if row["value"] is not None} == GOOD
    assert sorted(offset for offset, row in found.items() if row["badValue"] is not None) == BAD
    assert sorted(found) == list(range(len(MIXED)))
    failing = run(sink, name="strict", trigger=NOW, **(options | {"group.id": f"{stage.group}-strict"}))
    with pytest.raises(Exception, match="at offset 4"):
        stage.finished(failing)


def test_strings_are_checked(spark: Any, stage: Stage) -> None:
    fill(stage, ["é".encode(), b"", None, b"\xc3", b"last"])
    frame = read(spark, stage, valueFormat="string", onBadRecord="column")
    assert dict(frame.dtypes)["value"] == "string"
    rows = sorted(frame.collect(), key=lambda row: row["offset"])
    assert [row["value"] for row in rows] == ["é", "", None, None, "last"]
    assert [row["badValue"] and bytes(row["badValue"]) for row in rows] == [None, None, None, b"\xc3", None]


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ("INT", b"5", 5),
        (" decimal(10, 2) ", b"1.255", "1.26"),
        ("ARRAY<INT>", b"[1, null]", "[1, None]"),
        ("map<string, array<int>>", b'{"k": [1]}', "{'k': [1]}"),
        ("struct<a: INT>", b'{"a": 1}', "Row(a=1)"),
        ("a: INT, b ARRAY<STRUCT<c: DATE>>", b'{"a": 1, "b": [{"c": null}]}', "Row(a=1, b=[Row(c=None)])"),
        (
            '{"type":"struct","fields":[{"name":"a b","type":"long","nullable":true,"metadata":{}}]}',
            b"{}",
            "Row(a b=None)",
        ),
        ("timestamp TIMESTAMP_NTZ", b'{"timestamp": "2024-02-29T01:02"}', "(2024, 2, 29, 1, 2)"),
    ],
    ids=str,
)
def test_a_schema_is_fields_or_one_type(spark: Any, stage: Stage, schema: str, value: bytes, expected: Any) -> None:
    fill(stage, [value])
    found = read(spark, stage, columns="value", valueFormat="json", valueSchema=schema).first()[0]
    assert found == expected or str(expected) in str(found)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"valueFormat": "json"}, "valueFormat=json needs valueSchema"),
        ({"valueFormat": "jsonl", "valueSchema": "a INT"}, "valueFormat must be one of string, json, avro"),
        ({"valueSchema": "a INT"}, "valueSchema needs valueFormat"),
        ({"onBadRecord": "null"}, "onBadRecord needs valueFormat"),
        ({"valueFormat": "string", "valueSchema": "STRING"}, "valueFormat=string takes no valueSchema"),
        ({"valueFormat": "json", "valueSchema": "a INTT"}, "INTT"),
        ({"valueFormat": "json", "valueSchema": "a INT,"}, "PARSE_SYNTAX_ERROR"),
        ({"valueFormat": "json", "valueSchema": '{"a": 1}'}, "not what StructType.json"),
        ({"valueFormat": "json", "valueSchema": "a INT", "valueTimeZone": "Mars"}, "no time zone 'Mars'"),
        ({"valueFormat": "json", "valueSchema": "a INT", "columns": "key"}, "valueFormat needs the column value"),
        ({"valueFormat": "json", "valueSchema": "a INT", "columns": "value,badValue"}, "unknown column 'badvalue'"),
        ({"valueFormat": "json", "valueSchema": "a INT", "onBadRecord": "drop"}, "must be one of fail, null, column"),
    ],
    ids=str,
)
def test_what_can_not_be_is_said_at_load(spark: Any, stage: Stage, options: dict[str, str], words: str) -> None:
    with pytest.raises(Exception, match=words):
        read(spark, stage, **options)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("a VARIANT", "value.a can't be variant"),
        ("a MAP<INT, INT>", "keys must be STRING"),
        ("a INT>, `b` struct<c INT", "valueSchema must be one type"),
    ],
    ids=str,
)
def test_a_type_that_values_can_not_have_is_said_before_anything_is_read(
    spark: Any, stage: Stage, schema: str, words: str
) -> None:
    with pytest.raises(Exception, match=words):
        read(spark, stage, valueFormat="json", valueSchema=schema).collect()


EVERY = (
    "i8 TINYINT, i16 SMALLINT, i32 INT, i64 BIGINT, f32 FLOAT, f64 DOUBLE, sum DECIMAL(12,3), yes BOOLEAN, text STRING, "
    "bytes BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, list ARRAY<INT>, map MAP<STRING, INT>, "
    "inner STRUCT<x: INT, y: ARRAY<STRUCT<z: STRING>>>"
)
FIELDS = {
    "i8": ["-128", "127", "null", "1.0", '"1"', "-129", "-0", "true", "[1]", "{}"],
    "i16": ["32767", "32768"],
    "i32": ["2147483647", "2147483648", "1e3", "01", "-", "+1", '""'],
    "i64": ["9223372036854775807", "9223372036854775808", "-9223372036854775808", "1" * 40],
    "f32": ["0.1", "16777217", "1e39", "1e-50", '"NaN"', "NaN", "-Infinity", '"1.5"', "7.038531e-26", '""'],
    "f64": ["1e400", "-1e-400", "9007199254740993", "-0.0", '"+INF"', '"-INF"', '"INF"', "1" * 40],
    "sum": [
        "1.2345",
        "-1.2345",
        '"2.50"',
        "999999999.9994",
        "999999999.9995",
        "1e8",
        "1e9",
        '"x"',
        '""',
        "NaN",
        "1e-9",
    ],
    "yes": ["true", "false", '"true"', "1", "null"],
    "text": [
        '"x"',
        "5",
        "true",
        "null",
        '{"b": 1,  "c":["é", null]}',
        "[1, 2]",
        '"\\ud83d\\ude00\\u0000\\n"',
        '"a\tb"',
    ],
    "bytes": ['"aGk="', '"aGk"', '"!"', '""', "5"],
    "day": [
        '"2024-02-29"',
        '"2024-2-9"',
        '"2023-02-29"',
        '"2024"',
        '"2024-02-29T01:02"',
        '" 2024-02-29 "',
        "19000",
        '""',
    ],
    "at": [
        *('"2024-02-29T01:02:03Z"', '"2024-02-29 01:02:03.5"', '"2024-02-29T01:02:03.123456789+02:00"', '"2024-02"'),
        *('"2024-07-01 12:00:00 Europe/Berlin"', "1709168523", "-1", "1.5", '"x"', '""', '"2024-02-29T24:00:00Z"'),
        *('"2024-2-9T1:2:3"', '"0001-01-01T00:00:00Z"', '"9999-12-31T23:59:59.999999Z"'),
        *('"2024-02-29T01:02:03 GMT+3"', '"1709168523"'),
    ],
    "local": ['"2024-02-29T01:02:03"', '"2024-02-29 01:02:03.5"', '"2024-02-29T01:02:03Z"', '"2024"', "5"],
    "list": ["[1, null]", "[]", '[1, "x"]', "null", "{}", "5", "[[1]]"],
    "map": ['{"a":1,"b":null}', "{}", '{"a":1,"a":2}', '{"a":"x"}', "[1]", "null"],
    "inner": [
        '{"x":1,"y":[{"z":"s"},null]}',
        "{}",
        '{"x":1,"x":2}',
        "null",
        "[]",
        '{"X":1}',
        '{"x":1,"z":[1,{"q":2}]}',
    ],
}
WHOLE = [
    "{}",
    "",
    " \n",
    "null",
    "[]",
    "5",
    "nul",
    '{"i32":1',
    '{"i32":1,}',
    "{i32:1}",
    '\n{\n"i32":\r\n1 }\n',
    '\ufeff{"i32":1}',
]
WHOLE += [
    '{"I32":1}',
    '{"i32":1,"more":{"d":[1,{"e":null}]}}',
    '{"i32":1,"i32":2}',
    '{"i32":1 "i16":2}',
    '{"\\u006932":7}',
]


def as_text(frame: Any, column: str) -> dict[int, tuple[str | None, str | None]]:
    """Every value by its record's number, as Spark's text, which Python's limits do not touch; bytes as base64."""
    rows = frame.selectExpr("i", f"CAST({column} AS STRING) AS text", f"base64({column}.bytes) AS bytes").collect()
    return {row["i"]: (row["text"], row["bytes"]) for row in rows}


def test_values_are_those_of_from_json(spark: Any, stage: Stage) -> None:
    """Whatever `from_json` takes whole is the same here, and what it finds malformed is bad here."""
    from pyspark.sql import functions

    texts = [f'{{"{name}":{text}}}' for name, several in FIELDS.items() for text in several] + WHOLE
    fill(stage, [text.encode() for text in texts])
    ours = read(spark, stage, valueFormat="json", valueSchema=EVERY, onBadRecord="column").selectExpr(
        "offset AS i", "*"
    )
    raw = read(spark, stage, columns="value,offset").selectExpr("offset AS i", "CAST(value AS STRING) AS v")
    theirs = raw.select(
        "i", functions.from_json("v", f"{EVERY}, damaged STRING", {"columnNameOfCorruptRecord": "damaged"}).alias("p")
    )
    malformed = {row["i"] for row in theirs.where("p.damaged IS NOT NULL").select("i").collect()}
    bad = {row["i"] for row in ours.where("badValue IS NOT NULL").select("i").collect()}
    assert sorted(texts[i] for i in bad ^ malformed) == []
    names = ", ".join(
        f"'{field.split()[0]}', p.{field.split()[0]}" for field in EVERY.split(", ") if field.split()[0] in FIELDS
    )
    same = theirs.selectExpr("i", f"IF(p IS NULL, NULL, named_struct({names})) AS p")
    expected = as_text(same, "p")
    found = as_text(ours, "value")
    assert {texts[i]: found[i] for i in found if i not in bad} == {
        texts[i]: expected[i] for i in expected if i not in bad
    }
    assert json.dumps(sorted(bad)) != "[]"
