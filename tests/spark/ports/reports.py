"""Reports on topics by batch reads: reconciliation, samples, summaries, tables, and looks at what a record has."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import col, count, expr, lit, schema_of_json, to_date, to_json
from pyspark.sql.functions import max as highest
from pyspark.sql.functions import struct as record
from tests.spark.ports.job_site import FIRST_MS, JobSite, Rows, job

from kohort import Admin, Producer
from kohort.client.admin.values import NewTopic


@job()
def a_table_compared_with_its_topic(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A reconciliation: offsets of a table and its dead letters against those of the topic, by anti joins."""
    topic = site.fill("in", [str(number) for number in range(12)])
    read = site.batch(source, subscribe=topic, endingOffsets="latest", failOnDataLoss="true")
    places = read.selectExpr("topic AS t", "partition AS p", "offset AS o", "CAST(value AS STRING) AS line").cache()
    table, dead = str(site.folder / "table"), str(site.folder / "dead")
    places.where("line % 3 = 0").write.parquet(table)
    places.where("line % 3 = 1").write.mode("overwrite").parquet(dead)
    kept = spark.read.parquet(table).unionByName(spark.read.parquet(dead))
    missing = places.join(kept, ["t", "p", "o"], "left_anti")
    twice = kept.groupBy("t", "p", "o").count().where("count > 1")
    return [*missing.collect(), ("twice", twice.count()), ("equal", places.exceptAll(kept).count())]


@job()
def rows_mapped_by_an_rdd(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A course's notebook: the frame is cached, values go through `rdd.map`, `toDF`, a view and SQL into Parquet."""
    values = [{"event": f"e{number % 3}", "id": number} for number in range(9)]
    raw = site.batch(source, subscribe=site.fill("events", values), endingOffsets="latest")
    raw.cache()
    kinds = {(type(row.value).__name__, type(row.timestamp).__name__) for row in raw.take(3)}
    lines = raw.select(raw.value.cast("string")).rdd.map(lambda row: Row(**json.loads(row.value))).toDF()
    view = f"mapped_{source}"
    lines.createOrReplaceTempView(view)
    out = str(site.folder / "out")
    spark.sql(f"SELECT event, sum(id) AS total FROM {view} GROUP BY event").write.mode("overwrite").parquet(out)
    bare = raw.rdd.map(lambda row: (bytes(row.value)[:1], row.offset)).countByValue()
    return [*kinds, *spark.read.parquet(out).collect(), *bare.items()]


@job()
def the_newest_state_of_each_key(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A state rebuilt from a topic: `max_by` over offsets, `pandas_api`, `describe` and `summary`."""
    values = [{"id": number % 4, "level": number * 10} for number in range(14)]
    read = site.batch(source, subscribe=site.fill("levels", values, key="id"))
    newest = read.groupBy(col("key").cast("string").alias("id")).agg(
        expr("max_by(get_json_object(CAST(value AS STRING), '$.level'), struct(timestamp, offset)) AS level")
    )
    frame = read.select("partition", "offset").pandas_api().groupby("partition")["offset"].max().sort_index()
    return [
        *newest.collect(),
        *((int(partition), int(offset)) for partition, offset in frame.to_pandas().items()),
        *read.describe("offset").collect(),
        *read.select("partition", "offset").summary("count", "min", "75%").collect(),
    ]


@job()
def hours_backfilled_one_by_one(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A loop over intervals of time: `startingTimestamp` and `endingTimestamp` of each, an empty one among them."""
    topic = site.fill("in", [str(number) for number in range(20)])
    found: list[Any] = []
    for start, end in ((0, 5), (5, 12), (12, 12), (12, 60)):
        times = {"startingTimestamp": FIRST_MS + start * 1_000, "endingTimestamp": FIRST_MS + end * 1_000}
        read = site.batch(source, subscribe=topic, **times, startingOffsetsByTimestampStrategy="latest")
        found += [(start, *row) for row in read.selectExpr("CAST(value AS STRING)", "offset").collect()]
    return found


@job()
def times_of_the_brokers(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A topic with the brokers' time and one with the producers': `timestampType`, and records without their own."""
    names = {"append": "LogAppendTime", "create": "CreateTime"}
    for name, kind in names.items():
        with Admin(site.servers) as admin:
            new = NewTopic(site.prefix + name, 1, configs={"message.timestamp.type": kind})
            admin.create_topics([new]).all()
        site.send(site.prefix + name, ["a", "b"], partitions=1)
    read = site.batch(source, subscribe=",".join(site.prefix + name for name in names))
    old = expr(f"timestamp < timestamp_millis({FIRST_MS + 10_000})")
    return read.select("topic", "timestampType", old, "offset").collect()


@job()
def columns_of_their_own(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Looks that need one column or none: counts, literals, distinct topics, the last offset, an empty selection."""
    topics = [site.fill(name, [str(number) for number in range(5)]) for name in ("a", "b")]
    read = site.batch(source, subscribe=",".join(topics), includeHeaders="true")
    found: list[Any] = [(read.count(), read.select().count(), read.select(lit(1)).count())]
    found += read.select("topic").distinct().collect()
    found += read.groupBy("topic", "partition").agg(highest("offset"), count("key"), count("headers")).collect()
    found += read.where("offset = 1 AND partition = 0").select("value").collect()
    found += read.where(col("timestamp") < lit(0).cast("timestamp")).collect()
    return [*found, (len(read.head(2)), read.limit(3).count(), read.isEmpty(), read.first() is None)]


@job()
def values_of_many_sizes(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Values beyond the fetch limits that the job sets, empty ones and none, in a stream and in a batch read."""
    topic = site.topic("in", 1)
    with Producer(site.servers) as producer:
        for size in (0, 1, 700_000, 10, 900_000):
            producer.send(topic, b"x" * size, key=b"", partition=0)
        producer.send(topic, None, partition=0)
    limits = {"kafka.max.partition.fetch.bytes": "1000", "kafka.fetch.max.bytes": "2000"}
    look = ("offset", "length(value)", "key IS NULL", "length(key)")
    read = site.batch(source, subscribe=topic, **limits)
    kept: list[Any] = []
    frame = site.stream(source, subscribe=topic, **limits, maxOffsetsPerTrigger=4).selectExpr(*look)
    site.drain(frame.writeStream.foreachBatch(lambda batch, _: kept.extend(batch.collect())))
    return [*kept, *read.selectExpr(*look).collect()]


@job()
def a_schema_out_of_one_record(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A loader's schema by `schema_of_json` of one record, then `variant_explode` and `inline` in SQL over all."""
    values = [{"id": number, "tags": [{"k": "a", "v": number}, {"k": "b", "v": 1}]} for number in range(4)]
    read = site.batch(source, subscribe=site.fill("in", values)).selectExpr("CAST(value AS STRING) AS line")
    schema = read.select(schema_of_json(lit(read.first().line))).first()[0]
    view = f"one_record_{source}"
    read.createOrReplaceTempView(view)
    rows = spark.sql(f"SELECT e.id, inline(e.tags) FROM (SELECT from_json(line, '{schema}') AS e FROM {view})")
    paths = spark.sql(f"SELECT v.key, count(*) FROM {view}, LATERAL variant_explode(parse_json(line)) v GROUP BY 1")
    return [(schema,), *rows.collect(), *paths.collect()]


@job()
def a_topic_saved_as_a_table(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A topic by `saveAsTable` and `INSERT INTO` into a table with partitions by day, and `localCheckpoint`."""
    topic = site.fill("in", [{"id": number} for number in range(6)])
    table = f"saved_{site.prefix.replace('-', '_').strip('_')}"
    read = site.batch(source, subscribe=topic).select(
        col("value").cast("string").alias("line"), "offset", to_date("timestamp").alias("day")
    )
    read.write.partitionBy("day").option("path", str(site.folder / "t")).saveAsTable(table)
    kept = read.localCheckpoint()
    site.send(topic, [{"id": 6}])
    kept.createOrReplaceTempView(f"{table}_view")
    spark.sql(f"INSERT INTO {table} SELECT line, offset + 100, day FROM {table}_view")
    rows = spark.table(table).select(to_json(record("*"))).collect()
    return [*rows, (kept.count(),)]
