"""From topic to topic: enrichment, dead letters, mirrors, counts; and batches written without a mode."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, col, from_json, to_json, when
from pyspark.sql.functions import struct as record
from tests.spark.ports.job_site import JobSite, Rows, job

ORDER = "id INT, country STRING, amount DOUBLE"
ORDERS = [{"id": number, "country": ("de", "fr", "xx")[number % 3], "amount": number * 1.5} for number in range(9)]
UPDATE_REFUSED = "does not support Update mode"
MODE_REFUSED = 'Please use either the "Append" or "Overwrite" mode instead'


@job()
def enriched_by_a_table(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A named query from topic to topic: JSON joined with a broadcast table, settings of the producer as options."""
    out = site.topic("enriched")
    names = spark.createDataFrame([("de", "Germany"), ("fr", "France")], "country STRING, name STRING")
    orders = parsed(site.stream(source, subscribe=site.fill("orders", ORDERS, key="id")))
    rows = orders.join(broadcast(names), "country", "left").selectExpr(
        "CAST(id AS STRING) AS key", "to_json(struct(*)) AS value"
    )
    site.drain(
        rows.writeStream.queryName(f"enrich_{source}")
        .format(source)
        .option("kafka.bootstrap.servers", site.servers)
        .option("topic", out)
        .option("kafka.acks", "all")
        .option("kafka.compression.type", "lz4")
        .option("kafka.linger.ms", "5")
        .option("includeHeaders", "false")
        .outputMode("append")
    )
    return site.written(out, "CAST(key AS STRING)", "CAST(value AS STRING)", "partition", "size(headers)")


@job()
def dead_letters_by_a_column(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Valid rows to one topic and broken ones to another, in one query, by the column `topic`."""
    good, bad = site.topic("good"), site.topic("bad")
    frame = site.stream(source, subscribe=site.fill("in", [*ORDERS[:4], "{broken", "", {"id": "x"}]))
    order = frame.withColumn("order", from_json(col("value").cast("string"), ORDER))
    rows = order.select(
        when(col("order.id").isNull(), bad).otherwise(good).alias("topic"),
        col("value"),
        when(col("order.id").isNotNull(), col("order.country")).alias("key"),
    )
    site.drain(rows.writeStream.format(source).option("kafka.bootstrap.servers", site.servers))
    return [("good", *row) for row in site.written(good)] + [("bad", *row) for row in site.written(bad)]


@job()
def totals_in_complete_mode(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """All totals written to a topic with every batch: complete mode into Kafka."""
    out = site.topic("totals")
    site.drain(totals(source, site).writeStream.outputMode("complete").format(source).options(**to(site, out)))
    return site.written(out)


@job()
def a_mirror_of_a_topic(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A copy with everything that a record has: keys, values, headers, tombstones, each in its partition."""
    records = [
        (f"k{n}" if n % 3 else None, None if n == 4 else f"v{n}", [("n", b"%d" % n)] * (n % 3)) for n in range(9)
    ]
    out = site.topic("copy")
    frame = site.stream(source, subscribe=site.fill("original", records), includeHeaders="true")
    rows = frame.select("key", "value", "headers", "partition")
    site.drain(rows.writeStream.format(source).options(**to(site, out)))
    seen = "CAST(key AS STRING)", "CAST(value AS STRING)", "CAST(headers AS STRING)", "partition"
    return site.written(out, *seen)


def totals_by_batches(spark: SparkSession, source: str, site: JobSite) -> Rows:
    out = site.topic("totals")

    def write(batch: DataFrame, _number: int) -> None:
        batch.write.format(source).options(**to(site, out)).mode("append").save()

    site.drain(totals(source, site).writeStream.outputMode("update").foreachBatch(write))
    return site.written(out)


@job(refused=UPDATE_REFUSED, mended=totals_by_batches)
def totals_in_update_mode(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Totals that have changed written to a topic: update mode into Kafka."""
    out = site.topic("totals")
    site.drain(totals(source, site).writeStream.outputMode("update").format(source).options(**to(site, out)))
    return site.written(out)


def alerts(spark: SparkSession, source: str, site: JobSite, mode: str | None = "append") -> Rows:
    out = site.topic("alerts")
    orders = parsed(site.stream(source, subscribe=site.fill("orders", ORDERS)))

    def write(batch: DataFrame, number: int) -> None:
        high = batch.where("amount > 5").select(to_json(record("id", "amount")).alias("value"))
        saved(high.selectExpr(f"'{number}' AS key", "value"), source, site, out, mode)

    site.drain(orders.writeStream.foreachBatch(write))
    return site.written(out)


@job(refused=MODE_REFUSED, mended=alerts)
def alerts_by_foreach_batch(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Alerts of each batch written by `foreachBatch` and `batch.write…save()`, without a mode."""
    return alerts(spark, source, site, None)


def published(spark: SparkSession, source: str, site: JobSite, mode: str | None = "append") -> Rows:
    out = site.topic("published")
    rows = spark.createDataFrame([(f"k{number}", f"v{number}") for number in range(6)], "key STRING, value STRING")
    saved(rows, source, site, out, mode)
    return site.written(out, "CAST(key AS STRING)", "CAST(value AS STRING)", "partition")


@job(refused=MODE_REFUSED, mended=published)
def a_table_published(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A nightly export of a table to a topic: a batch write without a mode."""
    return published(spark, source, site, None)


def parsed(frame: DataFrame) -> DataFrame:
    return frame.select(from_json(col("value").cast("string"), ORDER).alias("order")).select("order.*")


def totals(source: str, site: JobSite) -> DataFrame:
    orders = parsed(site.stream(source, subscribe=site.fill("orders", ORDERS)))
    return (
        orders.groupBy("country").sum("amount").selectExpr("country AS key", "CAST(`sum(amount)` AS STRING) AS value")
    )


def to(site: JobSite, topic: str) -> dict[str, Any]:
    return {"kafka.bootstrap.servers": site.servers, "topic": topic}


def saved(rows: DataFrame, source: str, site: JobSite, topic: str, mode: str | None) -> None:
    writer = rows.write.format(source).options(**to(site, topic))
    (writer if mode is None else writer.mode(mode)).save()
