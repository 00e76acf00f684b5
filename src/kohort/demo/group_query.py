"""A Spark application whose query is a member of a consumer group, and whose sink is a folder of Parquet files.

    python -m kohort.demo.group_query --name anna --servers 127.0.0.1:9092 --topic flights --group etl --folder out

Two of them with different names share the topic's partitions. When one is killed, the other takes its partitions over,
and continues at the committed offsets. A batch that was written and not committed is then written again: at least once.
"""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from kohort.spark import register

FLIGHT = "carrier string, origin string, dest string, hour int, dep_delay int, arr_delay int"
WORKER_START_ATTEMPTS_MAX, WORKER_START_TIMEOUT = 30, "failed to connect back"
"""Spark gives a Python worker ten seconds to start, which a busy machine can miss; it has no class for that error."""


def parse_arguments(what: str | None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=what)
    for name in ("name", "servers", "topic", "group", "folder"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--client", action="append", default=[], metavar="NAME=VALUE", help="a Kafka client property")
    arguments = parser.parse_args()
    arguments.folder = Path(arguments.folder).absolute()
    arguments.client = dict(pair.split("=", 1) for pair in arguments.client)
    return arguments


def start_spark(arguments: argparse.Namespace) -> SparkSession:
    """Start a small local Spark, and register the source in it."""
    spark = (
        SparkSession.builder.master("local[1]")
        .appName(arguments.name)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.sql.warehouse.dir", str(arguments.folder / "warehouse"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    return spark


def source_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options of the source. A short session lets a killed member's partitions move soon on any broker."""
    return {
        "kafka.bootstrap.servers": arguments.servers,
        "subscribe": arguments.topic,
        "group.id": arguments.group,
        "maxOffsetsPerTrigger": "40000",
        "kafka.session.timeout.ms": "6000",
        "kafka.heartbeat.interval.ms": "1000",
        **{f"kafka.{name}": value for name, value in arguments.client.items()},
    }


def flight_rows(records: DataFrame) -> DataFrame:
    """Return a row for each flight, with its record's partition and offset."""
    flight = f.from_json(f.col("value").cast("string"), FLIGHT)
    return records.select("partition", "offset", flight.alias("flight")).select("partition", "offset", "flight.*")


def start_query(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """Start the query. Each batch replaces the folder of its number, so that a repeated batch is there once."""

    def write_batch(batch: DataFrame, number: int) -> None:
        target = arguments.folder / "batches" / f"member={arguments.name}" / f"batch={number:06}"
        flight_rows(batch).coalesce(1).write.mode("overwrite").parquet(str(target))

    return (
        spark.readStream.format("kohort")
        .options(**source_options(arguments))
        .option("startingOffsets", "earliest")
        .option("kafka.client.id", arguments.name)
        .option("columns", "value,partition,offset")
        .load()
        .writeStream.foreachBatch(write_batch)
        .option("checkpointLocation", str(arguments.folder / f"checkpoint-{arguments.name}"))
        .trigger(processingTime="1500 milliseconds")
        .start()
    )


def main() -> None:
    """Run the query until SIGTERM. Raise its error."""
    arguments = parse_arguments(__doc__)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    spark = start_spark(arguments)
    for attempt in range(WORKER_START_ATTEMPTS_MAX):
        query = start_query(spark, arguments)
        while query.isActive and not ended.wait(0.2):
            pass
        error = query.exception()
        query.stop()
        if error is None:
            break
        no_worker = WORKER_START_TIMEOUT in str(error)  # by text: Spark's error has no code
        if not no_worker or attempt + 1 == WORKER_START_ATTEMPTS_MAX:
            raise error
    spark.stop()


if __name__ == "__main__":
    main()
