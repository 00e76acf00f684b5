"""A program that runs a region, in a process and an environment of its own: told by JSON what."""

from __future__ import annotations

import json
import logging
import sys
from typing import TypedDict

import pyspark
from pyspark.sql import SparkSession

from kohort.region.sinks.parquet_folder import ParquetFolder
from kohort.spark import SparkRegion


class Order(TypedDict):
    """The program's input."""

    servers: str
    region: str
    topic: str
    group: str
    folder: str
    until: str | None


def main(order: Order) -> None:
    """Runs until it is stopped or has caught up; then says that it came to its end."""
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    folder = order["folder"]
    region = SparkRegion(session, order["region"], order["servers"], folder=f"{folder}/regions", checkpoint_every="60s")
    region.query(
        "q",
        lambda frame: frame.selectExpr("CAST(value AS STRING) AS line").dropDuplicates(["line"]),
        source={"subscribe": order["topic"], "group.id": order["group"]},
        into=ParquetFolder(f"{folder}/out"),
        start="beginning",
    )
    region.run(until=order["until"])  # type: ignore[arg-type]
    print(f"ended well with {pyspark.__version__}", flush=True)
    session.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    main(json.loads(sys.argv[1]))
