"""Reads a topic with PySpark, local[2]: `python -m bench.runners.spark FORMAT JOB SERVERS TOPIC COUNT JARS`.

FORMAT is kohort, kafka (Spark's own source, from JARS) or tuned (the same with settings for throughput). JOB is

    sum      a batch query over the values
    pair     a batch read of keys and values into the noop sink
    stream   a streaming query with the trigger availableNow into the noop sink, all columns
    json     a batch read of JSON values as a struct into the noop sink, by from_json
    typed    the same by the source's own valueFormat

The job runs twice; the second, warm run is on the clock. Besides: CPU seconds of all its processes, and for a stream
the ms of its trigger alone.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession, functions

from kohort.demo.play import session_processes

TUNED = {
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
    "kafka.max.poll.records": "20000",
    "kafka.receive.buffer.bytes": str(1024 * 1024),
}
"""What makes Spark's own source fastest here."""


def cpu_s() -> float:
    """CPU seconds of this session's processes, those that have ended included."""
    ticks = 0
    for pid in session_processes(os.getsid(0)):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


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


def end_session(spark: SparkSession) -> None:
    """Stop a session, and wait for its JVM, whose processor time would otherwise count as that of others."""
    jvm = spark.sparkContext._gateway.proc
    spark.stop()
    jvm.stdin.close()
    jvm.wait(30)


def read(spark: SparkSession, kind: str, servers: str, topic: str, streaming: bool, **options: str) -> DataFrame:
    """The topic from its beginning."""
    reader = spark.readStream if streaming else spark.read
    if kind == "tuned":
        kind, options = "kafka", TUNED | options
    return (
        reader.format(kind)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
    )


def job_sum(spark: SparkSession, kind: str, servers: str, topic: str) -> int:
    """Counts the rows and sums the lengths of the values."""
    frame = read(spark, kind, servers, topic, streaming=False)
    row = frame.selectExpr("count(*) AS rows", "sum(length(value)) AS bytes").first()
    return int(row["rows"]) if row is not None else 0


def job_pair(spark: SparkSession, kind: str, servers: str, topic: str) -> int:
    """Keys and values of all rows, to nowhere."""
    options = {"columns": "key,value"} if kind == "kohort" else {}
    return into_noop(read(spark, kind, servers, topic, streaming=False, **options).select("key", "value"))


JSON_FIELDS = "id BIGINT, name STRING, score DOUBLE, ok BOOLEAN, at TIMESTAMP, tags ARRAY<STRING>"


def job_json(spark: SparkSession, kind: str, servers: str, topic: str) -> int:
    """Every value as a struct, by from_json."""
    frame = read(spark, kind, servers, topic, streaming=False)
    if kind == "kohort":  # Spark's own source leaves out what is not asked for by itself
        frame = read(spark, kind, servers, topic, streaming=False, columns="value")
    return into_noop(frame.select(functions.from_json(frame["value"].cast("string"), JSON_FIELDS).alias("value")))


def job_typed(spark: SparkSession, kind: str, servers: str, topic: str) -> int:
    """Every value as a struct, by the source."""
    options = {"columns": "value", "valueFormat": "json", "valueSchema": JSON_FIELDS}
    return into_noop(read(spark, kind, servers, topic, streaming=False, **options))


def into_noop(frame: DataFrame) -> int:
    """Writes every row to nowhere; their number."""
    seen = Observation("seen")
    values = functions.count("value").alias("values")
    frame.observe(seen, values).write.format("noop").mode("overwrite").save()
    return int(seen.get["values"])


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
        facts["trigger_ms"] = sum(progress.durationMs["triggerExecution"] for progress in query.recentProgress)
        return sum(progress.numInputRows for progress in query.recentProgress)


facts: dict[str, float] = {}


if __name__ == "__main__":
    kind, job, servers, topic, count, jars = sys.argv[1:]
    os.setsid()
    spark = session(jars)
    if kind == "kohort":
        from kohort.spark import register

        register(spark)
    work = {"sum": job_sum, "pair": job_pair, "stream": job_stream, "json": job_json, "typed": job_typed}[job]
    work(spark, kind, servers, topic)
    used, start = cpu_s(), time.perf_counter()
    rows = work(spark, kind, servers, topic)
    took, used = time.perf_counter() - start, cpu_s() - used
    end_session(spark)
    print(json.dumps({"amount": rows, "seconds": took, "cpu_s": used, **facts}))
