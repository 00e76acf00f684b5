"""Streams that other lists lack: initial state, timeouts by the clock, windows behind joins, starts by time, names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col, count, expr, session_window, when, window, window_time
from pyspark.sql.functions import sum as total
from pyspark.sql.streaming import DataStreamWriter, StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from tests.spark.ports.answers import ROCKS, event, events
from tests.spark.ports.habits import ends_of
from tests.spark.ports.job_site import FIRST_MS, JobSite, Rows, job

from kohort import Admin

STORE = "spark.sql.streaming.stateStore.providerClass"


def collected(site: JobSite, writer: DataStreamWriter, checkpoint: str = "checkpoint") -> list[Any]:
    """Run a query over all that is there; its rows, each with the number of its batch."""
    kept: list[Any] = []
    site.drain(
        writer.foreachBatch(lambda batch, number: kept.extend((number, *row) for row in batch.collect())), checkpoint
    )
    return kept


class Onward(StatefulProcessor):  # type: ignore[misc]
    """Sums that begin at what another topic says of a user."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.sum = handle.getValueState("sum", "sum INT")
        self.seen = handle.getMapState("seen", "id INT", "rows INT")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803 (Spark's)
        self.sum.update(
            (int(initialState["amount"].sum()) if isinstance(initialState, pd.DataFrame) else initialState.amount,)
        )

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803 (Spark's)
        amount = self.sum.get()[0] if self.sum.exists() else 0
        for row in rows:
            amount += row.amount
            self.seen.updateValue((row.id,), (1,))
        self.sum.update((amount,))
        yield Row(user=key[0], sum=amount, ids=len(list(self.seen.keys())))

    def close(self) -> None:
        pass


@job()
def sums_onward_from_a_topic(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`transformWithState` whose initial state is a batch read of a topic, with a value and a map of each user."""
    topic, known = site.topic("moves"), site.fill("known", [event(number, number) for number in range(3)])
    spark.conf.set(STORE, ROCKS)
    try:
        begun = events(site.batch(source, subscribe=known)).select("user", "amount").groupBy("user")
        sums = events(site.stream(source, subscribe=topic)).groupBy("user")
        found = sums.transformWithState(Onward(), "user STRING, sum INT, ids INT", "Update", "None", initialState=begun)
        kept: list[Any] = []
        for _ in range(2):
            site.send(topic, [event(number, number) for number in range(5)])
            kept += collected(site, found.writeStream.outputMode("update"))
    finally:
        spark.conf.unset(STORE)
    return kept


@job()
def users_gone_by_the_clock(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`applyInPandasWithState` with a timeout of processing time: who is silent is gone with a later batch."""

    def seen(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            state.remove()
            yield pd.DataFrame({"user": [key[0]], "rows": [-1]})
            return
        rows = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
        state.update((rows,))
        state.setTimeoutDuration(1)
        yield pd.DataFrame({"user": [key[0]], "rows": [rows]})

    topic = site.topic("seen")
    found = (
        events(site.stream(source, subscribe=topic))
        .groupBy("user")
        .applyInPandasWithState(
            seen, "user STRING, rows INT", "rows INT", "update", GroupStateTimeout.ProcessingTimeTimeout
        )
    )
    kept: list[Any] = []
    writer = found.writeStream.outputMode("update").foreachBatch(lambda batch, _: kept.extend(batch.collect()))
    writer = writer.option("checkpointLocation", str(site.folder / "checkpoint")).trigger(once=True)
    for values in ([event(0, 0), event(1, 1)], [event(3, 2)]):
        site.send(topic, values)
        writer.start().awaitTermination()
    return kept


@job()
def repeats_within_a_watermark(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`dropDuplicatesWithinWatermark` on an id, over two runs: repeats within the watermark are dropped."""
    topic = site.topic("in")
    rows = events(site.stream(source, subscribe=topic)).withWatermark("at", "20 seconds")
    kept: list[Any] = []
    for second in (0, 5, 300):
        site.send(topic, [event(number % 4, second + number) for number in range(6)])
        kept += collected(site, rows.dropDuplicatesWithinWatermark(["id"]).writeStream)
    return [row[1:] for row in kept]


@job()
def sessions_as_long_as_the_user_says(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`session_window` whose gap depends on the row, closed in append mode by a later run."""
    topic, out = site.topic("in"), str(site.folder / "out")
    gap = when(col("user") == "u0", "5 seconds").otherwise("40 seconds")
    found = (
        events(site.stream(source, subscribe=topic))
        .withWatermark("at", "10 seconds")
        .groupBy("user", session_window("at", gap))
        .agg(count("*").alias("rows"), total("amount").alias("amount"))
        .selectExpr("user", "session_window.start", "session_window.end", "rows", "amount")
    )
    for second in (0, 600):
        site.send(topic, [event(number, second + number * 4) for number in range(9)])
        site.drain(found.writeStream.format("parquet").option("path", out))
    return spark.read.parquet(out).collect()


@job()
def windows_behind_a_join(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A join of two streams with a window behind it, and two watermarks of which the later one counts."""
    spark.conf.set("spark.sql.streaming.multipleWatermarkPolicy", "max")
    try:
        topics = {name: site.topic(name) for name in ("clicks", "shows")}
        clicks, shows = (
            events(site.stream(source, subscribe=topic)).withWatermark("at", delay)
            for topic, delay in zip(topics.values(), ("10 seconds", "30 seconds"), strict=True)
        )
        pairs = clicks.alias("c").join(
            shows.alias("s"),
            expr("c.id = s.id AND s.at BETWEEN c.at - INTERVAL 5 SECONDS AND c.at + INTERVAL 5 SECONDS"),
        )
        found = pairs.groupBy(window("c.at", "10 seconds")).agg(
            count("*").alias("rows"), total("s.amount").alias("sum")
        )
        out = str(site.folder / "out")
        for second in (0, 300, 600):
            for topic in topics.values():
                site.send(topic, [event(number, second + number) for number in range(8)])
            closed = found.select(window_time("window").alias("at"), "rows", "sum")
            site.drain(closed.writeStream.format("parquet").option("path", out))
    finally:
        spark.conf.unset("spark.sql.streaming.multipleWatermarkPolicy")
    return spark.read.parquet(out).collect()


@job()
def a_backlog_in_small_batches_behind_a_watermark(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`availableNow` over a backlog in small batches behind a watermark: what is late in the backlog is dropped."""
    values = [event(number, 400 - number * 10 if number % 5 == 4 else number * 10) for number in range(30)]
    topic = site.fill("in", values, partitions=1)
    rows = events(site.stream(source, subscribe=topic, maxOffsetsPerTrigger=5)).withWatermark("at", "20 seconds")
    counts = rows.groupBy(window("at", "30 seconds"), "user").count()
    kept = collected(site, counts.selectExpr("window.start", "user", "count").writeStream.outputMode("update"))
    closed = collected(site, counts.selectExpr("window.start", "user", "count").writeStream, "appended")
    return [*(("update", *row) for row in kept), *(("append", *row) for row in closed)]


@job()
def batches_without_rows_turned_off(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`noDataMicroBatches` turned off: a window is closed by the next batch with records alone."""
    name = "spark.sql.streaming.noDataMicroBatches.enabled"
    topic = site.topic("in")
    rows = events(site.stream(source, subscribe=topic)).withWatermark("at", "5 seconds")
    counts = rows.groupBy(window("at", "10 seconds")).count().selectExpr("window.start", "count")
    spark.conf.set(name, "false")
    kept: list[Any] = []
    try:
        for second in (0, 100, 200):
            site.send(topic, [event(number, second + number) for number in range(4)])
            kept += collected(site, counts.writeStream)
    finally:
        spark.conf.unset(name)
    return kept


@job()
def starts_by_one_time(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Streams from `startingTimestamp`, before, within and beyond the topic, by each strategy, with an end, or none."""
    topic = site.fill("in", [str(number) for number in range(10)])

    def tried(options: dict[str, Any]) -> Any:
        def run() -> Any:
            frame = site.stream(source, subscribe=topic, **options)
            name = f"at-{json.dumps(options)}".replace("/", "")
            return sorted(
                row[1] for row in collected(site, frame.selectExpr("CAST(value AS STRING)").writeStream, name)
            )

        return run

    late, within = str(FIRST_MS + 99_000), str(FIRST_MS + 4_500)
    strategy = "startingOffsetsByTimestampStrategy"
    times = json.dumps({topic: {"0": FIRST_MS + 5_000, "1": FIRST_MS + 99_000}})
    return ends_of(
        {
            "before": tried({"startingTimestamp": "1"}),
            "within": tried({"startingTimestamp": within}),
            "a number": tried({"startingTimestamp": FIRST_MS + 6_000}),
            "beyond": tried({"startingTimestamp": late}),
            "beyond, an error": tried({"startingTimestamp": late, strategy: "error"}),
            "beyond, the end": tried({"startingTimestamp": late, strategy: "latest"}),
            "another strategy": tried({"startingTimestamp": late, strategy: "earliest"}),
            "no time": tried({"startingTimestamp": "yesterday"}),
            "one partition beyond": tried({"startingOffsetsByTimestamp": times}),
            "one partition beyond, the end": tried({"startingOffsetsByTimestamp": times, strategy: "latest"}),
            "one partition left out": tried({"startingOffsetsByTimestamp": json.dumps({topic: {"0": 1}})}),
            "both": tried({"startingTimestamp": within, "startingOffsetsByTimestamp": times, strategy: "latest"}),
            "an end": tried({"endingOffsets": "latest"}),
            "an end by time": tried({"endingTimestamp": late}),
        }
    )


@job()
def starts_of_partitions(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`startingOffsets` in JSON: -2 and -1 beside numbers, partitions or topics too few or too many, texts."""
    topic, other = (site.fill(name, [str(number) for number in range(8)]) for name in ("in", "other"))

    def tried(offsets: Any, **options: Any) -> Any:
        def run() -> Any:
            text = offsets if isinstance(offsets, str) else json.dumps(offsets)
            options_here = {"subscribe": topic} | options
            frame = site.stream(source, **options_here, startingOffsets=text)
            name = f"of-{text}{options}".replace("/", "")
            return sorted(
                row[1] for row in collected(site, frame.selectExpr("CAST(value AS STRING)").writeStream, name)
            )

        return run

    whole = {"0": 1, "1": 2}
    return ends_of(
        {
            "numbers": tried({topic: whole}),
            "earliest and latest": tried({topic: {"0": -2, "1": -1}}),
            "one left out": tried({topic: {"0": 1}}),
            "one too many": tried({topic: {**whole, "2": 0}}),
            "a topic too many": tried({topic: whole, other: whole}),
            "a topic left out": tried({topic: whole}, subscribe=f"{topic},{other}"),
            "two topics": tried({topic: whole, other: whole}, subscribe=f"{topic},{other}"),
            "a pattern": tried({topic: whole, other: whole}, subscribe=None, subscribePattern=f"{site.prefix}.*"),
            "an assignment": tried({topic: {"1": 3}}, subscribe=None, assign=json.dumps({topic: [1]})),
            "an assignment of fewer": tried({topic: whole}, subscribe=None, assign=json.dumps({topic: [1]})),
            "less than -2": tried({topic: {"0": -3, "1": 0}}),
            "no JSON": tried("{" + topic),
            "a list": tried([1, 2]),
            "in capitals": tried("EARLIEST"),
            "with blanks": tried(" earliest "),
        }
    )


@job()
def a_query_under_other_names(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """One checkpoint under another name of the query in each run: its id stays, its numbers go on."""
    topic, kept, ids = site.topic("in"), [], set()
    for number in range(3):
        site.send(topic, [f"{number}-{value}" for value in range(3)])
        frame = site.stream(source, subscribe=topic).selectExpr("CAST(value AS STRING) AS line")
        writer = frame.writeStream.foreachBatch(
            lambda batch, number: kept.extend((number, *row) for row in batch.collect())
        )
        writer = writer.queryName(f"{source}-{number}").option("checkpointLocation", str(site.folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        ids.add(query.id)
        kept.append((query.name.replace(source, ""), query.lastProgress["name"].replace(source, "")))
    return [*kept, (len(ids), "id")]


@job()
def a_partition_more_with_state(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A count whose topic has more partitions in its second run: state stays, and the new ones are read whole."""
    topic = site.topic("in")
    counts = events(site.stream(source, subscribe=topic)).groupBy("user").agg(count("*").alias("rows"))
    kept: list[Any] = []
    for partitions in (2, 5):
        if partitions > 2:
            with Admin(site.servers) as admin:
                admin.create_partitions({topic: partitions}).all()
        site.send(topic, [event(number, number) for number in range(10)], partitions=partitions)
        kept += collected(site, counts.writeStream.outputMode("update"))
    return kept


@job()
def partitions_assigned_and_no_more(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`assign` of the partitions that there are: those that are added later are not read, nor is another topic."""
    topic, other = site.fill("in", ["a", "b"]), site.fill("other", ["c"] * 3, partitions=3)
    assigned = json.dumps({topic: [0, 1], other: [2]})
    frame = site.stream(source, assign=assigned).selectExpr("CAST(value AS STRING)", "topic", "partition")
    kept = collected(site, frame.writeStream)
    with Admin(site.servers) as admin:
        admin.create_partitions({topic: 4}).all()
    site.send(topic, ["d"] * 8, partitions=4)
    return kept + collected(site, frame.writeStream)


@job()
def queries_found_by_the_session(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A supervisor's looks: `streams.active`, `streams.get`, `awaitTermination` with a time, `exception`, `stop`."""
    topic = site.fill("in", ["1", "2", "3"])
    frame = site.stream(source, subscribe=topic)
    writer = frame.writeStream.format("noop").queryName(f"found_{source}")
    query = writer.option("checkpointLocation", str(site.folder / "checkpoint")).start()
    query.processAllAvailable()
    found = spark.streams.get(query.id)
    rows: list[Any] = [
        (found.name == query.name, found.runId == query.runId, found.isActive),
        (sorted(active.name.replace(source, "") for active in spark.streams.active),),
        (query.awaitTermination(1), query.status["isTriggerActive"] in (True, False)),
        (sum(progress["numInputRows"] for progress in query.recentProgress),),
    ]
    query.stop()
    spark.streams.resetTerminated()
    return [*rows, (query.isActive, query.exception(), spark.streams.get(query.id) if query.isActive else None)]


@job()
def a_relay_of_three_topics(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Three queries in a row in one program, each from the last one's topic to the next, kept in step."""
    topics = [site.topic(name) for name in ("first", "second", "third")]
    queries = []
    for number, (before, after) in enumerate(pairwise(topics)):
        frame = site.stream(source, subscribe=before, kafka__metadata__max__age__ms="1000").select(
            "key", expr(f"concat(CAST(value AS STRING), '-{number}')").alias("value")
        )
        writer = frame.writeStream.format(source).option("kafka.bootstrap.servers", site.servers).option("topic", after)
        queries.append(writer.option("checkpointLocation", str(site.folder / f"{number}")).start())
    try:
        for value in ("a", "b"):
            site.send(topics[0], [value] * 3)
            for query in queries:
                query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    return site.written(topics[-1])


@job()
def files_of_several_formats(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """One reader under queries into CSV, text, ORC and JSON, with partitions and options of each format."""
    topic = site.fill("in", [event(number, number) for number in range(6)])
    rows = events(site.stream(source, subscribe=topic))
    writers: dict[str, tuple[DataFrame, dict[str, str]]] = {
        "csv": (rows, {"header": "true", "compression": "gzip"}),
        "text": (rows.selectExpr("concat_ws('|', id, user) AS value"), {}),
        "orc": (rows, {"maxRecordsPerFile": "2"}),
        "json": (rows.withColumn("day", expr("date(at)")), {"timestampFormat": "yyyy"}),
    }
    found: list[Any] = []
    for kind, (frame, options) in writers.items():
        out = str(site.folder / f"out-{kind}")
        writer = frame.writeStream.format(kind).options(**options).option("path", out)
        site.drain(writer.partitionBy("day") if kind == "json" else writer, kind)
        read = spark.read.option("header", "true") if kind == "csv" else spark.read
        found += [(kind, *row) for row in getattr(read, kind)(out).collect()]
    return found
