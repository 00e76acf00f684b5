"""The sink's options and columns: what is refused, and with which words."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kohort.client.producer.core import producer_config
from kohort.errors import InvalidInputError
from kohort.spark.options import parse_options
from kohort.spark.sink_options import KafkaSinkOptions, parse_sink_options
from kohort.spark.tasks.write import TaskWriter

LEAST = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def columns(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def options(**more: str) -> KafkaSinkOptions:
    return parse_sink_options({**LEAST, **more})


def test_names_are_matched_without_case_and_sparks_own_are_passed_over() -> None:
    found = parse_sink_options(
        {**LEAST, "TOPIC": "flights", "kafka.Linger.Ms": "7", "checkpointLocation": "x", "path": "y"}
    )
    assert (found.topic, found.delivery) == ("flights", "at-least-once")
    assert found.producer_settings() == {"client.id": "kohort-spark", "linger.ms": "7"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"topics": "x"}, "did you mean topic"),
        ({"subscribe": "x", "strictOptions": "true"}, "would have no effect: subscribe .Spark's Kafka sink ignores"),
        ({"kafka.bootstrap.servers": " "}, "kafka.bootstrap.servers is missing"),
        ({"topic": " "}, "the option topic is empty"),
        ({"topic": ""}, "the option topic is empty"),
        ({"delivery": "exactly-once"}, "not there yet"),
        ({"delivery": "at-most-once"}, "at-least-once"),
        ({"transactionalIdPrefix": "x"}, "not there yet"),
        ({"kafka.transactional.id": "x"}, "delivery=exactly-once"),
        ({"kafka.value.serializer": "x"}, "cast them to string or binary"),
        ({"kafka.partitioner": "x"}, "a column `partition`"),
        ({"kafka.partitioner.class": "x.Y"}, "a column `partition`"),
        ({"kafka.partitioner.ignore.keys": "true"}, "leave the column `key` out"),
        ({"kafka.connections.max.idle.ms": "0"}, "at least 1000 ms, or -1 for never"),
        ({"kafka.interceptor.classes": "x.Y"}, "interceptors are classes of Java's"),
        ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, "^kafka.enable.idempotence needs kafka.acks=all"),
        ({"kafka.request.timeout.ms": "9", "kafka.delivery.timeout.ms": "8"}, "^kafka.delivery.timeout.ms is at least"),
        ({"kafka.lingerms": "1"}, "linger.ms"),
    ],
)
def test_what_can_not_be_is_refused_with_what_to_do(more: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        parse_sink_options({**LEAST, **more})


def test_acks_of_0_are_those_of_the_leader_because_a_task_has_to_know_that_it_is_done() -> None:
    found = parse_sink_options({**LEAST, "kafka.acks": " 0"})
    assert found.producer_settings()["acks"] == "1"
    assert found.ignored == ["kafka.acks=0 (a task has to know that its records have arrived: it is as kafka.acks=1)"]
    with pytest.raises(InvalidInputError, match="would have no effect: kafka.acks=0"):
        parse_sink_options({**LEAST, "kafka.acks": "0", "strictOptions": "true"})


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (columns(Value=StringType()), "needs a column `value`; there are Value"),
        (columns(value=StringType()), "the option topic, or a column `topic`"),
        (columns(value=LongType(), topic=StringType()), "`value` is of type bigint.*to_json"),
        (columns(value=StringType(), topic=BinaryType()), "`topic` is of type binary; it must be string"),
        (columns(value=StringType(), topic=StringType(), partition=LongType()), "`partition`.*must be int"),
        (columns(value=StringType(), topic=StringType(), headers=ArrayType(StringType())), "`headers`.*headers are"),
    ],
)
def test_columns_that_can_not_be_sent_are_refused_before_anything_is_written(schema: StructType, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        TaskWriter.from_options(options(), schema)


@pytest.mark.parametrize("name", ["value", "more"])
def test_two_columns_of_one_name_are_refused_before_anything_is_written(name: str) -> None:
    """Spark would fail in a task, after others have written."""
    schema = StructType([*columns(value=StringType(), more=LongType()), *columns(**{name: StringType()})])
    with pytest.raises(InvalidInputError, match=f"several columns are named {name}.*select one of each"):
        TaskWriter.from_options(options(topic="flights"), schema)


def test_columns_that_are_not_a_records_are_passed_over() -> None:
    schema = columns(
        key=BinaryType(),
        value=StringType(),
        partition=IntegerType(),
        offset=LongType(),
        timestamp=TimestampType(),
        timestampType=IntegerType(),
        headers=HEADERS,
        more=LongType(),
    )
    found = TaskWriter.from_options(options(topic="flights"), schema)
    assert found.columns == {"key", "value", "partition", "timestamp", "headers"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partitioner.class", "org.apache.kafka.clients.producer.internals.DefaultPartitioner"),
        ("partitioner.class", "kafkashaded.org.apache.kafka.clients.producer.internals.DefaultPartitioner"),
        ("partitioner.ignore.keys", "false"),
        ("config.providers", ""),
        ("ssl.cipher.suites", " "),
    ],
)
def test_setting_that_asks_for_what_is_done_anyway_is_no_warning(name: str, value: str) -> None:
    found = options(**{f"kafka.{name}": value})
    assert found.ignored == [] and name not in found.producer_settings()


@pytest.mark.parametrize("size", ["0", "1"])
def test_batch_size_of_0_sends_records_one_by_one(size: str) -> None:
    found = options(**{"kafka.batch.size": size, "kafka.connections.max.idle.ms": "-1"})
    config = producer_config(found.bootstrap_servers, found.producer_settings())
    assert (config.batch_size, config.connections_max_idle_ms) == (int(size), -1)


@pytest.mark.parametrize(
    ("more", "field", "value"),
    [
        ({}, "delivery_timeout_ms", 120_000),
        ({"kafka.request.timeout.ms": "300000", "kafka.linger.ms": "7"}, "delivery_timeout_ms", 300_007),
        ({"kafka.linger.ms": "200000"}, "delivery_timeout_ms", 230_000),
        ({"kafka.max.in.flight.requests.per.connection": "5"}, "enable_idempotence", True),
        ({"kafka.max.in.flight.requests.per.connection": "10"}, "enable_idempotence", False),
        ({"kafka.acks": "1"}, "enable_idempotence", False),
    ],
)
def test_defaults_follow_other_settings_as_in_javas_producer(more: dict[str, str], field: str, value: object) -> None:
    found = options(**more)
    assert getattr(producer_config(found.bootstrap_servers, found.producer_settings()), field) == value


@pytest.mark.parametrize("kind", [StringType(), TimestampNTZType(), StructType([])], ids=["text", "local", "struct"])
def test_column_timestamp_that_is_no_time_is_passed_over_with_a_warning(kind: DataType) -> None:
    """Spark's sink has no such column, and events in JSON have many fields of this name."""
    schema, given = columns(value=StringType(), timestamp=kind), options(topic="flights")
    assert TaskWriter.from_options(given, schema).columns == {"value"}
    [text] = given.ignored
    assert f"the column timestamp of type {kind.simpleString()}" in text and "time of the write" in text
    with pytest.raises(InvalidInputError, match="strictOptions=true.*the column timestamp"):
        TaskWriter.from_options(options(topic="flights", strictOptions="true"), schema)


@pytest.mark.parametrize("kind", [LongType(), ArrayType(StringType())], ids=["number", "list"])
def test_column_topic_may_be_anything_where_the_option_names_the_topic(kind: DataType) -> None:
    assert TaskWriter.from_options(options(topic="flights"), columns(value=StringType(), topic=kind)).columns == {
        "value"
    }


def test_setting_of_a_registry_is_passed_over_as_by_javas_clients() -> None:
    text = "kafka.schema.registry.url (a registry is named by the option schemaRegistryUrl, with valueFormat)"
    url = {"kafka.schema.registry.url": "http://registry:8081"}
    assert options(topic="t", **url).ignored == [text]
    assert parse_options({"kafka.bootstrap.servers": "b:1", "subscribe": "t", **url}).ignored == [text]


def test_what_spark_passes_over_is_one_warning_and_what_spark_puts_there_none() -> None:
    found = options(
        topic="t",
        queryname="copy",
        checkpointlocation="c",
        path="p",
        asyncprogresstrackingenabled="true",
        includeheaders="true",
        failondataloss="false",
        **{"key.serializer": "x", "kafka.client.dns.lookup": "use_all_dns_ips"},
    )
    assert found.ignored == [
        "kafka.client.dns.lookup (every address that a name has is tried)",
        "includeHeaders, failOnDataLoss, key.serializer (Spark's Kafka sink ignores these too)",
    ]


@pytest.mark.parametrize(("codec", "level"), [("zstd", "7"), ("gzip", None)])
def test_a_level_counts_for_the_codec_that_is_used(codec: str, level: str | None) -> None:
    found = options(topic="t", **{"kafka.compression.type": codec, "kafka.compression.zstd.level": "7"})
    assert found.kafka.get("compression.level") == level
