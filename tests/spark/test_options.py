"""Options: what is refused, and with which words."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.spark.options import numbers_of_json, parse_options, partitions_of_json
from kohort.spark.schema import arrow_schema, columns_of, spark_schema
from kohort.spark.source import KohortDataSource

LEAST = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "flights"}


def test_names_are_matched_without_case_and_kafka_settings_are_kept() -> None:
    options = parse_options(
        {
            **LEAST,
            "MAXOFFSETSPERTRIGGER": "10",
            "kafka.Group.Id": "g",
            "kafka.fetch.max.bytes": "1000",
        },
        streaming=True,
    )
    assert (options.subscribe, options.max_offsets_per_trigger, options.group_id) == (
        ("flights",),
        10,
        "g",
    )
    assert options.kafka == {"bootstrap.servers": "127.0.0.1:9092", "fetch.max.bytes": "1000"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger"),
        ({"bootstrap.servers": "x"}, "did you mean kafka.bootstrap.servers"),
        ({"kafka.bootstrap.servers": " "}, "kafka.bootstrap.servers is missing"),
        ({"subscribe": ""}, "none is given"),
        ({"assign": '{"a":[0]}'}, "subscribe and assign are given"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be at least 1 offsets"),
        ({"plannedRanges": "some"}, "plannedRanges must be one of owned, all, none"),
        ({"endingOffsets": "latest"}, "endingOffsets belongs to a batch read"),
        (
            {"region": "flights"},
            "can't join a region by the option region: queries of a region are started by SparkRegion",
        ),
        ({"regionSeat": "5e"}, "a source in a region is a member of a group: name it by group.id"),
        (
            {"regionSeat": "5e", "group.id": "g", "plannedRanges": "all"},
            "plannedRanges has no place in a region: a reg",
        ),
        ({"regionSeat": "5e", "group.id": "g", "onRevocationTimeout": "fail"}, "onRevocationTimeout has no place in a"),
        (
            {"regionSeat": "5e", "group.id": "g", "subscribe": "", "assign": '{"a":[0]}'},
            "assign has no place in a region: .* subscribe instead",
        ),
        ({"subscribe": "", "subscribePattern": "fl("}, "subscribePattern is no regular expression: missing ., unt"),
    ],
)
def test_what_can_not_be_is_refused_with_the_way_out(more: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        parse_options({**LEAST, **more}, streaming=True)


def test_limits_of_a_stream_are_refused_in_a_batch_read() -> None:
    with pytest.raises(InvalidInputError, match="minOffsetsPerTrigger belongs to a streaming read"):
        parse_options({**LEAST, "minOffsetsPerTrigger": "5"}, streaming=False)
    with pytest.raises(InvalidInputError, match="regionSeat belongs to a streaming read"):
        parse_options({**LEAST, "regionSeat": "5e", "group.id": "g"}, streaming=False)


def test_in_a_region_limits_count_and_a_start_is_taken_without_effect() -> None:
    more = {"REGIONSEAT": "5e", "group.id": "g", "maxOffsetsPerTrigger": "10", "startingOffsets": "earliest"}
    options = parse_options({**LEAST, **more}, streaming=True)
    assert (options.region_seat, options.max_offsets_per_trigger) == ("5e", 10)


def test_json_forms() -> None:
    assert partitions_of_json("assign", '{"b":[1,0],"a":[2]}') == (
        TopicPartition("a", 2),
        TopicPartition("b", 0),
        TopicPartition("b", 1),
    )
    assert numbers_of_json("startingOffsets", '{"a":{"0":5,"1":-2}}') == {
        TopicPartition("a", 0): 5,
        TopicPartition("a", 1): -2,
    }
    for bad in ("", "[]", '{"a":5}', '{"a":{"x":1}}'):
        with pytest.raises(InvalidInputError, match="startingOffsets must be JSON"):
            numbers_of_json("startingOffsets", bad)


def test_columns_come_in_the_order_asked_for() -> None:
    assert columns_of(parse_options(LEAST))[-1] == "timestampType"
    assert columns_of(parse_options({**LEAST, "includeHeaders": "true"}))[-1] == "headers"
    names = columns_of(parse_options({**LEAST, "columns": "VALUE, rangestart"}))
    assert names == ("value", "rangeStart")
    assert spark_schema(names) == "`value` binary, `rangeStart` bigint"
    assert arrow_schema(names).names == ["value", "rangeStart"]
    with pytest.raises(InvalidInputError, match="unknown column"):
        columns_of(parse_options({**LEAST, "columns": "values"}))


def test_what_tunes_sparks_own_source_is_taken_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    tuned = {
        "kafkaConsumer.pollTimeoutMs": "512",
        "fetchoffset.numretries": "3",
        "fetchOffset.retryIntervalMs": "10",
        "groupIdPrefix": "spark",
        "kafka.max.poll.records": "20000",
        "kafka.receive.buffer.bytes": "1048576",
    }
    source = KohortDataSource({**LEAST, **tuned})
    source.schema()
    source.reader(from_arrow_schema(arrow_schema(columns_of(parse_options({**LEAST, **tuned})))))
    (text,) = [one.getMessage() for one in caplog.records]
    assert "kafkaConsumer.pollTimeoutMs, fetchOffset.numRetries, fetchOffset.retryIntervalMs, groupIdPrefix" in text
    assert "kafka.max.poll.records: options" in text and "receive.buffer" not in text
    KohortDataSource(LEAST).schema()
    assert len(caplog.records) == 1
    with pytest.raises(InvalidInputError, match=r"unknown option fetchOffset\.retries; did you mean"):
        parse_options({**LEAST, "fetchOffset.retries": "3"})
