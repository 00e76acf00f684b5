"""Jobs of questions and platforms' guides: state in Python, SQL, listeners, retries, and outer joins."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.functions import col, count, expr, from_json, lit, window, window_time
from pyspark.sql.functions import max as highest
from pyspark.sql.functions import sum as total
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle, StreamingQueryListener
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from tests.spark.ports.job_site import JobSite, Rows, job

from kohort import Admin

EVENT = "id INT, user STRING, amount INT, at TIMESTAMP"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def at(second: int) -> str:
    return f"2024-05-01T10:{second // 60:02}:{second % 60:02}Z"


def event(number: int, second: int) -> dict[str, Any]:
    return {"id": number, "user": f"u{number % 3}", "amount": number * 10, "at": at(second)}


def events(frame: DataFrame) -> DataFrame:
    return frame.select(from_json(col("value").cast("string"), EVENT).alias("event")).select("event.*")


@job()
def visits_by_pandas_with_state(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Sums of users by `applyInPandasWithState`, which a timeout of event time closes in a later run."""

    def add(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            (amount, rows) = state.get
            state.remove()
            yield pd.DataFrame({"user": [key[0]], "amount": [amount], "rows": [rows]})
            return
        amount, rows = state.get if state.exists else (0, 0)
        for frame in frames:
            amount, rows = amount + int(frame["amount"].sum()), rows + len(frame)
        state.update((amount, rows))
        state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 60_000)

    topic, out = site.topic("visits"), str(site.folder / "visits")
    sums = (
        events(site.stream(source, subscribe=topic))
        .withWatermark("at", "10 seconds")
        .groupBy("user")
        .applyInPandasWithState(
            add,
            "user STRING, amount INT, rows INT",
            "amount INT, rows INT",
            "append",
            GroupStateTimeout.EventTimeTimeout,
        )
    )
    for run in range(2):
        site.send(topic, [event(number, 300 * run + number) for number in range(7)])
        site.drain(sums.writeStream.outputMode("append").format("parquet").option("path", out))
    return spark.read.schema("user STRING, amount INT, rows INT").parquet(out).collect()


class Balance(StatefulProcessor):  # type: ignore[misc]
    """A running sum of a user, and the last two amounts."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.sum = handle.getValueState("sum", "sum INT")
        self.last = handle.getListState("last", "amount INT")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timers: Any) -> Iterator[pd.DataFrame]:  # noqa: N802 - Spark's name
        amounts = [int(amount) for frame in rows for amount in frame["amount"]]
        found = (self.sum.get()[0] if self.sum.exists() else 0) + sum(amounts)
        self.sum.update((found,))
        self.last.put([(amount,) for amount in sorted([amount for (amount,) in self.last.get()] + amounts)[-2:]])
        yield pd.DataFrame({"user": [key[0]], "sum": [found], "last": [str([amount for (amount,) in self.last.get()])]})

    def close(self) -> None:
        pass


@job()
def balances_by_a_stateful_processor(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Running balances by `transformWithStateInPandas` over RocksDB, from run to run."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS)
    topic = site.topic("moves")
    kept: list[Any] = []
    try:
        balances = (
            events(site.stream(source, subscribe=topic))
            .groupBy("user")
            .transformWithStateInPandas(Balance(), "user STRING, sum INT, last STRING", "Update", "None")
        )
        for run in range(2):
            site.send(topic, [event(number, number) for number in range(5 + run)])
            site.drain(
                balances.writeStream.outputMode("update").foreachBatch(
                    lambda batch, _, run=run: kept.extend((run, *row) for row in batch.collect())
                )
            )
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    return kept


@job()
def orders_without_a_payment(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A left outer join of two topics: orders without a payment come with nulls after the watermark."""
    names, frames = ("orders", "payments"), {}
    topics = {name: site.topic(name) for name in names}
    for name in names:
        parsed = events(site.stream(source, subscribe=topics[name]))
        frames[name] = parsed.selectExpr(f"id AS {name}_id", f"at AS {name}_at").withWatermark(
            f"{name}_at", "5 seconds"
        )
    soon = "orders_id = payments_id AND payments_at BETWEEN orders_at AND orders_at + INTERVAL 20 SECONDS"
    out = str(site.folder / "joined")
    joined = frames["orders"].join(frames["payments"], expr(soon), "leftOuter")
    for run in range(2):
        site.send(topics["orders"], [event(100 * run + number, 600 * run + number) for number in range(6)])
        site.send(topics["payments"], [event(100 * run + number, 600 * run + number + 5) for number in (1, 3, 9)])
        site.drain(joined.writeStream.format("parquet").option("path", out))
    return spark.read.parquet(out).collect()


@job()
def a_view_of_a_topic_in_sql(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """SQL alone: `CREATE TEMPORARY VIEW ... USING` with options, read by queries and joined with itself."""
    topic = site.fill("lines", [f"{number},n{number % 2}" for number in range(8)])
    view = f"lines_{source}"
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW {view} USING {source} OPTIONS ("
        f"kafka.bootstrap.servers '{site.servers}', subscribe \"{topic}\", startingOffsets = 'earliest', "
        "includeHeaders = true, minPartitions = 3)"
    )
    return spark.sql(
        f"WITH rows AS (SELECT from_csv(CAST(value AS STRING), 'id INT, name STRING') AS row, partition FROM {view}) "
        "SELECT l.row.id, r.row.id AS next, l.partition FROM rows l JOIN rows r ON l.row.id + 2 = r.row.id"
    ).collect()


class Progress(StreamingQueryListener):  # type: ignore[misc]
    """A platform's monitor, which keeps some of each event."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        self.seen.append(("started", event.name))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        found = event.progress
        if found.numInputRows:
            sources = [source.numInputRows for source in found.sources]
            json.loads(found.json)
            json.loads(found.sources[0].endOffset)
            self.seen.append(("progress", found.batchId, found.numInputRows, sources, sorted(found.observedMetrics)))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        self.seen.append(("ended", event.exception is None))


@job()
def events_of_a_listener(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A monitor by `StreamingQueryListener`: starts, rows of each batch, observed sums, ends."""
    listener = Progress()
    spark.streams.addListener(listener)
    try:
        frame = site.stream(source, subscribe=site.fill("events", [str(number) for number in range(9)]))
        frame = frame.observe("quality", count(lit(1)).alias("rows"))
        site.drain(frame.writeStream.queryName("watched").format("noop"))
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)
    return listener.seen


@job()
def a_batch_that_fails_once(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A loop that starts a query anew when `foreachBatch` failed: the batch comes again with its number and rows."""
    topic = site.fill("in", [str(number) for number in range(10)])
    seen: list[Any] = []
    frame = site.stream(source, subscribe=topic, maxOffsetsPerTrigger=4).selectExpr("CAST(value AS STRING)", "offset")

    def apply(batch: DataFrame, number: int) -> None:
        rows = sorted(row.offset for row in batch.collect())
        seen.append((number, len(rows), len(seen)))
        if number == 1 and len(seen) == 2:
            raise ValueError("a database is away")

    for _attempt in range(3):
        writer = frame.writeStream.foreachBatch(apply).option("checkpointLocation", str(site.folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception:  # noqa: BLE001 - the job goes on whatever it was
            assert "a database is away" in str(query.exception())
            spark.streams.resetTerminated()
        else:
            break
    return seen


@job()
def everything_once_in_spite_of_a_limit(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`trigger(once=True)` with `maxOffsetsPerTrigger`: one batch, and what it leaves to the next run."""
    topic = site.topic("in")
    seen: list[Any] = []
    frame = site.stream(source, subscribe=topic, maxOffsetsPerTrigger=4, minOffsetsPerTrigger=2)
    for run in range(2):
        site.send(topic, [str(number) for number in range(6)])
        frame.writeStream.foreachBatch(lambda batch, number, run=run: seen.append((run, number, batch.count()))).option(
            "checkpointLocation", str(site.folder / "checkpoint")
        ).trigger(once=True).start().awaitTermination()
    return seen


@job()
def a_nightly_run_from_now_on(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`availableNow` without `startingOffsets`: the first run marks the end, the next ones read from there."""
    topic = site.fill("in", ["old"] * 4)
    seen: list[Any] = []
    for run in range(3):
        reader = spark.readStream.format(source).option("kafka.bootstrap.servers", site.servers)
        values = reader.option("subscribe", topic).load().selectExpr("CAST(value AS STRING)", "offset")
        site.drain(
            values.writeStream.foreachBatch(
                lambda batch, _, run=run: seen.extend((run, *row) for row in batch.collect())
            )
        )
        site.send(topic, [f"after {run} {number}" for number in range(3)])
    return seen


@job()
def new_topics_and_partitions(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A pattern from the latest offsets: topics and partitions that come later are read from their beginning."""
    site.fill("log.a", ["old"] * 4)
    name = f"logs_{site.prefix.replace('-', '_')}"
    pattern = f"{site.prefix}log\\..*"
    frame = site.stream(source, subscribePattern=pattern, startingOffsets="latest")
    kept: list[Any] = []
    rows = frame.selectExpr("topic", "partition", "offset", "CAST(value AS STRING)")
    writer = rows.writeStream.foreachBatch(lambda batch, _: kept.extend(batch.collect())).queryName(name)
    site.drain(writer)
    site.fill("log.b", ["new"] * 3)
    with Admin(site.servers) as admin:
        admin.create_partitions({site.prefix + "log.a": 3}).all()
    site.send(site.prefix + "log.a", ["more"] * 3, partitions=3)
    site.drain(writer)
    return kept


@job()
def a_batch_used_in_many_ways(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Everything that a `foreachBatch` does to a batch: cache, emptiness, RDD, views, SQL, pandas, Arrow, JSON."""
    frame = site.stream(source, subscribe=site.fill("events", [event(number, number) for number in range(8)]))
    seen: list[Any] = []

    def look(batch: DataFrame, number: int) -> None:
        batch.persist()
        if batch.isEmpty():
            return
        view = f"batch_{source}"
        events(batch).createOrReplaceTempView(view)
        seen.extend(
            ("sql", *row)
            for row in batch.sparkSession.sql(f"SELECT user, sum(amount) FROM {view} GROUP BY 1").collect()
        )
        seen.extend(
            ("rdd", *pair) for pair in batch.rdd.map(lambda row: (row.partition, 1)).reduceByKey(int.__add__).collect()
        )
        seen.append(("pandas", int(batch.toPandas()["offset"].sum()), str(batch.toPandas()["timestamp"].min())))
        seen.append(("arrow", batch.toArrow().schema.names, batch.toArrow().num_rows))
        seen.append(("first", batch.orderBy("partition", "offset").first().offset, batch.rdd.isEmpty(), number))
        seen.extend(("json", line) for line in events(batch).toJSON().collect())
        batch.unpersist()

    site.drain(frame.writeStream.foreachBatch(look))
    return seen


PAYMENT = {"type": "record", "name": "Payment", "fields": [{"name": "id", "type": "long"}]}
PAYMENT_NEXT = {**PAYMENT, "fields": [*PAYMENT["fields"], {"name": "note", "type": "string", "default": ""}]}


@job()
def avro_of_two_schemas_by_their_id(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Avro whose registry's id chooses the schema: each batch is split by id, and each part read by its own."""
    schemas = {1: PAYMENT, 2: PAYMENT_NEXT}
    values = []
    for number in range(8):
        body, version = io.BytesIO(), 1 + number % 2
        fastavro.schemaless_writer(body, schemas[version], {"id": number, "note": f"n{number}"})
        values.append(b"\0" + version.to_bytes(4) + body.getvalue())
    frame = site.stream(source, subscribe=site.fill("payments", values, partitions=3), minPartitions="5").selectExpr(
        "CAST(conv(hex(substring(value, 2, 4)), 16, 10) AS INT) AS id", "substring(value, 6) AS body"
    )
    kept: list[Any] = []

    def split(batch: DataFrame, _number: int) -> None:
        for row in batch.select("id").distinct().collect():
            part = batch.where(col("id") == row.id).select(from_avro("body", json.dumps(schemas[row.id])).alias("p"))
            kept.extend((row.id, *found) for found in part.select("p.*").collect())

    site.drain(frame.writeStream.foreachBatch(split))
    return kept


@job()
def windows_of_windows(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Two aggregations one after another by `window_time`, over the record's own time, without duplicates."""
    topic = site.fill("events", [event(number % 40, number) for number in range(60)])
    stamped = site.stream(source, subscribe=topic).selectExpr("CAST(value AS STRING) AS line", "timestamp", "partition")
    once = stamped.withWatermark("timestamp", "2 seconds").dropDuplicatesWithinWatermark(["line"])
    inner = once.groupBy(window("timestamp", "5 seconds"), "partition").agg(count("*").alias("rows"))
    outer = inner.groupBy(window(window_time("window"), "20 seconds")).agg(total("rows").alias("rows"), highest("rows"))
    name = f"nested_{source}"
    site.drain(outer.writeStream.outputMode("append").format("memory").queryName(name))
    return spark.table(name).collect()


@job()
def a_table_by_to_table(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Bronze into a table of the catalog by `toTable`, with the day of the record as its partition."""
    table = f"bronze_{site.prefix.replace('-', '_').strip('_')}"
    frame = site.stream(source, subscribe=site.fill("raw", [f"r{number}" for number in range(6)])).selectExpr(
        "CAST(value AS STRING) AS value", "topic", "offset", "to_date(timestamp) AS day"
    )
    query = (
        frame.writeStream.format("parquet")
        .partitionBy("day")
        .option("checkpointLocation", str(site.folder / "checkpoint"))
        .option("path", str(site.folder / "table"))
        .trigger(availableNow=True)
        .toTable(table)
    )
    query.awaitTermination()
    return spark.table(table).collect()


@job()
def state_read_from_a_checkpoint(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A look into a query's state by the source `statestore`, and its batches by `state-metadata`."""
    frame = events(site.stream(source, subscribe=site.fill("in", [event(number, number) for number in range(9)])))
    site.drain(frame.groupBy("user").agg(total("amount")).writeStream.outputMode("update").format("noop"))
    checkpoint = str(site.folder / "checkpoint")
    state = spark.read.format("statestore").load(checkpoint).selectExpr("key.user", "value.*").collect()
    return [
        *state,
        *spark.read.format("state-metadata").load(checkpoint).select("operatorName", "maxBatchId").collect(),
    ]


@job()
def options_that_are_nothing(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Options out of a configuration whose values may be `None`, numbers, booleans, or padded with spaces."""
    topic = site.fill("in", [str(number) for number in range(6)])
    given: dict[str, Any] = {
        "kafka.bootstrap.servers": f"{site.servers},127.0.0.1:1",
        "SUBSCRIBE": topic,
        "StartingOffsets": "Earliest",
        "failondataloss": False,
        "kafka.group.id": None,
        "minPartitions": None,
        "maxOffsetsPerTrigger": 5,
        "includeHeaders": True,
    }
    frame = spark.readStream.format(source).options(**given).load()
    kept: list[Any] = []
    site.drain(frame.writeStream.foreachBatch(lambda batch, _: kept.extend(batch.select("value", "headers").collect())))
    return kept


@job()
def a_schema_of_the_reader(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """The schema that a job checks and prints: names, types and nullability, in streams and batches."""
    topic = site.fill("in", ["1"])
    return [
        (kind, field.name, field.dataType.simpleString(), field.nullable)
        for kind, frame in {
            "stream": site.stream(source, subscribe=topic, includeHeaders="true"),
            "batch": site.batch(source, subscribe=topic),
        }.items()
        for field in frame.schema.fields
    ]
