"""Batch reads and writes that other lists lack: SQL, splits, codecs, settings, tasks, headers, sizes, results."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import col, expr, from_json, lit, struct, to_json, udtf
from tests.spark.ports.answers import EVENT, event, events
from tests.spark.ports.habits import ends_of
from tests.spark.ports.job_site import JobSite, Rows, encoded, job

from kohort import Admin, Producer
from kohort.client.admin.values import NewTopic


def name_in_sql(site: JobSite, name: str) -> str:
    """A name of a view or table that no other run has."""
    return f"{name}_{site.prefix}".replace("-", "_").strip("_")


def sql_options(options: dict[str, Any]) -> str:
    """Options as SQL has them."""
    return ", ".join(f"`{name}` '{value}'" for name, value in options.items())


@job()
def a_view_of_a_topic_in_statements(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A global view, a parameterized query, a query by frame, a common table, pipes and sets over one topic's view."""
    topic = site.fill("in", [event(number, number) for number in range(8)])
    frame = events(site.batch(source, subscribe=topic))
    view = name_in_sql(site, "events")
    frame.createOrReplaceGlobalTempView(view)
    name = f"global_temp.{view}"
    statements: list[Callable[[], Any]] = [
        lambda: spark.sql(f"SELECT user, count(*) FROM {name} WHERE amount > :least GROUP BY user", {"least": 20}),
        lambda: spark.sql("SELECT max(amount) FROM {events}", events=frame),
        lambda: spark.sql(f"WITH late AS (SELECT * FROM {name} WHERE id > 4) SELECT id FROM late UNION SELECT 99"),
        lambda: spark.sql(f"FROM {name} |> WHERE id < 3 |> AGGREGATE sum(amount) AS sum GROUP BY user"),
        lambda: spark.sql(f"SELECT id FROM {name} EXCEPT SELECT id FROM {name} WHERE user = 'u1'"),
        lambda: spark.sql(f"SELECT user, amount, rank() OVER (PARTITION BY user ORDER BY amount) FROM {name}"),
        lambda: spark.sql(
            f"SELECT * FROM (SELECT user, id FROM {name}) PIVOT (max(id) FOR user IN ('u0', 'u1', 'u2'))"
        ),
    ]
    try:
        return [(number, *row) for number, run in enumerate(statements) for row in run().collect()]
    finally:
        spark.catalog.dropGlobalTempView(view)


@job()
def statements_over_streams(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`STREAM` in SQL over a view of a stream, a view of a batch and a path, and `readStream.table` of these."""
    topic = site.fill("in", [str(number) for number in range(4)])
    streamed, once = name_in_sql(site, "streamed"), name_in_sql(site, "once")
    site.stream(source, subscribe=topic).selectExpr("CAST(value AS STRING) AS line").createOrReplaceTempView(streamed)
    options = {"kafka.bootstrap.servers": site.servers, "subscribe": topic, "startingOffsets": "earliest"}
    spark.sql(f"CREATE TEMPORARY VIEW {once} USING {source} OPTIONS ({sql_options(options)})")

    def drained(make: Callable[[], Any], name: str) -> Callable[[], Any]:
        def run() -> Any:
            kept: list[Any] = []
            frame = make()
            assert frame.isStreaming
            site.drain(frame.writeStream.foreachBatch(lambda batch, _: kept.extend(batch.collect())), name)
            return sorted(str(tuple(row)) for row in kept)

        return run

    return ends_of(
        {
            "a view of a stream": drained(lambda: spark.sql(f"SELECT line FROM {streamed} WHERE line > 0"), "a"),
            "STREAM of a view of a stream": drained(lambda: spark.sql(f"SELECT line FROM STREAM {streamed}"), "b"),
            "STREAM() of a view of a stream": drained(lambda: spark.sql(f"SELECT line FROM STREAM({streamed})"), "c"),
            "readStream.table of a view of a stream": drained(lambda: spark.readStream.table(streamed), "d"),
            "a view of a batch": lambda: spark.table(once).count(),
            "readStream.table of a view of a batch": drained(lambda: spark.readStream.table(once), "e"),
            "STREAM of a view of a batch": drained(lambda: spark.sql(f"SELECT value FROM STREAM {once}"), "f"),
            "a path": lambda: spark.sql(f"SELECT * FROM {source}.`{topic}`").count(),
            "an insert into a view": lambda: spark.sql(f"INSERT INTO {once} SELECT 'a' AS value").count(),
        }
    )


@udtf(returnType="word STRING, place INT")
class Words:
    """The words of a line with their places."""

    def eval(self, line: str) -> Any:
        for place, word in enumerate(line.split()):
            yield word, place


@job()
def words_by_a_table_function(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A table function in Python over the lines of a topic, joined sideways in SQL."""
    name = name_in_sql(site, "words")
    spark.udtf.register(name, Words)
    view = name_in_sql(site, "lines")
    topic = site.fill("in", ["a b c", "d", "e f"])
    site.batch(source, subscribe=topic).selectExpr("CAST(value AS STRING) AS line", "offset").createOrReplaceTempView(
        view
    )
    return spark.sql(f"SELECT offset, w.word, w.place FROM {view}, LATERAL {name}(line) w").collect()


@job()
def a_topic_divided_for_a_model(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`randomSplit`, `sample` and `sampleBy` by a seed over a batch read: the parts have each record once."""
    frame = site.batch(source, subscribe=site.fill("in", [str(number) for number in range(40)]))
    rows = frame.selectExpr("CAST(value AS STRING) AS line", "partition")
    first, second = rows.randomSplit([0.7, 0.3], seed=7)
    one, two = ({row.line for row in part.collect()} for part in (first, second))
    sampled = {row.line for row in rows.sample(fraction=0.5, seed=3).collect()}
    by = {row.line for row in rows.sampleBy("partition", {0: 1.0, 1: 0.0}, seed=1).collect()}
    return [(len(one | two), len(one & two)), (sampled <= one | two,), *((line,) for line in sorted(by))]


@job()
def codecs_of_producers(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Topics that producers compress in four ways, and topics written with each of them by the sink."""
    found = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        topic, out = site.topic(f"in-{codec}", 1), site.topic(f"out-{codec}", 1)
        with Producer(site.servers, compression_type=codec, linger_ms=50) as producer:
            for number in range(20):
                producer.send(topic, encoded(f"{codec} {number} " + "x" * 200))
        frame = site.batch(source, subscribe=topic).select("key", "value")
        writer = frame.write.format(source).option("kafka.bootstrap.servers", site.servers).mode("append")
        writer.option("kafka.compression.type", codec).option("topic", out).save()
        found += [
            (codec, *row) for row in site.batch(source, subscribe=out).selectExpr("md5(value)", "offset").collect()
        ]
    return found


@job()
def a_compacted_topic(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A topic with the policy `compact` and tombstones: the table of its newest values, and its range of offsets."""
    name = f"{site.prefix}table"
    with Admin(site.servers) as admin:
        admin.create_topics([NewTopic(name, 1, configs={"cleanup.policy": "compact"})]).all()
    site.send(
        name, [(f"k{number % 4}", None if number == 11 else f"v{number}", []) for number in range(14)], partitions=1
    )
    frame = site.batch(source, subscribe=name).selectExpr(
        "CAST(key AS STRING) AS key", "CAST(value AS STRING) AS v", "offset"
    )
    newest = frame.groupBy("key").agg(expr("max_by(v, offset) AS v"), expr("max(offset) AS offset"))
    return [*newest.where("v IS NOT NULL").collect(), *frame.agg(expr("min(offset)"), expr("max(offset)")).collect()]


@job()
def addresses_of_which_one_is_dead(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A list of brokers with blanks, a repeated one and one that does not answer, in a read, a stream and a write."""
    topic, out = site.fill("in", ["a", "b", "c"]), site.topic("out", 1)
    servers = f"127.0.0.1:1, {site.servers},{site.servers}"
    options = {"kafka.bootstrap.servers": servers, "kafka.reconnect.backoff.ms": "10"}
    rows = site.batch(source, subscribe=topic, **options).select("value").collect()
    kept: list[Any] = []
    frame = site.stream(source, subscribe=topic, **options).select("value")
    site.drain(frame.writeStream.foreachBatch(lambda batch, _: kept.extend(batch.collect())))
    frame = spark.createDataFrame([Row(value="d")]).write.format(source).mode("append")
    frame.option("kafka.bootstrap.servers", servers).option("topic", out).save()
    return [*rows, *kept, *site.written(out)]


@job()
def settings_in_any_case(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Options and `kafka.` settings in any case, given twice, with blanks, empty, and settings that no client knows."""
    topic, out = site.fill("in", [str(number) for number in range(6)]), site.topic("out", 1)

    def read(**options: Any) -> Callable[[], Any]:
        return lambda: site.batch(source, **({"subscribe": topic} | options)).count()

    def write(options: dict[str, Any]) -> Callable[[], Any]:
        def run() -> Any:
            writer = spark.range(1).selectExpr("CAST(id AS STRING) AS value").write.format(source).mode("append")
            writer.options(**{"kafka.bootstrap.servers": site.servers, "topic": out} | options).save()
            return "written"

        return run

    return ends_of(
        {
            "capitals": read(**{"subscribe": None, "SUBSCRIBE": topic, "Kafka.Client.Id": "me"}),
            "fetches": read(**{"kafka.MAX.PARTITION.FETCH.BYTES": "1000", "kafka.fetch.max.wait.ms": "10"}),
            "fetches of text": read(**{"kafka.max.partition.fetch.bytes": "many"}),
            "fetches below zero": read(**{"kafka.fetch.max.bytes": "-1"}),
            "without prefix": read(**{"auto.offset.reset": "latest", "client.id": "me", "enable.auto.commit": "true"}),
            "unknown settings": read(**{"kafka.partition.discovery.interval.ms": "2000", "kafka.my.own": "x"}),
            "poll timeouts": read(**{"kafkaConsumer.pollTimeoutMs": "1000", "fetchOffset.numRetries": "2"}),
            "other frameworks": read(**{"spark.streaming.kafka.maxRatePerPartition": "50", "multiLine": "true"}),
            "a topic option": read(topic="elsewhere", path="/nowhere"),
            "committing": read(**{"kafka.enable.auto.commit": "true"}),
            "resetting": read(**{"kafka.auto.offset.reset": "earliest"}),
            "a deserializer": read(
                **{"kafka.value.deserializer": "org.apache.kafka.common.serialization.StringDeserializer"}
            ),
            "a bad protocol": read(**{"kafka.security.protocol": "HTTPS"}),
            "blanks": read(subscribe=f"  {topic}  ", includeHeaders="True"),
            "loss in capitals": read(failOnDataLoss="FALSE", includeHeaders="TRUE"),
            "tasks of zero": read(minPartitions="0"),
            "records of zero": read(maxRecordsPerPartition="0"),
            "acks": write({"kafka.ACKS": "all", "kafka.Retries": "3", "kafka.batch.size": "16384"}),
            "acks of text": write({"kafka.acks": "some"}),
            "compression of text": write({"kafka.compression.type": "rar"}),
            "a serializer": write({"kafka.value.serializer": "x"}),
            "timeouts": write({"kafka.request.timeout.ms": "5000", "kafka.delivery.timeout.ms": "20000"}),
            "timeouts that clash": write({"kafka.request.timeout.ms": "9000", "kafka.delivery.timeout.ms": "1"}),
        }
    )


@job()
def tasks_of_a_read(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`minPartitions` and `maxRecordsPerPartition` beside numbers of tasks, and the records of each: none twice."""
    topic = site.fill("in", [str(number) for number in range(30)], partitions=3)
    found = []
    for options in (
        {"minPartitions": "6"},
        {"maxRecordsPerPartition": "4"},
        {"minPartitions": "4", "maxRecordsPerPartition": "3"},
    ):
        frame = site.batch(source, subscribe=topic, **options)
        rows = frame.selectExpr("spark_partition_id() AS task", "partition", "offset").collect()
        tasks = {row.task for row in rows}
        of_one = all(len({row.partition for row in rows if row.task == task}) == 1 for task in tasks)
        found.append((str(options), len(rows), len({(row.partition, row.offset) for row in rows}), of_one))
        found.append((str(options), len(tasks) >= int(options.get("minPartitions", "1"))))
    return found


@job()
def rows_as_json_with_nulls(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Whole rows as JSON with and without nulls, numbers exact, keys from several columns, read back by a schema."""
    out = site.topic("out", 1)
    rows = spark.createDataFrame(
        [(1, None, "1.10", ["a"]), (2, "zwei", "20.05", None)], "id INT, name STRING, price STRING, tags ARRAY<STRING>"
    ).withColumn("price", col("price").cast("decimal(10, 2)"))
    for keep in ("true", "false"):
        body = to_json(struct("*"), {"ignoreNullFields": keep})
        frame = rows.select(expr("concat_ws('#', id, name)").alias("key"), body.alias("value"), lit(out).alias("topic"))
        frame.write.format(source).option("kafka.bootstrap.servers", site.servers).mode("append").save()
    schema = "id INT, name STRING, price DECIMAL(10, 2), tags ARRAY<STRING>"
    read = site.batch(source, subscribe=out).select("key", from_json(col("value").cast("string"), schema).alias("row"))
    return [*site.written(out), *read.select("key", "row.*").collect()]


@job()
def lines_of_csv_and_xml(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Values as CSV and XML by `from_csv`, `schema_of_csv`, `from_xml` and `xpath`, broken ones kept aside."""
    csv = site.fill("csv", ["1,a,2.5", "2,b", "x,c,1"], partitions=1)
    xml = site.fill("xml", ["<o><id>1</id><n>a</n></o>", "<o><id>x</id></o>", "no"], partitions=1)
    read = site.batch(source, subscribe=csv).selectExpr("CAST(value AS STRING) AS line", "offset")
    options = "map('columnNameOfCorruptRecord', 'bad')"
    rows = read.selectExpr(
        "offset", f"from_csv(line, 'id INT, name STRING, price DOUBLE, bad STRING', {options}) AS row"
    )
    other = site.batch(source, subscribe=xml).selectExpr("CAST(value AS STRING) AS line", "offset").where("offset < 2")
    parsed = other.selectExpr("offset", "from_xml(line, 'id INT, n STRING') AS row", "xpath_string(line, 'o/id') AS id")
    guessed = spark.sql("SELECT schema_of_csv('1,a,2.5')").collect()
    return [*rows.select("offset", "row.*").collect(), *parsed.collect(), *guessed]


@job()
def headers_as_a_map(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Headers as a map of texts by `map_from_entries`, one picked by name, all exploded, and a trace sent on."""
    records = [(f"k{n}", f"v{n}", [("trace", b"%d" % n), ("kind", b"ab"[n % 2 : n % 2 + 1])]) for n in range(6)]
    topic, out = site.fill("in", records), site.topic("out", 1)
    frame = site.stream(source, subscribe=topic, includeHeaders="true")
    texts = "transform(headers, h -> struct(h.key, CAST(h.value AS STRING)))"
    named = frame.selectExpr("key", "value", "headers", f"map_from_entries({texts}) AS named")
    sent = named.where("named['kind'] = 'a'").selectExpr(
        "key",
        "value",
        "array_append(filter(headers, h -> h.key = 'trace'), struct('hop' AS key, X'31' AS value)) AS headers",
    )
    writer = sent.writeStream.format(source).option("kafka.bootstrap.servers", site.servers).option("topic", out)
    site.drain(writer.option("includeHeaders", "true"))
    exploded = site.batch(source, subscribe=topic, includeHeaders="true").selectExpr("key", "inline(headers)")
    return [*site.written(out, "key", "value", "headers"), *exploded.collect()]


@job()
def records_beyond_a_brokers_size(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Rows that are larger than the producer or the topic allows, in a batch and in a stream, and larger settings."""
    small = f"{site.prefix}small"
    with Admin(site.servers) as admin:
        admin.create_topics([NewTopic(small, 1, configs={"max.message.bytes": "20000"})]).all()
    large = site.topic("large", 1)

    def write(topic: str, size: int, **options: str) -> Callable[[], Any]:
        def run() -> Any:
            frame = spark.range(1).selectExpr(f"repeat('x', {size}) AS value").write.format(source).mode("append")
            frame.options(**{"kafka.bootstrap.servers": site.servers, "topic": topic} | options).save()
            return site.batch(source, subscribe=topic).selectExpr("length(value)").collect()[-1][0]

        return run

    return ends_of(
        {
            "fits": write(small, 10_000),
            "more than the topic takes": write(small, 50_000),
            "more than a producer sends": write(large, 1_100_000),
            "a setting": write(large, 20_000, **{"kafka.max.request.size": "10000"}),
        }
    )


@job()
def writers_of_the_second_kind(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`writeTo`, `insertInto`, `saveAsTable` and `save` with a path into Kafka: what is no topic's way."""
    topic = site.topic("out", 1)
    rows = spark.createDataFrame([Row(value="a")])
    options = {"kafka.bootstrap.servers": site.servers, "topic": topic}

    def made(name: str) -> str:
        return name_in_sql(site, name)

    return ends_of(
        {
            "append by writeTo": lambda: rows.writeTo(made("a")).using(source).options(**options).append(),
            "insertInto": lambda: rows.write.format(source).options(**options).insertInto(made("c")),
            "a path": lambda: rows.write.format(source).options(**options).mode("append").save("/nowhere"),
            "by format of save": lambda: rows.write.options(**options).mode("append").save(format=source),
            "what is there": lambda: len(site.written(topic)),
        }
    )


@job()
def a_table_of_settings_as_options(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Reads by a list of settings in JSON, one frame for each, united by name, with what the record lacks as null."""
    settings = json.dumps(
        [
            {"topic": site.fill(name, [event(n, n) for n in range(3)]), "fields": fields}
            for name, fields in {"a": "id INT, user STRING", "b": "id INT, amount INT", "c": EVENT}.items()
        ]
    )
    frames = []
    for setting in json.loads(settings):
        read = site.batch(source, subscribe=setting["topic"], failOnDataLoss=False)
        rows = read.select(from_json(col("value").cast("string"), setting["fields"]).alias("row"), "topic")
        frames.append(rows.select("row.*", "topic"))
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame, allowMissingColumns=True)
    return whole.select("id", "user", "amount", "at", "topic").collect()


@job()
def rows_to_the_driver_in_other_ways(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """`toLocalIterator`, `foreachPartition`, `toJSON`, `take`, `tail`, `head`, `toArrow` and `isEmpty` of a read."""
    topic = site.fill("in", [str(number) for number in range(9)], partitions=1)
    frame = site.batch(source, subscribe=topic).selectExpr("CAST(value AS STRING) AS line", "offset", "key")
    seen = spark.sparkContext.accumulator(0)
    frame.foreachPartition(lambda rows: seen.add(sum(1 for _ in rows)))
    return [
        *((row.line,) for row in frame.toLocalIterator(prefetchPartitions=True)),
        (seen.value, frame.isEmpty(), frame.where("offset > 99").isEmpty()),
        *((text,) for text in frame.toJSON().collect()),
        *(("take", *row) for row in frame.take(2)),
        *(("tail", *row) for row in frame.tail(2)),
        *(("head", *row) for row in frame.orderBy(col("offset").desc()).head(2)),
        ("first", *frame.first()),
        ("arrow", frame.toArrow().num_rows, str(frame.toArrow().schema.names)),
        ("pandas", list(frame.toPandas().dtypes.astype(str))),
    ]
