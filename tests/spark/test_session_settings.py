"""Settings of a Spark session that change types and time zones: reads and writes are the same under all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.spark.conftest import Stage
from tests.support.waiting import LAST_RESORT

from kohort import SchemaRegistry
from kohort.client.producer.producer import Producer
from kohort.schema_registry.embedded import EmbeddedSchemaRegistry

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default"), LAST_RESORT]
MOMENT_US = 1_700_000_000_123_456
TIMES = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        ],
    }
)


@pytest.fixture
def setting(spark: Any) -> Iterator[Callable[[str, str], None]]:
    """Sets a session's setting for one test."""
    before: dict[str, str | None] = {}

    def change(name: str, value: str) -> None:
        before.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value)

    yield change
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@pytest.fixture
def registry() -> Iterator[EmbeddedSchemaRegistry]:
    with EmbeddedSchemaRegistry() as running:
        yield running


def read(spark: Any, stage: Stage, **options: str) -> Any:
    given = {"kafka.bootstrap.servers": stage.servers, "subscribe": stage.topic, **options}
    return spark.read.format("kohort").options(**given).load()


def write(frame: Any, stage: Stage, **options: str) -> None:
    given = {"kafka.bootstrap.servers": stage.servers, "topic": stage.topic, **options}
    frame.write.format("kohort").options(**given).mode("append").save()


def test_times_keep_their_type_where_timestamp_means_another(
    spark: Any,
    stage: Stage,
    run: Callable[..., Any],
    registry: EmbeddedSchemaRegistry,
    setting: Callable[[str, str], None],
) -> None:
    """With spark.sql.timestampType=TIMESTAMP_NTZ the word `timestamp` in DDL means TIMESTAMP_NTZ."""
    setting("spark.sql.timestampType", "TIMESTAMP_NTZ")
    stage.produce(4)
    frame = read(spark, stage)
    assert frame.schema["timestamp"].dataType.typeName() == "timestamp"
    assert frame.where("timestamp > TIMESTAMP_LTZ'2020-01-01'").count() == 4
    rows: list[Any] = []
    stage.finished(
        run(lambda batch, _: rows.extend(batch.collect()), trigger={"availableNow": True}, columns="value,timestamp")
    )
    assert len(rows) == 4
    commits = spark.read.format("kohort").options(**{"kafka.bootstrap.servers": stage.servers, "table": "commits"})
    assert commits.load().where(f"group = '{stage.group}' AND committedAt IS NOT NULL").count() > 0
    serializer = SchemaRegistry(registry.url).serializer(f"{stage.topic}-value", TIMES)
    with Producer(stage.servers, value_serializer=serializer) as producer:
        producer.send(stage.topic, {"at": MOMENT_US, "local": MOMENT_US}, partition=0)
    typed = read(spark, stage, valueFormat="avro", schemaRegistryUrl=registry.url, onBadRecord="null")
    assert typed.schema["value"].dataType.simpleString() == "struct<at:timestamp,local:timestamp_ntz>"
    found = typed.where("value IS NOT NULL").selectExpr("unix_micros(value.at) AS at").collect()
    assert [row["at"] for row in found] == [MOMENT_US]


@pytest.mark.parametrize("form", ["json", "avro"])
@pytest.mark.parametrize("zone", ["GMT+08:00", "UTC-3"])
def test_times_are_written_in_a_zone_that_python_does_not_have(
    spark: Any,
    stage: Stage,
    registry: EmbeddedSchemaRegistry,
    setting: Callable[[str, str], None],
    form: str,
    zone: str,
) -> None:
    setting("spark.sql.session.timeZone", zone)
    frame = spark.range(3).selectExpr(
        f"named_struct('id', id, 'at', timestamp_micros({MOMENT_US})) AS value",
        f"IF(id = 1, NULL, timestamp_micros({MOMENT_US})) AS timestamp",
    )
    given = {"valueFormat": form, "schemaRegistryUrl": registry.url}
    write(frame, stage, **given)
    typed = read(spark, stage, **given, valueSchema="id BIGINT, at TIMESTAMP")
    found = typed.selectExpr("value.id", "unix_micros(value.at)", "unix_millis(timestamp)").collect()
    assert {(row[0], row[1]) for row in found} == {(number, MOMENT_US) for number in range(3)}
    assert sorted(row[2] == MOMENT_US // 1000 for row in found) == [False, True, True]
    early = spark.sql("SELECT 'a' AS value, timestamp_micros(-1) AS timestamp")
    with pytest.raises(Exception, match=r"1969-12-31 23:59:59.*is before 1970"):
        write(early, stage)


def test_columns_of_large_strings_are_written_and_read(
    spark: Any, stage: Stage, run: Callable[..., Any], setting: Callable[[str, str], None]
) -> None:
    setting("spark.sql.execution.arrow.useLargeVarTypes", "true")
    frame = spark.range(20).selectExpr(
        "CAST(id AS STRING) AS key",
        "CAST(id AS STRING) AS value",
        f"'{stage.topic}' AS topic",
        "array(struct('h' AS key, CAST('x' AS BINARY) AS value)) AS headers",
        "CAST(id % 4 AS INT) AS partition",
    )
    frame.write.format("kohort").options(**{"kafka.bootstrap.servers": stage.servers}).mode("append").save()
    rows = read(spark, stage, includeHeaders="true", valueFormat="string").collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(20))
    assert all(row["headers"][0]["value"] == b"x" and row["partition"] == int(row["value"]) % 4 for row in rows)
    found: list[Any] = []
    stage.finished(run(lambda batch, _: found.extend(batch.collect()), trigger={"availableNow": True}))
    assert sorted(int(row["value"]) for row in found) == list(range(20))
