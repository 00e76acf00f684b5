"""Batch reads: ranges of offsets, of times, and SQL over a topic."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession
from tests.spark.ports.job_site import FIRST_MS, JobSite, Rows, job


@job()
def a_range_of_offsets(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A backfill of known ranges: `startingOffsets` and `endingOffsets` in JSON for each partition of two topics."""
    one, two = (site.fill(name, [f"{name}{number}" for number in range(10)]) for name in ("a", "b"))
    frame = site.batch(
        source,
        subscribe=f"{one},{two}",
        startingOffsets=json.dumps({one: {"0": 1, "1": -2}, two: {"0": 0, "1": 3}}),
        endingOffsets=json.dumps({one: {"0": 4, "1": 2}, two: {"0": -1, "1": 3}}),
    )
    return frame.selectExpr("topic", "partition", "offset", "CAST(value AS STRING)").collect()


@job()
def an_hour_by_timestamps(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A report on an interval of time: offsets by timestamps, minima and maxima of each partition."""
    topic = site.fill("events", [f"{number}" for number in range(20)])
    times = {
        "startingOffsetsByTimestamp": json.dumps({topic: {"0": FIRST_MS + 5_000, "1": FIRST_MS + 6_000}}),
        "endingTimestamp": str(FIRST_MS + 15_000),
    }
    frame = site.batch(source, subscribe=topic, minPartitions="3", **times)
    numbers = frame.selectExpr("partition", "offset", "timestamp", "CAST(CAST(value AS STRING) AS INT) AS number")
    return numbers.groupBy("partition").agg({"offset": "max", "timestamp": "min", "number": "sum"}).collect()


@job()
def sql_over_a_compacted_topic(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """The newest value of each key by SQL over a temporary view, deleted keys left out."""
    values: list[Any] = [(f"k{number % 4}", None if number == 9 else f"v{number}", []) for number in range(10)]
    view = f"settings_{source}"
    site.batch(source, subscribe=site.fill("settings", values, partitions=1), endingOffsets="latest") \
        .createOrReplaceTempView(view)  # fmt: skip
    return spark.sql(
        f"""
        WITH newest AS (
            SELECT CAST(key AS STRING) AS key, max_by(CAST(value AS STRING), offset) AS value, max(offset) AS offset
            FROM (SELECT key, COALESCE(value, X'') AS value, offset FROM {view}) GROUP BY key
        )
        SELECT * FROM newest WHERE value <> '' ORDER BY key
        """
    ).collect()
