"""A program like a user's: writes a topic, reads it as a batch and as a stream, copies it, looks at the group's lag.

Run as a process of its own, in any place and on any version of Spark: `application.py ORDER`, where ORDER is JSON (see
`Order`). The last line that it prints is JSON: what it saw.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TypedDict

from pyspark.sql import SparkSession

from kohort.spark import register


class Order(TypedDict):
    """The program's input.

    Attributes:
        place: the session's master, or the address of a Spark Connect server.
        settings: of the session.
        kafka: options that say where the brokers are and how to log in.
        topic, copy, group: names; the topics exist.
        name: goes into every record's value.
        count: records to write.
        folder: where it may write.
        copies: whether the topic is streamed into the other one, too.
    """

    place: str
    settings: dict[str, str]
    kafka: dict[str, str]
    topic: str
    copy: str
    group: str
    name: str
    count: int
    folder: str
    copies: bool


def session(order: Order) -> Any:
    """A session in the place."""
    remote = order["place"].startswith("sc://")
    builder = SparkSession.builder.remote(order["place"]) if remote else SparkSession.builder.master(order["place"])
    for key, value in order["settings"].items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def write(spark: Any, order: Order) -> None:
    """Each id once into the topic, from two tasks."""
    rows = spark.range(0, order["count"], 1, 2).selectExpr(
        "CAST(id AS STRING) AS key", f"concat('{order['name']}-', id) AS value", "CAST(id % 2 AS INT) AS partition"
    )
    rows.write.format("kohort").options(**order["kafka"]).option("topic", order["topic"]).mode("append").save()


def values(frame: Any) -> list[str]:
    """The records' values as text, in order."""
    return sorted(row["value"] for row in frame.selectExpr("CAST(value AS STRING) AS value").collect())


def read(spark: Any, order: Order) -> list[str]:
    """The topic as a batch."""
    return values(spark.read.format("kohort").options(**order["kafka"]).option("subscribe", order["topic"]).load())


def stream(spark: Any, order: Order) -> tuple[list[str], dict[str, Any]]:
    """The topic as a stream of a group's member, each micro-batch into Parquet by `foreachBatch`."""
    parquet = str(Path(order["folder"]) / "streamed")

    def sink(frame: Any, number: int) -> None:
        frame.selectExpr("value", f"{number} AS batch").write.mode("append").parquet(parquet)

    query = (
        spark.readStream.format("kohort")
        .options(**order["kafka"])
        .option("subscribe", order["topic"])
        .option("group.id", order["group"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", (order["count"] + 1) // 2)
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(Path(order["folder"]) / "checkpoint-stream"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    streamed = spark.read.parquet(parquet)
    numbers = sorted(row["batch"] for row in streamed.select("batch").distinct().collect())
    return values(streamed), {"batches": numbers}


def copy(spark: Any, order: Order) -> None:
    """The topic as a stream into another one."""
    query = (
        spark.readStream.format("kohort")
        .options(**order["kafka"])
        .option("subscribe", order["topic"])
        .option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
        .writeStream.format("kohort")
        .options(**order["kafka"])
        .option("topic", order["copy"])
        .option("checkpointLocation", str(Path(order["folder"]) / "checkpoint-copy"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def lag(spark: Any, order: Order) -> list[list[int]]:
    """Partition, committed offset and lag of each partition of the group."""
    table = spark.read.format("kohort").options(**order["kafka"]).option("table", "lag")
    rows = table.option("group.id", order["group"]).load().collect()
    return sorted([row["partition"], row["committed"], row["lag"]] for row in rows)


def main(order: Order) -> None:
    spark = session(order)
    register(spark)
    write(spark, order)
    seen: dict[str, Any] = {"version": spark.version, "read": read(spark, order)}
    seen["streamed"], more = stream(spark, order)
    if order["copies"]:
        copy(spark, order)
    seen["lag"] = lag(spark, order)
    spark.stop()
    print(json.dumps(seen | more))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
