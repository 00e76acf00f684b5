"""One member of the demo's group: a Spark application of its own, `python -m kohort.demo.member SETTINGS`.

It reports events as lines of JSON on standard output, and ends when its standard input is closed.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from kohort.demo.member_settings import MemberSettings
from kohort.spark import register

FLIGHT = "carrier string, flight int, origin string, dest string, day string, hour int, dep_delay int, arr_delay int"
ATTEMPTS = 30
TOO_SLOW = "failed to connect back"
SOURCE_COLUMNS = "value,partition,generation,rangeStart,rangeEnd"


def say(event: str, **facts: Any) -> None:
    """Print an event as one line, for the demo's process."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def session(settings: MemberSettings) -> SparkSession:
    """Start a small local Spark in this process."""
    builder = (
        SparkSession.builder.master(f"local[{settings.cores}]")
        .appName(f"kohort demo {settings.name}")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", settings.memory)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.warehouse.dir", str(Path(settings.folder) / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
    )
    spark = builder.getOrCreate()
    register(spark)
    return spark


def aggregates(batch: DataFrame) -> DataFrame:
    """Sum a batch by range, carrier, connection and hour."""
    flight = f.from_json(f.col("value").cast("string"), FLIGHT)
    flat = batch.select("partition", "rangeStart", "rangeEnd", "generation", flight.alias("v"))
    keys = [f.col(f"v.{name}").alias(name) for name in ("carrier", "origin", "dest", "hour")]
    return flat.groupBy("partition", "rangeStart", "rangeEnd", "generation", *keys).agg(
        f.count("*").alias("flights"),
        f.count("v.dep_delay").alias("dep_known"),
        f.coalesce(f.sum("v.dep_delay"), f.lit(0)).alias("dep_minutes"),
        f.count("v.arr_delay").alias("arr_known"),
        f.coalesce(f.sum("v.arr_delay"), f.lit(0)).alias("arr_minutes"),
    )


class Writer:
    """A `foreachBatch` function that writes each batch to a folder of its number: a repeated batch is replaced."""

    def __init__(self, settings: MemberSettings) -> None:
        self._name = settings.name
        self._folder = Path(settings.folder) / "batches" / f"member={settings.name}"

    def __call__(self, batch: DataFrame, number: int) -> None:
        started = time.monotonic()
        target = self._folder / f"batch={number:06}"
        aggregates(batch).coalesce(1).write.mode("overwrite").parquet(str(target))
        ranges: dict[tuple[int, int, int, int], int] = {}
        for file in sorted(target.glob("*.parquet")):
            columns = ["partition", "rangeStart", "rangeEnd", "generation", "flights"]
            for row in pq.ParquetFile(file).read(columns=columns).to_pylist():
                key = (row["partition"], row["rangeStart"], row["rangeEnd"], row["generation"])
                ranges[key] = ranges.get(key, 0) + row["flights"]
        say(
            "batch",
            member=self._name,
            batch=number,
            rows=sum(ranges.values()),
            ranges=[{"partition": p, "start": s, "end": e, "generation": g} for p, s, e, g in sorted(ranges)],
            seconds=round(time.monotonic() - started, 3),
        )


def _await_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


def start(spark: SparkSession, settings: MemberSettings) -> StreamingQuery:
    """Start the query, as a member of the group."""
    return (
        spark.readStream.format("kohort")
        .options(**settings.options, columns=SOURCE_COLUMNS)
        .load()
        .writeStream.foreachBatch(Writer(settings))
        .option("checkpointLocation", str(Path(settings.folder) / f"checkpoint-{settings.name}"))
        .trigger(processingTime=f"{round(settings.trigger_s * 1000)} milliseconds")
        .start()
    )


def run(spark: SparkSession, settings: MemberSettings, ended: threading.Event) -> str | None:
    """Run the query until `ended`; return its error, or None.

    Spark gives a Python worker ten seconds to start. A machine that starts two Sparks at once can miss this limit. The
    query is then started again, from its checkpoint.
    """
    for _ in range(ATTEMPTS):
        query = start(spark, settings)
        while query.isActive and not ended.wait(0.2):
            pass
        error = query.exception()
        query.stop()
        if error is None:
            return None
        if TOO_SLOW not in str(error):  # by text: Spark has no class for it
            break
    return str(error)


def main(argument: str) -> int:
    """Run until standard input ends.

    Args:
        argument: MemberSettings as JSON.
    """
    settings = MemberSettings(**json.loads(argument))
    spark = session(settings)
    say("started", member=settings.name)
    ended = threading.Event()
    threading.Thread(target=_await_end, args=(ended,), daemon=True).start()
    error = run(spark, settings, ended)
    if error is not None:
        say("failed", member=settings.name, error=error)
        return 1
    say("stopped", member=settings.name)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
