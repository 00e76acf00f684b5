"""Jobs as they change in operation: several sinks of a batch, options changed at a restart, errors, lost records."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.functions import col, concat, expr, from_json, lit, pandas_udf, parse_json, variant_get
from pyspark.sql.functions import struct as record
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from tests.spark.both_sources import LATE
from tests.spark.ports.answers import EVENT, ROCKS, event, events
from tests.spark.ports.job_site import JobSite, Rows, job

from kohort import Admin
from kohort.ids import TopicPartition

PAYMENT = json.dumps(
    {
        "type": "record",
        "name": "Payment",
        "fields": [{"name": "id", "type": "int"}, {"name": "note", "type": ["null", "string"], "default": None}],
    }
)


@job()
def a_kept_batch_in_several_sinks(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A batch kept by `persist(MEMORY_AND_DISK)` for three sinks: a folder of its number, a topic, a database."""
    out, base, folder = site.topic("out"), site.folder / "counts.db", site.folder / "batches"
    with sqlite3.connect(base) as database:
        database.execute("CREATE TABLE counts (batch INTEGER PRIMARY KEY, rows INTEGER)")
    topic = site.fill("in", [event(number, number) for number in range(12)], key="user")

    def write(batch: DataFrame, number: int) -> None:
        batch.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            rows = batch.select("key", from_json(col("value").cast("string"), EVENT).alias("e"), "offset")
            rows.select("e.*").write.mode("overwrite").parquet(str(folder / f"batch={number}"))
            high = rows.where("e.amount > 50").selectExpr("key", "to_json(e) AS value")
            high.write.format(source).options(**{"kafka.bootstrap.servers": site.servers, "topic": out}).mode(
                "append"
            ).save()
            with sqlite3.connect(base) as database:
                database.execute("INSERT OR REPLACE INTO counts VALUES (?, ?)", (number, batch.count()))
        finally:
            batch.unpersist()

    site.drain(site.stream(source, subscribe=topic, maxOffsetsPerTrigger=4).writeStream.foreachBatch(write))
    with sqlite3.connect(base) as database:
        counts = database.execute("SELECT * FROM counts").fetchall()
    return [*counts, *spark.read.parquet(str(folder)).collect(), *site.written(out)]


@job()
def a_stream_in_sql(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A temporary view of a stream, queried by `spark.sql` with a window and a watermark, written as a stream."""
    topic, view, name = site.topic("in"), f"stream_{source}", f"by_minute_{source}"
    events(site.stream(source, subscribe=topic)).withWatermark("at", "10 seconds").createOrReplaceTempView(view)
    counts = spark.sql(
        f"SELECT window.start AS minute, user, count(*) AS rows, sum(amount) AS amount FROM {view} "
        "WHERE id IS NOT NULL GROUP BY window(at, '1 minute'), user"
    )
    assert counts.isStreaming
    out = str(site.folder / name)
    for run in range(2):
        site.send(topic, [event(number, 120 * run + 10 * number) for number in range(9)])
        site.drain(counts.writeStream.format("parquet").option("path", out).outputMode("append"))
    return spark.read.parquet(out).collect()


@job()
def options_changed_at_a_restart(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """One checkpoint, other options with each start: limits, tasks, `startingOffsets`, a pattern in place of a list."""
    topic = site.topic("in")
    changes: list[dict[str, Any]] = [
        {"subscribe": topic, "maxOffsetsPerTrigger": 4},
        {"subscribe": topic, "startingOffsets": "latest", "minPartitions": 3},
        {"subscribePattern": f"{topic}$", "maxOffsetsPerTrigger": 100, "includeHeaders": "true"},
        {"assign": json.dumps({topic: [0, 1]}), "startingOffsets": json.dumps({topic: {"0": 0, "1": 0}})},
        {"subscribe": topic, "startingTimestamp": "1", "failOnDataLoss": "false"},
    ]
    seen: list[Any] = []
    for run, options in enumerate(changes):
        site.send(topic, [f"{run}-{number}" for number in range(6)])
        frame = site.stream(source, **options).selectExpr("CAST(value AS STRING)", "partition", "offset")
        site.drain(
            frame.writeStream.foreachBatch(
                lambda batch, _, run=run: seen.extend((run, *row) for row in batch.collect())
            )
        )
    return seen


def ends_of(cases: dict[str, Callable[[], Any]]) -> Rows:
    """How each case ends: its result, or that it failed."""
    found = []
    for name, run in cases.items():
        try:
            found.append((name, run()))
        except Exception as error:
            if LATE in str(error):  # by text: Spark has no class for it, and the whole job is tried again
                raise
            found.append((name, "fails"))
    return found


@job()
def columns_that_a_topic_does_not_take(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """First attempts to write: numbers and structs as values, no value, other cases, no topic, strange headers."""
    rows = spark.range(2).selectExpr("id", "CAST(id AS STRING) AS text", "named_struct('a', id) AS inner")

    def tried(name: str, *columns: str, topic: bool = True) -> Callable[[], Any]:
        def run() -> Any:
            out = site.topic(name, 1)
            writer = rows.selectExpr(*columns).write.format(source).mode("append")
            writer = writer.option("kafka.bootstrap.servers", site.servers).option("kafka.max.block.ms", "5000")
            (writer.option("topic", out) if topic else writer).save()
            return sorted(str(tuple(row)) for row in site.written(out))

        return run

    return ends_of(
        {
            name: tried(name, *columns, topic=name != "no-topic" and name != "null-topic")
            for name, columns in {
                "text": ("text AS value",),
                "number": ("id AS value",),
                "struct": ("inner AS value",),
                "number-key": ("id AS key", "text AS value"),
                "no-value": ("text AS key",),
                "null-value": ("text AS key", "CAST(NULL AS STRING) AS value"),
                "no-topic": ("text AS value",),
                "null-topic": ("text AS value", "CAST(NULL AS STRING) AS topic"),
                "partition-of-text": ("text AS value", "text AS partition"),
                "partition-too-high": ("text AS value", "7 AS partition"),
                "headers-of-text": ("text AS value", "text AS headers"),
                "headers-of-a-map": ("text AS value", "map('a', CAST('b' AS BINARY)) AS headers"),
                "capitals": ("text AS VALUE", "text AS Key"),
                "topic-beside": ("text AS value", "'elsewhere' AS topic"),
                "more": ("text AS value", "id", "inner"),
            }.items()
        }
    )


@job()
def options_forgotten(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """First attempts to read: no servers, no topics, two choices, bad numbers, unknown words, schemas, an end."""
    topic = site.fill("in", ["1", "2"])

    def tried(streaming: bool, options: dict[str, Any], schema: str | None) -> Callable[[], Any]:
        def run() -> Any:
            given = {"kafka.bootstrap.servers": site.servers, "subscribe": topic, "startingOffsets": "earliest"}
            reader: Any = spark.readStream if streaming else spark.read
            reader = reader.format(source) if schema is None else reader.format(source).schema(schema)
            chosen = {name: value for name, value in (given | options).items() if value is not None}
            frame = reader.options(**chosen).load()
            if not streaming:
                return frame.count()
            kept: list[Any] = []
            writer = frame.writeStream.foreachBatch(lambda batch, _: kept.append(batch.count()))
            writer.trigger(availableNow=True).start().awaitTermination()
            return sum(kept)

        return run

    cases: dict[str, tuple[dict[str, Any], str | None]] = {
        "as it should be": ({}, None),
        "no servers": ({"kafka.bootstrap.servers": None}, None),
        "servers without the prefix": ({"kafka.bootstrap.servers": None, "bootstrap.servers": site.servers}, None),
        "no topics": ({"subscribe": None}, None),
        "an empty topic": ({"subscribe": ""}, None),
        "topics with blanks": ({"subscribe": f" {topic} ,"}, None),
        "two choices": ({"subscribePattern": topic}, None),
        "tasks of text": ({"minPartitions": "few"}, None),
        "an unknown start": ({"startingOffsets": "beginning"}, None),
        "a number as a start": ({"startingOffsets": "0"}, None),
        "a loss of yes": ({"failOnDataLoss": "yes"}, None),
        "headers of yes": ({"includeHeaders": "yes"}, None),
        "a schema of its own": ({}, "id INT"),
        "an offset behind the end": ({"startingOffsets": json.dumps({topic: {"0": 99, "1": 99}})}, None),
        "a delay of text": ({"minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"}, None),
    }
    return ends_of(
        {
            f"{name}, {'stream' if streaming else 'batch'}": tried(streaming, *case)
            for name, case in cases.items()
            for streaming in (False, True)
        }
    )


@job()
def records_lost_between_two_runs(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Retention that is faster than a job: it fails, and goes on with `failOnDataLoss=false` at what is left."""
    topic = site.fill("in", [str(number) for number in range(6)])
    kept: list[Any] = []

    def run(loss: str) -> None:
        frame = site.stream(source, subscribe=topic, failOnDataLoss=loss).selectExpr("partition", "offset")
        site.drain(
            frame.writeStream.foreachBatch(lambda batch, _: kept.extend((loss, *row) for row in batch.collect()))
        )

    run("true")
    site.send(topic, [str(number) for number in range(10)])
    with Admin(site.servers) as admin:
        admin.delete_records({TopicPartition(topic, number): 6 for number in range(2)}).all()
    ends = ends_of({"strict": lambda: run("true"), "again": lambda: run("false")})
    return [*ends, *kept]


@job()
def arrow_and_pandas_functions(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Values scored by `mapInArrow`, then by a `pandas_udf`, and written to a topic with the key that they had."""

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = [float(value.as_py()) for value in batch.column("value")]
            yield pa.RecordBatch.from_pydict({"key": batch.column("key"), "number": numbers})

    @pandas_udf("double")  # type: ignore[call-overload,untyped-decorator]
    def halved(numbers: pd.Series) -> pd.Series:
        return numbers / 2

    out = site.topic("out")
    values = [(f"k{number}", str(number), []) for number in range(8)]
    frame = site.stream(source, subscribe=site.fill("in", values)).select("key", "value")
    rows = frame.mapInArrow(decode, "key BINARY, number DOUBLE").select(
        "key", halved("number").cast("string").alias("value")
    )
    site.drain(rows.writeStream.format(source).options(**{"kafka.bootstrap.servers": site.servers, "topic": out}))
    return site.written(out)


@job()
def avro_written_with_a_registrys_header(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`to_avro` behind five bytes that a registry's readers expect, written to a topic and read by `from_avro`."""
    out = site.topic("out")
    parsed = site.stream(
        source, subscribe=site.fill("in", [{"id": n, "note": f"n{n}"} for n in range(5)] + [{"id": 9}])
    )
    rows = parsed.select(from_json(col("value").cast("string"), "id INT, note STRING").alias("e"))
    body = to_avro(record(expr("coalesce(e.id, 0)").alias("id"), col("e.note").alias("note")), PAYMENT)
    framed = rows.select(
        concat(lit(bytearray(b"\0\0\0\0\7")), body).alias("value"), expr("CAST(e.id AS STRING) AS key")
    )
    site.drain(framed.writeStream.format(source).options(**{"kafka.bootstrap.servers": site.servers, "topic": out}))
    read = site.batch(source, subscribe=out).select(
        expr("hex(substring(value, 1, 5))"), from_avro(expr("substring(value, 6)"), PAYMENT).alias("p")
    )
    return read.collect()


@job()
def values_as_variants(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """JSON without a schema as `VARIANT`, with paths picked out by type, kept in Parquet."""
    values = [{"id": n, "tags": ["a", "b"][: n % 3], "deep": {"x": n / 2}} for n in range(4)] + ["[1, 2]", "null"]
    frame = site.stream(source, subscribe=site.fill("in", values)).withColumn(
        "v", parse_json(col("value").cast("string"))
    )
    out = str(site.folder / "out")
    site.drain(frame.select("v", "offset", "partition").writeStream.format("parquet").option("path", out))
    picked = [
        variant_get("v", path, kind)
        for path, kind in (("$.id", "int"), ("$.deep.x", "double"), ("$.tags[0]", "string"))
    ]
    return spark.read.parquet(out).select(*picked, expr("CAST(v AS STRING)"), "offset").collect()


@job()
def two_topics_grouped_in_pandas(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A nightly comparison of two topics: `cogroup` of two batch reads, and `applyInPandas`."""
    names = ("orders", "payments")
    frames = {
        name: events(site.batch(source, subscribe=site.fill(name, [event(n, n) for n in range(4 + 3 * number)])))
        for number, name in enumerate(names)
    }

    def compared(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        user = (left if len(left) else right)["user"].iloc[0]
        return pd.DataFrame({"user": [user], "difference": [int(left["amount"].sum() - right["amount"].sum())]})

    both = frames["orders"].groupBy("user").cogroup(frames["payments"].groupBy("user"))
    return both.applyInPandas(compared, "user STRING, difference INT").collect()


class SilentUsers(StatefulProcessor):  # type: ignore[misc]
    """Alarms of users that are silent: a timer of event time, moved by each event; counts in a map."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.counts = handle.getMapState("counts", "kind STRING", "number INT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timers: Any) -> Iterator[Row]:  # noqa: N802 - Spark's name
        latest = max(int(row["at"].timestamp() * 1000) for row in rows)
        number = (self.counts.getValue(("seen",))[0] if self.counts.containsKey(("seen",)) else 0) + 1
        self.counts.updateValue(("seen",), (number,))
        for old in list(self.handle.listTimers()):
            self.handle.deleteTimer(old)
        self.handle.registerTimer(latest + 60_000)
        yield Row(user=key[0], text=f"heard {number}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802,N803
        yield Row(user=key[0], text="silent")

    def close(self) -> None:
        pass


@job()
def users_that_fall_silent(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Alarms by `transformWithState`: timers of event time that fire in later runs, counts in a map."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS)
    topic = site.topic("in")
    kept: list[Any] = []
    try:
        frame = events(site.stream(source, subscribe=topic)).withWatermark("at", "10 seconds")
        alarms = frame.groupBy("user").transformWithState(
            SilentUsers(), "user STRING, text STRING", "Update", "EventTime"
        )
        for run in range(3):
            users = 3 - run  # the last ones are silent
            site.send(topic, [event(number, 100 * run + number) for number in range(users)])
            site.drain(
                alarms.writeStream.outputMode("update").foreachBatch(
                    lambda batch, _, run=run: kept.extend((run, *row) for row in batch.collect())
                )
            )
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    return kept


@job()
def queries_awaited_together(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Several named queries of one program under `awaitAnyTermination`: one fails by its function, the others go on."""
    topic, names = site.fill("in", ["1", "2", "x", "4"]), ("sound", "broken")
    spark.streams.resetTerminated()
    queries = {}
    for name in names:
        number = "CAST(CAST(value AS STRING) AS INT)" if name == "broken" else "try_cast(CAST(value AS STRING) AS INT)"
        frame = site.stream(source, subscribe=topic).selectExpr(f"{number} AS number")
        writer = frame.writeStream.format("noop").queryName(f"{name}_{source}")
        queries[name] = writer.option("checkpointLocation", str(site.folder / name)).start()
    try:
        found = ends_of({"awaited": spark.streams.awaitAnyTermination})
        queries["sound"].processAllAvailable()
        active = sorted(query.name.removesuffix(f"_{source}") for query in spark.streams.active)
        failed = str(queries["broken"].exception())
        return [*found, ("active", active), ("cast", "CAST_INVALID_INPUT" in failed)]
    finally:
        for query in queries.values():
            query.stop()
        spark.streams.resetTerminated()


@job()
def batches_that_wait_for_enough(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Few but full batches: `minOffsetsPerTrigger` waits for enough records, `maxTriggerDelay` ends the wait."""
    topic = site.fill("in", ["a"] * 2)
    sizes: list[int] = []
    frame = site.stream(source, subscribe=topic, minOffsetsPerTrigger=6, maxTriggerDelay="20s", maxOffsetsPerTrigger=8)
    writer = frame.writeStream.foreachBatch(lambda batch, _: sizes.append(batch.count()))
    writer = writer.option("checkpointLocation", str(site.folder / "checkpoint"))
    query = writer.trigger(processingTime="200 milliseconds").start()

    def until(rows: int) -> None:
        end = time.monotonic() + 120
        while sum(sizes) < rows and time.monotonic() < end:
            time.sleep(0.1)

    try:
        until(2)
        site.send(topic, ["b"] * 4)
        time.sleep(1)
        site.send(topic, ["c"] * 2)
        until(8)
        site.send(topic, ["d"] * 2)
        until(10)
    finally:
        query.stop()
    return [tuple(size for size in sizes if size)]


@job()
def headers_by_higher_order_functions(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Routing by headers in SQL: `exists`, `filter`, `transform`, `aggregate` and the last of a name."""
    records = [
        (f"k{n}", f"v{n}", [("type", b"order" if n % 2 else b"refund"), ("try", b"%d" % n), ("try", b"9")][: n % 4])
        for n in range(9)
    ]
    frame = site.stream(source, subscribe=site.fill("in", records), includeHeaders="true")
    rows = frame.where("exists(headers, h -> h.key = 'type' AND CAST(h.value AS STRING) = 'order')").selectExpr(
        "CAST(value AS STRING)",
        "CAST(try_element_at(filter(headers, h -> h.key = 'try'), -1).value AS STRING) AS last",
        "transform(headers, h -> concat(h.key, '=', CAST(h.value AS STRING))) AS pairs",
        "aggregate(headers, 0, (n, h) -> n + length(h.value)) AS bytes",
        "to_json(map_from_arrays(array_distinct(headers.key), array_distinct(headers.key)))",
        "headers.key[0]",
    )
    name = f"routed_{source}"
    site.drain(rows.writeStream.format("memory").queryName(name))
    return spark.table(name).collect()


@job()
def plans_names_and_places_of_rows(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A developer's look: `explain`, the console, names of files and partitions of rows, samples, limits, plans."""
    topic = site.fill("in", [str(number) for number in range(6)])
    frame = site.batch(source, subscribe=topic)
    frame.explain(True)
    frame.printSchema()
    stream = site.stream(source, subscribe=topic)
    kept: list[Any] = []
    rows = stream.selectExpr("input_file_name() AS file", "CAST(value AS STRING) AS value")
    site.drain(rows.writeStream.foreachBatch(lambda batch, _: kept.extend(batch.collect())))
    site.drain(
        stream.limit(3).writeStream.format("console").option("truncate", "false").outputMode("append"), "console"
    )
    found = [frame.sample(1.0).count(), frame.limit(2).count(), frame.repartition(3).rdd.getNumPartitions()]
    found += [frame.inputFiles(), frame.isLocal(), frame.storageLevel.useMemory, frame.dtypes, frame.columns]
    found += [len(frame.drop("value").distinct().collect()), sorted(frame.rdd.map(lambda row: row.offset).collect())]
    return [*kept, ("frame", *found)]


@job()
def rows_by_a_function_of_foreach(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`foreach` with a plain function that appends each row to a file."""
    file = site.folder / "rows"

    def add(row: Row) -> None:
        with file.open("a") as lines:
            lines.write(f"{row.topic} {row.partition} {row.offset} {bytes(row.value).decode()} {row.key}\n")

    site.drain(site.stream(source, subscribe=site.fill("in", [str(n) for n in range(6)])).writeStream.foreach(add))
    return [(line,) for line in file.read_text().splitlines()]


@job()
def orders_that_have_a_payment(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A left semi join of two streams behind watermarks, in two runs over one checkpoint."""
    topics, frames = {name: site.topic(name) for name in ("orders", "payments")}, {}
    for name, topic in topics.items():
        parsed = events(site.stream(source, subscribe=topic))
        frames[name] = parsed.selectExpr(f"id AS {name}_id", f"at AS {name}_at").withWatermark(
            f"{name}_at", "5 seconds"
        )
    soon = "orders_id = payments_id AND payments_at BETWEEN orders_at AND orders_at + INTERVAL 20 SECONDS"
    out = str(site.folder / "joined")
    joined = frames["orders"].join(frames["payments"], expr(soon), "leftSemi")
    for run in range(2):
        site.send(topics["orders"], [event(100 * run + n, 600 * run + n) for n in range(5)])
        site.send(topics["payments"], [event(100 * run + n, 600 * run + n + 5) for n in (1, 1, 3, 9)])
        site.drain(joined.writeStream.format("parquet").option("path", out))
    return spark.read.parquet(out).collect()


@job()
def settings_of_a_producer(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A batch written with many producer settings, without keys, and each row in the partition that it names."""
    out = site.topic("out", 3)
    settings = {
        "kafka.acks": "1",
        "kafka.retries": "3",
        "kafka.batch.size": "32768",
        "kafka.linger.ms": "20",
        "kafka.max.request.size": "2097152",
        "kafka.compression.type": "zstd",
        "kafka.enable.idempotence": "false",
        "kafka.max.in.flight.requests.per.connection": "1",
        "kafka.buffer.memory": "33554432",
        "kafka.request.timeout.ms": "30000",
        "kafka.delivery.timeout.ms": "120000",
        "kafka.client.id": "exporter",
        "kafka.security.protocol": "PLAINTEXT",
    }
    rows = spark.range(9).selectExpr(
        "CAST(NULL AS STRING) AS key", "CAST(id AS STRING) AS value", "CAST(id % 3 AS INT) AS partition"
    )
    writer = rows.write.format(source).option("kafka.bootstrap.servers", site.servers).option("topic", out)
    writer.options(**settings).mode("append").save()
    return site.written(out, "CAST(key AS STRING)", "CAST(value AS STRING)", "partition")
