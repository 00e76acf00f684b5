"""Streams into files, tables in memory and the console's site: what tutorials and archives do."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.functions import col, explode, expr, from_json, lower, map_from_entries, regexp_extract, split, to_date
from tests.spark.ports.job_site import JobSite, Rows, job

PAYMENT = {
    "type": "record",
    "name": "Payment",
    "fields": [{"name": "id", "type": "long"}, {"name": "currency", "type": "string"}],
}
LINES = ("the cat saw the dog", "the dog ran", "a cat a day", "")


@job()
def word_count(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """The tutorial of structured streaming: words of lines, counted in complete mode into a named table in memory."""
    lines = site.stream(source, subscribe=site.fill("lines", LINES)).selectExpr("CAST(value AS STRING)")
    counts = lines.select(explode(split(lower("value"), " ")).alias("word")).groupBy("word").count()
    name = f"words_{source}"
    site.drain(counts.writeStream.outputMode("complete").format("memory").queryName(name))
    return spark.table(name).collect()


@job()
def json_events_to_parquet(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A pipeline's first stage: JSON by a schema, broken lines as nulls, Parquet partitioned by day."""
    events: list[Any] = [
        {"user": f"u{number % 3}", "amount": number / 4, "at": f"2024-05-0{1 + number % 2}T10:00:0{number}Z"}
        for number in range(8)
    ]
    topic = site.fill("events", [*events, "{not json", {"user": "u9", "surplus": 1}])
    schema = "user STRING, amount DOUBLE, at TIMESTAMP"
    parsed = (
        site.stream(source, subscribe=topic, failOnDataLoss="false")
        .select(from_json(col("value").cast("string"), schema).alias("event"), "timestamp")
        .select("event.*", "timestamp")
        .withColumn("day", to_date("at"))
    )
    out = str(site.folder / "out")
    site.drain(parsed.writeStream.format("parquet").option("path", out).partitionBy("day").outputMode("append"))
    return spark.read.parquet(out).collect()


@job()
def bronze_with_headers(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """An archive of raw records: every column as it came, headers by name, tombstones kept."""
    records = [
        ("k0", "zero", [("trace", b"t0"), ("source", b"app")]),
        ("k1", None, [("trace", b"")]),
        (None, "two", []),
        ("k3", b"\x00\xff", [("source", b"job")]),
    ]
    raw = site.stream(source, subscribe=site.fill("raw", records), includeHeaders="true")
    named = raw.withColumn("named", map_from_entries("headers")).selectExpr(
        "hex(key) AS key", "hex(value) AS value", "topic", "partition", "offset", "timestamp", "timestampType",
        "CAST(named['trace'] AS STRING) AS trace", "CAST(named['source'] AS STRING) AS origin", "size(headers) AS size",
    )  # fmt: skip
    out = str(site.folder / "bronze")
    site.drain(named.writeStream.format("parquet").partitionBy("topic", "partition").option("path", out))
    return spark.read.parquet(out).collect()


@job()
def access_log_once(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A nightly job with `trigger(once=True)`: lines of a web server by regular expressions, into JSON files."""
    lines = [f'10.0.0.{number} - - [01/May/2024] "GET /p{number % 2} HTTP/1.1" {200 + number}' for number in range(6)]
    text = site.stream(source, subscribe=site.fill("log", lines)).selectExpr("CAST(value AS STRING) AS line")
    parsed = text.select(
        regexp_extract("line", r"^(\S+)", 1).alias("host"),
        regexp_extract("line", r'"(\S+) (\S+)', 2).alias("path"),
        regexp_extract("line", r"(\d{3})$", 1).cast("int").alias("status"),
    ).where("status <> 203")
    out, checkpoint = str(site.folder / "out"), str(site.folder / "checkpoint")
    writer = parsed.writeStream.format("json").option("checkpointLocation", checkpoint).trigger(once=True)
    writer.start(out).awaitTermination()
    return spark.read.schema("host STRING, path STRING, status INT").json(out).collect()


@job()
def avro_behind_a_registrys_header(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Avro by a registry's producers: five bytes are cut off, `from_avro` reads the rest, what fails is null."""
    values = [framed(number, "EUR" if number % 2 else "USD") for number in range(5)] + [b"\0\0\0\0\1\xff"]
    payments = (
        site.stream(source, subscribe=site.fill("payments", values))
        .withColumn("body", expr("substring(value, 6, length(value) - 5)"))
        .select(from_avro("body", json.dumps(PAYMENT), {"mode": "PERMISSIVE"}).alias("payment"), "offset")
    )
    name = f"payments_{source}"
    site.drain(payments.writeStream.format("memory").queryName(name))
    return spark.table(name).selectExpr("payment.id", "payment.currency", "offset").collect()


def framed(number: int, currency: str) -> bytes:
    """A value as a registry's serializer writes it."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, PAYMENT, {"id": number, "currency": currency})
    return b"\0\0\0\0\7" + body.getvalue()


@job()
def assigned_partitions_from_offsets(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A repair job: `assign` of two of three partitions, each from an offset of its own."""
    topic = site.fill("parts", [f"{number}" for number in range(18)], partitions=3)
    options = {"assign": json.dumps({topic: [0, 2]}), "startingOffsets": json.dumps({topic: {"0": 2, "2": -2}})}
    rows = site.stream(source, **options, minPartitions="4").selectExpr(
        "partition", "offset", "CAST(CAST(value AS STRING) AS INT)"
    )
    name = f"parts_{source}"
    site.drain(rows.writeStream.format("memory").queryName(name))
    return spark.table(name).collect()


@job()
def several_topics_with_options_of_others(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A notebook's look at several topics, with options that belong to files and the console on the reader."""
    one, two = site.fill("a", ["1", "2", "3"]), site.fill("b", ["4", "5"])
    strange = {"header": "true", "inferSchema": "true", "truncate": "false", "mode": "DROPMALFORMED", "sep": ","}
    frame = site.stream(source, subscribe=f"{one},{two}", **strange)
    assert frame.isStreaming and frame.schema.names[:3] == ["key", "value", "topic"]
    name = f"several_{source}"
    site.drain(
        frame.selectExpr("topic", "CAST(CAST(value AS STRING) AS INT) * 2").writeStream.format("memory").queryName(name)
    )
    return spark.table(name).collect()


@job()
def what_comes_from_now_on(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A dashboard's feed: no `startingOffsets`, so what was there is passed over; a trigger by time."""
    topic, name = site.fill("feed", ["old"] * 4), f"feed_{source}"
    reader = spark.readStream.format(source).option("kafka.bootstrap.servers", site.servers).option("subscribe", topic)
    values = reader.load().selectExpr("CAST(value AS STRING)", "offset")
    writer = values.writeStream.format("memory").queryName(name).trigger(processingTime="100 milliseconds")
    query = writer.start()
    try:
        query.processAllAvailable()
        site.send(topic, ["new", "newer", "newest"])
        query.processAllAvailable()
    finally:
        query.stop()
    return spark.table(name).collect()
