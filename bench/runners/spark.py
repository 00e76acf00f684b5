"""Reads a topic with PySpark, local[2]: `python -m bench.runners.spark FORMAT JOB SERVERS TOPIC COUNT JARS`.

FORMAT is kohort or kafka (Spark's own source, from JARS), JOB is sum (a batch query over the values) or stream (a
streaming query with the trigger availableNow into the noop sink). The job runs twice; the second, warm run is on the
clock.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time

from pyspark.sql import DataFrame, SparkSession


def session(jars: str) -> SparkSession:
    """A session of two cores on loopback that prints nothing."""
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
    )
    if jars:
        builder = builder.config("spark.jars", jars)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read(spark: SparkSession, kind: str, servers: str, topic: str, streaming: bool) -> DataFrame:
    """The topic from its beginning."""
    reader = spark.readStream if streaming else spark.read
    return (
        reader.format(kind)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )


def job_sum(spark: SparkSession, kind: str, servers: str, topic: str) -> int:
    """Counts the rows and sums the lengths of the values."""
    frame = read(spark, kind, servers, topic, streaming=False)
    row = frame.selectExpr("count(*) AS rows", "sum(length(value)) AS bytes").first()
    return int(row["rows"]) if row is not None else 0


def job_stream(spark: SparkSession, kind: str, servers: str, topic: str) -> int:
    """Every row, all columns, to nowhere."""
    with tempfile.TemporaryDirectory(prefix="kohort-bench-spark-") as folder:
        query = (
            read(spark, kind, servers, topic, streaming=True)
            .writeStream.format("noop")
            .option("checkpointLocation", folder)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(progress.numInputRows for progress in query.recentProgress)


if __name__ == "__main__":
    kind, job, servers, topic, count, jars = sys.argv[1:]
    spark = session(jars)
    if kind == "kohort":
        from kohort.spark import register

        register(spark)
    work = {"sum": job_sum, "stream": job_stream}[job]
    work(spark, kind, servers, topic)
    start = time.perf_counter()
    rows = work(spark, kind, servers, topic)
    took = time.perf_counter() - start
    spark.stop()
    print(json.dumps({"amount": rows, "seconds": took}))
