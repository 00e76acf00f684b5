"""Writes a topic with PySpark, local[2]: `python -m bench.runners.spark_write FORMAT SERVERS TOPIC COUNT JARS`.

FORMAT is kohort or kafka (Spark's own sink, from JARS). The rows are made by Spark as they are written: values of 100
bytes, no keys. The job runs twice; the second, warm run is on the clock.
"""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import SparkSession

from bench.runners.spark import end_session, session


def write(spark: SparkSession, kind: str, servers: str, topic: str, count: int) -> None:
    """Write `count` records from two tasks."""
    frame = spark.range(0, count, 1, 2).selectExpr("lpad(CAST(id AS STRING), 100, 'x') AS value")
    frame.write.format(kind).option("kafka.bootstrap.servers", servers).option("topic", topic).mode("append").save()


if __name__ == "__main__":
    kind, servers, topic, count, jars = sys.argv[1:]
    spark = session(jars)
    if kind == "kohort":
        from kohort.spark import register

        register(spark)
    write(spark, kind, servers, topic, int(count))
    start = time.perf_counter()
    write(spark, kind, servers, topic, int(count))
    took = time.perf_counter() - start
    end_session(spark)
    print(json.dumps({"amount": int(count), "seconds": took}))
