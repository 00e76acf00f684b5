"""Jobs that start again: lists that shrink, starts beyond a log, missing topics, checkpoints of two sources."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count, expr
from tests.spark.ports.answers import event, events
from tests.spark.ports.habits import ends_of
from tests.spark.ports.job_site import JobSite, Rows, job

from kohort import Admin
from kohort.ids import TopicPartition


@job()
def a_topic_taken_off_the_list(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Fewer topics in `subscribe` with the old checkpoint, with lost records allowed, then the old list again."""
    first, second = site.fill("first", ["a", "b"]), site.fill("second", ["c", "d"])
    kept: list[Any] = []
    for run, topics in enumerate((f"{first},{second}", first, f"{first},{second}")):
        frame = site.stream(source, subscribe=topics, failOnDataLoss="false")
        rows = frame.selectExpr("topic", "CAST(value AS STRING)")
        site.drain(
            rows.writeStream.foreachBatch(lambda batch, _, run=run: kept.extend((run, *row) for row in batch.collect()))
        )
        site.send(first, [f"first {run}"])
        site.send(second, [f"second {run}"])
    return kept


@job()
def starts_beyond_the_log(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Streams whose `startingOffsets` lie before or behind what the topic holds, with lost records allowed or not."""
    topic = site.fill("in", [str(number) for number in range(10)], partitions=1)
    with Admin(site.servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 3}).all()

    def tried(offset: int, loss: str) -> Callable[[], Any]:
        def run() -> Any:
            starts = json.dumps({topic: {"0": offset}})
            frame = site.stream(source, subscribe=topic, startingOffsets=starts, failOnDataLoss=loss)
            writer = frame.writeStream.foreachBatch(lambda batch, _: kept.extend(row.offset for row in batch.collect()))
            kept: list[Any] = []
            site.drain(writer, f"checkpoint-{offset}-{loss}")
            return kept

        return run

    cases = {f"{at}, {loss}": tried(at, loss) for at in (0, 3, 10, 99) for loss in ("true", "false")}
    found = ends_of(cases)
    site.send(topic, ["10", "11"], partitions=1)
    return [*found, *ends_of({name: run for name, run in cases.items() if "false" in name})]


@job()
def topics_that_are_missing(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A stream and a batch read of a topic that nobody has made, and the same when it is there."""
    name = f"{site.prefix}later"

    def batch() -> Any:
        return site.batch(source, subscribe=name).count()

    def stream() -> Any:
        kept: list[Any] = []
        frame = site.stream(source, subscribe=name)
        site.drain(frame.writeStream.foreachBatch(lambda batch, _: kept.append(batch.count())), "missing")
        return sum(kept)

    found = ends_of({"batch": batch, "stream": stream})
    site.fill("later", ["a", "b"])
    return [*found, *ends_of({"batch": batch, "stream": stream})]


@job()
def a_join_begun_by_sparks_own_source(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A join of two topics and a count, begun by Spark's own source: the next runs go on from its checkpoint."""
    topics = {name: site.topic(name) for name in ("orders", "payments")}
    kept: list[Any] = []
    for run in range(3):
        for name, topic in topics.items():
            site.send(topic, [event(100 * run + n, 60 * run + n) for n in range(4 if name == "orders" else 3)])
        frames = {
            name: events(site.stream("kafka" if run == 0 else source, subscribe=topic))
            .selectExpr(f"id AS {name}_id", f"at AS {name}_at")
            .withWatermark(f"{name}_at", "10 seconds")
            for name, topic in topics.items()
        }
        soon = "orders_id = payments_id AND payments_at BETWEEN orders_at AND orders_at + INTERVAL 20 SECONDS"
        joined = frames["orders"].join(frames["payments"], expr(soon))
        site.drain(
            joined.writeStream.foreachBatch(
                lambda batch, _, run=run: kept.extend((run, *row) for row in batch.collect())
            )
        )
    return kept


@job()
def a_pattern_begun_by_sparks_own_source(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A pattern with a limit, begun by Spark's own source: new topics and partitions follow in kohort's run."""
    site.fill("log.a", ["a"] * 5)
    kept: list[Any] = []
    for run in range(2):
        frame = site.stream(
            "kafka" if run == 0 else source,
            subscribePattern=f"{site.prefix}log\\..*",
            maxOffsetsPerTrigger=4,
            startingOffsets="earliest" if run == 0 else "latest",
        ).selectExpr("topic", "partition", "offset")
        site.drain(
            frame.writeStream.foreachBatch(
                lambda batch, _, run=run: kept.extend((run, *row) for row in batch.collect())
            )
        )
        if run == 0:
            site.fill("log.b", ["b"] * 3)
            with Admin(site.servers) as admin:
                admin.create_partitions({site.prefix + "log.a": 3}).all()
            site.send(site.prefix + "log.a", ["c"] * 6, partitions=3)
    return kept


@job()
def what_progress_has(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """The names that a monitor finds in `lastProgress`, with state: of the query, its source, its sink."""
    topic, out = site.fill("in", [event(number, number) for number in range(9)]), site.topic("out")
    counts = events(site.stream(source, subscribe=topic)).groupBy("user").agg(count("*").alias("rows"))
    query = (
        counts.selectExpr("user AS key", "CAST(rows AS STRING) AS value")
        .writeStream.format(source)
        .outputMode("complete")
        .option("kafka.bootstrap.servers", site.servers)
        .option("topic", out)
        .option("checkpointLocation", str(site.folder / "checkpoint"))
        .trigger(availableNow=True)
        .queryName(f"watched_{source}")
        .start()
    )
    query.awaitTermination()
    found = next(progress for progress in query.recentProgress if progress["numInputRows"])
    whole = json.loads(found.json)
    (ours,) = whole["sources"]
    return [
        *((name,) for name in sorted(whole)),
        *(("source", name, type(ours[name]).__name__) for name in sorted(ours)),
        *(("source", name, ours["metrics"][name]) for name in sorted(ours["metrics"]) if "Behind" in name),
        *(("time", name) for name in sorted(whole["durationMs"]) if name != "commitOffsets"),
        ("sink", sorted(whole["sink"]), whole["sink"]["numOutputRows"]),
        ("state", whole["stateOperators"][0]["numRowsTotal"], whole["batchId"], found.name.replace(source, "")),
        ("ends", ours["startOffset"], sum(sum(found.values()) for found in ours["endOffset"].values())),
    ]


@job()
def a_query_stopped_in_a_batch(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`stop()` while `foreachBatch` runs: the next start gives the batch again, then goes on."""
    topic = site.fill("in", [str(number) for number in range(8)])
    seen: list[Any] = []
    frame = site.stream(source, subscribe=topic, maxOffsetsPerTrigger=4).selectExpr("partition", "offset")

    def apply(batch: DataFrame, number: int) -> None:
        seen.append((number, batch.count()))
        if seen == [(0, 4), (1, 4)]:
            spark.streams.active[0].stop()

    writer = frame.writeStream.foreachBatch(apply).option("checkpointLocation", str(site.folder / "checkpoint"))
    writer.start().awaitTermination()
    site.send(topic, ["8", "9"])
    site.drain(frame.writeStream.foreachBatch(apply))
    return [(len(seen), *row) for row in seen]


@job()
def modes_that_a_topic_does_not_take(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Writes by `overwrite` and `ignore`, with columns for partitions, and a stream in continuous mode."""
    rows = spark.range(2).selectExpr("CAST(id AS STRING) AS value", "CAST(id AS STRING) AS key")

    def tried(mode: str, **more: Any) -> Callable[[], Any]:
        def run() -> Any:
            out = site.topic(f"{mode}-{len(more)}", 1)
            writer = rows.write.format(source).mode(mode).options(topic=out)
            writer.option("kafka.bootstrap.servers", site.servers).save(**more)
            return sorted(str(tuple(row)) for row in site.written(out))

        return run

    return ends_of({mode: tried(mode) for mode in ("append", "overwrite", "ignore")})
