"""`spark.read.format("kohort")`: every column, every way to bound the read, errors a user sees."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tests.spark.conftest import PARTITIONS, Stage
from tests.support.waiting import LAST_RESORT

from kohort.client.offsets import OffsetAndMetadata
from kohort.client.producer.producer import Producer

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default"), LAST_RESORT]
BORN = int(time.time() * 1000) - 3_600_000
"""When the records were made: lately, or retention takes them."""


def read(spark: Any, stage: Stage, **options: str) -> Any:
    given = {"kafka.bootstrap.servers": stage.servers, "subscribe": stage.topic, **options}
    return spark.read.format("kohort").options(**given).load()


def test_every_column_of_a_record_arrives(spark: Any, stage: Stage) -> None:
    with Producer(stage.servers) as producer:
        producer.send(stage.topic, b"v", b"k", 1, BORN, [("h", b"x"), ("n", None)])
        producer.send(stage.topic, None, None, 1, BORN + 1)
    frame = read(spark, stage, includeHeaders="true")
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    first, second = frame.selectExpr("*", "unix_millis(timestamp) AS ms").orderBy("offset").collect()
    assert (bytes(first["key"]), bytes(first["value"]), first["topic"]) == (b"k", b"v", stage.topic)
    assert (first["partition"], first["offset"], first["ms"], first["timestampType"]) == (1, 0, BORN, 0)
    assert [(h["key"], h["value"]) for h in first["headers"]] == [("h", b"x"), ("n", None)]
    assert (second["key"], second["value"], second["headers"], second["ms"]) == (None, None, None, BORN + 1)


def test_bounds_by_offset_by_time_and_by_the_group(spark: Any, stage: Stage) -> None:
    with Producer(stage.servers) as producer:
        for number in range(100):
            producer.send(stage.topic, b"%d" % number, partition=number % PARTITIONS, timestamp_ms=BORN + number)

    def values(**options: str) -> list[int]:
        return sorted(int(row[0]) for row in read(spark, stage, columns="value", **options).collect())

    assert values() == list(range(100))
    some = json.dumps({stage.topic: {"0": 20, "1": -2, "2": 25, "3": 24}})
    assert values(startingOffsets=some) == sorted([*range(80, 100, 4), *range(1, 100, 4), 99])
    assert values(startingTimestamp=str(BORN + 90), endingTimestamp=str(BORN + 95)) == [90, 91, 92, 93, 94]
    late = json.dumps({stage.topic: dict.fromkeys(map(str, range(PARTITIONS)), BORN + 1_000_000)})
    assert values(startingOffsetsByTimestamp=late, startingOffsetsByTimestampStrategy="latest") == []
    stage.admin.alter_consumer_group_offsets(stage.group, {stage.partitions[0]: OffsetAndMetadata(23)}).all()
    committed = {"group.id": stage.group, "kafka.auto.offset.reset": "latest", "startingOffsets": "committed"}
    assert values(**committed) == [92, 96]


def test_tasks_are_cut_as_the_options_say(spark: Any, stage: Stage) -> None:
    stage.produce(4000)
    assert read(spark, stage, columns="offset").rdd.getNumPartitions() == 1
    assert read(spark, stage, columns="offset", minPartitions="10").rdd.getNumPartitions() >= 10
    frame = read(spark, stage, columns="offset,partition", maxRecordsPerPartition="300")
    assert max(frame.rdd.glom().map(len).collect()) <= 300
    assert frame.distinct().count() == 4000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger"),
        ({"kafka.fetch.max.byte": "5"}, "did you mean kafka.fetch.max.bytes"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        ({"subscribe": "no-such-topic"}, "no topic no-such-topic"),
        ({"startingOffsets": "latest"}, "startingOffsets can't be latest in a batch read"),
        ({"startingOffsets": "committed"}, "only be committed with a group.id"),
        ({"startingTimestamp": "99999999999999"}, "no record at or after the timestamp"),
    ],
)
def test_errors_say_what_is_wrong_and_what_to_do(spark: Any, stage: Stage, options: dict[str, str], words: str) -> None:
    stage.produce(4)
    with pytest.raises(Exception, match=words):
        read(spark, stage, **options).collect()


def test_lost_records_end_the_read_or_are_passed_over(spark: Any, stage: Stage) -> None:
    stage.produce(40)
    stage.admin.delete_records(dict.fromkeys(stage.partitions, 4)).all()
    starts = json.dumps({stage.topic: dict.fromkeys(map(str, range(PARTITIONS)), 0)})
    with pytest.raises(Exception, match="failOnDataLoss"):
        read(spark, stage, startingOffsets=starts).collect()
    assert read(spark, stage, startingOffsets=starts, failOnDataLoss="false").count() == 24
