"""Snippets of pages and answers: pollers, progress, sampled schemas, wide payloads, several sinks, pandas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import array, col, count, expr, from_json, lit, to_json
from pyspark.sql.functions import max as highest
from pyspark.sql.functions import struct as record
from pyspark.sql.functions import sum as total
from tests.spark.ports.job_site import JobSite, Rows, job

EVENT = "id INT, user STRING, topic INT, timestamp STRING, amount DOUBLE"
EVENTS = [
    {"id": n, "user": f"u{n % 3}", "topic": n % 2, "timestamp": f"2024-05-01T10:00:{n:02}", "amount": n / 4}
    for n in range(12)
]


@job()
def pages_of_a_topic(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A loader that reads a fixed number of offsets at a time, the last page beyond the end, lost records allowed."""
    topic, pages, start = site.fill("events", EVENTS, partitions=1), [], 0
    while True:
        frame = site.batch(
            source,
            subscribe=topic,
            startingOffsets=json.dumps({topic: {"0": start}}),
            endingOffsets=json.dumps({topic: {"0": start + 5}}),
            failOnDataLoss="false",
            **{"kafkaConsumer.pollTimeoutMs": "2000"},
        )
        rows = frame.count()
        if rows == 0:
            return pages
        pages.append((start, rows, frame.agg(highest("offset")).collect()[0][0]))
        start += rows


@job()
def a_poller_that_counts(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A loop of batch reads: the next one starts where the count of the last one ends, at times with nothing new."""
    topic, start, seen = site.topic("ticks", 1), 0, []
    for new in (3, 0, 4):
        site.send(topic, [f"{start + number}" for number in range(new)], partitions=1)
        frame = site.batch(source, subscribe=topic, startingOffsets='{"%s":{"0":%d}}' % (topic, start))  # noqa: UP031
        start += frame.count()
        seen += [(start, row.value) for row in frame.selectExpr("CAST(value AS STRING) AS value").collect()]
    return seen


@job()
def prices_with_a_group_in_other_words(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Prices from an offset in a database: `groupId`, addresses with a protocol, numbers and booleans as they are."""
    topic = site.fill("prices", [f"{number * 1.25}" for number in range(8)], partitions=1)
    frame = (
        spark.readStream.format(source)
        .option("kafka.bootstrap.servers", f" PLAINTEXT://{site.servers}")
        .option("subscribe", f" {topic} ,")
        .option("startingOffsets", json.dumps({topic: {0: 3}}))
        .option("groupId", "store_prices")
        .option("failOnDataLoss", False)
        .option("kafka.schema.registry.url", "http://registry:8081")
        .option("maxOffsetsPerTrigger", 10_000)
        .load()
        .selectExpr("CAST(offset AS INTEGER)", "CAST(value AS STRING)", "CAST(timestamp AS TIMESTAMP)")
        .withColumn("price", col("value").cast("double"))
    )
    kept: list[Any] = []

    def store(batch: DataFrame, _number: int) -> None:
        kept.extend(batch.select("timestamp", "price", "offset").collect())

    site.drain(frame.writeStream.foreachBatch(store))
    return kept


@job()
def a_payloads_fields_beside_its_value(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Fields of a payload stay columns beside `value` in the sink: `timestamp` of text, `topic` that is a number."""
    out = site.topic("checked")
    events = site.stream(source, subscribe=site.fill("events", EVENTS)).select(
        from_json(col("value").cast("string"), EVENT).alias("event")
    )
    rows = events.select("event.*").withColumn("key", col("user")).withColumn("value", to_json(record("id", "amount")))
    site.drain(rows.writeStream.format(source).options(**{"kafka.bootstrap.servers": site.servers, "topic": out}))
    return site.written(out)


@job()
def rows_of_each_progress(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A monitor's sums of `numInputRows` over `recentProgress`, with a limit on each batch."""
    frame = site.stream(source, subscribe=site.fill("events", EVENTS), maxOffsetsPerTrigger=4)
    query = (
        frame.writeStream.format("noop")
        .queryName(f"monitored_{source}")
        .option("checkpointLocation", str(site.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = [json.loads(found.json) if hasattr(found, "json") else dict(found) for found in query.recentProgress]
    return [
        ("rows", sum(found["numInputRows"] for found in progress)),
        ("sources", {len(found["sources"]) for found in progress}),
        ("batches with rows", sum(found["numInputRows"] > 0 for found in progress) >= 3),
        ("name", {found["name"] == f"monitored_{source}" for found in progress}),
    ]


@job()
def observed_sums(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Checks of quality by `observe`: counts and sums in the progress of each batch."""
    events = site.stream(source, subscribe=site.fill("events", EVENTS)).select(
        from_json(col("value").cast("string"), EVENT).alias("event")
    )
    watched = events.select("event.*").observe("quality", count(lit(1)).alias("rows"), total("amount").alias("amount"))
    query = (
        watched.writeStream.format("noop")
        .option("checkpointLocation", str(site.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    observed = [found["observedMetrics"].get("quality") for found in query.recentProgress]
    return [
        Row(rows=found["rows"], amount=found["amount"]) for found in observed if found is not None and found["rows"]
    ]


@job()
def a_schema_from_a_sample(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A notebook infers the schema of JSON from a batch read of the topic, then streams by it."""
    topic = site.fill("events", EVENTS)
    sample = site.batch(source, subscribe=topic).selectExpr("CAST(value AS STRING) AS value").limit(100)
    schema = spark.read.json(sample.rdd.map(lambda row: row.value)).schema
    rows = site.stream(source, subscribe=topic).select(from_json(col("value").cast("string"), schema).alias("event"))
    table = f"sampled_{site.prefix.replace('-', '_')}"
    query = rows.select("event.*").writeStream.format("memory").queryName(table)
    query.trigger(availableNow=True).start().awaitTermination()
    return [("schema", schema.simpleString()), *spark.table(table).collect()]


@job()
def pandas_over_the_values(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A model scored by `mapInPandas` on what the source hands over: bytes of values, offsets, times."""

    def score(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            values = frame["value"].map(lambda value: json.loads(bytes(value)))
            yield pd.DataFrame(
                {
                    "id": values.map(lambda value: value["id"]),
                    "offset": frame["offset"],
                    "second": frame["timestamp"].astype("int64") // 10**9,
                    "score": values.map(lambda value: value["amount"] * 2),
                }
            )

    frame = site.stream(source, subscribe=site.fill("events", EVENTS)).select("value", "offset", "timestamp")
    scored = frame.mapInPandas(score, "id INT, offset BIGINT, second BIGINT, score DOUBLE")
    kept: list[Any] = []
    site.drain(scored.writeStream.foreachBatch(lambda batch, _: kept.extend(batch.collect())))
    return [(row.id, row.offset, row.score) for row in kept]


@job()
def names_from_another_topic(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A stream joined with reference data, which a batch read of another topic gives."""
    users = [(f"u{number}", f"name {number}", []) for number in range(3)]
    names = site.batch(source, subscribe=site.fill("users", users, partitions=1)).selectExpr(
        "CAST(key AS STRING) AS user", "CAST(value AS STRING) AS name"
    )
    events = site.stream(source, subscribe=site.fill("events", EVENTS)).select(
        from_json(col("value").cast("string"), EVENT).alias("event")
    )
    joined = events.select("event.id", "event.user").join(names, "user", "left")
    target = str(site.folder / "joined")
    site.drain(joined.writeStream.format("parquet").option("path", target))
    return spark.read.parquet(target).collect()


@job()
def routes_by_a_header(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Records chosen by a header, and written with headers that the job makes itself."""
    records = [(f"k{n}", f"v{n}", [("type", b"ab"[n % 2 : n % 2 + 1]), ("n", b"%d" % n)]) for n in range(8)]
    out = site.topic("routed")
    frame = site.stream(source, subscribe=site.fill("in", records), includeHeaders="true")
    chosen = frame.where(expr("exists(headers, h -> h.key = 'type' AND h.value = CAST('a' AS BINARY))"))
    own = array(record(lit("from").alias("key"), col("topic").cast("binary").alias("value")))
    rows = chosen.select("key", "value", own.alias("headers"))
    site.drain(rows.writeStream.format(source).options(**{"kafka.bootstrap.servers": site.servers, "topic": out}))
    names = "transform(headers, h -> h.key)", "size(headers)"
    return site.written(out, "CAST(key AS STRING)", "CAST(value AS STRING)", *names)


@job()
def two_loads_in_a_union(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Two topics by two readers in one union, named by their source, into one table of files."""
    parts = [
        site.stream(source, subscribe=site.fill(name, [f"{name}{number}" for number in range(5)])).select(
            col("value").cast("string").alias("line"), lit(name).alias("source")
        )
        for name in ("left", "right")
    ]
    target = str(site.folder / "union")
    site.drain(parts[0].unionByName(parts[1]).writeStream.format("csv").option("path", target))
    return spark.read.csv(target).collect()


@job()
def good_and_bad_by_two_queries(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """One reader under two queries: good rows into a table in memory, broken ones to a topic, until nothing is new."""
    out, table = site.topic("dead"), f"good_{site.prefix.replace('-', '_')}"
    topic = site.fill("in", [*EVENTS[:5], "{broken"])
    read = site.stream(source, subscribe=topic).withColumn("event", from_json(col("value").cast("string"), EVENT))
    good = read.where("event.id IS NOT NULL").select("event.id", "offset")
    bad = read.where("event.id IS NULL").select("key", "value")
    queries = [
        good.writeStream.format("memory").queryName(table).start(),
        bad.writeStream.format(source)
        .options(**{"kafka.bootstrap.servers": site.servers, "topic": out})
        .option("checkpointLocation", str(site.folder / "dead"))
        .start(),
    ]
    try:
        for more in ([], [*EVENTS[5:7], "", "[1]"]):
            site.send(topic, more)
            for query in queries:
                query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    return [("good", *row) for row in spark.table(table).collect()] + [("bad", *row) for row in site.written(out)]
