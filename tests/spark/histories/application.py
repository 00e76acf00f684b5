"""A real Spark application with one query, told as a life is: `python -m tests.spark.histories.application LIFE`.

It notes what its sink takes in the same story as the runs without a JVM, and ends when its standard input does.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.spark.histories.life import Run
from tests.spark.histories.settings import Life
from tests.support.waiting import ATTEMPTS, TOO_SLOW


def session(life: Life) -> Any:
    """A small Spark of this process's own, which forgets no batch."""
    from pyspark.sql import SparkSession

    from kohort.spark import register

    spark = (
        SparkSession.builder.master("local[1]")
        .appName(Path(life.folder).name)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.streaming.minBatchesToRetain", "1000000")
        .config("spark.sql.warehouse.dir", f"{life.folder}/warehouse")
        .getOrCreate()
    )
    register(spark)
    return spark


def start(spark: Any, life: Life, run: Run) -> Any:
    """The query, with a sink that notes every row."""

    def sink(batch: Any, number: int) -> None:
        ranges: dict[tuple[Any, ...], list[list[int]]] = defaultdict(list)
        for value, topic, partition, offset, generation, start, end in batch.collect():
            ranges[topic, partition, generation, start, end].append([offset, int(value)])
        run.report("write", batch=number, rows=[[*key, sorted(found)] for key, found in sorted(ranges.items())])

    return (
        spark.readStream.format("kohort")
        .options(**life.options)
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", f"{life.folder}/checkpoint-{life.checkpoint}")
        .trigger(processingTime=f"{life.interval_ms} milliseconds")
        .start()
    )


def main(text: str) -> int:
    """Runs until standard input ends; 1 when the query failed."""
    life = Life.from_json(text)
    run = Run(life)
    spark = session(life)
    run.report("begin", trigger=life.trigger)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    for _ in range(ATTEMPTS):
        query = start(spark, life, run)
        while query.isActive and not ended.wait(0.2):
            pass
        error = query.exception()
        query.stop()
        if error is None:
            run.report("stopped")
            spark.stop()
            return 0
        if TOO_SLOW not in str(error):
            break
    known = any(name in str(error) for name in ("CommitFailedError", "TimedOutError", "FencedError"))
    run.report("failed", error=str(error)[:3_000], of="known" if known else "unknown")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
