"""Changes applied to tables: captures of databases, upserts by `foreachBatch`, rows handed to a client one by one."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql.functions import coalesce, col, expr, from_json, row_number
from tests.spark.ports.job_site import JobSite, Rows, job


def change(op: str, number: int, name: str, millisecond: int) -> tuple[str, dict[str, Any], list[Any]]:
    """A change as Debezium writes it."""
    row = {"id": number, "name": name, "email": f"{name}@example.org"}
    before, after = (None if op == "c" else row), (None if op == "d" else row)
    envelope = {"payload": {"before": before, "after": after, "op": op, "ts_ms": millisecond}}
    return json.dumps({"id": number}), envelope, []


CHANGES: list[Any] = [
    change("c", 1, "ada", 1),
    change("c", 2, "bob", 2),
    change("u", 1, "ada-l", 3),
    change("c", 3, "cy", 4),
    change("d", 2, "bob", 5),
    ('{"id": 2}', None, []),
    change("u", 3, "cyd", 6),
    change("c", 4, "di", 7),
]


@job()
def debezium_into_a_table(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Changes by Debezium merged into a table of files by `foreachBatch`: newest of each key, deletions, tombstones."""
    fields = "STRUCT<id: INT, name: STRING, email: STRING>"
    schema = f"payload STRUCT<before: {fields}, after: {fields}, op: STRING, ts_ms: BIGINT>"
    changes = (
        site.stream(source, subscribe=site.fill("server.public.customers", CHANGES), failOnDataLoss="false")
        .where("value IS NOT NULL")
        .select(from_json(col("value").cast("string"), schema).alias("c"))
        .select("c.payload.*")
        .select(coalesce("after.id", "before.id").alias("id"), "after.name", "after.email", "op", "ts_ms")
    )
    table = site.folder / "customers"

    def merge(batch: DataFrame, number: int) -> None:
        newest = Window.partitionBy("id").orderBy(col("ts_ms").desc())
        latest = batch.withColumn("rank", row_number().over(newest)).where("rank = 1").drop("rank")
        kept = table / f"v{number - 1}"
        after = latest.where("op <> 'd'").select("id", "name", "email")
        if kept.exists():
            old = spark.read.parquet(str(kept))
            after = old.join(latest.select("id"), "id", "left_anti").unionByName(after)
        after.write.mode("overwrite").parquet(str(table / f"v{number}"))

    site.drain(changes.writeStream.foreachBatch(merge))
    versions = sorted(table.iterdir(), key=lambda folder: int(folder.name[1:]))
    return spark.read.parquet(str(versions[-1])).collect()


@job()
def tables_of_a_database_by_pattern(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """All topics of a capture by `subscribePattern`, each batch split by topic into a folder of each table."""
    for table in ("users", "orders"):
        site.fill(f"db.public.{table}", [{"table": table, "id": number} for number in range(4)])
    site.fill("db.internal.users", [{"table": "internal", "id": 1}])
    frame = site.stream(source, subscribePattern=rf"{site.prefix}db\.public\..*", **{"spark.streaming.kafka.x": "1"})

    def split(batch: DataFrame, _number: int) -> None:
        for row in batch.select("topic").distinct().collect():
            folder = str(site.folder / "tables" / row.topic.rsplit(".", 1)[-1])
            batch.where(col("topic") == row.topic).selectExpr("CAST(value AS STRING)").write.mode("append").text(folder)

    site.drain(frame.writeStream.foreachBatch(split))
    folders = sorted((site.folder / "tables").iterdir())
    return [(folder.name, *row) for folder in folders for row in spark.read.text(str(folder)).collect()]


@job()
def upserts_into_a_database(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Totals kept in a relational table: a limit on each batch, `foreachBatch` with an upsert of the collected rows."""
    values = [{"item": f"i{number % 4}", "count": number} for number in range(20)]
    frame = site.stream(source, subscribe=site.fill("stock", values, key="item"), maxOffsetsPerTrigger=6)
    stock = frame.select(from_json(col("value").cast("string"), "item STRING, count INT").alias("s")).select("s.*")
    base = site.folder / "stock.db"
    with sqlite3.connect(base) as database:
        database.execute("CREATE TABLE stock (item TEXT PRIMARY KEY, count INTEGER)")

    def upsert(batch: DataFrame, _number: int) -> None:
        rows = [tuple(row) for row in batch.groupBy("item").sum("count").collect()]
        with sqlite3.connect(base) as database:
            statement = (
                "INSERT INTO stock VALUES (?, ?) ON CONFLICT (item) DO UPDATE SET count = count + excluded.count"
            )
            database.executemany(statement, rows)

    site.drain(stock.writeStream.foreachBatch(upsert))
    with sqlite3.connect(base) as database:
        return database.execute("SELECT item, count FROM stock").fetchall()


class LinesOfPartitions:
    """A writer as `foreach` takes it: a file for each partition and epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.file = (self.folder / f"{epoch_id}-{partition_id}").open("w")
        return True

    def process(self, row: Row) -> None:
        self.file.write(f"{row.key} {row.value}\n")

    def close(self, error: Exception | None) -> None:
        self.file.close()


@job()
def rows_by_foreach(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Each row handed to a client: `foreach` with `open`, `process` and `close` in Spark's tasks."""
    values = [{"id": number, "score": number * number} for number in range(7)]
    frame = site.stream(source, subscribe=site.fill("scores", values, key="id"))
    rows = frame.select(
        col("key").cast("string"), expr("get_json_object(CAST(value AS STRING), '$.score')").alias("value")
    )
    folder = site.folder / "lines"
    folder.mkdir()
    site.drain(rows.writeStream.foreach(LinesOfPartitions(folder)))
    return [(line,) for file in folder.iterdir() for line in file.read_text().splitlines()]
