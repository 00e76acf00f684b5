"""Jobs that look at a query's progress: lag, offsets and metrics by listeners and by `lastProgress`."""

from __future__ import annotations

import json
import time
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener
from tests.spark.ports.job_site import FIRST_MS, JobSite, Rows, job

from kohort import Admin
from kohort.client.offsets import OffsetAndMetadata
from kohort.ids import TopicPartition

IDLE_S = 60
"""Longest time that a job waits for an event."""


class Monitor(StreamingQueryListener):  # type: ignore[misc]
    """A monitor that keeps the progress of every batch with rows, as objects and as JSON."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.idle: set[str] = set()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        if event.progress.numInputRows:
            self.seen.append(event.progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        self.idle.add(str(event.runId))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass


def watched(spark: SparkSession, source: str, site: JobSite, **options: object) -> list[Any]:
    """The progress of a query over ten records, as a listener gets it."""
    monitor = Monitor()
    spark.streams.addListener(monitor)
    try:
        topic = site.fill("in", [str(number) for number in range(10)])
        site.drain(site.stream(source, subscribe=topic, **options).writeStream.format("noop"))
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(monitor)
    return monitor.seen


def run_over(source: str, site: JobSite, topic: str, **options: object) -> StreamingQuery:
    """A query that has ended over what is in a topic."""
    writer = site.stream(source, subscribe=topic, **options).writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(site.folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


@job()
def lag_from_two_offsets(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Lag of each partition: `latestOffset` less `endOffset`, both read as JSON from `recentProgress`."""
    topic = site.fill("in", [str(number) for number in range(10)])
    query = run_over(source, site, topic, maxOffsetsPerTrigger=4)
    found: list[Any] = []
    for progress in query.recentProgress:
        (read,) = progress["sources"]
        ends, latest = json.loads(read["endOffset"]), json.loads(read["latestOffset"])
        for name, partitions in latest.items():
            found += [
                (progress["batchId"], name, partition, offset - ends[name][partition])
                for partition, offset in partitions.items()
            ]
    return found


@job()
def offsets_committed_by_a_listener(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A listener that commits each batch's `endOffset` to a group of its own, for tools that show lag."""
    group = f"{site.prefix}shown"
    with Admin(site.servers) as admin:
        for progress in watched(spark, source, site, maxOffsetsPerTrigger=4):
            offsets = {
                TopicPartition(topic, int(partition)): OffsetAndMetadata(int(offset))
                for read in progress.sources
                for topic, partitions in json.loads(read.endOffset).items()
                for partition, offset in partitions.items()
            }
            admin.alter_consumer_group_offsets(group, offsets).all()
        committed = admin.list_consumer_group_offsets(group).all()
        return [(tp.topic, tp.partition, found.offset) for tp, found in committed.items()]


@job()
def gauges_of_the_sources_metrics(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A scrape of `sources[].metrics`: how far the query is behind at least, at most and on average."""
    names = ("minOffsetsBehindLatest", "maxOffsetsBehindLatest", "avgOffsetsBehindLatest")
    return [
        (progress.batchId, *(f"{float(progress.sources[0].metrics[name]):.2f}" for name in names))
        for progress in watched(spark, source, site, maxOffsetsPerTrigger=4)
    ]


@job()
def progress_sent_on_as_json(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A listener that ships `progress.json` and `prettyJson` to a log, which picks offsets and rows out of them."""
    found: list[Any] = []
    for progress in watched(spark, source, site, maxOffsetsPerTrigger=4):
        for text in (progress.json, progress.prettyJson, str(progress)):
            report = json.loads(text)
            (read,) = report["sources"]
            found.append((report["batchId"], read["startOffset"], read["endOffset"], read["latestOffset"]))
            found.append((sorted(report), sorted(read), sorted(read["metrics"])[:1]))
        (read,) = progress.sources
        found.append((json.loads(read.json)["endOffset"], json.loads(str(read))["startOffset"], read["endOffset"]))
    return found


@job()
def a_start_from_the_last_end(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A move to a fresh checkpoint: `endOffset` of the last progress is `startingOffsets` of the new query."""
    topic = site.fill("in", [str(number) for number in range(10)])
    (read,) = run_over(source, site, topic).lastProgress["sources"]
    site.send(topic, ["new", "newer"])
    name = f"moved_{source}"
    frame = site.stream(source, subscribe=topic, startingOffsets=read["endOffset"])
    site.drain(frame.selectExpr("CAST(value AS STRING)", "offset").writeStream.format("memory").queryName(name), "new")
    return spark.table(name).collect()


@job()
def a_journal_of_ranges(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """An auditor's table: the range of each batch by `startOffset` and `endOffset`, the first one without a start."""
    topic = site.fill("in", [str(number) for number in range(10)])
    query = run_over(source, site, topic, maxOffsetsPerTrigger=4)
    rows = []
    for progress in query.recentProgress:
        start, end = (json.loads(progress["sources"][0][name]) for name in ("startOffset", "endOffset"))
        for name in end:
            for partition, offset in end[name].items():
                rows.append((progress.batchId, name, partition, start and start[name][partition], offset))
    return rows


@job()
def queries_stopped_by_their_topic(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A supervisor that stops the queries of one topic, which it finds in the offsets of `lastProgress`."""
    topics = [site.fill(name, ["1", "2"]) for name in ("a", "b")]
    queries = {}
    for topic in topics:
        writer = site.stream(source, subscribe=topic).writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(site.folder / topic))
        queries[topic] = writer.trigger(processingTime="100 milliseconds").start()
    for query in queries.values():
        query.processAllAvailable()
    for query in spark.streams.active:
        if topics[0] in json.loads(query.lastProgress["sources"][0]["endOffset"]):
            query.stop()
    found = [(topic, query.isActive, query.lastProgress["sink"]["description"]) for topic, query in queries.items()]
    queries[topics[1]].stop()
    return [(topic, active) for topic, active, _ in found]


@job()
def idle_queries_noticed(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A listener's `onQueryIdle`, and progress without rows, of a query that waits for records."""
    monitor = Monitor()
    spark.streams.addListener(monitor)
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "200")
    try:
        frame = site.stream(source, subscribe=site.fill("in", [str(number) for number in range(4)]))
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(site.folder / "checkpoint"))
        query = writer.trigger(processingTime="100 milliseconds").start()
        until = time.monotonic() + IDLE_S
        while str(query.runId) not in monitor.idle and time.monotonic() < until:
            time.sleep(0.1)
        last = query.lastProgress
        query.stop()
    finally:
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
        spark.streams.removeListener(monitor)
    (read,) = last["sources"]
    ends = json.loads(read["endOffset"]), json.loads(read["latestOffset"])
    return [(str(query.runId) in monitor.idle, sum(progress.numInputRows for progress in monitor.seen), ends)]


@job()
def newest_records_age_by_offsets(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A check of freshness: `endOffset` of the last progress, then a batch read of the last record before it."""
    topic = site.fill("in", [str(number) for number in range(7)])
    ends = json.loads(run_over(source, site, topic).lastProgress["sources"][0]["endOffset"])
    last = {name: {number: end - 1 for number, end in ends[name].items()} for name in ends}
    frame = site.batch(source, subscribe=topic, startingOffsets=json.dumps(last), endingOffsets=json.dumps(ends))
    return frame.selectExpr("partition", "offset", f"unix_millis(timestamp) - {FIRST_MS}").collect()
