"""Small micro-batches with PySpark, local[2].

`python -m bench.runners.spark_small FORMAT JOB SERVERS TOPIC COUNT JARS`: FORMAT is kohort (with a group), kafka
(Spark's own source, from JARS) or tuned. JOB is

    tiny     COUNT batches of 400 rows into the noop sink, one after another; the ms that a batch took
    start    COUNT queries, one after another; the ms from a query's start to the commit of its first batch
    latency  COUNT records, one every 20 ms; the ms from a record's send to the end of the sink that has it

Batches of the first seconds, while Spark is warming up, are left out. A figure's rate is batches, starts or records a
second.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.runners.spark import end_session, read, session
from kohort import Producer

ROWS = 400
WARM_BATCHES = 10
WARM_STARTS = 2
START_TIMEOUT_S = 120
WARM_RECORDS = 200
PAUSE_S = 0.02


def frame(spark: SparkSession, kind: str, servers: str, topic: str, **options: str) -> DataFrame:
    """The topic as a stream; ours in a group, since that is what it is for."""
    if kind == "kohort":
        options["group.id"] = f"bench-{uuid.uuid4().hex[:8]}"
    return read(spark, kind, servers, topic, streaming=True, **options)


def job_tiny(spark: SparkSession, kind: str, servers: str, topic: str, count: int, folder: str) -> dict[str, float]:
    """The median of a batch's whole time, and of what Spark says of its parts."""
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(count + WARM_BATCHES + 10))
    query = (
        frame(spark, kind, servers, topic, maxOffsetsPerTrigger=str(ROWS))
        .writeStream.format("noop")
        .option("checkpointLocation", folder)
        .start()
    )
    query.processAllAvailable()
    batches = [progress for progress in query.recentProgress if progress.numInputRows][WARM_BATCHES:]
    query.stop()
    took = [batch.durationMs["triggerExecution"] for batch in batches]
    result = {
        name: statistics.median(batch.durationMs.get(name, 0) for batch in batches)
        for name in ("latestOffset", "addBatch", "queryPlanning", "walCommit", "commitOffsets")
    }
    return {
        "amount": len(batches),
        "seconds": sum(took) / 1000,
        "batch_ms": statistics.median(took),
        **{f"{name}_ms": value for name, value in result.items()},
    }


def job_start(spark: SparkSession, kind: str, servers: str, topic: str, count: int, folder: str) -> dict[str, float]:
    """The median from a query's start to the end of its first batch, which the checkpoint's commit log shows."""
    took: list[float] = []
    for number in range(WARM_STARTS + count):
        checkpoint = Path(folder, str(number))
        writer = frame(spark, kind, servers, topic).writeStream.format("noop")
        start = time.perf_counter()
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        while not (checkpoint / "commits" / "0").exists():
            if not query.isActive or time.perf_counter() - start > START_TIMEOUT_S:
                raise RuntimeError(f"no first batch: {query.exception()}")
            time.sleep(0.002)
        took.append(time.perf_counter() - start)
        query.stop()
    warm = took[WARM_STARTS:]
    return {"amount": len(warm), "seconds": sum(warm), "start_ms": statistics.median(warm) * 1000}


def job_latency(spark: SparkSession, kind: str, servers: str, topic: str, count: int, folder: str) -> dict[str, float]:
    """The median and the worst of a hundred from `send` to the end of the sink."""
    waited: list[float] = []
    first, done = threading.Event(), threading.Event()

    def sink(rows: Any, _number: int) -> None:
        sent = [float(bytes(row["value"])) for row in rows.select("value").collect()]
        now = time.time()
        waited.extend((now - at) * 1000 for at in sent)
        if waited:
            first.set()
        if len(waited) > count + WARM_RECORDS:
            done.set()

    query: StreamingQuery = (
        frame(spark, kind, servers, topic).writeStream.foreachBatch(sink).option("checkpointLocation", folder).start()
    )
    with Producer(servers, linger_ms=0) as producer:
        producer.send(topic, b"%.6f" % time.time())
        first.wait(60)
        start = time.perf_counter()
        for _ in range(count + WARM_RECORDS):
            producer.send(topic, b"%.6f" % time.time())
            time.sleep(PAUSE_S)
    done.wait(60)
    took = time.perf_counter() - start
    query.stop()
    warm = sorted(waited[WARM_RECORDS:])
    return {
        "amount": len(warm),
        "seconds": took,
        "p50_ms": statistics.median(warm),
        "p99_ms": warm[len(warm) * 99 // 100],
    }


if __name__ == "__main__":
    kind, job, servers, topic, count, jars = sys.argv[1:]
    spark = session(jars)
    if kind == "kohort":
        from kohort.spark import register

        register(spark)
    work = {"tiny": job_tiny, "start": job_start, "latency": job_latency}[job]
    with tempfile.TemporaryDirectory(prefix="kohort-bench-spark-") as folder:
        result = work(spark, kind, servers, topic, int(count), folder)
    end_session(spark)
    print(json.dumps(result))
