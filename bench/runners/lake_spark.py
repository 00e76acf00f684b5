"""A Spark query of a region that writes a topic into a table: `python -m bench.runners.lake_spark`.

It takes jobs as lines of JSON, each followed by lines `checkpoint` and `stop`, one after the other in one session. It
prints lines of JSON: `ready`, when the first batch with rows began, how many rows all batches have had, and `stopped`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from bench.runners.lake import send_line, sink_of
from bench.runners.spark import end_session, session
from kohort.spark import SparkRegion, register


class Progress(StreamingQueryListener):
    """Tells when the first batch with rows began, and how many rows all batches have had."""

    def __init__(self) -> None:
        self.rows = 0

    def begin(self) -> None:
        """Count from 0 again, for the next job."""
        self.rows = 0

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...  # noqa: N802 - Spark's names

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...  # noqa: N802

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...  # noqa: N802

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = json.loads(event.progress.json)
        if progress["numInputRows"]:
            if not self.rows:
                send_line(began=time.monotonic() - progress["durationMs"]["triggerExecution"] / 1000)
            self.rows += progress["numInputRows"]
            send_line(rows=self.rows)


def lines_of(records: DataFrame) -> DataFrame:
    """Return the rows of records: what every contender writes."""
    return records.selectExpr("partition", "offset", "timestamp", "CAST(value AS STRING) AS line")


def run_job(spark: Any, job: dict[str, Any]) -> None:
    """Run the query of a job until it is to stop."""
    region = SparkRegion(
        spark, job["region"], job["servers"], folder=Path(job["folder"], job["region"]), checkpoint_every=job["every"]
    )
    source = {"subscribe": job["topic"], "group.id": job["region"]}
    region.query("query", lines_of, source=source, into=sink_of(job), start="beginning")
    region.start()
    while sys.stdin.readline().strip() == "checkpoint":
        region.checkpoint()
    region.close(gently=False)
    send_line(stopped=True)


def main() -> None:
    """Do one job after the other."""
    spark, progress = session(""), Progress()
    register(spark)
    spark.streams.addListener(progress)
    send_line(ready=True)
    for line in sys.stdin:
        progress.begin()
        run_job(spark, json.loads(line))
    end_session(spark)


if __name__ == "__main__":
    main()
