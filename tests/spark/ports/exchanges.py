"""Jobs that write topics: generators, files, aggregates, keyword arguments, and settings that Java's clients take."""

from __future__ import annotations

import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, expr, from_json, lit, to_json, window
from pyspark.sql.functions import struct as record
from tests.spark.ports.answers import EVENT, event
from tests.spark.ports.job_site import JobSite, Rows, job

ASYNCHRONOUS_REFUSED = "does not support async progress tracking"
SAME_NAME_REFUSED = "several columns are named id"


@job()
def load_and_start_with_arguments(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Everything as keyword arguments of `load`, `save` and `start`, with names in capitals."""
    servers = {"KAFKA.BOOTSTRAP.SERVERS": site.servers}
    out, again = site.topic("out", 1), site.topic("again", 1)
    topic = site.fill("in", [str(number) for number in range(5)])
    frame = spark.readStream.load(format=source, **servers, subscribe=topic, startingOffsets="earliest")
    query = (
        frame.selectExpr("key", "value")
        .writeStream.trigger(availableNow=True)
        .start(
            format=source,
            outputMode="append",
            queryName=f"arguments_{source}",
            checkpointLocation=str(site.folder / "checkpoint"),
            topic=out,
            **servers,
        )
    )
    query.awaitTermination()
    read = spark.read.load(format=source.upper(), subscribe=out, **servers)
    read.select("value").write.save(format=source, mode="append", topic=again, **servers)
    return [*site.written(out), *site.written(again)]


@job()
def a_generator_of_events(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A load generator: Spark's `rate-micro-batch` as JSON with keys into a topic."""
    out = site.topic("out")
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).option("numPartitions", 2).load()
    rows = rate.select(
        (col("value") % 3).cast("string").alias("key"), to_json(record(col("value").alias("id"))).alias("value")
    )
    query = (
        rows.writeStream.format(source)
        .option("kafka.bootstrap.servers", site.servers)
        .option("topic", out)
        .option("checkpointLocation", str(site.folder / "checkpoint"))
        .start()
    )
    try:
        while len([found for found in query.recentProgress if found["numInputRows"]]) < 3:
            assert query.exception() is None
            time.sleep(0.05)
    finally:
        query.stop()
    return [row for row in site.written(out) if int(row.value[6:-1]) < 15]


@job()
def files_into_a_topic(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A folder of CSV files streamed into a topic, one file a batch, started with a path as some jobs do."""
    folder, out = site.folder / "csv", site.topic("out")
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.csv").write_text(f"id,name\n{number},n{number}\n{number + 10},\n")
    frame = spark.readStream.schema("id INT, name STRING").option("header", True).option("maxFilesPerTrigger", 1)
    rows = frame.csv(str(folder)).select(col("id").cast("string").alias("key"), to_json(record("*")).alias("value"))
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(site.folder / "checkpoint"))
        .option("kafka.bootstrap.servers", site.servers)
        .option("topic", out)
        .trigger(availableNow=True)
        .format(source)
        .start(str(site.folder / "unused"))
    )
    query.awaitTermination()
    return site.written(out)


@job()
def closed_windows_into_a_topic(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Counts of closed windows in append mode into a topic, in two runs over one checkpoint with state."""
    topic, out = site.topic("in"), site.topic("out")
    parsed = site.stream(source, subscribe=topic).select(from_json(col("value").cast("string"), EVENT).alias("e"))
    counts = parsed.select("e.*").withWatermark("at", "5 seconds").groupBy(window("at", "20 seconds"), "user")
    rows = counts.agg(count("*").alias("rows")).select(
        col("user").alias("key"), to_json(record("window", "rows")).alias("value")
    )
    for run in range(2):
        site.send(topic, [event(number, 120 * run + 7 * number) for number in range(9)])
        to = {"kafka.bootstrap.servers": site.servers, "topic": out, "kafka.linger.ms": 5}
        site.drain(rows.writeStream.format(source).options(**to).outputMode("append"))
    return site.written(out)


def mirrored(source: str, site: JobSite, **more: object) -> Rows:
    topic, out = site.topic("in"), site.topic("out")
    for run in range(2):
        site.send(topic, [f"{run}-{number}" for number in range(4)])
        query = (
            site.stream(source, subscribe=topic)
            .select("key", "value")
            .writeStream.format(source)
            .option("kafka.bootstrap.servers", site.servers)
            .options(topic=out, checkpointLocation=str(site.folder / "checkpoint"), **more)
            .start()
        )
        query.processAllAvailable()
        query.stop()
    return sorted(set(site.written(out)))


@job(refused=ASYNCHRONOUS_REFUSED, mended=lambda _spark, source, site: mirrored(source, site))
def progress_tracked_asynchronously(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A mirror with `asyncProgressTrackingEnabled`, stopped and started again over its checkpoint."""
    return mirrored(source, site, asyncProgressTrackingEnabled=True, asyncProgressTrackingCheckpointIntervalMs=0)


@job()
def records_that_nobody_acknowledges(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A fast and loose sink: `kafka.acks=0` with retries, batches and compression of its own."""
    out = site.topic("out", 1)
    rows = spark.range(20).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    to = {"kafka.acks": 0, "kafka.retries": 0, "kafka.batch.size": 1000, "kafka.compression.type": "lz4"}
    rows.write.format(source).options(**to, topic=out).option("kafka.bootstrap.servers", site.servers).mode(
        "append"
    ).save()
    time.sleep(0.5)
    return site.written(out)


@job()
def settings_of_security_left_empty(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A template with settings of logins and TLS, which are empty, Kerberos' or the brokers' without encryption."""
    out = site.topic("out", 1)
    security = {
        "kafka.security.protocol": "PLAINTEXT",
        "kafka.sasl.mechanism": "GSSAPI",
        "kafka.sasl.jaas.config": "",
        "kafka.sasl.kerberos.service.name": "kafka",
        "kafka.ssl.truststore.location": "",
        "kafka.ssl.truststore.password": "",
        "kafka.ssl.client.auth": "none",
        "kafka.security.inter.broker.protocol": "PLAINTEXT",
        "kafka.sasl.enabled.mechanisms": "PLAIN",
    }
    frame = site.stream(source, subscribe=site.fill("in", ["a", "b"]), **security).select("value")
    to = {"kafka.bootstrap.servers": site.servers, "topic": out, **security, "kafka.sasl.mechanism": ""}
    site.drain(frame.writeStream.format(source).options(**to))
    return site.written(out)


@job()
def a_topic_that_the_brokers_make(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A write into a topic that does not exist yet, in a batch and in a stream: the brokers make it."""
    first, second = f"{site.prefix}made-first", f"{site.prefix}made-second"
    rows = spark.range(4).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format(source).option("kafka.bootstrap.servers", site.servers).option("topic", first).mode(
        "append"
    ).save()
    frame = site.stream(source, subscribe=first).select("value", lit(second).alias("topic"))
    site.drain(frame.writeStream.format(source).option("kafka.bootstrap.servers", site.servers))
    return [*site.written(first), *site.written(second)]


def joined_rows(spark: SparkSession, source: str, site: JobSite, *columns: str) -> Rows:
    out = site.topic("out", 1)
    left = spark.range(4).selectExpr("id", "CAST(id AS STRING) AS key")
    right = spark.range(4).selectExpr("id", "CAST(id * 2 AS STRING) AS value")
    joined = left.join(right, left.id == right.id).select(*columns)
    to = {"kafka.bootstrap.servers": site.servers, "topic": out}
    joined.write.format(source).options(**to).mode("append").save()
    return site.written(out)


@job(refused=SAME_NAME_REFUSED, mended=lambda spark, source, site: joined_rows(spark, source, site, "key", "value"))
def columns_of_the_same_name(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A join that leaves two columns of one name beside `key` and `value` of the sink."""
    return joined_rows(spark, source, site, "*")


@job()
def one_load_on_both_sides(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """One reader twice in a query: filtered and united with itself, and joined with itself within a time."""
    frame = site.stream(source, subscribe=site.fill("in", [event(number, number) for number in range(8)]))
    parsed = frame.select(from_json(col("value").cast("string"), EVENT).alias("e")).select("e.*")
    both = (
        parsed.where("id % 2 = 0")
        .selectExpr("'even' AS kind", "id")
        .union(parsed.where("id > 4").selectExpr("'high' AS kind", "id"))
    )
    kept: list[Any] = []
    site.drain(both.writeStream.foreachBatch(lambda batch, _: kept.extend(batch.collect())), "united")
    left = parsed.selectExpr("id AS l", "user AS lu", "at AS la").withWatermark("la", "1 minute")
    right = parsed.selectExpr("id AS r", "user AS ru", "at AS ra").withWatermark("ra", "1 minute")
    joined = left.join(right, expr("lu = ru AND ra > la AND ra <= la + INTERVAL 30 SECONDS"))
    site.drain(joined.writeStream.foreachBatch(lambda batch, _: kept.extend(batch.collect())), "joined")
    return kept


@job()
def a_model_over_a_stream(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A model of Spark's own library, fitted on a batch read of a topic and applied to a stream of it."""
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import Binarizer, StringIndexer, VectorAssembler

    topic = site.fill("in", [{"id": number, "user": f"u{number % 3}", "amount": number * 1.5} for number in range(10)])
    schema = "id INT, user STRING, amount DOUBLE"

    def parsed(frame: DataFrame) -> DataFrame:
        return frame.select(from_json(col("value").cast("string"), schema).alias("e")).select("e.*")

    stages = [
        StringIndexer(inputCol="user", outputCol="number", stringOrderType="alphabetAsc"),
        VectorAssembler(inputCols=["amount", "number"], outputCol="features"),
        Binarizer(threshold=6.0, inputCol="amount", outputCol="high"),
    ]
    model = Pipeline(stages=stages).fit(parsed(site.batch(source, subscribe=topic)))
    scored = model.transform(parsed(site.stream(source, subscribe=topic)))
    out = site.topic("out", 1)
    rows = scored.selectExpr("CAST(id AS STRING) AS key", "concat_ws(':', number, high) AS value")
    to = {"kafka.bootstrap.servers": site.servers, "topic": out}
    site.drain(rows.writeStream.format(source).options(**to))
    return site.written(out)
