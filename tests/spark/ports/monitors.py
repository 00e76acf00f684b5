"""Jobs of notebooks, schedulers and monitors: threads, restarts, progress, checkpoints of Spark's own source."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import array, col, count, expr, from_json, lit, window
from pyspark.sql.functions import struct as record
from tests.spark.ports.job_site import FIRST_MS, JobSite, Rows, job

from kohort import Producer

EVENT = "id INT, user STRING, at TIMESTAMP"
IDLE_S = 120.0
"""Far longer than a query takes to read a few records on a busy machine."""


def event(number: int, second: int) -> dict[str, Any]:
    return {"id": number, "user": f"u{number % 3}", "at": f"2024-05-01T10:{second // 60:02}:{second % 60:02}Z"}


def events(frame: DataFrame) -> DataFrame:
    return frame.select(from_json(col("value").cast("string"), EVENT).alias("event")).select("event.*")


@job()
def topics_written_by_threads(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A fan-out whose `foreachBatch` writes every topic of a batch from a thread of a pool."""
    out = [site.topic(f"out{number}", 1) for number in range(2)]
    frame = site.stream(source, subscribe=site.fill("in", [str(number) for number in range(8)]))

    def write(batch: DataFrame, _number: int) -> None:
        batch.persist()
        with ThreadPoolExecutor(2) as threads:
            for future in [threads.submit(to_topic, batch, number) for number in range(2)]:
                future.result()
        batch.unpersist()

    def to_topic(batch: DataFrame, number: int) -> None:
        rows = batch.where(f"CAST(CAST(value AS STRING) AS INT) % 2 = {number}").select("key", "value")
        to = {"kafka.bootstrap.servers": site.servers, "topic": out[number]}
        rows.write.format(source).options(**to).mode("append").save()

    site.drain(frame.writeStream.foreachBatch(write))
    return [(number, *row) for number in range(2) for row in site.written(out[number])]


@job()
def queries_started_by_threads(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A launcher with a thread for each topic, which gets the session by itself and mirrors its topic to another."""
    topics = {name: site.fill(name, [f"{name}{number}" for number in range(4)]) for name in ("a", "b")}
    copies = {name: site.topic(f"{name}-copy", 1) for name in topics}

    def run(name: str) -> int:
        own = SparkSession.builder.getOrCreate()
        reader = own.readStream.format(source).option("kafka.bootstrap.servers", site.servers)
        frame = reader.option("subscribe", topics[name]).option("startingOffsets", "earliest").load()
        to = {"kafka.bootstrap.servers": site.servers, "topic": copies[name]}
        site.drain(frame.selectExpr("key", "value").writeStream.format(source).options(**to), f"checkpoint-{name}")
        read = own.read.format(source).option("kafka.bootstrap.servers", site.servers)
        return read.option("subscribe", copies[name]).load().count()

    with ThreadPoolExecutor(2) as threads:
        counts = [(future.result(),) for future in [threads.submit(run, name) for name in topics]]
    return counts + [row for name in topics for row in site.written(copies[name])]


@job()
def rows_into_a_database_by_jdbc(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Events appended to a table of a database by `foreachBatch` and `batch.write.jdbc`, read back by `read.jdbc`."""
    url = f"jdbc:derby:{site.folder / 'derby'};create=true"
    properties = {"driver": "org.apache.derby.jdbc.EmbeddedDriver"}
    frame = events(site.stream(source, subscribe=site.fill("in", [event(n, n) for n in range(6)])))
    site.drain(
        frame.writeStream.foreachBatch(
            lambda batch, number: batch.withColumn("batch", lit(number)).write.jdbc(url, "events", "append", properties)
        )
    )
    return spark.read.jdbc(url, "(SELECT * FROM events) t", properties=properties).collect()


@job()
def a_notebooks_cell_run_again(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A cell that stops the query of its name, reads anew and starts it again over the same checkpoint."""
    topic, name = site.topic("in"), f"cell_{site.prefix.replace('-', '_')}"
    kept: list[Any] = []
    for run in range(3):
        site.send(topic, [f"{run} {number}" for number in range(4)])
        for query in spark.streams.active:
            if query.name == name:
                query.stop()
        writer = site.stream(source, subscribe=topic).selectExpr("CAST(value AS STRING)", "offset").writeStream
        query = (
            writer.foreachBatch(lambda batch, _, run=run: kept.extend((run, *row) for row in batch.collect()))
            .queryName(name)
            .option("checkpointLocation", str(site.folder / "checkpoint"))
            .start()
        )
        query.processAllAvailable()
    query.stop()
    return kept


@job()
def committed_records_alone(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`read_committed` beside a transaction that is open in the first run and aborted before the second."""
    topic = site.topic("in", 1)
    seen: list[Any] = []
    frame = site.stream(source, subscribe=topic, kafka__isolation__level="read_committed")
    rows = frame.selectExpr("CAST(value AS STRING)", "offset")
    with Producer(site.servers, transactional_id=site.prefix) as producer:
        producer.init_transactions()
        for run in range(2):
            site.send(topic, [f"before {run}"], partitions=1)
            producer.begin_transaction()
            producer.send(topic, b"open", partition=0)
            producer.flush()
            site.send(topic, [f"after {run}"], partitions=1)
            site.drain(
                rows.writeStream.foreachBatch(
                    lambda batch, _, run=run: seen.extend((run, *row) for row in batch.collect())
                )
            )
            producer.abort_transaction()
    site.drain(rows.writeStream.foreachBatch(lambda batch, _: seen.extend((2, *row) for row in batch.collect())))
    return seen


@job()
def a_topic_added_to_the_list(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """One more topic in `subscribe` with the old checkpoint: it is read from its beginning, the others go on."""
    first, second = site.fill("first", ["a", "b"]), site.fill("second", ["c", "d"])
    seen: list[Any] = []
    for run, topics in enumerate((first, f"{first},{second}")):
        frame = site.stream(source, subscribe=topics, startingOffsets="latest" if run else "earliest")
        rows = frame.selectExpr("topic", "CAST(value AS STRING)")
        site.drain(
            rows.writeStream.foreachBatch(lambda batch, _, run=run: seen.extend((run, *row) for row in batch.collect()))
        )
        site.send(first, ["e"])
    return seen


@job()
def a_stream_from_times_of_partitions(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A stream from a time for each partition, one of which has nothing as young and starts at its end."""
    topic = site.fill("in", [str(number) for number in range(10)])
    times = json.dumps({topic: {"0": FIRST_MS + 4_000, "1": FIRST_MS + 3_600_000}})
    frame = site.stream(
        source, subscribe=topic, startingOffsetsByTimestamp=times, startingOffsetsByTimestampStrategy="latest"
    )
    seen: list[Any] = []
    for _run in range(2):
        site.drain(
            frame.writeStream.foreachBatch(lambda batch, _: seen.extend(batch.select("partition", "offset").collect()))
        )
        site.send(topic, ["new", "newer"])
    return seen


def looked_at(site: JobSite, load: Callable[[], DataFrame], topic: str) -> Rows:
    frame = load().selectExpr("CAST(value AS STRING) AS value").cache()
    found = [("first", len(load().collect()), frame.count())]
    site.send(topic, ["4", "5"], partitions=1)
    found.append(("later", load().count(), load().where("offset > 0").count(), frame.count()))
    frame.unpersist()
    return [*found, ("anew", load().limit(10).toPandas().shape[0], load().orderBy("offset").tail(1)[0].value)]


def a_frame_loaded_for_each_look(spark: SparkSession, source: str, site: JobSite) -> Rows:
    topic = site.fill("in", ["1", "2", "3"], partitions=1)
    return looked_at(site, lambda: site.batch(source, subscribe=topic), topic)


@job(differs=True, mended=a_frame_loaded_for_each_look)
def a_frame_looked_at_again(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A notebook that loads a topic once as a batch, and looks at the frame again when more records are there."""
    topic = site.fill("in", ["1", "2", "3"], partitions=1)
    frame = site.batch(source, subscribe=topic)
    return looked_at(site, lambda: frame, topic)


def with_names(source: str, site: JobSite, join: Callable[[DataFrame, Callable[[], DataFrame]], DataFrame]) -> Rows:
    users, topic = site.fill("users", [("u0", "zero", []), ("u1", "one", [])], partitions=1), site.topic("in", 1)

    def names() -> DataFrame:
        read = site.batch(source, subscribe=users)
        return read.selectExpr("CAST(key AS STRING) AS user", "CAST(value AS STRING) AS name")

    kept: list[Any] = []
    frame = site.stream(source, subscribe=topic).selectExpr("CAST(value AS STRING) AS user", "offset")
    writer = join(frame, names).writeStream if join is not each_batch else frame.writeStream

    def keep(batch: DataFrame, _number: int) -> None:
        kept.extend((join(batch, names) if join is each_batch else batch).collect())

    query = writer.foreachBatch(keep).option("checkpointLocation", str(site.folder / "checkpoint")).start()
    try:
        for user in ("u1", "u2"):
            site.send(topic, [user], partitions=1)
            query.processAllAvailable()
            site.send(users, [("u2", "two", [])], partitions=1)
    finally:
        query.stop()
    return [(row.user, row.name) for row in kept]


def each_batch(frame: DataFrame, names: Callable[[], DataFrame]) -> DataFrame:
    return frame.join(names(), "user", "left")


def names_read_for_each_batch(spark: SparkSession, source: str, site: JobSite) -> Rows:
    return with_names(source, site, each_batch)


@job(differs=True, mended=names_read_for_each_batch)
def names_that_come_later(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A stream joined with a batch read of another topic, which has more records when a later batch runs."""
    return with_names(source, site, lambda frame, names: frame.join(names(), "user", "left"))


@job()
def headers_without_values(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Headers with null values, twice the same key and none at all, read and written again."""
    out = site.topic("out", 1)
    records = [("k", "a", [("n", None), ("n", b"1"), ("", b"")]), ("k", "b", []), (None, "c", [("é", b"\xff")])]
    frame = site.stream(source, subscribe=site.fill("in", records, partitions=1), includeHeaders="true")
    own = array(record(lit("from").alias("key"), lit(None).cast("binary").alias("value")))
    rows = frame.select("key", "value", expr("coalesce(headers, array())").alias("headers")).union(
        frame.select("key", "value", own)
    )
    site.drain(rows.writeStream.format(source).options(**{"kafka.bootstrap.servers": site.servers, "topic": out}))
    return site.written(out, "CAST(value AS STRING)", "CAST(headers AS STRING)", "headers IS NULL")


@job()
def a_stream_beside_files(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A topic and a folder of JSON files in one query, with a watermark over both, in two runs."""
    topic, folder, out = site.topic("in"), site.folder / "files", str(site.folder / "out")
    folder.mkdir()
    files = spark.readStream.schema(EVENT).json(str(folder))
    both = events(site.stream(source, subscribe=topic)).unionByName(files).withWatermark("at", "10 seconds")
    counts = both.groupBy(window("at", "30 seconds")).agg(count("*").alias("rows"))
    for run in range(2):
        site.send(topic, [event(number, 120 * run + number) for number in range(5)])
        (folder / f"{run}.json").write_text("\n".join(json.dumps(event(n, 120 * run + n)) for n in range(3)))
        site.drain(counts.selectExpr("window.start", "rows").writeStream.format("parquet").option("path", out))
    return spark.read.parquet(out).collect()


@job()
def a_full_outer_join(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Requests and answers joined from both sides: what has no partner comes with nulls behind the watermark."""
    topics, frames = {name: site.topic(name) for name in ("asked", "told")}, {}
    for name, topic in topics.items():
        parsed = events(site.stream(source, subscribe=topic))
        frames[name] = parsed.selectExpr(f"id AS {name}_id", f"at AS {name}_at").withWatermark(
            f"{name}_at", "5 seconds"
        )
    soon = "asked_id = told_id AND told_at BETWEEN asked_at AND asked_at + INTERVAL 20 SECONDS"
    out = str(site.folder / "joined")
    joined = frames["asked"].join(frames["told"], expr(soon), "fullOuter")
    for run in range(2):
        site.send(topics["asked"], [event(100 * run + number, 600 * run + number) for number in range(5)])
        site.send(topics["told"], [event(100 * run + number, 600 * run + number + 5) for number in (1, 3, 9)])
        site.drain(joined.writeStream.format("parquet").option("path", out))
    return spark.read.parquet(out).collect()


@job()
def rows_counted_of_a_batch_used_twice(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`numInputRows` and the sink of each progress, where `foreachBatch` uses a batch twice without keeping it."""
    frame = site.stream(source, subscribe=site.fill("in", [str(number) for number in range(9)]))

    def use(batch: DataFrame, _number: int) -> None:
        assert batch.count() == len(batch.collect())

    writer = frame.writeStream.foreachBatch(use).option("checkpointLocation", str(site.folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [
        (found["batchId"], found["numInputRows"], found["sources"][0]["numInputRows"], found["sink"]["numOutputRows"])
        for found in query.recentProgress
        if found["numInputRows"]
    ]


@job()
def dead_letters_sent_again(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A nightly batch that sends dead letters back to their topic, or into their own again with one more attempt."""
    main, dead = site.topic("main", 1), site.topic("dead", 1)
    letters = [(f"k{n}", f"v{n}", [("attempts", str(n).encode())]) for n in range(5)]
    site.send(dead, letters, partitions=1)
    for _night in range(2):
        frame = site.batch(source, subscribe=dead, includeHeaders="true", endingOffsets="latest")
        tries = frame.withColumn("tries", expr("CAST(CAST(headers[0].value AS STRING) AS INT)"))
        more = "array(named_struct('key', 'attempts', 'value', CAST(CAST(tries + 1 AS STRING) AS BINARY))) AS headers"
        rows = tries.where("tries < 4").selectExpr(
            "key", "value", f"CASE WHEN tries < 2 THEN '{main}' ELSE '{dead}' END AS topic", more
        )
        rows.write.format(source).option("kafka.bootstrap.servers", site.servers).mode("append").save()
    return [(name, *row) for name in (main, dead) for row in site.written(name, "CAST(value AS STRING)", "offset")]


@job()
def days_of_another_zone(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Days and hours of records in New York, by the session's time zone, in a stream and in a batch read."""
    topic = site.fill("in", [str(number) for number in range(4)])
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        kept: list[Any] = []
        words = "CAST(timestamp AS STRING)", "to_date(timestamp)", "hour(timestamp)", "unix_millis(timestamp)"
        frame = site.stream(source, subscribe=topic).selectExpr(*words)
        site.drain(frame.writeStream.foreachBatch(lambda batch, _: kept.extend(batch.collect())))
        batch = site.batch(source, subscribe=topic, startingTimestamp=str(FIRST_MS + 2_000))
        return kept + batch.selectExpr(*words).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@job()
def a_checkpoint_of_sparks_own_source(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A count with state begun by Spark's own source: the second and third run go on from its checkpoint."""
    topic = site.topic("visits")
    seen: list[Any] = []
    for run, kind in enumerate(("kafka", source, source)):
        site.send(topic, [f"page{number % 3}" for number in range(5 + run)])
        frame = site.stream(kind, subscribe=topic, maxOffsetsPerTrigger=100)
        counts = frame.selectExpr("CAST(value AS STRING) AS page").groupBy("page").count()
        site.drain(
            counts.writeStream.outputMode("update").foreachBatch(
                lambda batch, number, run=run: seen.extend((run, number, *row) for row in batch.collect())
            )
        )
    return seen


@job()
def bronze_to_silver_to_gold(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Tables one behind another: `toTable`, `readStream` of files, and a view that SQL adds up."""
    bronze, silver = str(site.folder / "bronze"), str(site.folder / "silver")
    topic = site.topic("in")
    for run in range(2):
        site.send(topic, [event(10 * run + number, number) for number in range(4)] + ["broken"])
        raw = site.stream(source, subscribe=topic).selectExpr("CAST(value AS STRING) AS value", "topic", "offset")
        site.drain(raw.writeStream.format("parquet").option("path", bronze), "bronze-checkpoint")
        parsed = spark.readStream.schema("value STRING, topic STRING, offset BIGINT").parquet(bronze)
        rows = parsed.select(from_json("value", EVENT).alias("e"), "offset").where("e.id IS NOT NULL")
        site.drain(
            rows.select("e.*", "offset").writeStream.format("parquet").option("path", silver), "silver-checkpoint"
        )
    spark.read.parquet(silver).createOrReplaceTempView(f"silver_{source}")
    return spark.sql(f"SELECT user, count(*), min(offset), max(at) FROM silver_{source} GROUP BY user").collect()


@job()
def a_stream_stopped_when_idle(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A scheduler's loop over `query.status` and `lastProgress` that stops a query when nothing is left."""
    topic = site.fill("in", [str(number) for number in range(20)])
    frame = site.stream(source, subscribe=topic, maxOffsetsPerTrigger=10)
    kept: list[Any] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: kept.extend(batch.select("offset", "partition").collect()))
        .option("checkpointLocation", str(site.folder / "checkpoint"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    until, idle = time.monotonic() + IDLE_S, 0
    while idle < 3 and time.monotonic() < until:
        status = query.status
        done = query.lastProgress is not None and not status["isDataAvailable"] and not status["isTriggerActive"]
        idle = idle + 1 if done and "Waiting for" in status["message"] else 0
        time.sleep(0.1)
    query.stop()
    return [*kept, ("active", query.isActive, query.exception(), idle)]


@job()
def a_query_that_names_its_group(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A group that an access list requires, by `kafka.group.id`, in two runs with state and one checkpoint."""
    topic = site.topic("in")
    kept: list[Any] = []
    for run in range(2):
        site.send(topic, [event(number, 10 * run + number) for number in range(6)])
        frame = site.stream(source, subscribe=topic, kafka__group__id=f"{site.prefix}readers", maxOffsetsPerTrigger=50)
        once = events(frame).withWatermark("at", "1 minute").dropDuplicatesWithinWatermark(["user"])
        site.drain(once.writeStream.foreachBatch(lambda batch, _, run=run: kept.append((run, batch.count()))))
    return [row for row in kept if row[1]]


@job()
def a_topic_without_records(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Looks of a job before there is a record: counts, maxima, the first row, files, pandas and a stream."""
    topic = site.topic("in")
    frame = site.batch(source, subscribe=topic)
    out = str(site.folder / "out")
    frame.write.parquet(out)
    stream = site.stream(source, subscribe=topic)
    site.drain(
        stream.groupBy("topic").count().writeStream.outputMode("complete").format("memory").queryName(f"no_{source}")
    )
    return [
        (frame.count(), frame.first(), frame.isEmpty(), frame.rdd.isEmpty(), frame.agg({"offset": "max"}).collect()),
        (spark.read.parquet(out).count(), list(frame.toPandas().columns), spark.table(f"no_{source}").count()),
    ]


@job()
def the_order_of_each_key(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Rows sorted within the partitions of their key, and written: readers see each key's rows in order."""
    out = site.topic("out", 3)
    rows = spark.range(60).selectExpr("CONCAT('k', id % 5) AS key", "id", "CAST(id AS STRING) AS value")
    ordered = rows.repartition(4, "key").sortWithinPartitions("key", "id")
    to = {"kafka.bootstrap.servers": site.servers, "topic": out}
    ordered.select("key", "value").write.format(source).options(**to).mode("append").save()
    read = site.batch(source, subscribe=out)
    values = "collect_list(named_struct('offset', offset, 'value', CAST(value AS STRING))) AS rows"
    by_key = read.groupBy("key", "partition").agg(expr(values.split(" AS rows")[0]).alias("rows"))
    return by_key.selectExpr("CAST(key AS STRING)", "partition", "transform(array_sort(rows), r -> r.value)").collect()


@job()
def payloads_unpacked_by_functions(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Compressed payloads that functions in Python unpack: rows by `udf`, bytes as they arrive, nulls among them."""
    import zlib

    values = [None if number == 3 else zlib.compress(b"payload %d" % number) for number in range(6)]
    spark.udf.register("unpacked", lambda value: None if value is None else zlib.decompress(value).decode(), "string")
    spark.udf.register("kind", lambda value: type(value).__name__, "string")
    frame = site.stream(source, subscribe=site.fill("in", values))
    kept: list[Any] = []
    rows = frame.selectExpr("unpacked(value)", "kind(value)", "kind(key)", "kind(timestamp)", "kind(timestampType)")
    site.drain(rows.writeStream.foreachBatch(lambda batch, _: kept.extend(batch.collect())))
    return kept
