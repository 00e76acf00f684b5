"""The progress of kohort's queries has the form that Spark's own Kafka source gives it."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.listener import StreamingQueryProgress

from kohort.ids import TopicPartition
from kohort.spark import kafka_progress
from kohort.spark.kafka_progress import progress_in_kafka_form, source_progress_in_kafka_form
from kohort.spark.source.batch_offset import BatchOffset, OffsetRange
from kohort.spark.source.progress import MemberProgress
from kohort.spark.source.query import lag_report

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
SPARKS = {
    "description": "KafkaV2[Subscribe[t]]",
    "startOffset": None,
    "endOffset": {"t": {"0": 3}},
    "latestOffset": {"t": {"0": 3}},
    "metrics": {"avgOffsetsBehindLatest": "0.0"},
}


def batch(*spans: tuple[TopicPartition, int, int]) -> dict[str, Any]:
    """A batch's offset as the checkpoint and the JVM's progress have it."""
    return BatchOffset("q", 1, spans={tp: OffsetRange(start, end) for tp, start, end in spans}).to_json()


def source(start: Any, end: Any, ends: dict[TopicPartition, int] | None, group: str | None = "g") -> dict[str, Any]:
    """A source's progress as the JVM reports it; `ends` are the ends of the partitions, None: no report yet."""
    member = MemberProgress("m", 2, None)
    report = None if ends is None else lag_report({ONE: 2, TWO: 4}, ends, 3, group, member, "SubscribePattern[t$]")
    return {"description": "kohort", "startOffset": start, "endOffset": end, "latestOffset": report, "numInputRows": 4}


def test_offsets_are_by_topic_and_partition_and_lag_is_a_metric() -> None:
    found = source_progress_in_kafka_form(
        source(batch((ONE, 0, 1), (TWO, 0, 4)), batch((ONE, 1, 2), (TWO, 4, 4)), {ONE: 7, TWO: 4})
    )
    assert found is not None
    assert found["startOffset"] == {"t": {"0": 1, "1": 4}} and found["endOffset"] == {"t": {"0": 2, "1": 4}}
    assert found["latestOffset"] == {"t": {"0": 7, "1": 4}}
    assert found["metrics"] == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "5",
        "avgOffsetsBehindLatest": "2.5",
        "group": "g",
        "member": "m",
        "generation": "3",
        "rebalances": "2",
        "lag": "5",
    }


def test_description_is_that_of_sparks_own_source() -> None:
    """A public listener commits the offsets of those sources whose description begins with "KafkaV2"."""
    found = source_progress_in_kafka_form(source(None, batch((ONE, 0, 2)), {ONE: 7}))
    assert found is not None and found["description"] == "KafkaV2[SubscribePattern[t$]]"
    without_report = source_progress_in_kafka_form(source(None, batch((ONE, 0, 2)), None))
    assert without_report is not None and without_report["description"] == "KafkaV2[Subscribe[t]]"


def test_offsets_that_are_text_stay_text() -> None:
    """Spark Connect's `lastProgress` has them so, and listeners there have objects."""
    objects = source(None, batch((ONE, 0, 2)), {ONE: 7})
    text = {name: json.dumps(value) for name, value in objects.items() if name in ("endOffset", "latestOffset")}
    found, same = source_progress_in_kafka_form(objects | text), source_progress_in_kafka_form(objects)
    assert found is not None and same is not None
    assert found["endOffset"] == '{"t":{"0":2}}' and found["latestOffset"] == '{"t":{"0":7}}'
    assert found["startOffset"] is None and found["metrics"] == same["metrics"]


@pytest.mark.parametrize("start", [None, batch()], ids=["no offset", "the query's identity alone"])
def test_first_batch_has_no_start(start: Any) -> None:
    found = source_progress_in_kafka_form(source(start, batch((ONE, 0, 2)), {ONE: 2}, group=None))
    assert found is not None and found["startOffset"] is None and "group" not in found["metrics"]


def test_batch_after_one_of_sparks_own_source_starts_at_its_end() -> None:
    found = source_progress_in_kafka_form(source({"t": {"0": 5}}, batch((ONE, 5, 6)), None))
    assert found is not None and found["startOffset"] == {"t": {"0": 5}}
    assert found["latestOffset"] is None and "metrics" not in found


def test_partition_that_the_batch_does_not_have_is_not_behind() -> None:
    found = source_progress_in_kafka_form(source(None, batch((ONE, 0, 2)), {ONE: 2, TWO: 9}))
    assert found is not None and found["metrics"]["maxOffsetsBehindLatest"] == "0"


@pytest.mark.parametrize(
    "other",
    [
        SPARKS,
        SPARKS | {"endOffset": 7},
        SPARKS | {"endOffset": None},
        SPARKS | {"endOffset": {"kohort": {"0": 1}}},
        SPARKS | {"endOffset": "1-2"},
    ],
    ids=["kafka", "rate", "none", "a topic of that name", "a socket"],
)
def test_progress_of_other_sources_is_left_alone(other: dict[str, Any]) -> None:
    assert source_progress_in_kafka_form(other) is None and progress_in_kafka_form({"sources": [other]}) is None


def test_progress_of_connect_and_of_a_query_is_made_of_the_same_json() -> None:
    kafka_progress.wrap_progress()
    report = {
        "id": "9fd7cd39-b62b-4e3a-8669-f0753c0b61ca",
        "runId": "331c3c4c-3b5e-42ea-b4ab-fb3d30f923c1",
        "name": None,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "batchId": 0,
        "batchDuration": 1,
        "numInputRows": 4,
        "stateOperators": [],
        "sources": [
            source(None, batch((ONE, 0, 2)), {ONE: 3}) | {"inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0},
            SPARKS | {"numInputRows": 0, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0},
        ],
        "sink": {"description": "noop", "numOutputRows": 4},
    }
    progress = StreamingQueryProgress.fromJson(report)
    assert progress.sources[0].description == progress["sources"][0]["description"] == "KafkaV2[SubscribePattern[t$]]"
    assert json.loads(progress.sources[0].endOffset) == {"t": {"0": 2}}
    assert json.loads(progress["sources"][0]["startOffset"]) is None
    assert progress.sources[0].metrics["avgOffsetsBehindLatest"] == "1.0"
    for text in (progress.json, progress.prettyJson):
        assert json.loads(text)["sources"][0]["latestOffset"] == {"t": {"0": 3}}
        assert json.loads(text)["sources"][1] == report["sources"][1]
