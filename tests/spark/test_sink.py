"""`df.write` and `df.writeStream` with `format("kohort")`: what Spark hands over arrives, and failures are told."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.spark.conftest import PARTITIONS, Stage, state_of
from tests.support.waiting import ATTEMPTS, LAST_RESORT, TOO_SLOW

from kohort.client.admin.values import NewTopic
from kohort.client.consumer.consumer import Consumer
from kohort.client.producer.producer import Producer
from kohort.ids import TopicPartition

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default"), LAST_RESORT]


@pytest.fixture
def target(stage: Stage) -> str:
    name = f"{stage.topic}-target"
    stage.admin.create_topics([NewTopic(name, PARTITIONS)]).all()
    return name


def records(stage: Stage, topic: str) -> list[Any]:
    """All that a topic holds."""
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with Consumer(stage.servers) as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(places)
        found: list[Any] = []
        while any(consumer.position(tp) < ends[tp] for tp in places):
            found += consumer.poll(timeout_ms=1000)
        return found


def run_to_end(stage: Stage, writer: Any) -> None:
    """Run a query to its end, again where its Python process did not come up in the ten seconds that Spark gives it."""
    for _ in range(ATTEMPTS):
        query = writer.start()
        stage.signs["query"] = lambda query=query: state_of(query)
        try:
            stage.finished(query)
        except Exception as error:
            if TOO_SLOW not in str(error):
                raise
        else:
            return
    raise AssertionError(f"Spark's Python process did not come up in {ATTEMPTS} attempts of ten seconds")


def write(frame: Any, stage: Stage, **options: str) -> None:
    given = {"kafka.bootstrap.servers": stage.servers, **options}
    frame.write.format("kohort").options(**given).mode(options.pop("mode", "append")).save()


def test_a_data_frame_is_written_with_all_that_a_record_has(spark: Any, stage: Stage, target: str) -> None:
    frame = spark.range(1000).selectExpr(
        "CAST(id AS STRING) AS key",
        "CAST(id * 2 AS STRING) AS value",
        f"'{target}' AS topic",
        f"CAST(id % {PARTITIONS} AS INT) AS partition",
        "timestamp_millis(1000000 + id) AS timestamp",
        "array(struct('id' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value)) AS headers",
        "id AS more",
    )
    write(frame, stage)
    found = {int(record.key): record for record in records(stage, target)}
    assert sorted(found) == list(range(1000))
    for number, record in found.items():
        assert (record.value, record.partition) == (b"%d" % (number * 2), number % PARTITIONS)
        assert (record.timestamp, list(record.headers)) == (1_000_000 + number, [("id", b"%d" % number)])


def test_what_the_source_reads_can_be_written_as_it_is(spark: Any, stage: Stage, target: str) -> None:
    stage.produce(100)
    frame = spark.read.format("kohort").options(
        **{"kafka.bootstrap.servers": stage.servers, "subscribe": stage.topic, "includeHeaders": "true"}
    )
    write(frame.load(), stage, topic=target)
    assert Counter((r.value, r.partition, r.timestamp) for r in records(stage, target)) == Counter(
        (r.value, r.partition, r.timestamp) for r in records(stage, stage.topic)
    )


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("CAST(id AS STRING) AS value", {}, "needs the option topic"),
        ("id AS value", {"topic": "x"}, "of type bigint"),
        ("CAST(id AS STRING) AS value", {"topic": "x", "delivery": "exactly-once"}, "not there yet"),
        ("CAST(id AS STRING) AS value", {"topic": "x", "mode": "overwrite"}, "never replaced"),
    ],
)
def test_what_can_not_be_written_is_refused_before_anything_is(
    spark: Any, stage: Stage, columns: str, options: dict[str, str], words: str
) -> None:
    frame = spark.range(1).selectExpr(columns)
    mode = options.pop("mode", "append")
    given = {"kafka.bootstrap.servers": stage.servers, **options}
    with pytest.raises(Exception, match=words):
        frame.write.format("kohort").options(**given).mode(mode).save()


def test_a_record_that_the_broker_does_not_take_fails_the_write(spark: Any, stage: Stage, target: str) -> None:
    frame = spark.range(1).selectExpr("repeat('x', 3000000) AS value")
    with pytest.raises(Exception, match=r"max\.request\.size"):
        write(frame, stage, topic=target)
    assert records(stage, target) == []


def test_a_named_query_from_topic_to_topic_continues_where_it_was(
    spark: Any, stage: Stage, target: str, run: Any
) -> None:
    del run  # its fixture tells what moves when a wait is too long

    def once() -> None:
        reader = spark.readStream.format("kohort").options(**stage.options(columns="value")).load()
        query = (
            reader.writeStream.queryName("copy")
            .format("kohort")
            .option("kafka.bootstrap.servers", stage.servers)
            .option("topic", target)
            .option("checkpointLocation", str(stage.folder / "checkpoint"))
            .option("strictOptions", "true")  # nothing that Spark puts there by itself is warned of
            .trigger(availableNow=True)
        )
        run_to_end(stage, query)

    stage.produce(500)
    once()
    stage.produce(500)
    once()
    assert sorted(int(record.value) for record in records(stage, target)) == list(range(1000))


def test_a_batch_that_failed_half_way_is_written_again(spark: Any, stage: Stage, target: str) -> None:
    stage.produce(200)

    def query(size: int) -> Any:
        reader = spark.readStream.format("kohort").options(**stage.options(columns="value,partition")).load()
        blown = reader.selectExpr(f"IF(partition = 3, rpad(CAST(value AS STRING), {size}, ' '), value) AS value")
        return (
            blown.writeStream.format("kohort")
            .option("kafka.bootstrap.servers", stage.servers)
            .option("topic", target)
            .option("checkpointLocation", str(stage.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    with pytest.raises(Exception, match=r"max\.request\.size"):
        stage.finished(query(1_100_000))
    stage.finished(query(10))
    found = Counter(int(record.value) for record in records(stage, target))
    assert sorted(found) == list(range(200))
    assert all(number % PARTITIONS != 3 for number, times in found.items() if times > 1)


def test_threads_of_the_program_write(spark: Any, stage: Stage, target: str) -> None:
    """An executor's thread has no active session, in which Spark looks for the sink; nor has one in foreachBatch."""

    def from_a_thread(frame: Any) -> None:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(write, frame, stage, topic=target).result()

    frame = spark.range(4).selectExpr("CAST(id AS STRING) AS value")
    from_a_thread(frame)
    assert sorted(int(record.value) for record in records(stage, target)) == list(range(4))
    stage.produce(3)
    query = (
        spark.readStream.format("kohort")
        .options(**stage.options(columns="value"))
        .load()
        .writeStream.foreachBatch(lambda frame, _: from_a_thread(frame))
        .option("checkpointLocation", str(stage.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    stage.finished(query)
    assert len(records(stage, target)) == 7


def test_a_write_without_a_mode_is_refused_by_spark_itself(spark: Any, stage: Stage, target: str) -> None:
    frame = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    with pytest.raises(Exception, match="ErrorIfExists"):
        frame.write.format("kohort").options(**{"kafka.bootstrap.servers": stage.servers, "topic": target}).save()


def test_update_mode_writes_to_a_topic_by_batches(spark: Any, stage: Stage, target: str) -> None:
    """Spark refuses update mode for a Python sink before any of our code runs."""
    stage.produce(40)
    to_topic = {"kafka.bootstrap.servers": stage.servers, "topic": target}
    counted = (
        spark.readStream.format("kohort")
        .options(**stage.options(columns="value,partition", **{"group.id": None}))
        .load()
        .groupBy("partition")
        .count()
        .selectExpr("CAST(partition AS STRING) AS key", "CAST(count AS STRING) AS value")
    )
    writer = counted.writeStream.outputMode("update").trigger(availableNow=True)
    refused = writer.format("kohort").options(**to_topic)
    with pytest.raises(Exception, match="does not support Update mode"):
        run_to_end(stage, refused.option("checkpointLocation", str(stage.folder / "refused")))
    by_batches = counted.writeStream.outputMode("update").foreachBatch(
        lambda batch, number: batch.write.format("kohort").options(**to_topic).mode("append").save()
    )
    by_batches = by_batches.option("checkpointLocation", str(stage.folder / "written")).trigger(availableNow=True)
    run_to_end(stage, by_batches)
    assert {(record.key, record.value) for record in records(stage, target)} == {
        (b"%d" % number, b"10") for number in range(PARTITIONS)
    }


def test_sources_with_names_are_added_to_a_query_with_its_checkpoint(spark: Any, stage: Stage) -> None:
    other = f"{stage.topic}-more"
    stage.admin.create_topics([NewTopic(other, 1)]).all()
    setting = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    rows: list[str] = []

    def source(name: str, topic: str) -> Any:
        alone = stage.options(**{"group.id": None, "subscribe": topic, "columns": "value,topic"})
        return spark.readStream.name(name).format("kohort").options(**alone).load()

    def run(frame: Any) -> list[str]:
        rows.clear()
        writer = frame.writeStream.foreachBatch(lambda batch, _: rows.extend(row.topic for row in batch.collect()))
        run_to_end(stage, writer.option("checkpointLocation", str(stage.folder / "named")).trigger(availableNow=True))
        return sorted(rows)

    spark.conf.set(setting, "true")
    try:
        stage.produce(8)
        assert run(source("first", stage.topic)) == [stage.topic] * 8
        stage.produce(4)
        with Producer(stage.servers) as producer:
            producer.send(other, b"0")
        assert run(source("first", stage.topic).union(source("second", other))) == [stage.topic] * 4 + [other]
    finally:
        spark.conf.unset(setting)
