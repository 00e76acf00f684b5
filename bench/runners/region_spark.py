"""Spark queries of a region over a topic: `python -m bench.runners.region_spark HOW SERVERS TOPIC COUNT JARS`.

HOW is

    spark     Spark's own Kafka source, from JARS, into its Parquet file sink, with its checkpoint
    never     a query of a region that takes no sequence
    5s, 1s    the same with a sequence every so often
    beside    the same as 5s, beside another query of the region that waits a second in each batch
    cuts      two queries at half their rate; COUNT sequences are asked for, and timed by the control plane
    reset     three queries that are reset COUNT times: from the order until each has done a batch again
    by-hand   three queries of groups of their own that stage alike, without a region, stopped and started COUNT times
    join-checkpoint, join-reset    a second query joins the first's group: until both have done a batch in what they got

The clock of the first five runs from the first batch that has rows to the end of the last one.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from bench.runners.spark import end_session, session
from kohort import Producer
from kohort.region import ParquetFolder
from kohort.region.messages import RegionStatus
from kohort.spark import SparkRegion, register
from kohort.spark.region.query_factory import build_query
from kohort.spark.region.staging import QueryOutput, StagingTask, make_batch_stager

MOST = "400000"
"""Records of a batch: so a run has ten of them."""
FEW = "200"
"""The same where queries are started often, and each time is to have something to read."""
PATIENCE_S = 300.0


class Rows(StreamingQueryListener):
    """How many rows queries have read, by the time each batch was done."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.began_s = self.ended_s = 0.0
        self.count = 0
        self.batches: dict[str, int] = {}  # by run: a query that is started again has another one

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...  # noqa: N802 - Spark's names

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...  # noqa: N802

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...  # noqa: N802

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        result = json.loads(event.progress.json)
        if not result["numInputRows"]:
            return
        with self.lock:
            now = time.perf_counter()
            took_s = result["durationMs"]["triggerExecution"] / 1000
            self.began_s = self.began_s or now - took_s
            self.ended_s = now
            self.count += result["numInputRows"]
            self.batches[result["runId"]] = self.batches.get(result["runId"], 0) + 1
            self.lock.notify_all()

    def until(self, done: Callable[[], bool]) -> None:
        """Wait for it.

        Raises:
            TimeoutError: it takes too long.
        """
        with self.lock:
            if not self.lock.wait_for(done, PATIENCE_S):
                raise TimeoutError(f"{self.count} rows in {PATIENCE_S:g} s")

    def until_runs(self, count: int, do: Callable[[], object]) -> float:
        """Call `do`, and wait until `count` new runs have done a batch; return the seconds."""
        with self.lock:
            before = set(self.batches)
        began_s = time.perf_counter()
        do()
        self.until(lambda: len(self.batches.keys() - before) >= count)
        return time.perf_counter() - began_s


def lines(frame: DataFrame) -> DataFrame:
    """Return the computation of every query here."""
    return frame.selectExpr("CAST(value AS STRING) AS line", "partition", "offset")


def slow_lines(frame: DataFrame) -> DataFrame:
    """Return the computation with a second's wait in each batch."""
    return lines(frame).where("line IS NOT NULL AND java_method('java.lang.Thread', 'sleep', 1000L) IS NULL")


class Stage:
    """A session with its listener, a folder and a region."""

    def __init__(self, servers: str, topic: str, folder: Path, jars: str = "", every: str | None = None) -> None:
        self.spark: SparkSession = session(jars)
        register(self.spark)
        self.servers, self.topic, self.folder = servers, topic, folder
        self.rows = Rows()
        self.spark.streams.addListener(self.rows)
        self.name = f"bench-{uuid.uuid4().hex[:12]}"
        self.region = SparkRegion(self.spark, self.name, servers, folder=folder / "region", checkpoint_every=every)

    def source(self, group: str, most: str = MOST) -> dict[str, str]:
        return {"subscribe": self.topic, "group.id": f"{self.name}-{group}", "maxOffsetsPerTrigger": most}

    def alone(self, name: str) -> StreamingQuery:
        """Start a query without a region that stages the same rows for the same sink and never publishes them."""
        options = {
            **self.source(name, FEW),
            "kafka.bootstrap.servers": self.servers,
            "startingOffsets": "earliest",
        }
        (rows, _), region_id = build_query(self.spark, lines, [options]), uuid.uuid4()
        schema = to_arrow_schema(rows.schema, timezone="UTC")
        sink = ParquetFolder(self.folder / f"{name}-{region_id.hex}").bind(self.name, region_id)
        sink.check(schema)
        stage = make_batch_stager(StagingTask(QueryOutput(sink), schema, region_id, 0, name))

        def staging(batch: DataFrame, _: int) -> None:
            stage(batch)

        writer = rows.writeStream.foreachBatch(staging)
        return writer.option("checkpointLocation", str(self.folder / f"checkpoint-{name}")).start()

    def sequence(self) -> RegionStatus:
        """Request a sequence, and return it."""
        before = self.region.describe().sequence
        self.region.checkpoint()
        while (seen := self.region.describe()).sequence == before:
            time.sleep(0.005)
        return seen

    def query(self, name: str, group: str, build: Any = lines, most: str = MOST, **options: Any) -> None:
        into = ParquetFolder(self.folder / name)
        self.region.query(name, build, source=self.source(group, most), into=into, start="beginning", **options)


def throughput(how: str, servers: str, topic: str, count: int, jars: str, folder: Path) -> dict[str, float]:
    """Rows a second."""
    stage = Stage(servers, topic, folder, jars, {"never": None, "spark": None, "beside": "5s"}.get(how, how))
    if how == "spark":
        frame = stage.spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
        frame = frame.option("subscribe", topic).option("startingOffsets", "earliest")
        writer = lines(frame.option("maxOffsetsPerTrigger", MOST).load()).writeStream.format("parquet")
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "out"))
        stage.rows.until(lambda: stage.rows.count >= count)
        query.stop()
    else:
        if how == "beside":
            stage.query("slow", "slow", slow_lines, most="1000")
        stage.query("fast", "fast")
        stage.region.start()
        stage.rows.until(lambda: stage.rows.count >= count)
        stage.region.close(gently=False)
    end_session(stage.spark)
    return {"amount": count, "seconds": stage.rows.ended_s - stage.rows.began_s}


def cuts(servers: str, topic: str, count: int, folder: Path) -> dict[str, float]:
    """From the beginning of a sequence to its completion, by the control plane's clock."""
    stage = Stage(servers, topic, folder)
    for name in ("a", "b"):
        stage.query(name, "both", most="1000")
    stage.region.start()
    stage.rows.until(lambda: len(stage.rows.batches) == 2)
    feeding = threading.Event()
    feeder = threading.Thread(target=_feed, args=(servers, topic, feeding))
    feeder.start()
    took_ms = []
    for _ in range(count):
        took_ms.append(stage.sequence().sequence_ms)
        time.sleep(0.2)
    feeding.set()
    feeder.join()
    stage.region.close(gently=False)
    end_session(stage.spark)
    p99 = sorted(took_ms)[max(0, len(took_ms) * 99 // 100 - 1)]
    return {"amount": count, "seconds": sum(took_ms) / 1000, "p50_ms": statistics.median(took_ms), "p99_ms": p99}


def _feed(servers: str, topic: str, ended: threading.Event) -> None:
    with Producer(servers) as producer:
        while not ended.wait(0.1):
            for number in range(500):
                producer.send(topic, b"x" * 100, partition=number % 4)
            producer.flush()


def resets(servers: str, topic: str, count: int, folder: Path) -> dict[str, float]:
    """Three queries go back."""
    stage = Stage(servers, topic, folder)
    for name in "abc":
        stage.query(name, name, most=FEW)
    stage.rows.until_runs(3, stage.region.start)
    stage.sequence()
    took_s = sum(stage.rows.until_runs(3, lambda: stage.region.reset("a bench")) for _ in range(count))
    stage.region.close(gently=False)
    end_session(stage.spark)
    return {"amount": count, "seconds": took_s}


def by_hand(servers: str, topic: str, count: int, folder: Path) -> dict[str, float]:
    """Three queries of groups of their own are stopped and started."""
    stage = Stage(servers, topic, folder)
    queries: list[StreamingQuery] = []

    def start_again() -> None:
        for query in queries:
            query.stop()
        queries[:] = [stage.alone(name) for name in "abc"]

    stage.rows.until_runs(3, start_again)
    took_s = sum(stage.rows.until_runs(3, start_again) for _ in range(count))
    for query in queries:
        query.stop()
    end_session(stage.spark)
    return {"amount": count, "seconds": took_s}


def join(how: str, servers: str, topic: str, folder: Path) -> dict[str, float]:
    """A second query joins: until it has done a batch, and in a reset the first one too, which is started again."""
    stage = Stage(servers, topic, folder, every="1s")
    stage.query("a", "both", most=FEW, on_rebalance=how)
    stage.rows.until_runs(1, stage.region.start)
    stage.sequence()  # otherwise a reset would start the query from the beginning
    stage.query("b", "both", most=FEW, on_rebalance=how)
    took_s = stage.rows.until_runs(1 if how == "checkpoint" else 2, stage.region.start)
    stage.region.close(gently=False)
    end_session(stage.spark)
    return {"amount": 1, "seconds": took_s}


def main() -> None:
    """One run; prints what was done as JSON."""
    how, servers, topic, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    jars = sys.argv[5] if len(sys.argv) > 5 else ""
    with tempfile.TemporaryDirectory(prefix="kohort-bench-") as name:
        folder = Path(name)
        if how == "cuts":
            result = cuts(servers, topic, count, folder)
        elif how == "reset":
            result = resets(servers, topic, count, folder)
        elif how == "by-hand":
            result = by_hand(servers, topic, count, folder)
        elif how.startswith("join-"):
            result = join(how.removeprefix("join-"), servers, topic, folder)
        else:
            result = throughput(how, servers, topic, count, jars, folder)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
