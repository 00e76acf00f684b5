"""Programs around queries: launchers, triggers of other pipelines, offsets that they keep, settings of the session."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_csv, lit, to_json
from pyspark.sql.functions import max as highest
from pyspark.sql.functions import struct as record
from pyspark.sql.functions import sum as total
from tests.spark.ports.answers import event, events
from tests.spark.ports.job_site import JobSite, Rows, job

READ_TWICE_REFUSED = "another query reads this same load() already"


def two_sinks(site: JobSite, *frames: DataFrame) -> Rows:
    kept: list[Any] = []
    for number, frame in enumerate(frames):
        rows = frame.selectExpr("CAST(value AS STRING) AS value", "offset")
        query = (
            rows.writeStream.foreachBatch(
                lambda batch, _, number=number: kept.extend((number, *row) for row in batch.collect())
            )
            .option("checkpointLocation", str(site.folder / f"checkpoint-{number}"))
            .start()
        )
        try:
            query.processAllAvailable()
        finally:
            if number:
                query.stop()
    for query in site.spark.streams.active:
        query.stop()
    return kept


def a_load_and_a_group_for_each_sink(spark: SparkSession, source: str, site: JobSite) -> Rows:
    topic = site.fill("in", [str(number) for number in range(6)])
    groups = [f"{site.prefix}{number}" for number in range(2)]
    return two_sinks(site, *(site.stream(source, subscribe=topic, kafka__group__id=group) for group in groups))


@job(refused=READ_TWICE_REFUSED, mended=a_load_and_a_group_for_each_sink)
def a_group_named_for_two_sinks(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """One reader with `kafka.group.id` under two queries at the same time, each with a checkpoint of its own."""
    topic = site.fill("in", [str(number) for number in range(6)])
    frame = site.stream(source, subscribe=topic, kafka__group__id=site.prefix)
    return two_sinks(site, frame, frame)


@job()
def events_that_trigger_a_pipeline(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Each batch split by topic, empty parts left out by `rdd.isEmpty`, and a message for each part sent at its end."""
    topics = [site.fill(name, [{"day": f"2024-05-0{n % 2 + 1}"} for n in range(4)]) for name in ("deals", "risks")]
    topics.append(site.topic("quiet"))
    out = site.topic("triggers", 1)
    frame = site.stream(source, subscribe=",".join(topics), maxOffsetsPerTrigger=6)

    def process(batch: DataFrame, number: int) -> None:
        parsed = batch.select("topic", col("value").cast("string").alias("value")).cache()
        messages = []
        for topic in topics:
            rows = parsed.where(col("topic") == lit(topic))
            if rows.rdd.isEmpty():
                continue
            days = sorted({json.loads(row.value)["day"] for row in rows.collect()})
            messages.append((topic.removeprefix(site.prefix), json.dumps({"days": days, "batch": number})))
        parsed.unpersist()
        told = spark.createDataFrame(messages, "key STRING, value STRING")
        to = {"kafka.bootstrap.servers": site.servers, "topic": out}
        told.write.format(source).options(**to).mode("append").save()

    site.drain(frame.writeStream.foreachBatch(process))
    found = site.written(out)
    return [(row.key, json.loads(row.value)["days"]) for row in found if json.loads(row.value)["batch"] < 2]


@job()
def a_checkpoint_by_a_setting(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A folder for all checkpoints by `spark.sql.streaming.checkpointLocation`: a query's name is its checkpoint."""
    name = "spark.sql.streaming.checkpointLocation"
    topic, kept = site.topic("in"), []
    spark.conf.set(name, str(site.folder / "checkpoints"))
    try:
        for run in range(2):
            site.send(topic, [event(number, number) for number in range(4 + run)])
            sums = events(site.stream(source, subscribe=topic)).groupBy("user").agg(total("amount").alias("amount"))
            writer = sums.writeStream.outputMode("update").queryName(f"sums_{source}")
            query = (
                writer.foreachBatch(lambda batch, _, run=run: kept.extend((run, *row) for row in batch.collect()))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
    finally:
        spark.conf.unset(name)
    return [*kept, *((folder.name.replace(source, ""),) for folder in (site.folder / "checkpoints").iterdir())]


@job()
def offsets_kept_by_each_batch(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Offsets that `foreachBatch` keeps beside its rows; each run starts at them, with a fresh checkpoint."""
    topic = site.topic("in")
    starts, kept = {"0": -2, "1": -2}, []

    def keep(batch: DataFrame, _number: int) -> None:
        kept.extend((row.partition, row.offset) for row in batch.collect())
        ends = batch.groupBy("partition").agg(highest("offset").alias("last"))
        starts.update({str(row.partition): row.last + 1 for row in ends.collect()})

    for run in range(3):
        site.send(topic, [str(number) for number in range(5)])
        frame = site.stream(source, subscribe=topic, startingOffsets=json.dumps({topic: starts}))
        site.drain(frame.select("partition", "offset").writeStream.foreachBatch(keep), f"checkpoint-{run}")
    return [*kept, *starts.items()]


@job()
def totals_keyed_by_their_batch(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """CSV lines counted in complete mode, whose `foreachBatch` writes the whole result with the batch as its key."""
    topic, out = site.topic("lanes"), site.topic("totals", 1)
    lines = site.stream(source, subscribe=topic).select(
        from_csv(col("value").cast("string"), "lane STRING, cars INT", {"sep": ";"}).alias("row")
    )
    totals = lines.select("row.*").groupBy("lane").agg(total("cars").alias("cars"))

    def write(batch: DataFrame, number: int) -> None:
        rows = batch.select(lit(str(number)).alias("key"), to_json(record("*")).alias("value")).coalesce(1)
        rows.write.format(source).option("kafka.bootstrap.servers", site.servers).option("topic", out).mode(
            "append"
        ).save()

    for _run in range(2):
        site.send(topic, ["north;2", "south;1", "north;;", "broken"])
        site.drain(totals.writeStream.outputMode("complete").foreachBatch(write))
    return site.written(out)


@job()
def days_overwritten_one_by_one(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A daily batch that overwrites the days it has by `partitionOverwriteMode=dynamic`, read out by `json_tuple`."""
    topic, folder = site.topic("clicks"), str(site.folder / "days")
    mode = "spark.sql.sources.partitionOverwriteMode"
    spark.conf.set(mode, "dynamic")
    try:
        for run, days in enumerate(((1, 2), (2, 3))):
            clicks = [{"user": f"u{run}{n}", "day": f"2024-05-0{days[n % 2]}"} for n in range(4)]
            site.send(topic, clicks)
            starts = json.dumps({topic: {str(number): 2 * run for number in range(2)}})
            read = site.batch(source, subscribe=topic, startingOffsets=starts)
            rows = read.selectExpr("json_tuple(CAST(value AS STRING), 'user', 'day') AS (user, day)")
            rows.write.mode("overwrite").partitionBy("day").json(folder)
    finally:
        spark.conf.unset(mode)
    return spark.read.json(folder).select("user", "day").collect()
