"""Reads of the same topics by Spark's own Kafka source and by ours, in one session."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kohort.spark import register

FORMATS = ("kafka", "kohort")
STARTS = 5
LATE = "worker failed to connect back"
"""Spark's words of a Python process that took more than ten seconds to come up: the machine was too busy."""


def outcomes_of(spark: SparkSession, folder: Path, reads: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The rows and tasks of each read by both formats, or the last line of its error; options of Spark's source.

    Args:
        spark: a session that has both sources.
        folder: an empty folder for the checkpoints.
        reads: options of each, and whether it is a stream.
    """
    outcomes: dict[str, Any] = {"options": options_of_sparks_source(spark), "reads": {}}
    for number, (name, read) in enumerate(reads.items()):
        outcomes["reads"][name] = {kind: surely(spark, kind, folder / f"{number}-{kind}", read) for kind in FORMATS}
    return outcomes


def session(jars: str) -> SparkSession:
    """A small session that has both sources."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.driver.memory", "768m")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    register(spark)
    return spark


def surely(spark: SparkSession, kind: str, folder: Path, read: dict[str, Any]) -> dict[str, Any]:
    """The outcome of a read, tried again where Spark's Python process came up late."""
    found = outcome(spark, kind, folder / "0", read)
    for number in range(1, STARTS):
        if LATE not in found.get("error", ""):
            break
        found = outcome(spark, kind, folder / str(number), read)
    return found


def outcome(spark: SparkSession, kind: str, folder: Path, read: dict[str, Any]) -> dict[str, Any]:
    """Rows and tasks of one read, or its error; `read` has options, and whether it is a stream."""
    try:
        if not read.get("stream"):
            frame = spark.read.format(kind).options(**read["options"]).load()
            return {"rows": rows_of(frame)}
        frame = spark.readStream.format(kind).options(**read["options"]).load()
        batches: list[list[Any]] = []
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: batches.append(rows_of(batch)))
            .option("checkpointLocation", str(folder))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return {"rows": sorted(row for rows in batches for row in rows), "batches": [len(rows) for rows in batches]}
    except Exception as error:  # noqa: BLE001 - whatever a read ends with is its outcome
        return {"error": str(error)[:2_000] + str(error)[-2_000:]}


def rows_of(frame: DataFrame) -> list[list[str]]:
    """All columns of all rows as text, in the order of topics, partitions and offsets."""
    columns = [f"CAST({name} AS STRING)" for name in sorted(frame.columns)]
    return sorted([str(value) for value in row] for row in frame.selectExpr(*columns).collect())


def options_of_sparks_source(spark: SparkSession) -> list[str]:
    """The names of options that Spark's source and sink have, in lower case, by their constants."""
    jvm: Any = spark.sparkContext._jvm
    kind = jvm.org.apache.spark.util.Utils.classForName(
        "org.apache.spark.sql.kafka010.KafkaSourceProvider$", True, False
    )
    provider = kind.getField("MODULE$").get(None)
    found: list[str] = []
    for constant in kind.getDeclaredFields():
        constant.setAccessible(True)
        value = constant.get(provider)
        found += (
            [str(value)]
            if isinstance(value, str)
            else value.mkString(",").split(",")
            if "KEYS" in constant.getName()
            else []
        )
    return sorted(found)
