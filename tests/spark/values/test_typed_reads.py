"""Typed values in real Spark: batch reads and streams, every onBadRecord, errors at `load()`, beside `from_json`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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
    columns = "value,offset,badValue,badReason"
    frame = read(spark, stage, valueFormat="json", valueSchema="a INT, b STRING", onBadRecord="column", columns=columns)
    assert frame.columns == columns.split(",")
    reasons = {row["offset"]: row["badReason"] for row in frame.where("badReason IS NOT NULL").collect()}
    assert "value.a is the string 'no number'" in reasons[4]
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
    "i8 TINYINT, i16 SMALLINT, i32 INT, i64 BIGINT, f32 FLOAT, f64 DOUBLE, sum DECIMAL(12,3), yes BOOLEAN, "
    "text STRING, bytes BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, list ARRAY<INT>, map MAP<STRING, INT>, "
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
    "map": ['{"a":1,"b":null}', "{}", '{"a":"x"}', "[1]", "null"],
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


ON_PURPOSE: dict[str, str | None] = {
    '{"i8":128}': None,
    '{"i32":"x","i16":5}': None,
    '{"i32":1} x': None,
    '{"i32":1}{"i32":2}': None,
    "{'i32':1}": None,
    '{"text":"\\ud800"}': None,
    '{"sum":"1,000"}': None,
    '{"at":"12:30:00"}': None,
    '{"at":"10000-01-01T00:00:00Z"}': None,
    '{"day":"20240229"}': None,
    '{"at":9223372036855}': None,
    '{"at":"2024-02-29T01:02Z"}': "2024-02-29 01:02:00",
    '{"at":"2024-02-29T01:02:03 PST"}': None,
    '{"f64":-INF}': None,
    '{"bytes":"aGk=aGk="}': None,
    '{"text":1.50}': "1.50",
    '{"text":{"b":1e3}}': '{"b":1e3}',
    '{"map":{"a":1,"a":2}}': "{a -> 2}",
}
"""Records that are read otherwise than `from_json` does, with what they give in the field, None for bad ones;
docs/spark.md says why."""


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


def test_what_is_otherwise_than_from_json_is_so_on_purpose(spark: Any, stage: Stage) -> None:
    from pyspark.sql import functions

    texts = list(ON_PURPOSE)
    fill(stage, [text.encode() for text in texts])
    ours = read(spark, stage, valueFormat="json", valueSchema=EVERY, onBadRecord="column").selectExpr(
        "offset AS i", "*"
    )
    raw = read(spark, stage, columns="value,offset").selectExpr("offset AS i", "CAST(value AS STRING) AS v")
    found, theirs = as_text(ours, "value"), as_text(raw.select("i", functions.from_json("v", EVERY).alias("p")), "p")
    fields = [field.split()[0] for field in EVERY.split(", ") if field.split()[0] in FIELDS]
    expected = {}
    for text, given in ON_PURPOSE.items():
        shown = ["null"] * len(fields)
        shown[fields.index(text.split('"')[1] if '"' in text else "i32")] = str(given)
        expected[text] = None if given is None else "{" + ", ".join(shown) + "}"
    assert {text: found[i][0] for i, text in enumerate(texts)} == expected
    assert [text for i, text in enumerate(texts) if found[i] == theirs[i]] == []


REGISTRY = """
import json

FIELDS = [{"name": "n", "type": "int"}]


def schema_of(number):
    return json.dumps({"type": "record", "name": "R", "fields": FIELDS}) if number == 7 else None
"""


def test_avro_by_a_function_for_the_writers_schema(
    spark: Any, run: Callable[..., Any], stage: Stage, tmp_path: Path
) -> None:
    module = tmp_path / f"registry_{stage.topic.replace('-', '_')}.py"
    module.write_text(REGISTRY)
    spark.sparkContext.addPyFile(str(module))
    fill(stage, [b"\0\0\0\0\7\x0a", b"\0\0\0\0\x08\x0a", None, b"\0\0\0\0\7\x0c"])
    schema = (
        '{"type":"record","name":"R","fields":[{"name":"n","type":"long"},{"name":"s","type":"string","default":"-"}]}'
    )
    options = {"valueFormat": "avro", "valueSchema": schema, "valueWriterSchemas": f"{module.stem}:schema_of"}
    frame = read(spark, stage, onBadRecord="column", **options)
    assert frame.schema["value"].simpleString() == "value:struct<n:bigint,s:string>"
    rows = sorted(frame.collect(), key=lambda row: row["offset"])
    assert [row["value"] and tuple(row["value"]) for row in rows] == [(5, "-"), None, None, (6, "-")]
    assert [row["badValue"] is not None for row in rows] == [False, True, False, False]
    found: dict[int, Any] = {}

    def sink(batch: Any, _number: int) -> None:
        found.update({row["offset"]: row["value"] for row in batch.collect()})

    stage.finished(run(sink, trigger=NOW, onBadRecord="null", columns="value,offset", **options))
    assert [found[offset] and tuple(found[offset]) for offset in range(4)] == [(5, "-"), None, None, (6, "-")]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "valueFormat=avro needs valueSchema"),
        ({"valueSchema": '{"type":"recrd"}'}, "has a type that is not defined"),
        ({"valueSchema": "{"}, "valueSchema is no Avro schema"),
        ({"valueSchema": '"long"', "valueWriterSchemas": "nothing.here:f"}, "must be module:function"),
    ],
    ids=str,
)
def test_what_can_not_be_avro_is_said_at_load(spark: Any, stage: Stage, options: dict[str, str], words: str) -> None:
    with pytest.raises(Exception, match=words):
        read(spark, stage, valueFormat="avro", **options)


def test_avro_by_ddl_is_what_to_avro_writes(spark: Any, stage: Stage) -> None:
    fill(stage, [b"\0\x0a\0\4hi", b"\2\2"])
    rows = read(spark, stage, valueFormat="avro", valueSchema="a INT, b STRING").orderBy("offset").collect()
    assert [tuple(row["value"]) for row in rows] == [(5, "hi"), (None, None)]
